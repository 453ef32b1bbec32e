"""A simulated attack on a federation: which clients attack, what they do, and how well it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from wecfl import metrics
from wecfl.bilevel.evaluation import tallies
from wecfl.channel.attacks import Backdoor, DataAttack, ModelAttack, choose
from wecfl.core.clients import Clients
from wecfl.core.engine import Engine
from wecfl.core.types import F32, Bool, Int
from wecfl.data.federation import Federation
from wecfl.data.targets import may_be_labels
from wecfl.errors import ConfigError
from wecfl.options import Attack

__all__ = ["SimulatedAttack"]


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedAttack:
    """The attack on the clients of a run.

    >>> xs, ys = [np.zeros((4, 1))] * 5, [[0, 1, 0, 1]] * 5
    >>> attacked = SimulatedAttack.on(Federation.from_arrays(xs, ys), Attack("label-flip"), seed=0)
    >>> int(attacked.attackers.sum()), attacked.forging is None
    (1, True)
    """

    attack: DataAttack | ModelAttack
    attackers: Bool
    """(m,), the clients that attack."""
    federation: Federation
    """The clients with the data that they train on, some of it poisoned."""
    triggered_test: Federation | None
    """The honest clients with the trigger of a backdoor in their test samples; otherwise None."""

    @classmethod
    def on(cls, federation: Federation | Clients, asked: Attack, seed: int) -> Self:
        """The attack that was asked for, by a share of the clients."""
        if not isinstance(federation, Federation):
            raise ConfigError(
                "attacks are simulated, which needs the clients' data: give a Federation, or leave "
                "out attack"
            )
        attack, attackers = asked.value, choose(federation.keys, asked.attackers, seed)
        held = federation
        if isinstance(attack, DataAttack):
            if not may_be_labels(federation.y):
                raise ConfigError(
                    f"the attack {asked.kind} changes labels, but the targets are numbers: choose "
                    f"an attack on models, such as sign-flip"
                )
            if federation.changes:
                raise ConfigError(
                    f"the attack {asked.kind} can't poison data that drift: leave out attack or "
                    f"drift"
                )
            held = attack.poison(federation, attackers, seed)
        honest = np.flatnonzero(~attackers)
        triggered_test = isinstance(attack, Backdoor) and attack.triggered(
            federation.subset(honest)
        )
        return cls(attack, attackers, held, triggered_test or None)

    @property
    def forging(self) -> ModelAttack | None:
        """The attack, if it changes what clients send; otherwise None."""
        return None if isinstance(self.attack, DataAttack) else self.attack

    def measured(
        self, labels: Int, models: F32, trigger_engine: Engine | None
    ) -> dict[str, float | None]:
        """How many clients share a cluster with attackers, and how often a backdoor works.

        `models` (m, P), or a stack of them (J, m, P), serve the clients; `trigger_engine` runs the
        clients of `triggered_test`.
        """
        found = metrics.isolation(labels, self.attackers)
        if trigger_engine is None or self.triggered_test is None:
            return found
        tested = np.isin(self.federation.keys, self.triggered_test.keys)
        rows = models[..., tested, :]
        table = tallies(trigger_engine, rows if rows.ndim == 2 else np.moveaxis(rows, 0, 1), "test")
        return {
            **found,
            "success": metrics.weighted(
                trigger_engine.task.scores(table)["accuracy"], trigger_engine.sizes
            ),
        }
