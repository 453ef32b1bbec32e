"""What engines share: their checks, and on one machine all that follows from a client's logits."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Self

import numpy as np
from torch import nn

from wecfl import rng
from wecfl.core.plan import Correction, Plan
from wecfl.core.state import F32, F64, Int, Split, State
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.models.rows import layout_of, reinitialized, row_of

__all__ = ["EVALUATION_BATCH", "BaseEngine", "LocalEngine", "Samples", "cores"]

EVALUATION_BATCH = 64
"""Samples in a batch where nothing depends on their number."""


def cores() -> int:
    """The processors this process may use.

    >>> cores() >= 1
    True
    """
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Samples:
    """Which samples of each client: a split, or `limit` of them drawn for (seed, round, client)."""

    split: Split
    limit: int | None = None
    seed: int = 0
    round: int = 0

    def of(self, federation: Federation, client: int) -> Int:
        """Rows of the pool.

        >>> fed = Federation.from_arrays([np.eye(9)], [np.arange(9)], test=1 / 3)
        >>> len(Samples("train").of(fed, 0)), len(Samples("train", limit=2).of(fed, 0))
        (6, 2)
        """
        rows: Int = getattr(federation, self.split)[client]
        if self.limit is None or self.limit >= len(rows):
            return rows
        stream = rng.stream(self.seed, "losses", self.round, int(federation.keys[client]))
        return rows[stream.permutation(len(rows))[: self.limit]]


class BaseEngine(ABC):
    """What all engines share that run on the clients of a `Federation`: checks, and the start.

    `batchnorm` says what BatchNorm uses in evaluation: ``running`` statistics, or those of each
    test ``batch`` of `batch` samples (as the paper's authors tested).
    """

    nodes = 1
    """Machines."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        workers: int | None = None,
        batchnorm: Literal["running", "batch"] = "running",
        batch: int = 32,
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

    @property
    @abstractmethod
    def name(self) -> str:
        """Part of the reproducibility key: engines agree to float tolerance, each to the bit."""

    @abstractmethod
    def train(
        self,
        state: State,
        plan: Plan,
        correction: Correction,
        seed: int,
        active: Sequence[int] | None = None,
    ) -> tuple[F32, dict[str, F32]]:
        """Q local steps of each active client: models and memory (`wecfl.core.engine.Engine`)."""

    @abstractmethod
    def losses(
        self,
        models: F32,
        *,
        batches: int | None = None,
        seed: int = 0,
        round: int = 0,
        active: Sequence[int] | None = None,
    ) -> F64:
        """(m, K), L(Ω_k, D_i) (`wecfl.core.engine.Engine`)."""

    @abstractmethod
    def risk(self, models: F32, split: Split = "train") -> F64:
        """(m,), L(ω_i, D_i) (`wecfl.core.engine.Engine`)."""

    @abstractmethod
    def gradients(
        self, models: F32, *, batches: int | None = None, seed: int = 0, round: int = 0
    ) -> F32:
        """(m, trainable), ∇L(ω_i, D_i) (`wecfl.core.engine.Engine`)."""

    @abstractmethod
    def confusion(self, models: F32, split: Split) -> Int:
        """(m, C, C), truth by prediction, soft-voted for a stack (`wecfl.core.engine.Engine`)."""

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), number 0 as given, others drawn anew (`wecfl.core.engine.Engine`)."""
        rows = [row_of(reinitialized(self._model, seed, j) if j else self._model) for j in which]
        return np.stack(rows)

    def notes(self) -> dict[str, Any]:
        """Nothing: all clients are here (`wecfl.core.engine.Engine`)."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Give back what the engine holds; it can't be used afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _active(self, active: Sequence[int] | None) -> Int:
        """The clients that train, in rising order; all by default."""
        m = len(self.sizes)
        clients = np.unique(np.arange(m) if active is None else np.asarray(active, dtype=np.int64))
        if len(clients) and not 0 <= clients[0] <= clients[-1] < m:
            raise ConfigError(f"active clients must lie between 0 and {m - 1}, got {clients}")
        return clients

    def _done(self, plan: Plan) -> Int:
        """(m,), the steps of each client, at least one and at most Q."""
        done = np.broadcast_to(plan.steps if plan.done is None else plan.done, len(self.sizes))
        if not ((done >= 1) & (done <= plan.steps)).all():
            raise ConfigError(
                f"clients take 1 to {plan.steps} steps, got {done.min()}…{done.max()}"
            )
        return done

    def _prepared(self, correction: Correction) -> Correction:
        """The same numbers as float32 arrays of the right shape, or an error that names the one."""
        m, width, trainable = len(self.sizes), self.layout.width, self.layout.trainable

        def array(name: str, value: object, shape: tuple[int, ...]) -> F32:
            with np.errstate(over="ignore"):
                given = np.asarray(value, dtype=np.float32)
            if given.shape not in (shape, ()):
                raise ConfigError(f"the correction's {name} has shape {given.shape}, not {shape}")
            return np.ascontiguousarray(np.broadcast_to(given, shape))

        return Correction(
            mu=array("mu", correction.mu, (trainable,)),
            anchor=None
            if correction.anchor is None
            else array("anchor", correction.anchor, (m, width)),
            offset=None
            if correction.offset is None
            else array("offset", correction.offset, (m, width)),
        )


class LocalEngine(BaseEngine):
    """An engine that holds the clients' data itself: how it trains and finds logits is left open.

    Arguments as of `BaseEngine`.
    """

    @abstractmethod
    def _logits(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        """Logits of the samples of these clients, the i-th under row `which[i]` of `models`."""

    @abstractmethod
    def _gradients(self, models: F32, samples: Samples) -> F32:
        """(m, trainable), the gradient of each client's mean loss on its samples, at its row."""

    def losses(
        self,
        models: F32,
        *,
        batches: int | None = None,
        seed: int = 0,
        round: int = 0,
        active: Sequence[int] | None = None,
    ) -> F64:
        """(m, K), L(Ω_k, D_i) (`wecfl.core.engine.Engine`)."""
        samples, clients = self._drawn(batches, seed, round), self._active(active)
        same = np.zeros(len(clients), np.int64)
        each = [self._loss(model[None], same, samples, clients) for model in models]
        return np.stack(each, axis=1)

    def risk(self, models: F32, split: Split = "train") -> F64:
        """(m,), L(ω_i, D_i) (`wecfl.core.engine.Engine`)."""
        everyone = self._active(None)
        return self._loss(models, everyone, Samples(split), everyone)

    def gradients(
        self, models: F32, *, batches: int | None = None, seed: int = 0, round: int = 0
    ) -> F32:
        """(m, trainable), ∇L(ω_i, D_i) (`wecfl.core.engine.Engine`)."""
        return self._gradients(models, self._drawn(batches, seed, round))

    def confusion(self, models: F32, split: Split) -> Int:
        """(m, C, C), truth by prediction, soft-voted for a stack (`wecfl.core.engine.Engine`)."""
        federation, classes = self._federation, self._federation.classes
        own = np.arange(len(self.sizes))
        votes = [
            self._logits(member, own, Samples(split), own).astype(np.float64)
            for member in models.reshape(-1, *models.shape[-2:])
        ]
        guess = sum(votes[1:], start=votes[0]).argmax(axis=1)
        rows = getattr(federation, split)
        owner = np.repeat(own, [len(indices) for indices in rows])
        cell = (owner * classes + federation.y[np.concatenate(rows)]) * classes + guess
        shape = (len(rows), classes, classes)
        return np.bincount(cell, minlength=prod(shape)).reshape(shape).astype(np.int64)

    def _drawn(self, batches: int | None, seed: int, round: int) -> Samples:
        """All training data, or that many mini-batches of each client."""
        limit = None if batches is None else min(batches * self._batch, int(self.sizes.max()))
        return Samples("train", limit, seed, round)

    def _rows(self, samples: Samples, clients: Int) -> list[Int]:
        """The samples of each client, as rows of the pool."""
        return [samples.of(self._federation, int(client)) for client in clients]

    def _loss(self, models: F32, which: Int, samples: Samples, clients: Int) -> F64:
        """Mean cross-entropy of each of these clients on its samples."""
        logits = self._logits(models, which, samples, clients).astype(np.float64)
        rows = self._rows(samples, clients)
        truth = self._federation.y[np.concatenate(rows)]
        top = logits.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
        loss = log_sum - logits[np.arange(len(truth)), truth]
        counts = np.array([len(chosen) for chosen in rows])
        sums: F64 = np.add.reduceat(loss, np.cumsum([0, *counts[:-1]]))
        means: F64 = sums / counts
        return means
