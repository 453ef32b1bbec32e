"""The fast engine: the library's own kernels for the layers of small models, on threads.

The C++ sources are in `native/`. `graph.py` translates a module into a list of layers, and
`native/rules.cpp` decides which layers the kernels can run. In training, the module's own forward
method is not called, so a self-check at the start compares one training step with torch.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Unpack, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from wecfl import memory, rng
from wecfl.core.plan import LocalPlan
from wecfl.core.types import F32, Int
from wecfl.data.federation import Federation
from wecfl.engine.lesson import Lesson, Samples
from wecfl.engine.local import EVALUATION_BATCH, EngineOptions, LocalEngine
from wecfl.engine.native.graph import graph
from wecfl.engine.native.layers import Layer, Unsupported
from wecfl.errors import EngineError
from wecfl.models.rows import one_at_a_time, row_of

try:
    from wecfl.engine.native import _native
except ImportError:  # there was no compiler at installation, which `NativeEngine` reports
    _native = None  # type: ignore[assignment]

__all__ = ["NativeEngine", "Unsupported", "instruction_sets"]

_checked: set[str] = set()
"""The networks of plain torch layers that have passed the self-check in this process."""

SELF_CHECK_TOLERANCE = 1e-3
"""The largest error of the self-check, relative to the update; float32 gives about 1e-6."""
SELF_CHECK_DRAWS = 3
"""The number of random inputs for which the self-check must fail before the kernels are refused.
For one of them it may: where the input of a ReLU is zero up to rounding, its gradient is 0 or 1."""


def instruction_sets() -> list[str]:
    """The instruction sets of this machine for which there are kernels, the best first.

    The list is empty if the kernels were not built.

    >>> "baseline" in instruction_sets()
    True
    """
    return list(getattr(_native, "instruction_sets", list)())


@final
class NativeEngine(LocalEngine):
    """Runs the clients of a federation with the library's own kernels (`wecfl.core.engine.Engine`).

    The arguments are those of `LocalEngine`. `workers` are threads; any number of them gives the
    same bits. `isa` chooses an instruction set (default: the best of this machine). If the model
    has a layer that the kernels do not know, the error is `Unsupported`.

    >>> from wecfl.bilevel.evaluation import tallies
    >>> fed = Federation.from_arrays([np.eye(4, dtype=np.float32)] * 2, [np.arange(4)] * 2)
    >>> engine = NativeEngine(fed, nn.Linear(4, 4))
    >>> tallies(engine, np.zeros((2, 20), np.float32), "test").shape
    (2, 4, 4)
    """

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        isa: str = "",
        **options: Unpack[EngineOptions],
    ) -> None:
        if _native is None:
            raise Unsupported(
                "the native engine was not built, because no C++ compiler was found when wecfl was "
                "installed"
            )
        super().__init__(federation, model, **options)
        federation = self._federation
        if self.task.kernel is None:
            raise Unsupported(
                f"the native kernels don't know the loss of the task {self.task.name}"
            )
        self._layers = graph(self._model, self.layout)
        self._has_dropout = any(layer["kind"] == "dropout" for layer in self._layers)
        try:
            self._runner = self._make(self._layers, isa)
        except ValueError as error:  # from `native/rules.cpp`: the layer and the rule it breaks
            raise Unsupported(str(error)) from None
        self._x = np.ascontiguousarray(federation.x).reshape(len(federation.x), -1)
        self._y = np.ascontiguousarray(federation.y)
        network = self._network() if _only_layers(self._model) else None
        if network not in _checked:
            self._check_kernels(isa)
            if network:
                _checked.add(network)

    @property
    def name(self) -> str:
        """The name has the instruction set, since the last bits depend on it."""
        return f"native-{self._runner.isa}"

    def _train(self, clients: Int, lesson: Lesson) -> tuple[F32, F32 | None]:
        federation = self._federation
        keys = [int(federation.keys[client]) for client in clients]
        batches = [
            lesson.walk.batches(federation.train[client], key, int(done))
            for client, key, done in zip(clients, keys, lesson.done, strict=True)
        ]
        n, busy = len(batches), [row for row, taken in enumerate(batches) if taken]
        models = memory.empty(lesson.rows.shape) if lesson.out is None else lesson.out
        if models is not lesson.rows:
            models[:] = lesson.rows
        buffers = None
        if size := lesson.plan.buffer(self.layout):
            buffers = memory.empty((n, size))
            buffers[:] = 0 if lesson.velocity is None else lesson.velocity
        if not busy:
            return models, buffers
        counts = np.zeros((len(busy), max(map(len, batches))), np.int64)
        for row, taken in zip(counts, (batches[row] for row in busy), strict=True):
            row[: len(taken)] = [len(batch) for batch in taken]
        ends = np.cumsum(counts).reshape(counts.shape)
        offsets = np.concatenate([ends[:, :1] - counts[:, :1], ends], axis=1)
        index = np.concatenate([batch for client in batches for batch in client])
        by_sample = {"weights": lesson.weights, "bias": lesson.bias}
        if any(values is not None for values in by_sample.values()):
            spots = np.concatenate(lesson.positions(self.sizes[clients], federation.keys[clients]))
        self._call(
            "train",
            rows=models,
            buffers=buffers,
            anchor=lesson.anchor,
            offset=lesson.offset,
            mu=lesson.mu,
            free=lesson.free,
            lr=lesson.lr,
            optimizer=self._optimizer(lesson.plan),
            x=self._x,
            y=self._y,
            clients=np.array(busy),
            index=index,
            offsets=offsets,
            keys=np.array([self._dropout(lesson, keys[row]) for row in busy], dtype=np.uint64),
            threads=self.workers,
            **{name: values[spots] for name, values in by_sample.items() if values is not None},
        )
        return models, buffers

    def _dropout(self, lesson: Lesson, key: int) -> int:
        """The seed of a client's Dropout; 0 if the model has none, which saves drawing it."""
        return lesson.walk.dropout(key) if self._has_dropout else 0

    def _optimizer(self, plan: LocalPlan) -> _native.Optimizer:
        return _native.Optimizer(
            plan.optimizer,
            self.layout.trained_stops,
            momentum=plan.momentum,
            weight_decay=plan.weight_decay,
            beta2=plan.adam_beta2,
            eps=plan.adam_eps,
            max_gradient=plan.max_gradient or 0.0,
        )

    def close(self) -> None:
        """Nothing to do: threads end with each call."""

    def _logits(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        rows = self._rows(samples, clients)
        out = np.empty((sum(map(len, rows)), self.outputs), np.float32)
        self._evaluate("logits", models, which, rows, out, x=self._x)
        return out

    def _gradients(self, models: F32, samples: Samples, clients: Int) -> F32:
        which = np.arange(len(clients))
        rows = self._rows(samples, clients)
        out = np.empty((len(rows), self.layout.trainable), np.float32)
        self._evaluate("gradients", models, which, rows, out, x=self._x, y=self._y)
        return out

    def _evaluate(
        self, work: str, models: F32, which: Int, samples: list[Int], out: F32, **data: Any
    ) -> None:
        """Run `work` on these samples of each client, each with one of the models."""
        self._call(
            work,
            rows=np.ascontiguousarray(models, dtype=np.float32),
            which=which,
            index=np.concatenate(samples),
            offsets=np.cumsum([0, *map(len, samples)]),
            out=out,
            mode=self._batchnorm,
            batch=EVALUATION_BATCH if self._batchnorm == "running" else self._batch,
            threads=self.workers,
            **data,
        )

    def _make(self, layers: list[Layer], isa: str) -> _native.Runner:
        return _native.Runner(
            [_native.Layer(**layer) for layer in layers],
            list(self._federation.shape),
            self.outputs,
            self.layout.trainable,
            self.layout.width,
            isa,
            **(self.task.kernel or {}),
        )

    def _network(self) -> str:
        """A text of everything on which the self-check depends, except the parameters' values."""
        shape, kernel = self._federation.shape, self.task.kernel
        return repr((self.name, self._layers, shape, self.outputs, kernel, self._batchnorm))

    def _call(self, work: str, **arguments: Any) -> None:
        try:
            getattr(self._runner, work)(**arguments)
        except (ValueError, RuntimeError, MemoryError) as error:
            raise EngineError(f"the native engine failed in {work}: {error}") from None

    def _check_kernels(self, isa: str) -> None:
        """Compare one training step and one evaluation with torch, without Dropout."""
        without_dropout = [
            {**layer, "rate": 0.0} if layer["kind"] == "dropout" else layer
            for layer in self._layers
        ]
        runner = self._make(without_dropout, isa)
        for draw in range(SELF_CHECK_DRAWS):
            difference = self._difference(runner, rng.stream(0, "self-check", draw))
            if difference is None:
                return
        raise Unsupported(f"the self-check of the native kernels failed: {difference}")

    def _difference(self, runner: _native.Runner, draws: np.random.Generator) -> str | None:
        """What the kernels compute otherwise than torch on random samples; None if nothing."""
        shape = (8, *self._federation.shape)
        tables = [layer["inputs"] for layer in self._layers if layer["kind"] == "embedding"]
        tokens = draws.integers(0, min(tables, default=1), shape)
        x = (tokens if tables else draws.normal(size=shape)).astype(np.float32)
        y: NDArray[Any] = draws.integers(0, self.outputs, len(x))
        if self.task.kernel == {"loss": "squares"}:
            y = draws.normal(size=(len(x), self.outputs)).astype(np.float32)
        start, flat, order = row_of(self._model), x.reshape(len(x), -1), np.arange(len(x))
        # A long step: the rounding of the parameters must be small beside the update.
        ours, lr = start[None].copy(), np.ones(1, np.float32)
        logits = np.empty((len(x), self.outputs), np.float32)
        first, key, batches = np.zeros(1, np.int64), np.zeros(1, np.uint64), np.array([[0, len(x)]])
        runner.logits(
            rows=ours, which=first, x=flat, index=order, offsets=batches[0], out=logits,
            mode=self._batchnorm, batch=len(x), threads=1,
        )  # fmt: skip
        runner.train(
            rows=ours, buffers=None, anchor=None, offset=None, mu=None, free=None, lr=lr,
            optimizer=self._optimizer(LocalPlan(momentum=0.0)), x=flat, y=y, clients=first,
            index=order, offsets=batches, keys=key, threads=1,
        )  # fmt: skip
        with one_at_a_time:
            expected, theirs = self._by_torch(torch.from_numpy(x), torch.from_numpy(y), lr[0])
        compared = [
            ("evaluation", logits, expected, 1.0),
            ("training step", ours[0] - start, theirs - start, 0.0),
        ]
        return next(filter(None, (self._too_far(*each) for each in compared)), None)

    def _by_torch(self, x: Tensor, y: Tensor, lr: float) -> tuple[F32, F32]:
        """The logits of the model without Dropout, and its row after a training step, by torch."""
        module = deepcopy(self._model).eval()
        for part in module.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
            elif isinstance(part, nn.RNNBase):
                part.dropout = 0.0
            elif isinstance(part, nn.BatchNorm2d) and self._batchnorm == "batch":
                part.train()
        try:
            with torch.no_grad():
                logits = deepcopy(module)(x).numpy()
            output = module.train()(x)
        except Exception as error:
            one_line = " ".join(str(error).split())
            raise Unsupported(f"torch can't run the model on the samples ({one_line})") from None
        torch.autograd.backward(self.task.objective(output, y))
        with torch.no_grad():  # torch.optim would import its compiler, which takes seconds
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=float(lr))
        return logits, row_of(module)

    def _too_far(self, what: str, ours: F32, theirs: F32, min_size: float) -> str | None:
        """A sentence if the difference is large, relative to the result of torch."""
        size = max(np.abs(theirs).max(), min_size)
        error = np.abs(ours - theirs).max() / size if size > 0 else 0.0
        if error <= SELF_CHECK_TOLERANCE:
            return None
        return (
            f"one {what} with {self._runner.isa} has an error of {error:.1e}, expected at most "
            f"{SELF_CHECK_TOLERANCE:g}"
        )


def _only_layers(model: nn.Module) -> bool:
    """Whether the model consists only of torch's own modules, with unchanged behaviour.

    Then networks of the same layers compute the same. A user's class may do more than a trace
    records.
    """
    return all(
        type(part).__module__.startswith("torch.nn.modules.")
        and "forward" not in vars(part)
        and not part._forward_hooks
        and not part._forward_pre_hooks
        for part in model.modules()
    )
