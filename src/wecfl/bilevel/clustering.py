"""The lower level: who belongs to whom."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans as Lloyd
from sklearn.exceptions import ConvergenceWarning

from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Clustering, Clusters, Distance, View
from wecfl.core.types import F64, Int, Real
from wecfl.errors import ConfigError

__all__ = ["AtLeast", "DistinctClients", "KMeans", "Nearest", "isometric"]


@dataclass(frozen=True, slots=True)
class Nearest:
    """One reassignment, r_i = argmin_k d(g_i, G_k), centers as they are (Lemma 1; ties: least k).

    >>> points, centers = np.array([[0.0], [5.0]]), np.array([[1.0], [4.0]])
    >>> view = View(points, centers, np.ones(2), labels=np.array([0, 0]))
    >>> Nearest()(view, squared_euclidean, np.random.default_rng(0)).labels.tolist()
    [0, 1]
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """λ_i > 0 scales all distances of a client alike, so it does not change the argmin."""
        return Clusters(distance(view.points, view.centers).argmin(axis=1), view.centers)


@dataclass(frozen=True, slots=True)
class KMeans:
    """Weighted K-means: argmin over r and G of Σ_i λ_i ‖g_i − G_{r_i}‖².

    Takes the better of a warm start (Lloyd's iterations from the previous centers, which never
    raise F) and `fresh` k-means++ starts (which leave bad local optima): so F never rises in the
    E-step (Lemma 1), whatever the draw. New clusters are matched to the previous centers by linear
    sum assignment, so that a label means the same cluster over rounds.

    Defined corners: clients with equal g_i always share a cluster; with no more than K distinct
    clients each distinct one is its own cluster; clusters left over stay empty and keep their
    center. With `warm=False` and `fresh=10` it is the authors' choice, new in every round.

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
            raise ConfigError(f"KMeans needs a start: got fresh={self.fresh}, warm={self.warm}")

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """In the identity of the previous centers."""
        if distance is not squared_euclidean:
            raise ConfigError("KMeans minimizes squared Euclidean distances: use squared_euclidean")
        crowd = DistinctClients.of(view)
        with one_thread():
            near, old = isometric(crowd.points, view.centers)
            return crowd.clusters(self.lloyd(near, old, crowd.weight, rng))

    def lloyd(self, points: F64, centers: F64, weight: F64, rng: np.random.Generator) -> Int:
        """Labels 0 … of the best start, numbered without gaps."""
        if len(points) <= len(centers):
            return np.arange(len(points))
        starts = []
        if self.warm:
            starts.append(Lloyd(len(centers), init=centers, n_init=1))
        if self.fresh:
            starts.append(
                Lloyd(
                    len(centers),
                    init=lambda moved, k, random_state: moved[
                        _spread(moved, k, weight, random_state)
                    ],
                    n_init=self.fresh,
                    random_state=int(rng.integers(2**31)),
                )
            )
        # Nearly equal clients may fill fewer than K clusters: that is defined here, not a warning.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            fits = [start.fit(points, sample_weight=weight) for start in starts]
        best = min(fits, key=lambda fit: fit.inertia_)  # ties: the warm start
        return np.unique(best.labels_, return_inverse=True)[1]


@dataclass(frozen=True, slots=True, eq=False)
class DistinctClients:
    """The distinct clients of a view, in sorted order.

    So equal clients can't be parted by rounding, and the result does not depend on the order of the
    clients.

    >>> view = View(np.array([[5.0], [1.0], [5.0]]), np.zeros((1, 1)), np.ones(3), np.zeros(3, int))
    >>> crowd = DistinctClients.of(view)
    >>> crowd.points.tolist(), crowd.weight.tolist()
    ([[1.0], [5.0]], [1.0, 2.0])
    >>> crowd.clusters(np.array([0, 1])).labels.tolist()            # client 1 is nearer to 0
    [1, 0, 1]
    """

    view: View
    points: Real
    """(u, p)."""
    weight: F64
    """(u,), λ of all clients that are this one."""
    which: Int
    """(n,), for each client of the view, which of them it is."""

    @classmethod
    def of(cls, view: View) -> Self:
        """Of these clients."""
        points, which = _distinct(view.points)
        weight = np.bincount(which, weights=view.importance).astype(np.float64)
        return cls(view, points, weight, which)

    def clusters(self, found: Int, inside: Int | None = None) -> Clusters:
        """Clusters 0 … of distinct clients (u,), in the identity of the centers of the view.

        They go on under the numbers `inside`, if given; what is left over is new, and has the next
        number.
        """
        found = _by_first_client(found, self.which)
        means, before = _means(self.points, found, self.weight), self.view.centers
        numbers = np.arange(len(before)) if inside is None else inside
        new = len(before) + np.arange(max(len(means) - len(numbers), 0))
        labels = np.concatenate([numbers, new])[_matched(means, before[numbers])]
        centers = np.resize(before, (max(len(before), labels.max() + 1), before.shape[1]))
        centers[labels] = means
        return Clusters(labels[found][self.which].astype(np.int64), centers)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A clustering without small clusters: a cluster of one is a private model in the clear.

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
        """A dissolved cluster keeps its center; one that is new is not even begun."""
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
        return Clusters(labels, found.centers[:kept], found.notes)


def isometric(points: Real, centers: Real) -> tuple[F64, F64]:
    """The same points and centers in as few dimensions as hold them, all distances kept.

    n points span at most n dimensions, so K-means on clients with p ≫ m columns is exact in the
    space of their Gram matrix. Finding that space costs more than it saves where n > p / 4: there
    they stay as they are.

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
    """The distinct rows in sorted order, and for each row which of them it is."""
    for width in (8, 256):  # comparing rows of thousands of columns is slow, and the first few tell
        few = points[:, :width]
        order = np.lexsort(few.T[::-1])
        if not (few[order[1:]] == few[order[:-1]]).all(axis=1).any():
            return points[order], np.argsort(order)
    _, first, inverse = np.unique(points, axis=0, return_index=True, return_inverse=True)
    return points[first], inverse.reshape(-1).astype(np.int64)


def _spread(points: F64, k: int, weight: F64, draws: np.random.RandomState) -> Int:
    """Which k points to start from, far from each other: greedy weighted k-means++.

    The choice of scikit-learn's `kmeans_plusplus` for the same draws, without its checks at every
    distance, which for a few hundred clients take longer than Lloyd's iterations.
    """
    norms, trials = (points**2).sum(axis=1), 2 + int(np.log(k))

    def distances(which: Int) -> F64:
        # One matrix product, unlike `squared_euclidean`: a start needs few digits.
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
    """The same clusters, numbered in the order in which clients meet them.

    Where the previous centers tell clusters apart, they decide the numbers (`_matched`); at the
    first clustering they coincide, and rounding must not.
    """
    _, first, again = np.unique(found[inverse], return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))
    renamed = np.empty_like(found)
    renamed[inverse] = number[again.reshape(-1)]
    return renamed


def _means(points: Real, labels: Int, weight: F64) -> F64:
    """(k, p), the weighted mean of each of the k non-empty clusters."""
    share = np.zeros((labels.max() + 1, len(points)))
    share[labels, np.arange(len(points))] = weight
    means: F64 = (share / share.sum(axis=1, keepdims=True)) @ points
    return means


def _matched(new: Real, old: Real) -> Int:
    """For each new center the index of the old one it continues, at least total distance.

    If there are more of them than old ones, those left over have the numbers after these.
    """
    labels = np.full(len(new), -1)
    rows, continued = linear_sum_assignment(squared_euclidean(new, old))
    labels[rows] = continued
    labels[labels < 0] = len(old) + np.arange(len(new) - len(rows))
    return labels
