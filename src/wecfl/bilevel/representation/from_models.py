"""Representations that follow from models: their columns, their losses, weights in a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl.bilevel.evaluation import losses, risk
from wecfl.core.components import Distance
from wecfl.core.engine import Engine
from wecfl.core.program import Program, private_columns
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int, Real
from wecfl.errors import ConfigError
from wecfl.layout import Layout

__all__ = ["Columns", "FromModels", "Losses", "Weights", "last_layer", "to_own_center"]


class FromModels:
    """A representation for which clients need not tell anything about themselves.

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
    ``parameters``, or a pattern on tensor names.

    >>> Columns("head")
    Columns('head')
    """

    which: str = "head"
    asks: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"Columns({self.which!r})"

    def check(self, shared: str, layout: Layout) -> None:
        """Raise an error unless the columns exist and are shared."""
        columns = np.arange(layout.width)[layout.columns(self.which)]
        private = private_columns(layout, shared)
        if private is not None and np.isin(columns, private).any():
            raise ConfigError(
                f"clients share only '{shared}', so they can't be compared by '{self.which}': "
                f"choose a representation within what is shared"
            )

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F32:
        """(m, p), g_i; a view if the columns are adjacent and all clients are wanted."""
        columns, everyone = engine.layout.columns(self.which), who is None or who.all()
        if state.replies is None and (state.met is None or state.met.all()):
            return state.centers[:, columns][state.labels if everyone else state.labels[who]]
        models = state.models
        return models[:, columns] if everyone else models[who][:, columns]

    def centers(self, state: State, engine: Engine) -> F32:
        """(K, p), G_k."""
        return state.centers[:, engine.layout.columns(self.which)]

    def own_distances(self, state: State, engine: Engine, distance: Distance) -> F64:
        """(m,), d(ω_i, G_{labels_i}) on the columns."""
        points, centers = self.clients(state, engine, 0), state.whole.get("moved")
        centers = self.centers(state, engine) if centers is None else centers
        return to_own_center(points, centers, state.labels, distance)


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
    """What distinguishes clients for any method: the last linear layer, or else all parameters.

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
    local data. Each time, every client downloads K models.

    >>> Losses()
    Losses(batches=None)
    """

    batches: int | None = None
    asks: ClassVar[bool] = True

    def check(self, shared: str, layout: Layout) -> None:
        """Raise an error if clients keep private columns: losses need whole models."""
        if private_columns(layout, shared) is not None:
            raise ConfigError(
                f"losses need whole models, but clients share only '{shared}': set shared to 'all'"
            )

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F64:
        """(m, K), the losses."""
        asked = None if who is None or who.all() else np.flatnonzero(who)
        return losses(
            engine, state.centers, batches=self.batches, seed=seed, round=state.round, who=asked
        )

    def centers(self, state: State, engine: Engine) -> F64:
        """(K, K), the identity."""
        return np.eye(len(state.centers))

    def own_distances(self, state: State, engine: Engine, distance: Distance) -> F64:
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
        """Everything fits: a mixture is not made of columns."""

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F64:
        """(m, K), π; zeros for clients that have not replied to the last local update."""
        empty = np.zeros((len(state.labels), len(state.centers)))
        found = (state.replies or {}).get("mixture", empty).astype(np.float64)
        return found if who is None else found[who]

    def centers(self, state: State, engine: Engine) -> F64:
        """(K, K), the identity."""
        return np.eye(len(state.centers))

    def own_distances(self, state: State, engine: Engine, distance: Distance) -> F64:
        """(m,), the part of each client that does not belong to its cluster."""
        far = distance(self.clients(state, engine, 0), self.centers(state, engine))
        return np.asarray(far[np.arange(len(far)), state.labels])
