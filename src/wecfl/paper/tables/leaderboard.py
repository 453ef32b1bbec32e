"""The leaderboard: every method in every world, as tables and as a page to sort and filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

from wecfl.methods import FAMILIES
from wecfl.paper.definitions import Cell, PlannedRun
from wecfl.paper.queue import chosen_run
from wecfl.paper.result_store import ResultStore, StoredResult
from wecfl.paper.tables.scores import Row, averaged, chosen_words, score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["SCORE_COLUMNS", "frame", "page", "tables"]

SCORE_COLUMNS: dict[str, tuple[str, int]] = {
    "accuracy": ("accuracy %", 1),
    "before": ("before %", 1),
    "after": ("after %", 1),
    "macro_f1": ("macro-F1 %", 1),
    "worst_decile": ("worst tenth %", 1),
    "kilobytes": ("kB", 0),
    "cpu_seconds": ("CPU s", 1),
    "clusters": ("clusters", 1),
    "ari": ("ARI", 2),
}
"""What is measured, with the heads and digits. Accuracy and macro-F1 are of the models with which
the method serves clients. `before` and `after` are the accuracies around an adaptation, by the
method or by a few more steps (`adapt_steps`). `kilobytes` are what a client sends and receives in a
round."""

PAGE_TEMPLATE = Path(__file__).parents[1] / "leaderboard.html"


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell; `label` is the world."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    run = chosen_run(cell, 0, store)
    measured = [_measured(result, _members(run, result, store)) for result in stored]
    percents = ("accuracy", "macro_f1", "before", "after", "worst_decile")
    factors = {name: 100.0 if name in percents else 1.0 for name in SCORE_COLUMNS if name != "ari"}
    method = cell.config.method
    [family] = [name for name, methods in FAMILIES.items() if method in methods]
    return (
        {"world": cell.label, "family": family}
        | {key: value for key, value in usual.items() if key != "label"}
        | dict(averaged(measured, factors))
        | {"chosen": chosen_words(cell, run) if run else "", "tried": len(cell.tune)}
    )


def _members(
    run: PlannedRun | None, stored: StoredResult, store: ResultStore
) -> list[StoredResult]:
    """The results of the members of a soft vote, or the result alone."""
    if run is None or not stored["votes"]:
        return [stored]
    seed = {"seed": stored["seed"]}
    parts = replace(run, config=run.config.model_copy(update=seed)).parts
    return [found for part in parts if (found := store.read(part))]


def _measured(stored: StoredResult, members: Sequence[StoredResult]) -> dict[str, Any]:
    """The numbers that the columns show of a result; its members are the trained runs."""
    choices, before = stored["config"], stored.get("before", {})
    served = before if choices.get("adapt_steps") and before else stored
    traffic = [each["traffic"] for each in members if each.get("traffic")]
    exchanged = choices["clients"] * choices["rounds"] * 1000
    found = stored["curve"]["clusters"]
    return {
        "accuracy": served["accuracy"],
        "macro_f1": served["macro_f1"],
        "before": before.get("accuracy"),
        "after": stored["accuracy"] if before else None,
        "worst_decile": stored.get("worst_decile"),
        "kilobytes": sum(each["up"] + each["down"] for each in traffic) / exchanged or None,
        "cpu_seconds": sum(each.get("cpu_seconds") or 0.0 for each in members) or None,
        "clusters": found[-1] if found else None,
    }


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """The best of each family, all accuracies, and a table for each world, best method first."""
    yield _best(frame)
    yield _accuracies(frame)
    heads = ["method", "family", *(head for head, _ in SCORE_COLUMNS.values()), "chosen", "n"]
    for world, rows in frame.groupby("world", sort=False):
        done = rows.sort_values("accuracy", ascending=False, kind="stable").to_dict("records")
        yield TextTable(str(world), heads, [_texts(row) for row in done])


def _best(frame: pd.DataFrame) -> TextTable:
    """The best method of each family in each world, as served and after adaptation."""
    rows = []
    for world, found in frame.groupby("world", sort=False):
        by_family = [found[found["family"] == family] for family in FAMILIES]
        rows.append([str(world), *(_top(each, "accuracy") for each in by_family),
                     _top(found, "after")])  # fmt: skip
    return TextTable("The best of each family", ["what", *FAMILIES, "best after adaptation"], rows)


def _top(rows: pd.DataFrame, measure: str) -> str:
    done: list[Row] = rows[rows[measure].notna()].to_dict("records")
    if not done:
        return NOT_RUN_TEXT
    best = max(done, key=lambda row: float(row[measure]))
    return f"{best['method']} {score(best[measure], best[f'{measure}_std'], digits=1)}"


def _accuracies(frame: pd.DataFrame) -> TextTable:
    """One row per method, one column per world: accuracy as served; the best is bold."""
    worlds = list(dict.fromkeys(frame["world"]))
    best = {world: found["accuracy"].round(1).max() for world, found in frame.groupby("world")}
    rows = []
    for (family, method), found in frame.groupby(["family", "method"], sort=False):
        means: dict[Any, float] = dict(zip(found["world"], found["accuracy"], strict=True))
        texts = [score(means[world], nan, digits=1) for world in worlds]
        bold = [f"**{text}**" if round(means[world], 1) == best[world] else text
                for world, text in zip(worlds, texts, strict=True)]  # fmt: skip
        rows.append([str(method), str(family), *bold])
    order = {family: place for place, family in enumerate(FAMILIES)}
    rows.sort(key=lambda row: order[row[1]])
    return TextTable("Accuracy % in every world", ["method", "family", *worlds], rows)


def _texts(row: Row) -> list[str]:
    scores = [_text(row, name) for name in SCORE_COLUMNS]
    return [row["method"], row["family"], *scores, row["chosen"] or "–", str(row["n"])]


def _text(row: Row, name: str) -> str:
    if not row["n"]:
        return NOT_RUN_TEXT
    if name == "accuracy" and isnan(row[name]):
        return "diverged"
    spread = nan if name in ("kilobytes", "clusters") else row[f"{name}_std"]
    return score(row[name], spread, digits=SCORE_COLUMNS[name][1])


def page(title: str, frame: pd.DataFrame) -> str:
    """One HTML file that needs no other file: rows that one can sort and filter in a browser."""
    records = [row for _, rows in frame.groupby("world", sort=False) for row in _sorted(rows)]
    rows = [
        {
            "world": row["world"], "family": row["family"], "method": row["method"],
            "chosen": row["chosen"], "n": row["n"],
            "cells": [
                (_text(row, name), None if isnan(row[name]) else round(row[name], 4))
                for name in SCORE_COLUMNS
            ],
        }
        for row in records
    ]  # fmt: skip
    made = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return made.from_string(PAGE_TEMPLATE.read_text("utf-8")).render(
        title=title,
        heads=[head for head, _ in SCORE_COLUMNS.values()],
        worlds=list(dict.fromkeys(frame["world"])),
        families=list(FAMILIES),
        rows=rows,
        done=int((frame["n"] > 0).sum()),
    )


def _sorted(rows: pd.DataFrame) -> list[Row]:
    found: list[Row] = rows.sort_values("accuracy", ascending=False).to_dict("records")
    return found
