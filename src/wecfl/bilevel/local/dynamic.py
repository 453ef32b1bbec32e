"""FedDyn: a regularizer that changes during the run, so that clients get the server's minimum.

Client i minimizes L(ω) − ⟨g_i, ω⟩ + a/2·‖ω − Ω‖², where g_i estimates its gradient at the end of
its last round (Acar et al., *Federated Learning Based on Dynamic Regularization*, ICLR 2021). Then

    g_i ← g_i − a·(ω_i − Ω),   h_k = Σ_{i∈k} λ_i g_i / Σ_{i∈k} λ_i,   Ω_k ← mean of ω_i − h_k / a.

The server knows what a client received and what came back, so it can compute and keep g_i itself.
h_k is the mean over all members of a cluster, whether they were heard or not. In the paper, all
clients have the same weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.bilevel.aggregation.mean import Mean
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.ask import Ask
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Int, Table
from wecfl.layout import Layout
from wecfl.limits import check_positive

__all__ = ["Dynamic", "LearnDual", "dual_offset", "dynamic_update"]


def dual_offset(state: State, setting: Setting) -> Table:
    """(m, P), −g_i, which is added to every gradient; nothing before the first replies."""
    return {"offset": -state.known["dual"]} if "dual" in state.known else {}


@dataclass(frozen=True, slots=True)
class LearnDual:
    """New g_i of the clients that were heard, and h of each cluster.

    >>> LearnDual(0.1)
    LearnDual(strength=0.1)
    """

    strength: float

    def __call__(self, before: State, after: State, sent: Table, setting: Setting) -> State:
        """The state with g_i in `known` and h_k in `cluster`."""
        duals = np.zeros(after.models.shape, np.float32)
        if "dual" in before.known:
            duals[:] = before.known["dual"]
        heard, n = after.heard, setting.engine.layout.trainable
        pull = after.models[heard, :n] - before.models[heard, :n]
        duals[heard, :n] -= np.float32(self.strength) * pull
        with one_thread():
            means = cluster_means(duals, after.labels, setting.importance, len(after.centers))
        return after.replace(
            known={**after.known, "dual": duals},
            cluster={**after.cluster, "dual": means.astype(np.float32)},
        )


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The mean of each cluster, minus h_k / a. A cluster that was not heard keeps its center.

    >>> Dynamic(0.1).strength
    0.1
    """

    strength: float = 0.1

    def __post_init__(self) -> None:
        check_positive(strength=self.strength)

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        mean = Mean()(state, importance, sizes, layout)
        if "dual" not in state.cluster:  # before the first local update
            return mean
        centers, heard = mean.centers.copy(), np.unique(state.labels)
        centers[heard] -= state.cluster["dual"][heard] / np.float32(self.strength)
        return mean.replace(centers=centers)


def dynamic_update(strength: float) -> Ask:
    """A local update with g_i, which takes the place of "L"; its program is `Train(strength)`.

    >>> str(dynamic_update(0.1))
    'L(dual_offset, LearnDual(strength=0.1))'
    """
    return Ask(send=dual_offset, learn=LearnDual(strength))
