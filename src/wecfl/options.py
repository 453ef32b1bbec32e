"""The options of an experiment: one class for each concern, checked when a value is made.

>>> from wecfl.options import Attack, Conditions
>>> Conditions(participation=0.5, attack=Attack("sign-flip")).attack.attackers
0.2
>>> Conditions(dropout=2)
Traceback (most recent call last):
...
wecfl.errors.ConfigError: dropout must lie in [0, 1), got 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from wecfl.channel.attacks import DataAttack, ModelAttack, named
from wecfl.channel.privacy import Privacy
from wecfl.core.channel import Channel
from wecfl.core.clients import Clients
from wecfl.core.plan import LocalPlan, OptimizerName
from wecfl.core.schedule import Schedule
from wecfl.core.task import Task
from wecfl.core.until import NoGain, Until
from wecfl.data.changes import changes_of
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.limits import check_whole

__all__ = [
    "Attack",
    "Compute",
    "Conditions",
    "EngineName",
    "Folder",
    "Measure",
    "Newcomers",
    "Plan",
    "Rounds",
]

EngineName = Literal["auto", "native", "torch", "ray"]
"""The choices of `wecfl.make_engine`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How clients train in a round.

    A field that is None is set by the method (`Method.plan`), or else by the default that is named
    beside it. `complete` makes the plan in which every value is known, `LocalPlan`.

    >>> Plan(lr=0.01).complete({"momentum": 0.0})
    LocalPlan(steps=10, batch=32, lr=0.01, momentum=0.0, keep_momentum=True, weight_decay=0.0,
              optimizer='sgd', adam_beta2=0.999, adam_eps=1e-08, max_gradient=None, epochs=None,
              done=None, leave_validation=False)
    """

    steps: int | None = None
    """Q, the number of mini-batches in a round; default 10."""
    batch: int | None = None
    """The number of samples in a mini-batch; default 32."""
    lr: float | Literal["theory"] | None = None
    """η, default 0.001; `theory`: in every round, each client's η is the bound of Theorem 1."""
    momentum: float | None = None
    """The momentum of SGD, and β1 of Adam; default 0.9."""
    keep_momentum: bool | None = None
    """Whether clients keep their optimizer's buffer (momentum, the moments of Adam) between rounds;
    default True, as in the paper."""
    weight_decay: float | None = None
    """The weight decay; default 0."""
    optimizer: OptimizerName | None = None
    """`sgd`, which is the default, `nesterov`, `adam` or `adamw`."""
    adam_beta2: float | None = None
    """β2 of Adam; default 0.999."""
    adam_eps: float | None = None
    """ε of Adam; default 1e-8."""
    max_gradient: float | None = None
    """The largest norm of a mini-batch gradient, to which longer ones are shortened; default: none.
    """
    epochs: int | None = None
    """The number of passes over its data that a client makes in a round, in place of `steps`."""
    schedule: Schedule | None = None
    """A function that gives a factor of η for each round (`wecfl.schedules`); None: constant η."""

    def __post_init__(self) -> None:
        if self.steps is not None and self.epochs is not None:
            raise ConfigError(
                f"give steps or epochs, and not both: got {self.steps} steps, {self.epochs} epochs"
            )
        counts = {"steps": self.steps, "batch": self.batch, "epochs": self.epochs}
        check_whole(**{name: (count, 1) for name, count in counts.items() if count is not None})
        if isinstance(self.lr, str) and self.lr != "theory":
            raise ConfigError(f"lr must be a number or 'theory', got '{self.lr}'")
        if self.schedule is not None and not callable(self.schedule):
            raise ConfigError(
                f"schedule must be a function of the round, such as schedules.CosineDecay(30), "
                f"got {self.schedule!r}"
            )
        self.complete({})

    def complete(self, usual: Mapping[str, Any]) -> LocalPlan:
        """The whole plan: what was chosen, otherwise the method's `usual`, otherwise the default.

        If η is set in every round (`follows`), the plan's η is not used, and is 0.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        schedule = values.pop("schedule")
        chosen = {name: value for name, value in values.items() if value is not None}
        rate = {"lr": 0.0} if self.follows(usual) else {}
        if rate and schedule is not None:
            raise ConfigError("lr theory sets η in every round: leave out schedule and warmup")
        return LocalPlan(**{**usual, **chosen, **rate})

    def follows(self, usual: Mapping[str, Any]) -> bool:
        """Whether η is set in every round by Theorem 1."""
        return (usual.get("lr") if self.lr is None else self.lr) == "theory"


@dataclass(frozen=True, slots=True)
class Rounds:
    """How many rounds a run has at most, and when it ends before that.

    >>> from wecfl.core.until import Settled
    >>> Rounds(100, until=Settled()).count
    100
    """

    count: int = 30
    """T, the number of communication rounds."""
    until: Until | None = None
    """A rule (`wecfl.core.until`) that is asked after each round in which clients are tested,
    whether the run ends; None: the run has all its rounds."""

    def __post_init__(self) -> None:
        check_whole(rounds=(self.count, 1))
        if self.until is not None and not callable(self.until):
            raise ConfigError(
                f"until must be a function of the records, such as Settled(), got {self.until!r}"
            )

    @classmethod
    def of(cls, rounds: int | Rounds) -> Rounds:
        """The `Rounds` themselves, or those that a number of rounds means."""
        return rounds if isinstance(rounds, Rounds) else cls(rounds)

    def judged_by(self, task: Task) -> Rounds:
        """These rounds, with a rule that knows for which scores of the task lower is better."""
        if not isinstance(self.until, NoGain):
            return self
        return replace(self, until=replace(self.until, lower=self.until.lower | task.lower))

    def check(
        self, clients: Federation | Clients, conditions: Conditions, private: Privacy | None
    ) -> None:
        """Raise an error if the run ends before clients drift or join, or by scores it lacks."""
        if conditions.joining and conditions.joining_round > self.count:
            raise ConfigError(
                f"joining_round must be at most {self.count}, the number of rounds, got "
                f"{conditions.joining_round}"
            )
        first = min((change.round for change in changes_of(clients)), default=0)
        if first > self.count:
            raise ConfigError(
                f"the drift begins in round {first}, but the run has only {self.count} rounds: let "
                "the drift begin earlier, or raise rounds"
            )
        if isinstance(self.until, NoGain) and private:
            raise ConfigError(
                "until score needs the clients' scores, which private clients do not send: set "
                "until to settled or rounds"
            )
        untested = isinstance(clients, Federation) and not any(map(len, clients.test))
        if isinstance(self.until, NoGain) and untested:
            raise ConfigError(
                "until score needs scores, but no client has test samples: set holdout above 0, or "
                "until to settled or rounds"
            )


@dataclass(frozen=True, slots=True)
class Attack:
    """What attackers do, and how many clients are attackers.

    >>> Attack("scale", strength=3.0).value
    Scale(strength=3.0)
    """

    kind: str | DataAttack | ModelAttack
    """The name of an attack, or a value of `wecfl.channel.attacks`."""
    attackers: float = 0.2
    """The share of clients that are attackers."""
    strength: float | None = None
    """The strength of an attack that is given by name; None: its default."""

    def __post_init__(self) -> None:
        if not 0 <= self.attackers < 1:
            raise ConfigError(f"attackers must be a share in [0, 1), got {self.attackers}")
        if not isinstance(self.kind, str) and self.strength is not None:
            raise ConfigError(
                "strength is for an attack that is given by name: give the strength to the value "
                f"itself, got {self.kind!r}"
            )
        _ = self.value

    @property
    def value(self) -> DataAttack | ModelAttack:
        """The attack itself."""
        if not isinstance(self.kind, str):
            return self.kind
        return named(self.kind, **({} if self.strength is None else {"strength": self.strength}))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What can go wrong between the clients and the server; by default nothing.

    >>> Conditions(participation=0.5, dropout=0.1).attack
    """

    participation: float = 1.0
    """The share of clients that take part in a round. The others keep their cluster, and do not
    count for its new center."""
    dropout: float = 0.0
    """The probability that a client trains but its reply is lost."""
    stragglers: float = 0.0
    """The probability that a client completes fewer than Q steps."""
    refuse_above: float = 100.0
    """An update that is longer than this many times the median length of the round is refused. So
    is a model that is not finite."""
    shorten_above: float = inf
    """An update that is longer than this many times the median length of the round is shortened to
    that length. Here no update is; over a network the default is 2 (`wecfl.flower.server`)."""
    min_cluster: int = 1
    """Clusters with fewer clients are dissolved, and no center is the mean of fewer models."""
    attack: Attack | None = None
    """What attackers do; only in a simulation."""
    joining: float = 0.0
    """The share of clients that join after the run has begun; only in a simulation. Over a network
    a client joins when it connects."""
    joining_round: int = 2
    """The first round in which the clients that join later take part."""

    def __post_init__(self) -> None:
        if self.attack is not None and not isinstance(self.attack, Attack):
            raise ConfigError(
                f"attack must be a value such as Attack('noise'), got {self.attack!r}"
            )
        self.channel()

    def channel(self, **run: Any) -> Channel:
        """The channel of a run with these conditions; `run` gives the other fields of `Channel`."""
        return Channel(
            self.participation, self.dropout, self.stragglers,
            refuse_above=self.refuse_above, shorten_above=self.shorten_above,
            min_cluster=self.min_cluster, joining=self.joining, joining_round=self.joining_round,
            **run,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Which clients are kept out of the training and assigned to a cluster at its end.

    >>> Newcomers(0.2)
    Newcomers(share=0.2, unseen=None)
    """

    share: float | None = None
    """The share of the clients that is kept out, drawn at random."""
    unseen: int | None = None
    """A hidden group whose clients are all kept out, and should be recognized as novel."""

    def __post_init__(self) -> None:
        if self.share is None and self.unseen is None:
            raise ConfigError(
                "newcomers needs a share of the clients, or the number of an unseen group: give one"
            )
        if self.share is not None and not 0 <= self.share < 1:
            raise ConfigError(f"newcomers must be a share of clients in [0, 1), got {self.share}")


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured and recorded beside the scores.

    >>> Measure(objectives=False).batchnorm
    'running'
    """

    objectives: bool | None = None
    """Whether R is measured on all training data, twice in each round. None: with `diagnostics` it
    is; otherwise R is estimated on a mini-batch of each client, if not private. False: neither."""
    objectives_every: int | None = None
    """N: R is measured on all training data in every N-th round, and estimated in the others."""
    diagnostics: bool = False
    """Whether to measure the quantities of the theory (`docs/theory.md`)."""
    trace: bool | None = None
    """Whether the run folder records the clients' distances; default: for up to 500 clients."""
    score_every: int = 1
    """N: the clients are tested in every N-th round, and always in the last one."""
    batchnorm: Literal["running", "batch"] = "running"
    """What BatchNorm uses in tests: `running` statistics, or those of each test `batch`."""

    def __post_init__(self) -> None:
        check_whole(score_every=(self.score_every, 1))
        if self.objectives_every is not None:
            check_whole(objectives_every=(self.objectives_every, 1))
            if self.objectives is False or self.diagnostics:
                raise ConfigError(
                    "objectives_every can't be used with diagnostics, which measure R in every "
                    "round, nor with objectives=False, which measures it in none: leave it out"
                )

    @property
    def exact_every(self) -> int | None:
        """N: R is measured on all training data in every N-th round; None: in no round."""
        asked = self.diagnostics if self.objectives is None else self.objectives
        return self.objectives_every or (1 if asked else None)

    def wanted(self, private: bool) -> bool:
        """Whether R is measured or estimated; with privacy only if it was asked for."""
        if self.objectives is not None:
            return self.objectives
        return not private or self.objectives_every is not None

    def check(self, plan: LocalPlan, clients: Federation | Clients) -> None:
        """Raise an error if the plan or the clients do not allow what is to be measured."""
        if self.diagnostics and changes_of(clients):
            raise ConfigError(
                "diagnostics measure the paper's theory, in which data do not change: leave out "
                "diagnostics or drift"
            )
        if self.diagnostics and plan.epochs:
            raise ConfigError(
                "diagnostics measure the paper's theory, in which all clients take the same number "
                "of steps: give steps, not epochs"
            )


@dataclass(frozen=True, slots=True)
class Compute:
    """What trains the clients, and on what. The result does not depend on `workers`.

    >>> Compute("torch", workers=2).engine
    'torch'
    """

    engine: EngineName = "auto"
    """`native`; `torch`; `auto`, which is native if it knows every layer of the model, else torch;
    or `ray`, one of these in each actor of a Ray cluster, with the same bits (`docs/cluster.md`).
    """
    workers: int | None = None
    """The number of threads, processes or actors; by default one per core."""
    device: str = "cpu"
    """Where the torch engine trains: `cpu`, `cuda`, `mps`, or `auto`, which is a GPU if there is
    one. On a GPU, `workers` is the number of clients that are computed at the same time."""
    precision: str = "float32"
    """The numbers with which a GPU computes; `bfloat16`: mixed precision."""
    ray_address: str | None = None
    """HOST:PORT of a running Ray cluster that this machine belongs to, or `auto` to find it. None:
    Ray is started for this run, on this machine."""

    def __post_init__(self) -> None:
        if self.workers is not None:
            check_whole(workers=(self.workers, 1))
        if self.ray_address is not None and self.engine != "ray":
            raise ConfigError("ray_address needs engine ray: choose both, or leave out ray_address")

    @property
    def machine(self) -> dict[str, Any]:
        """The options of `wecfl.make_engine` that say how this machine computes."""
        return {"workers": self.workers, "device": self.device, "precision": self.precision}


@dataclass(frozen=True, slots=True)
class Folder:
    """A run folder that is written (`wecfl.folder.writer`), or continued.

    >>> Folder("runs/mine", resume=True).checkpoint_every
    1
    """

    path: str | Path
    checkpoint_every: int = 1
    """N: a checkpoint is written after every N-th round."""
    resume: bool = False
    """Whether to continue the run in the folder where it was stopped, with the same federation and
    method. The result is the same, to the bit, as if it had not been stopped."""

    def __post_init__(self) -> None:
        check_whole(checkpoint_every=(self.checkpoint_every, 1))

    @classmethod
    def of(cls, folder: Folder | str | Path | None) -> Folder | None:
        """The folder itself, or the folder at a path."""
        return folder if folder is None or isinstance(folder, Folder) else cls(folder)
