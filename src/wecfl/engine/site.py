"""The site of a local engine, by which programs reach its clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wecfl.core.plan import Correction, FeatureTerm, LocalPlan
from wecfl.core.program import Ensemble
from wecfl.core.types import F32, F64, Bool, Int, Split
from wecfl.engine.lesson import Lesson, Samples, Walk
from wecfl.errors import ConfigError, EngineError
from wecfl.layout import Layout

if TYPE_CHECKING:
    from wecfl.engine.local import LocalEngine

__all__ = ["LocalSite"]


@dataclass(frozen=True, slots=True, eq=False)
class LocalSite:
    """Some clients of an engine in one round: a `wecfl.core.program.Site`."""

    engine: LocalEngine
    clients: Int
    seed: int = 0
    round: int = 0

    @property
    def layout(self) -> Layout:
        """Which columns of a row hold which parameter."""
        return self.engine.layout

    @property
    def sizes(self) -> Int:
        """(n,), |D_i|."""
        return self.engine.sizes[self.clients]

    def train(
        self,
        rows: F32,
        plan: LocalPlan,
        *,
        correction: Correction = Correction(),  # noqa: B008  (frozen)
        velocity: F32 | None = None,
        free: Bool | None = None,
        part: slice = slice(None),
        repeat: int = 1,
        weights: F32 | None = None,
        bias: F32 | None = None,
        term: FeatureTerm | None = None,
        out: F32 | None = None,
    ) -> tuple[F32, F32 | None]:
        """Take a part of the round's steps (`wecfl.core.program.Site`)."""
        n, (width, trainable) = len(self.clients), (self.layout.width, self.layout.trainable)
        buffer, done = plan.buffer(self.layout), self._done(plan)
        walk = Walk(
            plan.steps, plan.batch, self.seed, self.round, part.start or 0, part.stop, plan.epochs,
            repeat, plan.leave_validation,
        )  # fmt: skip
        mu = _array("mu", correction.mu, (trainable,))
        with np.errstate(over="ignore"):  # if it overflows, it is infinite, which the round reports
            lr = np.array(np.broadcast_to(np.asarray(plan.lr), n), np.float32)
        lesson = Lesson(
            _array("rows", rows, (n, width)),
            walk,
            done,
            lr,
            replace(plan, lr=0.0, done=None),
            _maybe("velocity", velocity, (n, buffer)) if buffer else None,
            mu if mu.any() else None,
            _maybe("anchor", correction.anchor, (n, width)),
            _maybe("offset", correction.offset, (n, width)),
            None if free is None else np.ascontiguousarray(free[:trainable]),
            _maybe("weights", weights, (int(self.sizes.sum()),)),
            _maybe("bias", bias, (int(self.sizes.sum()), self.engine.outputs)),
            None if term is None else self._fitting(term),
            out,
        )
        still: Any = [] if free is None else ~free[trainable:]
        held = trainable + np.flatnonzero(still)
        before = lesson.rows[:, held]
        after, momentum = self.engine._train(self.clients, lesson)
        after[:, held] = before  # running statistics, which change without a gradient
        return after, momentum

    def _done(self, plan: LocalPlan) -> Int:
        """(n,), how many steps each client takes."""
        steps = plan.steps_of(self.sizes)
        done = steps if plan.done is None else np.broadcast_to(plan.done, len(self.clients))
        if not ((done >= 0) & (done <= steps)).all():
            raise ConfigError(
                f"clients must complete 0 to {steps.max()} steps, got {done.min()} to {done.max()}"
            )
        return done

    def samples(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The training samples, client by client (`wecfl.core.program.Site`)."""
        rows = np.concatenate(self.engine._rows(Samples("train"), self.clients))
        return self.engine._federation.x[rows], self.engine._federation.y[rows]

    def outputs(self, rows: F32) -> F32:
        """(N, C), of each client's own row (`wecfl.core.program.Site`)."""
        own = np.arange(len(self.clients))
        return self.engine._logits(rows, own, Samples("train"), self.clients)

    def features(self, rows: F32) -> F32:
        """(N, D), of each client's own row (`wecfl.core.program.Site`)."""
        self._check_features()
        own = np.arange(len(self.clients))
        return self.engine._features(rows, own, Samples("train"), self.clients)

    def _fitting(self, term: FeatureTerm) -> FeatureTerm:
        """The term, with arrays of the right shapes and types."""
        self._check_features()
        n, d = int(self.sizes.sum()), self.layout.head[1]
        points, factors = _array("points", term.points, (n, d)), term.factors
        return FeatureTerm(term.kind, points, _array("factors", factors, (n,)))

    def _check_features(self) -> None:
        if "features" not in self.engine.offers:
            raise EngineError(
                f"the engine {self.engine.name} can't compute the features of a model: set engine "
                f"to torch"
            )

    def sample_losses(self, models: F32) -> F64:
        """(N, K), of each sample under each model (`wecfl.core.program.Site`)."""
        same, (_, targets) = np.zeros(len(self.clients), np.int64), self.samples()
        outputs = [
            self.engine._logits(model[None], same, Samples("train"), self.clients)
            for model in models
        ]
        losses = [self.engine.task.losses(made.astype(np.float64), targets) for made in outputs]
        return np.stack(losses, axis=1)

    def losses(self, models: F32, batches: int | None = None) -> F64:
        """(n, K), L(Ω_k, D_i) (`wecfl.core.program.Site`)."""
        samples = self.engine._drawn(batches, self.seed, self.round)
        same = np.zeros(len(self.clients), np.int64)
        columns = [self.engine._loss(model[None], same, samples, self.clients) for model in models]
        return np.stack(columns, axis=1)

    def risk(self, rows: F32, split: Split = "train", batches: int | None = None) -> F64:
        """(n,), L(ω_i, D_i) (`wecfl.core.program.Site`)."""
        samples = Samples(split, seed=self.seed)
        if batches is not None:
            samples = self.engine._drawn(batches, self.seed, self.round)
        return self.engine._loss(rows, np.arange(len(self.clients)), samples, self.clients)

    def gradients(self, rows: F32, batches: int | None = None) -> F32:
        """(n, trainable), ∇L(ω_i, D_i) (`wecfl.core.program.Site`)."""
        samples = self.engine._drawn(batches, self.seed, self.round)
        return self.engine._gradients(rows, samples, self.clients)

    def tally(self, rows: F32 | Ensemble, split: Split) -> F64:
        """(n, …), the task's tallies on a split (`wecfl.core.program.Site`)."""
        ensemble = rows if isinstance(rows, Ensemble) else None
        models = rows.models if isinstance(rows, Ensemble) else rows
        stack = models[None] if models.ndim == 2 else np.moveaxis(models, 1, 0)
        chosen = Samples(split, seed=self.seed)
        return self.engine._tally(stack, chosen, self.clients, ensemble)


def _array(name: str, value: object, shape: tuple[int, ...]) -> F32:
    """The value as a float32 array of this shape; a `ConfigError` if it has another shape."""
    with np.errstate(over="ignore"):
        given = np.asarray(value, dtype=np.float32)
    if given.shape not in (shape, ()):
        raise ConfigError(f"{name} must have shape {shape}, got {given.shape}")
    return np.ascontiguousarray(np.broadcast_to(given, shape))


def _maybe(name: str, value: F32 | None, shape: tuple[int, ...]) -> F32 | None:
    return None if value is None else _array(name, value, shape)
