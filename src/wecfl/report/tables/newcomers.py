"""The table of newcomers: clients that come after the training, and how they fare."""

from __future__ import annotations

from math import isnan

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from wecfl.runs.newcomers import By

__all__ = ["newcomer_cells", "rich_newcomers"]


def newcomer_cells(newcomers: pd.DataFrame, by: By = "update") -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table as texts, one row for each newcomer.

    >>> frame = pd.DataFrame([{"client": "a", "samples": 9, "cluster": 2, "confidence": 0.875,
    ...     "distance": 0.5, "limit": 0.25, "novel": True, "accuracy": 0.5, "macro_f1": 0.5}])
    >>> newcomer_cells(frame)[1]
    [['a', '9', '2', '0.88', '0.5', '0.25', 'yes', '50.0']]
    """
    grouped = "group" in newcomers and bool(newcomers["group"].notna().all())
    measure = "distance" if by == "update" else "loss"
    heads = ["client", "samples", *(["group"] if grouped else []), "cluster", "confidence",
             measure, "limit", "novel", "accuracy %"]  # fmt: skip
    return heads, [
        [
            str(row["client"]),
            str(row["samples"]),
            *([f"{row['group']:.0f}"] if grouped else []),
            str(row["cluster"]),
            _number(row["confidence"], ".2f"),
            _number(row["distance"], ".3g"),
            _number(row["limit"], ".3g"),
            "yes" if row["novel"] else "no",
            _number(row["accuracy"] and 100 * row["accuracy"], ".1f"),
        ]
        for row in newcomers.to_dict("records")
    ]


def rich_newcomers(newcomers: pd.DataFrame, by: By) -> Table:
    """The table for the terminal."""
    heads, lines = newcomer_cells(newcomers, by)
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="left" if head in ("client", "novel") else "right")
    for line, novel in zip(lines, newcomers["novel"], strict=True):
        table.add_row(*map(escape, line), style="bold" if novel else None)
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or isnan(value) else f"{value:{form}}"
