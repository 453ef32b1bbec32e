"""Control variates: a correction for the drift between a client's gradients and its cluster's.

In SCAFFOLD (Karimireddy et al., ICML 2020), every client i takes steps along g − c_i + c, where c_i
is its own mean gradient in its last round, and c is the mean of all c_i. The server knows the model
x that a client received, the model y that came back, the K steps in between and their η. So it can
compute and keep c_i itself (option II of the paper):

    c_i ← c_i − c + (x − y) / (K·η),   c_k = Σ_{i∈k} λ_i c_i / Σ_{i∈k} λ_i.

The paper gives all clients the same weight. Here both c and the mean of the models use λ, so that
the run minimizes its own objective R; with equal λ this is the paper's method. Clients upload
nothing in addition. If a reply is lost, c_i does not change. For a straggler, K is the number of
steps that it completed. A client that changes its cluster keeps its c_i.
"""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.ask import Ask
from wecfl.core.plan import LocalPlan
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout

__all__ = ["CONTROLLED_UPDATE", "check", "learn", "offset"]


def offset(state: State, setting: Setting) -> Table:
    """(m, P), c_k − c_i, which is added to every gradient; nothing before the first replies."""
    if "control" not in state.known:
        return {}
    controls, labels = state.known["control"], state.labels
    with one_thread():
        means = cluster_means(controls, labels, setting.importance, len(state.centers))
    return {"offset": (means[labels] - controls).astype(np.float32)}


def learn(before: State, after: State, sent: Table, setting: Setting) -> State:
    """The state with a new c_i for each client that was heard; the others keep theirs."""
    heard, m, plan = after.heard, len(after.labels), setting.plan
    steps = np.broadcast_to(plan.steps if plan.done is None else plan.done, m)
    length = steps * np.asarray(plan.lr, np.float64) * np.ones(m)
    heard &= length > 0  # without a step there is no gradient
    pull = before.models[heard].astype(np.float64) - after.models[heard]
    pull /= length[heard, None]
    controls = np.zeros(after.models.shape, np.float32)
    if "control" in before.known:
        controls[:] = before.known["control"]
        pull -= sent["offset"][heard]
    controls[heard] = pull
    return after.replace(known={**after.known, "control": controls})


def check(plan: LocalPlan, layout: Layout) -> None:
    """Raise an error for momentum and Adam: option II needs plain steps along the gradients."""
    if other := plan.not_plain("weight_decay", "max_gradient"):
        raise ConfigError(
            f"control variates need plain gradient steps: set optimizer to sgd and momentum to 0, "
            f"got {other}"
        )


CONTROLLED_UPDATE = Ask(send=offset, learn=learn, check=check)
"""A local update with control variates; it takes the place of "L"."""
