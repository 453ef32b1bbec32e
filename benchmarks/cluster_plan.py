"""A plan for a round on many nodes: constants measured on this machine, put into a simple model.

The model, for m clients that take part, n nodes of c cores with an actor each, and P parameters:

    T(n) = m t / (n c)  +  n c o  +  m s  +  B (b + 1 / w)

t: seconds of a core to train and test a client; o: seconds of the call of an actor; s: seconds
of the server per client (E, M, D); B = 4 m P (1 + f), the bytes of the models that come back and of
momentum, which is fetched in a share f of the rounds: in every tenth one in memory, in every one
with a checkpoint in every round; b: seconds to copy a byte through the object store; w: bytes per
second of the network, 10 Gbit/s. Everything that the driver does comes one after the other, so the
plan is careful. No real round on several machines was compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn

from cluster import SETTING, cluster_of
from common import Line, clients_of_a_pool, main, module_of, random_clients
from wecfl import State, make_engine, methods
from wecfl.bilevel import evaluation
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.engine.local import BaseEngine
from wecfl.engine.ray.actor_memory import MAX_REPEATED_EXCHANGES
from wecfl.engine.ray.cluster import imported

MEGABYTES = 64
"""The size of the array with which copying is measured."""
ACTORS = 4
"""Each on a node of its own."""
REPEATS = 5
STEPS = 10
"""Mini-batches of 32 in a round."""
FETCHES = {"": 1 / MAX_REPEATED_EXCHANGES, ", checkpoints": 1.0}
"""The share of rounds in which momentum is fetched, in memory and with checkpoints."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What was measured, in seconds."""

    train: float
    """Of a core, for each client."""
    call: float
    """Of each actor that is called."""
    server: float
    """For each client."""
    copy: float
    """For each byte."""
    parameters: int

    def round(
        self, clients: int, nodes: int, fetched: float, *, cores: int = 16, network: float = 1.25e9
    ) -> float:
        """The seconds of a round of so many clients; one node needs no network and no store."""
        work = clients * self.train / (nodes * cores) + clients * self.server
        if nodes == 1:
            return work
        sent = 4 * clients * self.parameters * (1 + fetched)
        return work + nodes * cores * self.call + sent * (self.copy + 1 / network)


def lines(clients: int = 10_000, cores: int = 16) -> list[Line]:
    """The constants, and the seconds of a round on 1 to 100 nodes, for two amounts of work."""
    found = measured()
    title = f"{SETTING.title}, {clients:,} clients"
    told = [
        Line("train and test a client", title, [1e3 * found.train], unit="ms"),
        Line("call of an actor", title, [1e3 * found.call], unit="ms"),
        Line("server, per client", title, [1e3 * found.server], unit="ms"),
        Line("copy through the store", title, [1e9 * found.copy], unit="s/GB"),
    ]
    for steps in (STEPS, 10 * STEPS):
        work = replace(found, train=found.train * steps / STEPS)
        for nodes in (1, 4, 16, 100):
            name = f"{steps} steps, {nodes} node{'s' if nodes > 1 else ''} of {cores} cores"
            for how, fetched in FETCHES.items():
                seconds = work.round(clients, nodes, fetched, cores=cores)
                told.append(Line(name + how, title, [seconds], unit="s"))
    return told


def measured() -> Constants:
    """Measure the constants on this machine; a cluster of four nodes is started."""
    fed, model = random_clients(SETTING, 40), module_of(SETTING)
    with make_engine("native", fed, model, workers=1) as engine:
        train, server = _round_of(engine)
        width = engine.layout.width
    few = clients_of_a_pool((4,), ACTORS, train=2, test=1)
    with cluster_of(ACTORS) as address:
        small: Any = {"workers": ACTORS, "address": address}
        with make_engine("ray", few, nn.Linear(4, 10), **small) as engine:
            rows = np.zeros((len(few), engine.layout.width), np.float32)
            call = _median(lambda: evaluation.risk(engine, rows)) / ACTORS
        copy = _copy()
    return Constants(train, call, server, copy, width)


def _median(work: Any) -> float:
    """Seconds of a call, the median after one to warm up."""
    taken = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        work()
        taken.append(perf_counter() - began)
    return median(taken[1:])


def _round_of(engine: BaseEngine) -> tuple[float, float]:
    """Seconds of training and testing, and of all other steps of a round, for each client."""
    steps: dict[str, list[float]] = {}

    def observe(step: str, state: State, seconds: float) -> None:
        steps.setdefault(step, []).append(seconds)

    setting = Setting(methods.wecfl(k=10), engine, LocalPlan(STEPS, 32, 0.001, 0.9), 0)
    rounds = iterate(setting, opening(setting), observe)
    state = next(rounds)
    for _ in range(REPEATS):
        state = next(rounds)
    test = _median(lambda: evaluation.tallies(engine, state.models, "test"))
    m = len(engine.sizes)
    train = median(steps["L"][1:]) + test
    return train / m, sum(median(steps[step][1:]) for step in "EMD") / m


def _copy() -> float:
    """Seconds for each byte from an actor's memory to an array of the driver."""
    ray = imported()

    @ray.remote
    def rows() -> Any:
        return np.ones(MEGABYTES << 18, np.float32)

    def work() -> None:
        ray.get(rows.remote()).copy()

    return _median(work) / (MEGABYTES << 20)


if __name__ == "__main__":
    main(lines)
