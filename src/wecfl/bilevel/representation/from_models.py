"""Representations made from models: columns of models, their losses, and weights in a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl import rng
from wecfl.bilevel.evaluation import losses, risk
from wecfl.bilevel.representation.projection import in_random_directions
from wecfl.core.components import Distance, Representation
from wecfl.core.engine import Engine
from wecfl.core.program import Program, private_columns
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int, Real
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one

__all__ = [
    "Columns",
    "FromModels",
    "Losses",
    "Weights",
    "is_projected",
    "last_layer",
    "to_own_center",
]


class FromModels:
    """A representation for which clients tell nothing about their data.

    >>> FromModels.tells is None
    True
    """

    __slots__ = ()
    tells: ClassVar[Program | None] = None

    def told(self, state: State, setting: Setting) -> State:
        """The state as it is."""
        return state


@dataclass(frozen=True, slots=True)
class Columns(FromModels):
    """A client is represented by its model: g_i = ω_i and G_k = Ω_k on the selected columns.

    `which` is a selection of `Layout.columns`: ``head`` (the last linear layer's weight matrix, as
    in the authors' code), ``linear`` (all fully connected layers, as in the paper's text),
    ``parameters``, or a pattern on tensor names. With `project`, g_i and G_k are projected to that
    many numbers by one random matrix, which follows from the seed of the run and is neither stored
    nor sent (`wecfl.bilevel.representation.projection`).

    >>> Columns("head"), Columns("linear", project=64)
    (Columns('head'), Columns('linear', project=64))
    """

    which: str = "head"
    project: int | None = None
    asks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_at_least_one(project=self.project)

    def __repr__(self) -> str:
        projected = "" if self.project is None else f", project={self.project}"
        return f"Columns({self.which!r}{projected})"

    def width(self, layout: Layout) -> int:
        """p, the number of numbers in g_i.

        >>> layout = Layout.of([("w", (3, 4), ["head"])])
        >>> Columns("head").width(layout), Columns("head", project=5).width(layout)
        (12, 5)
        """
        return self.project or len(np.arange(layout.width)[layout.columns(self.which)])

    def check(self, shared: str, layout: Layout) -> None:
        """Raise an error unless the columns exist, are shared, and are enough to be projected."""
        columns = np.arange(layout.width)[layout.columns(self.which)]
        if not len(columns):
            raise ConfigError(
                f"the representation '{self.which}' selects no column of this model, so clients "
                f"can't be compared: choose head, linear, parameters, or a pattern of tensor names"
            )
        private = private_columns(layout, shared)
        if private is not None and np.isin(columns, private).any():
            raise ConfigError(
                f"clients share only the columns '{shared}', so they can't be compared by "
                f"'{self.which}': choose a representation among the shared columns"
            )
        if self.project is not None and self.project > len(columns):
            raise ConfigError(
                f"project must be at most {len(columns)}, the number of columns that "
                f"'{self.which}' has in this model, got {self.project}: choose a smaller number, "
                f"or leave it out"
            )

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F32:
        """(m, p), g_i; a view if all clients are asked for, and the columns are adjacent."""
        everyone = who is None or who.all()
        if state.replies is None and (state.met is None or state.met.all()):
            centers = self.centers(state, engine, seed)
            return centers[state.labels if everyone else state.labels[who]]
        models = state.models if everyone else state.models[who]
        return self._of(models, engine.layout, seed)

    def centers(self, state: State, engine: Engine, seed: int) -> F32:
        """(K, p), G_k."""
        return self._of(state.centers, engine.layout, seed)

    def _of(self, models: F32, layout: Layout, seed: int) -> F32:
        """(n, p), the representations of these models."""
        columns: F32 = models[:, layout.columns(self.which)]
        if self.project is None:
            return columns
        draws = rng.stream(seed, "projection")
        found = in_random_directions(columns, self.project, draws) / np.sqrt(self.project)
        return np.asarray(found, np.float32)

    def own_distances(self, state: State, engine: Engine, distance: Distance, seed: int) -> F64:
        """(m,), d(ω_i, G_{labels_i}) on the columns."""
        points, centers = self.clients(state, engine, seed), state.whole.get("moved")
        centers = self.centers(state, engine, seed) if centers is None else centers
        return to_own_center(points, centers, state.labels, distance)


def is_projected(representation: Representation) -> bool:
    """Whether clients are compared by a random projection.

    >>> is_projected(Columns("head")), is_projected(Columns("head", project=64))
    (False, True)
    """
    return isinstance(representation, Columns) and representation.project is not None


def to_own_center(points: Real, centers: Real, labels: Int, distance: Distance) -> F64:
    """(m,), the distance of each client from the center of its own cluster.

    >>> from wecfl.bilevel.distance import squared_euclidean
    >>> to_own_center(np.array([[1.0], [5.0]]), np.array([[3.0]]), np.zeros(2, int),
    ...               squared_euclidean).tolist()
    [4.0, 4.0]
    """
    result = np.empty(len(points))
    for k in np.unique(labels):
        members = labels == k
        result[members] = distance(points[members], centers[k : k + 1])[:, 0]
    return result


def last_layer(layout: Layout) -> Columns:
    """Columns that distinguish clients under any method: the last linear layer, or else all.

    >>> last_layer(Layout.of([("w", (2,), [])]))
    Columns('parameters')
    """
    head = any("head" in entry.tags for entry in layout.entries)
    return Columns("head" if head else "parameters")


@dataclass(frozen=True, slots=True)
class Losses(FromModels):
    """A client is represented by the loss of each cluster's model: g_i = (L(Ω_1, D_i), …), G = I.

    With the distance `component`, d(g_i, G_k) = L(Ω_k, D_i), as in IFCA and HypCluster. The loss is
    estimated on `batches` mini-batches of local data (3 in the authors' code), by default on all
    local data. For each E-step, every client downloads K models.

    >>> Losses()
    Losses(batches=None)
    """

    batches: int | None = None
    asks: ClassVar[bool] = True

    def check(self, shared: str, layout: Layout) -> None:
        """Raise an error if clients keep private columns: losses need whole models."""
        if private_columns(layout, shared) is not None:
            raise ConfigError(
                f"losses need whole models, but clients share only the columns '{shared}': set "
                f"shared to 'all'"
            )

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F64:
        """(m, K), the losses."""
        asked = None if who is None or who.all() else np.flatnonzero(who)
        return losses(
            engine, state.centers, batches=self.batches, seed=seed, round=state.round, who=asked
        )

    def centers(self, state: State, engine: Engine, seed: int) -> F64:
        """(K, K), the identity."""
        return np.eye(len(state.centers))

    def own_distances(self, state: State, engine: Engine, distance: Distance, seed: int) -> F64:
        """(m,), L(Ω_{labels_i}, D_i) on all local data."""
        return risk(engine, state.own_centers)


@dataclass(frozen=True, slots=True)
class Weights(FromModels):
    """A client is represented by its weights in a mixture, which it has replied: g_i = π_i, G = I.

    With the distance `remainder`, a client is labelled by the cluster with its largest weight.

    >>> Weights().asks
    False
    """

    asks: ClassVar[bool] = False

    def check(self, shared: str, layout: Layout) -> None:
        """Accept everything: a mixture is not made of columns."""

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F64:
        """(m, K), π; zeros for clients that have not replied to the last local update."""
        empty = np.zeros((len(state.labels), len(state.centers)))
        found = (state.replies or {}).get("mixture", empty).astype(np.float64)
        return found if who is None else found[who]

    def centers(self, state: State, engine: Engine, seed: int) -> F64:
        """(K, K), the identity."""
        return np.eye(len(state.centers))

    def own_distances(self, state: State, engine: Engine, distance: Distance, seed: int) -> F64:
        """(m,), 1 minus the weight of each client in its own cluster."""
        far = distance(self.clients(state, engine, seed), self.centers(state, engine, seed))
        return np.asarray(far[np.arange(len(far)), state.labels])
