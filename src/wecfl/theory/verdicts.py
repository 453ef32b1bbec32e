"""The judgement of a run: statements, the assumptions they rest on, and each round's inequality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["RELATIVE_TOLERANCE", "Assumption", "Check", "Inequality", "Statement"]

RELATIVE_TOLERANCE = 1e-5
"""By how much of its larger side an inequality may fail: F and R come from float32 models."""
ABSOLUTE_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True)
class Assumption:
    """An assumption of a statement: it is met, not met, or (None) unknown from the record."""

    name: str
    met: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Inequality:
    """left ≤ right in one round, and whether the condition of the statement was met there."""

    round: int
    left: float
    right: float
    condition: bool = True

    def __post_init__(self) -> None:
        if not all(isinstance(side, float | int) for side in (self.left, self.right)):
            raise TypeError(
                f"an inequality needs two numbers, got {self.left!r} and {self.right!r}"
            )

    @property
    def margin(self) -> float:
        """How much room is left: right − left."""
        return self.right - self.left

    @property
    def held(self) -> bool:
        """Whether left ≤ right, up to rounding."""
        return (
            self.margin
            >= -RELATIVE_TOLERANCE * max(abs(self.left), abs(self.right)) - ABSOLUTE_TOLERANCE
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """A lemma or theorem, and whether it held in each round."""

    name: str
    says: str
    rounds: Sequence[Inequality]
    assumptions: Sequence[Assumption]
    condition: str = ""
    """Its condition on the learning rate, in words; empty if it has none."""
    missing: str = ""
    """Why there is no round to judge; empty if there is one."""

    @property
    def refuted(self) -> bool:
        """Whether it failed in a round although all its assumptions and its condition were met."""
        sound = all(assumption.met for assumption in self.assumptions)
        return sound and any(found.condition and not found.held for found in self.rounds)


@dataclass(frozen=True, slots=True)
class Check:
    """All statements, judged on one run."""

    folder: Path
    title: str
    statements: Sequence[Statement]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def refuted(self) -> list[str]:
        """The names of the statements that were refuted."""
        return [statement.name for statement in self.statements if statement.refuted]

    def json(self) -> dict[str, Any]:
        """The check as values that JSON can write."""
        return {
            "folder": str(self.folder),
            "title": self.title,
            "refuted": self.refuted,
            "notes": list(self.notes),
            "statements": [
                {
                    "name": statement.name,
                    "says": statement.says,
                    "condition": statement.condition or None,
                    "missing": statement.missing or None,
                    "refuted": statement.refuted,
                    "assumptions": [
                        {"name": a.name, "met": a.met, "why": a.why} for a in statement.assumptions
                    ],
                    "rounds": [
                        {
                            "round": i.round, "left": i.left, "right": i.right,
                            "margin": i.margin, "held": i.held, "condition": i.condition,
                        }
                        for i in statement.rounds
                    ],
                }
                for statement in self.statements
            ],
        }  # fmt: skip
