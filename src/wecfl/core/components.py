"""The components that a method is made of: what each of them must do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from wecfl.core.engine import Engine
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Ensemble, Program, Sent, Site
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int, Real, Table
from wecfl.layout import Layout

if TYPE_CHECKING:
    from wecfl.core.setting import Setting

__all__ = [
    "Aggregation",
    "Clustering",
    "Clusters",
    "Distance",
    "Importance",
    "Joining",
    "Judge",
    "Rate",
    "Representation",
    "Serving",
    "View",
]


Joining = Callable[[State, "Setting"], State]
"""Asks clients that take part for the first time which cluster they join, before their local
update. In the state that it returns they have the label of this cluster, and
`state.known["chosen"]` (m,) says which clients have chosen one."""


class Representation(Protocol):
    """What represents a client and a cluster when clients are clustered: g_i and G_k."""

    @property
    def asks(self) -> bool:
        """Whether clients must be asked for g_i, since it does not follow from the models."""

    @property
    def tells(self) -> Program | None:
        """The program that clients run once to tell g_i; None: clients do not tell it.

        Then g_i is in `state.known["told"]`, and the G_k that the clustering found are in
        `state.cluster["told"]`.
        """

    def check(self, shared: str, layout: Layout) -> None:
        """Raise an error if clients would be compared by columns that they do not share."""

    def told(self, state: State, setting: Setting) -> State:
        """The state in which the server knows g_i of all clients of the next local update."""

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> Real:
        """(m, p), g_i of all clients, or only of those for which `who` (m,) is true."""

    def centers(self, state: State, engine: Engine, seed: int) -> Real:
        """(K, p), G_k of the models Ω_k."""

    def own_distances(self, state: State, engine: Engine, distance: Distance, seed: int) -> F64:
        """(m,), d(g_i, G_{labels_i}), of which F is the mean; G is as the last E-step moved it."""


Distance = Callable[[Any, Any], F64]
"""d: (m, p) and (K, p) → (m, K)."""

Importance = Callable[[Int], F64]
"""λ: data sizes |D_i| (m,) → importance (m,)."""

Rate = Callable[[F64, State, Engine, LocalPlan, int], F32]
"""Gives η (m,) for the next local update. It is called in the D-step, with the distances
‖g_i − G_k‖ (m,) before the step, the state after it, the engine, the plan and the seed."""


Judge = Callable[[Int | None, Bool], F64]
"""Asks clients how well they would be served if the clients of the view were divided as the labels
(n,) say: each client is sent the model that the M-step would make for its cluster. Without labels,
each client is sent its own model back. Only the clients in the second argument (n,) are asked. The
answers (n,) are those of the method's program `judge`; NaN for a client that was not asked or did
not answer."""


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """What the server sees when it clusters: the n clients that it knows, and K centers.

    >>> points, centers = np.array([[3.0], [5.0]]), np.array([[1.0], [4.0]])
    >>> view = View(points, centers, np.ones(2), labels=np.array([0, 1]))
    >>> view.updates.tolist()
    [[2.0], [1.0]]
    """

    points: Real
    """(n, p), g_i; or (n, …), if a client tells more than a vector."""
    centers: Real
    """(K, p), G_k."""
    importance: F64
    """(n,), λ_i."""
    labels: Int
    """(n,), the cluster whose model each client was sent. −1: the client has told something about
    its data, and has no cluster yet."""
    heard: Bool | None = None
    """(n,), the clients that were heard in this round. Of the others, g_i is what the server last
    knew. None: all were heard."""
    round: int = 0
    """t, the number of local updates done so far."""
    notes: Mapping[str, F64] = field(default_factory=dict)
    """What the clustering wrote down in the previous round."""
    judge: Judge | None = None
    """Asks clients how well a division would serve them; None: the method does not allow it."""
    candidate: Int | None = None
    """(n, levels), what the clustering has kept for this round (`Clusters.candidate`)."""
    by_columns: Callable[[str], View] | None = None
    """The same view with other columns of the models for g_i and G_k, a selection of
    `Layout.columns`; None: the method does not ask clients."""

    @property
    def updates(self) -> Real:
        """(n, p), g_i − G_{labels_i}: how the last local update changed the model received."""
        return np.asarray(self.points - self.centers[self.labels])


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """What a clustering found.

    >>> Clusters(np.array([0, 1]), np.eye(2)).labels.tolist()
    [0, 1]
    """

    labels: Int
    """(n,), the cluster of each client of the view."""
    centers: Real
    """(K', p), the centers G after the clustering."""
    notes: Mapping[str, F64] = field(default_factory=dict)
    """A few named numbers, for the next round and for the record of the run."""
    validate: bool = False
    """Whether clients must leave their validation samples out of the next local update, since the
    clustering will ask how well models serve them (`View.judge`)."""
    placed: Bool | None = None
    """(n,), the clients of the view whose cluster is known. Every other client is sent the mean of
    all centers, and joins the nearest cluster when it is heard again. None: all are known."""
    candidate: Int | None = None
    """(n, levels), clusters that are not made yet, but shown to the clustering again in the next
    round: for each client, its node of a hierarchy at each level; −1 for a client that is in none.
    None: there are no such clusters."""


class Serving(Protocol):
    """Which models predict for a client: a frozen dataclass that runs at the client.

    If it changes models, it may also have a method `completed(rows, state, layout)`, which makes
    the models that predict for clients from their models (m, P). It is used after a simulation.
    """

    name: ClassVar[str]
    version: ClassVar[int]

    needs_memory: ClassVar[bool]
    """Whether it needs what the client keeps (`State.memory`)."""

    center_alone: ClassVar[bool]
    """Whether the model of a cluster can also predict without other models."""

    @property
    def moments(self) -> tuple[str, ...]:
        """When a client is tested: `before` and `after` adaptation. The last test counts."""

    def sent(self, state: State) -> Sent:
        """What all clients are sent for it; usually, each client gets the model of its cluster."""

    def __call__(
        self, site: Site, sent: Sent, memory: Table, plan: LocalPlan
    ) -> Sequence[F32 | Ensemble]:
        """For each moment (n, P) models, or (n, J, P) models whose outputs are added or mixed."""


class Clustering(Protocol):
    """The lower level of the problem: labels and new centers G from what the server sees.

    A cluster keeps its number. K may grow, K' ≥ K: new clusters are numbered from K on. A cluster
    that ends has no clients any more, and keeps its center.
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Labels of all clients of the view, and K' centers."""


class Aggregation(Protocol):
    """The M-step: one center for each cluster; a cluster without members keeps its center.

    What it must remember about each cluster is in `state.cluster`. What it must remember once for
    the whole run is in `state.whole`.
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with new centers, made from `state.models`, `state.labels` and λ."""
