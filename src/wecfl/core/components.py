"""The components that a method is made of, as protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from wecfl.core.engine import Engine
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Sent, Site
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int, Real, Table
from wecfl.layout import Layout

__all__ = [
    "Aggregation",
    "Clustering",
    "Clusters",
    "Distance",
    "Importance",
    "Rate",
    "Representation",
    "Serving",
    "View",
]


class Representation(Protocol):
    """What a client is for the clustering: g_i, beside the clusters' G_k."""

    @property
    def asks(self) -> bool:
        """Clients have to be asked for g_i: the models that the server holds do not tell it."""

    def check(self, shared: str, layout: Layout) -> None:
        """Refuse to compare clients by columns that they don't share."""

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> Real:
        """(m, p), g_i; or of those clients alone of whom `who` (m,) is true."""

    def centers(self, state: State, engine: Engine) -> Real:
        """(K, p), G_k of the models Ω_k."""

    def own_distances(self, state: State, engine: Engine, distance: Distance) -> F64:
        """(m,), d(g_i, G_{labels_i}), from which F is made; G as the last E moved it."""


Distance = Callable[[Any, Any], F64]
"""d: (m, p) and (K, p) → (m, K)."""

Importance = Callable[[Int], F64]
"""λ: data sizes |D_i| (m,) → importance (m,)."""

Rate = Callable[[F64, State, Engine, LocalPlan, int], F32]
"""η (m,) for the coming local update: from the gaps ‖g_i − G_k‖ (m,) that the distribution closes,
the state it makes, the engine, the plan and the seed."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What the server sees when it clusters: n clients that it knows, and K centers.

    >>> points, centers = np.array([[3.0], [5.0]]), np.array([[1.0], [4.0]])
    >>> view = View(points, centers, np.ones(2), labels=np.array([0, 1]))
    >>> view.updates.tolist()
    [[2.0], [1.0]]
    """

    points: Real
    """(n, p), g_i."""
    centers: Real
    """(K, p), G_k."""
    importance: F64
    """(n,), λ_i."""
    labels: Int
    """(n,), the cluster that each client is in, and whose model it was sent."""
    heard: Bool | None = None
    """(n,), who was heard in this round; the others count where they were last. None: all."""
    round: int = 0
    """t, the number of local updates done so far."""
    notes: Mapping[str, F64] = field(default_factory=dict)
    """What the clustering wrote down in the round before."""

    @property
    def updates(self) -> Real:
        """(n, p), g_i − G_{labels_i}: what the last local update made of the model received."""
        return np.asarray(self.points - self.centers[self.labels])


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """What a clustering found.

    >>> Clusters(np.array([0, 1]), np.eye(2)).labels.tolist()
    [0, 1]
    """

    labels: Int
    """(n,)."""
    centers: Real
    """(K', p), the moved G."""
    notes: Mapping[str, F64] = field(default_factory=dict)
    """What the next round, or a reader, should know: a few named numbers."""


class Serving(Protocol):
    """Which models answer for a client, said at the client: a frozen dataclass, like a program."""

    name: ClassVar[str]
    version: ClassVar[int]

    needs_memory: ClassVar[bool]
    """Whether it looks at what a client keeps."""

    @property
    def moments(self) -> tuple[str, ...]:
        """When clients are looked at; the last is what counts: `before` and `after` adaptation."""

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Sequence[F32]:
        """(n, P) rows, or (n, J, P) whose mean logits decide, one of them for each moment."""


class Clustering(Protocol):
    """The lower level: labels and moved G from what the server sees.

    A cluster keeps its number. K may grow, K' ≥ K: new clusters have the numbers after K − 1. One
    that ended has no clients, and keeps its center.
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Labels of all clients of the view, and K' centers."""


class Aggregation(Protocol):
    """The M-step: one center per cluster; a cluster without members keeps its own.

    What it has to remember of a cluster is in `state.cluster`.
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """With new centers from `state.models`, `state.labels` and λ."""
