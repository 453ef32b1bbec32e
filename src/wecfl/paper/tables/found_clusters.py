"""The table of clusters found: how many there are, beside the number of hidden groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from wecfl.config import Config
from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore, StoredResult
from wecfl.paper.tables.scores import Row, score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "tables"]

MIN_RIGHT_ARI = 0.99
"""With at least this ARI, the groups count as found."""


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell: scores, groups, and the clusters found with each seed."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    stored = sorted(stored, key=lambda result: result["seed"])
    config = cell.config
    grouped = config.partition.startswith("clusterwise")
    right = [_right(result, config.groups if grouped else None) for result in stored]
    auto = usual["k"] == "auto"
    return usual | {
        "label": "",
        "criterion": _criterion(config) if auto else "",
        "groups": config.groups if grouped else 0,
        "found": _by_seed(stored, "clusters", "d"),
        "aris": _by_seed(stored, "ari", ".2f") if grouped else "",
        "right": sum(right) if auto else np.nan,
    }


def _criterion(config: Config) -> str:
    """What decides how many clusters there are."""
    return {
        "cfl": f"ε {config.eps1:g}, {config.eps2:g}",
        "flhc": f"cut at {config.threshold:g}",
    }.get(config.method, config.criterion)


def _right(stored: StoredResult, groups: int | None) -> bool:
    """Whether exactly the groups were found, or one cluster if there are no groups."""
    found = _last(stored, "clusters")
    right: bool = (
        found == 1 if groups is None else found == groups and _last(stored, "ari") >= MIN_RIGHT_ARI
    )
    return right


def _by_seed(stored: Sequence[StoredResult], name: str, form: str) -> str:
    """The value in the last round, for each seed."""
    ends = [_last(result, name) for result in stored]
    return " ".join("–" if end is None else format(end, form) for end in ends)


def _last(stored: StoredResult, name: str) -> Any:
    """The value in the last round; None if training diverged before its first round ended."""
    curve: list[Any] = stored["curve"].get(name, [])
    return curve[-1] if curve else None


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """One table for each data set and partition."""
    for (dataset, partition), rows in frame.groupby(["dataset", "partition"], sort=False):
        by = ["criterion"] if rows["criterion"].nunique() > 1 else []
        grouped = bool(rows["groups"].any())
        heads = ["method", "K", *by, *(["groups"] if grouped else []), "clusters found"]
        heads += [*(["ARI"] if grouped else []), "right", "accuracy %", "macro-F1 %", "n"]
        records = rows.sort_values("groups", kind="stable").to_dict("records")
        texts = [_texts(record, by, grouped) for record in records]
        yield TextTable(f"{dataset}, {partition}", heads, texts)


def _texts(row: Row, by: Sequence[str], grouped: bool) -> list[str]:
    done, n = bool(row["n"]), row["n"]
    right = "–" if np.isnan(row["right"]) or not done else f"{row['right']:.0f} of {n}"
    return [
        row["method"],
        str(row["k"]),
        *(row[name] or "–" for name in by),
        *([str(row["groups"])] if grouped else []),
        row["found"].replace(" ", ", ") if done else NOT_RUN_TEXT,
        *([row["aris"].replace(" ", ", ") or "–"] if grouped else []),
        right,
        *(score(row[name], row[f"{name}_std"], digits=1) for name in ("accuracy", "macro_f1")),
        str(n),
    ]
