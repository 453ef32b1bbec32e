"""Which cluster a client joins when it is heard for the first time: where its update points."""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.means import cluster_means, unit
from wecfl.core.types import F64, Int, Real

__all__ = ["toward"]


def toward(points: Real, sent: Real, centers: Real, ways: F64 | None) -> tuple[Int, F64]:
    """The clusters to which the updates of new clients point, and the ways to all clusters.

    All new clients were sent the same s, the mean of the centers. u_i = g_i − s is what the local
    update of client i has changed, less the mean over the new clients, and counts by its direction:
    client i joins argmax_k ⟨u_i, w_k⟩ / ‖u_i‖. The way w_k is a unit vector, G_k − s at first. Then
    it turns halfway to the mean direction of those that have just joined cluster k.

    A local update is short beside the distance between two models of many rounds. So the nearest
    center would be the one that is least far from s, for nearly all clients alike.

    >>> centers = np.array([[9.0, 0.0], [-2.0, 0.0], [0.0, 5.0]])
    >>> near = np.array([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1]])
    >>> labels, ways = toward(near, np.zeros(2), centers, None)
    >>> labels.tolist(), ways.shape
    ([0, 1, 2], (3, 2))
    """
    changes = points.astype(np.float64) - sent
    if len(changes) > 1:
        changes -= changes.mean(axis=0)
    changes = unit(changes)
    if ways is None or len(ways) != len(centers):
        ways = unit(centers.astype(np.float64) - sent)
    labels = (changes @ ways.T).argmax(axis=1)
    means = unit(cluster_means(changes, labels, np.ones(len(changes)), len(centers)))
    joined = np.bincount(labels, minlength=len(centers)) > 0
    return labels, np.where(joined[:, None], unit(ways + means), ways)
