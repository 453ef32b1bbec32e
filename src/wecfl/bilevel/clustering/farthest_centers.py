"""k-FED: the server's part, which clusters the centers that clients have found among their samples.

A client tells its local centers, and the share of its samples that belongs to each of them
(`wecfl.bilevel.representation.telling.LocalCenters`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.bilevel.clustering.kmeans import joined
from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Clusters, Distance, View
from wecfl.core.types import F64, Real

__all__ = ["FarthestCenters", "to_local_centers"]


def to_local_centers(points: Real, centers: Real) -> F64:
    """Σ_r s_ir ‖θ_ir − τ_k‖², (m, K): local centers θ with their shares s, from a center τ.

    >>> client = np.array([[[0.0, 0.5], [4.0, 0.5]]])              # two centers, half each
    >>> to_local_centers(client, np.array([[[1.0, 1.0], [1.0, 0.0]]])).tolist()
    [[5.0]]
    """
    m, count, width = points.shape
    far = squared_euclidean(points.reshape(-1, width)[:, :-1], centers[:, 0, :-1])
    return np.asarray(np.einsum("mrk,mr->mk", far.reshape(m, count, -1), points[..., -1]))


@dataclass(frozen=True, slots=True)
class FarthestCenters:
    """k-FED: takes K local centers that are far apart, and makes one step of Lloyd with all.

    It begins with the centers of the client with the largest λ. Then it adds the center that is
    farthest from those taken before, until there are K. A client belongs to the cluster that has
    most of its samples.

    >>> told = np.array([[[0.0, 1.0]], [[9.0, 1.0]], [[1.0, 1.0]]])
    >>> view = View(told, np.zeros((2, 1, 2)), np.ones(3), np.full(3, -1))
    >>> FarthestCenters()(view, to_local_centers, np.random.default_rng(0)).labels.tolist()
    [0, 1, 0]
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The clusters; after the first clustering, only new clients are placed."""
        if (view.labels >= 0).any():
            return Clusters(joined(view, distance), view.centers)
        n, count, width = view.points.shape
        flat = np.asarray(view.points, np.float64).reshape(-1, width)
        places, shares = flat[:, :-1], flat[:, -1]
        used = np.flatnonzero(shares > 0)
        order = np.lexsort((*places[::count].T[::-1], -view.importance))
        k = len(view.centers)
        chosen = [at for at in order[0] * count + np.arange(count) if shares[at] > 0][:k]
        near = squared_euclidean(places, places[chosen]).min(axis=1)
        while len(chosen) < k and near[used].max() > 0:
            chosen.append(int(used[near[used].argmax()]))
            near = np.minimum(near, squared_euclidean(places, places[chosen[-1:]])[:, 0])
        part = squared_euclidean(places, places[chosen]).argmin(axis=1)
        with one_thread():
            means = cluster_means(places[used], part[used], np.ones(len(used)), k)
        votes = np.zeros((n, k))
        np.add.at(votes, (np.repeat(np.arange(n), count), part), shares)
        centers = np.zeros(view.centers.shape)
        centers[:, :, :-1] = means[:, None]
        centers[:, 0, -1] = 1.0
        return Clusters(votes.argmax(axis=1), centers)
