"""The program of APFL: a personal model that is mixed with the common one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl.bilevel.local.training import MODEL_REPLY, PERSONAL_FIELD, kept, momentum_field
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Field, FitsAny, ReplyAndMemory, Sent, Site
from wecfl.core.types import Table
from wecfl.errors import ConfigError

__all__ = ["InterpolatedSteps"]


@dataclass(frozen=True, slots=True)
class InterpolatedSteps(FitsAny):
    """Train the model w that was received, and a model v that is good if it is mixed with w (APFL).

    The client is served v̄ = a·v + (1 − a)·w. On each mini-batch (Deng et al., *Adaptive
    Personalized Federated Learning*, 2020)

        w ← w − η·∇L(w),   v ← v − η·a·∇L(v̄),   a ← a − η·⟨∇L(v̄), v − w⟩, kept in [0, 1].

    a starts from `mixing`, and stays there unless `adaptive`.

    >>> list(InterpolatedSteps().keeps(LocalPlan(momentum=0.0)))
    ['personal', 'own', 'drift']
    """

    mixing: float = 0.5
    adaptive: bool = True
    name: ClassVar[str] = "interpolated-steps"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        if not 0 <= self.mixing <= 1:
            raise ConfigError(f"mixing must lie in [0, 1], got {self.mixing}")

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """v̄, v, how far a has moved from `mixing`, and the two momentum buffers."""
        models = {"personal": PERSONAL_FIELD, "own": PERSONAL_FIELD, "drift": Field((1,))}
        return {**models, **momentum_field(plan, "personal_momentum"), **momentum_field(plan)}

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Take a step of both models on one mini-batch after the other."""
        rows, own, n = sent.own["model"], memory["own"].copy(), site.layout.trainable
        share = np.float32(self.mixing) + memory["drift"]
        velocity, personal_velocity = memory.get("momentum"), memory.get("personal_momentum")
        for number in range(int(plan.steps_of(site.sizes).max())):
            part = slice(number, number + 1)
            mixed = share * own + (1 - share) * rows
            moved, personal_velocity = site.train(
                mixed, plan, velocity=personal_velocity, part=part
            )
            gap, way = own[:, :n] - rows[:, :n], moved[:, :n] - mixed[:, :n]
            rows, velocity = site.train(rows, plan, velocity=velocity, part=part, out=rows)
            own[:, :n] += share * way
            own[:, n:] = moved[:, n:]  # BatchNorm's statistics
            if self.adaptive:
                turn = np.einsum("ip,ip->i", way, gap, dtype=np.float64)
                share = np.clip(share + turn[:, None], 0, 1).astype(np.float32)
        after = kept(
            memory, personal=share * own + (1 - share) * rows, own=own,
            drift=share - np.float32(self.mixing), momentum=velocity,
            personal_momentum=personal_velocity,
        )  # fmt: skip
        return {"model": rows}, after
