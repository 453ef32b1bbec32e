"""The table of drift: how soon methods recover when clients' data change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

import pandas as pd

from wecfl.data.drift import Staggered, parsed
from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import Row, averaged, score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "rounds_to_recover", "tables"]

RECOVERY_MARGIN = 0.02
"""How much lower than before the change an accuracy may be that has recovered."""
ROUNDS_BEFORE = 3
"""The number of rounds before the change whose mean accuracy is to be reached again."""
DRIFT_COUNTS = ("changed", "found", "at_once", "alarms", "looks")
"""What is shown of `wecfl.runs.drift_summary.last_drift`."""
NOT_KNOWN_TEXT = "–"
"""Stands for what a method does not look for."""
COLUMN_HEADS = {
    "recover": "rounds to recover", "accuracy": "accuracy at the end %", "ari": "ARI at the end",
    "mean_accuracy": "accuracy in all rounds %", "mean_ari": "ARI in all rounds",
    "found": "found, on average", "alarms": "false alarms %",
}  # fmt: skip
"""What is shown, with its head."""
COLUMNS_OF_ONE_CHANGE = ("recover", "accuracy", "ari", "found", "alarms")
COLUMNS_OF_STAGGERED_CHANGES = ("mean_accuracy", "mean_ari", "found", "alarms")
"""What is shown of changes that happen once, and of staggered ones."""


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell: its scores at the end and over all rounds, and the rounds to recover."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    drift = parsed(cell.config.drift or "")
    curves = [result["curve"] for result in stored if result["curve"]["round"]]
    change = getattr(drift, "round", None)
    recovered = [rounds_to_recover(curve, change) for curve in curves] if change else []
    means = [{f"mean_{name}": mean(curve[name]) for name in ("accuracy", "ari")}
             for curve in curves]  # fmt: skip
    return (
        usual
        | {"drift": drift.name}
        | {"recover": ", ".join("never" if each is None else str(each) for each in recovered)}
        | dict(averaged(means, {"mean_accuracy": 100.0, "mean_ari": 1.0}))
        | dict(
            averaged([result.get("drift", {}) for result in stored], dict.fromkeys(DRIFT_COUNTS, 1))
        )
    )


def rounds_to_recover(curve: Mapping[str, Sequence[Any]], change: int) -> int | None:
    """The number of rounds after a change until the accuracy has recovered; None: never.

    It has recovered if it is at most two points lower than in the three rounds before the change.

    >>> curve = {"round": [1, 2, 3, 4, 5, 6, 7], "accuracy": [0.9, 0.9, 0.9, 0.9, 0.5, 0.8, 0.89]}
    >>> rounds_to_recover(curve, 5), rounds_to_recover(curve, 7)
    (2, 0)
    """
    known = dict(zip(curve["round"], curve["accuracy"], strict=True))
    before = mean(known[t] for t in range(max(change - ROUNDS_BEFORE, 1), change))
    later = (t - change for t in known if t >= change and known[t] >= before - RECOVERY_MARGIN)
    return next(later, None)


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """A table of each score, with a row for each method and a column for each world."""
    late = frame["drift"] == Staggered.name
    parts = (
        ("one change", ~late, "drift", COLUMNS_OF_ONE_CHANGE),
        ("staggered", late, "dataset", COLUMNS_OF_STAGGERED_CHANGES),
    )
    for title, which, column, shown in parts:
        rows = frame[which]
        worlds = list(dict.fromkeys(rows[column]))
        for name in shown:
            texts = [
                [str(label), *_texts(found.set_index(column), worlds, name)]
                for label, found in rows.groupby("label", sort=False)
            ]
            told = [line for line in texts if set(line[1:]) != {NOT_KNOWN_TEXT}]
            if told:
                yield TextTable(f"{title}, {COLUMN_HEADS[name]}", ["what", *worlds], told)


def _texts(found: pd.DataFrame, worlds: Sequence[str], name: str) -> list[str]:
    rows: dict[Any, Row] = found.to_dict("index")
    return [_text(rows[world], name) if world in rows else NOT_RUN_TEXT for world in worlds]


def _text(row: Row, name: str) -> str:
    if not row["n"]:
        return NOT_RUN_TEXT
    if name == "recover":
        return str(row[name])
    if name in DRIFT_COUNTS:
        if not row["looks"] > 0:
            return NOT_KNOWN_TEXT
        alarms = f"{100 * row['alarms'] / row['looks']:.1f}"
        return alarms if name == "alarms" else f"{row[name]:.1f} of {row['changed']:.0f}"
    return score(row[name], row[f"{name}_std"], digits=2 if name.endswith("ari") else 1)
