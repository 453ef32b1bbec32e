"""The torch engine on one device: a GPU, with the data on it and several clients at once.

Clients whose mini-batches have the same sizes are stacked: `torch.func.vmap` runs the model once
for all of them, each with its own parameters, and one step of the optimizer changes all their rows.
If a model can't be stacked, it runs client by client on the same device, and a line of the log says
why. The mini-batches are the same as with other engines, so the numbers agree up to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from typing import Any, Literal, Unpack, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from wecfl.core.plan import FeatureTerm
from wecfl.core.types import F32, Int
from wecfl.data.federation import Federation
from wecfl.engine.feature_losses import FEATURE_LOSSES
from wecfl.engine.hardware import full_precision, generator_of
from wecfl.engine.lesson import Lesson, Samples
from wecfl.engine.local import EVALUATION_BATCH, EngineOptions, LocalEngine
from wecfl.engine.torch_optimizer import Descent
from wecfl.errors import EngineError
from wecfl.models.features import with_features
from wecfl.models.rows import one_at_a_time, row_of
from wecfl.printing import log

__all__ = ["DeviceEngine"]

STACKED_CLIENTS = 32
"""The number of clients that are computed at the same time, unless `workers` is given."""
TRIAL_SAMPLES = 4
"""The number of samples on which stacking is tried."""
TRIAL_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1}
"""The largest error of stacked gradients, as a share of the largest gradient."""

Tensors = dict[str, Tensor]


@final
class DeviceEngine(LocalEngine):
    """Runs the clients of a federation with torch on one device, in this process.

    `device` is any device of torch. The other arguments are those of `LocalEngine`; `workers` is
    the number of clients that are stacked. With `precision` ``bfloat16`` the forward pass is in
    mixed precision (`torch.autocast`).

    >>> from torch import nn
    >>> from wecfl.bilevel.evaluation import tallies
    >>> fed = Federation.from_arrays([np.eye(4, dtype=np.float32)] * 2, [np.arange(4)] * 2)
    >>> with DeviceEngine(fed, nn.Linear(4, 4), device="cpu") as engine:
    ...     tallies(engine, np.zeros((2, 20), np.float32), "test").shape
    (2, 4, 4)
    """

    offers = frozenset({"features"})

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        device: str,
        precision: str = "float32",
        **options: Unpack[EngineOptions],
    ) -> None:
        if options.get("workers") is None:
            options["workers"] = STACKED_CLIENTS
        super().__init__(federation, model, **options)
        self._device, self._precision = torch.device(device), precision
        self._module = deepcopy(self._model).to(self._device)
        self._norms = [
            part
            for part in self._module.modules()
            if isinstance(part, nn.modules.batchnorm._BatchNorm)
        ]
        self._counters = {
            name: buffer.clone()
            for name, buffer in self._module.named_buffers()
            if not buffer.is_floating_point()
        }
        self._x, self._y = self._here(self._federation.x), self._here(self._federation.y)
        self._stacked = False
        self._check_fit()
        reason = self._unstackable()
        self._stacked = not reason
        if reason:
            log.warning("wecfl: one client at a time on %s: %s", self._device, reason)

    @property
    def name(self) -> str:
        """The name has the device and the precision, since the last bits depend on them."""
        mixed = "" if self._precision == "float32" else f"-{self._precision}"
        return f"torch-{self._device.type}{mixed}"

    @property
    def stacked(self) -> bool:
        """Whether several clients are computed at the same time."""
        return self._stacked

    def close(self) -> None:
        """Release the data."""
        self._x = self._y = torch.empty(0)

    def _train(self, clients: Int, lesson: Lesson) -> tuple[F32, F32 | None]:
        fed, plan, trainable = self._federation, lesson.plan, self.layout.trainable
        rows = np.empty_like(lesson.rows) if lesson.out is None else lesson.out
        buffers = np.zeros((len(clients), plan.buffer(self.layout)), np.float32)
        if lesson.velocity is not None:
            buffers[:] = lesson.velocity
        own = [fed.train[client] for client in clients]
        walks = [  # within the samples of each client
            lesson.walk.batches(np.arange(len(rows)), int(fed.keys[client]), int(done))
            for rows, client, done in zip(own, clients, lesson.done, strict=True)
        ]
        firsts = np.cumsum([0, *map(len, own)])
        mu, free = self._maybe(lesson.mu), self._maybe(lesson.free)
        for turns, batches in self._stacks(walks):
            key = int(fed.keys[clients[turns[0]]])
            with self._running("train", clients[turns], lesson.walk.dropout(key)):
                self._module.train()
                row, buffer = self._here(lesson.rows[turns]), self._here(buffers[turns])
                w, fixed = row[:, :trainable], self._fixed(row)
                anchor = self._maybe(lesson.anchor, turns)
                anchor = w.clone() if anchor is None else anchor[:, :trainable]
                offset = self._maybe(lesson.offset, turns)
                lr = self._here(lesson.lr[turns, None])
                descent = Descent(plan, self.layout, lr, buffer, free)
                for batch in batches:
                    pool = np.stack([own[turn][at] for turn, at in zip(turns, batch, strict=True)])
                    spots = firsts[turns, None] + batch
                    weights = self._maybe(lesson.weights, spots)
                    bias = self._maybe(lesson.bias, spots)
                    term = lesson.term and FeatureTerm(
                        lesson.term.kind, lesson.term.points[spots], lesson.term.factors[spots]
                    )
                    g = self._gradient(
                        w, fixed, pool, "mean", weights=weights, bias=bias, term=term
                    )
                    descent.prepare(w, g)
                    if mu is not None:
                        g.addcmul_(mu, w - anchor)
                    if offset is not None:
                        g.add_(offset[:, :trainable])
                    descent.step(w, g)
                for entry in self.layout.entries:
                    if entry.name in fixed:
                        row[:, entry.start : entry.stop] = fixed[entry.name].reshape(len(turns), -1)
                rows[turns], buffers[turns] = row.cpu().numpy(), buffer.cpu().numpy()
        return rows, buffers if buffers.shape[1] else None

    def _logits(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        return self._forward(models, which, samples, clients, featured=False)

    def _features(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        both = self._forward(models, which, samples, clients, featured=True)
        return np.ascontiguousarray(both[:, self.outputs :])

    @torch.no_grad()
    def _forward(
        self, models: F32, which: Int, samples: Samples, clients: Int, *, featured: bool
    ) -> F32:
        """(N, C), the outputs for the clients' samples; (N, C + D) with features."""
        forward, width = self._output, self.outputs
        if featured:
            forward, width = self._output_and_features, self.outputs + self.layout.head[1]
        chosen = self._rows(samples, clients)
        sizes = [len(rows) for rows in chosen]
        starts = np.cumsum([0, *sizes])
        logits = np.empty((starts[-1], width), np.float32)
        held = self._here(models)
        for turns, batches in self._stacks(self._evaluated(chosen, padded=True)):
            if not batches:
                continue
            with self._running("logits", clients[turns]):
                self._evaluate()
                row = held[self._here(which[turns])]
                tensors = {**self._trained(row), **self._fixed(row)}
                parts = [
                    self._each(forward, tensors, self._x[self._here(batch)]) for batch in batches
                ]
                made = torch.cat(parts, dim=1).cpu().numpy()
                if made.shape[2:] != (width,):
                    raise ValueError(f"the output has shape {tuple(parts[0].shape[1:])}")
                for turn, own in zip(turns, made, strict=True):
                    logits[starts[turn] : starts[turn + 1]] = own[: sizes[turn]]
        return logits

    def _gradients(self, models: F32, samples: Samples, clients: Int) -> F32:
        gradients = np.empty((len(clients), self.layout.trainable), np.float32)
        for turns, batches in self._stacks(self._evaluated(self._rows(samples, clients))):
            with self._running("gradients", clients[turns]):
                self._evaluate()
                row = self._here(models[turns])
                w, fixed = row[:, : self.layout.trainable], self._fixed(row)
                parts = [self._gradient(w, fixed, batch, "sum") for batch in batches]
                count = sum(batch.shape[1] for batch in batches)
                gradients[turns] = (torch.stack(parts).sum(0) / count).cpu().numpy()
        return gradients

    def _stacks(self, walks: Sequence[Sequence[Int]]) -> Iterator[tuple[Int, list[Int]]]:
        """Yield clients whose batches have the same sizes: their positions, and their batches."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for turn, walk in enumerate(walks):
            alike.setdefault(tuple(map(len, walk)), []).append(turn)
        most = self.workers if self._stacked else 1
        for lengths, turns in alike.items():
            for start in range(0, len(turns), most):
                some = turns[start : start + most]
                yield (
                    np.array(some),
                    [np.stack([walks[turn][q] for turn in some]) for q in range(len(lengths))],
                )

    def _evaluated(self, chosen: Sequence[Int], *, padded: bool = False) -> list[list[Int]]:
        """The batches of an evaluation; if `padded`, of equal sizes unless results depend on it."""
        running = self._batchnorm == "running"
        size = EVALUATION_BATCH if running else self._batch
        longest = min(size, max(map(len, chosen), default=1))
        walks = [[rows[i : i + size] for i in range(0, len(rows), size)] for rows in chosen]
        if padded and running:
            for walk in filter(None, walks):  # a client may hold no sample of a split
                walk[-1] = np.resize(walk[-1], longest)
        return walks

    def _evaluate(self) -> None:
        """Switch the model to evaluation, in which BatchNorm may use statistics of the batch."""
        self._module.eval()
        if self._batchnorm == "batch":
            for norm in self._norms:
                norm.train()

    def _gradient(
        self,
        w: Tensor,
        fixed: Tensors,
        batch: Int,
        reduction: Literal["mean", "sum"],
        *,
        weights: Tensor | None = None,
        bias: Tensor | None = None,
        term: FeatureTerm | None = None,
    ) -> Tensor:
        """(n, trainable), the gradient of each client's loss on its batch."""
        where = self._here(batch)
        trained = {name: part.detach().requires_grad_() for name, part in self._trained(w).items()}

        def objective(_: Tensors, outputs: Tensor, y: Tensor) -> Tensor:
            made: Tensor = self.task.objective(outputs, y, reduction)
            return made

        forward = self._output_and_features if term else self._output
        both = self._each(forward, {**trained, **fixed}, self._x[where])
        outputs, features = both[..., : self.outputs], both[..., self.outputs :]
        if bias is not None:
            outputs = outputs + bias
        of = self._each(objective, {}, outputs, self._y[where]).sum()
        slope = None
        if weights is not None:  # a loss is a sum over samples: each row of its slope is of one
            (slope,) = torch.autograd.grad(of, outputs, retain_graph=True)
            of, slope = outputs, slope * weights[..., None]
        ends, slopes = [of], [slope]
        if term is not None:
            far = FEATURE_LOSSES[term.kind](features, self._here(term.points))
            ends.append((self._here(term.factors) * far).mean(dim=1).sum())
            slopes.append(None)
        parts = torch.autograd.grad(ends, list(trained.values()), slopes, materialize_grads=True)
        return torch.cat([part.reshape(len(batch), -1) for part in parts], dim=1)

    def _each(self, f: Callable[..., Tensor], tensors: Tensors, *data: Tensor) -> Tensor:
        """`f` of each client's tensors and data, for all at once or for one after the other."""
        if self._stacked:
            made: Tensor = vmap(f)(tensors, *data)
            return made
        count = len(data[0])
        return torch.stack([
            f({name: part[i] for name, part in tensors.items()}, *(part[i] for part in data))
            for i in range(count)
        ])  # fmt: skip

    def _output(self, tensors: Tensors, x: Tensor) -> Tensor:
        """The output of one model, for the samples of one client."""
        with self._mixed():
            made: Tensor = functional_call(self._module, {**self._counting, **tensors}, (x,))
        return made.float()

    def _output_and_features(self, tensors: Tensors, x: Tensor) -> Tensor:
        """(n, C + D), the output of one model, followed by the features."""
        output, features = with_features(self._module, lambda: self._output(tensors, x))
        return torch.cat([output, features.float()], dim=1)

    def _trained(self, rows: Tensor) -> Tensors:
        """The parameters that are trained, (n, …), as views of rows."""
        return {
            entry.name: rows[:, entry.start : entry.stop].view(-1, *entry.shape)
            for entry in self.layout.entries
            if entry.stop <= self.layout.trainable
        }

    def _fixed(self, rows: Tensor) -> Tensors:
        """The tensors that are not trained, (n, …), with new counts of batches.

        BatchNorm writes to both.
        """
        self._counting = {name: count.clone() for name, count in self._counters.items()}
        return {
            entry.name: rows[:, entry.start : entry.stop].clone().view(-1, *entry.shape)
            for entry in self.layout.entries
            if entry.stop > self.layout.trainable
        }

    def _here(self, array: NDArray[Any]) -> Tensor:
        """The array on the device."""
        return torch.from_numpy(array).to(self._device)

    def _maybe(self, array: NDArray[Any] | None, turns: Int | None = None) -> Tensor | None:
        if array is None:
            return None
        return self._here(array if turns is None else array[turns])

    def _mixed(self) -> AbstractContextManager[Any]:
        if self._precision == "float32":
            return nullcontext()
        return torch.autocast(self._device.type, torch.bfloat16)

    @contextmanager
    def _running(self, work: str, clients: Int, seed: int = 0) -> Iterator[None]:
        """Seed the device's generator; if the work fails, raise an error that names the clients."""
        source = generator_of(self._device)
        with one_at_a_time, full_precision(self._device):
            before = source.get_state()
            source.manual_seed(seed)
            try:
                yield
            except Exception as error:
                names = [self._federation.names[client] for client in (clients[0], clients[-1])]
                who = f"client {names[0]}" if len(clients) == 1 else f"clients {' … '.join(names)}"
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                hint = "; lower workers" if isinstance(error, torch.OutOfMemoryError) else ""
                raise EngineError(
                    f"{who} failed in {work} on {self._device}: {reason}{hint}"
                ) from error
            finally:
                source.set_state(before)

    def _check_fit(self) -> None:
        """Run one forward pass of one client, to refuse at once a model that does not fit."""
        try:
            self._logits(
                row_of(self._model)[None], np.zeros(1, np.int64), Samples("test"), FIRST_CLIENT
            )
        except EngineError as error:
            raise self._misfit(str(error)) from None

    def _unstackable(self) -> str:
        """Why clients can't be stacked; empty if a trial with two gives the same as with one."""
        largest = self._federation.train[int(self.sizes.argmax())][:TRIAL_SAMPLES]
        found = []
        for count in (1, 2):
            self._stacked = count > 1
            try:
                with self._running("train", FIRST_CLIENT), warnings.catch_warnings():
                    warnings.simplefilter("error", UserWarning)  # vmap would loop over the clients
                    self._module.train()
                    row = self._here(np.stack([row_of(self._model)] * count))
                    w, fixed = row[:, : self.layout.trainable], self._fixed(row)
                    made = self._gradient(w, fixed, np.stack([largest] * count), "mean")
                    found.append([made, *fixed.values()])
            except EngineError as error:
                reason = " ".join(str(error.__cause__).split())
                if "randomness" in reason:
                    return "the model draws random numbers in training, others for each client"
                return reason
        one, two = found
        share = TRIAL_TOLERANCE[self._precision]
        same = all(
            (alone - both).abs().max() <= share * alone.abs().max()
            for alone, both in zip(one, two, strict=True)
        )
        return "" if same else "the model gives other gradients if clients are stacked"


FIRST_CLIENT = np.zeros(1, np.int64)
"""The first client."""
