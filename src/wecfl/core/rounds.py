"""Algorithm 1 of the paper: expectation, maximization, distribution and local update.

Each step is a function `State -> State`. Every method uses these steps and this loop. What differs
between methods is data (`Method`), including which steps there are and in which order. The local
update raises the number of the round. A round ends with the distribution, after which ω_i = Ω_k.
Then clients are tested.

In this example three clients have one parameter each. Two of them are alike, and the first holds
three times as much data as the others:

>>> from types import SimpleNamespace
>>> from wecfl import Layout, methods
>>> from wecfl.core.plan import LocalPlan
>>> from wecfl.core.program import Answers
>>> def ask(job, sent, who, memory):                           # these clients add 1
...     rows = {"model": sent.own["model"] + 1}
...     return Answers(rows, np.zeros(len(who), np.int8))
>>> engine = SimpleNamespace(layout=Layout.of([("w", (1,), ["head"])]), sizes=np.array([3, 1, 1]),
...                          ask=ask, starts=lambda which, seed: np.zeros((1, 1), np.float32))
>>> setting = Setting(methods.wecfl(k=2), engine, LocalPlan())
>>> opening(setting).labels.tolist()                           # one start: one cluster
[0, 0, 0]
>>> models = np.array([[0], [4], [99]], np.float32)            # ω after some local update
>>> centers = np.array([[0], [90]], np.float32)                # Ω before it
>>> state = State(1, {"model": models}, centers, labels=np.array([0, 0, 0]))
>>> state = expectation(state, setting)
>>> state.labels.tolist()
[0, 0, 1]
>>> state = maximization(state, setting)
>>> state.centers.tolist()                                     # (3·0 + 1·4) / 4
[[1.0], [99.0]]
>>> state = distribution(state, setting)
>>> state.models.tolist()
[[1.0], [1.0], [99.0]]
>>> next(iterate(setting, state)).round                        # L, E, M, D: one round further
2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter

import numpy as np

from wecfl import rng
from wecfl.core.ask import Ask
from wecfl.core.assignment import KnownClients, mean_center
from wecfl.core.exchange import exchange
from wecfl.core.program import private_columns
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import without

__all__ = ["Observer", "distribution", "expectation", "iterate", "maximization", "opening"]


def expectation(state: State, setting: Setting) -> State:
    """E: assign each client to a cluster, k = argmin_k λ_i d(g_i, G_k), and move G accordingly.

    A client that was not heard in this round keeps its label, and counts with the g_i that the
    server last knew. A client that is heard for the first time joins the cluster that it has chosen
    before its local update (`Setting.joining`), or else the nearest one. K may grow (`Clustering`).
    """
    state = setting.method.representation.told(state, setting)
    clients = KnownClients.of(state, setting)
    if not clients.known.any():
        return state.replace(known={**state.known, "met": clients.known})
    draws = rng.stream(setting.seed, "clustering", state.round)
    view = clients.view(state, setting, maximization)
    found = setting.method.clustering(view, setting.method.distance, draws)
    return clients.assigned(state, setting, found)


def maximization(state: State, setting: Setting) -> State:
    """M: aggregate, Ω_k = argmin of F for the current assignment, over the clients that were heard.

    If too few clients of a cluster were heard (`Channel.min_cluster`), it keeps its center.
    """
    importance, engine, heard = setting.importance, setting.engine, state.heard
    if setting.method.representation.tells and state.met is not None:
        heard &= state.met  # a client that has told nothing has no cluster yet
    heard &= setting.enough(state.labels[heard], len(state.centers))[state.labels]
    counted = state if heard.all() else replace(state, memory={}).take(heard)
    after = setting.method.aggregation(
        counted, importance[heard], engine.sizes[heard], engine.layout
    )
    if (private := private_columns(engine.layout, setting.method.shared)) is not None:
        after.centers[:, private] = state.centers[:, private]  # clients keep these columns
    whole = without(["moved"], after.whole)
    return state.replace(centers=after.centers, cluster=after.cluster, whole=whole)


def distribution(state: State, setting: Setting) -> State:
    """D: send each client the model of its cluster, ω_i = Ω_k; private columns stay at the client.

    A client that was never heard has no cluster yet, and is sent the mean of all centers. A
    learning rate that is computed in every round is set in this step, which knows ω_i and Ω_k.
    """
    method, engine, met = setting.method, setting.engine, state.met
    whole = without(["moved", "stranger"], state.whole)
    if met is not None and met.any() and not method.representation.asks:
        whole["stranger"] = mean_center(state, setting, met)
    sent = replace(state, replies=None, whole=whole)
    if setting.rate is None:
        return sent
    gap = np.sqrt(method.representation.own_distances(state, engine, method.distance, setting.seed))
    lr = setting.rate(gap, sent, engine, setting.plan, setting.seed)
    return sent.replace(known={**state.known, "lr": lr})


STEPS: dict[str, Callable[[State, Setting], State]] = {
    "E": expectation, "M": maximization, "D": distribution, "L": exchange,
}  # fmt: skip

Observer = Callable[[str, State, float], None]
"""Called after each step of a round with its name, the new state and the seconds it took."""


def opening(setting: Setting) -> State:
    """The state before the first local update: the initial models, after the method's opening."""
    method, m = setting.method, len(setting.engine.sizes)
    method.check(m, setting.plan, setting.engine.layout)
    which = range(method.at_start) if method.start == "each" else [setting.member]
    starts = setting.engine.starts(which, setting.seed)
    centers = np.repeat(starts, method.at_start // len(starts), axis=0)
    labels = np.zeros(m, np.int64) if setting.labels is None else setting.labels
    state = State(0, None, centers, labels)
    for step in method.opening:
        state = _after(step, state, setting)
    return state


def iterate(setting: Setting, state: State, *observers: Observer) -> Iterator[State]:
    """Yield the state after each further round, without an end; observers see every step."""
    while True:
        for step in setting.method.steps:
            began = perf_counter()
            state = _after(step, state, setting)
            seconds = perf_counter() - began
            for observe in observers:
                observe(step if isinstance(step, str) else step.letter, state, seconds)
        yield state


def _after(step: str | Ask, state: State, setting: Setting) -> State:
    """The state after one step of a round."""
    if isinstance(step, Ask):
        return exchange(state, setting, step)
    return STEPS[step](state, setting)
