"""The command line. Bad input ends in one line on standard error and exit code 2."""

from __future__ import annotations

import os
import re
import sys
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from io import TextIOWrapper
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    track,
)
from rich.table import Table

from wecfl import __version__
from wecfl.base import State
from wecfl.config import PAPER_PARTITIONS, PARTITIONING, PRESETS, Config, one_line, resolve
from wecfl.data import datasets
from wecfl.data import partition as partitions
from wecfl.data.federation import Federation
from wecfl.data.fetch import Progress as FetchProgress
from wecfl.errors import ConfigError, EngineError, WecflError, unknown
from wecfl.methods import METHODS, components, named
from wecfl.report import paper
from wecfl.report.charts import FORMATS, AnyChart, format_of, save
from wecfl.report.figures import overview
from wecfl.report.page import page, write
from wecfl.report.paper_figures import draw
from wecfl.report.partition_figure import Panel, bars
from wecfl.report.tables import results, rich_table
from wecfl.report.theory import check_run, rich_check, rich_rounds
from wecfl.report.words import client_words, partition_words
from wecfl.runs.definitions import (
    SHIPPED,
    Cell,
    Definition,
    Run,
    ordered,
    read_definitions,
    select,
)
from wecfl.runs.experiment import (
    Result,
    check,
    federation_of,
    holds_clients,
    load_pool,
    method_of,
    run_config,
)
from wecfl.runs.folder import check_free, read_summary
from wecfl.runs.observe import OnRound
from wecfl.runs.queue import Store, chosen, estimate, queue, work
from wecfl.runs.record import Record
from wecfl.track import TRACKERS, tracker

__all__ = ["app", "main"]

app = App(
    name="wecfl",
    help="Clustered federated learning: which clients learn alike, and one good model per group.",
    version=__version__,
)
"""The command `wecfl` with its subcommands."""
data = App(name="data", help="List and fetch data sets.")
app.command(data)
console = Console()

Flags = Annotated[Config, Parameter(name="*", negative_iterable=(), consume_multiple=True)]
OutFlag = Annotated[
    Path | None, Parameter(help="The folder to write (default: a new one in runs/).")
]
PresetFlag = Annotated[
    str | None, Parameter(help=f"Start from named choices: {', '.join(PRESETS)}.")
]
DataDirFlag = Annotated[Path | None, Parameter(help="Where to look for data sets first.")]


@app.command
def run(
    config: Path | None = None,
    /,
    *,
    preset: PresetFlag = None,
    out: OutFlag = None,
    figure: Annotated[
        Path | None, Parameter(help="Also draw the result: .png, .svg, .pdf or .html.")
    ] = None,
    track: Annotated[
        tuple[str, ...],
        Parameter(
            help=f"Also show the run in {' or '.join(TRACKERS)}; may be given twice.",
            negative_iterable=(),
            show_default=False,
        ),
    ] = (),
    flags: Flags = Config(),  # noqa: B008  (frozen)
) -> None:
    """Train a federation and write a run folder.

    Without arguments: WeCFL on scikit-learn's digits, 50 clients in 10 hidden groups. Several
    methods, separated by commas, run on the same clients: --method fedavg,wecfl.

    Parameters
    ----------
    config
        A TOML file with any of the choices below; flags override it.

    """
    chosen = _choices(config, preset, flags)
    _check_figure(figure)
    configs = [
        chosen.model_copy(update={"method": name.strip()}) for name in chosen.method.split(",")
    ]
    for each in configs:
        method_of(each)  # what is wrong is said before anything is loaded, or else computed
    folders = _folders(out, configs)
    tracked = [[tracker(name, folder) for name in track] for folder in folders]
    federation = _federation(chosen)
    for each in configs:
        check(each, federation)
    words = "" if holds_clients(chosen) else f", {partition_words(chosen.model_dump())}"
    clients = client_words(federation.sizes, federation.groups)
    _print(f"{chosen.dataset}{words}: {clients} each, seed {chosen.seed}")
    finished: list[Path] = []
    try:
        with _progress() as bars:
            for each, folder, trackers in zip(configs, folders, tracked, strict=True):
                run_config(each, federation, folder, [bars, *trackers])
                finished.append(folder)
    except KeyboardInterrupt:
        stopped = folders[len(finished)]
        _say("interrupted" + (f"; what was computed is in {stopped}" if stopped.exists() else ""))
        sys.exit(130)
    console.print(rich_table(results(folders)))
    if figure:
        _draw(overview(folders), figure)
    _print(f"run folder: {folders[0] if len(folders) == 1 else folders[0].parent}")


@app.command
def compare(
    *folders: Annotated[Path, Parameter(help="Run folders, or folders that hold some.")],
    figure: Annotated[
        Path | None, Parameter(help="Also draw the runs: .png, .svg, .pdf or .html.")
    ] = None,
) -> None:
    """Print the runs as one table, mean ± standard deviation over seeds."""
    _check_figure(figure)
    found = _found(folders, "compare")
    console.print(rich_table(results(found)))
    if figure:
        _draw(overview(found), figure)


@app.command(name="check")
def check_theory(
    folder: Path,
    /,
    *,
    epsilon: Annotated[
        float | None, Parameter(help="The mean ‖∇L‖² for which Theorem 3's T is asked.")
    ] = None,
    rounds: Annotated[bool, Parameter(help="Show the margin in each round.", negative="")] = False,
    json: Annotated[bool, Parameter(help="Print everything as JSON.", negative="")] = False,
    strict: Annotated[
        bool, Parameter(help="Exit 1 if one failed whose assumptions are met.", negative="")
    ] = False,
) -> None:
    """Judge the paper's lemmas and theorems on the record of a run (made with --diagnostics).

    Parameters
    ----------
    folder
        A run folder.

    """
    if epsilon is not None and not 0 < epsilon < float("inf"):
        raise ConfigError(f"--epsilon must be positive and finite, got {epsilon:g}")
    if not folder.is_dir():
        raise ConfigError(f"no run folder {folder}")
    found = check_run(folder, epsilon)
    if json:
        print(dumps(found.json(), indent=2, ensure_ascii=False))
    else:
        # Wide enough for the table also where the output is not a terminal.
        wide = Console(width=None if console.is_terminal else max(console.width, 140))
        wide.print(rich_check(found))
        if rounds:
            wide.print(rich_rounds(found))
    if strict and found.refuted:
        sys.exit(1)


@app.command
def report(
    *folders: Annotated[Path, Parameter(help="Run folders, or folders that hold some.")],
    out: Annotated[
        Path | None, Parameter(help="The page to write (default: page.html in the first folder).")
    ] = None,
    open_: Annotated[
        bool, Parameter(name="--open", negative=(), help="Show the page in the browser.")
    ] = False,
) -> None:
    """Write one page about runs: it works offline, in a single file.

    Result table, convergence, the clients moving in the plane round by round, the clusters, the
    objectives and the command that repeats each run. Several runs are compared.
    """
    found = _found(folders, "report")
    path = out or folders[0] / "page.html"
    if path.suffix.lower() != ".html":
        raise ConfigError(f"can't write the report as '{path}'; use .html")
    _check_place(path, "report")
    written = write(page(found, _track), path)
    _print(f"report: {written} ({written.stat().st_size / 1e6:.1f} MB)")
    if open_:
        webbrowser.open(written.absolute().as_uri())


@app.command
def methods() -> None:
    """List the methods and the components each is made of."""
    parts = {name: components(named(name)) for name in METHODS}
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("method", style="bold", no_wrap=True)
    shown = ("representation", "distance", "clustering", "importance", "objective", "aggregation")
    for head in (*shown, "order", "members"):
        table.add_column(head)
    for name, each in parts.items():
        table.add_row(name, *(each[part] for part in (*shown, "order", "members")))
    _print_wide(table)


@data.command(name="list")
def data_list(*, data_dir: DataDirFlag = None) -> None:
    """List the data sets and where each was found."""
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    for head in ("name", "samples", "shape", "classes", "found at"):
        table.add_column(head, no_wrap=head != "found at", overflow="fold")
    for source, place in datasets.catalogue(data_dir):
        table.add_row(
            source.name,
            f"{source.n_train:,} + {source.n_test:,}",
            " × ".join(map(str, source.shape)),
            str(source.classes),
            escape(str(place)) if place else f"not here; wecfl data get {source.name}",
        )
    console.print(table)


@data.command(name="get")
def data_get(name: str, /, *, data_dir: DataDirFlag = None) -> None:
    """Fetch a data set if it is not here yet, and print where it is.

    Parameters
    ----------
    name
        A name from `wecfl data list`.

    """
    with _downloads() as progress:
        place = datasets.get(name, data_dir, progress=progress)
    _print(str(place))


@app.command
def partition(
    *,
    panels: Annotated[
        Literal["one", "pair", "four"],
        Parameter(
            help="Draw the partition asked for, the paper's pair (client-wise and cluster-wise "
            "Dirichlet) or its four settings."
        ),
    ] = "one",
    out: Annotated[Path, Parameter(help="The picture: .png, .svg, .pdf or .html.")] = Path(
        "partition.png"
    ),
    config: Annotated[Path | None, Parameter(help="A TOML file with any of the choices.")] = None,
    preset: PresetFlag = None,
    flags: Flags = Config(),  # noqa: B008  (frozen)
) -> None:
    """Show who would hold what: a summary of the clients and the paper's bar picture.

    One line per partition: samples per client (mean ± standard deviation), the least and the most
    of them, and how many classes a client holds on average.
    """
    chosen = _choices(config, preset, flags)
    _check_figure(out)
    settings = [chosen]
    if panels != "one":
        if holds_clients(chosen):
            raise ConfigError(f"{chosen.dataset} holds its clients: leave out --panels {panels}")
        paper = {"alpha": None, "classes_per": None}
        names = {
            "pair": ["clientwise-dirichlet", "clusterwise-dirichlet"],
            "four": list(PAPER_PARTITIONS),
        }[panels]
        settings = [resolve(flags={**chosen.model_dump(), **paper, "partition": n}) for n in names]
    drawn: list[Panel] = []
    pool = None if holds_clients(chosen) else _load(chosen)
    for each in settings:
        federation = federation_of(each, pool)
        held = partitions.counts(federation.y, federation.train, federation.classes)
        title = chosen.dataset if holds_clients(chosen) else partition_words(each.model_dump())
        drawn.append((title, held, federation.groups))
        sizes, tests = federation.sizes, np.array([len(rows) for rows in federation.test])
        clients = client_words(sizes, federation.groups)
        _print(
            f"{title}: {clients} ({sizes.min()} … {sizes.max()}), "
            f"{tests.mean():.0f} ± {tests.std():.0f} test samples, "
            f"{(held > 0).sum(axis=0).mean():.1f} classes each"
        )
    _draw(bars(drawn), out)


@app.command
def reproduce(
    *what: Annotated[str, Parameter(help="Names of tables (below), or all.")],
    cells: Annotated[
        tuple[str, ...],
        Parameter(help='Only cells with all these words: "cifar-10 wecfl k=10"; may be repeated.'),
    ] = (),
    seeds: Annotated[
        int | None, Parameter(help="Seeds 0 … N-1 of each cell (default: as defined).")
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="Begin no run that may end later: 90m, 2h, 1.5h.")
    ] = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), help="List what would be run and how long it may take.")
    ] = False,
    show: Annotated[
        bool, Parameter(negative=(), help="Run nothing: show what is stored, write the tables.")
    ] = False,
    results: Annotated[Path, Parameter(help="The folder of finished runs.")] = Path("docs/results"),
    definitions: Annotated[
        Path, Parameter(show_default=False, help="A folder of other definitions (TOML).")
    ] = SHIPPED,
    data_dir: DataDirFlag = None,
    workers: Annotated[
        int | None, Parameter(help="Threads or processes (default: one per core).")
    ] = None,
) -> None:
    """Regenerate the paper's tables, beside the paper's own figures.

    The work is a queue of runs in the order of their importance. Each finished run is kept as a
    small file, so that it may be interrupted at any time, goes on where it stopped, and may be
    worked off by several processes. The members of soft votes are shared between rows.
    """
    defined = read_definitions(definitions)
    if not what:
        raise ConfigError(f"say what to reproduce: {', '.join([*defined, 'all'])}")
    for name in what:
        if name not in (*defined, "all"):
            raise ConfigError(unknown("table or figure", name, [*defined, "all"]))
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {seeds}")
    named = [d for name, d in defined.items() if "all" in what or name in what]
    wanted = set(select([cell for d in named for cell in d.cells], cells))
    asked = [(cell, seed) for cell, seed in ordered(named, seeds) if cell in wanted]
    store = Store(results)
    if dry_run:
        _list_queue(asked, store)
        return
    local: dict[str, Any] = {"data_dir": data_dir and str(data_dir), "workers": workers}
    federation = _shared_federation(local)
    seconds = None if budget is None else _seconds(budget)
    failed = 0 if show else _work(asked, store, federation, local, seconds)
    for definition in named:
        if definition.figure:
            _figure(definition, store, federation)
            continue
        shown = [cell for cell in definition.cells if cell in wanted]
        beside = paper.beside_the_paper(definition, store, shown)
        for table in paper.rich_tables(definition, beside):
            _print_wide(table)
        if results.is_dir():
            _print(f"written: {', '.join(map(str, paper.write(definition, store)))}")
    if failed:
        raise ConfigError(f"{failed} runs failed; the reasons are given above")


def _figure(
    definition: Definition, store: Store, federation: Callable[[Config], Federation]
) -> None:
    chart = draw(definition, store, federation)
    if chart is None:
        _print(f"{definition.name}: not run, so there is nothing to draw yet")
        return
    for suffix in FORMATS:
        _draw(chart, store.folder / f"{definition.name}{suffix}")


def _shared_federation(local: Mapping[str, Any]) -> Callable[[Config], Federation]:
    """The clients of a configuration, made once for runs that follow each other."""
    keys = {"dataset", "holdout", "validation", "seed", *PARTITIONING}

    @lru_cache(maxsize=1)
    def made(choices: Config) -> Federation:
        return _federation(choices)

    return lambda config: made(Config(**config.model_dump(include=keys), **local))


def _list_queue(asked: Sequence[tuple[Cell, int]], store: Store) -> None:
    """The queue in order with estimates from the wall times of stored results."""
    todo, stored = queue(asked, store), store.all()
    choosing = sum(chosen(cell, seed, store) is None for cell, seed in asked)
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    table.add_column("run", no_wrap=True)
    table.add_column("estimate", justify="right", no_wrap=True)
    times = [estimate(each, stored) for each in todo]
    for each, time in zip(todo, times, strict=True):
        table.add_row(escape(str(each)), "unknown" if time is None else _duration(time))
    _print_wide(table)
    known = [time for time in times if time is not None]
    _print(
        f"{len(todo)} runs to do for {len(asked)} asked for; estimated {_duration(sum(known))} "
        f"for {len(known)} of them, from stored wall times"
        + (f"; unknown for {len(todo) - len(known)}" if len(known) < len(todo) else "")
        + (f"; {choosing} more once their learning rate is chosen" if choosing else "")
    )


def _work(
    asked: Sequence[tuple[Cell, int]],
    store: Store,
    federation: Callable[[Config], Federation],
    local: Mapping[str, Any],
    budget: float | None,
) -> int:
    """Work the queue off and tell how many runs failed."""
    done = failed = elsewhere = 0
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"), TimeElapsedColumn(),
    )  # fmt: skip
    try:
        with Progress(*columns, console=console) as progress:
            whole = progress.add_task("runs", total=len(queue(asked, store)), note="")
            current = progress.add_task("", total=1, note="", visible=False)

            def watcher(run: Run, todo: Sequence[Run]) -> OnRound:
                stored = store.all()
                times = [estimate(each, stored) for each in todo]
                known = [time for time in times if time is not None]
                more = f" + {len(times) - len(known)} unknown" if len(known) < len(times) else ""
                total = done + failed + elsewhere + len(todo)
                progress.update(whole, total=total, note=f"{_duration(sum(known))} left{more}")
                progress.reset(
                    current,
                    description=str(run),
                    total=run.config.rounds,
                    visible=not run.parts,  # a vote has no rounds of its own
                    note="",
                )

                def watch(record: Record, states: Sequence[State]) -> None:
                    note = f"rounds  {_scores(record)}"
                    progress.update(current, completed=record["round"], note=note)

                return watch

            for each, outcome in work(
                asked, store, federation, watcher=watcher, local=local, budget=budget
            ):
                progress.advance(whole)
                progress.update(current, visible=False)
                if isinstance(outcome, EngineError):
                    failed += 1
                    _print(f"{each}: {outcome}")
                elif outcome is None:
                    elsewhere += 1
                else:
                    done += 1
                    said = outcome.get("error") or _scores(outcome)
                    _print(f"{each}: {said}  {_duration(outcome['seconds'])}")
    except KeyboardInterrupt:
        _say(f"interrupted; {done} finished runs are kept in {store.folder}")
        sys.exit(130)
    left = len(queue(asked, store)) - failed - elsewhere
    _print(
        f"{done} runs done"
        + (f", {elsewhere} done or in work elsewhere" if elsewhere else "")
        + (f", {left} left for which the budget did not suffice" if budget and left > 0 else "")
    )
    return failed


def _seconds(text: str) -> float:
    """A duration such as 2h, 90m or 45s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    if not match:
        raise ConfigError(f"--budget must be a number with s, m or h, as 2h or 90m, got '{text}'")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02} min"


def _scores(record: Mapping[str, Any]) -> str:
    ari = "" if record["ari"] is None else f"  ARI {record['ari']:.2f}"
    return f"accuracy {100 * record['accuracy']:.1f} %{ari}"


def main() -> None:
    """The entry point: every expected failure is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± shows a ?
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        _fail(_flag_problem(error))
    except WecflError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a full disk, a name too long
        _fail(str(error))


def _flag_problem(error: CycloptsError) -> str:
    cause = error.__cause__
    return one_line(cause) if isinstance(cause, ValidationError) else str(error)


def _say(text: str) -> None:
    print(f"wecfl: {' '.join(text.split())}", file=sys.stderr)


def _fail(text: str) -> None:
    _say(text)
    sys.exit(2)


def _print(text: str) -> None:
    """A line as it is: paths may hold what rich takes for markup."""
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _print_wide(table: Table) -> None:
    """Wide enough for all columns also where the output is not a terminal."""
    Console(width=max(console.width, 160) if not console.is_terminal else None).print(table)


def _check_figure(path: Path | None) -> None:
    """Refuse a place where no figure can be written, before the work that ends in it."""
    if path:
        format_of(path)
        _check_place(path, "figure")


def _check_place(path: Path, what: str) -> None:
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise ConfigError(f"can't write the {what} {path}: {above} is no folder")


def _draw(chart: AnyChart, path: Path) -> None:
    _print(f"figure: {save(chart, path)}")


def _folders(out: Path | None, configs: Sequence[Config]) -> list[Path]:
    """A folder for each run: DIR for one, DIR/METHOD for several."""
    several = len(configs) > 1
    if out is None:
        first = configs[0]
        name = Path(first.dataset).absolute().stem + ("" if several else f"-{first.method}")
        base = Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
        number, out = 1, base
        while out.exists():
            number += 1
            out = base.with_name(f"{base.name}-{number}")
    names = [config.method for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"--method names a method twice: {','.join(names)}")
    folders = [out / name for name in names] if several else [out]
    for folder in folders:
        check_free(folder)
    return folders


def _found(folders: Sequence[Path], command: str) -> list[Path]:
    """All runs in these folders, at least one."""
    if not folders:
        raise ConfigError(f"name at least one run folder: wecfl {command} runs/…")
    return [run for folder in folders for run in _runs_in(folder)]


def _track(rounds: Sequence[int], title: str) -> Iterable[int]:
    """A bar while the rounds of a run are placed in the plane."""
    show = Console(stderr=True)
    return track(rounds, f"{escape(title)}: t-SNE", console=show, transient=True)


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else all runs below it."""
    if not folder.is_dir():
        raise ConfigError(f"no run folder {folder}")
    inside = sorted(path.parent for path in folder.rglob("summary.json"))
    if inside and not (folder / "summary.json").exists():
        for begun in sorted(path.parent for path in folder.rglob("metrics.jsonl")):
            if begun not in inside:
                _say(f"left out {begun}: it has no summary.json, so it was not ended in order")
        return inside
    read_summary(folder)
    return [folder]


def _choices(file: Path | None, preset: str | None, flags: Config) -> Config:
    """What file, preset and flags come to; flags that can't apply are refused, not ignored."""
    said = {name: getattr(flags, name) for name in flags.model_fields_set}
    chosen = resolve(file, preset, said)
    idle = [name for name in PARTITIONING if name in said]
    if idle and holds_clients(chosen):
        raise ConfigError(
            f"{chosen.dataset} holds one file per client, so there is nothing to share out: "
            f"leave out --{idle[0].replace('_', '-')}"
        )
    return chosen


def _load(config: Config) -> datasets.Dataset:
    with _downloads() as progress:
        return load_pool(config, progress)


def _federation(config: Config) -> Federation:
    return federation_of(config, None if holds_clients(config) else _load(config))


@contextmanager
def _progress() -> Iterator[_Bars]:
    """A live bar for each run: rounds, accuracy and agreement with the hidden groups so far."""
    columns = (
        TextColumn("{task.description:<8}"), BarColumn(bar_width=20), MofNCompleteColumn(),
        TextColumn("rounds  {task.fields[scores]}"), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield _Bars(progress)


class _Bars:
    """Watches runs, one after the other."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def begin(
        self, config: Mapping[str, Any], env: Mapping[str, Any], federation: Federation
    ) -> None:
        self._task = self._progress.add_task(config["method"], total=config["rounds"], scores="")

    def round(self, record: Record, states: Sequence[State]) -> None:
        self._progress.update(self._task, completed=record["round"], scores=_scores(record))

    def end(self, result: Result) -> None:
        """The bar stays as it is."""


@contextmanager
def _downloads() -> Iterator[FetchProgress]:
    """A bar for each file that has to be fetched; nothing where all is here."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    )  # fmt: skip
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def show(name: str, done: int, total: int | None) -> None:
        progress.start()
        if name not in tasks:
            tasks[name] = progress.add_task(name, total=total)
        progress.update(tasks[name], completed=done, total=total)

    try:
        yield show
    finally:
        if tasks:
            progress.stop()
