"""`Look`: what is known about K = 1, 2, … clusters when clients were asked how they are served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np

from wecfl.bilevel.clustering.ward import silhouettes, weighted_ward
from wecfl.bilevel.distance import distances
from wecfl.core.components import Judge
from wecfl.core.types import F64, Int

__all__ = ["LEAST_SHARE", "STANDARD_ERRORS", "Gains", "Look", "client_silhouettes"]

STANDARD_ERRORS = 2.0
"""Clusters are accepted if they lower the loss of one model by more standard errors than this."""
LEAST_SHARE = 0.9
"""Clusters are accepted if they lower the loss by at least this share of what a model of its own
for each client would. Their own models also fit what only one client has: without groups they gain
far more."""
MAX_OWN_SHARE = 0.5
"""The largest share of a cluster's model that is taken for a client's own in `Look.from_others`. If
it has more, little is known about the others."""


class Gains(NamedTuple):
    """By how much clients are served better than by one model for all.

    >>> gains = Gains(clusters=0.5, error=0.02, alone=0.3)
    >>> gains.clusters > STANDARD_ERRORS * gains.error
    True
    """

    clusters: float
    """The gain of the clusters, as a λ-mean over clients."""
    error: float
    """Its standard error."""
    alone: float
    """The gain of a model of its own for each client."""


NO_GAINS = Gains(0.0, 0.0, 0.0)
"""What is known about the gains before the first look."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What is known about K = 1, 2, … after a look at n clients.

    >>> from wecfl.bilevel.means import cluster_means
    >>> points = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    >>> def judge(labels, who):                 # the squared distance to the mean of its cluster
    ...     labels = np.arange(6) if labels is None else labels
    ...     mean = cluster_means(points, labels, np.ones(6))[labels]
    ...     return (points - mean)[:, 0] ** 2 + 0.1 / np.bincount(labels)[labels]
    >>> look = Look.of(points, np.ones(6), judge, most=3)
    >>> look.loss.round(2).tolist(), look.best
    ([20.27, 0.04, 0.05], 2)
    """

    labels: Int
    """(levels, n), the cluster of each client for each K."""
    silhouette: F64
    """(levels,), the λ-weighted silhouette for each K; NaN for K = 1."""
    losses: F64
    """(n, levels), the validation loss of each client with the model of its cluster, for each K."""
    alone: F64
    """(n,), the validation loss of each client with its own model."""
    weight: F64
    """(n,), how much each client counts; they sum to 1, and are 0 for a client without losses."""

    @classmethod
    def of(cls, points: F64, importance: F64, judge: Judge, most: int) -> Self:
        """Propose divisions into at most `most` clusters, and half the number of clients."""
        n, weight = len(points), importance / importance.sum()
        far = distances(points)
        nodes = weighted_ward(far, weight, max(min(most, n // 2), 1))
        silhouette = np.full(len(nodes), np.nan)
        for level in range(1, len(nodes)):
            labels = np.unique(nodes[level], return_inverse=True)[1]
            each = client_silhouettes(far, labels, weight)
            silhouette[level] = np.average(each, weights=weight)
        return cls.judged(nodes, silhouette, weight, judge)

    @classmethod
    def judged(cls, nodes: Int, silhouette: F64, weight: F64, judge: Judge) -> Self:
        """The clients' answers to a hierarchy, given as the node of each client at each level."""
        n = len(weight)
        labels = np.stack([np.unique(level, return_inverse=True)[1] for level in nodes])
        losses = _path_losses(nodes, judge)
        alone = judge(None, np.ones(n, np.bool_))
        answered = np.isfinite(losses).all(axis=1) & np.isfinite(alone)
        counted = np.where(answered, weight, 0.0)
        if not answered.any():
            return cls(labels[:1], silhouette[:1], np.zeros((n, 1)), np.zeros(n), weight)
        return cls(
            labels, silhouette, np.where(answered[:, None], losses, 0.0),
            np.where(answered, alone, 0.0), counted / counted.sum(),
        )  # fmt: skip

    @property
    def loss(self) -> F64:
        """(levels,), the λ-mean of the losses for each K."""
        mean: F64 = self.weight @ self.losses
        return mean

    @property
    def from_others(self) -> F64:
        """(n, levels), the losses that clients would have if the models were made without them.

        With the share s = λ_i / Σ_j λ_j a client has made the model of its cluster, s·ω_i + (1 − s)
        times the model ω' of the others. To first order its loss is s·L(ω_i) + (1 − s)·L(ω'). Where
        clients have few samples, what one of them brings is noise, of which there is more in a
        small cluster; where each has something of its own, it helps, most of all in a small
        cluster. Neither tells whether clusters are alike.
        """
        found = np.empty_like(self.losses)
        for level, own in enumerate(self.labels):
            total = np.bincount(own, self.weight)[own]
            share = np.divide(self.weight, total, out=np.zeros_like(total), where=total > 0)
            share = np.minimum(share, MAX_OWN_SHARE)
            found[:, level] = (self.losses[:, level] - share * self.alone) / (1 - share)
        return found

    def gain(self, of: F64, over: F64) -> tuple[float, float]:
        """By how much losses (n,) are lower than others on average, and its standard error."""
        difference = over - of
        mean = float(self.weight @ difference)
        clients = max(int((self.weight > 0).sum()), 2)
        spread = float((self.weight**2 * (difference - mean) ** 2).sum())
        return mean, float(np.sqrt(spread * clients / (clients - 1)))

    @property
    def clearest(self) -> int:
        """The K with the largest product of silhouette and gain over one model; 1 if none gains.

        The gain alone goes on rising if clusters are divided further where labels are skewed, and
        the silhouette alone merges clusters that lie close together.
        """
        loss = self.weight @ self.from_others
        product = np.maximum(np.nan_to_num(self.silhouette), 0) * np.maximum(loss[0] - loss, 0)
        return int(product.argmax()) + 1

    @property
    def proposed(self) -> int:
        """The smallest K that serves the clients as well as the clearest K, to a standard error."""
        losses, most = self.from_others, self.clearest
        paired = [self.gain(losses[:, most - 1], losses[:, level]) for level in range(most)]
        return next(k for k, (more, error) in enumerate(paired, 1) if more <= error)

    @property
    def best(self) -> int:
        """`proposed`, or 1 if its clusters are not accepted."""
        return self.accepted(self.proposed)

    def confirmed(self, before: Gains) -> int:
        """The smallest K that serves the clients no worse than the largest, or 1.

        It is for clusters that were found in an earlier round, with the gains `before`: those that
        gain nothing from being apart in another round are one cluster.
        """
        loss = self.weight @ self.from_others
        return self.accepted(int((loss <= loss[-1]).argmax()) + 1, before)

    def gains(self, k: int) -> Gains:
        """By how much k clusters, and clients' own models, have a lower loss than one model."""
        one = self.losses[:, 0]
        mean, error = self.gain(self.losses[:, k - 1], one)
        return Gains(mean, error, self.gain(self.alone, one)[0])

    def accepted(self, k: int, before: Gains = NO_GAINS) -> int:
        """`k`, or 1 if its clusters don't serve better than one model and than none.

        Clients that each serve themselves far better than their cluster does have no groups. The
        gains of an earlier round are added. Their standard errors are added as well, since the same
        validation samples were asked.
        """
        mean, error, alone = (now + then for now, then in zip(self.gains(k), before, strict=True))
        return k if mean > STANDARD_ERRORS * error and mean >= LEAST_SHARE * alone else 1


def _path_losses(nodes: Int, judge: Judge) -> F64:
    """(n, levels), the loss of each client with the model of its node, for each level.

    From one level to the next only the clients of one node get another model. So the nodes are
    tried by generations: first that of all clients, then for each client the first smaller node
    that it belongs to, and so on. Clients without a further node are not asked again.
    """
    levels, n = nodes.shape
    depth = np.zeros((levels, n), np.int64)
    depth[1:] = np.cumsum(nodes[1:] != nodes[:-1], axis=0)
    path = np.zeros((depth[-1].max() + 1, n), np.int64)
    for level in range(levels):
        path[depth[level], np.arange(n)] = nodes[level]
    losses = np.full(path.shape, np.nan)
    for generation in range(len(path)):
        who = depth[-1] >= generation
        at = np.where(who, path[generation], -1)  # no mean includes clients that are not asked
        losses[generation] = judge(np.unique(at, return_inverse=True)[1], who)
    return np.asarray(losses[depth, np.arange(n)].T)


def client_silhouettes(far: F64, labels: Int, weight: F64) -> F64:
    """(n,), the silhouette of each client, from the distances (n, n) of the clients.

    >>> far = np.array([[0.0, 1, 4], [1, 0, 5], [4, 5, 0]])
    >>> client_silhouettes(far, np.array([0, 0, 1]), np.ones(3)).tolist()
    [0.75, 0.8, 0.0]
    """
    members = np.zeros((len(labels), int(labels.max()) + 1))
    members[np.arange(len(labels)), labels] = weight
    return silhouettes(far @ members, labels, weight)
