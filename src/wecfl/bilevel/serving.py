"""Servings: which model predicts for a client (`wecfl.core.components.Serving`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from wecfl.core.plan import LocalPlan
from wecfl.core.program import Ensemble, Sent, Site
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Table
from wecfl.errors import ConfigError

__all__ = ["SERVINGS", "Added", "Center", "Mixed", "Personal", "Tuned", "shares_of"]


class _OneModel:
    """A serving that needs nothing but the model of the client's cluster."""

    __slots__ = ()
    center_alone: ClassVar[bool] = True

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


@dataclass(frozen=True, slots=True)
class Mixed:
    """The models of all clusters; their predictions are mixed by the client's own weights π.

    Probabilities are mixed, and not outputs. A client that was never heard weighs all models alike.

    >>> Mixed().center_alone
    False
    """

    name: ClassVar[str] = "mixed"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = True
    center_alone: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def sent(self, state: State) -> Sent:
        """All centers, to everybody."""
        return Sent({"model": state.sent}, {"models": state.centers})

    def __call__(
        self, site: Site, sent: Sent, memory: Table, plan: LocalPlan
    ) -> Sequence[Ensemble]:
        """All models, and the weights."""
        models, n = sent.common["models"], len(site.sizes)
        stack = np.broadcast_to(models, (n, *models.shape))
        return [Ensemble(stack, shares_of(memory["mixture"]))]


@dataclass(frozen=True, slots=True)
class Added:
    """The model of the client's cluster and the one common to all; their outputs are added.

    >>> Added().moments
    ('after',)
    """

    name: ClassVar[str] = "added"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = False
    center_alone: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def sent(self, state: State) -> Sent:
        """Each client's two models."""
        common = state.whole.get("common")
        if common is None:  # before the first aggregation both are the initial model
            return Sent({"model": state.sent})
        return Sent({"model": state.sent, "common": np.repeat(common[None], len(state.labels), 0)})

    def __call__(
        self, site: Site, sent: Sent, memory: Table, plan: LocalPlan
    ) -> Sequence[F32 | Ensemble]:
        """The two models."""
        if "common" not in sent.own:
            return [sent.own["model"]]
        return [Ensemble(np.stack([sent.own["model"], sent.own["common"]], axis=1))]


def shares_of(mixture: F32) -> F64:
    """(n, K), π as it is used: uniform for a client that has none yet.

    >>> shares_of(np.array([[0, 0], [0.25, 0.75]], np.float32)).tolist()
    [[0.5, 0.5], [0.25, 0.75]]
    """
    shares = np.asarray(mixture, np.float64)
    total = shares.sum(axis=1, keepdims=True)
    return np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / shares.shape[1])


SERVINGS: dict[str, Any] = {kind.name: kind for kind in (Center, Personal, Tuned, Mixed, Added)}
"""The servings by name."""
