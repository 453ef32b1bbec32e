"""Which cluster a client joins when it is first heard: the one to which its update points."""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.means import cluster_means, unit
from wecfl.core.types import F64, Int, Real

__all__ = ["toward"]


def toward(points: Real, sent: Real, centers: Real, ways: F64 | None) -> tuple[Int, F64]:
    """The clusters to which the updates of new clients point, and the directions of all clusters.

    All new clients were sent the same s, the mean of the centers. Let u_i be g_i − s, the change by
    the local update of client i, less the mean change of the new clients. Only its direction
    counts: client i joins argmax_k ⟨u_i, w_k⟩ / ‖u_i‖. The direction w_k of cluster k, one row of
    `ways`, is a unit vector. It begins along G_k − s, and then turns halfway to the mean direction
    of the clients that have just joined cluster k.

    Clients do not join the nearest center, because a local update is short compared with the
    distance between two models of many rounds: the nearest center would be the one that is nearest
    to s, for almost all clients.

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
