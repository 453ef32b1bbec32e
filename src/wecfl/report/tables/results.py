"""The result table: one line per experiment, mean ± standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.table import Table

from wecfl.folder.readers import read_summary
from wecfl.from_config import INCIDENTAL_KEYS
from wecfl.report.tables.cells import cell
from wecfl.runs.json_values import leaves
from wecfl.runs.scores import ScoreKind, kind_of, summary_scores

__all__ = ["experiments", "first_scores", "named_runs", "result_cells", "results", "rich_results",
           "score", "text_columns"]  # fmt: skip

Summary = Mapping[str, Any]
"""`summary.json`, with the configuration as its `config`."""

FIXED_COLUMNS = {
    "method", "k", "ari", "ari_std", "worst_decile", "worst_decile_std", "clusters", "rounds",
    "seeds", "seconds", "megabytes", "unfinished", "scores",
}  # fmt: skip
"""Columns that `results` always has, beside those of the scores. Others are choices in which the
experiments differ."""
MAX_SHOWN_SCORES = 2
"""Scores of a task that a table shows: the headline and the next one."""


def experiments(runs: Sequence[Path | Summary]) -> tuple[pd.DataFrame, list[str]]:
    """One row per run, in a folder or in memory, and the columns that tell experiments apart.

    Runs that agree in these columns differ by their seed alone. Of runs that agree in the seed
    too, the last one counts.
    """
    frame = pd.DataFrame([_flat(run) for run in runs])
    choices = [c for c in frame.columns if c.startswith("config.")]
    frame[choices] = frame[choices].map(str)
    differing = [c for c in choices if _differs(frame, c)]
    plain = {c: c.removeprefix("config.") for c in differing}
    names = {c: name for c, name in plain.items() if name not in {*frame.columns, *FIXED_COLUMNS}}
    frame = frame.rename(columns=names)
    key = ["method", "k", "planned", *(names.get(c, c) for c in differing)]
    return frame.drop_duplicates([*key, "seed"], keep="last"), key


def named_runs(folders: Sequence[Path]) -> pd.DataFrame:
    """One row per run with the `name` of its experiment: what sets it apart from the others.

    The best experiment comes first, as in the table. A choice that follows from the method, such as
    SCAFFOLD's momentum of 0, has a column in the table and no place in the names.
    """
    runs, key = experiments(folders)
    shown = [c for c in key[3:] if (runs.groupby("method")[c].nunique(dropna=False) > 1).any()]
    if runs["planned"].nunique() > 1:
        shown.insert(0, "planned")
    runs = runs.assign(name=[_experiment_name(row, shown) for _, row in runs.iterrows()])
    grouped = runs.groupby("name", sort=False)
    means = grouped[list(_all_scores(runs))].mean().join(grouped["scores"].first())
    places = {name: place for place, name in enumerate(_best_first(means).index)}
    return runs.sort_values("name", key=lambda names: names.map(places), kind="stable")


def _differs(frame: pd.DataFrame, choice: str) -> bool:
    """Whether runs differ in a choice. Components count only between methods of one name."""
    same = ["method"] if choice.startswith("config.components.") else [True] * len(frame)
    return bool((frame.groupby(same)[choice].nunique(dropna=False) > 1).any())


def results(runs: Sequence[Path | Summary]) -> pd.DataFrame:
    """Experiments as rows: runs that differ by their seed alone are averaged.

    Shares are fractions; columns `accuracy_std`, `ari_std` and so on are the standard deviations
    over seeds (missing for one seed). Choices in which the experiments differ come as columns of
    their own, `unfinished` counts runs that were stopped, and `scores` names the scores of the
    experiment's task.
    """
    frame, key = experiments(runs)
    grouped = frame.groupby(key, sort=False)
    scores = [*_all_scores(frame), "worst_decile", "ari"]
    table = grouped[[*scores, "clusters", "seconds", "megabytes"]].mean()
    spread = grouped[scores].std().add_suffix("_std")
    counts = grouped.agg(
        rounds=("rounds", "max"), seeds=("seed", "nunique"), unfinished=("unfinished", "sum"),
        scores=("scores", "first"),
    )  # fmt: skip
    return table.join([spread, counts]).reset_index().drop(columns="planned")


def result_cells(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table as texts: the best first, shares in percent.

    The scores are the headline of each task and the one after it, and the mean headline of the
    tenth of the clients that fares worst. Megabytes are those of all clients, up and down. Rounds
    are a column only if experiments differ in them, seeds only if there are several: the table must
    fit a narrow terminal.
    """
    kinds, shown, extra = _all_scores(frame), first_scores(frame), _choices(frame)
    counts = [
        name for name, usual in (("rounds", None), ("seeds", 1)) if _matters(frame[name], usual)
    ]
    sent = ["MB sent"] if frame["megabytes"].notna().any() else []
    worst = ["worst tenth"] if frame["worst_decile"].notna().any() else []
    heads = [*(kinds[name].head for name in shown), *worst, "K used", "ARI"]
    return ["method", "K", *extra, *heads, *counts, *sent, "seconds"], [
        [
            row["method"] + (" (stopped)" if row["unfinished"] else ""),
            str(row["k"]),
            *(row[column] for column in extra),
            *(_cell(row, name, kinds[name]) for name in shown),
            *([kinds[next(iter(row["scores"]))].number(row["worst_decile"], 2)] if worst else []),
            "–" if isnan(row["clusters"]) else f"{row['clusters']:.3g}",
            score(row["ari"], row["ari_std"], 1),
            *(str(row[name]) for name in counts),
            *([score(row["megabytes"], float("nan"), digits=1)] if sent else []),
            f"{row['seconds']:.1f}",
        ]
        for row in _best_first(frame).to_dict("records")
    ]


def first_scores(frame: pd.DataFrame) -> list[str]:
    """The scores that the table of `results` shows, the headline of the first task first."""
    named = [list(scores)[:MAX_SHOWN_SCORES] for scores in frame["scores"]]
    return list(dict.fromkeys(name for names in named for name in names))


def _choices(frame: pd.DataFrame) -> list[str]:
    """The columns that hold choices in which the experiments differ."""
    scores = _all_scores(frame)
    usual = {*FIXED_COLUMNS, *scores, *(f"{name}_std" for name in scores)}
    return [column for column in frame.columns if column not in usual]


def _all_scores(frame: pd.DataFrame) -> dict[str, ScoreKind]:
    """How each score of the runs is written."""
    return {
        name: kind_of(name, better) for scores in frame["scores"] for name, better in scores.items()
    }


def _best_first(frame: pd.DataFrame) -> pd.DataFrame:
    """By the headline, experiments of one task after those of another."""
    orders = []
    for headline in dict.fromkeys(next(iter(scores)) for scores in frame["scores"]):
        own = frame[[next(iter(scores)) == headline for scores in frame["scores"]]]
        rising = own["scores"].iloc[0][headline] == "lower"
        orders.append(own.sort_values(headline, ascending=rising, kind="stable"))
    return pd.concat(orders)


def _cell(row: Mapping[Any, Any], name: str, kind: ScoreKind) -> str:
    """A score of an experiment; shares have two digits, as in the paper's tables."""
    if kind.percent:
        return score(row[name], row[f"{name}_std"], 100)
    if isnan(row[name]):
        return "–"
    spread = row[f"{name}_std"]
    return f"{row[name]:.4g}" + ("" if isnan(spread) else f" ± {spread:.2g}")


def rich_results(frame: pd.DataFrame) -> Table:
    """The table for the terminal."""
    heads, lines = result_cells(frame)
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    numbers = text_columns(frame)
    for i, head in enumerate(heads):
        wraps = head in ("K used", "worst tenth", "MB sent")
        side: Literal["left", "right"] = "left" if i < numbers else "right"
        table.add_column(head, justify=side, no_wrap=not wraps, min_width=6 if wraps else None)
    for line in lines:
        table.add_row(*map(cell, line))
    return table


def text_columns(frame: pd.DataFrame) -> int:
    """How many columns of the table of `results` hold texts; the headline comes after them."""
    return 2 + len(_choices(frame))


def _experiment_name(run: pd.Series[str], choices: Sequence[str]) -> str:
    """The method with K and the choices in which the experiments differ."""
    parts = [f"K={run['k']}"] if str(run["k"]) != "1" else []
    parts += [f"{'rounds' if c == 'planned' else c}={run[c]}" for c in choices]
    return " ".join([run["method"], *parts])


def _matters(column: pd.Series[int], usual: int | None) -> bool:
    return column.nunique() > 1 or (usual is not None and column.iloc[0] != usual)


def _flat(run: Path | Summary) -> dict[str, Any]:
    summary = dict(run if isinstance(run, Mapping) else read_summary(run))
    config = summary.pop("config")
    choices = {
        f"config.{key}": value
        for key, value in leaves(config, between=".", item=None)
        if key not in (*INCIDENTAL_KEYS, "method", "clusters", "rounds")
        and not key.startswith("structure.")
    }
    # Without hidden groups there is no ARI, and without a complete round no score at all. NaN
    # keeps the column one of numbers.
    known, traffic = summary_scores(summary), summary.pop("traffic", None)
    scores = {
        key: float("nan") if (value := summary.get(key)) is None else value
        for key in (*known, "worst_decile", "ari", "clusters")
    }
    choices["config.engine"] = summary.pop(
        "engine", "unknown"
    )  # the engine that ran, which may differ from the one that was asked for
    return {
        **summary,
        **scores,
        "scores": known,
        "megabytes": (traffic["up"] + traffic["down"]) / 1e6 if traffic else float("nan"),
        **choices,
        "folder": run if isinstance(run, Path) else None,
        "planned": config.get("rounds", summary["rounds"]),
        "unfinished": summary["status"] != "finished",
    }


def score(mean: float, std: float, factor: float = 1, digits: int = 2) -> str:
    """The mean, with ± standard deviation if there is one.

    >>> score(0.7095, 0.0357, 100), score(70.95, float("nan"))
    ('70.95 ± 3.57', '70.95')
    """
    if isnan(mean):
        return "–"
    text = f"{mean * factor:z.{digits}f}"
    return text if isnan(std) else f"{text} ± {std * factor:.{digits}f}"
