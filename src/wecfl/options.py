"""The options of an experiment, one value for each concern; every one is checked when it is made.

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
from dataclasses import asdict, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

from wecfl.channel.attacks import DataAttack, ModelAttack, named
from wecfl.core.channel import Channel
from wecfl.core.plan import LocalPlan
from wecfl.errors import ConfigError

__all__ = [
    "Attack",
    "Compute",
    "Conditions",
    "EngineName",
    "Folder",
    "Measure",
    "Newcomers",
    "Plan",
    "check_whole",
]

EngineName = Literal["auto", "native", "torch", "ray"]
"""What `wecfl.make_engine` can be asked for."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How clients train, as far as it is said: the method has its own plan for the rest, or else
    the usual one is taken (`wecfl.core.plan.LocalPlan`).

    >>> Plan(lr=0.01).complete({"momentum": 0.0})
    LocalPlan(steps=10, batch=32, lr=0.01, momentum=0.0, keep_momentum=True, weight_decay=0.0,
              done=None)
    """

    steps: int | None = None
    """Q, mini-batches of local training in a round: 10."""
    batch: int | None = None
    """Samples in a mini-batch: 32."""
    lr: float | Literal["theory"] | None = None
    """η, 0.001; or `theory`: Theorem 1's bound for each client, anew in every round."""
    momentum: float | None = None
    """Of SGD: 0.9."""
    keep_momentum: bool | None = None
    """Clients keep their momentum buffer between rounds, as in the paper: True."""
    weight_decay: float | None = None
    """Of SGD: 0."""

    def __post_init__(self) -> None:
        said = {"steps": self.steps, "batch": self.batch}
        check_whole(**{name: (each, 1) for name, each in said.items() if each is not None})
        if isinstance(self.lr, str) and self.lr != "theory":
            raise ConfigError(f"lr must be a number or 'theory', got '{self.lr}'")
        self.complete({})

    def complete(self, usual: Mapping[str, Any]) -> LocalPlan:
        """The whole plan: what is said, then what is usual for the method, then the defaults.

        Where a rule sets η in every round (`follows`), that of the plan is not used and 0.
        """
        said = {name: value for name, value in asdict(self).items() if value is not None}
        rate = {"lr": 0.0} if self.follows(usual) else {}
        return LocalPlan(**{**usual, **said, **rate})

    def follows(self, usual: Mapping[str, Any]) -> bool:
        """Whether η follows the run by Theorem 1."""
        return (usual.get("lr") if self.lr is None else self.lr) == "theory"


@dataclass(frozen=True, slots=True)
class Attack:
    """What lying clients do, and how many of them lie.

    >>> Attack("scale", strength=3.0).value
    Scale(strength=3.0)
    """

    kind: str | DataAttack | ModelAttack
    """By name, or a value of `wecfl.channel.attacks`."""
    attackers: float = 0.2
    """The share of clients that lie."""
    strength: float | None = None
    """Of an attack that goes by its name and has one."""

    def __post_init__(self) -> None:
        if not 0 <= self.attackers < 1:
            raise ConfigError(f"attackers: expected a share in [0, 1), got {self.attackers}")
        if not isinstance(self.kind, str) and self.strength is not None:
            raise ConfigError("the strength goes with the name of an attack, not with a value")
        _ = self.value

    @property
    def value(self) -> DataAttack | ModelAttack:
        """The attack itself."""
        if not isinstance(self.kind, str):
            return self.kind
        return named(self.kind, **({} if self.strength is None else {"strength": self.strength}))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is between the clients and the server; by default nothing.

    >>> Conditions(participation=0.5, dropout=0.1).attack
    """

    participation: float = 1.0
    """The share of clients that take part in a round; the others keep their cluster and count in
    no center."""
    dropout: float = 0.0
    """The probability that a client trains but its reply is lost."""
    stragglers: float = 0.0
    """The probability that a client gets to fewer than Q steps."""
    refuse_above: float = 100.0
    """Updates so many times longer than the round's median are refused, as are models that are not
    finite."""
    min_cluster: int = 1
    """Smaller clusters are dissolved, and no center is made of fewer models."""
    attack: Attack | None = None
    """What lying clients do; only in a simulation."""

    def __post_init__(self) -> None:
        if self.attack is not None and not isinstance(self.attack, Attack):
            raise ConfigError(
                f"attack must be a value such as Attack('noise'), got {self.attack!r}"
            )
        self.channel()

    def channel(self, **run: Any) -> Channel:
        """As the rounds meet them, with what belongs to the run: `keys`, `seed`, who attacks …"""
        return Channel(
            self.participation, self.dropout, self.stragglers,
            refuse_above=self.refuse_above, min_cluster=self.min_cluster, **run,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Newcomers:
    """Clients that are kept out of the training and assigned to a cluster at its end.

    >>> Newcomers(0.2)
    Newcomers(share=0.2, unseen=None)
    """

    share: float | None = None
    """Of the clients, drawn at random."""
    unseen: int | None = None
    """A generating group whose clients are all kept out, to be found novel."""

    def __post_init__(self) -> None:
        if self.share is None and self.unseen is None:
            raise ConfigError("newcomers need a share of the clients, or a group that is unseen")
        if self.share is not None and not 0 <= self.share < 1:
            raise ConfigError(f"newcomers: expected a share in [0, 1), got {self.share}")


@dataclass(frozen=True, slots=True)
class Measure:
    """What is measured and recorded beside the scores.

    >>> Measure(objectives=False).batchnorm
    'running'
    """

    objectives: bool | None = None
    """R on all training data, twice a round; by default unless there is `privacy`."""
    diagnostics: bool = False
    """Also what the theory speaks of (`docs/theory.md`)."""
    trace: bool | None = None
    """The clients' distances, in the run folder; by default of up to 500 clients."""
    score_every: int = 1
    """Rounds between two tests of the clients; the last round is always one with a test."""
    batchnorm: Literal["running", "batch"] = "running"
    """BatchNorm in tests: `running` statistics or those of each test `batch`."""

    def __post_init__(self) -> None:
        check_whole(score_every=(self.score_every, 1))


@dataclass(frozen=True, slots=True)
class Compute:
    """What trains the clients; the result does not depend on `workers`.

    >>> Compute("torch", workers=2).engine
    'torch'
    """

    engine: EngineName = "auto"
    """`native`, `torch`, or `auto`: native where it knows every layer of the model; `ray`: one of
    them in each actor of a Ray cluster, with the same bits (`docs/cluster.md`)."""
    workers: int | None = None
    """Threads, processes or actors; by default one per core."""
    ray_address: str | None = None
    """HOST:PORT of a running cluster that this machine is a node of, or `auto`; without it Ray is
    started for this run alone."""

    def __post_init__(self) -> None:
        if self.ray_address is not None and self.engine != "ray":
            raise ConfigError("ray_address says nothing without engine ray")


@dataclass(frozen=True, slots=True)
class Folder:
    """A run folder to write (`wecfl.folder.writer`), or to go on with.

    >>> Folder("runs/mine", resume=True).checkpoint_every
    1
    """

    path: str | Path
    checkpoint_every: int = 1
    """Rounds between two checkpoints."""
    resume: bool = False
    """Go on with the run in it (the same federation and method) where it was stopped; what it
    comes to is the same to the bit as without the stop."""

    def __post_init__(self) -> None:
        check_whole(checkpoint_every=(self.checkpoint_every, 1))


def check_whole(**numbers: tuple[Any, int]) -> None:
    """Refuse what is no whole number, or below its least.

    >>> check_whole(rounds=(1.5, 1))
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: rounds must be a whole number of at least 1, got 1.5
    """
    for name, (number, least) in numbers.items():
        if not isinstance(number, Integral) or int(number) < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, got {number!r}")
