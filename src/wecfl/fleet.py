"""Runs on a fleet: a million registered clients, of which a thousand take part in a round.

A round of a fleet is a round of a small federation. It has the clients that take part, and one
stand-in for each cluster. A client that is absent counts in Algorithm 1 only by its label and its
λ_i: its model is the center of its cluster. So all absent clients of cluster k are one point Ω_k
with the sum of their λ_i. One more stand-in, which counts nothing, is there for those that were
never heard. Stand-ins are never asked. What comes out is what a run with a row for every registered
client would give, up to rounding and the numbers of the clusters (`tests/test_fleet.py`), and a
round costs as much as it has participants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from wecfl import metrics
from wecfl.bilevel.evaluation import served_tallies
from wecfl.core.method import Method
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.task import Task
from wecfl.core.turns import participants
from wecfl.core.types import F32, F64, Bool, Int
from wecfl.data.fleet import Fleet
from wecfl.engine.kept_rows import KeptRows
from wecfl.engine.stand_ins import StandInEngine
from wecfl.errors import ConfigError
from wecfl.experiment import Experiment
from wecfl.limits import check_whole
from wecfl.models import Model
from wecfl.options import Compute, Measure, Plan
from wecfl.runs.json_values import json_number
from wecfl.training import OpenExperiment

__all__ = ["FleetResult", "run_fleet"]

OnFleetRound = Callable[[Mapping[str, Any]], None]
"""Called after each round with its record."""


@dataclass(frozen=True, slots=True, eq=False)
class FleetResult:
    """What a run on a fleet has come to."""

    method: Method
    centers: F32
    """(K, P), the models of the clusters."""
    labels: Int
    """(m,), the cluster of each client; −1: it was never heard."""
    records: Sequence[Mapping[str, Any]]
    """For each round: scores of those that took part, the sizes of the clusters among all that were
    heard (`heard`, `sizes`), and the seconds of each step."""
    groups: Int | None = None

    def agreement(self) -> dict[str, float | None]:
        """ARI and NMI of the assignment and the hidden groups, over the clients that were heard."""
        heard = self.labels >= 0
        return metrics.agreement(
            self.labels[heard], None if self.groups is None else self.groups[heard]
        )


def run_fleet(
    fleet: Fleet,
    method: Method,
    *,
    active: int = 1000,
    model: Model = "auto",
    task: Task | str = "auto",
    rounds: int = 30,
    plan: Plan = Plan(),  # noqa: B008  (frozen)
    seed: int = 0,
    engine: Compute = Compute(),  # noqa: B008
    memory: float = 1.0,
    watch: OnFleetRound | None = None,
) -> FleetResult:
    """Train a fleet: in each round `active` clients take part, in turns (`wecfl.core.turns`).

    The other arguments are those of `wecfl.run`. Rows of what clients keep, such as momentum, exist
    for those that took part; a table of them above `memory` gigabytes is a file on disk.

    >>> rng = np.random.default_rng(0)
    >>> def load(number):                                       # two kinds of clients
    ...     y = rng.integers(0, 2, 20) + 2 * (number % 2)
    ...     return np.eye(4, dtype=np.float32)[y], y
    >>> fleet = Fleet(range(100_000), load, classes=4, groups=np.arange(100_000) % 2)
    >>> import wecfl
    >>> result = run_fleet(fleet, wecfl.methods.wecfl(k=2), active=20, model="logistic", rounds=3,
    ...                    plan=Plan(lr=0.1))
    >>> result.agreement()["ari"], (result.labels >= 0).sum()
    (1.0, np.int64(60))
    """
    check_whole(active=(active, 1), rounds=(rounds, 1))
    if not memory >= 0:
        raise ConfigError(f"memory must be a number of gigabytes, at least 0, got {memory}")
    _check(method, plan, engine)
    run = _Run(fleet, method, KeptRows(len(fleet), memory * 1e9))
    records: list[Mapping[str, Any]] = []
    prepared = partial(
        Experiment, method=method, model=model, task=task, plan=plan, seed=seed, engine=engine,
        measure=Measure(objectives=False),
    )  # fmt: skip
    try:
        for round in range(rounds):
            began = perf_counter()
            who = participants(len(fleet), active, seed, round)
            experiment = prepared(fleet.federation(who))
            loaded = perf_counter() - began
            with experiment.open() as opened:
                started = perf_counter() - began - loaded
                record = run.round(who, opened)
            record["seconds"] = {"load": loaded, "start": started, **record["seconds"]}
            records.append(record)
            if watch:
                watch(record)
    finally:
        run.kept.close()
    labels = np.where(run.met, run.labels, -1)
    return FleetResult(method, run.server.centers, labels, records, fleet.groups)


def _check(method: Method, plan: Plan, engine: Compute) -> None:
    """Refuse a method for which absent clients are more than a label and a weight."""
    further = [step for step in (*method.opening, *method.steps) if not isinstance(step, str)]
    if method.members > 1 or further or method.representation.asks:
        raise ConfigError(
            f"{method.name} can't run on a fleet: the server would keep more of an absent client "
            f"than its cluster; use a method whose rounds are L, E, M and D, such as wecfl"
        )
    if engine.engine == "ray":
        raise ConfigError("a fleet trains on this machine: choose engine auto, native or torch")
    if plan.follows(method.plan):
        raise ConfigError("lr theory needs every client in every round: give a fleet a number")


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """λ as it is known, whatever the sizes."""

    values: F64

    def __call__(self, sizes: Int) -> F64:
        return self.values


@dataclass(slots=True, eq=False)
class _Run:
    """What the server has between the rounds: a label, a weight and a bit for every client."""

    fleet: Fleet
    method: Method
    kept: KeptRows
    labels: Int = field(init=False)
    met: Bool = field(init=False)
    weight: F64 = field(init=False)
    """(m,), λ_i of the clients that were heard, and 0 for the others."""
    server: State = field(init=False)
    """The state without clients."""

    def __post_init__(self) -> None:
        m = len(self.fleet)
        self.labels = np.zeros(m, np.int64)
        self.met, self.weight = np.zeros(m, np.bool_), np.zeros(m)
        self.server = State(0, None, np.zeros((1, 0), np.float32), np.zeros(0, np.int64))

    def round(self, who: Int, opened: OpenExperiment) -> dict[str, Any]:
        """One round of the clients in `who` and of the stand-ins."""
        n, server = len(who), self.server
        absent = self.weight.copy()
        absent[who] = 0
        behind = np.bincount(self.labels, absent, len(server.centers))
        clusters = np.flatnonzero(behind > 0)
        never = int(np.count_nonzero(self.met) + np.count_nonzero(~self.met[who]) < len(self.fleet))
        own = np.asarray(self.method.importance(opened.engine.sizes), np.float64)
        setting = self._setting(
            who, opened, np.concatenate([own, behind[clusters], np.ones(never)])
        )
        if server.round == 0:
            state = opening(setting)
        else:
            met = np.concatenate(
                [self.met[who], np.ones(len(clusters), bool), np.zeros(never, bool)]
            )
            state = replace(
                server,
                labels=np.concatenate([self.labels[who], clusters, np.zeros(never, np.int64)]),
                known={} if met.all() else {"met": met},
            )
        seconds: dict[str, float] = {}
        state = next(iterate(setting, state, lambda step, _, spent: seconds.update({step: spent})))
        self._remember(who, state, clusters, own)
        began = perf_counter()
        here = np.arange(len(state.labels)) < n
        tallies = served_tallies(
            setting.engine, self.method, state.take(here), setting.plan, setting.seed
        )["after"]
        scores = opened.engine.task.scores(tallies)
        seconds["score"] = perf_counter() - began
        sizes = np.bincount(self.labels[self.met], minlength=len(state.centers))
        return {
            "round": state.round,
            **{
                name: json_number(metrics.weighted(each, opened.engine.sizes))
                for name, each in scores.items()
            },
            "heard": int(sizes.sum()),
            "sizes": sizes.tolist(),
            "seconds": seconds,
        }

    def _setting(self, who: Int, opened: OpenExperiment, importance: F64) -> Setting:
        """The setting of a round; stand-ins come after the clients."""
        given, extra = opened.settings[0], len(importance) - len(who)
        away = np.arange(len(importance)) >= len(who)
        keys = np.concatenate([who, len(self.fleet) + np.arange(extra)])
        return replace(
            given,
            engine=StandInEngine(opened.engine, who, extra, self.kept),
            method=given.method.replace(importance=_Given(importance)),
            channel=replace(given.channel, keys=keys, away=away),
        )

    def _remember(self, who: Int, state: State, clusters: Int, own: F64) -> None:
        """Write back what the round has found; absent clients go where their stand-in went."""
        n, table = len(who), np.arange(len(state.centers))
        table[clusters] = state.labels[n : n + len(clusters)]
        if (table[clusters] != clusters).any():
            self.labels = table[self.labels]
        self.labels[who] = state.labels[:n]
        self.met[who] = True if state.met is None else state.met[:n]
        self.weight[who] = np.where(self.met[who], own, 0)
        self.server = replace(state, replies=None, labels=np.zeros(0, np.int64), known={})
