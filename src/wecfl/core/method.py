"""A method, and the components it is made of.

The paper's bi-level problem (its equation "method") reads

    minimize  R = 1/Σλ · Σ_k Σ_i r_ik λ_i L(Ω_k, D_i)
    subject to  r, Ω = argmin  F = 1/Σλ · Σ_k Σ_i r_ik λ_i d(g_i, G_k).

Clients are rows of one matrix `models` (m × P), cluster centers rows of `centers` (K × P), and the
assignment r is the vector `labels`. A `Method` chooses g, d, λ, the clustering, the local objective
and the aggregation; the four steps of Algorithm 1 (`rounds.py`) are the same for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from wecfl.core.engine import Engine
from wecfl.core.plan import Correction, Plan
from wecfl.core.state import F32, F64, Bool, Int, Real, State
from wecfl.errors import ConfigError, unknown
from wecfl.layout import Layout

__all__ = [
    "Aggregation",
    "Clustering",
    "Clusters",
    "Distance",
    "Importance",
    "Method",
    "Objective",
    "Rate",
    "Representation",
    "View",
]


class Representation(Protocol):
    """What a client is for the clustering: g_i, beside the clusters' G_k."""

    @property
    def server_side(self) -> bool:
        """The server can tell g_i from the models it holds, without asking the clients."""

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> Real:
        """(m, p), g_i; or of those clients alone of whom `who` (m,) is true."""

    def centers(self, state: State, engine: Engine) -> Real:
        """(K, p), G_k."""

    def place(self, state: State, centers: Real, engine: Engine) -> F32:
        """(K, P), `state.centers` after the clustering has moved G to `centers`."""

    def own(self, state: State, engine: Engine, distance: Distance) -> F64:
        """(m,), d(g_i, G_{labels_i}), from which F is made."""


Distance = Callable[[Any, Any], F64]
"""d: (m, p) and (K, p) → (m, K)."""

Importance = Callable[[Int], F64]
"""λ: data sizes |D_i| (m,) → importance (m,)."""

Rate = Callable[[F64, State, Engine, Plan, int], F32]
"""η (m,) for the coming local update: from the gaps ‖g_i − G_k‖ (m,) that the distribution closes,
the state it makes, the engine, the plan and the seed."""

Objective = Callable[[State, Layout], Correction]
"""The local objective beside the data loss, as a correction of its gradient."""


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


class Clustering(Protocol):
    """The lower level: labels and moved G from what the server sees.

    A cluster keeps its number. K may grow, K' ≥ K: new clusters have the numbers after K − 1. One
    that ended has no clients, and keeps its center.
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Labels of all clients of the view, and K' centers."""


class Aggregation(Protocol):
    """The M-step: one center per cluster; a cluster without members keeps its own."""

    def __call__(self, state: State, importance: F64, sizes: Int) -> F32:
        """(K, P) from `state.models`, `state.labels` and λ."""


@dataclass(frozen=True, slots=True)
class Method:
    """A point of the paper's design space; adding one adds no control flow.

    >>> from wecfl import methods
    >>> methods.fedavg.replace(name="mine", k=3).k
    3
    """

    name: str
    representation: Representation
    """g_i and G_k."""
    distance: Distance
    """d(g_i, G_k)."""
    clustering: Clustering
    """How r is found (E-step)."""
    importance: Importance
    """λ_i."""
    objective: Objective
    """What a client minimizes beside its data loss (L-step)."""
    aggregation: Aggregation
    """How Ω is found (M-step)."""
    k: int | Literal["auto"] = 1
    """K, the number of clusters; "auto": all start in one, and the clustering says how many."""
    shared: str = "all"
    """The columns that travel (D-step), as in `Layout.columns`; the others stay private."""
    start: Literal["one", "each"] = "one"
    """One initial model for all clusters, or a different one for each."""
    order: str = "EMDL"
    """The order of the four steps in a round. IFCA aggregates before it assigns: "EDLM"."""
    members: int = 1
    """How many independent runs are soft-voted (FedAvg+, FedProx+)."""

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"k": self.at_start, "members": self.members}
        for name, value in checked.items():
            if not isinstance(value, int | np.integer) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("distance", "clustering", "importance", "objective", "aggregation"):
            if not callable(getattr(self, name)):
                raise ConfigError(f"{name} must be callable, got {getattr(self, name)!r}")
        if sorted(self.order) != sorted("EMDL"):
            raise ConfigError(f"order must hold each of E, M, D, L once, got '{self.order}'")
        if self.start not in ("one", "each"):
            raise ConfigError(f"start must be 'one' or 'each', got '{self.start}'")

    @property
    def at_start(self) -> int:
        """K at the start of a run."""
        return 1 if self.k == "auto" else self.k

    def replace(self, **changes: Any) -> Method:
        """The method that differs from this one by `changes`."""
        known = [field.name for field in dataclasses.fields(self)]
        for key in changes:
            if key not in known:
                raise ConfigError(unknown("component of a method", key, known))
        return dataclasses.replace(self, **changes)
