"""Servings: which model predicts for a client (`wecfl.core.components.Serving`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from wecfl.core.plan import LocalPlan
from wecfl.core.program import Sent, Site
from wecfl.core.state import State
from wecfl.core.types import F32, Table
from wecfl.errors import ConfigError

__all__ = ["SERVINGS", "Center", "Personal", "Tuned"]


class _OneModel:
    """A serving that needs nothing but the model of the client's cluster."""

    __slots__ = ()

    def sent(self, state: State) -> Sent:
        """Each client's model."""
        return Sent({"model": state.sent})


@dataclass(frozen=True, slots=True)
class Center(_OneModel):
    """The model of the client's cluster, with the client's private columns; several models vote.

    >>> Center().moments
    ('after',)
    """

    name: ClassVar[str] = "center"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """The model that was sent."""
        return [sent.own["models"] if "models" in sent.own else sent.own["model"]]


@dataclass(frozen=True, slots=True)
class Personal(_OneModel):
    """The model that the client keeps for itself; before its first contact, the one it is sent.

    >>> Personal().needs_memory
    True
    """

    name: ClassVar[str] = "personal"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = True
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """The model that is kept."""
        return [memory["personal"]]


@dataclass(frozen=True, slots=True)
class Tuned(_OneModel):
    """The model of the client's cluster, before and after some steps on its training data.

    This is plain fine-tuning: momentum starts from zero, nothing is kept, test data are not used.

    >>> Tuned(steps=5).moments
    ('before', 'after')
    """

    steps: int | None = None
    """The number of steps; None: as many as in a local update."""
    lr: float | None = None
    """The length of plain gradient steps; None: the steps are those of the plan."""
    name: ClassVar[str] = "tuned"
    version: ClassVar[int] = 2
    needs_memory: ClassVar[bool] = True
    moments: ClassVar[tuple[str, ...]] = ("before", "after")

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ConfigError(f"tuning_steps must be at least 1, got {self.steps}")

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """The models before and after fine-tuning."""
        if self.steps is not None:
            plan = replace(plan, steps=self.steps, epochs=None, done=None)
        if self.lr is not None:
            plan = plan.plain(self.lr)
        rows, _ = site.train(sent.own["model"], plan)
        return [sent.own["model"], rows]


SERVINGS: dict[str, Any] = {kind.name: kind for kind in (Center, Personal, Tuned)}
"""The servings by name."""
