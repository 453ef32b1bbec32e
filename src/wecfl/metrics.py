"""Scores of clients and of clusterings."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from wecfl.base import F64, Int

__all__ = ["accuracy", "agreement", "macro_f1", "weighted"]


def accuracy(confusion: Int) -> F64:
    """(m,), the share of right predictions of each client, from (m, C, C) truth by prediction.

    >>> accuracy(np.array([[[3, 1], [0, 4]]])).tolist()
    [0.875]
    """
    hits = np.trace(confusion, axis1=1, axis2=2)
    return np.asarray(hits / confusion.sum(axis=(1, 2)), dtype=np.float64)


def macro_f1(confusion: Int) -> F64:
    """(m,), the mean F1 = 2·TP / (2·TP + FP + FN) over classes in truth or prediction.

    >>> macro_f1(np.array([[[1, 1, 0], [0, 2, 0], [0, 0, 0]]])).round(3).tolist()
    [0.733]
    """
    hits = np.diagonal(confusion, axis1=1, axis2=2)
    seen = confusion.sum(axis=1) + confusion.sum(axis=2)  # 2·TP + FP + FN
    f1 = 2 * hits / np.maximum(seen, 1)
    return np.asarray(f1.sum(axis=1) / (seen > 0).sum(axis=1), dtype=np.float64)


def weighted(scores: F64, sizes: Int) -> float:
    """The mean over clients with weight |D_i|, as in the paper's tables.

    >>> weighted(np.array([1.0, 0.0]), np.array([3, 1]))
    0.75
    """
    return float(np.average(scores, weights=sizes))


def agreement(labels: Int, groups: Int | None) -> dict[str, float | None]:
    """Adjusted Rand index and normalized mutual information with the generating groups.

    >>> agreement(np.array([0, 0, 1]), np.array([5, 5, 2]))
    {'ari': 1.0, 'nmi': 1.0}
    >>> agreement(np.array([0, 0, 1]), None)
    {'ari': None, 'nmi': None}
    """
    if groups is None:
        return {"ari": None, "nmi": None}
    return {
        "ari": float(adjusted_rand_score(groups, labels)),
        "nmi": float(normalized_mutual_info_score(groups, labels)),
    }
