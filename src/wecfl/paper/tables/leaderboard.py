"""The leaderboard: every method in every world, as tables and as a page to sort and filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from wecfl.methods import FAMILIES
from wecfl.paper.definitions import Cell
from wecfl.paper.queue import chosen_run
from wecfl.paper.result_store import ResultStore, StoredResult
from wecfl.paper.tables.scores import Row, averaged, chosen_words, score_row
from wecfl.paper.tables.text_table import NOT_RUN, TextTable
from wecfl.report.tables.results import score

__all__ = ["COLUMNS", "frame", "page", "tables"]

COLUMNS: dict[str, tuple[str, int]] = {
    "accuracy": ("accuracy %", 1),
    "before": ("before adaptation %", 1),
    "macro_f1": ("macro-F1 %", 1),
    "worst_decile": ("worst tenth %", 1),
    "kilobytes": ("kB", 0),
    "cpu_seconds": ("CPU s", 1),
    "clusters": ("clusters", 1),
    "ari": ("ARI", 2),
}
"""What is measured, with the heads and digits. `kilobytes` are what a client sends and receives in
a round; `before` is the accuracy of the model as it was sent, where clients adapt it."""

TEMPLATE = Path(__file__).parents[1] / "leaderboard.html"


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell; `label` is the world."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    run = chosen_run(cell, 0, store)
    measured = [_measured(result) for result in stored]
    factors = {"before": 100.0, "worst_decile": 100.0, "kilobytes": 1.0, "cpu_seconds": 1.0,
               "clusters": 1.0}  # fmt: skip
    method = cell.config.method
    [family] = [name for name, methods in FAMILIES.items() if method in methods]
    return (
        {"world": cell.label, "family": family}
        | {key: value for key, value in usual.items() if key != "label"}
        | dict(averaged(measured, factors))
        | {"chosen": chosen_words(cell, run) if run else "", "tried": len(cell.tune)}
    )


def _measured(stored: StoredResult) -> dict[str, Any]:
    """The scores of a result that are not means of rounds alone."""
    choices, traffic = stored["config"], stored.get("traffic")
    exchanged = choices["clients"] * choices["rounds"] * 1000
    found = stored["curve"]["clusters"]
    return {
        "before": stored.get("before", {}).get("accuracy"),
        "worst_decile": stored.get("worst_decile"),
        "kilobytes": traffic and (traffic["up"] + traffic["down"]) / exchanged,
        "cpu_seconds": stored.get("cpu_seconds"),
        "clusters": found[-1] if found else None,
    }


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each world, the best method first."""
    heads = ["method", "family", *(head for head, _ in COLUMNS.values()), "chosen", "n"]
    for world, rows in frame.groupby("world", sort=False):
        done = rows.sort_values("accuracy", ascending=False, kind="stable").to_dict("records")
        yield TextTable(str(world), heads, [_texts(row) for row in done])


def _texts(row: Row) -> list[str]:
    scores = [_text(row, name) for name in COLUMNS]
    return [row["method"], row["family"], *scores, row["chosen"] or "–", str(row["n"])]


def _text(row: Row, name: str) -> str:
    if not row["n"]:
        return NOT_RUN
    if name == "accuracy" and isnan(row[name]):
        return "diverged"
    spread = nan if name in ("kilobytes", "clusters") else row[f"{name}_std"]
    return score(row[name], spread, digits=COLUMNS[name][1])


def page(title: str, frame: pd.DataFrame) -> str:
    """One HTML file without any other: rows that one can sort and filter in a browser."""
    records = [row for _, rows in frame.groupby("world", sort=False) for row in _sorted(rows)]
    rows = [
        {
            "world": row["world"], "family": row["family"], "method": row["method"],
            "chosen": row["chosen"], "n": row["n"],
            "cells": [
                (_text(row, name), None if isnan(row[name]) else round(row[name], 4))
                for name in COLUMNS
            ],
        }
        for row in records
    ]  # fmt: skip
    made = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(TEMPLATE.read_text("utf-8")).render(
        title=title,
        heads=[head for head, _ in COLUMNS.values()],
        worlds=list(dict.fromkeys(frame["world"])),
        families=list(FAMILIES),
        rows=rows,
        done=int((frame["n"] > 0).sum()),
    )


def _sorted(rows: pd.DataFrame) -> list[Row]:
    found: list[Row] = rows.sort_values("accuracy", ascending=False).to_dict("records")
    return found
