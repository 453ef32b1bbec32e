"""The local update (the L-step): programs in which clients train.

Each program is a frozen dataclass, whose fields are options that are sent as JSON. Clients know the
programs by name (`wecfl.bilevel.programs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Field, FitsAny, ReplyAndMemory, Sent, Site
from wecfl.core.types import Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one, check_not_negative

__all__ = [
    "MODEL_REPLY",
    "MOMENTUM_FIELD",
    "PERSONAL_FIELD",
    "Alone",
    "Ditto",
    "Only",
    "Parts",
    "Train",
    "kept",
    "momentum_field",
]

MODEL_REPLY = {"model": Field(("P",), update=True)}
"""The reply of a program that sends back the model after training."""
MOMENTUM_FIELD = Field(("buffer",))
"""The optimizer's buffer, kept between rounds."""
PERSONAL_FIELD = Field(("P",), start="received")
"""A model that a client keeps for itself; at first it is the first model that it receives."""


def momentum_field(plan: LocalPlan, name: str = "momentum") -> dict[str, Field]:
    """The field of the optimizer's buffer, if it is kept between rounds.

    >>> list(momentum_field(LocalPlan())), list(momentum_field(LocalPlan(keep_momentum=False)))
    (['momentum'], [])
    """
    return {name: MOMENTUM_FIELD} if plan.keep_momentum and plan.buffered else {}


@dataclass(frozen=True, slots=True)
class Train(FitsAny):
    """Q steps of SGD on L(ω, D_i) + mu/2·‖ω − Ω_k‖², from the model received (FedAvg, FedProx).

    With mu = 0 it is the loss on the data alone. The paper writes "λ = 0.95" for FedProx's mu (Li
    et al., *Federated Optimization in Heterogeneous Networks*, MLSys 2020). If the server sends
    rows `anchor`, they take the place of Ω_k. If it sends rows `offset`, they are added to every
    gradient.

    >>> Train(mu=0.95)
    Train(mu=0.95)
    """

    mu: float = 0.0
    name: ClassVar[str] = "train"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_not_negative(mu=self.mu)

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The momentum buffer."""
        return momentum_field(plan)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train the model that was sent."""
        rows, correction = (
            sent.own["model"],
            Correction(self.mu, sent.own.get("anchor"), sent.own.get("offset")),
        )
        rows, velocity = site.train(
            rows, plan, correction=correction, velocity=memory.get("momentum"), out=rows
        )
        return {"model": rows}, kept(memory, momentum=velocity)


@dataclass(frozen=True, slots=True)
class Alone(FitsAny):
    """Local training: a client continues from its own model, and replies nothing.

    >>> Alone().replies
    {}
    """

    name: ClassVar[str] = "alone"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {}

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The client's own model, and its momentum buffer."""
        return {"personal": PERSONAL_FIELD, **momentum_field(plan)}

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train the client's own model."""
        rows, velocity = site.train(memory["personal"], plan, velocity=memory.get("momentum"))
        return {}, kept(memory, personal=rows, momentum=velocity)


@dataclass(frozen=True, slots=True)
class Ditto(FitsAny):
    """Train the model received, and a personal model that is pulled towards it.

    The personal model takes the steps v ← v − η(∇L(v, D_i) + lam·(v − Ω_k)), on the same
    mini-batches (Li et al., *Ditto: Fair and Robust Federated Learning Through Personalization*,
    ICML 2021). It stays with the client.

    >>> list(Ditto(lam=0.5).keeps(LocalPlan(momentum=0.0)))
    ['personal']
    """

    lam: float = 1.0
    name: ClassVar[str] = "ditto"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_not_negative(lam=self.lam)

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The personal model, and a momentum buffer for each of the two models."""
        personal = {"personal": PERSONAL_FIELD, **momentum_field(plan, "personal_momentum")}
        return {**personal, **momentum_field(plan)}

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train both models, one after the other."""
        received = sent.own["model"]
        personal, drift = site.train(
            memory["personal"], plan, correction=Correction(self.lam, anchor=received),
            velocity=memory.get("personal_momentum"),
        )  # fmt: skip
        rows, velocity = site.train(received, plan, velocity=memory.get("momentum"), out=received)
        after = kept(memory, personal=personal, personal_momentum=drift, momentum=velocity)
        return {"model": rows}, after


@dataclass(frozen=True, slots=True)
class Parts:
    """First train some columns while the others are frozen, and then the others (FedRep).

    `first` selects the columns that are trained first, as in `Layout.columns`. They get `steps` of
    the Q steps, and the others get the rest (Collins et al., *Exploiting Shared Representations for
    Personalized Federated Learning*, ICML 2021).

    >>> Parts("classifier", steps=3)
    Parts(first='classifier', steps=3)
    """

    first: str = "classifier"
    steps: int | None = None
    """The number of steps for the first columns; None: half of the Q steps."""
    name: ClassVar[str] = "parts"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_at_least_one(head_steps=self.steps)

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The momentum buffer."""
        return momentum_field(plan)

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error unless both parts have columns and at least one step."""
        layout.columns(self.first)
        layout.columns(f"~{self.first}")
        if plan.epochs:
            raise ConfigError(
                "head and body divide the steps of a round, so their number must be given: give "
                "steps, not epochs"
            )
        if not 1 <= self._steps(plan) < plan.steps:
            raise ConfigError(
                f"head_steps must lie between 1 and {plan.steps - 1}, so that both head and body "
                f"are trained in {plan.steps} steps, got {self._steps(plan)}"
            )

    def _steps(self, plan: LocalPlan) -> int:
        return plan.steps // 2 if self.steps is None else self.steps

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train one part after the other, on the round's batches in their order."""
        layout = site.layout
        first = np.zeros(layout.width, np.bool_)
        first[layout.columns(self.first)] = True
        rows, velocity, steps = sent.own["model"], memory.get("momentum"), self._steps(plan)
        for free, part in ((first, slice(steps)), (~first, slice(steps, None))):
            rows, velocity = site.train(
                rows, plan, velocity=velocity, free=free, part=part, out=rows
            )
        return {"model": rows}, kept(memory, momentum=velocity)


@dataclass(frozen=True, slots=True)
class Only:
    """Train some columns, as in `Layout.columns`, while the others stay as received (FedBABU).

    >>> Only("~classifier")
    Only(columns='~classifier')
    """

    columns: str = "~classifier"
    name: ClassVar[str] = "only"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The momentum buffer."""
        return momentum_field(plan)

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error unless there are such columns."""
        layout.columns(self.columns)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train these columns of the model that was sent."""
        rows, free = sent.own["model"], np.zeros(site.layout.width, np.bool_)
        free[site.layout.columns(self.columns)] = True
        rows, velocity = site.train(
            rows, plan, velocity=memory.get("momentum"), free=free, out=rows
        )
        return {"model": rows}, kept(memory, momentum=velocity)


def kept(memory: Table, **after: NDArray[Any] | None) -> dict[str, NDArray[Any]]:
    """The new values of those fields that were declared as memory.

    >>> kept({"a": np.zeros(1)}, a=np.ones(1), b=np.ones(1))
    {'a': array([1.])}
    """
    return {name: rows for name, rows in after.items() if name in memory and rows is not None}
