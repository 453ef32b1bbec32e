"""The weighted mean of the models of each cluster's members, and no aggregation at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Importance
from wecfl.core.state import State
from wecfl.core.types import F64, Int
from wecfl.layout import Layout

__all__ = ["Mean", "Stay", "own_importance"]


@dataclass(frozen=True, slots=True)
class Mean:
    """The weighted mean of each cluster, Ω_k = Σ_{i∈k} λ_i ω_i / Σ_{i∈k} λ_i (Lemma 2).

    The aggregation may weigh clients differently from the clustering: FeSEM clusters them with
    equal weights and averages them by data size. So `importance`, if given, replaces the method's
    λ here.

    >>> models = {"model": np.array([[0.0], [4.0]], np.float32)}
    >>> state = State(1, models, np.full((2, 1), 9, np.float32), labels=np.array([0, 0]))
    >>> Mean()(state, np.array([3.0, 1.0]), sizes=np.array([3, 1])).centers.tolist()
    [[1.0], [9.0]]
    """

    importance: Importance | None = None

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers, by one matrix product."""
        weight = own_importance(self.importance, importance, sizes)
        share = np.zeros((len(state.centers), len(weight)))
        share[state.labels, np.arange(len(weight))] = weight
        total = share.sum(axis=1)
        inhabited = total > 0
        share[inhabited] /= total[inhabited, None]
        centers = state.centers.copy()
        with one_thread():
            centers[inhabited] = share[inhabited].astype(np.float32) @ state.models
        return state.replace(centers=centers)


@dataclass(frozen=True, slots=True)
class Stay:
    """Nothing is aggregated: every center stays as it is (for local training only).

    >>> state = State(1, None, np.ones((1, 1), np.float32), np.array([0, 0]))
    >>> Stay()(state, np.ones(2), sizes=np.ones(2, int)).centers.tolist()
    [[1.0]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with a copy of the same centers."""
        return state.replace(centers=state.centers.copy())


def own_importance(own: Importance | None, importance: F64, sizes: Int) -> F64:
    """(m,), the λ that an aggregation uses: its own if it has one, else the method's.

    >>> from wecfl.bilevel.importance import data_size
    >>> own_importance(data_size, importance=np.ones(2), sizes=np.array([3, 1])).tolist()
    [3.0, 1.0]
    """
    return importance if own is None else own(sizes)
