"""FedNova: a client that takes more steps does not count more for it.

The plain mean of models moves towards the clients that take many steps, so that the run does not
minimize R but another objective. FedNova divides each update by the effort a_i that it took (Wang
et al., *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization*,
NeurIPS 2020):

    Ω_k ← Ω_k + (Σ p_i a_i) · Σ p_i (ω_i − Ω_k) / a_i,   p_i = λ_i / Σ λ.

a_i is the number of steps τ. With momentum β, whose buffer starts from zero in every round, it is
(τ − β(1 − β^τ)/(1 − β)) / (1 − β). With equal efforts this is the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.bilevel.aggregation.mean import Mean
from wecfl.core.ask import Ask
from wecfl.core.plan import LocalPlan
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Int, Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout

__all__ = ["COUNTED_UPDATE", "Normalized", "check_effort", "effort", "learn_effort"]


def effort(steps: Int, momentum: float) -> F64:
    """(n,), the effort a_i of these numbers of steps with this momentum.

    >>> effort(np.array([0, 1, 3]), 0.0).tolist(), effort(np.array([0, 1, 2]), 0.5).tolist()
    ([0.0, 1.0, 3.0], [0.0, 1.0, 2.5])
    """
    decayed = momentum * (1 - momentum ** np.asarray(steps, np.float64)) / (1 - momentum)
    return np.asarray((steps - decayed) / (1 - momentum), np.float64)


def learn_effort(before: State, after: State, sent: Table, setting: Setting) -> State:
    """The state with the effort of each client's last local update, in `known`."""
    plan, m = setting.plan, len(after.labels)
    taken = np.broadcast_to(plan.steps if plan.done is None else plan.done, m)
    return after.replace(known={**after.known, "effort": effort(taken, plan.momentum)})


def check_effort(plan: LocalPlan, layout: Layout) -> None:
    """Raise an error where the effort does not follow from the number of steps."""
    if other := plan.not_plain("momentum", "weight_decay", "max_gradient"):
        raise ConfigError(f"FedNova needs steps of SGD: set optimizer to sgd, got {other}")
    if plan.momentum and plan.keep_momentum:
        raise ConfigError(
            "FedNova needs momentum that starts from 0 in every round: set keep_momentum to false, "
            "or momentum to 0"
        )


COUNTED_UPDATE = Ask(learn=learn_effort, check=check_effort)
"""A local update whose steps are counted; it takes the place of "L"."""


@dataclass(frozen=True, slots=True)
class Normalized:
    """The mean of updates that are divided by their efforts. BatchNorm statistics are averaged.

    >>> models, centers = np.array([[2.0], [6.0]], np.float32), np.zeros((1, 1), np.float32)
    >>> known = {"effort": np.array([1.0, 3.0])}
    >>> state = State(1, {"model": models}, centers, labels=np.array([0, 0]), known=known)
    >>> Normalized()(state, np.ones(2), np.ones(2, int)).centers.tolist()
    [[4.0]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers; a client without a step does not count."""
        mean = Mean()(state, importance, sizes, layout)
        if "effort" not in state.known:  # before the first local update
            return mean
        width = state.centers.shape[1]
        n, efforts = width if layout is None else layout.trainable, state.known["effort"]
        centers = mean.centers.copy()
        for k in np.unique(state.labels):
            members = np.flatnonzero((state.labels == k) & (efforts > 0))
            before = state.centers[k, :n].astype(np.float64)
            share = importance[members] / importance[members].sum()
            weight = (share @ efforts[members]) * share / efforts[members]
            gap = state.models[members, :n] - before
            centers[k, :n] = before + np.einsum("i,ip->p", weight, gap)
        return mean.replace(centers=centers)
