"""FedAtt: an aggregation that weighs clients layer by layer, by how far their models have moved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.bilevel.aggregation.mean import Mean
from wecfl.core.state import State
from wecfl.core.types import F64, Int
from wecfl.layout import Layout
from wecfl.limits import check_positive

__all__ = ["Attentive"]


@dataclass(frozen=True, slots=True)
class Attentive:
    """Attentive aggregation (Ji et al., *Learning Private Neural Language Modeling …*, IJCNN 2019).

    For each tensor l of a model, with the Euclidean norm of all its numbers,

        s_i = ‖Ω^l − ω_i^l‖,   a = softmax(s),   Ω^l ← Ω^l − step · Σ a_i (Ω^l − ω_i^l).

    A client whose model has moved farther counts more: the softmax has a plus before the distance,
    as published. λ is not used, except that BatchNorm statistics are averaged by λ.

    >>> models = {"model": np.array([[0.0], [4.0]], np.float32)}
    >>> state = State(1, models, np.full((1, 1), 2, np.float32), labels=np.array([0, 0]))
    >>> Attentive(step=1.0)(state, np.ones(2), np.ones(2, int)).centers.tolist()
    [[2.0]]
    """

    step: float = 1.2

    def __post_init__(self) -> None:
        check_positive(server_lr=self.step)

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        mean = Mean()(state, importance, sizes, layout)
        if state.round == 0:
            return mean
        width, centers = state.centers.shape[1], mean.centers.copy()
        stops = [width] if layout is None else layout.trained_stops
        for k in np.unique(state.labels):
            members = np.flatnonzero(state.labels == k)
            for start, stop in zip([0, *stops[:-1]], stops, strict=True):
                before = state.centers[k, start:stop].astype(np.float64)
                gap = before - state.models[members, start:stop]
                score = np.sqrt(np.einsum("ip,ip->i", gap, gap))
                share = np.exp(score - score.max())
                share /= share.sum()
                centers[k, start:stop] = before - self.step * np.einsum("i,ip->p", share, gap)
        return mean.replace(centers=centers)
