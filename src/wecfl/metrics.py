"""Metrics: scores of clients and of clusterings."""

from __future__ import annotations

from functools import lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score

from wecfl.core.types import F64, Int, Real

__all__ = [
    "accuracy",
    "agreement",
    "balanced_accuracy",
    "churn",
    "cosine",
    "isolation",
    "macro_f1",
    "silhouette",
    "weighted",
    "worst_decile",
]


def accuracy(confusion: Int) -> F64:
    """(m,), the share of right predictions of each client, from counts (m, C, C).

    The counts are by true and predicted class. A client without counts has NaN.

    >>> accuracy(np.array([[[3, 1], [0, 4]]])).tolist()
    [0.875]
    """
    hits, seen = np.trace(confusion, axis1=1, axis2=2), confusion.sum(axis=(1, 2))
    return _share(hits, seen)


def balanced_accuracy(confusion: Int) -> F64:
    """(m,), the mean recall over the classes that a client has.

    >>> balanced_accuracy(np.array([[[8, 0], [1, 1]]])).tolist()
    [0.75]
    """
    hits, seen = np.diagonal(confusion, axis1=1, axis2=2), confusion.sum(axis=2)
    recall = hits / np.maximum(seen, 1)
    return _share(recall.sum(axis=1), (seen > 0).sum(axis=1))


def macro_f1(confusion: Int) -> F64:
    """(m,), the mean F1 = 2·TP / (2·TP + FP + FN) over the classes that occur or are predicted.

    >>> macro_f1(np.array([[[1, 1, 0], [0, 2, 0], [0, 0, 0]]])).round(3).tolist()
    [0.733]
    """
    hits = np.diagonal(confusion, axis1=1, axis2=2)
    seen = confusion.sum(axis=1) + confusion.sum(axis=2)  # 2·TP + FP + FN
    f1 = 2 * hits / np.maximum(seen, 1)
    return _share(f1.sum(axis=1), (seen > 0).sum(axis=1))


def weighted(scores: F64, sizes: Int) -> float | None:
    """The mean score over clients, weighted by |D_i|, as in the paper's tables.

    Clients with an unknown score (NaN) are left out. If all are unknown, the result is None.

    >>> weighted(np.array([1.0, 0.0, np.nan]), np.array([3, 1, 5]))
    0.75
    >>> weighted(np.array([np.nan]), np.array([3]))
    """
    known = ~np.isnan(scores)
    return float(np.average(scores[known], weights=sizes[known])) if sizes[known].any() else None


def worst_decile(scores: F64, *, lower: bool = False) -> float | None:
    """The mean score of the worst tenth of the clients.

    Of the n clients with a known score, these are the ⌈n/10⌉ with the lowest scores, or with the
    highest if `lower` scores are better. All clients have the same weight. None if no score is
    known.

    >>> worst_decile(np.arange(20.0)), worst_decile(np.arange(20.0), lower=True)
    (0.5, 18.5)
    >>> worst_decile(np.array([np.nan]))
    """
    known = np.sort(scores[~np.isnan(scores)])
    if not len(known):
        return None
    worst = known[::-1] if lower else known
    return float(worst[: ceil(len(known) / 10)].mean())


def agreement(labels: Int, groups: Int | None) -> dict[str, float | None]:
    """Adjusted Rand index and normalized mutual information with the generating groups.

    >>> agreement(np.array([0, 0, 1]), np.array([5, 5, 2]))
    {'ari': 1.0, 'nmi': 1.0}
    >>> agreement(np.array([0, 0, 1]), None)
    {'ari': None, 'nmi': None}
    """
    if groups is None:
        return {"ari": None, "nmi": None}
    ari, nmi = _agreement(tuple(labels.tolist()), tuple(groups.tolist()))
    return {"ari": ari, "nmi": nmi}


@lru_cache(maxsize=8)  # in most rounds no client changes its cluster, and this takes a millisecond
def _agreement(labels: tuple[int, ...], groups: tuple[int, ...]) -> tuple[float, float]:
    return (
        float(adjusted_rand_score(groups, labels)),
        float(normalized_mutual_info_score(groups, labels)),
    )


def churn(labels: Int, before: Int) -> float:
    """The share of clients that changed their cluster.

    Labels are matched so that this share is smallest: clusters that only swap their numbers count
    as unchanged.

    >>> churn(np.array([1, 1, 0, 0]), np.array([0, 0, 1, 0]))
    0.25
    """
    together = np.zeros((max(labels.max(), before.max()) + 1,) * 2, dtype=np.int64)
    np.add.at(together, (labels, before), 1)
    stayed = together[linear_sum_assignment(together, maximize=True)].sum()
    return float(1 - stayed / len(labels))


def isolation(labels: Int, attackers: NDArray[np.bool_]) -> dict[str, float | None]:
    """How well the clustering separates attackers from honest clients.

    `isolated` is the share of attackers that are in clusters without an honest client, and
    `exposed` is the share of honest clients that are in clusters with an attacker. Each is None if
    there are no such clients.

    >>> isolation(np.array([0, 0, 0, 1, 2]), np.array([True, False, False, True, False]))
    {'isolated': 0.5, 'exposed': 0.6666666666666666}
    """
    isolated = ~np.isin(labels, labels[~attackers])[attackers]
    exposed = np.isin(labels, labels[attackers])[~attackers]
    return {
        "isolated": float(isolated.mean()) if len(isolated) else None,
        "exposed": float(exposed.mean()) if len(exposed) else None,
    }


def cosine(points: Real, centers: Real, labels: Int) -> dict[str, float | None]:
    """Mean cosine similarities. Each is None if there is no pair.

    `intra` is the mean over pairs of clients in the same cluster, `inter` the mean over pairs of
    centers of clusters that have clients.

    >>> points, centers = np.array([[1, 0], [2, 0], [0, 3]]), np.array([[1, 0], [0, 1], [9, 9]])
    >>> cosine(points, centers, labels=np.array([0, 0, 1]))
    {'intra': 1.0, 'inter': 0.0}
    """
    inhabited, sizes = np.unique(labels, return_counts=True)
    clusters = [_pair_sum(points[labels == k]) for k in inhabited]
    sums = {"intra": sum(clusters), "inter": _pair_sum(centers[inhabited])}
    pairs = {"intra": (sizes * (sizes - 1)).sum(), "inter": len(inhabited) * (len(inhabited) - 1)}
    return {name: float(sums[name] / n) if n else None for name, n in pairs.items()}


def silhouette(points: Real, labels: Int) -> float | None:
    """How much nearer clients are to their own cluster than to the next one, from −1 to 1.

    It is the mean over clients, and None with one cluster or with as many clusters as clients.

    >>> silhouette(np.array([[0.0], [0.1], [9.0]]), np.array([0, 0, 1])) > 0.6
    True
    >>> silhouette(np.zeros((3, 1)), np.zeros(3, int))
    """
    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    return float(silhouette_score(np.asarray(points, dtype=np.float64), labels))


def _share(part: Real | Int, whole: Int) -> F64:
    """Part / whole; NaN where the whole is 0."""
    share: F64 = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return share


def _pair_sum(points: Real) -> float:
    """Σ_{i≠j} cos(i, j) = ‖Σ_i u_i‖² − Σ_i ‖u_i‖², with the directions u_i (0 for a zero row)."""
    # In double precision, since clients of a cluster differ in the sixth digit; but without a copy.
    squared = np.einsum("ip,ip->i", points, points, dtype=np.float64)
    scale = np.divide(1, np.sqrt(squared), out=np.zeros_like(squared), where=squared > 0)
    total = np.einsum("i,ip->p", scale, points, dtype=np.float64)
    return float(total @ total - np.count_nonzero(squared))
