"""Schedules: how the learning rate η changes from round to round.

A schedule is a function. It gets the number of rounds that were done before, and returns the factor
of η for the next round. Any function of this kind can be used (`wecfl.Plan(schedule=…)`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, pi
from typing import Any

from wecfl.errors import ConfigError

__all__ = ["CosineDecay", "Schedule", "StepDecay", "Warmup"]

Schedule = Callable[[int], float]
"""Takes the number of rounds done before, and gives the factor of η in the next round."""


@dataclass(frozen=True, slots=True)
class StepDecay:
    """Multiplies η by `factor` after every `rounds` rounds.

    >>> [StepDecay(2, 0.5)(t) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    rounds: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check("StepDecay", self.rounds, self.factor)

    def __call__(self, round: int) -> float:
        """Factor ^ ⌊t / rounds⌋."""
        return float(self.factor) ** (round // self.rounds)


@dataclass(frozen=True, slots=True)
class CosineDecay:
    """Lets η fall to `floor`·η in `rounds` rounds, along half a cosine, and stay there.

    >>> [round(CosineDecay(4)(t), 3) for t in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    rounds: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check("CosineDecay", self.rounds, self.floor)

    def __call__(self, round: int) -> float:
        """Floor + (1 − floor)·(1 + cos(π·t / rounds)) / 2."""
        done = min(round, self.rounds) / self.rounds
        return self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2


@dataclass(frozen=True, slots=True)
class Warmup:
    """Lets η rise in equal steps for `rounds` rounds, and then follow another schedule.

    >>> [round(Warmup(3, StepDecay(1, 0.5))(t), 3) for t in range(5)]
    [0.333, 0.667, 1.0, 1.0, 0.5]
    """

    rounds: int
    then: Schedule | None = None
    """The schedule of the rounds that follow; None: η stays as it is."""

    def __post_init__(self) -> None:
        _check("Warmup", self.rounds)

    def __call__(self, round: int) -> float:
        """(t + 1) / rounds, then what follows."""
        if round < self.rounds:
            return (round + 1) / self.rounds
        return 1.0 if self.then is None else self.then(round - self.rounds)


def _check(name: str, rounds: Any, factor: float = 1.0) -> None:
    if not isinstance(rounds, int) or rounds < 1:
        raise ConfigError(f"{name} needs a whole number of rounds, at least 1, got {rounds!r}")
    if not 0 <= factor <= 1:
        raise ConfigError(f"{name} needs a factor from 0 to 1, got {factor!r}")
