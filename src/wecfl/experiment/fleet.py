"""Runs on a fleet: very many registered clients, of which some take part in a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np

from wecfl.config import Config
from wecfl.config.keys import is_own
from wecfl.core.method import Method
from wecfl.core.rounds import Observer
from wecfl.core.task import Task
from wecfl.core.turns import participants
from wecfl.data.federation import Federation
from wecfl.data.fleet import AnyFleet, DrawnFleet, Fleet
from wecfl.engine.kept_rows import KeptRows
from wecfl.errors import ConfigError, DataError
from wecfl.experiment.assembly import Experiment
from wecfl.experiment.fleet_rounds import FleetRecorder, OpenFleet, PresentEngine
from wecfl.experiment.training import train
from wecfl.folder.writer import RunFolder
from wecfl.from_config import federation_of
from wecfl.limits import check_whole
from wecfl.models import Model
from wecfl.models.own import own_value
from wecfl.options import Compute, Conditions, Folder, Measure, Plan, Rounds
from wecfl.runs.fleet_result import FleetResult
from wecfl.runs.watcher import OnRound, Watcher
from wecfl.tasks import Binary, Classification, FittedTask

__all__ = ["FleetExperiment", "clients_of", "prepared", "run_fleet"]


@final
@dataclass(frozen=True, eq=False)
class FleetExperiment:
    """Everything about a run on a fleet before it starts. It is used like an `Experiment`."""

    fleet: AnyFleet
    one: Experiment
    """The experiment on the first client of the fleet, for all that does not depend on clients."""
    fitted: FittedTask
    """The task, as the clients of the first round suggest it."""
    active: int = 1000
    """The number of clients that take part in a round."""
    memory: float = 1.0
    """A table of what clients keep is stored on disk if it has more gigabytes than this."""

    @classmethod
    def of(
        cls, fleet: AnyFleet, experiment_on: Callable[[Federation], Experiment], **how: Any
    ) -> FleetExperiment:
        """The experiment on a fleet, from a function that makes it for any of its clients."""
        active = how.get("active", 1000)
        check_whole(active=(active, 1))
        one = experiment_on(fleet.federation(np.zeros(1, np.int64)))
        first = experiment_on(fleet.federation(participants(len(fleet), active, one.seed, 0)))
        task = first.fitted.task
        if isinstance(task, Classification | Binary) and task.headline == "auto":
            task = replace(task, headline="accuracy")  # clients of other rounds may differ
        one = replace(one, task=task, measure=_measured(one.measure))
        return cls(fleet, one, replace(first.fitted, clients=one.members), **how)

    @property
    def members(self) -> AnyFleet:
        """The clients that are trained."""
        return self.fleet

    @property
    def written(self) -> Mapping[str, Any] | None:
        """The content of `config.toml`."""
        return self.one.written

    @property
    def kept_out(self) -> None:
        """No clients are kept out of the training."""

    def check(self) -> None:
        """Raise an error if something is wrong, before anything is computed or written."""
        if not self.memory >= 0:
            raise ConfigError(
                f"memory must be a number of gigabytes that is not negative, got {self.memory}"
            )
        _check_choices(self.one)
        who = participants(len(self.fleet), self.active, self.one.seed, 0)
        replace(self.one, federation=self.fleet.federation(who)).check()

    @contextmanager
    def open(self, round: int = 1, *, stored: bool = False) -> Iterator[OpenFleet]:
        """Load the clients of this round, and yield the fleet, ready to be trained.

        Only if states are `stored`, they hold what clients keep.
        """
        one = self.one
        engine = PresentEngine(
            self.fleet, self.active, one.seed,
            lambda clients: replace(one, federation=clients, folder=None, watch=()),
        )  # fmt: skip
        kept = KeptRows(len(self.fleet), self.memory * 1e9)
        try:
            engine.move_to(round)
            about = {
                "registered": len(self.fleet), "active": self.active, "task": self.fitted.text
            }  # fmt: skip
            yield OpenFleet(self.fleet, one, engine, kept, FleetRecorder(one), about, stored)
        finally:
            engine.close()
            kept.close()

    def run(self, *, observe: Observer | None = None, progress: object = None) -> FleetResult:
        """Run all rounds, or those that are left (`Experiment.run`)."""
        self.check()
        with ExitStack() as stack:
            folder = None
            if place := Folder.of(self.one.folder):
                folder = stack.enter_context(
                    RunFolder(
                        Path(place.path),
                        every=place.checkpoint_every,
                        resume=place.resume,
                        growing=("metrics.jsonl",),
                    )
                )
            done = folder.saved.round if folder and folder.saved else 0
            opened = stack.enter_context(self.open(done + 1, stored=folder is not None))
            result = train(self.one, opened, folder, observe)
        assert isinstance(result, FleetResult)
        return result


def run_fleet(
    fleet: AnyFleet,
    method: Method,
    *,
    active: int = 1000,
    model: Model = "auto",
    task: Task | str = "auto",
    rounds: int | Rounds = 30,
    plan: Plan = Plan(),  # noqa: B008  (frozen)
    seed: int = 0,
    conditions: Conditions = Conditions(),  # noqa: B008
    measure: Measure = Measure(),  # noqa: B008
    engine: Compute = Compute(),  # noqa: B008
    memory: float = 1.0,
    folder: Folder | str | Path | None = None,
    watch: Sequence[Watcher | OnRound] = (),
) -> FleetResult:
    """Train a fleet: in each round `active` clients take part, in turns (`wecfl.core.turns`).

    The other arguments are those of `wecfl.run`. Only clients that took part have rows of what
    clients keep, such as momentum. A table of these rows is stored on disk if it needs more than
    `memory` gigabytes.

    >>> from wecfl.data.fleet import Fleet
    >>> def load(number):                                       # two kinds of clients
    ...     y = np.random.default_rng(number).integers(0, 2, 20) + 2 * (number % 2)
    ...     return np.eye(4, dtype=np.float32)[y], y
    >>> fleet = Fleet(range(100_000), load, classes=4, groups=np.arange(100_000) % 2)
    >>> import wecfl
    >>> result = run_fleet(fleet, wecfl.methods.wecfl(k=2), active=20, model="logistic", rounds=3,
    ...                    plan=Plan(lr=0.1))
    >>> result.agreement()["ari"], (result.labels >= 0).sum()
    (1.0, np.int64(60))
    """
    experiment_on = partial(
        Experiment, method=method, model=model, task=task, rounds=rounds, plan=plan, seed=seed,
        conditions=conditions, measure=measure, engine=engine, folder=folder, watch=watch,
    )  # fmt: skip
    return FleetExperiment.of(fleet, experiment_on, active=active, memory=memory).run()


def prepared(
    config: Config,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    watch: Sequence[Watcher | OnRound] = (),
) -> Callable[..., Experiment | FleetExperiment]:
    """A function that makes the experiment of a configuration from its loaded clients.

    It takes the federation, or a fleet of the user's own, and fields of `Experiment` that differ
    from the configuration. Registered clients draw their samples from those of the federation.

    >>> from wecfl.from_config import federation_of
    >>> config = Config(clients=6, groups=2, registered=1000, active=5, clusters=2)
    >>> len(prepared(config)(federation_of(config)).members)
    1000
    """
    ordinary = Experiment.prepared(config, folder=folder, resume=resume, watch=watch)

    def on(clients: Federation | AnyFleet, **changes: Any) -> Experiment | FleetExperiment:
        if isinstance(clients, Federation) and config.registered is None:
            return replace(ordinary(clients), **changes)
        if isinstance(clients, Federation):
            samples = {} if config.samples is None else {"samples": config.samples}
            clients = DrawnFleet(clients, config.registered or 1, seed=config.seed, **samples)
        if config.active is not None and config.active > len(clients):
            raise ConfigError(
                f"active is {config.active}, but only {len(clients)} clients are registered: "
                f"lower active"
            )
        given = {"active": config.active, "memory": config.memory}
        chosen: Any = {name: value for name, value in given.items() if value is not None}
        return FleetExperiment.of(
            clients, lambda some: replace(ordinary(some), **changes), **chosen
        )

    return on


def clients_of(config: Config) -> Federation | AnyFleet:
    """The federation of a configuration; or the fleet that the code of its data set makes."""
    if not is_own(config.dataset):
        return federation_of(config)
    make = own_value(config.dataset, "fleet", DataError)
    fleet = make() if callable(make) else make
    if not isinstance(fleet, Fleet | DrawnFleet):
        raise DataError(f"{config.dataset} must make a wecfl.Fleet, got {type(fleet).__name__}")
    if config.registered not in (None, len(fleet)):
        raise ConfigError(
            f"{config.dataset} has {len(fleet)} clients, but registered is {config.registered}: "
            f"leave out registered"
        )
    return fleet


def _measured(chosen: Measure) -> Measure:
    """What is measured; R is not, since absent clients have no loss."""
    if chosen.diagnostics or chosen.objectives or chosen.objectives_every or chosen.trace:
        raise ConfigError(
            "objectives, diagnostics and trace need every client in every round, and in a fleet "
            "only some take part: leave them out"
        )
    return replace(chosen, objectives=False, trace=False)


def _check_choices(experiment: Experiment) -> None:
    """Refuse choices for which a label and a weight of an absent client are not enough."""
    method, conditions = experiment.method, experiment.conditions
    further = [step for step in (*method.opening, *method.steps) if not isinstance(step, str)]
    if method.members > 1 or further or method.representation.asks or method.representation.tells:
        raise ConfigError(
            f"{method.name} can't run on a fleet, since the server would have to keep more of an "
            f"absent client than its cluster: choose a method with the steps L, E, M and D, such "
            f"as wecfl"
        )
    if method.k != 1 and not method.whole_centers:
        raise ConfigError(
            f"{method.name} can't run on a fleet with more than one cluster, since new clients are "
            f"asked which cluster's model serves them, and its models do not predict alone: share "
            f"all columns, or set k to 1"
        )
    if isinstance(experiment.engine, Compute) and experiment.engine.engine == "ray":
        raise ConfigError("a fleet is trained on this machine: choose engine auto, native or torch")
    if experiment.plan.follows(method.plan):
        raise ConfigError(
            "lr theory needs every client in every round, and in a fleet only some take part: give "
            "lr as a number"
        )
    refused: dict[str, Any] = {
        "participation below 1: set active, the number of clients in a round":
        conditions.participation < 1,
        "joining: every client joins when it first takes part": conditions.joining,
        "attack: leave it out": conditions.attack,
        "min_cluster, which would count absent clients: leave it out": conditions.min_cluster > 1,
        "privacy, whose budget is counted for clients that are all known: leave out clip":
        experiment.privacy,
        "newcomers: every client joins when it first takes part": experiment.newcomers,
    }  # fmt: skip
    if found := [what for what, asked in refused.items() if asked]:
        raise ConfigError(f"a fleet can't have {found[0]}")
