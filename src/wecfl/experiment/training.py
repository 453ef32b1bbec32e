"""Trains an open experiment round by round, and calls its watchers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pandas as pd

from wecfl.core.channel import Channel
from wecfl.core.clients import Clients
from wecfl.core.engine import Engine
from wecfl.core.rounds import Observer, iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.data.federation import Federation
from wecfl.data.remarks import data_remarks
from wecfl.errors import ConfigError
from wecfl.folder.distance_trace import MAX_TRACED_CLIENTS, DistanceTrace
from wecfl.folder.newcomer_reference import write_reference
from wecfl.folder.readers import read_metrics, read_summary
from wecfl.folder.writer import LARGE_STATE_BYTES, RunFolder, environment
from wecfl.methods import component_words, components, structure
from wecfl.models import Module, is_logistic, unpacked_parts
from wecfl.options import Rounds
from wecfl.runs.diagnostics import Diagnostics
from wecfl.runs.member_reference import Reference
from wecfl.runs.newcomers import Assigner, NewcomerSetup
from wecfl.runs.record import Record, Recorder, Recording
from wecfl.runs.result import Result, Status
from wecfl.runs.simulated_newcomers import newcomer_table
from wecfl.runs.watcher import AfterRound, OnRound, Watcher

if TYPE_CHECKING:
    from wecfl.experiment.assembly import Experiment

__all__ = ["OpenExperiment", "Opened", "train"]


class Opened(Protocol):
    """What can be trained: an open experiment, or an open fleet (`wecfl.experiment.fleet`)."""

    @property
    def measured(self) -> Setting:
        """The setting of the first run, with an engine that does not count what is sent."""

    @property
    def engine(self) -> Engine:
        """The engine of the clients that are trained."""

    @property
    def recorder(self) -> Recording:
        """Makes the record of each round."""

    @property
    def clients(self) -> Clients:
        """The clients that are trained."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What `config.toml` says in addition to the choices of the experiment."""

    @property
    def newcomer_engine(self) -> Engine | None:
        """The engine of the clients that are kept out of the training, if there are some."""

    @property
    def result(self) -> Callable[..., Result]:
        """Makes the result from its fields."""

    def begin(self) -> tuple[State, ...]:
        """The states before the first round, one for each run of a soft vote."""

    def paths(
        self, states: Sequence[State], observers: Sequence[Observer], in_place_above: float
    ) -> list[Iterator[State]]:
        """The states after each further round, without an end; observers see the first run.

        If the clients' memory has more bytes than `in_place_above`, it is overwritten (`Setting`).
        """

    def reference(self, state: State, setup: NewcomerSetup) -> Reference:
        """What newcomers are compared with."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenExperiment:
    """An experiment whose engines are open, ready to be trained."""

    settings: Sequence[Setting]
    """One setting, or one for each run of a soft vote; their engine counts what is sent."""
    measured: Setting
    """The first setting, but with an engine that does not count: it only measures the run."""
    recorder: Recorder
    held: Federation | Clients
    """The clients that are trained, with the data that attackers have changed."""
    clients: Clients
    """The clients that are trained."""
    newcomer_engine: Engine | None
    """The engine of the clients that are kept out of the training, if there are some."""
    about: Mapping[str, Any] = field(default_factory=dict)
    result: Callable[..., Result] = Result

    @property
    def engine(self) -> Engine:
        """The engine of the clients that are trained."""
        return self.measured.engine

    def begin(self) -> tuple[State, ...]:
        """The states before the first round."""
        return tuple(map(opening, self.settings))

    def paths(
        self, states: Sequence[State], observers: Sequence[Observer], in_place_above: float
    ) -> list[Iterator[State]]:
        """The states after each further round (`Opened`)."""
        settings = [replace(setting, in_place_above=in_place_above) for setting in self.settings]
        return [
            iterate(setting, state, self.recorder.step, *([] if j else observers))
            for j, (setting, state) in enumerate(zip(settings, states, strict=True))
        ]

    def reference(self, state: State, setup: NewcomerSetup) -> Reference:
        """What newcomers are compared with. Private members only repeat an old update."""
        known = None
        if isinstance(self.held, Federation) and not setup.privacy:
            known = self.held.at(max(state.round, 1))
        return Reference.of(self.measured, state, known, setup.engine_for)


def train(
    experiment: Experiment,
    opened: Opened,
    folder: RunFolder | None,
    observe: Observer | None,
) -> Result:
    """Run the rounds of an open experiment, and return the result."""
    clients, recorder, engine = opened.clients, opened.recorder, opened.engine
    setting, rounds = opened.measured, Rounds.of(experiment.rounds).judged_by(engine.task)
    saved = folder.saved if folder else None
    records = _earlier(folder, rounds, recorder)
    began = perf_counter() - (saved.manifest.seconds if saved else 0.0)
    states = saved.states if saved else opened.begin()
    del saved  # so that its matrices are freed when the run moves on
    newcomer_setup, kept_out = experiment.newcomer_setup(setting), experiment.kept_out
    diagnostics = None
    if experiment.measure.diagnostics:
        diagnostics = _diagnostics(setting, states[0], records, newcomer_setup.module)
    recorder.begin(states[0].labels, diagnostics)
    # In a soft vote, these see only the first run.
    trace = _distance_trace(experiment.measure.trace, opened, folder)
    possible = (observe, diagnostics and diagnostics.step, trace)
    observers = [observer for observer in possible if observer]
    watchers = _watchers(experiment.watch, folder)
    # If a round fails, large rows may be half overwritten, so the last state must be on the disk.
    safe = not diagnostics and (folder is None or folder.every == 1)
    paths = opened.paths(states, observers, LARGE_STATE_BYTES if safe else inf)
    begun: list[Watcher] = []  # the watchers whose `end` must be called
    status: Status = "failed"
    asked, stopped = None, _reason(rounds, records, recorder)
    reference: Reference | None = None
    newcomers: pd.DataFrame | None = None
    _tell(clients, bool(unpacked_parts(newcomer_setup.module)))
    env = _environment(opened, newcomer_setup)
    try:  # from here on the experiment is known to be valid
        config = _written(experiment, opened)
        for watcher in watchers:
            watcher.begin(config, env, clients)
            begun.append(watcher)
        while len(records) < rounds.count and not stopped:
            engine.move_to(len(records) + 1)
            reached = tuple(next(path) for path in paths)
            records.append(recorder.round(reached))
            states = reached
            for watcher in watchers:
                asked = watcher.round(records[-1], states) or asked
            stopped = _reason(rounds, records, recorder, asked)
        if kept_out:
            reference = opened.reference(states[0], newcomer_setup)
            newcomers = _received(opened, kept_out, newcomer_setup, reference, states)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        result = opened.result(
            setting.method, clients, records, states, newcomer_setup.module, engine.name,
            perf_counter() - began, setting.seed, newcomer_setup,
            partial(_refer, experiment, setting.member, folder), status,
            folder.path if folder else None,
            experiment.privacy, reference, newcomers,
            experiment.newcomers.unseen if experiment.newcomers else None,
            stopped if len(records) < rounds.count else None,
        )  # fmt: skip
        for watcher in begun:
            watcher.end(result)
    return result


def _diagnostics(
    setting: Setting, state: State, records: Sequence[Record], module: Module
) -> Diagnostics:
    """What measures the quantities of the theory, from the state after these records."""
    cross_entropy = setting.engine.task.kernel == {"loss": "cross-entropy"}
    logistic = is_logistic(module) and cross_entropy
    return Diagnostics(setting, state, records[-1] if records else None, logistic=logistic)


def _written(experiment: Experiment, opened: Opened) -> dict[str, Any]:
    """The configuration, as watchers are told it."""
    return {
        **(experiment.written or _described(experiment, opened.measured)),
        "task": experiment.fitted.text,
        **opened.about,
    }


def _environment(opened: Opened, setup: NewcomerSetup) -> dict[str, Any]:
    """What the run is made with: programs, the machine, the engine and the model."""
    engine = opened.engine
    return environment() | {
        "engine": engine.name, "workers": engine.workers, "nodes": engine.nodes,
        "model": setup.blueprint.written(),
    }  # fmt: skip


def _distance_trace(
    wanted: bool | None, opened: Opened, folder: RunFolder | None
) -> Observer | None:
    """The observer that records the distances between clients, if that is `wanted`.

    If `wanted` is None, they are recorded unless there are too many clients.
    """
    if folder is None or wanted is False:
        return None
    if wanted is None and len(opened.clients) > MAX_TRACED_CLIENTS:
        return None
    setting = opened.measured
    return DistanceTrace(folder.path, setting.method, opened.engine, setting.seed).step


def _received(
    opened: Opened,
    kept_out: Federation,
    setup: NewcomerSetup,
    reference: Reference,
    states: Sequence[State],
) -> pd.DataFrame:
    """One row for each client that was kept out, with its cluster."""
    engine, round = opened.newcomer_engine, states[0].round
    assert engine
    engine.move_to(round)
    assigner = Assigner(setup, reference, np.stack([state.centers for state in states]))
    return newcomer_table(assigner.receive(kept_out, engine=engine), kept_out.at(round).groups)


def _earlier(folder: RunFolder | None, rounds: Rounds, recorder: Recording) -> list[Record]:
    """The records of a run that is resumed; an error if the run has ended."""
    if folder is None or folder.saved is None:
        return []
    records = read_metrics(folder.path, folder.saved.round)
    if len(records) >= rounds.count + (not folder.ended):
        raise ConfigError(
            f"{folder.path} already has {len(records)} rounds, got rounds = {rounds.count}: to "
            f"continue, ask for more rounds"
        )
    stopped = _reason(rounds, records, recorder)
    if stopped and folder.ended and read_summary(folder.path)["status"] == "finished":
        raise ConfigError(
            f"{folder.path} has ended, since {stopped}: to continue, set until to rounds"
        )
    return records


def _reason(
    rounds: Rounds, records: Sequence[Record], recorder: Recording, asked: str | None = None
) -> str | None:
    """Why the run ends after these records, because a watcher has `asked` for it, or by a rule."""
    if not records or not recorder.may_end(records[-1]["round"]):
        return None
    found = asked or (rounds.until and rounds.until(records))
    if not found:
        return None
    return found if isinstance(found, str) else f"{component_words(rounds.until)} says so"


def _watchers(given: Sequence[Watcher | OnRound], folder: RunFolder | None) -> list[Watcher]:
    """The watchers of a run; the folder is the first of them, if there is one."""
    wrapped = [one if isinstance(one, Watcher) else AfterRound(one) for one in given]
    return [folder, *wrapped] if folder else wrapped


def _tell(clients: Clients, packed: bool) -> None:
    """Log what the user should know about the data."""
    for line in data_remarks(clients, tokens=packed) if isinstance(clients, Federation) else ():
        logging.getLogger("wecfl").warning("wecfl: %s", line)


def _refer(
    experiment: Experiment, member: int, folder: RunFolder | None, state: State
) -> Reference:
    """What newcomers are compared with. It is stored in the run folder, if there is one."""
    made = experiment.reference(state, member)
    if folder:
        write_reference(made, folder.path)
    return made


def _described(experiment: Experiment, setting: Setting) -> dict[str, Any]:
    """A description of a run from Python values. The run can't be repeated from it."""
    method, model, rounds = setting.method, experiment.model, Rounds.of(experiment.rounds)
    plan = asdict(setting.plan) | ({"lr": "theory"} if setting.rate else {})
    if setting.schedule:
        plan["schedule"] = component_words(setting.schedule)
    privacy, newcomers = experiment.privacy, experiment.newcomers
    further = {
        "batchnorm": experiment.measure.batchnorm,
        "privacy": asdict(privacy) if privacy else None,
        "unseen": newcomers.unseen if newcomers else None,
    }
    return {
        "method": method.name,
        "clusters": method.k,
        "rounds": rounds.count,
        **({"until": component_words(rounds.until)} if rounds.until else {}),
        "seed": experiment.seed,
        "model": model if isinstance(model, str) else type(model).__name__,
        "plan": {name: value for name, value in plan.items() if value is not None},
        "conditions": _described_conditions(setting.channel),
        "components": components(method),
        "structure": structure(method),
        "further": {name: value for name, value in further.items() if value is not None},
    }


def _described_conditions(channel: Channel) -> dict[str, Any]:
    """The conditions that differ from the defaults."""
    default = Channel()
    names = (
        "participation", "dropout", "stragglers", "refuse_above", "shorten_above", "min_cluster",
        "joining", "joining_round", "attack", "privacy",
    )  # fmt: skip
    found = {
        name: getattr(channel, name)
        for name in names
        if getattr(channel, name) != getattr(default, name)
    }
    if channel.attackers is not None:
        found["attackers"] = np.flatnonzero(channel.attackers)
    return {
        name: value if isinstance(value, float | int | np.ndarray) else repr(value)
        for name, value in found.items()
    }
