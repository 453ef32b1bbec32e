"""The server's app: it reads a run's configuration, enrols the clients and runs the experiment."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wecfl.bilevel.programs import encoded
from wecfl.bilevel.representation.told import Told
from wecfl.config import Config
from wecfl.config.keys import METHOD_OPTIONS
from wecfl.config.resolve import resolve
from wecfl.core.clients import Clients
from wecfl.core.method import Method
from wecfl.core.program import Job
from wecfl.core.state import Reply, State
from wecfl.core.task import Task
from wecfl.enrolment import Enrolment
from wecfl.errors import ConfigError, unknown
from wecfl.experiment import Experiment
from wecfl.flower.client import MakeModel
from wecfl.flower.engine import FlowerEngine
from wecfl.flower.messages import reply_bytes
from wecfl.flower.network_task import network_task
from wecfl.flower.roster import ROSTER_FILE, Roster, RosterWriter
from wecfl.from_config import options_of, written
from wecfl.methods import options
from wecfl.models import make
from wecfl.options import Folder
from wecfl.printing import log
from wecfl.report.sentences import round_words
from wecfl.runs.record import Record
from wecfl.runs.result import Result
from wecfl.validation import one_line

__all__ = ["NetworkOptions", "serve", "server_app"]

SIMULATION_KEYS = (
    "dataset", "data_dir", "partition", "alpha", "classes_per", "groups", "transform", "mixture",
    "drift", "holdout", "test_set", "copies", "samples", "validation", "attack", "attackers",
    "attack_strength", "test_order", "engine", "workers", "model", "task",
    "joining", "joining_round",
    "client_column", "target", "features", "scale", "scale_by", "impute",
)  # fmt: skip
"""Choices that only a simulation has: over a network the clients bring these things."""


ENROLMENT_VARIABLE = "WECFL_ENROLLED"
"""In the environment of a SuperLink: the operator's list of clients (`wecfl.enrolment`)."""

NETWORK_DEFAULTS: dict[str, Any] = {
    "objectives": False, "refuse_above": 5.0, "shorten_above": 2.0,
}  # fmt: skip
"""Choices with another default than in a simulation. R takes two more messages to every client in
every round, so it is not measured. The limits bound what one client can do; they were chosen by
measurement (docs/robustness.md, decision 24)."""

AUDIT_ENDING = ".audit.jsonl"
"""The end of the name of the audit file beside the run folder, with a line for each message."""


class NetworkOptions(BaseModel):
    """The options that only a run over a network has; keys are written with - or _."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    out: str = Field("run", description="The run folder. A run that is in it continues.")
    clients: int = Field(ge=1, description="The number of clients in all.")
    min_clients: int = Field(
        1,
        ge=1,
        description="The least number of clients to begin with, and of valid replies in a round.",
    )
    enrolment: float = Field(
        120.0, gt=0, description="How many seconds to wait for all clients to join."
    )
    quorum: float = Field(
        0.75, gt=0, le=1, description="The share of valid replies with which a round can end."
    )
    timeout: float = Field(
        600.0, gt=0, description="The seconds after which a round ends in any case."
    )
    tries: int = Field(3, ge=1, description="How often a round without a quorum is tried.")
    pin_nodes: bool = Field(
        True, description="Whether a name belongs to the node that joined with it."
    )


def server_app(
    make_model: MakeModel, *, classes: int | None = None, task: Task | str | None = None
) -> ServerApp:
    """The server's side: it runs the method that the run's configuration names.

    The task is a classification of so many `classes`, or the `task` that is given; the clients must
    have the same one (`wecfl.flower.network_task`).

    The keys of the configuration are those of `wecfl run` that don't describe a simulation, and
    those of `wecfl.flower.server.NetworkOptions`. If the environment of the SuperLink has the
    variable `WECFL_ENROLLED`, it names the operator's list, and only the clients on it take part.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler(sys.stdout))
        listed = os.environ.get(ENROLMENT_VARIABLE)
        enrolment = Enrolment.read(Path(listed)) if listed else None
        serve(grid, context.run_config, make_model, classes=classes, task=task, enrolment=enrolment)

    return app


def serve(
    grid: Grid,
    run_config: Mapping[str, Any],
    make_model: MakeModel,
    *,
    classes: int | None = None,
    task: Task | str | None = None,
    enrolment: Enrolment | None = None,
    **waits: float,
) -> Result:
    """Begin or continue the run that a run's configuration describes.

    With `enrolment`, only clients on that list take part, and the model must fit through the proxy.
    `waits` are the `poll`, `look_every`, `min_extra_wait` and `patience` of `FlowerEngine`.
    """
    known_task = network_task(task, classes)
    network, config = read(run_config)
    out = Path(network.out)
    resume, known = ((out / name).is_file() for name in ("config.toml", ROSTER_FILE))
    about: dict[str, Any] = {
        "classes": known_task.outputs, "pinned": network.pin_nodes, "enrolment": enrolment
    }  # fmt: skip
    m = network.clients
    roster = Roster.read(out, m, **about) if known else Roster(m, **about)
    chosen = options_of(config)
    model = make(make_model, shape=(), classes=known_task.outputs, seed=config.seed)
    engine = FlowerEngine(
        grid, roster, model, task=known_task,
        batchnorm=config.batchnorm,
        quorum=network.quorum, min_clients=network.min_clients, timeout=network.timeout,
        tries=network.tries, kept=2 * config.checkpoint_every + 1,
        privacy=chosen["privacy"], audit=out.with_name(out.name + AUDIT_ENDING), **waits,
    )  # fmt: skip
    choices = {
        key: value
        for key, value in written(config, chosen["method"]).items()
        if key not in SIMULATION_KEYS
    }
    experiment = partial(
        Experiment,
        roster,
        **chosen | {"model": model, "engine": engine},
        folder=Folder(out, config.checkpoint_every, resume),
        watch=[RosterWriter(roster, out), RoundLog()],
        written=choices | {"clients": m, "network": network.model_dump(exclude={"out"})},
    )
    experiment().check()  # before clients are waited for
    _check_before_enrolment(chosen["method"], engine, enrolment)
    engine.enrol(network.min_clients, network.enrolment)
    if not known:
        roster.sort()
    _check_after_enrolment(chosen["method"], engine, enrolment)
    return experiment().run()


def _check_before_enrolment(
    method: Method, engine: FlowerEngine, enrolment: Enrolment | None
) -> None:
    """Refuse programs that clients can't know, and a model that would not fit through the proxy."""
    for program in (*method.programs, method.serve):
        encoded(program)  # an error if clients could not know it
    if enrolment is None:
        log.warning(
            "wecfl: no client is enrolled, so the names and numbers of samples that clients report "
            "are not checked (to check them: wecfl deploy enrol)"
        )
    else:
        counts = prod(engine.task.shape(engine.outputs))
        _check_fits("this model", reply_bytes(engine.layout.width, counts), enrolment)


def _check_after_enrolment(
    method: Method, engine: FlowerEngine, enrolment: Enrolment | None
) -> None:
    """Refuse what is told of data, whose shape is known now, if it would not fit either."""
    if enrolment is not None and isinstance(method.representation, Told):
        program = method.representation.tells.sized(engine)
        told = program.replies["told"].sized(Job(program).sizes(engine.layout))
        _check_fits(f"'{program.name}'", reply_bytes(prod(told), 0), enrolment)


def _check_fits(what: str, size: int, enrolment: Enrolment) -> None:
    """Refuse replies that the proxy would not let through."""
    if size > enrolment.max_reply:
        raise ConfigError(
            f"a reply with {what} takes {size} bytes, but the proxy lets only "
            f"{enrolment.max_reply} through: wecfl deploy up (or host) --max-reply {size}"
        )


def read(run_config: Mapping[str, Any]) -> tuple[NetworkOptions, Config]:
    """Read a run's configuration as Flower passes it to the server app.

    >>> network, config = read({"clients": 4, "min-clients": 2, "method": "ifca", "rounds": 3})
    >>> network.min_clients, config.method, config.rounds, config.objectives
    (2, 'ifca', 3, False)
    >>> read({"clients": 4, "dataset": "digits"})
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: dataset describes a simulation: leave it out over a network
    """
    choices = {key.replace("-", "_"): value for key, value in run_config.items()}
    method = choices.get("method", Config().method)
    further = {
        key: choices.pop(key)
        for key in set(choices) & (options(method).keys() - METHOD_OPTIONS.keys())
    }
    known = (Config.model_fields.keys() | NetworkOptions.model_fields) - {*SIMULATION_KEYS}
    for key in choices:
        if key in SIMULATION_KEYS:
            raise ConfigError(f"{key} describes a simulation: leave it out over a network")
        if key not in known:
            raise ConfigError(unknown("key", key, known))
    own = {key: value for key, value in choices.items() if key in NetworkOptions.model_fields}
    try:
        network = NetworkOptions.model_validate(own)
    except ValidationError as error:
        raise ConfigError(one_line(error, NetworkOptions.model_fields)) from None
    flags = {key: value for key, value in choices.items() if key in known - own.keys()}
    given = {**flags, "clients": network.clients, "options": further}
    config = resolve(flags=NETWORK_DEFAULTS | given)
    return network, config


class RoundLog:
    """A `Watcher` that logs a line about each round, which `flwr run` shows."""

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Log which method is run, and what protects it."""
        self._rounds = config["rounds"]
        log.info(
            "wecfl: %s, %d rounds with %d clients", config["method"], self._rounds, len(clients)
        )
        self._names, self._limit = clients.names, config["refuse_above"]
        shorten = config["shorten_above"]
        log.info(
            "wecfl: an update is refused above %g times the median length of the round and %s "
            "(refuse-above, shorten-above)", self._limit,
            "never shortened" if shorten == "never" else f"shortened above {shorten:g} times",
        )  # fmt: skip

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Log the result of a round, and whose update was too long."""
        outcome = states[0].outcome
        for i in [] if outcome is None else np.flatnonzero(outcome == Reply.TOO_LARGE).tolist():
            log.warning(
                "wecfl: the update of %s was refused: it is more than %g times as long as the "
                "median of the round (refuse-above)", self._names[i], self._limit,
            )  # fmt: skip
        log.info("wecfl: round %d of %d: %s", record["round"], self._rounds, round_words(record))

    def end(self, result: Result) -> None:
        """Log how the run ended."""
        log.info("wecfl: %s after %d rounds: %s", result.status, len(result.records), result.folder)
        if result.stopped:
            log.info("wecfl: it ended early: %s", result.stopped)
