"""What stays the same over the rounds of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wecfl.core.channel import Channel
from wecfl.core.components import Rate
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int
from wecfl.errors import ConfigError

__all__ = ["Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A method, an engine that holds its clients, and how they train.

    >>> Setting(None, None, LocalPlan(lr=0.5)).rates(State(0, None, *np.zeros((2, 1), int)))
    0.5
    """

    method: Method
    engine: Engine
    plan: LocalPlan
    seed: int = 0
    member: int = 0
    """Which of the method's soft-voted runs this is; each starts from a model of its own."""
    rate: Rate | None = None
    """Sets η anew in every round, in place of the plan's."""
    channel: Channel = field(default_factory=Channel)
    """Who takes part, and what reaches the server."""

    @property
    def importance(self) -> F64:
        """λ (m,), which must be positive: a client that counts for nothing is in no mean."""
        sizes = self.engine.sizes
        found = np.asarray(self.method.importance(sizes), dtype=np.float64)
        if found.shape != sizes.shape or not (np.isfinite(found) & (found > 0)).all():
            raise ConfigError(
                f"importance must give {len(sizes)} positive numbers, one per client, got {found}"
            )
        return found

    def rates(self, state: State) -> float | F32:
        """η of the coming local update: that of the plan, or what the distribution set."""
        if self.rate is None:
            return self.plan.lr
        if "lr" not in state.known:
            raise ConfigError("a learning rate that follows the run is set in D: D must precede L")
        return state.known["lr"]

    def enough(self, labels: Int, k: int) -> Bool:
        """(K,), of which clusters there are enough members to show a center made of them."""
        return np.asarray(np.bincount(labels, minlength=k) >= self.channel.min_cluster)
