"""The table of newcomers: clients that come after the training, and how they fare."""

from __future__ import annotations

from math import isnan

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from wecfl.report.tables.cells import cell
from wecfl.runs.scores import kind_of

__all__ = ["input_words", "newcomer_cells", "rich_newcomers"]


def newcomer_cells(newcomers: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table as texts, one row for each newcomer.

    >>> frame = pd.DataFrame([{"client": "a", "samples": 9, "cluster": 2, "confidence": 0.875,
    ...     "distance": 0.5, "loss": 0.1, "novelty": 3.5, "limit": 2.25, "novel": True,
    ...     "accuracy": 0.5, "macro_f1": 0.5}])
    >>> newcomer_cells(frame)[1]
    [['a', '9', '2', '0.88', '0.5', '0.1', '3.5', '2.2', 'yes', '50.0']]
    """
    columns = newcomers.columns.tolist()
    grouped = "group" in columns and bool(newcomers["group"].notna().all())
    scored = columns.index("novel") + 1 < len(columns)  # without labels there are no scores
    score = columns[columns.index("novel") + 1] if scored else ""  # the headline
    kind = kind_of(score) if scored else None
    # Folders of earlier versions know no novelty, and whoever has no labels has no loss.
    shown = [
        (name, form)
        for name, form in (("distance", ".3g"), ("loss", ".3g"), ("novelty", ".1f"))
        if name in columns and newcomers[name].notna().any()
    ]
    limit = ".1f" if "novelty" in columns else ".3g"
    heads = [
        "client", "samples", *(["group"] if grouped else []), "cluster", "confidence",
        *(name for name, _ in shown), "limit", "novel", *([kind.head] if kind else []),
    ]  # fmt: skip
    return heads, [
        [
            str(row["client"]),
            str(row["samples"]),
            *([f"{row['group']:.0f}"] if grouped else []),
            str(row["cluster"]),
            _number(row["confidence"], ".2f"),
            *(_number(row[name], form) for name, form in shown),
            _number(row["limit"], limit),
            "yes" if row["novel"] else "no",
            *([kind.number(row[score])] if kind else []),
        ]
        for row in newcomers.to_dict("records")
    ]


def rich_newcomers(newcomers: pd.DataFrame) -> Table:
    """The table for the terminal."""
    heads, lines = newcomer_cells(newcomers)
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="left" if head in ("client", "novel") else "right")
    for line, novel in zip(lines, newcomers["novel"], strict=True):
        table.add_row(*map(cell, line), style="bold" if novel else None)
    return table


def input_words(found: float) -> str:
    """How reliable the assignment of a newcomer by its inputs is.

    >>> input_words(0.975)
    'assigned by inputs alone: of the members 98 % are found in their own cluster in this way'
    """
    return (
        f"assigned by inputs alone: of the members {100 * found:.0f} % are found in their own "
        "cluster in this way"
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or isnan(value) else f"{value:{form}}"
