"""What engines share: their checks and, on one machine, all that follows from logits."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Self, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import nn

from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Answers, Job, Sent, perform
from wecfl.core.task import Task
from wecfl.core.types import F32, F64, Bool, Int, Split, Table
from wecfl.data.federation import Federation
from wecfl.engine.lesson import Lesson, Samples, Walk
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.memory import empty as memory_of
from wecfl.models.rows import layout_of, reinitialized, row_of
from wecfl.tasks import Classification

__all__ = [
    "EVALUATION_BATCH",
    "NO_MEMORY",
    "BaseEngine",
    "EngineOptions",
    "LocalEngine",
    "LocalSite",
    "cores",
    "table_for",
]

EVALUATION_BATCH = 64
"""Samples in a batch of an evaluation, where no result depends on their number."""
BLOCK_BYTES = 1 << 26
"""Bytes of models that a program works on at a time."""
NO_MEMORY: Table = MappingProxyType({})
"""Of clients that keep nothing from round to round."""


def cores() -> int:
    """How many processors this process may use.

    >>> cores() >= 1
    True
    """
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


class EngineOptions(TypedDict, total=False):
    """The keyword arguments that all engines take; their defaults are those of `BaseEngine`."""

    workers: int | None
    """Clients that are computed at the same time; None: one for each processor."""
    batchnorm: Literal["running", "batch"]
    """What BatchNorm uses in evaluation: ``running`` statistics, or those of each test ``batch`` of
    `batch` samples (as the paper's authors tested)."""
    batch: int
    """Samples of such a batch, and of a mini-batch where `losses` or `gradients` draw some."""
    task: Task
    """The loss, and what is counted."""


class BaseEngine(ABC):
    """What all engines share that run on the clients of a `Federation`: checks, and the start.

    The keyword arguments are `EngineOptions`.
    """

    nodes = 1
    """Machines that take part."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        workers: int | None = None,
        batchnorm: Literal["running", "batch"] = "running",
        batch: int = 32,
        task: Task = Classification(),  # noqa: B008  (frozen)
    ) -> None:
        self.workers = min(cores() if workers is None else workers, len(federation))
        if self.workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        if batchnorm not in ("running", "batch"):
            raise ConfigError(f"batchnorm must be 'running' or 'batch', got '{batchnorm}'")
        self.layout = layout_of(model)
        self.sizes: Int = federation.sizes
        self._federation = federation
        self._model = deepcopy(model)
        self._batchnorm = batchnorm
        self._batch = batch
        self.task = task

    @property
    @abstractmethod
    def name(self) -> str:
        """Part of the reproducibility key: engines differ by rounding, each repeats its bits."""

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample."""
        return self._federation.classes

    @abstractmethod
    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        """Let clients run a program (`wecfl.core.engine.Engine`)."""

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), number 0 as given, others drawn anew (`wecfl.core.engine.Engine`)."""
        rows = [row_of(reinitialized(self._model, seed, j) if j else self._model) for j in which]
        return np.stack(rows)

    def network_report(self) -> dict[str, Any]:
        """Empty, since all clients are always present (`wecfl.core.engine.Engine`)."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give back what the engine holds; it can't be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chosen(self, who: Int | Sequence[int] | None) -> Int:
        """The clients that are asked, in rising order; None: all."""
        m = len(self.sizes)
        clients = np.arange(m) if who is None else np.asarray(who, dtype=np.int64)
        if len(clients) and not (
            clients[0] >= 0 and clients[-1] < m and (np.diff(clients) > 0).all()
        ):
            raise ConfigError(f"clients must rise between 0 and {m - 1}, got {clients}")
        return clients


class LocalEngine(BaseEngine):
    """An engine that holds the clients' data itself; subclasses train and compute logits.

    Arguments as of `BaseEngine`. Programs see some of its clients at a time, as a `LocalSite`.
    """

    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        """Some clients at a time, which bounds the memory of a program (`wecfl.core.engine`)."""
        clients = self._chosen(who)
        n, m, everyone = len(clients), len(self.sizes), len(clients) == len(self.sizes)
        travels = self.layout.columns(job.shared) if job.keep else slice(None)
        rows: dict[str, NDArray[Any]] = {}
        kept: dict[str, NDArray[Any]] = {}
        for start in range(0, n, size := self._clients_at_a_time()):
            part = slice(start, min(start + size, n))
            site = LocalSite(self, clients[part], job.seed, job.round)
            table_rows = part if everyone else clients[part]
            held = {name: table[table_rows] for name, table in memory.items()}
            job_of_part = replace(job, plan=job.plan.of(part))
            reply, after = perform(job_of_part, site, sent.take(part), held)
            for name, made in reply.items():
                if name == "model" and job.program.replies[name].update:
                    rows[name] = sent.own[name]
                    if not np.shares_memory(made, rows[name]):
                        rows[name][part, travels] = made[:, travels]
                else:
                    rows.setdefault(name, np.empty((n, *made.shape[1:]), made.dtype))[part] = made
            for name, made in after.items():
                if everyone and part == slice(0, m):
                    kept[name] = made
                    continue
                if name not in kept:
                    kept[name] = table_for(made, m, memory.get(name))
                kept[name][clients[part]] = made
        if not n:
            rows = _empty_replies(job, self.layout, sent, self.task.shape(self.outputs))
        if not job.keep or not n:
            return Answers(rows, np.zeros(n, np.int8), memory)
        return Answers(rows, np.zeros(n, np.int8), {**memory, **kept})

    def _clients_at_a_time(self) -> int:
        """As many as `BLOCK_BYTES` has room for models, and enough to keep all workers busy."""
        return max(BLOCK_BYTES // (4 * self.layout.width), 32 * self.workers)

    @abstractmethod
    def _train(self, clients: Int, lesson: Lesson) -> tuple[F32, F32 | None]:
        """The models and the momentum of these clients after the lesson."""

    @abstractmethod
    def _logits(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        """Logits of the samples of these clients, the i-th under row `which[i]` of `models`."""

    @abstractmethod
    def _gradients(self, models: F32, samples: Samples, clients: Int) -> F32:
        """(n, trainable), the gradient of each client's mean loss on its samples, at its row."""

    def _drawn(self, batches: int | None, seed: int, round: int) -> Samples:
        """All training data, or that many mini-batches of each client."""
        limit = None if batches is None else min(batches * self._batch, int(self.sizes.max()))
        return Samples("train", limit, seed, round)

    def _rows(self, samples: Samples, clients: Int) -> list[Int]:
        """The samples of each client, as rows of the pool."""
        return [samples.of(self._federation, int(client)) for client in clients]

    def _loss(self, models: F32, which: Int, samples: Samples, clients: Int) -> F64:
        """Mean loss of each of these clients on its samples; NaN for one that has none."""
        logits = self._logits(models, which, samples, clients).astype(np.float64)
        rows = self._rows(samples, clients)
        loss = self.task.losses(logits, self._federation.y[np.concatenate(rows)])
        counts = np.array([len(chosen) for chosen in rows])
        means, some = np.full(len(counts), np.nan), counts > 0
        if some.any():  # an empty part would be given the loss of the next one
            starts = np.cumsum([0, *counts[:-1]])[some]
            means[some] = np.add.reduceat(loss, starts) / counts[some]
        return means

    def _tally(self, models: F32, split: Split, clients: Int) -> F64:
        """(n, …), what the task counts of the mean outputs of (J, n, P)."""
        own, rows = np.arange(len(clients)), self._rows(Samples(split), clients)
        votes = [
            self._logits(np.ascontiguousarray(member), own, Samples(split), clients).astype(float)
            for member in models
        ]
        owners = np.repeat(own, [len(indices) for indices in rows])
        targets = self._federation.y[np.concatenate(rows)]
        return self.task.tally(sum(votes[1:], start=votes[0]), targets, owners, len(clients))


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
        out: F32 | None = None,
    ) -> tuple[F32, F32 | None]:
        """A part of the round's steps of SGD (`wecfl.core.program.Site`)."""
        n, (width, trainable) = len(self.clients), (self.layout.width, self.layout.trainable)
        done = np.broadcast_to(plan.steps if plan.done is None else plan.done, n)
        if not ((done >= 0) & (done <= plan.steps)).all():
            raise ConfigError(
                f"clients take 0 to {plan.steps} steps, got {done.min()}…{done.max()}"
            )
        walk = Walk(plan.steps, plan.batch, self.seed, self.round, part.start or 0, part.stop)
        mu = _array("mu", correction.mu, (trainable,))
        with np.errstate(over="ignore"):  # beyond float32 it is infinite; the round reports that
            lr = np.array(np.broadcast_to(np.asarray(plan.lr), n), np.float32)
        lesson = Lesson(
            _array("rows", rows, (n, width)),
            walk,
            done,
            lr,
            plan.momentum,
            plan.weight_decay,
            _maybe("velocity", velocity, (n, trainable)) if plan.momentum > 0 else None,
            mu if mu.any() else None,
            _maybe("anchor", correction.anchor, (n, width)),
            _maybe("offset", correction.offset, (n, width)),
            None if free is None else np.ascontiguousarray(free[:trainable]),
            out,
        )
        still: Any = [] if free is None else ~free[trainable:]
        held = trainable + np.flatnonzero(still)
        before = lesson.rows[:, held]
        after, momentum = self.engine._train(self.clients, lesson)
        after[:, held] = before  # running statistics, which no gradient moves
        return after, momentum

    def losses(self, models: F32, batches: int | None = None) -> F64:
        """(n, K), L(Ω_k, D_i) (`wecfl.core.program.Site`)."""
        samples = self.engine._drawn(batches, self.seed, self.round)
        same = np.zeros(len(self.clients), np.int64)
        each = [self.engine._loss(model[None], same, samples, self.clients) for model in models]
        return np.stack(each, axis=1)

    def risk(self, rows: F32, split: Split = "train") -> F64:
        """(n,), L(ω_i, D_i) (`wecfl.core.program.Site`)."""
        own = np.arange(len(self.clients))
        return self.engine._loss(rows, own, Samples(split), self.clients)

    def gradients(self, rows: F32, batches: int | None = None) -> F32:
        """(n, trainable), ∇L(ω_i, D_i) (`wecfl.core.program.Site`)."""
        samples = self.engine._drawn(batches, self.seed, self.round)
        return self.engine._gradients(rows, samples, self.clients)

    def tally(self, rows: F32, split: Split) -> F64:
        """(n, …), what the task counts on a split (`wecfl.core.program.Site`)."""
        stack = rows[None] if rows.ndim == 2 else np.moveaxis(rows, 1, 0)
        return self.engine._tally(stack, split, self.clients)


def _array(name: str, value: object, shape: tuple[int, ...]) -> F32:
    """The value as float32 of this shape, or a `ConfigError` that names it."""
    with np.errstate(over="ignore"):
        given = np.asarray(value, dtype=np.float32)
    if given.shape not in (shape, ()):
        raise ConfigError(f"{name} has shape {given.shape}, not {shape}")
    return np.ascontiguousarray(np.broadcast_to(given, shape))


def _maybe(name: str, value: F32 | None, shape: tuple[int, ...]) -> F32 | None:
    return None if value is None else _array(name, value, shape)


def table_for(made: NDArray[Any], count: int, before: NDArray[Any] | None = None) -> NDArray[Any]:
    """A table (count, …) for rows like those of `made`, filled with `before` or with zeros."""
    shape = (count, *made.shape[1:])
    table = memory_of(shape) if made.dtype == np.float32 else np.empty(shape, made.dtype)
    table[...] = 0 if before is None else before
    return table


def _empty_replies(
    job: Job, layout: Layout, sent: Sent, tally: tuple[int, ...]
) -> dict[str, NDArray[Any]]:
    """The replies where no client was asked: tables without rows."""
    models = sent.common.get("models")
    sizes: dict[str, int | tuple[int, ...]] = {
        "P": layout.width, "trainable": layout.trainable, "tally": tally,
        "K": 0 if models is None else len(models),
    }  # fmt: skip
    return {
        name: np.empty((0, *field.sized(sizes)), field.dtype)
        for name, field in job.program.replies.items()
    }
