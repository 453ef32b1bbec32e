"""An experiment: the one place where a run is put together, checked and run.

>>> import numpy as np, wecfl
>>> x = [np.full((8, 2), i % 2, np.float32) for i in range(4)]     # two kinds of clients
>>> fed = wecfl.Federation.from_arrays(x, [np.arange(8) % 2] * 4)
>>> experiment = Experiment(fed, wecfl.methods.wecfl(k=2), model="logistic", rounds=2)
>>> experiment.check()                              # says what is wrong, and computes nothing
>>> result = experiment.run()                       # wecfl.run(fed, …) does both
>>> result.labels[0] == result.labels[2], result.labels[0] == result.labels[1]
(np.True_, np.False_)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from wecfl import rng
from wecfl.bilevel.clustering import AtLeast
from wecfl.bilevel.rate import check_theory, theory
from wecfl.channel.privacy import NO_NETWORK, Privacy, check_private
from wecfl.config import Config
from wecfl.core import plan as core
from wecfl.core.engine import Engine
from wecfl.core.method import Method, Rate
from wecfl.core.presence import Channel
from wecfl.core.rounds import Observer
from wecfl.core.setting import Setting
from wecfl.core.state import Clients, State
from wecfl.core.task import Task
from wecfl.data.federation import Federation
from wecfl.engine import ENGINES, local, make_engine
from wecfl.engine.ray import ClientProgress
from wecfl.errors import ConfigError
from wecfl.folder.writer import RunFolder, check_free
from wecfl.from_config import federation_of, options_of, written
from wecfl.loop import Opened, train
from wecfl.models import Model, Module, layout_of, make
from wecfl.options import (
    Compute,
    Conditions,
    EngineName,
    Folder,
    Measure,
    Newcomers,
    Plan,
    check_whole,
)
from wecfl.runs.assault import Assault
from wecfl.runs.kept_out import parted
from wecfl.runs.newcomers import NO_BUDGET, NOT_WHOLE, Blueprint, Reference, Visit
from wecfl.runs.observe import OnRound, Watcher
from wecfl.runs.record import Recorder
from wecfl.runs.result import Result
from wecfl.tasks import Classification

__all__ = ["Experiment", "run", "run_config"]

USUAL_PLAN, USUAL_CONDITIONS, USUAL_MEASURE = Plan(), Conditions(), Measure()


@dataclass(frozen=True, eq=False)
class Experiment:
    """Everything about a run before it is run."""

    federation: Federation | Clients
    """The clients and their data D_i; of an engine that is given, what it knows of them."""
    method: Method
    """A value of `wecfl.methods`, or your own."""
    _: KW_ONLY
    model: Model = "auto"
    """A module, whose parameters are the common start; a function that makes one, called with its
    random draws keyed by `seed`; or a name from `wecfl.models.MODELS`."""
    task: Task = Classification()  # noqa: RUF009  (frozen)
    """What is learned, and how it is judged (`wecfl.tasks`)."""
    rounds: int = 30
    """T."""
    plan: Plan = USUAL_PLAN
    """How clients train in a round."""
    seed: int = 0
    """Everything random follows from it."""
    conditions: Conditions = USUAL_CONDITIONS
    """Who takes part, what is lost, what is refused, and who lies."""
    privacy: Privacy | None = None
    """Clients clip their update and add noise before they send it; only in a simulation."""
    newcomers: Newcomers | None = None
    """Clients that are kept out of the training and assigned at its end, `result.newcomers`."""
    measure: Measure = USUAL_MEASURE
    """What is recorded beside the scores."""
    engine: EngineName | Engine | Compute = "auto"
    """What trains the clients: a name, `Compute` with workers, or an engine, which stays open."""
    folder: Folder | str | Path | None = None
    """A run folder to write; `Folder` also goes on with one."""
    watch: Sequence[Watcher | OnRound] = ()
    """Told when the run begins, after each round and when it ends, see `wecfl.runs.observe`; a
    function is called after each round."""
    written: Mapping[str, Any] | None = None
    """What to write into `config.toml`; by default a description of these values. It is no
    parameter of `wecfl.run`."""

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            raise ConfigError(
                f"method must be a value such as methods.wecfl(k=10), got {self.method!r}"
            )
        check_whole(rounds=(self.rounds, 1), seed=(self.seed, 0))
        kinds = {"plan": Plan, "conditions": Conditions, "measure": Measure}
        optional = {"privacy": Privacy, "newcomers": Newcomers}
        for name, kind in {**kinds, **optional}.items():
            value = getattr(self, name)
            if not isinstance(value, kind) and not (value is None and name in optional):
                raise ConfigError(f"{name} must be a value {kind.__name__}(…), got {value!r}")

    @classmethod
    def of(
        cls,
        config: Config,
        federation: Federation | None = None,
        *,
        folder: str | Path | None = None,
        resume: bool = False,
        watch: Sequence[Watcher | OnRound] = (),
    ) -> Experiment:
        """What a configuration describes (on a federation already made from it, if given).

        >>> Experiment.of(Config(method="fedavg", clients=6, groups=2)).method.name
        'fedavg'
        """
        if resume and folder is None:
            raise ConfigError("resume goes on with a run folder: name it as out")
        place = None if folder is None else Folder(folder, config.checkpoint_every, resume)
        values = options_of(config)  # what is wrong with them is said before data are loaded
        return cls(
            federation or federation_of(config),
            **values,
            folder=place,
            watch=watch,
            written=written(config, values["method"]),
        )

    # What follows from the fields

    @property
    def members(self) -> Federation | Clients:
        """The clients that are trained."""
        return self._parted[0]

    @property
    def late(self) -> Federation | None:
        """The clients that are kept out, if some are."""
        return self._parted[1]

    @cached_property
    def _parted(self) -> tuple[Federation | Clients, Federation | None]:
        if self.newcomers is None:
            return self.federation, None
        return parted(self.federation, self.newcomers.share, self.newcomers.unseen, self.seed)

    @cached_property
    def _module(self) -> Module:
        fed = self.federation
        return make(self.model, shape=fed.shape, classes=fed.classes, seed=self.seed)

    @cached_property
    def _assault(self) -> Assault | None:
        if self.conditions.attack is None:
            return None
        if not isinstance(self.members, Federation):
            raise ConfigError("attacks are simulated: they need the clients' data")
        return Assault.on(self.members, self.conditions.attack, self.seed)

    @property
    def _plan(self) -> core.Plan:
        return self.plan.complete(self.method.plan)

    @property
    def _rate(self) -> Rate | None:
        return theory if self.plan.follows(self.method.plan) else None

    @property
    def _compute(self) -> Compute | None:
        """None: an engine is given."""
        if isinstance(self.engine, str):
            return Compute(self.engine)
        return self.engine if isinstance(self.engine, Compute) else None

    @property
    def _trained(self) -> Method:
        """The method, without clusters that are too small."""
        least = self.conditions.min_cluster
        if least == 1:
            return self.method
        return self.method.replace(clustering=AtLeast(self.method.clustering, least))

    @property
    def _objectives(self) -> bool:
        asked = self.measure.objectives
        return self.privacy is None if asked is None else asked

    @property
    def _overspent(self) -> bool:
        """Members may not be asked for one more reply: the privacy budget does not count it."""
        once = self.conditions.participation == 1 and self.method.start == "one"
        return self.privacy is not None and not once

    @cached_property
    def _channel(self) -> Channel:
        assault = self._assault
        return self.conditions.channel(
            attack=assault.forging if assault else None,
            attackers=assault.attackers if assault else None,
            privacy=self.privacy,
            keys=self.members.keys,
            seed=self.seed,
        )

    @property
    def _place(self) -> Folder | None:
        if self.folder is None or isinstance(self.folder, Folder):
            return self.folder
        return Folder(self.folder)

    # What one does with it

    def check(self) -> None:
        """Say what is wrong with it, before anything is computed or written."""
        members, method, plan = self.members, self.method, self._plan
        layout = layout_of(self._module)
        method.check(len(members), plan, layout)
        if self._rate:
            check_theory(method, plan)
        if self.privacy:
            if self._compute is None:
                raise ConfigError(NO_NETWORK)
            check_private(method, layout, **{
                "lr theory": bool(self._rate), "diagnostics": self.measure.diagnostics,
                "objectives": self._objectives,
            })  # fmt: skip
            self.privacy.epsilon(1)  # what can't be told in the end is not begun
        if self.late and not method.whole_centers:
            raise ConfigError(NOT_WHOLE.format(method.name))
        if self.late and self._overspent:
            raise ConfigError(NO_BUDGET)
        self._channel.check(plan, len(members))
        if self._compute:
            if self._compute.engine not in ENGINES:
                known = ", ".join(ENGINES)
                raise ConfigError(f"engine must be one of {known}, got '{self._compute.engine}'")
            if not isinstance(members, Federation):
                name = self._compute.engine
                raise ConfigError(f"the engine {name} needs the clients' data, got {members!r}")
        if self._place and not self._place.resume:
            check_free(Path(self._place.path))

    @contextmanager
    def open(
        self, *, members: Sequence[int] | None = None, progress: ClientProgress | None = None
    ) -> Iterator[Opened]:
        """Its engines, settings and recorder, while they last.

        `members` says which of a soft vote's independent runs are trained, by number; by default
        all. `progress` is told how many clients are done with a step; only `ray` tells.
        """
        self.check()
        method, assault = self._trained, self._assault
        numbers = range(method.members) if members is None else members
        with ExitStack() as stack:
            started = partial(self._started, stack, progress)
            engine = started(assault.federation if assault else self.members)
            trap = started(assault.bait) if assault and assault.bait else None
            guests = started(self.late) if self.late else None
            settings = [
                Setting(
                    method, engine, self._plan,
                    rng.derive(self.seed, "member", j) if j else self.seed, j, self._rate,
                    self._channel,
                )
                for j in numbers
            ]  # fmt: skip
            recorder = Recorder(
                settings[0], self.members.groups,
                objectives=self._objectives, score_every=self.measure.score_every,
                rounds=self.rounds, assault=assault, trap=trap,
            )  # fmt: skip
            yield Opened(settings, recorder, guests)

    def _started(self, stack: ExitStack, progress: ClientProgress | None, held: Any) -> Engine:
        """An engine for these clients, which the stack closes; or the one that was given."""
        compute = self._compute
        if compute is None:
            given: Any = self.engine
            return given  # type: ignore[no-any-return]
        options = self._engine_options
        if compute.engine == "ray":
            options |= {"address": compute.ray_address, "progress": progress}
        return stack.enter_context(make_engine(compute.engine, held, self._module, **options))

    @property
    def _engine_options(self) -> dict[str, Any]:
        workers = self._compute.workers if self._compute else None
        return {
            "workers": workers, "batchnorm": self.measure.batchnorm, "batch": self._plan.batch,
            "task": self.task,
        }  # fmt: skip

    def run(
        self,
        *,
        members: Sequence[int] | None = None,
        observe: Observer | None = None,
        progress: ClientProgress | None = None,
    ) -> Result:
        """All rounds, or those that are left; the result is also told where an error ends them.

        `observe` is called after each step of a round (of the first member of a soft vote);
        `members` and `progress` as in `open`.
        """
        self.check()
        with ExitStack() as stack:
            folder = None
            if place := self._place:
                folder = RunFolder(
                    Path(place.path), every=place.checkpoint_every, again=place.resume
                )
                stack.enter_context(folder)
            opened = stack.enter_context(self.open(members=members, progress=progress))
            return train(self, opened, folder, observe)

    def reference(self, state: State, member: int = 0) -> Reference:
        """What newcomers are compared with: all members are asked for one more local update.

        `state` is the last one of the run, or of that member of a soft vote.
        """
        if not self.method.whole_centers:
            raise ConfigError(NOT_WHOLE.format(self.method.name))
        if self._overspent:
            raise ConfigError(NO_BUDGET)
        if not isinstance(self.members, Federation):
            raise ConfigError("to compare newcomers with its clients takes the clients' data")
        workers = self._compute.workers if self._compute else None
        here = replace(self, engine=Compute(local(self._name), workers), folder=None)
        with here.open(members=[member]) as opened:
            return Reference.of(opened.settings[0], state)

    @property
    def _name(self) -> str:
        return self._compute.engine if self._compute else "auto"

    def visit(self, setting: Setting) -> Visit:
        """How a newcomer is trained."""
        return Visit(
            setting.method, Blueprint.of(self.model, self._module, self.members), self._module,
            setting.plan, setting.seed, local(self._name), self._engine_options, setting.member,
            self.privacy,
        )  # fmt: skip


def run(
    federation: Federation | Clients,
    method: Method,
    *,
    model: Model = "auto",
    task: Task = Classification(),  # noqa: B008  (frozen)
    rounds: int = 30,
    plan: Plan = USUAL_PLAN,
    seed: int = 0,
    conditions: Conditions = USUAL_CONDITIONS,
    privacy: Privacy | None = None,
    newcomers: Newcomers | None = None,
    measure: Measure = USUAL_MEASURE,
    engine: EngineName | Engine | Compute = "auto",
    folder: Folder | str | Path | None = None,
    watch: Sequence[Watcher | OnRound] = (),
) -> Result:
    """Train a federation with a method; the parameters are the fields of `Experiment`."""
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
    """Run what a configuration describes (on a federation already made from it, if given).

    >>> run_config(Config(method="fedavg", clients=6, groups=2, rounds=1)).summary["method"]
    'fedavg'
    """
    return Experiment.of(config, federation, folder=out, resume=resume, watch=watch).run()
