"""The server's app: it reads a run's configuration, enrols the clients and runs the experiment."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wecfl.config import METHOD_OPTIONS, Config, one_line
from wecfl.core.clients import Clients
from wecfl.core.state import State
from wecfl.errors import ConfigError, unknown
from wecfl.experiment import Experiment
from wecfl.flower.client import MakeModel
from wecfl.flower.engine import FlowerEngine
from wecfl.flower.roster import ROSTER_FILE, Roster, RosterWriter
from wecfl.from_config import options_of, written
from wecfl.methods import options
from wecfl.models import make
from wecfl.options import Folder
from wecfl.report.sentences import round_words
from wecfl.resolve import resolve
from wecfl.runs.record import Record
from wecfl.runs.result import Result

__all__ = ["NetworkOptions", "serve", "server_app"]

SIMULATION_KEYS = (
    "dataset", "data_dir", "partition", "alpha", "classes_per", "groups", "holdout", "validation",
    "attack", "attackers", "attack_strength", "engine", "workers", "model", "client_column",
    "target", "features", "scale", "scale_by", "impute",
)  # fmt: skip
"""Choices that only a simulation has: over a network the clients bring these things."""


AUDIT_ENDING = ".audit.jsonl"
"""Ends the name of a file beside the run folder, with one line for each message that came."""

log = logging.getLogger("wecfl")


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


def server_app(make_model: MakeModel, *, classes: int) -> ServerApp:
    """The server's side: it runs the method that the run's configuration names.

    The keys of the configuration are those of `wecfl run` that don't describe a simulation, and
    those of `wecfl.flower.server.NetworkOptions`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        log.setLevel(logging.INFO)
        log.addHandler(logging.StreamHandler(sys.stdout))
        serve(grid, context.run_config, make_model, classes=classes)

    return app


def serve(
    grid: Grid,
    run_config: Mapping[str, Any],
    make_model: MakeModel,
    *,
    classes: int,
    **waits: float,
) -> Result:
    """Begin or continue the run that a run's configuration describes.

    `waits` are the `poll`, `look_every` and `min_extra_wait` of `FlowerEngine`.
    """
    network, config = read(run_config)
    out = Path(network.out)
    resume, known = ((out / name).is_file() for name in ("config.toml", ROSTER_FILE))
    about: dict[str, Any] = {"classes": classes, "pinned": network.pin_nodes}
    m = network.clients
    roster = Roster.read(out, m, **about) if known else Roster(m, **about)
    chosen = options_of(config)
    method = chosen["method"]
    model = make(make_model, shape=(), classes=classes, seed=config.seed)
    engine = FlowerEngine(
        grid, roster, model,
        batchnorm=config.batchnorm,
        quorum=network.quorum, min_clients=network.min_clients, timeout=network.timeout,
        tries=network.tries, kept=2 * config.checkpoint_every + 1,
        privacy=chosen["privacy"], audit=out.with_name(out.name + AUDIT_ENDING), **waits,
    )  # fmt: skip
    choices = {
        key: value for key, value in written(config, method).items() if key not in SIMULATION_KEYS
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
    engine.enrol(network.min_clients, network.enrolment)
    if not known:
        roster.sort()
    return experiment().run()


def read(run_config: Mapping[str, Any]) -> tuple[NetworkOptions, Config]:
    """Read a run's configuration as Flower passes it to the server app.

    >>> network, config = read({"clients": 4, "min-clients": 2, "method": "ifca", "rounds": 3})
    >>> network.min_clients, config.method, config.rounds, config.objectives
    (2, 'ifca', 3, False)
    >>> read({"clients": 4, "dataset": "digits"})
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: dataset describes a simulation: over a network the clients bring it
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
            raise ConfigError(f"{key} describes a simulation: over a network the clients bring it")
        if key not in known:
            raise ConfigError(unknown("key", key, known))
    own = {key: value for key, value in choices.items() if key in NetworkOptions.model_fields}
    try:
        network = NetworkOptions.model_validate(own)
    except ValidationError as error:
        raise ConfigError(one_line(error, NetworkOptions.model_fields)) from None
    flags = {key: value for key, value in choices.items() if key in known - own.keys()}
    # R takes two more messages to every client in every round, so it is off by default.
    config = resolve(
        flags={"objectives": False, **flags, "clients": network.clients, "options": further}
    )
    return network, config


class RoundLog:
    """A `Watcher` that logs a line about each round, which `flwr run` shows."""

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Log which method is run."""
        self._rounds = config["rounds"]
        log.info(
            "wecfl: %s, %d rounds with %d clients", config["method"], self._rounds, len(clients)
        )

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Log the result of a round."""
        log.info("wecfl: round %d of %d: %s", record["round"], self._rounds, round_words(record))

    def end(self, result: Result) -> None:
        """Log how the run ended."""
        log.info("wecfl: %s after %d rounds: %s", result.status, len(result.records), result.folder)
