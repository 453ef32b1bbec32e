"""g_i and G_k: what clients and clusters are for the clustering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl.core.engine import Engine
from wecfl.core.method import Distance
from wecfl.core.state import F32, F64, Bool, Real, State
from wecfl.layout import Layout

__all__ = ["Columns", "Losses", "last_layer"]


@dataclass(frozen=True, slots=True)
class Columns:
    """A client is its model: g_i = ω_i and G_k = Ω_k on the selected columns of the row.

    `which` is a selection of `Layout.columns`: ``head`` (the last linear layer's weight matrix, as
    in the authors' code), ``linear`` (all fully connected layers, as in the paper's text),
    ``parameters``, or a pattern on tensor names.

    >>> Columns("head")
    Columns('head')
    """

    which: str = "head"
    server_side: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"Columns({self.which!r})"

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F32:
        """(m, p), a view where the columns are adjacent and all clients are asked for."""
        columns, everyone = engine.layout.columns(self.which), who is None or who.all()
        if state.trained is None:
            return state.centers[:, columns][state.labels if everyone else state.labels[who]]
        return state.trained[:, columns] if everyone else state.trained[who, columns]

    def centers(self, state: State, engine: Engine) -> F32:
        """(K, p)."""
        return state.centers[:, engine.layout.columns(self.which)]

    def place(self, state: State, centers: Real, engine: Engine) -> F32:
        """Write the moved G_k into the columns; the M-step moves the others."""
        moved = state.centers.copy()
        moved[:, engine.layout.columns(self.which)] = centers
        return moved

    def own(self, state: State, engine: Engine, distance: Distance) -> F64:
        """(m,), d(ω_i, Ω_{labels_i}) on the columns."""
        points, centers = self.clients(state, engine, 0), self.centers(state, engine)
        result = np.empty(len(points))
        for k in np.unique(state.labels):
            members = state.labels == k
            result[members] = distance(points[members], centers[k : k + 1])[:, 0]
        return result


def last_layer(layout: Layout) -> Columns:
    """What tells clients apart whatever the method clusters: the last layer, if there is one.

    >>> last_layer(Layout.of([("w", (2,), [])]))
    Columns('parameters')
    """
    head = any("head" in entry.tags for entry in layout.entries)
    return Columns("head" if head else "parameters")


@dataclass(frozen=True, slots=True)
class Losses:
    """A client is how well each cluster's model serves it: g_i = (L(Ω_1, D_i), …), G = I.

    With the distance `component`, d(g_i, G_k) = L(Ω_k, D_i): IFCA and HypCluster. `batches` limits
    the estimate to that many mini-batches of local data (the authors' code takes 3); all local
    data by default. Every query costs a download of K models for each client.

    >>> Losses()
    Losses(batches=None)
    """

    batches: int | None = None
    server_side: ClassVar[bool] = False

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F64:
        """(m, K)."""
        asked = None if who is None or who.all() else np.flatnonzero(who).tolist()
        return engine.losses(
            state.centers, batches=self.batches, seed=seed, round=state.round, active=asked
        )

    def centers(self, state: State, engine: Engine) -> F64:
        """(K, K), the identity."""
        return np.eye(len(state.centers))

    def place(self, state: State, centers: Real, engine: Engine) -> F32:
        """G = I does not move, nor do the models behind it."""
        return state.centers

    def own(self, state: State, engine: Engine, distance: Distance) -> F64:
        """(m,), L(Ω_{labels_i}, D_i) on all local data."""
        return engine.risk(state.own)
