"""`wecfl reproduce`: runs the queue of the paper's tables and figures, and shows them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from wecfl.cli import terminal
from wecfl.cli.flags import DataDirFlag
from wecfl.config import Config
from wecfl.errors import ConfigError, EngineError, unknown
from wecfl.paper import SHIPPED_FOLDER

if TYPE_CHECKING:
    from wecfl.core.state import State
    from wecfl.data.federation import Federation
    from wecfl.paper.definitions import Cell, Definition, PlannedRun
    from wecfl.paper.result_store import ResultStore, StoredResult
    from wecfl.runs.record import Record
    from wecfl.runs.watcher import OnRound

__all__ = ["reproduce"]

DEFINITION_NAMES = sorted(file.stem for file in SHIPPED_FOLDER.glob("*.toml"))
"""The definitions that come with the package."""


def reproduce(
    *what: Annotated[
        str, Parameter(help=f"Tables or figures: {', '.join(DEFINITION_NAMES)}; or all.")
    ],
    cells: Annotated[
        tuple[str, ...],
        Parameter(
            negative_iterable=(),
            help="Run and show only the cells that have all these words, such as "
            '"cifar-10 wecfl k=10"; may be given more than once.',
        ),
    ] = (),
    seeds: Annotated[
        int | None, Parameter(help="Run seeds 0 … N-1 of each cell (default: as defined).")
    ] = None,
    budget: Annotated[
        str | None,
        Parameter(
            help="The time to work, such as 90m or 1.5h; a run that may take longer than the time "
            "that is left does not begin."
        ),
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), help="List the runs that are left and how long they may take.")
    ] = False,
    show: Annotated[
        bool,
        Parameter(
            negative=(),
            help="Run nothing; show and write the tables and figures from stored results.",
        ),
    ] = False,
    results: Annotated[
        Path, Parameter(help="The folder in which finished runs are stored.")
    ] = Path("docs/results"),
    definitions: Annotated[
        Path, Parameter(show_default=False, help="A folder with other definitions (TOML files).")
    ] = SHIPPED_FOLDER,
    data_dir: DataDirFlag = None,
    workers: Annotated[
        int | None, Parameter(help="Threads or processes (default: one per core).")
    ] = None,
) -> None:
    """Run the experiments of the paper's tables and figures, and show them beside the paper's.

    The runs stand in a queue, the most important ones first. Each finished run is stored as a small
    file. So you may interrupt the command at any time and start it again: it continues where it
    stopped. Several processes may work on one queue. If two rows are soft votes of the same runs,
    these are run once.
    """
    from wecfl.paper.definition_files import read_definitions
    from wecfl.paper.definitions import ordered, select
    from wecfl.paper.result_store import ResultStore
    from wecfl.paper.tables.files import frame_of, text_tables, write

    defined = read_definitions(definitions)
    if not what:
        raise ConfigError(f"name what to reproduce: {', '.join([*defined, 'all'])}")
    for name in what:
        if name not in (*defined, "all"):
            raise ConfigError(unknown("table or figure", name, [*defined, "all"]))
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}")
    if results.exists() and not results.is_dir():
        raise ConfigError(f"--results must be a folder, got the file {results}")
    named = [d for name, d in defined.items() if "all" in what or name in what]
    wanted = set(select([cell for d in named for cell in d.cells], cells))
    asked = [(cell, seed) for cell, seed in ordered(named, seeds) if cell in wanted]
    store = ResultStore(results)
    if dry_run:
        _list_queue(asked, store, workers)
        return
    local: dict[str, Any] = {"data_dir": data_dir and str(data_dir), "workers": workers}
    federation = _shared_federation(local)
    seconds = None if budget is None else _seconds(budget)
    failed = 0 if show else _work(asked, store, federation, local, seconds)
    for definition in named:
        if definition.figure:
            _figure(definition, store, federation)
        if definition.figure and not definition.table:
            continue
        shown = [cell for cell in definition.cells if cell in wanted]
        frame = frame_of(definition, store, shown)
        for table in text_tables(definition, frame):
            terminal.wide(table.rich(definition.title))
        if results.is_dir():
            terminal.show(f"written: {', '.join(map(str, write(definition, store)))}")
    if failed:
        raise ConfigError(f"{_runs(failed)} failed; the reasons are given above")


def _figure(
    definition: Definition, store: ResultStore, federation: Callable[[Config], Federation]
) -> None:
    from wecfl.paper.figures import draw
    from wecfl.report.figures.files import FORMATS

    chart = draw(definition, store, federation)
    if chart is None:
        terminal.show(f"{definition.name}: nothing to draw, since its runs are not stored yet")
        return
    for suffix in FORMATS:
        terminal.draw(chart, store.folder / f"{definition.name}{suffix}")


def _shared_federation(local: Mapping[str, Any]) -> Callable[[Config], Federation]:
    """Makes the clients of a configuration, once for consecutive runs that share them."""
    from wecfl.from_config import DATA_KEYS

    keys = DATA_KEYS - {"data_dir"}

    @lru_cache(maxsize=1)
    def made(choices: Config) -> Federation:
        return terminal.federation(choices)

    return lambda config: made(Config(**config.model_dump(include=keys), **local))


def _list_queue(asked: Sequence[tuple[Cell, int]], store: ResultStore, workers: int | None) -> None:
    """Print the queue in order, with times estimated from stored results."""
    from wecfl.paper.queue import chosen_run, estimator, queue

    todo, stored = queue(asked, store), store.all()
    choosing = sum(chosen_run(cell, seed, store) is None for cell, seed in asked)
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("run", no_wrap=True)
    table.add_column("estimate", justify="right", no_wrap=True)
    times = [*map(estimator(stored, workers), todo)]
    for planned, time in zip(todo, times, strict=True):
        table.add_row(escape(str(planned)), "unknown" if time is None else _duration(time))
    terminal.wide(table)
    known = [time for time in times if time is not None]
    terminal.show(
        f"{_runs(len(todo))} to do for {len(asked)} asked for; estimated time "
        f"{_duration(sum(known))} for {len(known)} of them, from stored wall times"
        + (f"; unknown for {len(todo) - len(known)}" if len(known) < len(todo) else "")
        + (f"; {choosing} more follow once their learning rate is chosen" if choosing else "")
    )


def _work(
    asked: Sequence[tuple[Cell, int]],
    store: ResultStore,
    federation: Callable[[Config], Federation],
    local: Mapping[str, Any],
    budget: float | None,
) -> int:
    """Run the queue; returns how many runs failed."""
    from wecfl.paper.queue import queue, work

    bars = _QueueBars(len(queue(asked, store)), store, local.get("workers"))
    try:
        with bars.progress:
            for planned, outcome in work(
                asked, store, federation, watcher=bars.begin, local=local, budget=budget
            ):
                bars.end(planned, outcome)
    except KeyboardInterrupt:
        terminal.say(f"interrupted; {bars.done} finished runs are kept in {store.folder}")
        sys.exit(130)
    left = len(queue(asked, store)) - bars.failed - bars.elsewhere
    terminal.show(
        f"{_runs(bars.done)} done"
        + (f", {bars.elsewhere} done by other processes" if bars.elsewhere else "")
        + (f", {left} left, for which the budget is too short" if budget and left > 0 else "")
    )
    return bars.failed


class _QueueBars:
    """The bars of the queue and of the run at work, and how many runs have ended in which way."""

    def __init__(self, runs: int, store: ResultStore, workers: int | None) -> None:
        self.done = self.failed = self.elsewhere = 0
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), console=terminal.console,
        )  # fmt: skip
        self._store, self._workers = store, workers
        self._whole = self.progress.add_task("runs", total=runs, note="")
        self._current = self.progress.add_task("", total=1, note="", visible=False)

    def begin(self, run: PlannedRun, todo: Sequence[PlannedRun]) -> OnRound:
        """Tell what is left and which run begins; returns what tells of its rounds."""
        from wecfl.paper.queue import estimator

        times = [*map(estimator(self._store.all(), self._workers), todo)]
        known = [time for time in times if time is not None]
        more = f" + {len(times) - len(known)} unknown" if len(known) < len(times) else ""
        total = self.done + self.failed + self.elsewhere + len(todo)
        left = f"{_duration(sum(known))} left{more}"
        self.progress.update(self._whole, total=total, note=left)
        self.progress.reset(
            self._current,
            description=str(run),
            total=run.config.rounds,
            visible=not run.parts,  # a vote has no rounds of its own
            note="",
        )
        return self._round

    def _round(self, record: Record, states: Sequence[State]) -> None:
        note = f"rounds  {terminal.scores(record)}"
        self.progress.update(self._current, completed=record["round"], note=note)

    def end(self, run: PlannedRun, outcome: StoredResult | EngineError | None) -> None:
        """Count a run, and tell what came of it."""
        self.progress.advance(self._whole)
        self.progress.update(self._current, visible=False)
        if isinstance(outcome, EngineError):
            self.failed += 1
            terminal.show(f"{run}: {outcome}")
        elif outcome is None:
            self.elsewhere += 1
        else:
            self.done += 1
            scores = outcome.get("error") or terminal.scores(outcome, "accuracy")
            terminal.show(f"{run}: {scores}  {_duration(outcome['seconds'])}")


def _runs(count: int) -> str:
    return f"{count} run{'s' * (count != 1)}"


def _seconds(text: str) -> float:
    """The seconds of a duration such as 2h, 90m or 45s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match:
        raise ConfigError(f"--budget must be a number with s, m or h, such as 90m, got '{text}'")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"
