"""The table of scores that others published, and of our scores in their settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan, nan

import numpy as np
import pandas as pd

from wecfl.paper.definitions import Cell, Published
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import Row, averaged, score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score
from wecfl.runs.summary import best_round

__all__ = ["LARGE_GAP", "frame", "tables"]

LARGE_GAP = 2.0
"""From so many of their ± on, a difference is to be explained."""


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell: their score, ours by the same rule, and the gap in units of their ±."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    theirs = cell.theirs or Published(nan, None, "no source")
    if theirs.which == "best":
        found = [best_round(each["curve"]["round"], each["curve"]["accuracy"]) for each in stored]
        best = [{"accuracy": each[1], "round": each[0]} for each in found if each]
        usual |= dict(averaged(best, {"accuracy": 100.0, "round": 1.0}))
    std = nan if theirs.std is None else theirs.std
    return usual | {
        "source": theirs.source,
        "settings": theirs.settings,
        "which": theirs.which,
        "rounds": cell.config.rounds,
        "their_rounds": theirs.rounds or cell.config.rounds,
        "theirs": theirs.score,
        "theirs_std": std,
        "gap": (usual["accuracy"] - theirs.score) / std if std else nan,
    }


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each source, and one of all rows with a gap above `LARGE_GAP`."""
    heads = ["what", "method", "theirs %", "ours %", "difference", "Δ/±", "rounds", "n"]
    for source, rows in frame.groupby("source", sort=False):
        yield TextTable(str(source), heads, [_texts(row) for row in rows.to_dict("records")])
    far = frame[np.abs(frame["gap"]) > LARGE_GAP]
    if len(far):
        title = f"More than {LARGE_GAP:g} of their ± away"
        yield TextTable(title, heads, [_texts(row) for row in far.to_dict("records")])


def _texts(row: Row) -> list[str]:
    """A row; rounds are ours, of theirs."""
    ours = score(row["accuracy"], row["accuracy_std"]) if row["n"] else NOT_RUN_TEXT
    ours = "diverged" if row["n"] and isnan(row["accuracy"]) else ours
    apart = row["accuracy"] - row["theirs"]
    fewer = row["rounds"] != row["their_rounds"]
    return [
        row["label"],
        row["method"],
        score(row["theirs"], row["theirs_std"]),
        ours,
        "–" if isnan(apart) else f"{apart:+.2f}",
        "–" if isnan(row["gap"]) else f"{row['gap']:+.1f}",
        f"{row['rounds']} of {row['their_rounds']}" if fewer else str(row["rounds"]),
        str(row["n"]),
    ]
