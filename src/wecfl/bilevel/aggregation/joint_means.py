"""Aggregations that look beyond one cluster: common columns, and means of peer groups."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wecfl.bilevel.aggregation.mean import Mean
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Aggregation
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Int, Table
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one

__all__ = ["CommonColumns", "PeerGroups", "PeerMeans"]


@dataclass(frozen=True, slots=True)
class CommonColumns:
    """Averages some columns over the clients of all clusters, and the others in each cluster.

    This is IFCA's weight sharing: the body of the model is common, and each cluster has a head of
    its own. `of` is the aggregation that makes both means.

    >>> models = {"model": np.array([[0.0, 1.0], [4.0, 3.0]], np.float32)}
    >>> state = State(1, models, np.zeros((2, 2), np.float32), labels=np.array([0, 1]))
    >>> layout = Layout.of([("body", (1,), []), ("head", (1,), [])])
    >>> CommonColumns("body")(state, np.ones(2), np.ones(2, int), layout).centers.tolist()
    [[2.0, 1.0], [2.0, 3.0]]
    """

    which: str = "~classifier"
    of: Aggregation = field(default_factory=Mean)

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with new centers, which are equal in the common columns."""
        after = self.of(state, importance, sizes, layout)
        if not len(state.labels):  # no client was heard
            return after
        columns = np.arange(state.centers.shape[1])[layout.columns(self.which) if layout else ...]
        one = state.replace(labels=np.zeros_like(state.labels))
        common = self.of(one, importance, sizes, layout).centers[0]
        centers = after.centers
        centers[:, columns] = common[columns]
        return after.replace(centers=centers)


@dataclass(frozen=True, slots=True)
class PeerGroups:
    """FedP2P, the server's part: it divides the clients of a round into peer groups of equal size.

    It is the `learn` of an `Ask`. `state.known["peers"]` holds the number of each client's group.

    >>> PeerGroups(groups=3).groups
    3
    """

    groups: int = 5

    def __post_init__(self) -> None:
        check_at_least_one(peer_groups=self.groups)

    def __call__(self, before: State, after: State, sent: Table, setting: Setting) -> State:
        """The state with the groups of the clients that took part; −1 for the others."""
        m = len(after.labels)
        draws = setting.channel.draws("peers", m, before.round)
        present = np.flatnonzero(setting.channel.present(m, before.round))
        order = present[np.argsort(draws[present], kind="stable")]
        peers = np.full(m, -1, np.int64)
        peers[order] = np.arange(len(order)) % self.groups
        return after.replace(known={**after.known, "peers": peers})


@dataclass(frozen=True, slots=True)
class PeerMeans:
    """FedP2P: the mean of the means of the peer groups, in each cluster.

    Inside a group, members count by λ. Then all groups with a member that was heard have the same
    weight (Chou et al., 2021).

    >>> models = {"model": np.array([[0.0], [2.0], [9.0]], np.float32)}
    >>> state = State(1, models, np.zeros((1, 1), np.float32), labels=np.zeros(3, int),
    ...               known={"peers": np.array([0, 0, 1])})
    >>> PeerMeans()(state, np.ones(3), np.ones(3, int)).centers.tolist()            # (1 + 9) / 2
    [[5.0]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers; a cluster without a group keeps its center."""
        peers = state.known.get("peers", np.zeros(len(state.labels), np.int64))
        centers, models = state.centers.copy(), state.models
        for k in np.unique(state.labels):
            members = np.flatnonzero(state.labels == k)
            _, groups = np.unique(peers[members], return_inverse=True)
            with one_thread():
                means = cluster_means(models[members], groups, importance[members])
            centers[k] = means.mean(axis=0)
        return state.replace(centers=centers)
