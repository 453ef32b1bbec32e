"""The program of pFedMe: on every mini-batch, it finds a personal model near the common one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl.bilevel.local.training import MODEL_REPLY, PERSONAL_FIELD, kept
from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Field, ReplyAndMemory, Sent, Site
from wecfl.core.types import Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one, check_positive

__all__ = ["MoreauSteps"]


@dataclass(frozen=True, slots=True)
class MoreauSteps:
    """Gradient steps on the Moreau envelope of the loss, min_θ L(θ) + lam/2·‖θ − ω‖² (pFedMe).

    On each mini-batch, θ takes `inner_steps` plain steps of length `inner_lr` on that objective,
    and then ω ← ω − η·lam·(ω − θ), where η is the plan's. θ is the personal model. It starts from ω
    as it was received, and on each mini-batch continues where it was (Dinh et al., *Personalized
    Federated Learning with Moreau Envelopes*, NeurIPS 2020).

    >>> list(MoreauSteps().keeps(LocalPlan()))
    ['personal']
    """

    lam: float = 15.0
    inner_steps: int = 5
    inner_lr: float = 0.1
    name: ClassVar[str] = "moreau-steps"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_positive(lam=self.lam)
        check_at_least_one(inner_steps=self.inner_steps)
        check_positive(inner_lr=self.inner_lr)

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The personal model θ."""
        return {"personal": PERSONAL_FIELD}

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error for momentum and Adam: the steps of ω do not follow a gradient."""
        if other := plan.not_plain("weight_decay", "max_gradient"):
            raise ConfigError(
                f"pFedMe takes plain steps: set optimizer to sgd and momentum to 0, got {other}"
            )

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Take the steps of θ and ω on one mini-batch after the other."""
        rows, trainable = sent.own["model"], site.layout.trainable
        personal, inner = rows.copy(), plan.plain(self.inner_lr)
        steps = plan.steps_of(site.sizes) if plan.done is None else plan.done
        pull = np.broadcast_to(np.asarray(plan.lr, np.float32) * np.float32(self.lam), len(rows))
        for number in range(int(np.max(steps, initial=0))):
            site.train(
                personal, inner, correction=Correction(self.lam, anchor=rows),
                part=slice(number, number + 1), repeat=self.inner_steps, out=personal,
            )  # fmt: skip
            active = np.flatnonzero(steps > number)  # the other clients have fewer batches
            gap = rows[active, :trainable] - personal[active, :trainable]
            rows[active, :trainable] -= pull[active, None] * gap
        rows[:, trainable:] = personal[:, trainable:]  # BatchNorm's statistics
        return {"model": rows}, kept(memory, personal=personal)
