"""Control variates: how far a client's gradients are off those of its cluster, and the cure.

SCAFFOLD (Karimireddy et al., ICML 2020) lets every client i step along g − c_i + c, where c_i is
its own mean gradient in its last round and c the mean of all c_i. The server knows the model x that
a client received, the model y that came back, the K steps in between and their η, so it can hold
c_i itself (option II of the paper):

    c_i ← c_i − c + (x − y) / (K·η),   c_k = Σ_{i∈k} λ_i c_i / Σ_{i∈k} λ_i.

The paper weighs all clients alike; with λ both here and in the mean of the models it is the run's
own objective R that is minimized, and with equal λ it is the paper's. Nothing more is uploaded, a
lost reply changes nothing, stragglers count the steps they took, and a client that changes its
cluster takes its c_i along.
"""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.threads import one_thread
from wecfl.core.ask import Ask
from wecfl.core.plan import LocalPlan
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout

__all__ = ["CONTROLLED", "check", "learn", "offset"]


def offset(state: State, setting: Setting) -> Table:
    """(m, P), c_k − c_i, which is added to every gradient; at first there is none."""
    if "control" not in state.known:
        return {}
    own, labels = state.known["control"], state.labels
    share = np.zeros((len(state.centers), len(labels)))
    share[labels, np.arange(len(labels))] = setting.importance
    total = share.sum(axis=1, keepdims=True)
    with one_thread():
        means = np.divide(share, total, out=share, where=total > 0) @ own
    return {"offset": (means[labels] - own).astype(np.float32)}


def learn(before: State, after: State, sent: Table, plan: LocalPlan) -> State:
    """c_i of the clients that were heard; the others keep theirs."""
    heard, m = after.heard, len(after.labels)
    steps = np.broadcast_to(plan.steps if plan.done is None else plan.done, m)
    length = steps * np.asarray(plan.lr, np.float64) * np.ones(m)
    heard &= length > 0  # who did not move told nothing
    pull = before.models[heard].astype(np.float64) - after.models[heard]
    pull /= length[heard, None]
    controls = np.zeros(after.models.shape, np.float32)
    if "control" in before.known:
        controls[:] = before.known["control"]
        pull -= sent["offset"][heard]
    controls[heard] = pull
    return after.replace(known={**after.known, "control": controls})


def check(plan: LocalPlan, layout: Layout) -> None:
    """Option II takes the mean gradient from the distance moved."""
    if plan.momentum:
        raise ConfigError(
            f"control variates are about plain gradient steps: set momentum to 0, not "
            f"{plan.momentum:g}"
        )


CONTROLLED = Ask(send=offset, learn=learn, check=check)
"""A local update with control variates, in the place of "L"."""
