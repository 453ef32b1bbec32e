"""Clusterings by the clients' updates, which need no K: CFL's bipartition and FL+HC's hierarchy.

A client's update is g_i − G_k, with the center G_k that it was sent (`View.updates`). A client that
was not heard has no update, and keeps its cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np

from wecfl.bilevel.clustering.kmeans import joined, medoids
from wecfl.bilevel.distance import distances
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Clusters, Distance, View
from wecfl.core.types import F64, Bool, Int
from wecfl.errors import ConfigError
from wecfl.limits import check_positive

__all__ = ["Agglomerative", "Bipartition", "Linkage", "Metric"]

Linkage = Literal["ward", "complete", "average", "single"]
"""How the distance between two clusters follows from the distances between their clients."""
Metric = Literal["euclidean", "cosine", "method"]
"""The distance between two updates; "method": the method's own distance between two clients."""


@dataclass(frozen=True, slots=True)
class Bipartition:
    """CFL: a cluster is split in two if it stands still while its clients still move.

    With Δ_i the update of client i, cluster k is split if ‖Σ λ_i Δ_i / Σ λ_i‖ < `eps1` and
    max ‖Δ_i‖ > `eps2`. It is split so that the largest cosine between the two parts is as small as
    possible; these are the two parts that single linkage would merge last. The part with more λ
    keeps the number of the cluster, and the other part gets the next free number.

    If `relative`, `eps1` and `eps2` are multiples of the longest update so far, so that the same
    values suit other models and learning rates. Otherwise they are lengths, as in the paper.

    Its notes are `mean` and `largest`, the two norms of each cluster (NaN if none of its clients
    was heard), which help to choose `eps1` and `eps2`; and `unit`, the length that these multiply.

    >>> points = np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [-0.9, 0.1]])
    >>> view = View(points, np.zeros((1, 2)), np.ones(4), np.zeros(4, int))
    >>> found = Bipartition(eps1=0.2, eps2=0.5)(view, None, np.random.default_rng(0))
    >>> found.labels.tolist(), found.notes["mean"].round(2).tolist()
    ([0, 0, 1, 1], [0.04])
    """

    eps1: float = 0.4
    eps2: float = 1.0
    relative: bool = False

    def __post_init__(self) -> None:
        for name in ("eps1", "eps2"):
            if not 0 <= getattr(self, name) < inf:
                raise ConfigError(
                    f"{name} must be finite and not negative, got {getattr(self, name)}"
                )
        if self.relative and self.eps2 >= 1:
            raise ConfigError(
                f"with relative, eps2 is a share of the longest update and must be below 1, got "
                f"{self.eps2:g}: set it lower, for instance to 0.6"
            )

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The clusters, some of them split in two."""
        labels, k, all_updates = view.labels.copy(), len(view.centers), view.updates
        mean, largest = np.full((2, k), np.nan)
        unit, notes = self._unit(view)
        origins: list[int] = []
        for cluster in np.unique(labels):
            inside = np.flatnonzero((view.labels == cluster) & _heard(view))
            if len(inside) == 0:
                continue
            updates = all_updates[inside].astype(np.float64)
            weight = view.importance[inside]
            mean[cluster] = np.linalg.norm(np.average(updates, axis=0, weights=weight))
            largest[cluster] = np.linalg.norm(updates, axis=1).max()
            parted = mean[cluster] < self.eps1 * unit and largest[cluster] > self.eps2 * unit
            if parted and len(inside) > 1:
                second = _second(_part(_distances(updates, "cosine"), "single"), weight)
                labels[inside[second]] = k + len(origins)
                origins.append(cluster)
        centers = np.concatenate([view.centers, view.centers[origins]]) if origins else view.centers
        return Clusters(labels, centers, {"mean": mean, "largest": largest, **notes})

    def _unit(self, view: View) -> tuple[float, dict[str, F64]]:
        """The length that eps1 and eps2 multiply, and the note that keeps it."""
        if not self.relative:
            return 1.0, {}
        lengths = np.linalg.norm(view.updates[_heard(view)].astype(np.float64), axis=1)
        known = np.maximum(view.notes.get("unit", np.zeros(1)), lengths.max(initial=0.0))
        return float(known[0]), {"unit": known}


@dataclass(frozen=True, slots=True)
class Agglomerative:
    """FL+HC: all clients are one cluster until `round`, and are clustered once in that round.

    The clients' updates of that round are merged, the nearest first, as long as their distance is
    below `threshold`. `linkage` defines the distance between two clusters, and `metric` the
    distance between two updates: Euclidean, or 1 − cosine. The cluster with most λ keeps its
    number.

    With the metric "method", clients are compared by the method's distance d(g_i, g_j), whatever g
    is. Then `round` 0 is the opening, and G_k is the medoid: the client with the smallest sum of
    distances to the other clients of its cluster.

    >>> points = np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [-1.0, 0.1]])
    >>> view = View(points, np.zeros((1, 2)), np.ones(4), np.zeros(4, int), round=1)
    >>> Agglomerative(1, threshold=1.0)(view, None, np.random.default_rng(0)).labels.tolist()
    [0, 0, 1, 1]
    """

    round: int = 1
    threshold: float = 0.5
    linkage: Linkage = "average"
    metric: Metric = "cosine"

    def __post_init__(self) -> None:
        first = 0 if self.metric == "method" else 1
        if self.round < first:
            raise ConfigError(
                f"the round in which clients are clustered must be at least {first}, got "
                f"{self.round}"
            )
        check_positive(threshold=self.threshold)
        if self.linkage == "ward" and self.metric != "euclidean":
            raise ConfigError("linkage ward needs Euclidean distances: set metric to euclidean")

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """New clusters in the round of the clustering; otherwise the clusters as they are."""
        heard = np.flatnonzero(_heard(view))
        if view.round != self.round or len(heard) < 2:
            return Clusters(joined(view, distance), view.centers)
        if self.metric == "method":
            return self._by_distance(view, distance)
        updates = view.updates[heard].astype(np.float64)
        found = self._cut(_distances(updates, self.metric), view.importance[heard])
        labels, origin, k = view.labels.copy(), view.labels[heard[0]], len(view.centers)
        # Clients that were not heard stay with the first cluster.
        labels[heard] = np.where(found == 0, origin, k - 1 + found)
        centers = np.concatenate(
            [view.centers, np.repeat(view.centers[[origin]], found.max(), axis=0)]
        )
        return Clusters(labels, centers)

    def _by_distance(self, view: View, distance: Distance) -> Clusters:
        """The clusters by the method's distance; each center is a medoid."""
        far = distance(view.points, view.points)
        far = (far + far.T) / 2  # rounding may have made it asymmetric
        np.fill_diagonal(far, 0)
        labels = self._cut(_condensed(far), view.importance)
        middle = view.points[medoids(far, labels, view.importance)]
        return Clusters(labels, np.concatenate([middle, view.centers[len(middle) :]]))

    def _cut(self, distances: F64, weight: F64) -> Int:
        """(n,), the clusters below the threshold, numbered from the one with most λ."""
        from scipy.cluster.hierarchy import fcluster, linkage  # noqa: PLC0415  (slow to load)

        parts = fcluster(linkage(distances, self.linkage), self.threshold, "distance")
        _, first, found = np.unique(parts, return_index=True, return_inverse=True)
        order = np.lexsort((first, -np.bincount(found, weight)))
        return np.argsort(order)[found].astype(np.int64)


def _heard(view: View) -> Bool:
    return np.ones(len(view.labels), np.bool_) if view.heard is None else view.heard


def _distances(updates: F64, metric: Metric) -> F64:
    """All distances, condensed for SciPy. For unit vectors, 1 − cos(a, b) = ‖a − b‖² / 2."""
    with one_thread():
        if metric == "cosine":
            norms = np.linalg.norm(updates, axis=1, keepdims=True)
            units = np.divide(updates, norms, out=np.zeros_like(updates), where=norms > 0)
            far = distances(units) ** 2 / 2
        else:
            far = distances(updates)
    return _condensed(far)


def _condensed(far: F64) -> F64:
    """Distances (n, n) as the vector that SciPy expects."""
    from scipy.spatial.distance import squareform  # noqa: PLC0415  (slow to load)

    return np.asarray(squareform(far, checks=False))


def _part(distances: F64, method: Linkage) -> Int:
    """(n,), 0 or 1: the two clusters that the last step of the hierarchy merges."""
    from scipy.cluster.hierarchy import linkage  # noqa: PLC0415  (slow to load)

    tree = linkage(distances, method)
    n = len(tree) + 1
    below, todo = [], [int(tree[-1, 1])]
    while todo:
        node = todo.pop()
        if node < n:
            below.append(node)
        else:
            todo += [int(tree[node - n, 0]), int(tree[node - n, 1])]
    parts = np.zeros(n, np.int64)
    parts[below] = 1
    return parts


def _second(parts: Int, weight: F64) -> Bool:
    """Which clients are in the part with less λ; if equal, in the one without the first client."""
    less = np.bincount(parts, weight)
    return np.asarray(parts == (1 - parts[0] if less[0] == less[1] else less.argmin()))
