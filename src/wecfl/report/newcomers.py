"""How clients fare that come after the training: of one run, and over many of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan

import numpy as np
import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from wecfl.report.cells import NOT_RUN, Block, Row, averaged, row_of
from wecfl.report.tables import score
from wecfl.runs.definitions import Cell
from wecfl.runs.newcomers import By
from wecfl.runs.queue import Store

__all__ = ["blocks", "cells", "frame", "rich_newcomers"]

MEASURED = dict.fromkeys(("right", "newcomer", "member", "gap", "recall", "false_alarms"), 100.0)
"""Shares of `wecfl.runs.newcomers.outcome` in percent; `gap` is newcomer minus member."""
NOBODY = "–"


def cells(newcomers: pd.DataFrame, by: By = "update") -> tuple[list[str], list[list[str]]]:
    """One line per newcomer, in words: its head and its lines.

    >>> frame = pd.DataFrame([{"client": "a", "samples": 9, "cluster": 2, "confidence": 0.875,
    ...     "distance": 0.5, "limit": 0.25, "novel": True, "accuracy": 0.5, "macro_f1": 0.5}])
    >>> cells(frame)[1]
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
            f"{100 * row['accuracy']:.1f}",
        ]
        for row in newcomers.to_dict("records")
    ]


def rich_newcomers(newcomers: pd.DataFrame, by: By) -> Table:
    """The table for the terminal."""
    heads, lines = cells(newcomers, by)
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="left" if head in ("client", "novel") else "right")
    for line, novel in zip(lines, newcomers["novel"], strict=True):
        table.add_row(*map(escape, line), style="bold" if novel else None)
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or isnan(value) else f"{value:{form}}"


def frame(cells: Sequence[Cell], store: Store) -> pd.DataFrame:
    """One row per cell, in percent."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: Store) -> Row:
    usual, stored = row_of(cell, store)
    told = [_told(result["newcomers"]) for result in stored if "newcomers" in result]
    unseen = cell.config.unseen
    more = {"rounds": cell.config.rounds, "unseen": NOBODY if unseen is None else str(unseen)}
    return usual | more | dict(averaged(told, MEASURED))


def _told(found: Row) -> Row:
    scores = {"newcomer": found["accuracy"], "member": found["members"]}
    known = None not in scores.values()
    gap = scores["newcomer"] - scores["member"] if known else None
    return {**found, **scores, "gap": gap}


def blocks(frame: pd.DataFrame) -> Iterator[Block]:
    """For each data set a line for every group that nobody saw, and the mean of those run."""
    heads = ["unseen group", "right group %", "accuracy %", "a member's %", "difference",
             "unseen found novel %", "others taken for novel %", "ARI of members", "n"]  # fmt: skip
    for (dataset, k, rounds), rows in frame.groupby(["dataset", "k", "rounds"], sort=False):
        lines = [_line(row) for row in rows.to_dict("records")]
        done = rows[rows["n"] > 0]
        if len(done) > 1:
            means = [done[name].mean() for name in MEASURED]
            texts = ["–" if isnan(mean) else f"{mean:z.1f}" for mean in means]
            ari = f"{done['ari'].mean():.2f}"
            lines.append(["**mean**", *(f"**{text}**" for text in [*texts, ari]), _span(done["n"])])
        yield f"{dataset}, WeCFL with K = {k}, {rounds} rounds", heads, lines


def _line(row: Row) -> list[str]:
    if not row["n"]:
        return [row["unseen"], *[NOT_RUN] * (len(MEASURED) + 1), "0"]
    scores = [score(row[name], row[f"{name}_std"], digits=1) for name in MEASURED]
    return [row["unseen"], *scores, score(row["ari"], row["ari_std"]), str(row["n"])]


def _span(counts: pd.Series[int]) -> str:
    least, most = np.min(counts), np.max(counts)
    return str(most) if least == most else f"{least}–{most}"
