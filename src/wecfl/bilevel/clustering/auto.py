"""`Auto`: the server chooses K, the number of clusters, from the models that it has anyway.

Ward's hierarchy is made once from the distances between clients. It divides the clients into
K = 1, 2, … clusters, and each K gets two scores. The λ-weighted silhouette says how much nearer
clients are to their own cluster than to the next one. The λ-weighted BIC assumes round clusters of
equal width, and is given in nats per client. The silhouette tends to merge groups that lie close
together; BIC tends to divide clusters that are not round. What was measured about both, and why
they decide together by default, is in `docs/methods/auto-k.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from wecfl.bilevel.clustering.kmeans import DistinctClients, KMeans, isometric
from wecfl.bilevel.clustering.ward import MAX_JUDGED_CLIENTS, silhouettes
from wecfl.bilevel.distance import check_squared_euclidean, distances
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Clusters, Distance, View
from wecfl.core.types import F64, Int
from wecfl.errors import ConfigError

__all__ = ["MIN_SILHOUETTE", "Auto", "Criterion", "Curve"]

Criterion = Literal["both", "silhouette", "bic"]
"""The score by which K is chosen."""

MIN_SILHOUETTE = 0.5
"""The silhouette from which on there is "a reasonable structure" (Kaufman & Rousseeuw, 1990)."""
SCORE_TOLERANCE = 0.02
"""Scores that differ by less count as equal, both silhouettes and nats per client."""
MAX_CLUSTERS = 50
"""The largest K that is tried."""


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """The scores of K = 1, 2, …, and the clusters for each K.

    >>> points = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2], [9.3]])
    >>> curve = Curve.of(points, np.ones(7))
    >>> curve.silhouette.round(2).tolist(), curve.best("both"), curve.labels[1].tolist()
    ([nan, 0.98, 0.69], 2, [0, 0, 0, 1, 1, 1, 1])
    >>> Curve.of(np.eye(8), np.ones(8)).best("both")                            # no clear groups
    1
    """

    silhouette: F64
    """(levels,), the silhouette for each K; NaN for K = 1."""
    bic: F64
    """(levels,), the BIC for each K."""
    labels: Int
    """(levels, n), the cluster of each client for each K."""

    @classmethod
    def of(cls, points: F64, importance: F64, max_clusters: int = MAX_CLUSTERS) -> Self:
        """The scores for K up to `max_clusters`, and at most half the number of clients."""
        from scipy.cluster.hierarchy import cut_tree, ward  # noqa: PLC0415  (slow to load)
        from scipy.spatial.distance import squareform  # noqa: PLC0415

        n, weight = len(points), importance / importance.mean()
        far = distances(points)
        levels = np.arange(1, max(min(max_clusters, n // 2), 1) + 1)
        cuts = np.zeros((1, n), np.int64)
        if n > 1:
            cuts = cut_tree(ward(squareform(far, checks=False)), levels).T.astype(np.int64)
        # Clusters are nested: sums over the finest clusters give the sums over all others.
        finest = _members(cuts[-1]) * weight[:, None]
        to_each, between = far @ finest, finest.T @ far**2 @ finest
        dimension = _dimension(far, weight)
        silhouette, bic = np.full((2, len(levels)), np.nan)
        for i, labels in enumerate(cuts):
            into = np.zeros((finest.shape[1], labels.max() + 1))
            into[cuts[-1], labels] = 1
            total = np.bincount(labels, weight).astype(np.float64)
            within = np.diag(into.T @ between @ into) / (2 * total)
            bic[i] = _bic(within.sum(), total, dimension)
            if i:
                each = silhouettes(to_each @ into, labels, weight)
                silhouette[i] = np.average(each, weights=weight)
        return cls(silhouette, bic, cuts)

    def best(self, criterion: Criterion, now: int = 1) -> int:
        """The best K by the criterion, or 1 if the clients are not clearly grouped.

        With `both`, BIC decides among silhouettes that lie within `SCORE_TOLERANCE` of the best.
        `now` is the current K: it changes only if another K is better by more than
        `SCORE_TOLERANCE`.
        """
        if len(self.bic) == 1:
            return 1
        score = self.bic if criterion == "bic" else np.nan_to_num(self.silhouette, nan=-1.0)
        good = np.flatnonzero(
            score >= score.max() - (SCORE_TOLERANCE if criterion == "both" else 0)
        )
        best = int(good[self.bic[good].argmax()]) + 1
        stays = 1 < now <= len(score) and score[now - 1] >= score[best - 1] - SCORE_TOLERANCE
        best, clear = (now, MIN_SILHOUETTE - SCORE_TOLERANCE) if stays else (best, MIN_SILHOUETTE)
        return best if self.silhouette[best - 1] >= clear else 1


@dataclass(frozen=True, slots=True)
class Auto:
    """K-means with a K that is chosen by how clearly the clients are grouped.

    All clients start in one cluster. K is chosen in each round (`Curve.best`) until the same K > 1
    has been chosen in `patience` rounds in a row, without a new client among them. Then K has
    settled, and stays. Clients that are not clearly grouped stay in one cluster, and K is chosen
    again in the next round. Clusters keep their numbers when K changes.

    Its notes are `k`; `rounds`, the number of rounds in a row that chose it; `clients`, the number
    of clients that it was chosen for; `settled` (0 or 1); and, in a round that chose K, the curves
    `silhouette` and `bic`.

    >>> points = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2], [9.3]])
    >>> view = View(points, np.array([[0.0]]), np.ones(7), np.zeros(7, int))
    >>> from wecfl.bilevel.distance import squared_euclidean
    >>> found = Auto()(view, squared_euclidean, np.random.default_rng(0))
    >>> found.labels.tolist(), len(found.centers), found.notes["k"].tolist()
    ([0, 0, 0, 1, 1, 1, 1], 2, [2.0])
    """

    clustering: KMeans = field(default_factory=KMeans)
    criterion: Criterion = "both"
    most: int = MAX_CLUSTERS
    """The largest K that is tried."""
    patience: int = 3

    def __post_init__(self) -> None:
        if self.most < 2 or self.patience < 1:
            raise ConfigError(
                f"Auto needs most ≥ 2 and patience ≥ 1, got {self.most} and {self.patience}"
            )

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Clusters, which continue the previous ones under their numbers."""
        check_squared_euclidean(distance, "choosing K")
        inhabited = np.unique(view.labels)
        clients, start = DistinctClients.of(view), view.centers[inhabited]
        with one_thread():
            near, old = isometric(clients.points, start)
            now, notes = len(inhabited), dict(view.notes)
            if notes and notes["settled"][0]:
                notes = {name: notes[name] for name in ("k", "rounds", "clients", "settled")}
            else:
                curve, drawn = self._curve(near, clients.weight, rng)
                k = curve.best(self.criterion, now)
                chosen = [("k", k), ("clients", len(view.points))]
                same = all(view.notes.get(name, [0])[0] == value for name, value in chosen)
                rounds = 1 + (notes["rounds"][0] if same else 0)
                notes = {
                    "k": np.array([float(k)]),
                    "rounds": np.array([float(rounds)]),
                    "clients": np.array([float(len(view.points))]),
                    "settled": np.array([float(k > 1 and rounds >= self.patience)]),
                    "silhouette": curve.silhouette,
                    "bic": curve.bic,
                }
                if k != now:
                    old = cluster_means(near[drawn], curve.labels[k - 1], clients.weight[drawn])
            labels = self.clustering.lloyd(near, old, clients.weight, rng)
            found = clients.clusters(labels, inhabited)
        return Clusters(found.labels, found.centers, notes)

    def _curve(self, points: F64, weight: F64, rng: np.random.Generator) -> tuple[Curve, Int]:
        """The curve, and the clients that it is made from."""
        drawn = np.arange(len(points))
        if len(points) > MAX_JUDGED_CLIENTS:
            drawn = np.sort(rng.choice(len(points), MAX_JUDGED_CLIENTS, replace=False))
        return Curve.of(points[drawn], weight[drawn], self.most), drawn


def _members(labels: Int) -> F64:
    """(n, k), r_ik: 1 if client i is in cluster k, else 0."""
    return np.asarray(labels[:, None] == np.arange(labels.max() + 1), np.float64)


def _dimension(far: F64, weight: F64) -> float:
    """The effective number of dimensions, (Σ v)² / Σ v² over the variances v of principal axes."""
    share = weight / weight.sum()
    squared = far**2
    mean = squared @ share
    gram = (mean[:, None] + mean - squared - share @ mean) / 2
    gram *= np.sqrt(share[:, None] * share)
    squares = (gram**2).sum()
    return float(np.trace(gram) ** 2 / squares) if squares > 0 else 1.0


def _bic(within: float, total: F64, dimension: float) -> float:
    """The log-likelihood minus the cost of the parameters, per client (Pelleg & Moore's X-means).

    Clusters are round and equally wide: with d = `dimension`, the variance is W / (d(n − k)). A
    client counts λ_i times.
    """
    n, k = total.sum(), len(total)
    free = max(n - k, 1.0)
    variance = max(within / (dimension * free), np.finfo(np.float64).tiny)
    likelihood = (
        (total * np.log(total / n)).sum()
        - n * dimension / 2 * np.log(2 * np.pi * variance)
        - dimension * free / 2
    )
    cost = (k - 1 + k * dimension + 1) / 2 * np.log(n)
    return float((likelihood - cost) / n)
