"""The queue of the runs that a table or figure still needs, and estimates of their time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

from wecfl.config import Config
from wecfl.data.federation import Federation
from wecfl.errors import EngineError
from wecfl.paper.definitions import Cell, PlannedRun
from wecfl.paper.execution import perform
from wecfl.paper.result_store import ResultStore, StoredResult
from wecfl.runs.watcher import OnRound

__all__ = ["chosen_run", "estimator", "machine_seconds", "queue", "work"]


def chosen_run(cell: Cell, seed: int, store: ResultStore) -> PlannedRun | None:
    """The run of a cell, with the best choices of its candidates; None until these are known."""
    if not cell.tune:
        return cell.run(seed)
    tried = [store.read(run) for run in cell.candidates]
    if any(stored is None for stored in tried):
        return None
    # A diverged run has no accuracy. Of equally good choices the first one is taken.
    scores = [stored["accuracy"] or 0.0 for stored in tried if stored]
    return cell.run(seed, **dict(cell.tune[scores.index(max(scores))]))


def queue(asked: Iterable[tuple[Cell, int]], store: ResultStore) -> list[PlannedRun]:
    """The runs that are still to be done for cells and seeds, in order.

    The members of a soft vote come before it. In place of a run that is not tuned yet, there are
    the candidates that tune it.
    """
    todo: dict[PlannedRun, None] = {}
    for cell, seed in asked:
        run = chosen_run(cell, seed, store)
        if run is None:
            missing = [each for each in cell.candidates if store.read(each) is None]
        else:
            missing = [run] if store.read(run) is None else []
        for each in missing:
            todo |= dict.fromkeys(part for part in each.parts if not store.complete(part))
            todo[each] = None
    return list(todo)


def work(
    asked: Sequence[tuple[Cell, int]],
    store: ResultStore,
    federation: Callable[[Config], Federation],
    *,
    watcher: Callable[[PlannedRun, Sequence[PlannedRun]], OnRound],
    local: Mapping[str, Any],
    budget: float | None = None,
) -> Iterator[tuple[PlannedRun, StoredResult | EngineError | None]]:
    """Do one run after the other; yield its result, its error, or None if another process does it.

    The queue is made anew before each run, because rates are chosen and other processes work too.
    `local` are choices of this machine (`data_dir`, `workers`). `budget` is the time in seconds: no
    run begins after it, or if the run is expected to take longer than the time that is left.
    """
    began, tried = perf_counter(), set[PlannedRun]()
    while todo := [run for run in queue(asked, store) if run not in tried]:
        run = todo[0]
        left = float("inf") if budget is None else budget - (perf_counter() - began)
        if budget is not None and left <= (estimator(store.all(), local.get("workers"))(run) or 0):
            return
        tried.add(run)
        with store.claim(run) as mine:
            outcome: StoredResult | EngineError | None = None
            try:
                if mine and not store.complete(run):  # another process may have finished it
                    local_run = replace(run, config=run.config.model_copy(update=local))
                    watch = [watcher(run, todo)]
                    outcome = perform(local_run, store, federation(local_run.config), watch)
            except EngineError as error:  # an error of this run alone; others are raised
                outcome = error
        yield run, outcome


def machine_seconds(stored: StoredResult) -> float:
    """The wall time that a run would take with all cores of its machine.

    >>> machine_seconds({"seconds": 60.0, "made_by": {"cores": 2, "workers": 1}})
    30.0
    """
    cores, workers = stored["made_by"]["cores"], stored["made_by"].get("workers")
    return float(stored["seconds"] * _share(workers, cores))


def estimator(
    results: Sequence[StoredResult], workers: int | None = None
) -> Callable[[PlannedRun], float | None]:
    """Estimates the seconds a run takes, from results of the same data and model; None without any.

    It uses results of the same method and K, or else of the method, or else of the data set. Runs
    with a trace are compared with such runs only, and votes with votes.
    """
    times: dict[tuple[Any, ...], list[float]] = {}
    for stored in results:
        if "error" not in stored:
            choices = stored["config"]
            alike = (*_place(choices), bool(stored["votes"]), "trace" in stored)
            for key in (alike, (*alike, m := choices["method"]), (*alike, m, choices["clusters"])):
                times.setdefault(key, []).append(machine_seconds(stored) / _work(choices))
    rates = {key: median(seconds) for key, seconds in times.items()}

    def estimate(run: PlannedRun) -> float | None:
        config = run.config
        choices = config.model_dump()
        alike = (*_place(choices), bool(run.parts), run.trace)
        keys = ((*alike, config.method, config.clusters), (*alike, config.method), alike)
        known = [rates[key] for key in keys if key in rates]
        work = _work(choices)
        return known[0] * work / _share(workers, os.cpu_count()) if known else None

    return estimate


def _share(workers: int | None, cores: int | None) -> float:
    """The share of the machine's cores that a run keeps busy."""
    return min((workers or cores or 1) / (cores or 1), 1.0)


def _place(choices: Mapping[str, Any]) -> tuple[Any, ...]:
    """The choices on which the time of a sample and the number of samples depend."""
    return choices["dataset"], choices.get("model", "auto"), choices.get("epochs")


WORK_FACTORS = ("rounds", "clients", "steps", "batch")


def _work(choices: Mapping[str, Any]) -> int:
    """The number of sample gradients; the time is about proportional to it."""
    return prod(choices[key] for key in WORK_FACTORS)
