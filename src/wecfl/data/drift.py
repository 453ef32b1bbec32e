"""Drift: the clients' data change while the clients are trained.

A drift says which clients, and from which round on, hold data like those of another group, or
samples of a broken sensor. The option `round` is the first round of the change, and `share` is the
share of the clients that change, drawn at random.

| name | options | what happens |
|---|---|---|
| abrupt | round 10, share 0.3 | clients change to another group at once |
| gradual | round 10, share 0.3, over 5 | they change over 5 rounds, sample by sample |
| recurring | round 10, share 0.3, period 5, times 3 | they change and back, every 5 rounds |
| appear | round 10 | the last group appears; before, its clients are like those of other groups |
| vanish | round 10 | the last group vanishes: its clients become like those of other groups |
| sensor | round 10, share 0.3, how noise | features of some clients change; their groups stay |
| staggered | every 10, schedule two | clients change group at different times, by a schedule |

A client that changes to a group gets samples of the clients that the group had at the beginning:
training samples of these for training, and test samples of these for testing, in the same numbers
as before. With ``staggered``, all clients get new samples in each step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from wecfl.config.named_values import read_known
from wecfl.core.types import Int
from wecfl.errors import ConfigError, PartitionError, unknown
from wecfl.limits import check_whole

__all__ = [
    "DRIFTS",
    "Abrupt",
    "Appear",
    "Drift",
    "Gradual",
    "Phase",
    "Recurring",
    "Sensor",
    "Staggered",
    "Vanish",
    "parsed",
]

SENSOR_FAULTS = ("noise", "contrast", "hue", "blur", "affine", "rotation")
"""The transforms that can simulate a broken sensor: they change features and no targets."""

SCHEDULES = {
    "two": "0000000000 0000000000 0100000100 0100000100 0111010100 "
           "0111010110 1111011110 1111011110 1111111111 1111111111",
    "four": "0000000000 1113330000 1113330020 3311333120 3331323120 "
            "3231122120 2232122310 2022212312 0022212332 0002211233",
}  # fmt: skip
"""The schedules of FedDrift (the files W and E of its repository): in each step, the group of each
of ten clients. They all begin in the first group."""


class Phase(NamedTuple):
    """Consecutive rounds in which no client changes."""

    round: int
    """The first of these rounds."""
    groups: Int
    """(m,), the groups whose samples the clients hold; −1: samples of their broken sensor."""
    share: float = 1.0
    """The share of their samples that come from there; the others are those of the beginning."""
    fresh: bool = False
    """Whether all clients get new samples of their groups; it is the same in all phases."""


class Drift(ABC):
    """A drift: a frozen dataclass that says which clients hold which data, and when."""

    __slots__ = ()

    name: ClassVar[str]

    @abstractmethod
    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """The phases of clients with these groups, in order; the first may begin in round 1."""


@dataclass(frozen=True, slots=True)
class Abrupt(Drift):
    """A share of the clients changes to another group, all in the same round.

    >>> Abrupt(round=3, share=0.5).phases(np.array([0, 0, 1, 1]), np.random.default_rng(0))
    [Phase(round=3, groups=array([1, 0, 0, 1]), share=1.0, fresh=False)]
    """

    round: int = 10
    share: float = 0.3

    name: ClassVar[str] = "abrupt"

    def __post_init__(self) -> None:
        _check(self, self.round, self.share)

    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """One phase."""
        return [Phase(self.round, _moved(self, groups, self.share, rng))]


@dataclass(frozen=True, slots=True)
class Gradual(Drift):
    """A share of the clients changes to another group, over several rounds.

    In each of these rounds, an equal part of a client's samples is replaced. Its group is the new
    one as soon as half of the samples are.

    >>> phases = Gradual(over=2).phases(np.array([0, 1]), np.random.default_rng(0))
    >>> [(phase.round, phase.share) for phase in phases]
    [(10, 0.5), (11, 1.0)]
    """

    round: int = 10
    share: float = 0.3
    over: int = 5

    name: ClassVar[str] = "gradual"

    def __post_init__(self) -> None:
        _check(self, self.round, self.share)
        check_whole(over=(self.over, 2))

    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """One phase for each round of the change."""
        after = _moved(self, groups, self.share, rng)
        return [
            Phase(self.round + step, after, (step + 1) / self.over) for step in range(self.over)
        ]


@dataclass(frozen=True, slots=True)
class Recurring(Drift):
    """A share of the clients changes to another group and back, `times` times in all.

    >>> phases = Recurring(times=2).phases(np.array([0, 1]), np.random.default_rng(0))
    >>> [(phase.round, phase.groups.tolist()) for phase in phases]
    [(10, [1, 1]), (15, [0, 1])]
    """

    round: int = 10
    share: float = 0.3
    period: int = 5
    times: int = 3

    name: ClassVar[str] = "recurring"

    def __post_init__(self) -> None:
        _check(self, self.round, self.share)
        check_whole(period=(self.period, 1), times=(self.times, 2))

    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """A phase for each change."""
        both = [_moved(self, groups, self.share, rng), groups]
        rounds = range(self.round, self.round + self.times * self.period, self.period)
        return [Phase(first, both[change % 2]) for change, first in enumerate(rounds)]


@dataclass(frozen=True, slots=True)
class Appear(Drift):
    """The last group appears: before, its clients hold samples of the other groups.

    >>> phases = Appear(round=3).phases(np.array([0, 1]), np.random.default_rng(0))
    >>> [(phase.round, phase.groups.tolist()) for phase in phases]
    [(1, [0, 0]), (3, [0, 1])]
    """

    round: int = 10

    name: ClassVar[str] = "appear"

    def __post_init__(self) -> None:
        _check(self, self.round)

    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """A phase before, and one after."""
        return [Phase(1, _without_last(self, groups)), Phase(self.round, groups)]


@dataclass(frozen=True, slots=True)
class Vanish(Drift):
    """The last group vanishes: its clients hold samples of the other groups from then on.

    >>> Vanish(round=3).phases(np.array([0, 1]), np.random.default_rng(0))
    [Phase(round=3, groups=array([0, 0]), share=1.0, fresh=False)]
    """

    round: int = 10

    name: ClassVar[str] = "vanish"

    def __post_init__(self) -> None:
        _check(self, self.round)

    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """One phase."""
        return [Phase(self.round, _without_last(self, groups))]


@dataclass(frozen=True, slots=True)
class Sensor(Drift):
    """The sensor of a share of the clients breaks: their features change, all in the same way.

    `how` is a transform of features (`wecfl.transforms`), with its default strength.

    >>> Sensor(share=0.5).phases(np.array([0, 0, 1, 1]), np.random.default_rng(0))[0].groups
    array([-1,  0, -1,  1])
    """

    round: int = 10
    share: float = 0.3
    how: str = "noise"

    name: ClassVar[str] = "sensor"

    def __post_init__(self) -> None:
        _check(self, self.round, self.share)
        if self.how not in SENSOR_FAULTS:
            raise ConfigError(unknown("fault of a sensor", str(self.how), SENSOR_FAULTS))

    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """One phase."""
        after = groups.copy()
        after[_drawn(self, len(groups), self.share, rng)] = -1
        return [Phase(self.round, after)]


@dataclass(frozen=True, slots=True)
class Staggered(Drift):
    """Clients change group at different times, and all get new samples in each step (FedDrift).

    A step lasts `every` rounds. The `schedule` gives the group of each client in each step: a digit
    for each client, and a space between steps. The schedules ``two`` and ``four`` are those of
    FedDrift, for ten clients. A client's samples are divided equally among the steps.

    >>> phases = Staggered(5, "001 011").phases(np.array([0, 0, 1]), np.random.default_rng(0))
    >>> [(phase.round, phase.groups.tolist()) for phase in phases]
    [(1, [0, 0, 1]), (6, [0, 1, 1])]
    """

    every: int = 10
    schedule: str = "two"

    name: ClassVar[str] = "staggered"

    def __post_init__(self) -> None:
        check_whole(every=(self.every, 1))
        steps = self._steps
        if len(steps) < 2 or not all(map(str.isdecimal, steps)) or len(set(map(len, steps))) > 1:
            raise ConfigError(
                f"staggered: schedule must be {' or '.join(SCHEDULES)}, or at least two steps with "
                f"a digit for each client, such as '001 011', got {self.schedule!r}"
            )

    @property
    def _steps(self) -> list[str]:
        return SCHEDULES.get(str(self.schedule), str(self.schedule)).split()

    def phases(self, groups: Int, rng: np.random.Generator) -> list[Phase]:
        """One phase for each step."""
        steps = np.array([[*map(int, step)] for step in self._steps])
        if steps.shape[1] != len(groups):
            raise PartitionError(
                f"staggered: the schedule has {steps.shape[1]} clients, got {len(groups)}; ask for "
                f"{steps.shape[1]} clients"
            )
        if missing := sorted({*steps.ravel().tolist()} - {*groups.tolist()}):
            raise PartitionError(
                f"staggered: the schedule has a group {missing[0]}, but no client belongs to it, "
                f"whose samples could be used; ask for {steps.max() + 1} groups"
            )
        return [Phase(1 + step * self.every, now, fresh=True) for step, now in enumerate(steps)]


DRIFTS: dict[str, type[Drift]] = {
    kind.name: kind for kind in (Abrupt, Gradual, Recurring, Appear, Vanish, Sensor, Staggered)
}
"""Every drift by its name."""


def parsed(text: str) -> Drift:
    """The drift that a text names.

    >>> parsed("abrupt(round=5)")
    Abrupt(round=5, share=0.3)
    >>> parsed("abrubt")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown drift 'abrubt'; did you mean 'abrupt'?
    """
    return read_known(text, "drift", DRIFTS)


def _check(drift: Drift, round: int, share: Any = 0.5) -> None:
    check_whole(round=(round, 2))
    fits = isinstance(share, int | float) and not isinstance(share, bool)
    if not fits or not 0 < share <= 1:
        raise ConfigError(
            f"{drift.name}: share must be a number above 0 and at most 1, got {share!r}"
        )


def _drawn(drift: Drift, m: int, share: float, rng: np.random.Generator) -> Int:
    """The clients that change."""
    count = round(share * m)
    if not count:
        raise PartitionError(
            f"{drift.name}(share={share:g}) changes none of {m} clients; raise the share"
        )
    return np.sort(rng.permutation(m)[:count])


def _moved(drift: Drift, groups: Int, share: float, rng: np.random.Generator) -> Int:
    """(m,), the groups after a share of the clients has moved to other ones, drawn at random."""
    known = _several(drift, groups)
    after = groups.copy()
    for client in _drawn(drift, len(groups), share, rng):
        after[client] = rng.choice(known[known != groups[client]])
    return after


def _without_last(drift: Drift, groups: Int) -> Int:
    """(m,), the groups if the clients of the last one belong to the others, in turn."""
    *others, last = _several(drift, groups)
    after = groups.copy()
    after[groups == last] = np.resize(others, int((groups == last).sum()))
    return after


def _several(drift: Drift, groups: Int) -> Int:
    known = np.unique(groups)
    if len(known) < 2:
        raise PartitionError(
            f"the drift {drift.name} needs at least two groups, got {len(known)}; ask for more "
            "groups"
        )
    return known
