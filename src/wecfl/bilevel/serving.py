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
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one

__all__ = [
    "SERVINGS",
    "Added",
    "Center",
    "Mixed",
    "NearestPrototype",
    "Personal",
    "Pruned",
    "Tuned",
    "shares_of",
]

EXCLUDED_LOGIT = np.float32(-1e30)
"""The output for a class that is not to be predicted."""


class _OneModel:
    """A serving that needs nothing but the model of the client's cluster."""

    __slots__ = ()
    center_alone: ClassVar[bool] = True

    def sent(self, state: State) -> Sent:
        """Each client's model."""
        return Sent({"model": state.sent})


@dataclass(frozen=True, slots=True)
class Center(_OneModel):
    """The model of the client's cluster, with the client's private columns.

    If there are several members, their models vote.

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
    """The model of the client's cluster, before and after some steps on the client's training data.

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
        check_at_least_one(tuning_steps=self.steps)

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

    Probabilities are mixed, not outputs. For a client that was never heard, all models count alike.

    >>> Mixed().center_alone
    False
    """

    name: ClassVar[str] = "mixed"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = True
    center_alone: ClassVar[bool] = False
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def sent(self, state: State) -> Sent:
        """All centers, for every client."""
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
    """The model of the client's cluster and a model common to all clients; their outputs are added.

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


@dataclass(frozen=True, slots=True)
class NearestPrototype:
    """The client's model, which predicts the class whose prototype is nearest to the features.

    −‖z − C_y‖² = 2⟨C_y, z⟩ − ‖C_y‖² − ‖z‖², and the last term is the same for all classes. So this
    is the client's model with another last layer, which has the weights 2C_y and the bias −‖C_y‖².
    As long as there are no prototypes, it is the model itself.

    >>> layout = Layout.of([("w", (2, 1), ["head", "classifier"]), ("b", (2,), ["classifier"])])
    >>> state = State(1, None, np.zeros((1, 4), np.float32), np.zeros(1, int), cluster={
    ...     "prototypes": np.array([[[1.0], [3.0]]], np.float32), "counts": np.ones((1, 2))})
    >>> NearestPrototype().completed(state.sent, state, layout).tolist()
    [[2.0, 6.0, -1.0, -9.0]]
    """

    name: ClassVar[str] = "nearest-prototype"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = True
    center_alone: ClassVar[bool] = True
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def sent(self, state: State) -> Sent:
        """Each client's model, with the prototypes of its cluster."""
        names = [name for name in ("prototypes", "counts") if name in state.cluster]
        return Sent({"model": state.sent, **{n: state.cluster[n][state.labels] for n in names}})

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """The model with that last layer."""
        return [self._rows(sent.own, site.layout)]

    def completed(self, rows: F32, state: State, layout: Layout) -> F32:
        """(m, P), the models that predict for clients, from their own models (m, P)."""
        return self._rows({**self.sent(state).own, "model": rows}, layout)

    def _rows(self, own: Table, layout: Layout) -> F32:
        rows = own["model"].copy()
        if "prototypes" not in own:
            return rows
        prototypes, held = own["prototypes"], own["counts"] > 0
        some = held.any(axis=1)
        squares = np.einsum("icd,icd->ic", prototypes, prototypes)
        bias = np.where(held, -squares, EXCLUDED_LOGIT)
        for entry in layout.entries:
            if "classifier" in entry.tags:
                made = 2 * prototypes if "head" in entry.tags else bias
                rows[some, entry.start : entry.stop] = made.reshape(len(rows), -1)[some]
        return rows


@dataclass(frozen=True, slots=True)
class Pruned(_OneModel):
    """The model of the client's cluster, without the columns that the client has pruned.

    >>> Pruned().needs_memory
    True
    """

    name: ClassVar[str] = "pruned"
    version: ClassVar[int] = 1
    needs_memory: ClassVar[bool] = True
    moments: ClassVar[tuple[str, ...]] = ("after",)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """The model that was sent, with zeros in the columns that are pruned."""
        return [np.where(memory["pruned"] > 0, np.float32(0), sent.own["model"])]

    def completed(self, rows: F32, state: State, layout: Layout) -> F32:
        """(m, P), the models that predict for clients, from their own models (m, P)."""
        pruned = state.memory.get("pruned", np.zeros(rows.shape, np.int8))
        return np.where(pruned > 0, np.float32(0), rows)


def shares_of(mixture: F32) -> F64:
    """(n, K), the π with which clients are served: uniform for a client that has no π yet.

    >>> shares_of(np.array([[0, 0], [0.25, 0.75]], np.float32)).tolist()
    [[0.5, 0.5], [0.25, 0.75]]
    """
    shares = np.asarray(mixture, np.float64)
    total = shares.sum(axis=1, keepdims=True)
    return np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / shares.shape[1])


SERVINGS: dict[str, Any] = {
    kind.name: kind for kind in (Center, Personal, Tuned, Mixed, Added, NearestPrototype, Pruned)
}
"""The servings by name."""
