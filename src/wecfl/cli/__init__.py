"""The command line. Bad input ends in one line on standard error and exit code 2."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from datetime import datetime
from io import TextIOWrapper
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from cyclopts import App, CycloptsError, Parameter
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from wecfl import __version__
from wecfl.cli import terminal
from wecfl.cli.deploy import deploy
from wecfl.cli.reproduce import reproduce
from wecfl.config import PAPER_PARTITIONS, PARTITIONING, PRESETS, Config, one_line, resolve
from wecfl.data import datasets
from wecfl.data import partition as partitions
from wecfl.data.arrays import read_npz
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError, WecflError
from wecfl.methods import METHODS, components, named
from wecfl.report.charts import format_of
from wecfl.report.figures import overview
from wecfl.report.newcomers import rich_newcomers
from wecfl.report.page import page, write
from wecfl.report.partition_figure import Panel, bars
from wecfl.report.tables import results, rich_table
from wecfl.report.theory import check_run, rich_check, rich_rounds
from wecfl.report.words import client_words, partition_words, remarks
from wecfl.runs.configured import (
    check,
    config_of,
    federation_of,
    holds_clients,
    method_of,
    run_config,
)
from wecfl.runs.export import Format, reception_of
from wecfl.runs.export import export as write_model
from wecfl.runs.folder import check_free, go_on, read_refused, read_summary
from wecfl.runs.newcomers import By, parted, table
from wecfl.runs.observe import Watcher
from wecfl.track import TRACKERS, tracker

__all__ = ["app", "main"]

app = App(
    name="wecfl",
    help="Clustered federated learning: which clients learn alike, and one good model per group.",
    version=__version__,
    suppress_keyboard_interrupt=False,  # main() says it
)
"""The command `wecfl` with its subcommands."""
data = App(name="data", help="List and fetch data sets.")
app.command(data)
app.command(reproduce)
app.command(deploy)

Flags = Annotated[Config, Parameter(name="*", negative_iterable=(), consume_multiple=True)]
OutFlag = Annotated[
    Path | None, Parameter(help="The folder to write (default: a new one in runs/).")
]
PresetFlag = Annotated[
    str | None, Parameter(help=f"Start from named choices: {', '.join(PRESETS)}.")
]
TrackFlag = Annotated[
    tuple[str, ...],
    Parameter(
        help=f"Also show the run in {' or '.join(TRACKERS)}; may be given twice.",
        negative_iterable=(),
        show_default=False,
    ),
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
    track: TrackFlag = (),
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
    federation = terminal.federation(chosen)
    for each in configs:
        check(each, federation)
    words = "" if holds_clients(chosen) else f", {partition_words(chosen.model_dump())}"
    clients = client_words(federation.sizes, federation.groups)
    terminal.show(f"{chosen.dataset}{words}: {clients} each, seed {chosen.seed}")
    _, late = parted(federation, chosen.newcomers, chosen.unseen, chosen.seed)
    if late:
        terminal.show(f"{len(late)} of them are kept out of the training and assigned at its end")
    _run_all(configs, folders, tracked, federation)
    if figure:
        terminal.draw(overview(folders), figure)
    terminal.show(f"run folder: {folders[0] if len(folders) == 1 else folders[0].parent}")


@app.command
def resume(
    folder: Path,
    /,
    *,
    rounds: Annotated[
        int | None, Parameter(help="Go on to this round (default: the one that was asked for).")
    ] = None,
    engine: Annotated[
        Literal["auto", "native", "torch", "ray"] | None,
        Parameter(help="What trains the clients from here on."),
    ] = None,
    ray_address: Annotated[
        str | None, Parameter(help="The Ray cluster to use from here on.")
    ] = None,
    workers: Annotated[
        int | None, Parameter(help="Threads, processes or actors from here on.")
    ] = None,
    data_dir: DataDirFlag = None,
    checkpoint_every: Annotated[
        int | None, Parameter(help="Rounds between two checkpoints from here on.")
    ] = None,
    track: TrackFlag = (),
) -> None:
    """Go on with a run that was stopped, or that is to have more rounds.

    It ends with the same numbers, to the bit, as if it had never been stopped.

    Parameters
    ----------
    folder
        A run folder.

    """
    said = {
        "rounds": rounds,
        "engine": engine,
        "ray_address": ray_address,
        "workers": workers,
        "data_dir": data_dir and str(data_dir),
        "checkpoint_every": checkpoint_every,
    }
    told = {name: value for name, value in said.items() if value is not None}
    before = config_of(folder).model_dump(exclude_unset=True)
    if engine not in (None, "ray"):
        before.pop("ray_address", None)
    chosen = resolve(flags={**before, **told})
    tracked = [tracker(name, folder) for name in track]
    _run_all([chosen], [folder], [tracked], terminal.federation(chosen), resume=True)


def _run_all(
    configs: Sequence[Config],
    folders: Sequence[Path],
    tracked: Sequence[Sequence[Watcher]],
    federation: Federation,
    *,
    resume: bool = False,
) -> None:
    """One run after the other on the same clients, and their results as a table."""
    stopping = terminal.Stopping()
    try:
        with stopping, terminal.rounds() as bars:
            for config, folder, trackers in zip(configs, folders, tracked, strict=True):
                watch = [bars, *trackers, stopping]
                run_config(config, federation, folder, watch, resume=resume, progress=bars.work)
    except terminal.Stopped as stopped:
        begun = [each for each in folders if (each / "config.toml").exists()]
        terminal.say(f"interrupted; go on with: {go_on(begun[-1])}" if begun else "interrupted")
        if left := [str(each) for each in folders if each not in begun]:
            terminal.say(f"not begun: {', '.join(left)}")
        sys.exit(stopped.code)
    terminal.console.print(rich_table(results(folders)))
    for config, folder in zip(configs, folders, strict=True):
        for line in remarks(read_summary(folder), read_refused(folder)):
            terminal.show(f"{config.method}: {line}")


@app.command
def assign(
    folder: Path,
    /,
    *clients: Annotated[Path, Parameter(help="A .npz with x and y of each newcomer.")],
    by: Annotated[
        By, Parameter(help="Compare its model after one local update, or the clusters' losses.")
    ] = "update",
    json: Annotated[bool, Parameter(help="Print everything as JSON.", negative="")] = False,
    workers: Annotated[int | None, Parameter(help="Threads or processes.")] = None,
) -> None:
    """Tell which cluster of a finished run newcomers belong to, and how its model would serve them.

    A client that is unlike all clusters is called novel. Its cluster's model: wecfl export.

    Parameters
    ----------
    folder
        A run folder.

    """
    if not clients:
        raise ConfigError(f"name a .npz for each newcomer: wecfl assign {folder} client.npz")
    reception, config = reception_of(folder, workers)
    found = []
    for file in clients:
        held = read_npz(file)
        test = (held["x_test"], held["y_test"]) if "x_test" in held else config.holdout
        found.append(reception.assign(held["x"], held["y"], test=test, by=by, name=str(file)))
    frame = table(found).drop(columns="group")
    if json:
        print(frame.to_json(orient="records", indent=2, force_ascii=False))
    else:
        terminal.wide(rich_newcomers(frame, by))


@app.command
def export(
    folder: Path,
    /,
    *,
    cluster: Annotated[int, Parameter(help="Whose model.")],
    format: Annotated[Format, Parameter(help="What to write.")] = "safetensors",
    out: Annotated[
        Path | None, Parameter(help="The file (default: cluster-K.FORMAT in the run folder).")
    ] = None,
    replace: Annotated[bool, Parameter(help="Write over an existing file.", negative="")] = False,
) -> None:
    """Write the model of a cluster to a file of its own, for whoever serves it.

    Safetensors under the module's own names, for load_state_dict; or ONNX, from samples to logits.
    BatchNorm uses its running statistics.

    Parameters
    ----------
    folder
        A run folder.

    """
    path = out or folder / f"cluster-{cluster}.{format}"
    _check_place(path, "model")
    terminal.show(f"model: {write_model(folder, cluster, format, path, replace=replace)}")


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
    terminal.console.print(rich_table(results(found)))
    if figure:
        terminal.draw(overview(found), figure)


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
        terminal.wide(rich_check(found))
        if rounds:
            terminal.wide(rich_rounds(found))
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
    written = write(page(found, terminal.track_rounds), path)
    terminal.show(f"report: {written} ({written.stat().st_size / 1e6:.1f} MB)")
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
    terminal.wide(table)


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
    terminal.console.print(table)


@data.command(name="get")
def data_get(name: str, /, *, data_dir: DataDirFlag = None) -> None:
    """Fetch a data set if it is not here yet, and print where it is.

    Parameters
    ----------
    name
        A name from `wecfl data list`.

    """
    with terminal.downloads() as progress:
        place = datasets.get(name, data_dir, progress=progress)
    terminal.show(str(place))


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
    pool = None if holds_clients(chosen) else terminal.load(chosen)
    for each in settings:
        federation = federation_of(each, pool)
        held = partitions.counts(federation.y, federation.train, federation.classes)
        title = chosen.dataset if holds_clients(chosen) else partition_words(each.model_dump())
        drawn.append((title, held, federation.groups))
        sizes, tests = federation.sizes, np.array([len(rows) for rows in federation.test])
        clients = client_words(sizes, federation.groups)
        terminal.show(
            f"{title}: {clients} ({sizes.min()} … {sizes.max()}), "
            f"{tests.mean():.0f} ± {tests.std():.0f} test samples, "
            f"{(held > 0).sum(axis=0).mean():.1f} classes each"
        )
    terminal.draw(bars(drawn), out)


def main() -> None:
    """The entry point: every expected failure is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± shows a ?
    try:
        app(sys.argv[1:], exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        terminal.fail(_flag_problem(error))
    except WecflError as error:
        terminal.fail(str(error))
    except KeyboardInterrupt:
        terminal.say("interrupted")
        sys.exit(130)
    except BrokenPipeError:  # the reader, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:  # a full disk, a name too long
        terminal.fail(str(error))


def _flag_problem(error: CycloptsError) -> str:
    cause = error.__cause__
    return one_line(cause) if isinstance(cause, ValidationError) else str(error)


def _check_figure(path: Path | None) -> None:
    """Refuse a place where no figure can be written, before the work that ends in it."""
    if path:
        format_of(path)
        _check_place(path, "figure")


def _check_place(path: Path, what: str) -> None:
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise ConfigError(f"can't write the {what} {path}: {above} is no folder")


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


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run, else all runs below it."""
    if not folder.is_dir():
        raise ConfigError(f"no run folder {folder}")
    inside = sorted(path.parent for path in folder.rglob("summary.json"))
    if inside and not (folder / "summary.json").exists():
        for begun in sorted(path.parent for path in folder.rglob("metrics.jsonl")):
            if begun not in inside:
                why = "it has no summary.json, so it was not ended in order"
                terminal.say(f"left out {begun}: {why}")
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
