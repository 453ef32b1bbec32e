"""The plan of a local update, and the correction of its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wecfl import rng
from wecfl.config import check_whole
from wecfl.core.types import F32, Int
from wecfl.errors import ConfigError

__all__ = ["Correction", "LocalPlan"]


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """How clients train in one round: Q steps of SGD on mini-batches, with every value known.

    `wecfl.Plan` is what a user chooses; it is completed to this (`wecfl.Plan.complete`).

    Client i goes through its shuffled data from round to round, and shuffles again after each pass.
    So the batches of round t depend on (seed, t, i) alone.
    """

    steps: int = 10
    """Q, the number of mini-batches in a round."""
    batch: int = 32
    """The number of samples in a mini-batch."""
    lr: float | F32 = 0.001
    """η, the learning rate: one for all clients, or one for each (n,)."""
    momentum: float = 0.9
    keep_momentum: bool = True
    """Whether the momentum buffer survives the round, as in the paper's experiment."""
    weight_decay: float = 0.0
    done: Int | None = None
    """(n,), how many of the Q steps each client completes; None: all of them."""

    def __post_init__(self) -> None:
        check_whole(steps=(self.steps, 1), batch=(self.batch, 1))
        if not np.all(np.isfinite(self.lr)) or np.any(np.asarray(self.lr) < 0):
            raise ConfigError(f"lr must be finite and not negative, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must lie in [0, 1), got {self.momentum}")
        if self.weight_decay < 0:
            raise ConfigError(f"weight_decay must not be negative, got {self.weight_decay}")

    def of(self, who: Int | slice) -> LocalPlan:
        """The plan of some of the clients."""
        lr = self.lr[who] if isinstance(self.lr, np.ndarray) else self.lr
        return replace(self, lr=lr, done=None if self.done is None else self.done[who])

    def batches(self, size: int, seed: int, round: int, client: int) -> list[Int]:
        """The positions of the samples in the mini-batches that a client uses after `round` rounds.

        The client has `size` samples.

        >>> [b.tolist() for b in LocalPlan(steps=4, batch=2).batches(3, seed=0, round=0, client=0)]
        [[2, 1], [0], [2, 0], [1]]
        """
        per_pass = -(-size // self.batch)
        chosen: list[Int] = []
        for step in range(round * self.steps, (round + 1) * self.steps):
            number, position = divmod(step, per_pass)
            if position == 0 or not chosen:
                shuffled = rng.stream(seed, "shuffle", number, client).permutation(size)
            chosen.append(shuffled[position * self.batch : (position + 1) * self.batch])
        return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The affine correction of a local gradient: g + mu·(w − anchor) + offset.

    FedProx and Ditto pull towards an anchor, SCAFFOLD adds an offset; every engine can do both.
    `mu` is one number, or one for each trainable column. `anchor` and `offset` are (n, P) or None.
    Without an anchor, the models that clients start from take its place.

    >>> Correction(mu=0.95)                                     # FedProx
    Correction(mu=0.95, anchor=None, offset=None)
    """

    mu: float | F32 = 0.0
    anchor: F32 | None = None
    offset: F32 | None = None
