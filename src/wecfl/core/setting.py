"""The setting of a run: everything that stays the same over its rounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from wecfl.core.channel import Channel
from wecfl.core.components import Joining, Rate
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.schedule import Schedule
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int
from wecfl.errors import ConfigError

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A method, an engine that reaches the clients, and how the clients train.

    >>> Setting(None, None, LocalPlan(lr=0.5)).rates(State(0, None, *np.zeros((2, 1), int)))
    0.5
    """

    method: Method
    engine: Engine
    plan: LocalPlan
    seed: int = 0
    member: int = 0
    """The number of this run in a soft vote; each run has an initial model of its own."""
    rate: Rate | None = None
    """Sets η in every round, in place of the plan's; None: η is that of the plan."""
    channel: Channel = field(default_factory=Channel)
    """Which clients take part, and what reaches the server."""
    schedule: Schedule | None = None
    """Gives a factor of the plan's η for each round; None: η stays as it is."""
    labels: Int | None = field(default=None, compare=False)
    """(m,), the cluster of each client at the start; None: all are in the first one."""
    joining: Joining | None = None
    """Asks clients that take part for the first time which cluster they join; None: they are sent
    the mean of all centers, and join the nearest cluster."""
    in_place_above: float = inf
    """If the clients' memory has more bytes than this, a local update overwrites it. States of
    earlier rounds then hold the memory of the last round."""

    @property
    def importance(self) -> F64:
        """(m,), λ, which must be positive: a client with λ = 0 would not count in any mean."""
        sizes = self.engine.sizes
        found = np.asarray(self.method.importance(sizes), dtype=np.float64)
        if found.shape != sizes.shape or not (np.isfinite(found) & (found > 0)).all():
            raise ConfigError(
                f"importance must give {len(sizes)} positive numbers, one per client, got {found}"
            )
        return found

    def rates(self, state: State) -> float | F32:
        """η of the next local update: from the plan and its schedule, or from the D-step."""
        if self.rate is None:
            return self.scheduled(state.round)
        if "lr" not in state.known:
            raise ConfigError(
                "lr theory is computed in the step D, which did not come before L: put D before L "
                "in the steps of the method, or give lr as a number"
            )
        return state.known["lr"]

    def scheduled(self, round: int) -> float | F32:
        """η of the plan and its schedule, after `round` rounds."""
        if self.schedule is None:
            return self.plan.lr
        factor: Any = self.schedule(round)
        if not isinstance(factor, float | int | np.floating) or not 0 <= factor < inf:
            raise ConfigError(
                f"schedule must give a finite factor that is not negative, got {factor!r} for "
                f"round {round + 1}"
            )
        return self.plan.lr * float(factor)

    def enough(self, labels: Int, k: int) -> Bool:
        """(K,), whether each cluster has at least `min_cluster` of these labels."""
        return np.asarray(np.bincount(labels, minlength=k) >= self.channel.min_cluster)
