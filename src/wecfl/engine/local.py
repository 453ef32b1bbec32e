"""The common part of engines: checks and, on one machine, everything that follows from logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import nn

from wecfl.core.execution import perform
from wecfl.core.program import Answers, Ensemble, Job, Sent
from wecfl.core.task import Task
from wecfl.core.types import F32, F64, Int, Table
from wecfl.data.federation import Federation
from wecfl.engine.hardware import cores
from wecfl.engine.lesson import Lesson, Samples
from wecfl.engine.site import LocalSite
from wecfl.errors import ConfigError, ModelError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one
from wecfl.memory import empty as memory_of
from wecfl.models.rows import layout_of, reinitialized, row_of
from wecfl.tasks import Classification

__all__ = [
    "EVALUATION_BATCH",
    "NO_MEMORY",
    "BaseEngine",
    "EngineOptions",
    "LocalEngine",
    "table_for",
]

EVALUATION_BATCH = 64
"""The number of samples in a batch of an evaluation, on which no result depends."""
BLOCK_BYTES = 1 << 26
"""The number of bytes of models with which a program works at a time."""
NO_MEMORY: Table = MappingProxyType({})
"""The memory of clients that keep nothing from round to round."""


class EngineOptions(TypedDict, total=False):
    """The keyword arguments that all engines take; their defaults are those of `BaseEngine`."""

    workers: int | None
    """The number of clients that are computed at the same time; None: one for each processor."""
    batchnorm: Literal["running", "batch"]
    """What BatchNorm uses in an evaluation: ``running``, its running statistics; or ``batch``, the
    statistics of each batch of `batch` test samples (as the paper's authors tested)."""
    batch: int
    """The number of samples in such a batch, and in a mini-batch of `losses` or `gradients`."""
    task: Task
    """What is learned: the loss, and the tallies."""


class BaseEngine(ABC):
    """The common part of engines for the clients of a `Federation`: checks, and initial models.

    The keyword arguments are those of `EngineOptions`.
    """

    nodes = 1
    """The number of machines on which clients are trained."""
    offers: ClassVar[frozenset[str]] = frozenset()
    """What it can do in addition to what all engines can (`wecfl.core.program.needs_of`)."""

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
        check_at_least_one(workers=self.workers)
        if batchnorm not in ("running", "batch"):
            raise ConfigError(f"batchnorm must be 'running' or 'batch', got '{batchnorm}'")
        self.layout = layout_of(model)
        self.task, self._drifting = task.fit(federation)
        self.move_to(1)
        self.sizes: Int = self._federation.sizes
        self.shape: tuple[int, ...] = self._federation.shape
        self._model = deepcopy(model)
        self._batchnorm = batchnorm
        self._batch = batch

    @property
    @abstractmethod
    def name(self) -> str:
        """The name. Engines agree up to rounding, so the last bits of a result depend on it."""

    @property
    def outputs(self) -> int:
        """The number of outputs of a model for a sample."""
        return self.task.outputs

    @abstractmethod
    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        """Let clients run a program (`wecfl.core.engine.Engine`)."""

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), initial models by number (`wecfl.core.engine.Engine`)."""
        rows = [row_of(reinitialized(self._model, seed, j) if j else self._model) for j in which]
        return np.stack(rows)

    def move_to(self, round: int) -> None:
        """Give clients their data of this round (`wecfl.core.engine.Engine`)."""
        self._round, self._federation = round, self._drifting.at(round)

    def network_report(self) -> dict[str, Any]:
        """Empty, since all clients are always present (`wecfl.core.engine.Engine`)."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Release everything that the engine holds; it can't be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _chosen(self, who: Int | Sequence[int] | None) -> Int:
        """The clients that are asked, in ascending order; None: all."""
        m = len(self.sizes)
        clients = np.arange(m) if who is None else np.asarray(who, dtype=np.int64)
        if len(clients) and not (
            clients[0] >= 0 and clients[-1] < m and (np.diff(clients) > 0).all()
        ):
            raise ConfigError(
                f"clients must be different numbers from 0 to {m - 1} in ascending order, got "
                f"{clients}"
            )
        return clients


class LocalEngine(BaseEngine):
    """An engine that holds the clients' data itself; subclasses train and compute logits.

    The arguments are those of `BaseEngine`. A program gets some clients at a time (`LocalSite`).
    """

    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        """Let clients run a program, some at a time to save memory (`wecfl.core.engine.Engine`)."""
        clients = self._chosen(who)
        n, m, everyone = len(clients), len(self.sizes), len(clients) == len(self.sizes)
        travels = self.layout.columns(job.shared) if job.keep else slice(None)
        in_place = sum(table.nbytes for table in memory.values()) > job.in_place_above
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
                    before = memory.get(name)
                    if before is None or not (in_place and before.flags.writeable):
                        before = table_for(made, m, before)
                    kept[name] = before
                kept[name][clients[part]] = made
        if not n:
            rows = _empty_replies(job, self.layout, sent, self.task.shape(self.outputs))
        if not job.keep or not n:
            return Answers(rows, np.zeros(n, np.int8), memory)
        return Answers(rows, np.zeros(n, np.int8), {**memory, **kept})

    def _clients_at_a_time(self) -> int:
        """The number of models that fit into `BLOCK_BYTES`; more if workers would be idle."""
        return max(BLOCK_BYTES // (4 * self.layout.width), 32 * self.workers)

    def _misfit(self, problem: str) -> ModelError:
        """The error to raise if a first forward pass shows that the model does not fit."""
        return ModelError(
            f"{type(self._model).__name__} does not turn samples of shape {self._federation.shape} "
            f"into {self.outputs} outputs ({problem}): choose a model that fits the data"
        )

    @abstractmethod
    def _train(self, clients: Int, lesson: Lesson) -> tuple[F32, F32 | None]:
        """The models and the optimizer's buffers of these clients after the lesson."""

    @abstractmethod
    def _logits(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        """The logits of these clients' samples; client i has the model `models[which[i]]`."""

    def _features(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        """The features of these clients' samples, if the engine offers them (like `_logits`)."""
        raise AssertionError(f"{self.name} offers no features, so it must not be asked for them")

    @abstractmethod
    def _gradients(self, models: F32, samples: Samples, clients: Int) -> F32:
        """(n, trainable), the gradient of each client's mean loss on its samples, at its model."""

    def _drawn(self, batches: int | None, seed: int, round: int) -> Samples:
        """All training data, or this number of mini-batches of each client."""
        limit = None if batches is None else min(batches * self._batch, int(self.sizes.max()))
        return Samples("train", limit, seed, round)

    def _rows(self, samples: Samples, clients: Int) -> list[Int]:
        """The samples of each client, as rows of the pool."""
        return [samples.of(self._federation, int(client)) for client in clients]

    def _loss(self, models: F32, which: Int, samples: Samples, clients: Int) -> F64:
        """(n,), the mean loss of each of these clients; NaN for one that has no samples."""
        logits = self._logits(models, which, samples, clients).astype(np.float64)
        rows = self._rows(samples, clients)
        loss = self.task.losses(logits, self._federation.y[np.concatenate(rows)])
        counts = np.array([len(chosen) for chosen in rows])
        means, some = np.full(len(counts), np.nan), counts > 0
        if some.any():  # otherwise an empty part would get the loss of the next part
            starts = np.cumsum([0, *counts[:-1]])[some]
            means[some] = np.add.reduceat(loss, starts) / counts[some]
        return means

    def _tally(self, models: F32, samples: Samples, clients: Int, ensemble: Ensemble | None) -> F64:
        """(n, …), the tallies of models (J, n, P): of their mean outputs, or of an ensemble."""
        own, rows = np.arange(len(clients)), self._rows(samples, clients)
        votes = [
            self._logits(np.ascontiguousarray(member), own, samples, clients).astype(float)
            for member in models
        ]
        owners = np.repeat(own, [len(indices) for indices in rows])
        targets = self._federation.y[np.concatenate(rows)]
        together = sum(votes[1:], start=votes[0])
        if ensemble is None:
            together = together / len(votes)
        elif ensemble.mixture is not None:
            together = self.task.mixed(np.stack(votes), ensemble.mixture.T[:, owners])
        return self.task.tally(together, targets, owners, len(clients))


def table_for(made: NDArray[Any], count: int, before: NDArray[Any] | None = None) -> NDArray[Any]:
    """A table (count, …) for rows like those of `made`, filled with `before` or with zeros."""
    shape = (count, *made.shape[1:])
    table = memory_of(shape) if made.dtype == np.float32 else np.empty(shape, made.dtype)
    table[...] = 0 if before is None else before
    return table


def _empty_replies(
    job: Job, layout: Layout, sent: Sent, tally: tuple[int, ...]
) -> dict[str, NDArray[Any]]:
    """The replies if no client was asked: tables without rows."""
    sizes = job.sizes(layout, sent, tally)
    return {
        name: np.empty((0, *field.sized(sizes)), field.dtype)
        for name, field in job.program.replies.items()
    }
