"""A trial: clients train once before the rounds begin, so that they can be clustered by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from wecfl.bilevel.local.training import MODEL_REPLY
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Field, FitsAny, KeepsNothing, ReplyAndMemory, Sent, Site
from wecfl.core.types import Table
from wecfl.limits import check_at_least_one

__all__ = ["Trial"]


@dataclass(frozen=True, slots=True)
class Trial(FitsAny, KeepsNothing):
    """Some steps of SGD from the model received. The client keeps nothing of them.

    So momentum starts from zero in the first round.

    >>> Trial(steps=50).keeps(LocalPlan())
    {}
    """

    steps: int | None = None
    """The number of steps; None: as many as in a local update."""
    name: ClassVar[str] = "trial"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_at_least_one(start_steps=self.steps)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train the model that was sent."""
        if self.steps is not None:
            plan = replace(plan, steps=self.steps, epochs=None, done=None)
        rows = sent.own["model"]
        rows, _ = site.train(rows, plan, out=rows)
        return {"model": rows}, {}
