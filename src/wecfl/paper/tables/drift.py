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
from wecfl.paper.tables.text_table import NOT_RUN, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "rounds_to_recover", "tables"]

MARGIN = 0.02
"""How much lower than before the change an accuracy may be that has recovered."""
ROUNDS_BEFORE = 3
"""The number of rounds before the change whose mean accuracy is to be reached again."""
COUNTED = ("changed", "found", "at_once", "alarms", "looks")
"""What is shown of `wecfl.runs.drift_summary.last_drift`."""
HEADS = {
    "recover": "rounds to recover", "mean_accuracy": "accuracy in all rounds %",
    "mean_ari": "ARI in all rounds", "accuracy": "accuracy at the end %", "ari": "ARI at the end",
}  # fmt: skip


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
        | dict(averaged([result.get("drift", {}) for result in stored], dict.fromkeys(COUNTED, 1)))
    )


def rounds_to_recover(curve: Mapping[str, Sequence[Any]], change: int) -> int | None:
    """The number of rounds after a change until the accuracy is what it was; None: never.

    It is what it was if it is at most two points lower than in the three rounds before.

    >>> curve = {"round": [1, 2, 3, 4, 5, 6, 7], "accuracy": [0.9, 0.9, 0.9, 0.9, 0.5, 0.8, 0.89]}
    >>> rounds_to_recover(curve, 5), rounds_to_recover(curve, 7)
    (2, 0)
    """
    known = dict(zip(curve["round"], curve["accuracy"], strict=True))
    before = mean(known[t] for t in range(max(change - ROUNDS_BEFORE, 1), change))
    later = (t - change for t in known if t >= change and known[t] >= before - MARGIN)
    return next(later, None)


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each data set and kind of drift."""
    for (dataset, drift), rows in frame.groupby(["dataset", "drift"], sort=False):
        staggered = drift == Staggered.name
        shown = ["mean_accuracy", "mean_ari"] if staggered else ["recover", "accuracy", "ari"]
        heads = ["what", *(HEADS[name] for name in shown), "found", "at once", "alarms %", "n"]
        lines = [_line(row, shown) for row in rows.to_dict("records")]
        yield TextTable(f"{dataset}, {drift}", heads, lines)


def _line(row: Row, shown: Sequence[str]) -> list[str]:
    if not row["n"]:
        return [row["label"], *[NOT_RUN] * (len(shown) + 3), "0"]
    scores = [
        row[name]
        if name == "recover"
        else score(row[name], row[f"{name}_std"], digits=2 if name.endswith("ari") else 1)
        for name in shown
    ]
    looked = ["–"] * 3
    if row["looks"] > 0:
        of = f"{row['changed']:.0f}"
        alarms = f"{100 * row['alarms'] / row['looks']:.1f}"
        looked = [f"{row['found']:.1f} of {of}", f"{row['at_once']:.1f} of {of}", alarms]
    return [row["label"], *scores, *looked, str(row["n"])]
