"""The table of newcomers: how clients fare that come after the training, over many runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan

import pandas as pd

from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import Row, averaged, score_row, seed_counts
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "tables"]

NEWCOMER_SHARES = dict.fromkeys(
    ("right", "newcomer", "member", "gap", "recall", "false_alarms"), 100.0
)
"""Shares of `wecfl.runs.simulated_newcomers.newcomer_summary` in percent; `gap` is the accuracy of
newcomers minus that of members."""
NO_UNSEEN_GROUP = "–"


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell, in percent."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    results = [_with_gap(result["newcomers"]) for result in stored if "newcomers" in result]
    unseen = cell.config.unseen
    more = {
        "rounds": cell.config.rounds,
        "unseen": NO_UNSEEN_GROUP if unseen is None else str(unseen),
    }
    return usual | more | dict(averaged(results, NEWCOMER_SHARES))


def _with_gap(found: Row) -> Row:
    scores = {"newcomer": found["accuracy"], "member": found["members"]}
    known = None not in scores.values()
    gap = scores["newcomer"] - scores["member"] if known else None
    return {**found, **scores, "gap": gap}


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each data set: a row for each unseen group, and the mean of those run."""
    heads = ["unseen group", "right group %", "accuracy %", "a member's %", "difference",
             "unseen found novel %", "others taken for novel %", "ARI of members", "n"]  # fmt: skip
    for (dataset, k, rounds), rows in frame.groupby(["dataset", "k", "rounds"], sort=False):
        lines = [_line(row) for row in rows.to_dict("records")]
        done = rows[rows["n"] > 0]
        if len(done) > 1:
            means = [done[name].mean() for name in NEWCOMER_SHARES]
            texts = ["–" if isnan(mean) else f"{mean:z.1f}" for mean in means]
            ari = f"{done['ari'].mean():.2f}"
            lines.append(
                ["**mean**", *(f"**{text}**" for text in [*texts, ari]), seed_counts(done["n"])]
            )
        yield TextTable(f"{dataset}, WeCFL with K = {k}, {rounds} rounds", heads, lines)


def _line(row: Row) -> list[str]:
    if not row["n"]:
        return [row["unseen"], *[NOT_RUN_TEXT] * (len(NEWCOMER_SHARES) + 1), "0"]
    scores = [score(row[name], row[f"{name}_std"], digits=1) for name in NEWCOMER_SHARES]
    return [row["unseen"], *scores, score(row["ari"], row["ari_std"]), str(row["n"])]
