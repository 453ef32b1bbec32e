"""Which model answers for a client, said at the client (`wecfl.core.method.Serving`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from wecfl.core.plan import LocalPlan
from wecfl.core.program import Sent, Site
from wecfl.core.types import F32, Table
from wecfl.errors import ConfigError

__all__ = ["SERVINGS", "Center", "Personal", "Tuned"]


@dataclass(frozen=True, slots=True)
class Center:
    """The model of its cluster, with the columns that are its own; several of them vote.

    >>> Center().moments
    ('after',)
    """

    name: ClassVar[str] = "center"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """What was sent."""
        return [sent.own["models"] if "models" in sent.own else sent.own["model"]]


@dataclass(frozen=True, slots=True)
class Personal:
    """The model that it keeps for itself; before its first contact, the one it is sent.

    >>> Personal().needs_memory
    True
    """

    name: ClassVar[str] = "personal"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = True
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """What is kept."""
        return [memory["personal"]]


@dataclass(frozen=True, slots=True)
class Tuned:
    """The model of its cluster before and after some steps on the client's training data.

    Plain fine-tuning: momentum starts from zero, nothing is kept, test data are not touched.

    >>> Tuned(steps=5).moments
    ('before', 'after')
    """

    steps: int | None = None
    """None: as many as in a local update."""
    name: ClassVar[str] = "tuned"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = True
    moments: ClassVar[tuple[str, ...]] = ("before", "after")

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"tuning_steps must be at least 1, got {self.steps}")

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """Both."""
        longer = plan if self.steps is None else replace(plan, steps=self.steps, done=None)
        rows, _ = site.train(sent.own["model"], longer)
        return [sent.own["model"], rows]


SERVINGS: dict[str, Any] = {each.name: each for each in (Center, Personal, Tuned)}
"""By name."""
