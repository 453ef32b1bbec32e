"""All methods side by side, in a few settings: one row per method, two columns per setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import Row, score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "tables"]


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell."""
    return pd.DataFrame([score_row(cell, store)[0] for cell in cells])


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each data set, the best method of the first setting first."""
    for dataset, rows in frame.groupby("dataset", sort=False):
        settings = list(dict.fromkeys(rows["label"]))
        heads = ["method"]
        for setting in settings:
            heads += [f"{setting}: accuracy %", "macro-F1 %"]
        found: dict[tuple[str, str], Row] = {
            (row["method"], row["label"]): row for row in rows.to_dict("records")
        }
        first = rows[rows["label"] == settings[0]]
        order = first.sort_values("accuracy", ascending=False, kind="stable")["method"]
        texts = [
            [str(name), *(text for each in settings for text in _texts(found.get((name, each))))]
            for name in order
        ]
        yield TextTable(str(dataset), heads, texts)


def _texts(row: Row | None) -> list[str]:
    if row is None or not row["n"]:
        return [NOT_RUN_TEXT, NOT_RUN_TEXT]
    return [score(row[name], row[f"{name}_std"]) for name in ("accuracy", "macro_f1")]
