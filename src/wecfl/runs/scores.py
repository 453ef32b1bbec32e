"""Scores: which ones a record or a summary holds, which comes first, and how each is written.

A score is a number that a record holds both for each client and as their mean. The first one is the
headline: bars, tables, pages and figures show it before all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal

__all__ = ["Better", "ScoreKind", "headline_of", "kind_of", "scores_of", "summary_scores"]

Better = Literal["higher", "lower"]
"""Whether higher or lower values of a score are better."""


@dataclass(frozen=True, slots=True)
class ScoreKind:
    """How a score is called and written.

    >>> ScoreKind("accuracy", percent=True).text(0.5), ScoreKind("RMSE", better="lower").head
    ('50.0 %', 'RMSE ↓')
    """

    label: str
    percent: bool = False
    """Whether it is a share, written in percent."""
    better: Better = "higher"

    @property
    def head(self) -> str:
        """The head of its column in a table."""
        return self.label + " %" * self.percent + " ↓" * (self.better == "lower")

    @property
    def title(self) -> str:
        """The label at the beginning of a title."""
        return self.label[:1].upper() + self.label[1:]

    def number(self, value: float | None, digits: int = 1) -> str:
        """The value in the unit of the head; shares have `digits` digits after the point."""
        if value is None or isnan(value):
            return "–"
        return f"{100 * value:.{digits}f}" if self.percent else f"{value:.4g}"

    def text(self, value: float | None) -> str:
        """The value with its unit."""
        known = value is not None and not isnan(value)
        return self.number(value) + " %" * (self.percent and known)


KNOWN_SCORES = {
    "accuracy": ScoreKind("accuracy", percent=True),
    "balanced_accuracy": ScoreKind("balanced accuracy", percent=True),
    "macro_f1": ScoreKind("macro-F1", percent=True),
    "auc": ScoreKind("AUC"),
    "average_precision": ScoreKind("average precision"),
    "brier": ScoreKind("Brier score", better="lower"),
    "ece": ScoreKind("calibration error", percent=True, better="lower"),
    "rmse": ScoreKind("RMSE", better="lower"),
    "mae": ScoreKind("MAE", better="lower"),
    "r2": ScoreKind("R²"),
    "pinball": ScoreKind("pinball loss", better="lower"),
    "coverage": ScoreKind("coverage", percent=True),
}
"""The scores of the tasks of `wecfl.tasks`, by name. A user's own are plain numbers."""


def kind_of(name: str, better: Better = "higher") -> ScoreKind:
    """How a score is written; `better` is used for a score of the user's own.

    >>> kind_of("accuracy").head, kind_of("my_cost", "lower").head
    ('accuracy %', 'my cost ↓')
    """
    return KNOWN_SCORES.get(name) or ScoreKind(name.replace("_", " "), better=better)


def scores_of(record: Mapping[str, Any]) -> list[str]:
    """The scores of a record by name, the headline first.

    >>> scores_of({"accuracy": 0.5, "ari": 1.0, "clients": {"accuracy": [0.5], "reply": [0]}})
    ['accuracy']
    """
    return [name for name in record["clients"] if name in record]


def summary_scores(summary: Mapping[str, Any]) -> dict[str, Better]:
    """The scores of a summary by name, the headline first, and whether higher or lower is better.

    Folders of earlier versions do not list them; they hold the scores of a classification.
    """
    known: dict[str, Better] = summary.get("scores", {"accuracy": "higher", "macro_f1": "higher"})
    return dict(known)


def headline_of(summary: Mapping[str, Any]) -> tuple[str, ScoreKind]:
    """The name of the headline of a summary, and how it is written.

    >>> headline_of({"scores": {"rmse": "lower"}})[1].head
    'RMSE ↓'
    """
    name, better = next(iter(summary_scores(summary).items()))
    return name, kind_of(name, better)
