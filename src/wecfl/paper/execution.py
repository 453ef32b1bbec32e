"""Performs one run of the queue: training, or a soft vote of runs that were trained before."""

from __future__ import annotations

import os
import platform
import subprocess
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np

from wecfl.config import Config
from wecfl.core.state import State
from wecfl.core.types import F32
from wecfl.data.federation import Federation
from wecfl.errors import DivergedError
from wecfl.experiment import Experiment
from wecfl.folder.writer import RECORDED_PACKAGES
from wecfl.paper.definitions import PlannedRun
from wecfl.paper.figure_data import FigureData
from wecfl.paper.result_store import ResultStore, StoredResult
from wecfl.runs.record import Record
from wecfl.runs.summary import last_parts, last_rounds
from wecfl.runs.watcher import OnRound

__all__ = ["perform"]

AVERAGED_ROUNDS = 3
"""The number of last rounds that the paper's tables average, and whose models a vote needs."""
STORED_SCORES = ("accuracy", "macro_f1", "ari")
"""The scores that the paper's tables show."""


def perform(
    run: PlannedRun, store: ResultStore, federation: Federation, watch: Sequence[OnRound] = ()
) -> StoredResult | None:
    """Do a run and store its result; None for a soft vote that lacks some of its members.

    A diverged training is a result too: tables say so, and the choice of a learning rate avoids it.
    """
    began, computed, code = perf_counter(), process_time(), _commit()
    try:
        outcome = (
            _vote(run, store, federation) if run.parts else _train(run, store, federation, watch)
        )
    except DivergedError as error:
        outcome = {"engine": run.config.engine, **_scores([]), "error": str(error)}
    if outcome is None:
        return None
    seconds = {
        "seconds": round(perf_counter() - began, 1),
        "cpu_seconds": round(process_time() - computed, 1),
    }
    made_by = {"made_by": {"commit": code, **_environment(run.config)}}
    return store.write(run, {**outcome, **seconds, **made_by})


def _train(
    run: PlannedRun, store: ResultStore, federation: Federation, watch: Sequence[OnRound]
) -> StoredResult:
    last: deque[F32] = deque(maxlen=AVERAGED_ROUNDS)
    figure_data = FigureData(run.config, federation) if run.trace else None

    def keep(record: Record, states: Sequence[State]) -> None:
        last.append(states[0].centers)

    experiment = Experiment.prepared(run.config, watch=[keep, *watch])(federation)
    observe = figure_data.step if figure_data else None
    result = experiment.run(members=[run.member], observe=observe)
    if result.method.k == 1:
        store.write_models(run, np.concatenate(last))
    traced = {"trace": figure_data.data(result.records)} if figure_data else {}
    told = {key: found for key, found in result.summary.items() if key in ("newcomers", "drift")}
    return {"engine": result.engine, **_scores(result.records), **told, **traced}


def _vote(run: PlannedRun, store: ResultStore, federation: Federation) -> StoredResult | None:
    """The scores of a soft vote in the last rounds, from the models of its members."""
    if not all(store.complete(part) for part in run.parts):
        return None
    stacks = np.stack([store.read_models(part) for part in run.parts], axis=1)
    first = run.config.rounds - len(stacks) + 1
    with Experiment.prepared(run.config)(federation).open() as opened:
        labels = np.zeros(len(opened.engine.sizes), dtype=np.int64)
        records = [
            opened.recorder.round([State(t, None, row[None], labels) for row in rows])
            for t, rows in enumerate(stacks, first)
        ]
        scores = _scores(records)
        scores.pop("traffic", None)  # nothing was sent for the vote itself
        return {"engine": opened.engine.name, **scores}


def _scores(records: Sequence[Record]) -> StoredResult:
    """The means of the last rounds, and the curves."""
    scored = [record for record in records if record["worst_decile"] is not None]
    curve = {
        key: [None if record[key] is None else round(record[key], 5) for record in scored]
        for key in ("round", *STORED_SCORES, "clusters")
    }
    last = last_rounds(records, AVERAGED_ROUNDS)  # without scores if the first round diverged
    means = {
        key: None if (mean := last.get(key)) is None else round(mean, 6)
        for key in (*STORED_SCORES, "worst_decile")
    }
    parts: StoredResult = {}
    for name in ("attack", "before"):
        parts |= last_parts(scored, name, AVERAGED_ROUNDS)
    return {**means, **parts, **_traffic(records), "curve": curve}


def _traffic(records: Sequence[Record]) -> StoredResult:
    """The bytes and messages of all rounds; nothing where they were not counted."""
    counted = [record["traffic"] for record in records if "traffic" in record]
    totals = {way: sum(each[way] for each in counted) for way in ("up", "down", "messages")}
    return {"traffic": totals} if counted else {}


def _environment(config: Config) -> dict[str, Any]:
    return {
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": {name: version(name) for name in RECORDED_PACKAGES},
        "python": platform.python_version(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "workers": config.workers,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def _commit() -> str | None:
    """The commit of this code, if it runs from its repository; with `-dirty` if it was changed.

    git is asked once, because the process runs the code as it was when it began.
    """

    def git(*words: str) -> str:
        answer = subprocess.run(
            ["git", "-C", str(Path(__file__).parents[1]), *words],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return answer.stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", f"paper/{Path(__file__).name}"
        )  # otherwise it is the repository of another project
        changed = git("status", "--porcelain", "--", ".", ":/native")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
