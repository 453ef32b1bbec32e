"""A queue of runs that survives interruption: each finished run is one small JSON file.

::

    RESULTS/NAME.json                 one finished run: choices, seed, scores, curve, time, versions
    RESULTS/DEFINITION.jsonl          the same, a line for each run, of a definition with hundreds
    RESULTS/models/NAME.safetensors   the model of the last three rounds of a run with one cluster,
                                      so that soft votes (FedAvg+, FedProx+) share their members
    RESULTS/claims/NAME               locked by the process that does the run
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, lru_cache
from importlib.metadata import version
from math import prod
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from wecfl.config import INCIDENTAL_KEYS, Config
from wecfl.core.state import State
from wecfl.core.types import F32
from wecfl.data.federation import Federation
from wecfl.errors import DivergedError, EngineError
from wecfl.experiment import Experiment
from wecfl.folder.files import replace_file, replace_tensors
from wecfl.folder.parsing import read_json, read_json_lines, read_tensors
from wecfl.folder.result_schema import ResultSchema
from wecfl.folder.writer import RECORDED_PACKAGES
from wecfl.from_config import method_of
from wecfl.paper.definitions import Cell, Run
from wecfl.paper.pictures import Pictures
from wecfl.runs.record import Record
from wecfl.runs.summary import last_parts, last_rounds
from wecfl.runs.watcher import OnRound

__all__ = ["Store", "Stored", "chosen", "estimator", "machine_seconds", "perform", "queue", "work"]

Stored = dict[str, Any]
"""A finished run, as in its JSON file (`wecfl.folder.result_schema.ResultSchema`)."""

Key = tuple[str, int, int, bool]
"""What tells a run from all others: hash, seed, member, whether it has a trace."""

LAST = 3
"""Rounds over which the paper's tables average, and whose models a soft vote needs."""


@dataclass(frozen=True, slots=True)
class Store:
    """The folder of results."""

    folder: Path

    def file(self, run: Run) -> Path:
        """Where the result of a run is, or will be."""
        return self.folder / (f"{run.pool}.jsonl" if run.pool else f"{run.stem}.json")

    def models(self, run: Run) -> Path:
        """Where the last models of a run with one cluster are, or will be."""
        return self.folder / "models" / f"{run.stem}.safetensors"

    def read(self, run: Run) -> Stored | None:
        """The result of a run, if it was finished with the same choices."""
        stored = _read(self.file(run)).get((run.hash, run.config.seed, run.member, run.trace))
        return stored if stored and _same(stored, run) else None

    def seeds(self, run: Run) -> list[Stored]:
        """The results of a run with any seed."""
        asked = (run.hash, run.member, run.trace)
        alone = self.folder.glob(f"*_{run.hash}.json")
        files = [self.file(run)] if run.pool else sorted(alone)
        return [
            stored
            for file in files
            for (name, _, member, trace), stored in _read(file).items()
            if (name, member, trace) == asked and _same(stored, run)
        ]

    def all(self) -> list[Stored]:
        """All results, also of runs that no definition asks for."""
        files = sorted(self.folder.glob("*.json")) + sorted(self.folder.glob("*.jsonl"))
        return [stored for file in files for stored in _read(file).values()]

    def write(self, run: Run, outcome: Stored) -> Stored:
        """Keep a finished run; a reader sees all of it or nothing."""
        stored = {
            "config": _choices(run.config),
            "config_hash": run.hash,
            "seed": run.config.seed,
            "member": run.member,
            "votes": len(run.parts),
            **outcome,
        }
        file = self.file(run)
        self.folder.mkdir(parents=True, exist_ok=True)
        if run.pool:
            with self._claimed(file.name, wait=True):
                kept = {**_read(file), _key(stored): stored}
                # In order, so that the file does not tell who was first where several work.
                lines = "".join(f"{json.dumps(kept[key])}\n" for key in sorted(kept))
                replace_file(file, [lines.encode()])
        else:
            lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(v)}" for key, v in stored.items())
            replace_file(file, [f"{{\n{lines}\n}}\n".encode()])
        return stored

    def write_models(self, run: Run, models: F32) -> None:
        """Keep the models of the last rounds (rounds, P)."""
        self.models(run).parent.mkdir(parents=True, exist_ok=True)
        replace_tensors(self.models(run), {"models": models})

    def read_models(self, run: Run) -> F32:
        """The models of the last rounds (rounds, P)."""
        models: F32 = read_tensors(self.models(run), models=2)["models"]
        return models

    @contextmanager
    def claim(self, run: Run) -> Iterator[bool]:
        """Whether this process has the run for itself; the claim dies with the process."""
        with self._claimed(run.stem) as path:
            yield path is not None
            # Else another process could hold the removed file and we a new one.
            if path and self.read(run):
                path.unlink(missing_ok=True)

    @contextmanager
    def _claimed(self, name: str, *, wait: bool = False) -> Iterator[Path | None]:
        """A file that this process has locked; None if another one has, and is not waited for."""
        path = self.folder / "claims" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield path


def chosen(cell: Cell, seed: int, store: Store) -> Run | None:
    """The run of a cell, with the learning rate that did best; None while that is not known."""
    if not cell.tune:
        return cell.run(seed)
    tried = [store.read(run) for run in cell.candidates]
    if any(stored is None for stored in tried):
        return None
    # A diverged run has no accuracy; of equal ones the smaller rate, which comes first, is taken.
    scores = [stored["accuracy"] or 0.0 for stored in tried if stored]
    return cell.run(seed, lr=cell.tune[scores.index(max(scores))])


def queue(asked: Iterable[tuple[Cell, int]], store: Store) -> list[Run]:
    """The runs that are still to be done for cells and seeds, in order.

    The members of a soft vote come before it; a run whose learning rate is not chosen yet is not
    among them, but the runs to choose by are.
    """
    todo: dict[Run, None] = {}
    for cell, seed in asked:
        run = chosen(cell, seed, store)
        if run is None:
            todo |= dict.fromkeys(each for each in cell.candidates if store.read(each) is None)
        elif store.read(run) is None:
            todo |= dict.fromkeys(part for part in run.parts if not _complete(part, store))
            todo[run] = None
    return list(todo)


def work(
    asked: Sequence[tuple[Cell, int]],
    store: Store,
    federation: Callable[[Config], Federation],
    *,
    watcher: Callable[[Run, Sequence[Run]], OnRound],
    local: Mapping[str, Any],
    budget: float | None = None,
) -> Iterator[tuple[Run, Stored | EngineError | None]]:
    """Do one run after the other: its result, its error, or None if another process has it.

    The queue is made anew for each, so that it follows what was chosen and what other processes do.
    `local` are choices of this machine (`data_dir`, `workers`). `budget` are the seconds after
    which no run may begin; nor does one that is expected to take longer than what is left.
    """
    began, tried = perf_counter(), set[Run]()
    while todo := [run for run in queue(asked, store) if run not in tried]:
        run = todo[0]
        left = float("inf") if budget is None else budget - (perf_counter() - began)
        if budget is not None and left <= (estimator(store.all(), local.get("workers"))(run) or 0):
            return
        tried.add(run)
        with store.claim(run) as mine:
            outcome: Stored | EngineError | None = None
            try:
                if mine and not _complete(run, store):  # another process may have finished it
                    here = replace(run, config=run.config.model_copy(update=local))
                    watch = [watcher(run, todo)]
                    outcome = perform(here, store, federation(here.config), watch)
            except EngineError as error:  # of this run; what is wrong with all of them is raised
                outcome = error
        yield run, outcome


def perform(
    run: Run, store: Store, federation: Federation, watch: Sequence[OnRound] = ()
) -> Stored | None:
    """Do a run and keep its result; None for a soft vote whose members are not all there yet.

    That training diverged is a result as well: a table has to say so, and a choice to avoid it.
    """
    began, code = perf_counter(), _commit()
    try:
        outcome = (
            _vote(run, store, federation) if run.parts else _train(run, store, federation, watch)
        )
    except DivergedError as error:
        outcome = {"engine": run.config.engine, **_scores([]), "error": str(error)}
    if outcome is None:
        return None
    seconds = {"seconds": round(perf_counter() - began, 1)}
    made_by = {"made_by": {"commit": code, **_environment(run.config)}}
    return store.write(run, {**outcome, **seconds, **made_by})


def _train(run: Run, store: Store, federation: Federation, watch: Sequence[OnRound]) -> Stored:
    last: deque[F32] = deque(maxlen=LAST)
    pictures = Pictures(run.config, federation) if run.trace else None

    def keep(record: Record, states: Sequence[State]) -> None:
        last.append(states[0].centers)

    experiment = Experiment.of(run.config, federation, watch=[keep, *watch])
    observe = pictures.step if pictures else None
    result = experiment.run(members=[run.member], observe=observe)
    if result.method.k == 1:
        store.write_models(run, np.concatenate(last))
    traced = {"trace": pictures.data(result.records)} if pictures else {}
    late = {key: each for key, each in result.summary.items() if key == "newcomers"}
    return {"engine": result.engine, **_scores(result.records), **late, **traced}


def machine_seconds(stored: Stored) -> float:
    """The wall time of a run, had it kept all cores of its machine busy.

    >>> machine_seconds({"seconds": 60.0, "made_by": {"cores": 2, "workers": 1}})
    30.0
    """
    cores, workers = stored["made_by"]["cores"], stored["made_by"].get("workers")
    return float(stored["seconds"] * _share(workers, cores))


def estimator(
    results: Sequence[Stored], workers: int | None = None
) -> Callable[[Run], float | None]:
    """The seconds a run may take, from results of the same data set; None if there is none.

    The nearest count: those of the same method and K, else of the method, else of the data set;
    pictures and votes take a time of their own.
    """
    times: dict[tuple[Any, ...], list[float]] = {}
    for stored in results:
        if "error" not in stored:
            choices = stored["config"]
            alike = (choices["dataset"], bool(stored["votes"]), "trace" in stored)
            for key in (alike, (*alike, m := choices["method"]), (*alike, m, choices["clusters"])):
                times.setdefault(key, []).append(machine_seconds(stored) / _work(choices))
    rates = {key: median(each) for key, each in times.items()}

    def estimate(run: Run) -> float | None:
        config = run.config
        key = (config.dataset, bool(run.parts), run.trace, config.method, config.clusters)
        known = [rates[key[:n]] for n in (5, 4, 3) if key[:n] in rates]
        work = _work(config.model_dump(include=set(WORK)))
        return known[0] * work / _share(workers, os.cpu_count()) if known else None

    return estimate


def _share(workers: int | None, cores: int | None) -> float:
    """Of the machine's cores that a run keeps busy."""
    return min((workers or cores or 1) / (cores or 1), 1.0)


def _same(stored: Stored, run: Run) -> bool:
    """The hash leaves out defaults: if one has changed since, it was another experiment."""
    now = _choices(run.config)
    return all(now[key] == value for key, value in stored["config"].items() if key in now)


WORK = ("rounds", "clients", "steps", "batch")


def _work(choices: Mapping[str, Any]) -> int:
    """Sample gradients, to which the time is about proportional."""
    return prod(choices[key] for key in WORK)


def _complete(run: Run, store: Store) -> bool:
    """The result is there, and the models for a vote too: the repository does not keep them."""
    needs_models = not run.parts and method_of(run.config).k == 1
    return store.read(run) is not None and (not needs_models or store.models(run).exists())


def _vote(run: Run, store: Store, federation: Federation) -> Stored | None:
    """The scores of a soft vote in the last rounds, from the models of its members."""
    if not all(_complete(part, store) for part in run.parts):
        return None
    stacks = np.stack([store.read_models(part) for part in run.parts], axis=1)
    first = run.config.rounds - len(stacks) + 1
    with Experiment.of(run.config, federation).open() as opened:
        labels = np.zeros(len(opened.engine.sizes), dtype=np.int64)
        records = [
            opened.recorder.round([State(t, None, row[None], labels) for row in rows])
            for t, rows in enumerate(stacks, first)
        ]
        return {"engine": opened.engine.name, **_scores(records)}


def _scores(records: Sequence[Record]) -> Stored:
    """Means of the last rounds, and the curve."""
    curve = {
        key: [None if record[key] is None else round(record[key], 5) for record in records]
        for key in ("round", "accuracy", "macro_f1", "ari", "clusters")
    }
    means = {
        key: None if mean is None else round(mean, 6)
        for key, mean in last_rounds(records, LAST).items()
    }
    return {**means, **last_parts(records, "attack", LAST), "curve": curve}


def _choices(config: Config) -> dict[str, Any]:
    """What makes the result, in JSON's types."""
    return config.completed().model_dump(mode="json", exclude=set(INCIDENTAL_KEYS))


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

    Asked once: what runs is the code as it was when the process began.
    """

    def git(*words: str) -> str:
        told = subprocess.run(
            ["git", "-C", str(Path(__file__).parents[1]), *words],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        return told.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "paper/queue.py")  # else another project's repository
        changed = git("status", "--porcelain", "--", ".", ":/native")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _key(stored: Stored) -> Key:
    return stored["config_hash"], stored["seed"], stored["member"], "trace" in stored


def _read(file: Path) -> Mapping[Key, Stored]:
    """The results that a file holds; parsed again only where it has changed."""
    if not file.exists():
        return {}
    seen = file.stat()
    return _parsed(file, seen.st_ino, seen.st_mtime_ns, seen.st_size)


@lru_cache(maxsize=1024)
def _parsed(file: Path, *_stamp: int) -> Mapping[Key, Stored]:
    if file.suffix == ".jsonl":
        found = read_json_lines(file, ResultSchema)
    else:
        found = [read_json(file, ResultSchema, "remove it")]
    return {_key(stored): stored for stored in found}
