"""Ward's hierarchy of clients that count differently, and the silhouettes of its clusters."""

from __future__ import annotations

import numpy as np

from wecfl.core.types import F64, Int

__all__ = ["MAX_JUDGED_CLIENTS", "silhouettes", "weighted_ward"]

MAX_JUDGED_CLIENTS = 2000
"""The largest number of clients that K is chosen from. If there are more, this many are drawn at
random, since the number of distances grows with m²."""


def weighted_ward(far: F64, weight: F64, levels: int) -> Int:
    """(levels, n), the node of each client when the clients are divided into 1, 2, … clusters.

    At each step, the two clusters are merged whose union adds least to Σ_i λ_i ‖g_i − G_k‖². Two
    clusters with the weights a and b, whose means have the distance d, add ab/(a + b)·d². With
    equal weights this is Ward's method. `far` (n, n) are the distances between the clients. A
    cluster that is not divided from one level to the next keeps its node.

    >>> points, weight = np.array([0.0, 1.0, 5.0, 9.0]), np.array([1.0, 1.0, 9.0, 9.0])
    >>> nodes = weighted_ward(np.abs(points[:, None] - points), weight, 3)
    >>> [np.unique(level, return_inverse=True)[1].tolist() for level in nodes]
    [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 0, 1]]
    """
    n = len(far)
    merged = _merges(far, weight)
    nodes = np.full((levels, n), 2 * n - 2, np.int64)
    leaves = {i: np.array([i]) for i in range(n)}
    for step, (a, b) in enumerate(merged):
        leaves[n + step] = np.concatenate([leaves[a], leaves[b]])
    for level in range(1, levels):
        nodes[level] = nodes[level - 1]
        for child in merged[n - 1 - level]:  # the merges that come last are undone first
            nodes[level, leaves[child]] = child
    return nodes


def _merges(far: F64, weight: F64) -> list[tuple[int, int]]:
    """The pairs of nodes that are merged, in order; merge number s makes the node n + s."""
    n, held = len(far), weight.astype(np.float64)
    everyone, node = np.arange(n), np.arange(n)
    cost = far**2 * (held[:, None] * held / (held[:, None] + held))
    np.fill_diagonal(cost, np.inf)
    near = cost.argmin(axis=1)
    least = cost[everyone, near]
    merged = []
    for step in range(n - 1):
        i = int(least.argmin())
        j, height = int(near[i]), least[i]
        merged.append((int(min(node[i], node[j])), int(max(node[i], node[j]))))
        # The formula of Lance and Williams. Clusters that are merged away have infinite costs.
        both = held[i] + held[j]
        new = ((held[i] + held) * cost[i] + (held[j] + held) * cost[j] - held * height) / (
            both + held
        )
        new[[i, j]] = np.inf
        cost[i], cost[:, i] = new, new
        cost[j], cost[:, j] = np.inf, np.inf
        held[i], node[i], least[j] = both, n + step, np.inf
        stale = np.flatnonzero(np.isfinite(least) & ((near == i) | (near == j)))
        stale = np.union1d(stale, [i])
        near[stale] = cost[stale].argmin(axis=1)
        least[stale] = cost[stale, near[stale]]
        closer = new < least
        near[closer], least[closer] = i, new[closer]
    return merged


def silhouettes(sums: F64, labels: Int, weight: F64) -> F64:
    """(n,), (b − a) / max(a, b) of each client; 0 for a client that is alone in its cluster.

    a is the λ-mean distance to the other clients of the same cluster, and b the λ-mean distance to
    the nearest other cluster. `sums` (n, K) are the λ-sums of the distances to each cluster, K > 1.

    >>> far, labels = np.abs(np.subtract.outer([0, 1, 9], [0, 1, 9])), np.array([0, 0, 1])
    >>> silhouettes(far @ np.eye(2)[labels], labels, np.ones(3)).round(2).tolist()
    [0.89, 0.88, 0.0]
    """
    inside, every = sums[np.arange(len(labels)), labels], np.arange(len(labels))
    total = np.bincount(labels, weight)
    rest = total[labels] - weight
    alone = np.bincount(labels)[labels] == 1
    a = np.divide(inside, rest, out=np.zeros_like(inside), where=~alone)
    to_others = sums / total
    to_others[every, labels] = np.inf
    b = to_others.min(axis=1)
    larger = np.maximum(a, b)
    silhouette: F64 = np.divide(b - a, larger, out=np.zeros_like(b), where=~alone & (larger > 0))
    return silhouette
