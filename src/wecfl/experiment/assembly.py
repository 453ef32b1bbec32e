"""An experiment: the one place where a run is put together, checked and started.

>>> import numpy as np, wecfl
>>> x = [np.full((8, 2), i % 2, np.float32) for i in range(4)]     # two kinds of clients
>>> fed = wecfl.Federation.from_arrays(x, [np.arange(8) % 2] * 4)
>>> result = Experiment(fed, wecfl.methods.wecfl(k=2), model="logistic", rounds=2).run()
>>> result.labels[0] == result.labels[2], result.labels[0] == result.labels[1]
(np.True_, np.False_)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

from wecfl import rng
from wecfl.bilevel.clustering import AtLeast
from wecfl.bilevel.combinations import check_combination
from wecfl.bilevel.learning_rate import check_theory, theory
from wecfl.channel.privacy import Privacy, check_private, check_same_privacy
from wecfl.config import Config
from wecfl.core.channel import Channel
from wecfl.core.clients import Clients
from wecfl.core.components import Rate
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import Observer
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.task import Task
from wecfl.core.traffic import Metered
from wecfl.data.federation import Federation
from wecfl.data.pipeline import Pipeline
from wecfl.engine import check_engine, local, make_engine
from wecfl.engine.ray import ClientProgress
from wecfl.errors import ConfigError
from wecfl.experiment import cluster_scaling
from wecfl.experiment.training import OpenExperiment, train
from wecfl.folder.writer import RunFolder, check_new_folder
from wecfl.from_config import federation_of, options_of, written
from wecfl.limits import check_kinds, check_whole
from wecfl.models import Model, Module, layout_of, make
from wecfl.options import Compute, Conditions, EngineName, Folder, Measure, Newcomers, Plan, Rounds
from wecfl.runs.blueprint import Blueprint
from wecfl.runs.member_reference import Reference
from wecfl.runs.newcomers import NO_SINGLE_START, NO_WHOLE_MODELS, OVER_BUDGET, NewcomerSetup
from wecfl.runs.record import Recorder
from wecfl.runs.result import Result
from wecfl.runs.simulated_attack import SimulatedAttack
from wecfl.runs.simulated_newcomers import separated
from wecfl.runs.watcher import OnRound, Watcher
from wecfl.tasks import Classification, FittedTask, described, fitted

__all__ = ["Experiment", "run", "run_config"]

DEFAULT_PLAN, DEFAULT_CONDITIONS, DEFAULT_MEASURE = Plan(), Conditions(), Measure()


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything about a run before it starts."""

    federation: Federation | Clients
    """The clients and their data D_i; with an engine, what the engine knows about them."""
    method: Method
    """A value of `wecfl.methods`, or your own."""
    _: KW_ONLY
    model: Model = "auto"
    """A module, whose parameters are the initial model of all clients; a function that makes a
    module, whose random draws are keyed by `seed`; or a name from `wecfl.models.MODELS`."""
    task: Task | str = "auto"
    """What is learned, and how it is judged: a value of `wecfl.tasks`, or its name and options,
    such as `regression(loss=huber)`. With `auto` it follows from the targets."""
    rounds: int | Rounds = 30
    """T, the number of communication rounds; `Rounds` can also say when to stop earlier."""
    plan: Plan = DEFAULT_PLAN
    """How clients train in a round."""
    seed: int = 0
    """The seed, from which everything random follows."""
    conditions: Conditions = DEFAULT_CONDITIONS
    """Which clients take part, what is lost or refused, and which clients attack."""
    privacy: Privacy | None = None
    """Clients clip their update and add noise before they send it."""
    newcomers: Newcomers | None = None
    """Clients that are kept out of the training, and assigned at its end (`result.newcomers`)."""
    measure: Measure = DEFAULT_MEASURE
    """What is recorded in addition to the scores."""
    engine: EngineName | Engine | Compute = "auto"
    """What trains the clients: a name, `Compute` with more options, or an engine to use."""
    folder: Folder | str | Path | None = None
    """A run folder to write; `Folder` can also continue one."""
    watch: Sequence[Watcher | OnRound] = ()
    """Watchers (`wecfl.runs.watcher`), or functions that are called after each round."""
    written: Mapping[str, Any] | None = None
    """The content of `config.toml`; None: a description of the other fields."""

    def __post_init__(self) -> None:
        if not hasattr(self.federation, "classes"):
            given = type(self.federation).__name__
            raise ConfigError(f"federation must be one like Federation.from_arrays(…), got {given}")
        if not isinstance(self.method, Method):
            raise ConfigError(f"method must be one like methods.wecfl(k=10), got {self.method!r}")
        check_whole(rounds=(Rounds.of(self.rounds).count, 1), seed=(self.seed, 0))
        options = {"plan": Plan, "conditions": Conditions, "measure": Measure}
        check_kinds(self, options, {"privacy": Privacy, "newcomers": Newcomers})

    @classmethod
    def prepared(
        cls,
        config: Config,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
        watch: Sequence[Watcher | OnRound] = (),
    ) -> Callable[[Federation], Experiment]:
        """A function that makes the experiment of a configuration from its loaded clients.

        Errors in the choices are raised at once, before any data are needed.

        >>> config = Config(method="fedavg", clients=6, groups=2)
        >>> Experiment.prepared(config)(federation_of(config)).method.name
        'fedavg'
        """
        if resume and folder is None:
            raise ConfigError("resume needs the run folder that it continues: give its path as out")
        place = None if folder is None else Folder(folder, config.checkpoint_every, resume)
        values = options_of(config)
        values |= {"folder": place, "watch": watch, "written": written(config, values["method"])}
        return partial(cls, **values)

    @property
    def members(self) -> Federation | Clients:
        """The clients that are trained."""
        return self._parted[0]

    @property
    def kept_out(self) -> Federation | None:
        """The clients that are kept out of the training; None: there are none."""
        return self._parted[1]

    @cached_property
    def fitted(self) -> FittedTask:
        """The task on the clients' data; over a network, the task that the engine was made for."""
        if isinstance(self.federation, Federation):
            return fitted(self.task, self.federation)
        task = getattr(self.engine, "task", Classification(self.federation.classes))
        open_task = replace(task, classes=0) if isinstance(task, Classification) else task
        return FittedTask(task, self.federation, described(open_task))

    @cached_property
    def _parted(self) -> tuple[Federation | Clients, Federation | None]:
        if (chosen := self.newcomers) is None:
            return self.fitted.clients, None
        return separated(self.fitted.clients, chosen.share, chosen.unseen, self.seed)

    @cached_property
    def _module(self) -> Module:
        shape, outputs = self.federation.shape, self.fitted.task.outputs
        parts = self._pipeline.parts if self._pipeline else ()
        return make(self.model, shape=shape, classes=outputs, seed=self.seed, parts=parts)

    @cached_property
    def _attack(self) -> SimulatedAttack | None:
        asked = self.conditions.attack
        return None if asked is None else SimulatedAttack.on(self.members, asked, self.seed)

    @property
    def _plan(self) -> LocalPlan:
        return self.plan.complete(self.method.plan)

    @property
    def _rate(self) -> Rate | None:
        return theory if self.plan.follows(self.method.plan) else None

    @property
    def _compute(self) -> Compute | None:
        """How clients are trained; None: by the engine that was given."""
        given = Compute(self.engine) if isinstance(self.engine, str) else self.engine
        return given if isinstance(given, Compute) else None

    @property
    def _trained(self) -> Method:
        """The method, with a clustering that dissolves clusters below `min_cluster`."""
        method, smallest = cluster_scaling.held_method(self), self.conditions.min_cluster
        clustering = AtLeast(method.clustering, smallest) if smallest > 1 else method.clustering
        return method.replace(clustering=clustering)

    @property
    def _overspent(self) -> bool:
        """Whether one more reply of the members would exceed the privacy budget."""
        absent = self.conditions.participation < 1 or self.conditions.joining > 0
        return self.privacy is not None and (absent or self.method.start != "one")

    @property
    def _protected_by_clients(self) -> Privacy | None:
        """Over a network, the protection that clients apply to an update before they send it."""
        return self.privacy if self._compute is None else None

    @cached_property
    def _channel(self) -> Channel:
        attack = self._attack
        return self.conditions.channel(
            seed=self.seed, attack=attack.forging if attack else None,
            attackers=attack.attackers if attack else None,
            privacy=None if self._protected_by_clients else self.privacy, keys=self.members.keys,
        )  # fmt: skip

    def check(self) -> None:
        """Raise an error if something is wrong, before anything is computed or written."""
        members, method, plan = self.members, self.method, self._plan
        method.check(len(members), plan, layout := layout_of(self._module))
        check_combination(method)
        cluster_scaling.check(self)
        if self._rate:
            check_theory(method, plan)
        if self._compute is None:
            check_same_privacy(self.engine, self.privacy)
        if self.privacy:
            check_private(method, layout, **{
                "lr theory": bool(self._rate), "diagnostics": self.measure.diagnostics,
                "objectives": self.measure.wanted(private=True),
                "the pipeline (scale, impute, categories)":
                bool(self._pipeline and self._pipeline.learned),
            })  # fmt: skip
            self.privacy.epsilon(1)  # an error now, and not at the end of the run
        if self.kept_out:
            self._check_newcomers()
        self._channel.check(plan, len(members))
        self.measure.check(plan, members)
        Rounds.of(self.rounds).check(members, self.conditions, self._protected_by_clients)
        if (of := self._compute) is not None:
            check_engine(of.engine, members, of.device, of.precision, method.needs)
        if (place := Folder.of(self.folder)) and not place.resume:
            check_new_folder(Path(place.path))

    @contextmanager
    def open(
        self, *, members: Sequence[int] | None = None, progress: ClientProgress | None = None
    ) -> Iterator[OpenExperiment]:
        """Open the engines, and yield them with the settings and the recorder.

        `members` are the numbers of the runs of a soft vote that are trained, by default all.
        `progress` is called with the number of clients that have finished a step (`ray` only).
        """
        self.check()
        method, attack = self._trained, self._attack
        numbers = range(method.members) if members is None else members
        rate, labels = self._rate, cluster_scaling.held_labels(self)
        with ExitStack() as stack:
            started = partial(self._started, stack, progress)
            engine = started(held := attack.federation if attack else self.members)
            triggered = attack and attack.triggered_test
            trigger_engine = started(triggered) if triggered else None
            newcomer_engine = started(self.kept_out) if self.kept_out else None
            metered = Metered(engine)
            settings = [
                Setting(method, metered, self._plan, rng.derive(self.seed, "member", j) if j else
                        self.seed, j, rate, self._channel, self.plan.schedule, labels)
                for j in numbers
            ]  # fmt: skip
            measured = replace(settings[0], engine=engine)
            recorder = Recorder(
                measured, self.members, metered,
                objectives=self.measure.wanted(self.privacy is not None),
                exact_every=self.measure.exact_every,
                score_every=None if self._protected_by_clients else self.measure.score_every,
                rounds=Rounds.of(self.rounds).count, attack=attack, trigger_engine=trigger_engine,
            )  # fmt: skip
            yield OpenExperiment(settings, measured, recorder, held, self.members, newcomer_engine)

    def _started(self, stack: ExitStack, progress: ClientProgress | None, held: Any) -> Engine:
        """An engine for these clients, which the stack closes; or the one that was given."""
        if (compute := self._compute) is None:
            return cast(Engine, self.engine)
        options = {**self._engine_options, "needs": self.method.needs}
        if compute.engine == "ray":
            options |= {"address": compute.ray_address, "progress": progress}
        return stack.enter_context(
            make_engine(compute.engine, held, self._module, task=self.fitted.task, **options)
        )

    @property
    def _local(self) -> Compute:
        """How newcomers, which are few, are trained on this machine."""
        given = self._compute or Compute()
        return replace(given, engine=local(given.engine), ray_address=None)

    @property
    def _engine_options(self) -> dict[str, Any]:
        machine, measure = self._local.machine, self.measure
        return {**machine, "batchnorm": measure.batchnorm, "batch": self._plan.batch}

    def run(
        self,
        *,
        members: Sequence[int] | None = None,
        observe: Observer | None = None,
        progress: ClientProgress | None = None,
    ) -> Result:
        """Run all rounds, or those that are left. Watchers get the result even after an error.

        `observe` is called after each step of the first run of a soft vote. The other arguments are
        those of `open`.
        """
        self.check()
        experiment = cluster_scaling.resolved(self)
        with ExitStack() as stack:
            folder = None
            if place := Folder.of(self.folder):
                folder = stack.enter_context(
                    RunFolder(Path(place.path), every=place.checkpoint_every, resume=place.resume)
                )
            opened = stack.enter_context(experiment.open(members=members, progress=progress))
            return train(experiment, opened, folder, observe)

    def _check_newcomers(self) -> None:
        """Raise an error if newcomers can't be compared with the members of this experiment."""
        if not self.method.whole_centers:
            raise ConfigError(NO_WHOLE_MODELS.format(self.method.name))
        if self.method.sends_all_models:
            raise ConfigError(NO_SINGLE_START.format(self.method.name))
        if self._overspent:
            raise ConfigError(OVER_BUDGET)

    def reference(self, state: State, member: int = 0) -> Reference:
        """What newcomers are compared with, after the last state of this member of a soft vote."""
        self._check_newcomers()
        if not isinstance(self.members, Federation):
            raise ConfigError(
                "newcomers are compared with the members' data, which are not here: run the "
                "experiment on a Federation"
            )
        with replace(self, engine=self._local, folder=None).open(members=[member]) as opened:
            return opened.reference(state, self.newcomer_setup(opened.measured))

    def newcomer_setup(self, setting: Setting) -> NewcomerSetup:
        """How a newcomer is trained."""
        return NewcomerSetup(
            setting.method, Blueprint.of(self.model, self._module, self.members, self.fitted.task),
            self._module, setting.plan, setting.seed, local(self._local.engine),
            self._engine_options, self.fitted.task, setting.member, self.privacy, self._pipeline,
        )  # fmt: skip

    @property
    def _pipeline(self) -> Pipeline | None:
        return self.federation.pipeline if isinstance(self.federation, Federation) else None


def run(
    federation: Federation | Clients,
    method: Method,
    *,
    model: Model = "auto",
    task: Task | str = "auto",
    rounds: int | Rounds = 30,
    plan: Plan = DEFAULT_PLAN,
    seed: int = 0,
    conditions: Conditions = DEFAULT_CONDITIONS,
    privacy: Privacy | None = None,
    newcomers: Newcomers | None = None,
    measure: Measure = DEFAULT_MEASURE,
    engine: EngineName | Engine | Compute = "auto",
    folder: Folder | str | Path | None = None,
    watch: Sequence[Watcher | OnRound] = (),
) -> Result:
    """Train a federation with a method. The parameters are the fields of `Experiment`."""
    return Experiment(
        federation, method,
        model=model, task=task, rounds=rounds, plan=plan, seed=seed, conditions=conditions,
        privacy=privacy, newcomers=newcomers, measure=measure, engine=engine, folder=folder,
        watch=watch,
    ).run()  # fmt: skip


def run_config(
    config: Config,
    federation: Federation | None = None,
    out: str | Path | None = None,
    watch: Sequence[Watcher | OnRound] = (),
    *,
    resume: bool = False,
) -> Result:
    """Run the experiment of a configuration; on `federation`, if it was already made from it.

    >>> run_config(Config(method="fedavg", clients=6, groups=2, rounds=1)).summary["method"]
    'fedavg'
    """
    if config.registered:
        raise ConfigError(
            "registered is for a fleet, which run_config does not run: use wecfl.run_fleet, or the "
            "command wecfl run"
        )
    prepared = Experiment.prepared(config, folder=out, resume=resume, watch=watch)
    return prepared(federation or federation_of(config)).run()
