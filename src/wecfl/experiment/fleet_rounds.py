"""The rounds of a fleet: the clients that take part, and one stand-in for each cluster.

A round of a fleet is a round of a small federation. An absent client counts in Algorithm 1 only by
its label and its λ_i: its model is the center of its cluster. So a stand-in represents all absent
clients of cluster k, as one point Ω_k with the sum of their λ_i. Another stand-in, which counts
nothing, represents the clients that were never heard. Stand-ins are never asked. The result is that
of a run with a row for every registered client, up to rounding and the numbers of the clusters
(`tests/test_fleet.py`). But the cost of a round grows only with its participants.

A client that takes part for the first time is asked which cluster serves it best (`by_losses`).

The state of a fleet is a `State` in which the labels, and `met`, `weight` (λ_i) and `samples` of
`known`, have a value for every registered client. Its `memory` has rows only for the clients that
keep something: `client` are their numbers, and `sketch` is what the server keeps of them
(`Sketches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, final

import numpy as np

from wecfl import memory
from wecfl.bilevel.clustering.joining import by_losses
from wecfl.bilevel.representation.sketches import Sketches
from wecfl.core.clients import Clients
from wecfl.core.engine import EngineAround
from wecfl.core.program import Answers, Job, Sent
from wecfl.core.rounds import Observer, iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.traffic import Metered
from wecfl.core.turns import participants
from wecfl.core.types import F32, F64, Bool, Int, Table, without
from wecfl.data.federation import Federation
from wecfl.data.fleet import AnyFleet
from wecfl.engine.kept_rows import KeptRows
from wecfl.engine.stand_ins import StandInEngine
from wecfl.experiment.assembly import Experiment
from wecfl.experiment.training import OpenExperiment
from wecfl.folder.stored_clients import StoredClients
from wecfl.options import Rounds
from wecfl.runs.diagnostics import Diagnostics
from wecfl.runs.fleet_result import FleetResult, no_reference
from wecfl.runs.member_reference import Reference
from wecfl.runs.newcomers import NewcomerSetup
from wecfl.runs.record import Record, Recorder

__all__ = ["FleetRecorder", "OpenFleet", "PresentEngine"]

SKETCHES = Sketches()
"""The sketches that are kept of absent clients if the server chooses K."""


@final
class PresentEngine(EngineAround):
    """The engine of the clients that take part in the current round."""

    def __init__(
        self,
        fleet: AnyFleet,
        active: int,
        seed: int,
        experiment_on: Callable[[Federation], Experiment],
    ) -> None:
        self._fleet, self._active, self._seed = fleet, active, seed
        self._experiment_on = experiment_on
        self._stack, self._round = ExitStack(), 0
        self.seconds: dict[str, float] = {}
        """The time to load the data of the round, and to start its engine."""

    def move_to(self, round: int) -> None:
        """Load the data of the clients that take part in this round."""
        if round == self._round:
            return
        self.close()
        began = perf_counter()
        self.who = participants(len(self._fleet), self._active, self._seed, round - 1)
        experiment = self._experiment_on(self._fleet.federation(self.who))
        loaded = perf_counter() - began
        self.opened: OpenExperiment = self._stack.enter_context(experiment.open())
        self._engine, self._round = self.opened.engine, round
        self.seconds = {"load": loaded, "start": perf_counter() - began - loaded}

    def close(self) -> None:
        """Close the engine of the current round."""
        self._stack.close()

    @property
    def sizes(self) -> Int:
        """(n,), |D_i| of the clients that take part."""
        return self._engine.sizes

    def ask(self, job: Job, sent: Sent, who: Int | None = None, memory: Table = {}) -> Answers:  # noqa: B006
        """Ask clients that take part."""
        return self._engine.ask(job, sent, who, memory)


@dataclass(frozen=True, slots=True)
class _Given:
    """The importance λ with these values, whatever the sizes."""

    values: F64

    def __call__(self, sizes: Int) -> F64:
        return self.values


@final
class FleetRecorder:
    """Returns the record of each round, which the round itself has made (`Recording`)."""

    def __init__(self, experiment: Experiment) -> None:
        self._every = experiment.measure.score_every
        self._last = Rounds.of(experiment.rounds).count
        self.record: Record = {}

    def begin(self, labels: Int, diagnostics: Diagnostics | None = None) -> None:
        """Nothing to do."""

    def may_end(self, round: int) -> bool:
        """Whether clients are tested in this round."""
        return round % self._every == 0 or round == self._last

    def round(self, states: Sequence[State]) -> Record:
        """The record of the round."""
        return self.record

    def of(self, setting: Setting, clients: Clients, metered: Metered) -> Recorder:
        """The recorder of one round of these clients."""
        return Recorder(
            setting, clients, metered, objectives=False, score_every=self._every, rounds=self._last
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class OpenFleet:
    """A fleet that is ready to be trained (`wecfl.experiment.training.Opened`)."""

    fleet: AnyFleet
    experiment: Experiment
    """The experiment on one client of the fleet."""
    engine: PresentEngine
    kept: KeptRows
    recorder: FleetRecorder
    about: Mapping[str, Any]
    stored: bool
    """Whether states hold the rows of what clients keep, for checkpoints."""
    newcomer_engine: None = None

    @property
    def measured(self) -> Setting:
        """The setting of any round."""
        given = self.engine.opened.measured
        return replace(given, engine=self.engine, channel=replace(given.channel, keys=None))

    @property
    def clients(self) -> StoredClients:
        """What is known about the registered clients; their numbers of samples are not."""
        one, m = self.experiment.members, len(self.fleet)
        return StoredClients(
            self.fleet.names, np.zeros(m, np.int64), self.fleet.groups, None, one.shape,
            one.classes, self.fleet.fingerprint,
        )  # fmt: skip

    def result(self, *fields: Any) -> FleetResult:
        """The result; its clients are those that were heard."""
        made = FleetResult(*fields)
        heard, known, groups = np.flatnonzero(made.heard), made.states[0].known, self.fleet.groups
        clients = replace(
            self.clients,
            names=[str(self.fleet.names[i]) for i in heard.tolist()],
            sizes=known["samples"][heard],
            groups=None if groups is None else np.asarray(groups)[heard],
        )
        return replace(made, federation=clients, refer=no_reference)

    def reference(self, state: State, setup: NewcomerSetup) -> Reference:
        """Newcomers of a fleet are refused."""
        return no_reference(state)

    def begin(self) -> tuple[State, ...]:
        """The state before the first round."""
        m, first = len(self.fleet), opening(self._setting(np.ones(len(self.engine.who))))
        known: Table = {
            "met": np.zeros(m, np.bool_),
            "weight": np.zeros(m),
            "samples": np.zeros(m, np.int64),
        }
        return (replace(first, labels=np.zeros(m, np.int64), known=known),)

    def paths(
        self, states: Sequence[State], observers: Sequence[Observer], in_place_above: float
    ) -> list[Iterator[State]]:
        """The states of the fleet after each further round; observers see who takes part."""
        [state] = states
        if "client" in state.memory:  # the run is resumed
            self.kept.put(state.memory["client"], without(["client"], state.memory))
        return [self._path(replace(state, memory={}), observers, in_place_above)]

    def _path(
        self, state: State, observers: Sequence[Observer], in_place_above: float
    ) -> Iterator[State]:
        while True:
            self.engine.move_to(state.round + 1)
            state = self._round(state, observers)
            yield replace(state, memory=self.kept.rows(in_place_above) if self.stored else {})

    def _round(self, fleet: State, observers: Sequence[Observer]) -> State:
        """The state of the fleet after one round of the clients that take part."""
        who, opened = self.engine.who, self.engine.opened
        n, met, weight = len(who), fleet.known["met"], fleet.known["weight"]
        absent = weight.copy()
        absent[who] = 0
        behind = np.bincount(fleet.labels, absent, len(fleet.centers))
        clusters = np.flatnonzero(behind > 0)
        never = int(np.count_nonzero(met) + np.count_nonzero(~met[who]) < len(met))
        own = np.asarray(self.experiment.method.importance(opened.engine.sizes), np.float64)
        setting = self._setting(np.concatenate([own, behind[clusters], np.ones(never)]))
        if fleet.round == 0:
            state = opening(setting)
        else:
            heard = np.concatenate([met[who], np.ones(len(clusters), bool), np.zeros(never, bool)])
            state = replace(
                fleet,
                labels=np.concatenate([fleet.labels[who], clusters, np.zeros(never, np.int64)]),
                known={} if heard.all() else {"met": heard},
            )
        present = replace(opened.measured, engine=StandInEngine(opened.engine, who, 0, self.kept))
        metered = opened.settings[0].engine
        assert isinstance(metered, Metered)
        recorder = self.recorder.of(present, opened.clients, metered)
        if fleet.round:
            recorder.begin(fleet.labels[who])

        sketched: F32 | None = None

        def observe(step: str, whole: State, seconds: float) -> None:
            nonlocal sketched
            without_stand_ins = whole.take(slice(n))
            if step == "L" and setting.method.k == "auto" and without_stand_ins.heard.any():
                sketched = SKETCHES.of(
                    without_stand_ins, present.method, present.engine, setting.seed
                )
            for observer in (recorder.step, *observers):
                observer(step, without_stand_ins, seconds)

        state = next(iterate(setting, state, observe))
        after = self._remembered(fleet, state, clusters, own)
        if sketched is not None:
            after = self._placed(fleet, after, sketched, state.heard[:n])
        self.recorder.record = self._recorded(recorder.round([state.take(slice(n))]), after)
        return after

    def _setting(self, importance: F64) -> Setting:
        """The setting of a round; stand-ins come after the clients."""
        given, who = self.engine.opened.settings[0], self.engine.who
        extra = len(importance) - len(who)
        keys = np.concatenate([who, len(self.fleet) + np.arange(extra)])
        away = np.arange(len(importance)) >= len(who)
        return replace(
            given,
            engine=StandInEngine(given.engine, who, extra, self.kept),
            method=given.method.replace(importance=_Given(importance)),
            joining=by_losses,
            channel=replace(given.channel, keys=keys, away=away),
        )

    def _remembered(self, fleet: State, state: State, clusters: Int, own: F64) -> State:
        """The state of the whole fleet; absent clients have the cluster of their stand-in."""
        who, table = self.engine.who, np.arange(len(state.centers))
        n = len(who)
        table[clusters] = state.labels[n : n + len(clusters)]
        labels = table[fleet.labels] if (table[clusters] != clusters).any() else fleet.labels.copy()
        labels[who] = state.labels[:n]
        met, weight, samples = (fleet.known[name].copy() for name in ("met", "weight", "samples"))
        met[who] = True if state.met is None else state.met[:n]
        weight[who] = np.where(met[who], own, 0)
        samples[who] = self.engine.sizes
        return replace(
            state,
            replies=None,
            labels=labels,
            known={"met": met, "weight": weight, "samples": samples},
        )

    def _placed(self, before: State, after: State, sketches: F32, heard: Bool) -> State:
        """The state after clusters were divided: absent clients join where their sketch points."""
        who, known, labels = self.engine.who[heard], len(before.centers), after.labels
        absent = before.known["met"].copy()
        absent[self.engine.who] = False
        if len(after.centers) > known and absent.any():
            others, labels = np.flatnonzero(absent), labels.copy()
            kept = self.kept.take(others, ["sketch"])["sketch"]
            labels[others] = SKETCHES.placed(kept, labels[others], sketches, labels[who], known)
        self.kept.put(who, {"sketch": sketches})
        return replace(after, labels=labels)

    def _recorded(self, record: Record, fleet: State) -> Record:
        """The record of the clients that took part, and what is known of all that were heard."""
        who = self.engine.who
        sizes = np.bincount(fleet.labels[fleet.known["met"]], minlength=len(fleet.centers))
        return {
            **record,
            "clusters": int((sizes > 0).sum()),
            "sizes": sizes.tolist(),
            "heard": int(sizes.sum()),
            "memory": {"kept": self.kept.nbytes, "peak": memory.peak()},
            "clients": {
                **record["clients"],
                "number": who.tolist(),
                "cluster": fleet.labels[who].tolist(),
            },
            "seconds": self.engine.seconds | record["seconds"],
        }
