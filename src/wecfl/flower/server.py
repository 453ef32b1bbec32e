"""What runs at the server: a configuration, the roster, and the same loop as ever."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wecfl.channel.privacy import NO_NETWORK
from wecfl.config import METHOD_OPTIONS, Config, one_line
from wecfl.core.clients import Clients
from wecfl.core.state import State
from wecfl.errors import ConfigError, unknown
from wecfl.experiment import Experiment
from wecfl.flower.client import MakeModel
from wecfl.flower.engine import FlowerEngine
from wecfl.flower.roster import FILE, Keeper, Roster
from wecfl.from_config import options_of, written
from wecfl.methods import options
from wecfl.models import make
from wecfl.options import Folder
from wecfl.report.words import round_words
from wecfl.resolve import resolve
from wecfl.runs.record import Record
from wecfl.runs.result import Result

__all__ = ["Network", "serve", "server_app"]

SIMULATED = (
    "dataset", "data_dir", "partition", "alpha", "classes_per", "groups", "holdout", "validation",
    "attack", "attackers", "attack_strength", "engine", "workers", "model",
)  # fmt: skip
"""Choices about what a simulation makes up and real clients bring along."""


log = logging.getLogger("wecfl")


class Network(BaseModel):
    """Choices of a run over a network, beside those of any run (keys with hyphens or not)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    out: str = Field("run", description="The run folder; if it holds a run, that one goes on.")
    clients: int = Field(ge=1, description="How many clients there will be in all.")
    min_clients: int = Field(1, ge=1, description="Fewest to begin with, and valid replies.")
    enrolment: float = Field(120.0, gt=0, description="Seconds to wait for all clients to join.")
    quorum: float = Field(0.75, gt=0, le=1, description="Valid replies that end a round.")
    timeout: float = Field(600.0, gt=0, description="Seconds after which a round ends anyway.")
    tries: int = Field(3, ge=1, description="How often a round without quorum is asked for.")
    pin_nodes: bool = Field(True, description="A name belongs to the node that joined with it.")


def server_app(make_model: MakeModel, *, classes: int) -> ServerApp:
    """The server's side: runs the method that the run's configuration names.

    Its keys are those of `wecfl run` that don't describe a simulation, and those of `Network`.
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
    said: Mapping[str, Any],
    make_model: MakeModel,
    *,
    classes: int,
    poll: float = 0.5,
) -> Result:
    """Run, or go on with, what a run's configuration says."""
    network, config = read(said)
    out = Path(network.out)
    resume, known = ((out / name).is_file() for name in ("config.toml", FILE))
    about: dict[str, Any] = {"classes": classes, "pinned": network.pin_nodes}
    m = network.clients
    roster = Roster.read(out, m, **about) if known else Roster(m, **about)
    chosen = options_of(config)
    method = chosen["method"]
    model = make(make_model, shape=(), classes=classes, seed=config.seed)
    engine = FlowerEngine(
        grid, roster, model,
        batchnorm=config.batchnorm,
        quorum=network.quorum, least=network.min_clients, timeout=network.timeout,
        tries=network.tries, kept=2 * config.checkpoint_every + 1, poll=poll,
    )  # fmt: skip
    engine.enrol(network.min_clients, network.enrolment)
    if not known:
        roster.sort()
    told = {key: value for key, value in written(config, method).items() if key not in SIMULATED}
    experiment = Experiment(
        roster,
        **chosen | {"model": model, "engine": engine},
        folder=Folder(out, config.checkpoint_every, resume),
        watch=[Keeper(roster, out), Lines()],
        written=told | {"clients": m, "network": network.model_dump(exclude={"out"})},
    )
    return experiment.run()


def read(said: Mapping[str, Any]) -> tuple[Network, Config]:
    """A run's configuration as Flower hands it over.

    >>> network, config = read({"clients": 4, "min-clients": 2, "method": "ifca", "rounds": 3})
    >>> network.min_clients, config.method, config.rounds, config.objectives
    (2, 'ifca', 3, False)
    >>> read({"clients": 4, "dataset": "digits"})
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: dataset describes a simulation: over a network clients bring it along
    """
    choices = {key.replace("-", "_"): value for key, value in said.items()}
    method = choices.get("method", Config().method)
    further = {
        key: choices.pop(key)
        for key in set(choices) & (options(method).keys() - METHOD_OPTIONS.keys())
    }
    known = (Config.model_fields.keys() | Network.model_fields) - {*SIMULATED}
    for key in choices:
        if key in SIMULATED:
            raise ConfigError(
                f"{key} describes a simulation: over a network clients bring it along"
            )
        if key not in known:
            raise ConfigError(unknown("key", key, known))
    own = {key: value for key, value in choices.items() if key in Network.model_fields}
    try:
        network = Network.model_validate(own)
    except ValidationError as error:
        raise ConfigError(one_line(error, Network.model_fields)) from None
    flags = {key: value for key, value in choices.items() if key in known - own.keys()}
    # R takes two more messages to everyone in every round: only if it is asked for.
    config = resolve(
        flags={"objectives": False, **flags, "clients": network.clients, "options": further}
    )
    if config.clip is not None:
        raise ConfigError(NO_NETWORK)
    return network, config


class Lines:
    """A line about each round, for the stream of `flwr run`: a `Watcher`."""

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """What is run."""
        self._rounds = config["rounds"]
        log.info(
            "wecfl: %s, %d rounds with %d clients", config["method"], self._rounds, len(clients)
        )

    def round(self, record: Record, states: Sequence[State]) -> None:
        """How it stands."""
        log.info("wecfl: round %d of %d: %s", record["round"], self._rounds, round_words(record))

    def end(self, result: Result) -> None:
        """How it ended."""
        log.info("wecfl: %s after %d rounds: %s", result.status, len(result.records), result.folder)
