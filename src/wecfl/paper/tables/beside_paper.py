"""Tables with our scores, the paper's scores, and the gap between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any

import pandas as pd

from wecfl.paper import SHIPPED_FOLDER
from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["coverage", "differing", "frame", "published", "tables", "tables_by_method"]

SCORES = {"accuracy": "accuracy %", "macro_f1": "macro-F1 %"}


def published(table: str) -> pd.DataFrame:
    """A table of the paper, in percent, indexed by data set, partition, k and method.

    >>> published("table1").loc[("cifar-10", "clusterwise-dirichlet", 10, "wecfl"), "accuracy"]
    np.float64(70.95)
    """
    rows = pd.DataFrame(
        json.loads((SHIPPED_FOLDER / "paper.json").read_text(encoding="utf-8"))["rows"]
    )
    return (
        rows[rows["table"] == table]
        .drop(columns="table")
        .set_index(["dataset", "partition", "k", "method"])
    )


def frame(cells: Sequence[Cell], store: ResultStore, paper_table: str | None) -> pd.DataFrame:
    """One row per cell, in percent: mean and std over the stored seeds, and the paper's scores.

    `accuracy_gap` and `macro_f1_gap` are our score minus the paper's, in units of the paper's ±.
    """
    frame = pd.DataFrame([score_row(cell, store)[0] for cell in cells])
    if paper_table:
        key = ["dataset", "partition", "k", "method"]
        paper = published(paper_table).add_prefix("paper_")
        order = {cell: place for place, cell in enumerate(paper.index)}
        frame = frame.join(paper, on=key)
        frame["place"] = [order.get(tuple(row), len(order)) for row in frame[key].to_numpy()]
        frame = frame.sort_values("place", kind="stable").drop(columns="place")
        for name in SCORES:
            gap = frame[name] - frame[f"paper_{name}"]
            frame[f"{name}_gap"] = gap / frame[f"paper_{name}_std"].astype(float)
    return frame.reset_index(drop=True)


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each data set and partition."""
    for (dataset, partition), rows in frame.groupby(["dataset", "partition"], sort=False):
        yield _table(f"{dataset}, {partition}", rows, {"method": "method", "k": "K"})


def tables_by_method(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each method, for its own page: narrow, with numbers that do not wrap."""
    named = frame.assign(data=frame["dataset"] + ", " + frame["partition"])
    if frame["label"].any():  # these rows are compared with each other, not with the paper's
        named = named.drop(columns=[name for name in map(str, named) if name.startswith("paper_")])
    whole = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
    for method, rows in named.groupby("method", sort=False):
        table = _table(str(method), rows, {"data": "data", "k": "K"})
        unbroken = [[text.replace(" ± ", whole) for text in row] for row in table.rows]
        yield replace(table, rows=unbroken)


def _table(title: str, rows: pd.DataFrame, names: Mapping[str, str]) -> TextTable:
    """A table of some rows, with the paper's scores if there are any; `names` come first."""
    paper = "paper_accuracy" in rows
    names = {**names, **({"label": "what"} if rows["label"].any() else {})}
    found = bool(rows["ari"].notna().any())
    heads = [*names.values()]
    for head in SCORES.values():
        heads += [head, "paper", "Δ/±"] if paper else [head]
    heads += ["ARI", "n"] if found else ["n"]
    texts = [
        [
            *(str(row[name]) for name in names),
            *(text for name in SCORES for text in _texts(row, name, paper)),
            *([score(row["ari"], row["ari_std"], 1)] if found else []),
            str(row["n"]),
        ]
        for row in rows.to_dict("records")
    ]
    return TextTable(title, heads, texts)


def _texts(row: dict[Any, Any], name: str, paper: bool) -> list[str]:
    ours = score(row[name], row[f"{name}_std"]) if row["n"] else NOT_RUN_TEXT
    ours = "diverged" if row["n"] and isnan(row[name]) else ours
    if not paper:
        return [ours]
    gap = row[f"{name}_gap"]
    theirs = score(row[f"paper_{name}"], row[f"paper_{name}_std"])
    return [ours, theirs, "–" if isnan(gap) else f"{gap:+.1f}"]


def differing(frame: pd.DataFrame, limit: float = 2.0) -> str:
    """A sentence on the cells that differ from the paper by more than `limit` times its ±.

    Empty for rows that are not the paper's experiment (ablations, tuned ones).
    """
    if "accuracy_gap" not in frame or frame["label"].any():
        return ""
    far = [
        f"{row['dataset']} {row['partition']} {row['method']} K = {row['k']} "
        f"({name.replace('_f1', '-F1')} {gap:+.1f})"
        for row in frame.to_dict("records")
        for name in SCORES
        if abs(gap := row[f"{name}_gap"]) > limit
    ]
    known = int(frame["accuracy_gap"].notna().sum())
    cells = "; ".join(far) if far else "none"
    return (
        f"More than {limit:g} of the paper's ± away, of {known} cells run and given a ±: {cells}.\n"
    )


def coverage(frame: pd.DataFrame) -> str:
    r"""A sentence on how many cells have a run, and of which methods some cells have none.

    >>> cells = pd.DataFrame({"method": ["fedavg", "fedavg+", "fedavg+"], "n": [2, 1, 0]})
    >>> coverage(cells)
    '2 of 3 cells have been run; not run: fedavg+ in 1 of 2.\n'
    """
    have_run = frame["n"] > 0
    missing = [
        f"{method} in {int((~rows).sum())} of {len(rows)}"
        for method, rows in have_run.groupby(frame["method"], sort=False)
        if not rows.all()
    ]
    rest = f"; not run: {', '.join(missing)}" if missing else ""
    return f"{int(have_run.sum())} of {len(frame)} cells have been run{rest}.\n"
