"""The table of defences: accuracy under attack beside that of the same clients without attack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan

import pandas as pd

from wecfl.config import Config
from wecfl.paper.definitions import Cell
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.scores import Row, averaged, score_row
from wecfl.paper.tables.text_table import NOT_RUN_TEXT, TextTable
from wecfl.report.tables.results import score

__all__ = ["frame", "tables", "tables_with_means"]

UNDEFENDED, NO_ATTACK = "none", "none"
MAX_LOSS = 2.0
"""The accuracy, in points, that honest clients may lose to attackers."""
SETTING_COLUMNS = ["dataset", "partition", "method", "liars"]
"""What a run has in common with the run without attack and defence that it is compared with."""


def frame(cells: Sequence[Cell], store: ResultStore) -> pd.DataFrame:
    """One row per cell; `loss` compares honest clients with those without attack and defence.

    A run that diverged counts as an accuracy of 0.
    """
    rows = pd.DataFrame([_row(cell, store) for cell in cells])
    plain = (rows["attack"] == NO_ATTACK) & (rows["defence"] == UNDEFENDED)
    clean = rows[plain].set_index(SETTING_COLUMNS)["accuracy"]
    known = pd.MultiIndex.from_frame(rows[SETTING_COLUMNS])
    rows["loss"] = clean.reindex(known).to_numpy() - rows["accuracy"]
    return rows


def _row(cell: Cell, store: ResultStore) -> Row:
    usual, stored = score_row(cell, store)
    config = cell.config
    attacks = [result["attack"] for result in stored if "attack" in result]
    # A run that diverged counts as an accuracy of 0.
    scores = [{"accuracy": result["accuracy"] or 0.0} for result in stored]
    about = {
        "liars": round((config.attackers or 0.0) * config.clients),
        "attack": _attack(config),
        "defence": _defence(config),
    }
    found = (*averaged(scores, {"accuracy": 100.0}), *averaged(attacks, {"success": 100.0}))
    return usual | about | dict(found)


def _attack(config: Config) -> str:
    """The name of the attack; attackers who scale their update by 1 do not lie."""
    strength = config.attack_strength
    if (config.attack, strength) == ("scale", 1.0):
        return NO_ATTACK
    return f"{config.attack} × {strength:g}" if strength else str(config.attack)


def _defence(config: Config) -> str:
    usual = Config()
    found: list[str] = []
    if config.aggregation != usual.aggregation:
        found.append(config.aggregation)
    if config.refuse_above != usual.refuse_above:
        found.append(f"refuse above {config.refuse_above:g}")
    if config.shorten_above != "never":
        found.append(f"shorten above {config.shorten_above:g}")
    return ", ".join(found) or UNDEFENDED


def tables(frame: pd.DataFrame) -> Iterator[TextTable]:
    """What each defence costs, and how often it holds; then the accuracy in each setting."""
    heads = ["defence", "cost without attack, mean", "largest", "cases held", "mean loss",
             "largest loss", "triggers that work %", "n"]  # fmt: skip
    lines = [[str(name), *_whole(rows)] for name, rows in frame.groupby("defence", sort=False)]
    title = f"Points of accuracy of honest clients; held: a loss of at most {MAX_LOSS:g}"
    yield TextTable(title, heads, lines)
    defences = list(dict.fromkeys(frame["defence"]))
    for (dataset, partition, method), rows in frame.groupby(SETTING_COLUMNS[:3], sort=False):
        lines = [
            [shown, str(liars), *_scores(each, defences, name), str(each["n"].min())]
            for shown, name, part in _cases(rows)
            for liars, each in part.groupby("liars", sort=False)
        ]
        title = f"Accuracy of honest clients in %, {dataset}, {partition}, {method}"
        yield TextTable(title, ["attack", "liars", *defences, "n"], lines)


def tables_with_means(frame: pd.DataFrame) -> Iterator[TextTable]:
    """The same for few defences, with a table of the means over the data sets."""
    whole, *each = tables(frame)
    yield whole
    by = ["method", "attack", "liars", "defence"]
    measured = {"accuracy": "mean", "success": "mean", "loss": "mean", "n": "min"}
    means = frame.groupby(by, sort=False, as_index=False).agg(measured)
    means = means.assign(accuracy_std=nan, success_std=nan)
    defences = list(dict.fromkeys(frame["defence"]))
    columns = [(method, n) for method in means["method"].unique() for n in means["liars"].unique()]
    lines = []
    for shown, name, part in _cases(means):
        found = (part[(part["method"] == method) & (part["liars"] == n)] for method, n in columns)
        lines.append([shown, *(" → ".join(_scores(rows, defences, name)) for rows in found)])
    title = f"Accuracy of honest clients in %, mean over the data: {' → '.join(defences)}"
    yield TextTable(title, ["attack", *(f"{method}, {n}" for method, n in columns)], lines)
    yield from each


def _cases(rows: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """The rows of each attack, and whether its backdoor opens, with the score that tells it."""
    for attack, each in rows.groupby("attack", sort=False):
        yield str(attack), "accuracy", each
    opened = rows[rows["attack"] == "backdoor"]
    if len(opened):
        yield "triggers that work", "success", opened


def _whole(rows: pd.DataFrame) -> list[str]:
    """What a defence costs without attack, and the losses under attack, over all settings."""
    done = rows[rows["n"] > 0]
    clean, attacked = (done[(done["attack"] == NO_ATTACK) == quiet] for quiet in (True, False))
    if not len(clean) or not len(attacked):
        return [NOT_RUN_TEXT] * 6 + ["0"]
    held = int((attacked["loss"] <= MAX_LOSS).sum())
    return [
        f"{clean['loss'].mean():z.1f}", f"{clean['loss'].max():z.1f}", f"{held} of {len(attacked)}",
        f"{attacked['loss'].mean():z.1f}", f"{attacked['loss'].max():z.1f}",
        f"{done['success'].mean():.0f}", str(rows["n"].min()),
    ]  # fmt: skip


def _scores(rows: pd.DataFrame, defences: Sequence[str], name: str) -> list[str]:
    """The scores in the order of the defences; accuracy that is lost to attackers is bold."""
    found: dict[str, Row] = {each["defence"]: each for each in rows.to_dict("records")}
    texts = []
    for each in (found.get(defence) for defence in defences):
        if each is None or not each["n"]:
            texts.append(NOT_RUN_TEXT if each else "–")
            continue
        text = score(each[name], each[f"{name}_std"], digits=1)
        lost = name == "accuracy" and each["loss"] > MAX_LOSS
        texts.append(f"**{text}**" if lost else text)
    return texts
