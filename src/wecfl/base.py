"""Everything a newcomer must learn: a `State`, an `Engine`, a `Method`.

The paper's bi-level problem (its equation "method") reads

    minimize  R = 1/Σλ · Σ_k Σ_i r_ik λ_i L(Ω_k, D_i)
    subject to  r, Ω = argmin  F = 1/Σλ · Σ_k Σ_i r_ik λ_i d(g_i, G_k).

Clients are rows of one matrix `models` (m × P), cluster centers rows of `centers` (K × P), and the
assignment r is the vector `labels`. A `Method` chooses g, d, λ, the clustering, the local objective
and the aggregation; the four steps of Algorithm 1 (`rounds.py`) are the same for all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from wecfl import memory, rng
from wecfl.errors import ConfigError, unknown
from wecfl.layout import Layout

__all__ = [
    "F32",
    "F64",
    "Aggregation",
    "Bool",
    "Clients",
    "Clustering",
    "Clusters",
    "Correction",
    "Distance",
    "Engine",
    "Importance",
    "Int",
    "Int8",
    "Method",
    "Objective",
    "Plan",
    "Rate",
    "Real",
    "Reply",
    "Representation",
    "State",
    "Update",
    "View",
]

F32 = NDArray[np.float32]
"""Models, as rows."""
F64 = NDArray[np.float64]
"""What is summed: distances, losses, importance."""
Int = NDArray[np.int64]
"""Labels, counts, positions."""
Int8 = NDArray[np.int8]
"""Codes."""
Bool = NDArray[np.bool_]
"""Who."""
Real = NDArray[np.floating]
"""Representations, in whatever precision they come."""
Split = Literal["train", "test"]


class Reply(IntEnum):
    """What came of a client's local update."""

    HEARD = 0
    """It reached the server, which uses it."""
    ABSENT = 1
    """The client did not take part in the round."""
    LOST = 2
    """The client trained, but its reply did not arrive."""
    NOT_FINITE = 3
    """Refused: it holds NaN or infinity."""
    TOO_LARGE = 4
    """Refused: it is far longer than those of the others."""
    MALFORMED = 5
    """Refused: it is not what was asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that survives a round; a checkpoint is exactly this.

    >>> centers = np.array([[1, 2], [3, 4]], np.float32)
    >>> State(0, np.zeros((3, 2), np.float32), centers, labels=np.array([0, 1, 1])).own.tolist()
    [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    """

    round: int
    """t, the number of local updates done so far."""
    trained: F32 | None
    """(m, P), the clients' models ω_i where they have their own; None: ω_i = Ω_k, as after the
    distribution, which therefore makes no matrix."""
    centers: F32
    """(K, P), the clusters' models Ω_k."""
    labels: Int
    """(m,), r_ik = [labels_i = k]."""
    memory: Mapping[str, F32] = field(default_factory=dict)
    """What clients keep between rounds, one row each: `momentum` (m, trainable); `lr` (m,), the
    rate they were sent with the model, where it follows the run."""
    replies: Int8 | None = None
    """(m,), what came of each client's last local update (`Reply`); None: the server has them
    all."""
    met: Bool | None = None
    """(m,), whom the server has heard in some round so far; None: everyone."""
    notes: Mapping[str, F64] = field(default_factory=dict)
    """What the clustering has written down for the next round, and for the reader."""

    def __post_init__(self) -> None:
        if not ((self.labels >= 0) & (self.labels < len(self.centers))).all():
            raise ValueError(
                f"labels must be clusters 0 to {len(self.centers) - 1}, got {self.labels}"
            )

    @property
    def heard(self) -> Bool:
        """(m,), whose last local update reached the server and was accepted."""
        if self.replies is None:
            return np.ones(len(self.labels), dtype=np.bool_)
        heard: Bool = self.replies == Reply.HEARD
        return heard

    @property
    def models(self) -> F32:
        """(m, P), the clients' models ω_i; a matrix of its own, made anew, where ω_i = Ω_k."""
        return self.own if self.trained is None else self.trained

    def fresh(self) -> F32:
        """(m, P), the clients' models in a matrix that may be written to."""
        if self.trained is None:
            return self.own
        rows = memory.empty(self.trained.shape)
        rows[:] = self.trained
        return rows

    def model(self, client: int) -> F32:
        """(P,), ω_i of one client."""
        if self.trained is None:
            return np.asarray(self.centers[self.labels[client]])
        return np.asarray(self.trained[client])

    @property
    def own(self) -> F32:
        """(m, P), the center of each client's own cluster, Ω_{labels_i}."""
        rows = memory.empty((len(self.labels), self.centers.shape[1]))
        # Any mode but "raise", which would go through a second matrix.
        return np.take(self.centers, self.labels, axis=0, out=rows, mode="clip")

    def replace(self, **changes: Any) -> State:
        """A copy with some fields changed; when clusters move, clients keep what they were sent."""
        moved = "labels" in changes or "centers" in changes
        if self.trained is None and moved and "trained" not in changes:
            changes["trained"] = self.models
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a client trains in one round: Q steps of SGD on mini-batches.

    Client i walks through its shuffled data across rounds and shuffles anew at each pass, so the
    batches of round t are a function of (seed, t, i) alone.
    """

    steps: int = 10
    """Q, mini-batches in a round."""
    batch: int = 32
    lr: float | F32 = 0.001
    """η, one for all clients or one each, (m,)."""
    momentum: float = 0.9
    keep_momentum: bool = True
    """The momentum buffer survives the round (as in the paper's experiment) or starts from zero."""
    weight_decay: float = 0.0
    done: Int | None = None
    """(m,), how many of the Q steps each client gets to; None: all of them."""

    def __post_init__(self) -> None:
        for name, value, least in (("steps", self.steps, 1), ("batch", self.batch, 1)):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if not np.all(np.isfinite(self.lr)) or np.any(np.asarray(self.lr) < 0):
            raise ConfigError(f"lr must be finite and not negative, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must lie in [0, 1), got {self.momentum}")
        if self.weight_decay < 0:
            raise ConfigError(f"weight_decay must not be negative, got {self.weight_decay}")

    def batches(self, size: int, seed: int, round: int, client: int) -> list[Int]:
        """The mini-batches of a client with `size` samples after `round` rounds, as positions.

        >>> [b.tolist() for b in Plan(steps=4, batch=2).batches(3, seed=0, round=0, client=0)]
        [[2, 1], [0], [2, 0], [1]]
        """
        per_pass = -(-size // self.batch)
        chosen: list[Int] = []
        for step in range(round * self.steps, (round + 1) * self.steps):
            number, position = divmod(step, per_pass)
            if position == 0 or not chosen:
                shuffled = rng.stream(seed, "shuffle", number, client).permutation(size)
            chosen.append(shuffled[position * self.batch : (position + 1) * self.batch])
        return chosen


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The affine correction of a local gradient: g + mu·(w − anchor) + offset.

    FedProx, Ditto, pFedMe and SCAFFOLD are all of this form, so every engine runs all of them.
    `mu` is one number or one per trainable column; `anchor` and `offset` are (m, P) or absent
    (no anchor: the models the clients start the round with).

    >>> Correction(mu=0.95)                                     # FedProx
    Correction(mu=0.95, anchor=None, offset=None)
    """

    mu: float | F32 = 0.0
    anchor: F32 | None = None
    offset: F32 | None = None


class Clients(Protocol):
    """What a run knows of its clients, whether it holds their data (`Federation`) or not."""

    def __len__(self) -> int:
        """m, the number of clients."""

    @property
    def names(self) -> Sequence[str]:
        """What to call each client."""

    @property
    def keys(self) -> Int:
        """(m,), who each client is, for keyed randomness."""

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|."""

    @property
    def groups(self) -> Int | None:
        """(m,), the hidden groups that generated the data, where they are known."""

    @property
    def held(self) -> Int | None:
        """(classes, m), the training samples of each class, where they are known."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""

    @property
    def classes(self) -> int:
        """C, how many there are."""

    @property
    def fingerprint(self) -> str:
        """Tells the clients of one run from those of another."""


Update = tuple[F32, dict[str, F32]] | tuple[F32, dict[str, F32], Int8]
"""What a local update comes to: models (m, P), memory, and what came of each reply, if not all."""


class Engine(Protocol):
    """The only object that may touch client data D_i. m clients, models as rows."""

    @property
    def name(self) -> str:
        """Part of the reproducibility key: engines agree to float tolerance, each to the bit."""

    @property
    def workers(self) -> int:
        """How many clients are at work at once."""

    @property
    def nodes(self) -> int:
        """On how many machines."""

    @property
    def layout(self) -> Layout:
        """Which columns of a row hold which parameter."""

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|."""

    def train(
        self,
        state: State,
        plan: Plan,
        correction: Correction,
        seed: int,
        active: Sequence[int] | None = None,
    ) -> Update:
        """Q local steps of each client from its row of `state.models`: new models and memory.

        Only the clients in `active` train, if it is given; the rows of the others stay. Where a
        client may not answer, also what came of each (`Reply`); its row stays then, too.
        """

    def losses(
        self,
        models: F32,
        *,
        batches: int | None = None,
        seed: int = 0,
        round: int = 0,
        active: Sequence[int] | None = None,
    ) -> F64:
        """(m, K), the mean training loss L(Ω_k, D_i) of each of the K models on each client.

        Only the clients in `active` are asked, if it is given: a row for each, by rising number;
        NaN where there is no answer.
        `batches` limits the estimate to that many mini-batches drawn for (seed, round, client).
        """

    def risk(self, models: F32, split: Split = "train") -> F64:
        """(m,), the mean loss L(ω_i, D_i) of each client's own row, on its own data."""

    def gradients(
        self, models: F32, *, batches: int | None = None, seed: int = 0, round: int = 0
    ) -> F32:
        """(m, trainable), ∇L(ω_i, D_i) of each client's own row: the gradient of what `risk` gives.

        BatchNorm uses what it uses in evaluation; `batches` as for `losses`.
        """

    def confusion(self, models: F32, split: Split) -> Int:
        """(m, C, C), truth by prediction of each client's own row on its own data.

        All scores derive from it. `models` may be a stack (n, m, P): then the logits of the n
        models of a client are averaged (soft vote). Zeros of a client that does not answer.
        """

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), initial models by number: 0 is the model as given, others are drawn anew."""

    def notes(self) -> dict[str, Any]:
        """What else is worth writing down about the round that ends; nothing of most engines."""


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
