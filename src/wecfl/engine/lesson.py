"""What clients compute: the samples, the steps and the values of a local training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from wecfl import rng
from wecfl.core.plan import FeatureTerm, LocalPlan, validation_part
from wecfl.core.types import F32, Bool, Int, Split
from wecfl.data.federation import Federation

__all__ = ["Lesson", "Samples", "Walk"]


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of each client: a split, or `limit` samples of it, drawn for (seed, round, client).

    The validation samples are those training samples that are drawn for (seed, client).
    """

    split: Split
    limit: int | None = None
    seed: int = 0
    round: int = 0

    @property
    def held_as(self) -> Literal["train", "test"]:
        """The part of a federation that has these samples."""
        return "test" if self.split == "test" else "train"

    def of(self, federation: Federation, client: int) -> Int:
        """The samples of a client, as rows of the pool.

        >>> import numpy as np
        >>> fed = Federation.from_arrays([np.eye(9)], [np.arange(9)], test=1 / 3)
        >>> len(Samples("train").of(fed, 0)), len(Samples("train", limit=2).of(fed, 0))
        (6, 2)
        """
        rows: Int = getattr(federation, self.held_as)[client]
        if self.split == "validation":
            return rows[validation_part(len(rows), self.seed, int(federation.keys[client]))[1]]
        if self.limit is None or self.limit >= len(rows):
            return rows
        stream = rng.stream(self.seed, "losses", self.round, int(federation.keys[client]))
        return rows[stream.permutation(len(rows))[: self.limit]]


@dataclass(frozen=True, slots=True)
class Walk:
    """The steps `begin` to `end` of a round, their mini-batches, and the seed of Dropout."""

    steps: int
    batch: int
    seed: int
    round: int
    begin: int
    end: int | None
    epochs: int | None = None
    repeat: int = 1
    """The number of steps on a mini-batch before the next one."""
    leave_validation: bool = False
    """Whether the mini-batches leave the validation samples out."""

    def batches(self, own: Int, key: int, done: int) -> list[Int]:
        """The mini-batches of a client whose samples are `own` and that takes `done` steps."""
        plan = _plan_of_batches(self.steps, self.batch, self.epochs, self.leave_validation)
        whole = plan.batches(len(own), self.seed, self.round, key)
        taken = whole[self.begin : self.end][: max(done - self.begin, 0)]
        return [own[chosen] for chosen in taken for _ in range(self.repeat)]

    def dropout(self, key: int) -> int:
        """The seed of a client's Dropout."""
        purpose = f"dropout {self.begin}" if self.begin else "dropout"
        return rng.derive(self.seed, purpose, self.round, key)


@lru_cache(maxsize=16)
def _plan_of_batches(
    steps: int, batch: int, epochs: int | None, leave_validation: bool
) -> LocalPlan:
    """A plan with these mini-batches. All clients of a lesson share it, since plans are checked."""
    return LocalPlan(steps, batch, epochs=epochs, leave_validation=leave_validation)


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """The local steps of n clients, with all values checked and in the right types."""

    rows: F32
    """(n, P), the models from which clients start."""
    walk: Walk
    done: Int
    """(n,), the number of steps of the round that each client takes."""
    lr: F32
    """(n,), the learning rates."""
    plan: LocalPlan
    """How a step is made; the plan's η and number of steps are not used."""
    velocity: F32 | None
    """(n, buffer), the optimizer's buffers at the start; None: zero."""
    mu: F32 | None
    """(trainable,), the pull towards the anchor; None: no pull."""
    anchor: F32 | None
    """(n, P), the anchor of the pull; None: the models from which clients start."""
    offset: F32 | None
    """(n, P), added to every gradient; None: nothing."""
    free: Bool | None
    """(trainable,), the columns that are trained; None: all."""
    weights: F32 | None
    """(N,), factors of the losses of the clients' samples, client by client; None: all 1."""
    bias: F32 | None
    """(N, C), added to the outputs for these samples; None: nothing."""
    term: FeatureTerm | None
    """A term that is added to the loss; None: nothing."""
    out: F32 | None
    """(n, P), the matrix to which the trained models are written; None: a new one."""

    def positions(self, sizes: Int, keys: Int) -> list[Int]:
        """For each client, the positions in `weights` and `bias` of the samples of its batches."""
        firsts = np.cumsum([0, *sizes[:-1]])
        return [
            np.concatenate([np.zeros(0, np.int64), *self.walk.batches(own, int(key), int(done))])
            for own, key, done in zip(
                (first + np.arange(size) for first, size in zip(firsts, sizes, strict=True)),
                keys, self.done, strict=True,
            )
        ]  # fmt: skip
