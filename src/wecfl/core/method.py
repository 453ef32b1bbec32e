"""A method, and the components it is made of.

The paper's bi-level problem (its equation "method") reads

    minimize  R = 1/Σλ · Σ_k Σ_i r_ik λ_i L(Ω_k, D_i)
    subject to  r, Ω = argmin  F = 1/Σλ · Σ_k Σ_i r_ik λ_i d(g_i, G_k).

Clients are rows of one matrix `models` (m × P), cluster centers rows of `centers` (K × P), and the
assignment r is the vector `labels`. A `Method` chooses g, d, λ, the clustering, what clients do
and the aggregation; the four steps of Algorithm 1 (`rounds.py`) are the same for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from wecfl.core.engine import Engine
from wecfl.core.plan import Plan
from wecfl.core.program import Program, Sent, Site, hidden
from wecfl.core.state import F32, F64, Bool, Int, Real, State, Table
from wecfl.errors import ConfigError, ModelError, unknown
from wecfl.layout import Layout

if TYPE_CHECKING:
    from wecfl.core.setting import Setting

__all__ = [
    "Aggregation",
    "Ask",
    "Clustering",
    "Clusters",
    "Distance",
    "Importance",
    "Learn",
    "Method",
    "Rate",
    "Representation",
    "Send",
    "Serving",
    "Steps",
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

    def own(self, state: State, engine: Engine, distance: Distance) -> F64:
        """(m,), d(g_i, G_{labels_i}), from which F is made; G as the last E moved it."""


Distance = Callable[[Any, Any], F64]
"""d: (m, p) and (K, p) → (m, K)."""

Importance = Callable[[Int], F64]
"""λ: data sizes |D_i| (m,) → importance (m,)."""

Rate = Callable[[F64, State, Engine, Plan, int], F32]
"""η (m,) for the coming local update: from the gaps ‖g_i − G_k‖ (m,) that the distribution closes,
the state it makes, the engine, the plan and the seed."""

Send = Callable[[State, "Setting"], Table]
"""(m, …), what clients are sent beside their model, by name; from the state and the setting."""

Learn = Callable[[State, State, Table, Plan], State]
"""What the server makes of the replies at once: from the state before the exchange, the state with
the replies, what clients were sent beside their model, and the plan with η and steps of each."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A step of a round: clients are asked to run a program, and the server takes their replies.

    The local update is `Ask()`, written "L" in `Method.steps`.
    """

    program: Program | None = None
    """None: what the method calls its local update, after which a round is counted."""
    send: Send | None = None
    learn: Learn | None = None
    check: Callable[[Plan, Layout], None] | None = None
    """Refuses plans and models that it can't be done with."""
    who: str = "participation"
    """What the draw of the participants is for: asks with other words draw other clients."""

    @property
    def letter(self) -> str:
        """What observers and records call it."""
        return self.program.name if self.program else "L"

    def __str__(self) -> str:
        """With what is special about it, in words."""
        parts = (self.send, self.learn)
        special = [getattr(part, "__name__", repr(part)) for part in parts if part]
        return f"{self.letter}({', '.join(special)})" if special else self.letter


Steps = tuple["str | Ask", ...]
"""E, M, D and L by letter, and what else is asked."""


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

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: Plan) -> Sequence[F32]:
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
    aggregation: Aggregation
    """How Ω is found (M-step)."""
    local: Program
    """What a client does with the model it receives (L-step)."""
    serve: Serving
    """Which model answers for a client."""
    k: int | Literal["auto"] = 1
    """K, the number of clusters; "auto": all start in one, and the clustering says how many."""
    shared: str = "all"
    """The columns that travel (D-step), as in `Layout.columns`; the others stay private."""
    start: Literal["one", "each"] = "one"
    """One initial model for all clusters, or a different one for each."""
    opening: Steps = ("E", "M", "D")
    """What is done once, before the first round."""
    steps: Steps = ("L", "E", "M", "D")
    """What a round consists of. IFCA aggregates before it assigns: L, M, E, D."""
    members: int = 1
    """How many independent runs are soft-voted (FedAvg+, FedProx+)."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of the plan that this method needs: SCAFFOLD has no momentum."""

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"k": self.at_start, "members": self.members}
        for name, value in checked.items():
            if not isinstance(value, int | np.integer) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("distance", "clustering", "importance", "aggregation", "local", "serve"):
            if not callable(getattr(self, name)):
                raise ConfigError(f"{name} must be callable, got {getattr(self, name)!r}")
        for name in ("opening", "steps"):
            for step in getattr(self, name):
                if not isinstance(step, Ask) and step not in ("E", "M", "D", "L"):
                    raise ConfigError(f"{name} are E, M, D, L or an Ask, got {step!r}")
        if not any(step == "L" or (isinstance(step, Ask) and not step.program)
                   for step in self.steps):  # fmt: skip
            raise ConfigError(f"a round needs a local update (L), got {self.steps}")
        if self.start not in ("one", "each"):
            raise ConfigError(f"start must be 'one' or 'each', got '{self.start}'")

    def check(self, m: int, plan: Plan, layout: Layout) -> None:
        """Refuse what can't be with m clients, this plan and this model."""
        if self.at_start > m:  # at least one cluster would have to stay empty for ever
            raise ConfigError(
                f"{self.name} can't form {self.k} clusters of {m} clients; "
                f"ask for at most {m} clusters"
            )
        body = [entry.name for entry in layout.entries if "classifier" not in entry.tags]
        if "classifier" in self.shared and not body:
            raise ModelError(
                f"{self.name} parts the last layer from the others, but this model has one layer "
                f"only: choose a model with more of them"
            )
        if self.shared != "all" and hidden(layout, self.shared) is None:
            raise ModelError(
                f"{self.name} shares '{self.shared}', which is all of this model: nothing would be "
                f"the client's own"
            )
        self.representation.check(self.shared, layout)
        self.local.check(plan, layout)
        for step in (*self.opening, *self.steps):
            if isinstance(step, Ask) and step.check:
                step.check(plan, layout)
        if self.members > 1 and self.serve.needs_memory:
            raise ConfigError(f"{self.name}: a soft vote is one of centers, not of personal models")

    @property
    def whole_centers(self) -> bool:
        """Whether the model of a cluster can serve alone: clients keep no part of it."""
        return self.shared == "all" and "model" in self.local.replies

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
