"""The weighted mean of each cluster, and vectors of length 1."""

from __future__ import annotations

import numpy as np

from wecfl.core.types import F64, Int, Real

__all__ = ["cluster_means", "unit"]


def cluster_means(points: Real, labels: Int, weight: F64, k: int | None = None) -> F64:
    """(K, p), Σ_{i∈k} w_i x_i / Σ_{i∈k} w_i of each cluster; zeros for a cluster without members.

    K is `k`, or by default the largest label plus one.

    >>> points, labels = np.array([[0.0], [4.0], [9.0]]), np.array([0, 0, 1])
    >>> cluster_means(points, labels, np.array([3.0, 1.0, 1.0]), k=3).tolist()
    [[1.0], [9.0], [0.0]]
    """
    n = len(points)
    share = np.zeros((labels.max() + 1 if k is None else k, n))
    share[labels, np.arange(n)] = weight
    total = share.sum(axis=1, keepdims=True)
    means: F64 = np.divide(share, total, out=share, where=total > 0) @ points
    return means


def unit(rows: F64) -> F64:
    """The rows, divided by their lengths; rows of zeros stay zero.

    >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6, 0.8], [0.0, 0.0]]
    """
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(np.divide(rows, length, out=np.zeros_like(rows), where=length > 0))
