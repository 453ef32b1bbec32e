"""When a run ends before its last round: the "until convergence" of Algorithm 1.

A rule is a function. It gets the records of all rounds so far (`wecfl.runs.record.RECORD_KEYS`),
and returns the reason to stop as a text, or None to go on. Any function of this kind can be used
(`wecfl.Rounds(until=…)`). It must depend on nothing else, since a resumed run asks it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from wecfl.errors import ConfigError

__all__ = ["NoGain", "Settled", "Until"]

Until = Callable[[Sequence[Mapping[str, Any]]], str | bool | None]
"""Takes the records so far, and gives the reason why the run ends; None or False: it goes on."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Stops when no client has changed its cluster for some rounds, and F hardly changes.

    F varies with the mini-batches. So its mean over these rounds is compared with its mean over the
    same number of rounds before. If F is not measured, the assignment alone decides.

    >>> values = (9.0, 5.0, 5.1, 4.9, 5.1)
    >>> Settled(rounds=2)([{"churn": 0.0, "F": {"M": F}} for F in values])
    'no client has changed its cluster for 2 rounds, and F has settled'
    >>> Settled(rounds=2)([{"churn": 0.0, "F": {"M": F}} for F in values[:4]])
    """

    rounds: int = 5
    tolerance: float = 0.01
    """The largest change of the mean of F, relative to the largest F of the run."""

    def __post_init__(self) -> None:
        _check("Settled", self.rounds, self.tolerance)

    def __call__(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """The reason why the run ends, or None."""
        n = self.rounds
        if len(records) < 2 * n or any(record["churn"] != 0 for record in records[-n:]):
            return None
        same = f"no client has changed its cluster for {n} rounds"
        values = [record["F"].get("M") for record in records]
        if None in values:
            return same
        change = abs(fmean(values[-n:]) - fmean(values[-2 * n : -n]))
        return f"{same}, and F has settled" if change <= self.tolerance * max(values) else None


@dataclass(frozen=True, slots=True)
class NoGain:
    """Stops when a score has not become better for some rounds in which it was measured.

    Clients are tested on their test data, which should not decide when a run ends. To avoid this,
    hold out a part of the training data (`--validation`, `Federation.validating`).

    >>> scores = [{"accuracy": score} for score in (0.5, 0.7, 0.7, None, 0.6)]
    >>> NoGain("accuracy", rounds=2)(scores)
    'accuracy has not risen above 0.7 in 2 tests'
    >>> NoGain("accuracy", rounds=3)(scores)
    """

    score: str | None = None
    """A key of the records that holds a number; None: the headline, the first score of the task."""
    rounds: int = 5
    gain: float = 0.0
    """A score counts as better only if it is better by more than this."""
    lower: frozenset[str] = frozenset()
    """The names of the scores for which lower is better; a run adds those of its task."""

    def __post_init__(self) -> None:
        _check("NoGain", self.rounds, self.gain)

    def __call__(self, records: Sequence[Mapping[str, Any]]) -> str | None:
        """The reason why the run ends, or None."""
        if not records:
            return None
        name = self.score or next(iter(records[-1]["clients"]))
        if not isinstance(records[-1].get(name, ""), float | int | None):
            raise ConfigError(
                f"until can't watch '{name}', which is not a score in the record of each round: "
                f"choose one, such as accuracy or macro_f1"
            )
        sign, moved = (-1, "fallen below") if name in self.lower else (1, "risen above")
        scores = [sign * record[name] for record in records if record[name] is not None]
        earlier, recent = scores[: -self.rounds], scores[-self.rounds :]
        if earlier and max(recent) <= (best := max(earlier)) + self.gain:
            return f"{name} has not {moved} {sign * best:.4g} in {self.rounds} tests"
        return None


def _check(name: str, rounds: Any, tolerance: float) -> None:
    if not isinstance(rounds, int) or rounds < 1:
        raise ConfigError(f"{name} needs a whole number of rounds, at least 1, got {rounds!r}")
    if not 0 <= tolerance < 1:
        raise ConfigError(f"{name} needs a tolerance in [0, 1), got {tolerance!r}")
