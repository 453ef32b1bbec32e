"""The table of the gallery: how methods fare in each world, one row per world."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan, nan
from typing import Any

import pandas as pd

from wecfl.methods import options
from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import Row, averaged, score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "tables"]

MEASURES = {"accuracy": ("accuracy %", 1), "worst_decile": ("worst tenth %", 1), "ari": ("ARI", 2)}
"""The scores that are shown, with their heads and digits."""


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell: its scores, with the accuracy of the worst tenth of the clients."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    chooses = usual["k"] == "auto" and "k" in options(cell.config.method)
    name = f"{cell.config.method} auto" if chooses else cell.config.method
    return usual | {"name": name} | dict(averaged(stored, {"worst_decile": 100.0}))


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """For each data set a table of each score, with a column per method; the best is bold.

    Only means are shown, since nine columns with deviations can't be read; those are in the CSV.
    """
    for dataset, rows in frame.groupby("dataset", sort=False):
        methods = list(dict.fromkeys(rows["name"]))
        for measure, (head, digits) in MEASURES.items():
            texts = [
                [str(world), *_texts(found.set_index("name"), methods, measure, digits)]
                for world, found in rows.groupby("label", sort=False)
                if measure != "ari" or found[measure].notna().any()
            ]
            yield TextTable(f"{dataset}, {head}", ["what", *methods], texts)


def _texts(world: pd.DataFrame, methods: Sequence[str], measure: str, digits: int) -> list[str]:
    """One text for each method; the best mean is bold."""
    best = world[measure].round(digits).max()
    found: dict[Any, Row] = world.to_dict("index")
    texts = []
    for method in methods:
        if method not in found or not found[method]["n"]:
            texts.append(NOT_RUN_TEXT)
            continue
        mean = found[method][measure]
        text = score(mean, nan, digits=digits)
        texts.append(f"**{text}**" if not isnan(mean) and round(mean, digits) == best else text)
    return texts
