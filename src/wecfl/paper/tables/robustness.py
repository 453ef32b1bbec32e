"""The table of robustness: accuracy under attack, by method, attack and aggregation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import isnan

import pandas as pd

from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import Row, averaged, score_row, seed_counts
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "tables"]

ATTACK_SHARES = {"isolated": 100.0, "exposed": 100.0, "success": 100.0}
"""Shares of `wecfl.runs.record.CONDITION_KEYS`' attack, in percent."""


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell: scores of honest clients, and how far attackers share their clusters."""
    return pd.DataFrame([_row(cell, store) for cell in cells])


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    attacks = [result["attack"] for result in stored if "attack" in result]
    label = usual.pop("label")
    attack = {"attack": label or cell.config.attack, "aggregation": cell.config.aggregation}
    return usual | attack | dict(averaged(attacks, ATTACK_SHARES))


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """Accuracy by attack and aggregation, for each method; success of the backdoor; clusters."""
    columns = list(dict.fromkeys(frame["aggregation"]))
    for (method, k), rows in frame.groupby(["method", "k"], sort=False):
        lines = [
            [
                str(attack),
                *_scores(by_attack, columns, "accuracy", best=max),
                seed_counts(by_attack["n"]),
            ]
            for attack, by_attack in rows.groupby("attack", sort=False)
        ]
        title = f"Accuracy of honest clients in %, {_named(method, k)}"
        yield TextTable(title, ["attack", *columns, "n"], lines)
    opened = frame[frame["attack"] == "backdoor"]
    if len(opened):
        lines = [
            [
                _named(method, k),
                *_scores(by_method, columns, "success", best=min),
                seed_counts(by_method["n"]),
            ]
            for (method, k), by_method in opened.groupby(["method", "k"], sort=False)
        ]
        title = "Triggers of the backdoor that work on honest clients, in %"
        yield TextTable(title, ["method", *columns, "n"], lines)
    plain = frame[(frame["aggregation"] == "mean") & (frame["k"] > 1)]
    if len(plain):
        heads = ["method", "attack", "isolated %", "exposed %", "ARI", "accuracy %", "n"]
        by_method = plain.groupby(["method", "k"], sort=False)
        lines = [_defence(row) for _, rows in by_method for row in rows.to_dict("records")]
        yield TextTable("Clustering as a defence (aggregation: mean)", heads, lines)


def _defence(row: Row) -> list[str]:
    shares = [_score(row, name) for name in ("isolated", "exposed")]
    ari = score(row["ari"], row["ari_std"]) if row["n"] else NOT_RUN_TEXT
    start = [_named(row["method"], row["k"]), row["attack"]]
    return [*start, *shares, ari, _score(row, "accuracy"), str(row["n"])]


def _scores(
    rows: pd.DataFrame, columns: Sequence[str], name: str, best: Callable[[list[float]], float]
) -> list[str]:
    """The scores in the order of the columns; the best is bold if all have as many seeds."""
    found: dict[str, Row] = {row["aggregation"]: row for row in rows.to_dict("records")}
    texts = [_score(found[column], name) if column in found else "–" for column in columns]
    means = [round(found[column][name], 1) for column in columns if column in found]
    known = [mean for mean in means if not isnan(mean)]
    alike = len(known) > 1 and rows["n"].nunique() == 1
    top = f"{best(known):.1f}" if alike else None
    return [f"**{text}**" if text.split(" ")[0] == top else text for text in texts]


def _score(row: Row, name: str) -> str:
    if not row["n"]:
        return NOT_RUN_TEXT
    return score(row[name], row[f"{name}_std"], digits=1)


def _named(method: object, k: object) -> str:
    return str(method) if k == 1 else f"{method}, K = {k}"
