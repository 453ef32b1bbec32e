"""One row of a table: the means over the stored seeds of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from wecfl.config import Config
from wecfl.config.keys import KEY_OF_OPTION
from wecfl.methods import named, options
from wecfl.paper.definitions import Cell, PlannedRun
from wecfl.paper.queue import chosen_run
from wecfl.paper.result_store import ResultStore, StoredResult

__all__ = ["Row", "averaged", "chosen_words", "score_row", "seed_counts"]

Row = dict[Any, Any]
"""One of the records of a data frame."""


def score_row(cell: Cell, store: ResultStore) -> tuple[Row, list[StoredResult]]:
    """The choices and scores of a cell (in percent; mean and std over seeds), and its results."""
    run = chosen_run(cell, 0, store)
    stored = store.seeds(run) if run else []
    label = f"{cell.label} {_tuned(cell, run)}".strip() if cell.tune else cell.label
    choices = {
        "dataset": cell.config.dataset,
        "partition": cell.config.partition,
        "k": _clusters(cell.config),
        "method": cell.config.method,
        "label": label,
        "n": len(stored),
    }
    scores = {"accuracy": 100.0, "macro_f1": 100.0, "ari": 1.0}
    return choices | dict(averaged(stored, scores)), stored


def averaged(
    results: Sequence[Mapping[str, Any]], factors: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    """Mean and std of each score, times its factor; NaN if no result has the score.

    >>> dict(averaged([{"ari": 0.5}, {"ari": None}, {"ari": 1.0}], {"ari": 1}))["ari"]
    0.75
    """
    for name, factor in factors.items():
        values = [factor * result[name] for result in results if result.get(name) is not None]
        yield name, float(np.mean(values)) if values else nan
        yield f"{name}_std", float(np.std(values, ddof=1)) if len(values) > 1 else nan


def seed_counts(counts: Iterable[int]) -> str:
    """The number of seeds of several rows; if it differs, the smallest and the largest one.

    >>> seed_counts([3, 3]), seed_counts([1, 3, 2])
    ('3', '1–3')
    """
    known = sorted(counts)
    return str(known[0]) if known[0] == known[-1] else f"{known[0]}–{known[-1]}"


def _clusters(config: Config) -> int | str:
    """K; a method without this option has its own number, whatever K its neighbours have."""
    method = config.method
    return config.clusters if "k" in options(method) else named(method).k


def _tuned(cell: Cell, run: PlannedRun | None) -> str:
    names = ", ".join(dict.fromkeys(name for choice in cell.tune for name, _ in choice))
    if any(len(choice) > 1 for choice in cell.tune):
        tried = f"{len(cell.tune)} tried"
    else:
        tried = ", ".join(f"{value:g}" for choice in cell.tune for _, value in choice)
    if run is None:
        return f"{names} to be chosen of {tried}"
    return f"{chosen_words(cell, run)} chosen of {tried}"


def chosen_words(cell: Cell, run: PlannedRun) -> str:
    """The choices that tuning made for a cell.

    >>> from wecfl import Config
    >>> cell = Cell(Config(method="ditto"), tune=((("lr", 0.1), ("lam", 0.5)),))
    >>> chosen_words(cell, cell.run(0, lr=0.1, lam=0.5))
    'lr 0.1, lam 0.5'
    """
    chosen = run.config.model_dump() | dict(run.config.options)
    names = dict.fromkeys(name for choice in cell.tune for name, _ in choice)
    values = {name: chosen[KEY_OF_OPTION.get(name, name)] for name in names}
    return ", ".join(
        f"{name} {value:g}" if type(value) is float else f"{name} {value}"
        for name, value in values.items()
    )
