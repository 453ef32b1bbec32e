"""The M-step: the center of a cluster from the models of its members."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.base import F32, F64, Importance, Int, State
from wecfl.bilevel.threads import one_thread

__all__ = ["Mean"]


@dataclass(frozen=True, slots=True)
class Mean:
    """Weighted mean of each cluster, Ω_k = Σ_{i∈k} λ_i ω_i / Σ_{i∈k} λ_i (Lemma 2).

    A cluster without members keeps its center. The aggregation may weigh clients differently from
    the clustering (FeSEM clusters uniformly and averages by data size): `importance`, if given,
    replaces the method's λ here.

    >>> state = State(1, np.array([[0.0], [4.0]], np.float32), np.full((2, 1), 9, np.float32),
    ...               labels=np.array([0, 0]))
    >>> Mean()(state, np.array([3.0, 1.0]), sizes=np.array([3, 1])).tolist()
    [[1.0], [9.0]]
    """

    importance: Importance | None = None

    def __call__(self, state: State, importance: F64, sizes: Int) -> F32:
        """(K, P), one matrix product."""
        weight = importance if self.importance is None else self.importance(sizes)
        share = np.zeros((len(state.centers), len(weight)))
        share[state.labels, np.arange(len(weight))] = weight
        total = share.sum(axis=1)
        inhabited = total > 0
        share[inhabited] /= total[inhabited, None]
        centers = state.centers.copy()
        with one_thread():
            centers[inhabited] = share[inhabited].astype(np.float32) @ state.models
        return centers
