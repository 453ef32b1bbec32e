"""Which cluster a client joins when it takes part for the first time: the one that serves it best.

A client that has never trained is sent the models of all clusters, and replies their mean losses on
its training samples. It then trains the best of them. So the center of each cluster is trained by
its own clients only, also where nearly all clients of a round are new.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wecfl.bilevel.evaluation import losses
from wecfl.core.setting import Setting
from wecfl.core.state import State

__all__ = ["by_losses"]


def by_losses(state: State, setting: Setting) -> State:
    """The state in which new clients have chosen a cluster (`wecfl.core.components.Joining`).

    Only clusters with clients are tried. While there is one cluster, nobody is asked. A client
    whose losses are not finite, or do not arrive, chooses none.

    >>> from types import SimpleNamespace
    >>> from wecfl import methods
    >>> from wecfl.core.plan import LocalPlan
    >>> from wecfl.core.program import Answers
    >>> def ask(job, sent, who, memory):                           # clients at 0, 9, 1 and 8
    ...     apart = np.array([0, 9, 1, 8])[who][:, None] - sent.common["models"][:, 0]
    ...     return Answers({"losses": apart**2.0}, np.zeros(len(who), np.int8))
    >>> setting = Setting(methods.wecfl(k=2), SimpleNamespace(ask=ask), LocalPlan())
    >>> known = {"met": np.array([True, True, False, False])}
    >>> centers = np.array([[1.0], [7.0]], np.float32)
    >>> state = State(3, None, centers, np.array([0, 1, 0, 0]), known=known)
    >>> by_losses(state, setting).labels.tolist()
    [0, 1, 0, 1]
    """
    met = np.ones(len(state.labels), np.bool_) if state.met is None else state.met
    new = np.flatnonzero(setting.channel.present(len(met), state.round) & ~met)
    inhabited = np.unique(state.labels[met])
    if len(new) == 0 or len(inhabited) < 2:
        return state
    found = losses(
        setting.engine, state.centers[inhabited], seed=setting.seed, round=state.round, who=new
    )
    answered = np.isfinite(found).all(axis=1)
    labels, chosen = state.labels.copy(), np.zeros(len(met), np.bool_)
    labels[new[answered]] = inhabited[found[answered].argmin(axis=1)]
    chosen[new[answered]] = True
    return replace(state, labels=labels, known={**state.known, "chosen": chosen})
