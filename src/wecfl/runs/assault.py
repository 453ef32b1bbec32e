"""An attack on one federation: who lies, what about, and how well it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from wecfl import metrics
from wecfl.bilevel.queries import tallies
from wecfl.channel.attacks import Backdoor, DataAttack, ModelAttack, choose
from wecfl.core.engine import Engine
from wecfl.core.state import F32, Bool, Int
from wecfl.data.federation import Federation
from wecfl.options import Attack

__all__ = ["Assault"]


@dataclass(frozen=True, slots=True, eq=False)
class Assault:
    """The attack on a run.

    >>> xs, ys = [np.zeros((4, 1))] * 5, [[0, 1, 0, 1]] * 5
    >>> assault = Assault.on(Federation.from_arrays(xs, ys), Attack("label-flip"), seed=0)
    >>> int(assault.attackers.sum()), assault.forging is None
    (1, True)
    """

    attack: DataAttack | ModelAttack
    attackers: Bool
    """(m,), who lies."""
    federation: Federation
    """What clients train on."""
    bait: Federation | None
    """Honest clients' test samples with the trigger of a backdoor."""

    @classmethod
    def on(cls, federation: Federation, asked: Attack, seed: int) -> Self:
        """An attack by a share of the clients."""
        attack, attackers = asked.value, choose(federation.keys, asked.attackers, seed)
        held = federation
        if isinstance(attack, DataAttack):
            held = attack.poison(federation, attackers, seed)
        honest = np.flatnonzero(~attackers)
        bait = isinstance(attack, Backdoor) and attack.triggered(federation.subset(honest))
        return cls(attack, attackers, held, bait or None)

    @property
    def forging(self) -> ModelAttack | None:
        """The attack, if it is on what clients send."""
        return None if isinstance(self.attack, DataAttack) else self.attack

    def measured(self, labels: Int, models: F32, trap: Engine | None) -> dict[str, float | None]:
        """Who shares a cluster with attackers, and how often a backdoor's trigger works.

        `models` (m, P), or a stack of them, serve the clients; `trap` is an engine for the `bait`.
        """
        found = metrics.isolation(labels, self.attackers)
        if trap is None or self.bait is None:
            return found
        baited = np.isin(self.federation.keys, self.bait.keys)
        rows = models[..., baited, :]
        table = tallies(trap, rows if rows.ndim == 2 else np.moveaxis(rows, 0, 1), "test")
        return {
            **found,
            "success": metrics.weighted(trap.task.scores(table)["accuracy"], trap.sizes),
        }
