"""Algorithm 1: expectation, maximization, distribution, local update – each `State -> State`.

Every method runs through these four steps and this loop; what differs between methods is data
(`Method`), also the order of the steps. A round is counted at the local update: the run opens with
the steps that come before it (on the common start all clients coincide, so they share one
cluster), and round t is the t-th local update followed by the other steps. It therefore closes
with the distribution, when ω_i = Ω_k, and that is where scores are taken.

Three clients with one parameter each, two of them alike; the first holds three times the data:

>>> from types import SimpleNamespace
>>> from wecfl import Layout, methods
>>> engine = SimpleNamespace(layout=Layout.of([("w", (1,), ["head"])]), sizes=np.array([3, 1, 1]),
...                          train=lambda state, *_: (state.models + 1, {}),
...                          starts=lambda which, seed: np.zeros((len(which), 1), np.float32))
>>> setting = Setting(methods.wecfl(k=2), engine, Plan())
>>> opening(setting).labels.tolist()                           # one start: one cluster
[0, 0, 0]
>>> models = np.array([[0], [4], [99]], np.float32)            # ω after some local update
>>> centers = np.array([[0], [90]], np.float32)                # Ω before it
>>> state = State(1, models, centers, labels=np.array([0, 0, 0]))
>>> state = expectation(state, setting)
>>> state.labels.tolist()
[0, 0, 1]
>>> state = maximization(state, setting)
>>> state.centers.tolist()                                     # (3·0 + 1·4) / 4
[[1.0], [99.0]]
>>> state = distribution(state, setting)
>>> state.models.tolist()
[[1.0], [1.0], [99.0]]
>>> local_update(state, setting).models.tolist()               # this engine just adds 1
[[2.0], [2.0], [100.0]]
>>> next(iterate(setting, state)).round                        # L, E, M, D: one round further
2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from wecfl import rng
from wecfl.core.engine import Engine
from wecfl.core.method import Method, Rate, View
from wecfl.core.plan import Correction, Plan
from wecfl.core.presence import Channel
from wecfl.core.state import F32, F64, Bool, Int, Reply, State
from wecfl.errors import ConfigError, EngineError

__all__ = [
    "Observer",
    "Setting",
    "check_clusters",
    "distribution",
    "expectation",
    "iterate",
    "local_update",
    "maximization",
    "opening",
    "rates",
]


@dataclass(frozen=True, slots=True)
class Setting:
    """What stays the same over the rounds."""

    method: Method
    engine: Engine
    plan: Plan
    seed: int = 0
    member: int = 0
    """Which of the method's soft-voted runs this is; each starts from a model of its own."""
    rate: Rate | None = None
    """Sets η anew in every round, in place of the plan's."""
    channel: Channel = field(default_factory=Channel)
    """Who takes part, and what reaches the server."""


def expectation(state: State, setting: Setting) -> State:
    """E: assign each client to a cluster, k = argmin_k λ_i d(g_i, G_k), and move G accordingly.

    Clients that were not heard in this round keep their label and count where the server last
    placed them; a cluster that only they are in keeps its center. Who is heard for the first time
    joins the nearest cluster: it did not start where the others did, so it can't tell them apart.

    K may grow (`wecfl.core.method.Clustering`): a new cluster has the model its clients come from.
    """
    method, engine = setting.method, setting.engine
    known, told = _known(state, setting)
    if not known.any():
        return state.replace(met=known)
    points = method.representation.clients(state, engine, setting.seed, known)
    if not method.representation.server_side:  # who does not answer keeps its label
        answered = np.isfinite(points).all(axis=1)
        points, known[known] = points[answered], answered
        if not known.any():
            return state
    found = method.clustering(
        View(
            points,
            method.representation.centers(state, engine),
            _importance(setting)[known],
            state.labels[known],
            told[known],
            state.round,
            state.notes,
        ),
        method.distance,
        rng.stream(setting.seed, "clustering", state.round),
    )
    state = _grown(state, known, found.labels, len(found.centers))
    before = method.representation.centers(state, engine)
    labels, new = state.labels.copy(), told & ~known
    labels[known & told] = found.labels[told[known]]
    if new.any():
        inhabited = np.unique(found.labels)
        points = method.representation.clients(state, engine, setting.seed, new)
        labels[new] = inhabited[method.distance(points, before[inhabited]).argmin(axis=1)]
    enough = _enough(labels[told], state, setting)
    centers = np.where(enough[:, None], found.centers, before)
    met = known | told
    return state.replace(
        labels=labels,
        centers=method.representation.place(state, centers, engine),
        met=None if met.all() else met,
        notes=found.notes,
    )


def maximization(state: State, setting: Setting) -> State:
    """M: aggregate, Ω_k = argmin of F for the assignment at hand.

    Over the clients that were heard; a cluster without enough of them keeps its center.
    """
    importance, sizes, heard = _importance(setting), setting.engine.sizes, state.heard
    heard &= _enough(state.labels[heard], state, setting)[state.labels]
    if heard.all():
        return state.replace(centers=setting.method.aggregation(state, importance, sizes))
    seen = state.replace(trained=state.models[heard], labels=state.labels[heard])
    centers = setting.method.aggregation(seen, importance[heard], sizes[heard])
    return state.replace(centers=centers)


def distribution(state: State, setting: Setting) -> State:
    """D: send each client the model of its cluster, ω_i = Ω_k; private columns stay.

    Also who was absent, which will find it there when it takes part again; who was never heard has
    no cluster yet and finds the mean of all. A learning rate that follows the run is set here,
    where both ω_i and Ω_k are at hand.
    """
    engine = setting.engine
    sent = state.replace(trained=None)
    if state.met is not None and state.met.any() and setting.method.representation.server_side:
        weight = np.bincount(
            state.labels[state.met], _importance(setting)[state.met], len(state.centers)
        )
        models = sent.fresh()
        models[~state.met] = (weight / weight.sum()) @ state.centers
        sent = sent.replace(trained=models)
    if setting.method.shared != "all":
        shared = engine.layout.columns(setting.method.shared)
        models = state.fresh()
        models[:, shared] = sent.models[:, shared]
        sent = sent.replace(trained=models)
    if setting.rate is None:
        return sent
    gap = np.sqrt(setting.method.representation.own(state, engine, setting.method.distance))
    lr = setting.rate(gap, sent, engine, setting.plan, setting.seed)
    return sent.replace(memory={**state.memory, "lr": lr})


def local_update(state: State, setting: Setting) -> State:
    """L: each client takes Q gradient steps on its own data D_i.

    What the server can't use of it is not in the state: the row stays. The memory is the client's
    own, and goes on also where its reply was lost; after a model that was not finite it is cleared.
    """
    engine, channel, seed = setting.engine, setting.channel, setting.seed
    m, round = len(state.labels), state.round
    correction = setting.method.objective(state, engine.layout)
    if not isinstance(correction, Correction):
        raise ConfigError(f"an objective must return a Correction, got {correction!r}")
    steps = channel.steps(setting.plan, m, round)
    plan = replace(setting.plan, lr=rates(state, setting), done=steps)
    here = channel.present(m, round)
    active = None if here.all() else np.flatnonzero(here).tolist()
    trained, memory, *told = engine.train(state, plan, correction, seed, active)
    if np.shape(trained) != (shape := (m, state.centers.shape[1])):
        raise EngineError(
            f"the engine {engine.name} must return models of shape {shape}, got {np.shape(trained)}"
        )
    replies = told[0] if told else np.where(here, Reply.HEARD, Reply.ABSENT).astype(np.int8)
    models, came = channel.received(state, trained, replies, engine.layout.trainable, seed)
    if came is not None:
        for kept in memory.values():
            kept[came == Reply.NOT_FINITE] = 0
    return state.replace(round=round + 1, trained=models, memory=memory, replies=came)


def rates(state: State, setting: Setting) -> float | F32:
    """η of the coming local update: that of the plan, or what the distribution set.

    >>> rates(State(0, *np.zeros((3, 2))), Setting(None, None, Plan(lr=0.5)))
    0.5
    """
    if setting.rate is None:
        return setting.plan.lr
    if "lr" not in state.memory:
        raise ConfigError("a learning rate that follows the run is set in D: D must precede L")
    return state.memory["lr"]


def _known(state: State, setting: Setting) -> tuple[Bool, Bool]:
    """(m,), whose representation the server has to cluster; and whom it has just heard of.

    Where it follows from the models: those heard in some round before, and in this one. Where
    clients are asked for it: both times those which take part in the coming local update.
    """
    if not setting.method.representation.server_side:
        here = setting.channel.present(len(state.labels), state.round)
        return here, here
    heard = state.heard
    met = np.full_like(heard, state.round > 1) if state.met is None else state.met
    # Whoever is heard first is clustered at once: all start alike.
    return met if met.any() else heard, heard


def _grown(state: State, known: Bool, found: Int, k: int) -> State:
    """With k clusters; a new one begins with the model that most of its clients were sent."""
    if k < len(state.centers):
        raise ConfigError(f"a clustering must keep all {len(state.centers)} clusters, got {k}")
    if found.min() < 0 or found.max() >= k:
        raise ConfigError(f"a clustering must give labels of its {k} clusters, got {found}")
    if k == len(state.centers):
        return state
    new, before = range(len(state.centers), k), state.labels[known]
    origins = [np.bincount(before[found == each], minlength=1).argmax() for each in new]
    return state.replace(centers=np.concatenate([state.centers, state.centers[origins]]))


def _enough(labels: Int, state: State, setting: Setting) -> Bool:
    """(K,), of which clusters there are enough members to show a center made of them."""
    sizes = np.bincount(labels, minlength=len(state.centers))
    return np.asarray(sizes >= setting.channel.min_cluster)


def _importance(setting: Setting) -> F64:
    """λ (m,), which must be positive: a client that counts for nothing has no place in a mean."""
    sizes = setting.engine.sizes
    importance = np.asarray(setting.method.importance(sizes), dtype=np.float64)
    if importance.shape != sizes.shape or not (np.isfinite(importance) & (importance > 0)).all():
        raise ConfigError(
            f"importance must give {len(sizes)} positive numbers, one per client, got {importance}"
        )
    return importance


STEPS: dict[str, Callable[[State, Setting], State]] = {
    "E": expectation,
    "M": maximization,
    "D": distribution,
    "L": local_update,
}

Observer = Callable[[str, State, float], None]
"""Called after each step of a round with its letter, the new state and the seconds it took."""


def check_clusters(method: Method, m: int) -> None:
    """Refuse more clusters than clients: at least one would have to stay empty for ever."""
    if method.at_start > m:
        raise ConfigError(
            f"{method.name} can't form {method.k} clusters of {m} clients; "
            f"ask for at most {m} clusters"
        )


def opening(setting: Setting) -> State:
    """The state before the first local update: the start, through the steps that precede L."""
    method, engine = setting.method, setting.engine
    m = len(engine.sizes)
    check_clusters(method, m)
    which = range(method.at_start) if method.start == "each" else [setting.member]
    starts = engine.starts(which, setting.seed)
    centers = np.repeat(starts, method.at_start // len(starts), axis=0)
    state = State(0, None, centers, labels=np.zeros(m, dtype=np.int64))
    for step in method.order.partition("L")[0]:
        state = STEPS[step](state, setting)
    return state


def iterate(setting: Setting, state: State, *observers: Observer) -> Iterator[State]:
    """The states after each further round, without end; the observers see every step.

    `state` comes from `opening` or from an earlier round.
    """
    before, _, after = setting.method.order.partition("L")
    while True:
        for step in "L" + after + before:
            began = perf_counter()
            state = STEPS[step](state, setting)
            seconds = perf_counter() - began
            for observe in observers:
                observe(step, state, seconds)
        yield state
