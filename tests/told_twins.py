"""Naive twins of methods that cluster clients by what these tell about their data.

Plain loops, as in `cluster_twins.py`. Principal angles are SciPy's, and a hierarchy compares every
pair of clients again for every pair of clusters.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from scipy.linalg import subspace_angles

from cluster_twins import Clustered, all_models, averaged
from twins import Buffers, Inputs

Place = Callable[[int], int]
"""The cluster of a client that comes later."""


def by_clusters(inputs: Inputs, labels: dict[int, int], place: Place) -> Clustered:
    """FedAvg in each cluster, from the same start; clients that come later are placed first."""
    labels, buffers = dict(labels), Buffers(inputs)
    centers = [deepcopy(inputs.module) for _ in range(max(labels.values()) + 1)]
    for t in range(inputs.rounds):
        for i in inputs.here(t):
            if i not in labels:
                labels[i] = place(i)
        everyone = [labels.get(i, 0) for i in range(len(inputs.clients))]
        averaged(inputs, centers, all_models(inputs, centers, t, everyone, buffers), everyone)
    return Clustered(centers, [labels.get(i, 0) for i in range(len(inputs.clients))])


def merged(clients: list[int], apart: Callable[[int, int], float], limit: float) -> list[list[int]]:
    """Clusters are merged, the nearest first; their distance is the mean over all pairs."""
    clusters = [[i] for i in clients]
    while len(clusters) > 1:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a)]
        far = {
            (a, b): np.mean([apart(i, j) for i in clusters[a] for j in clusters[b]])
            for a, b in pairs
        }
        a, b = min(pairs, key=lambda pair: far[pair])
        if far[a, b] > limit:
            break
        clusters[b] += clusters.pop(a)
    return clusters


def middle(cluster: list[int], apart: Callable[[int, int], float], weight: Any) -> int:
    """The medoid."""
    return min(cluster, key=lambda i: sum(weight(j) * apart(i, j) for j in cluster))


def pacfl(inputs: Inputs, *, vectors: int, limit: float, total: bool = False) -> Clustered:
    """Vahidian et al. 2023, with true principal angles and average linkage by size."""
    spans = []
    for x, y in inputs.clients:
        parts = []
        for c in sorted(set(y.tolist())):
            columns = x[y == c].reshape(int((y == c).sum()), -1).T.numpy()
            parts.append(np.linalg.svd(columns)[0][:, : min(vectors, columns.shape[1])])
        spans.append(np.hstack(parts))

    def apart(i: int, j: int) -> float:
        found = np.degrees(subspace_angles(spans[i], spans[j]))
        return float(found.sum() if total else found.min())

    def weight(i: int) -> int:
        return len(inputs.clients[i][1])

    clusters = merged(inputs.here(0), apart, limit)
    labels = {i: k for k, cluster in enumerate(clusters) for i in cluster}
    middles = [middle(cluster, apart, weight) for cluster in clusters]
    return by_clusters(inputs, labels, lambda i: int(np.argmin([apart(i, mid) for mid in middles])))
