"""K-means, the nearest center, and clusterings that wrap another: done once, or of a least size."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from wecfl.bilevel.distance import check_squared_euclidean, squared_euclidean
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.assignment import nearest_inhabited
from wecfl.core.components import Clustering, Clusters, Distance, View
from wecfl.core.types import F64, Int, Real
from wecfl.errors import ConfigError

__all__ = [
    "AtLeast",
    "DistinctClients",
    "Held",
    "KMeans",
    "Nearest",
    "Once",
    "isometric",
    "joined",
    "medoids",
]

MAX_UNSAMPLED_CLIENTS = 10_000
"""With more distinct clients than this, the fresh starts of K-means use a sample of them."""
SAMPLE_SIZE = 2000
"""The number of clients in this sample; more if that is fewer than ten for each cluster."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """One reassignment, r_i = argmin_k d(g_i, G_k); centers stay (Lemma 1; ties go to the least k).

    >>> points, centers = np.array([[0.0], [5.0]]), np.array([[1.0], [4.0]])
    >>> view = View(points, centers, np.ones(2), labels=np.array([0, 0]))
    >>> Nearest()(view, squared_euclidean, np.random.default_rng(0)).labels.tolist()
    [0, 1]
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Labels by the nearest center. λ_i scales all distances of a client, so it is not used."""
        return Clusters(distance(view.points, view.centers).argmin(axis=1), view.centers)


@dataclass(frozen=True, slots=True)
class Held:
    """A clustering in which all clients stay where they are.

    >>> view = View(np.zeros((2, 1)), np.ones((2, 1)), np.ones(2), labels=np.array([1, 0]))
    >>> Held()(view, squared_euclidean, np.random.default_rng(0)).labels.tolist()
    [1, 0]
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The labels and the centers as they were."""
        return Clusters(view.labels, view.centers)


@dataclass(frozen=True, slots=True)
class KMeans:
    """Weighted K-means: argmin over r and G of Σ_i λ_i ‖g_i − G_{r_i}‖².

    It takes the better of a warm start (Lloyd's iterations from the previous centers, which never
    raise F) and `fresh` k-means++ starts (which escape bad local optima). So F never rises in the
    E-step (Lemma 1), whatever is drawn. New clusters are matched to the previous centers by linear
    sum assignment, so that a label means the same cluster in every round.

    Above 10,000 distinct clients, fresh starts are made on 2,000 of them, drawn at random, and the
    best one goes on with all.

    Special cases: clients with equal g_i always share a cluster. If there are at most K distinct
    clients, each of them is a cluster of its own, and the clusters that are left over stay empty
    and keep their center. `warm=False` with `fresh=10` is the choice of the paper's authors: new
    starts in every round.

    >>> view = View(points=np.array([[0.0], [0.1], [9.0], [9.1]]), centers=np.array([[8.0], [1.0]]),
    ...             importance=np.array([1.0, 3, 1, 1]), labels=np.zeros(4, int))
    >>> found = KMeans()(view, squared_euclidean, np.random.default_rng(0))
    >>> found.labels.tolist(), found.centers.round(3).tolist()
    ([1, 1, 0, 0], [[9.05], [0.075]])
    """

    fresh: int = 10
    warm: bool = True

    def __post_init__(self) -> None:
        if self.fresh < 0 or (self.fresh == 0 and not self.warm):
            raise ConfigError(
                f"KMeans needs fresh ≥ 1 or warm=True, got fresh={self.fresh}, warm={self.warm}"
            )

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Clusters, which continue the previous ones and keep their numbers."""
        check_squared_euclidean(distance, "KMeans")
        clients = DistinctClients.of(view)
        with one_thread():
            near, old = isometric(clients.points, view.centers)
            return clients.clusters(self.lloyd(near, old, clients.weight, rng))

    def lloyd(self, points: F64, centers: F64, weight: F64, rng: np.random.Generator) -> Int:
        """Labels of the best start, numbered from 0 without gaps."""
        from sklearn.cluster import KMeans as Lloyd  # noqa: PLC0415  (slow to load)
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415

        if len(points) <= len(centers):
            return np.arange(len(points))
        fits = []
        # Nearly equal clients may fill fewer than K clusters, which is allowed here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if self.warm:
                warm = Lloyd(len(centers), init=centers, n_init=1)
                fits.append(warm.fit(points, sample_weight=weight))
            if self.fresh:
                fits.append(self._fresh_fit(points, len(centers), weight, rng))
        best = min(fits, key=lambda fit: fit.inertia_)  # ties: the warm start
        return np.unique(best.labels_, return_inverse=True)[1]

    def _fresh_fit(self, points: F64, k: int, weight: F64, rng: np.random.Generator) -> Any:
        """The best of the fresh starts; if clients are very many, a sample of them chooses it."""
        from sklearn.cluster import KMeans as Lloyd  # noqa: PLC0415  (slow to load)

        seed, some, counted = int(rng.integers(2**31)), points, weight
        if len(points) > MAX_UNSAMPLED_CLIENTS:
            size = min(max(SAMPLE_SIZE, 10 * k), len(points))
            drawn = rng.choice(len(points), size, replace=False)
            some, counted = points[drawn], weight[drawn]
        best = Lloyd(
            k,
            init=lambda moved, k, random_state: moved[
                spread_seeds(moved, k, counted, random_state)
            ],
            n_init=self.fresh,
            random_state=seed,
        ).fit(some, sample_weight=counted)
        if some is points:
            return best
        return Lloyd(k, init=best.cluster_centers_, n_init=1).fit(points, sample_weight=weight)


@dataclass(frozen=True, slots=True, eq=False)
class DistinctClients:
    """The distinct clients of a view, in sorted order.

    So rounding can't separate equal clients, and the result does not depend on the order of the
    clients.

    >>> view = View(np.array([[5.0], [1.0], [5.0]]), np.zeros((1, 1)), np.ones(3), np.zeros(3, int))
    >>> clients = DistinctClients.of(view)
    >>> clients.points.tolist(), clients.weight.tolist()
    ([[1.0], [5.0]], [1.0, 2.0])
    >>> clients.clusters(np.array([0, 1])).labels.tolist()          # client 1 is nearer to 0
    [1, 0, 1]
    """

    view: View
    points: Real
    """(u, p), g of each distinct client."""
    weight: F64
    """(u,), the sum of λ over all clients that are equal to it."""
    which: Int
    """(n,), for each client of the view, the number of the distinct client that it equals."""

    @classmethod
    def of(cls, view: View) -> Self:
        """The distinct clients of this view."""
        points, which = _distinct(view.points)
        weight = np.bincount(which, weights=view.importance).astype(np.float64)
        return cls(view, points, weight, which)

    def clusters(self, found: Int, inside: Int | None = None) -> Clusters:
        """The clusters `found` (u,), renumbered so that they continue the clusters of the view.

        They continue the clusters with the numbers `inside`, or by default all clusters of the
        view. Clusters that are left over are new, and get the next numbers.
        """
        found = _by_first_client(found, self.which)
        means, before = cluster_means(self.points, found, self.weight), self.view.centers
        numbers = np.arange(len(before)) if inside is None else inside
        new = len(before) + np.arange(max(len(means) - len(numbers), 0))
        labels = np.concatenate([numbers, new])[_matched(means, before[numbers])]
        centers = np.resize(before, (max(len(before), labels.max() + 1), before.shape[1]))
        centers[labels] = means
        return Clusters(labels[found][self.which].astype(np.int64), centers)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A clustering without small clusters: the center of a single client would reveal its model.

    While some cluster has fewer than `min_cluster` clients, the smallest cluster is dissolved (of
    equally small ones the last), and each of its clients goes to the nearest remaining center.

    >>> view = View(np.array([[0.0], [1.0], [9.0]]), np.array([[0.0], [9.0]]), np.ones(3),
    ...             np.zeros(3, int))
    >>> AtLeast(Nearest(), 2)(view, squared_euclidean, np.random.default_rng(0)).labels.tolist()
    [0, 0, 0]
    """

    clustering: Clustering
    min_cluster: int

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The clusters found, without small ones: these keep their center, or are not begun."""
        found = self.clustering(view, distance, rng)
        if self.min_cluster == 1:
            return found
        labels, k = found.labels.copy(), len(found.centers)
        far = distance(view.points, found.centers)
        while True:
            sizes = np.bincount(labels, minlength=k)
            small = np.flatnonzero((sizes > 0) & (sizes < self.min_cluster))
            if len(small) == 0 or np.count_nonzero(sizes) == 1:
                break
            last = small[::-1][sizes[small[::-1]].argmin()]
            others = np.where((sizes > 0) & (np.arange(k) != last), far, np.inf)
            members = labels == last
            labels[members] = others[members].argmin(axis=1)
        kept = max(len(view.centers), labels.max() + 1)
        return replace(found, labels=labels, centers=found.centers[:kept])


@dataclass(frozen=True, slots=True)
class Once:
    """A clustering that is done once; from then on, clients keep their clusters.

    Clients that are first heard later join the nearest cluster. The note `clustered` is the round
    in which the clustering was done.

    >>> view = View(np.array([[0.0], [9.0]]), np.zeros((2, 1)), np.ones(2), np.zeros(2, int))
    >>> found = Once(KMeans())(view, squared_euclidean, np.random.default_rng(0))
    >>> found.labels.tolist(), found.notes["clustered"].tolist()
    ([0, 1], [0.0])
    """

    clustering: Clustering

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The clusters found the first time; from then on, the clusters as they are."""
        if "clustered" in view.notes:
            return Clusters(joined(view, distance), view.centers, view.notes)
        found = self.clustering(view, distance, rng)
        when = {"clustered": np.array([float(view.round)])}
        return Clusters(found.labels, found.centers, {**found.notes, **when})


def joined(view: View, distance: Distance) -> Int:
    """(n,), the labels of the view, where a client without a cluster joins the nearest one.

    >>> points, centers = np.array([[0.0], [9.0]]), np.array([[1.0], [8.0]])
    >>> view = View(points, centers, np.ones(2), labels=np.array([0, -1]))
    >>> joined(view, squared_euclidean)                     # the second cluster has no client
    array([0, 0])
    """
    new, labels = view.labels < 0, view.labels.copy()
    if new.any() and not new.all():
        points, met = view.points[new], labels[~new]
        labels[new] = nearest_inhabited(points, view.centers, met, distance)
    return np.maximum(labels, 0)


def medoids(far: F64, labels: Int, weight: F64) -> Int:
    """(K,), the client of each cluster with the smallest λ-weighted sum of distances to the others.

    >>> far = np.array([[0.0, 1, 3], [1, 0, 2], [3, 2, 0]])
    >>> medoids(far, np.zeros(3, int), np.ones(3))
    array([1])
    """
    found = []
    for k in range(labels.max() + 1):
        inside = np.flatnonzero(labels == k)
        sums = weight[inside] @ far[np.ix_(inside, inside)]
        found.append(inside[sums.argmin()])
    return np.array(found, np.int64)


def isometric(points: Real, centers: Real) -> tuple[F64, F64]:
    """The points and centers in as few dimensions as possible, with the same distances.

    n points span at most n dimensions, so K-means on clients with p ≫ m columns is exact in the
    space of their Gram matrix. If n > p / 4, finding that space costs more than it saves, and the
    points stay as they are.

    >>> points, centers = np.eye(3, 1000), np.zeros((1, 1000))
    >>> a, b = isometric(points, centers)
    >>> a.shape, squared_euclidean(a, b).round(9).tolist()
    ((3, 4), [[1.0], [1.0], [1.0]])
    """
    both = np.concatenate([points, centers], dtype=np.float64)
    if both.shape[1] >= 4 * len(both):
        both -= both.mean(axis=0)
        values, vectors = np.linalg.eigh(both @ both.T)
        both = vectors * np.sqrt(np.maximum(values, 0))
    return both[: len(points)], both[len(points) :]


def _distinct(points: Real) -> tuple[Real, Int]:
    """The distinct rows in sorted order, and for each row the number of its distinct row."""
    for width in (8, 256):  # comparing whole rows is slow, and the first few columns usually differ
        few = points[:, :width]
        order = np.lexsort(few.T[::-1])
        if not (few[order[1:]] == few[order[:-1]]).all(axis=1).any():
            return points[order], np.argsort(order)
    _, first, inverse = np.unique(points, axis=0, return_index=True, return_inverse=True)
    return points[first], inverse.reshape(-1).astype(np.int64)


def spread_seeds(points: F64, k: int, weight: F64, draws: np.random.RandomState) -> Int:
    """The positions of k points to start from, far from each other: greedy weighted k-means++.

    It chooses the same points as scikit-learn's `kmeans_plusplus` for the same draws. Without its
    checks at every distance it is twice as fast for 200 clients (`benchmarks/kmeans_start.py`).
    """
    norms, trials = (points**2).sum(axis=1), 2 + int(np.log(k))

    def distances(which: Int) -> F64:
        # One matrix product is enough, unlike in `squared_euclidean`: a start needs few digits.
        apart = norms + norms[which, None] - 2 * points[which] @ points.T
        return np.asarray(np.maximum(apart, 0))

    chosen = [draws.choice(len(points), size=1, p=weight / weight.sum())]
    near = distances(chosen[0])
    for _ in range(k - 1):
        wanted = draws.uniform(size=trials) * (near @ weight)
        candidates = np.searchsorted(np.cumsum(weight * near[0]), wanted).clip(max=len(points) - 1)
        nearer = np.minimum(near, distances(candidates))
        best = [(nearer @ weight).argmin()]
        chosen.append(candidates[best])
        near = nearer[best]
    return np.concatenate(chosen)


def _by_first_client(found: Int, inverse: Int) -> Int:
    """The same clusters, numbered in the order in which they occur among the clients.

    Usually the previous centers decide the numbers (`_matched`). At the first clustering all
    centers are equal, and rounding would decide; so the clusters are numbered before.
    """
    _, first, again = np.unique(found[inverse], return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))
    renamed = np.empty_like(found)
    renamed[inverse] = number[again.reshape(-1)]
    return renamed


def _matched(new: Real, old: Real) -> Int:
    """For each new center, the old one that it continues, so that the total distance is smallest.

    If there are more new centers than old ones, those left over get the next numbers.
    """
    labels = np.full(len(new), -1)
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (slow to load)

    rows, continued = linear_sum_assignment(squared_euclidean(new, old))
    labels[rows] = continued
    labels[labels < 0] = len(old) + np.arange(len(new) - len(rows))
    return labels
