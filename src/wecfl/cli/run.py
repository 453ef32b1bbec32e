"""`wecfl run` and `wecfl resume`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from wecfl.cli import terminal
from wecfl.cli.flags import (
    ConfigFlags,
    DataDirFlag,
    ExperimentFlags,
    MethodOptionFlag,
    OwnModelFlag,
    PresetFlag,
    check_figure,
    config_from_flags,
    config_per_method,
)
from wecfl.config import Config
from wecfl.errors import ConfigError
from wecfl.experiment import Experiment
from wecfl.folder.readers import config_of, refused_of, resume_command
from wecfl.folder.writer import check_new_folder
from wecfl.from_config import holds_clients, options_of
from wecfl.models.own import is_own, own_model
from wecfl.report.figures.overview import overview
from wecfl.report.sentences import client_words, partition_words, remarks
from wecfl.report.tables.results import results, rich_results
from wecfl.report.trackers import TRACKERS, tracker
from wecfl.resolve import resolve
from wecfl.runs.verdict import BASELINES, verdict
from wecfl.runs.watcher import Watcher

__all__ = ["resume", "run"]

OutFlag = Annotated[
    Path | None, Parameter(help="The run folder to write (default: a new one in runs/).")
]
TrackFlag = Annotated[
    tuple[str, ...],
    Parameter(
        help=f"Also record the run in {' or '.join(TRACKERS)}; may be given more than once.",
        negative_iterable=(),
        show_default=False,
    ),
]


def run(
    config: Path | None = None,
    /,
    *,
    preset: PresetFlag = None,
    out: OutFlag = None,
    figure: Annotated[
        Path | None, Parameter(help="Also draw the result, as .png, .svg, .pdf or .html.")
    ] = None,
    track: TrackFlag = (),
    baselines: Annotated[
        bool,
        Parameter(
            help="Also run one model for all (fedavg), a model for each client (local) and one "
            "that each fine-tunes (fedavg-ft), and say which clients are served better.",
            negative="",
        ),
    ] = False,
    flags: ExperimentFlags = ConfigFlags(),  # noqa: B008  (frozen)
    **options: MethodOptionFlag,
) -> None:
    """Train a federation and write a run folder.

    Without arguments it runs WeCFL on scikit-learn's digits, with 50 clients in 10 hidden groups.
    Several methods, separated by commas, run on the same clients: --method fedavg,wecfl.

    Parameters
    ----------
    config
        A TOML file with any of the choices below; flags override it.

    """
    chosen = config_from_flags(config, preset, flags)
    check_figure(figure)
    if baselines:
        asked = [name.strip() for name in chosen.method.split(",")]
        further = [name for name in BASELINES if name not in asked]
        chosen = chosen.model_copy(update={"method": ",".join([*asked, *further])})
    configs = config_per_method(chosen, flags, options)
    for each in configs:
        options_of(each)  # so that errors are reported before data are loaded
    folders = _folders(out, configs)
    tracked = [[tracker(name, folder) for name in track] for folder in folders]
    federation = terminal.federation(chosen)
    stopping, bars = terminal.Stopping(), terminal.Bars()
    model = own_model(chosen.model) if is_own(chosen.model) else chosen.model
    experiments = [
        replace(
            Experiment.of(each, federation, folder=folder, watch=[bars, *trackers, stopping]),
            model=model,
        )
        for each, folder, trackers in zip(configs, folders, tracked, strict=True)
    ]
    for experiment in experiments:
        experiment.check()
    words = "" if holds_clients(chosen) else f", {partition_words(chosen.model_dump())}"
    clients = client_words(federation.sizes, federation.groups)
    terminal.show(f"{chosen.dataset}{words}: {clients} each, seed {chosen.seed}")
    if late := experiments[0].kept_out:
        terminal.show(f"{len(late)} of them are kept out of the training and assigned afterwards")
    _run_all(experiments, folders, bars, stopping)
    if figure:
        terminal.draw(overview(folders), figure)
    terminal.show(f"run folder: {folders[0] if len(folders) == 1 else folders[0].parent}")


def resume(
    folder: Path,
    /,
    *,
    rounds: Annotated[
        int | None, Parameter(help="The last round (default: the one the run was started with).")
    ] = None,
    engine: Annotated[
        Literal["auto", "native", "torch", "ray"] | None,
        Parameter(help="The engine that trains the clients from now on."),
    ] = None,
    ray_address: Annotated[
        str | None, Parameter(help="The address of the Ray cluster to use from now on.")
    ] = None,
    workers: Annotated[
        int | None, Parameter(help="The number of threads, processes or actors from now on.")
    ] = None,
    data_dir: DataDirFlag = None,
    checkpoint_every: Annotated[
        int | None, Parameter(help="Write a checkpoint every so many rounds from now on.")
    ] = None,
    track: TrackFlag = (),
    model: OwnModelFlag = None,
) -> None:
    """Resume a run that was stopped, or add rounds to a run that has finished.

    The resumed run ends with the same numbers, to the bit, as if it had never been stopped.

    Parameters
    ----------
    folder
        The folder of the run.

    """
    flags = {
        "rounds": rounds,
        "engine": engine,
        "ray_address": ray_address,
        "workers": workers,
        "data_dir": data_dir and str(data_dir),
        "checkpoint_every": checkpoint_every,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    before = config_of(folder).model_dump(exclude_unset=True)
    was = before.get("model", "auto")
    if is_own(was) and model is None:
        raise ConfigError(
            f"the model of {folder} is in a file of code, which is only run if you say so: give it "
            f"again, --model {was}"
        )
    if model is not None and model != was:
        raise ConfigError(f"{folder} can't be resumed with --model {model}: it began with {was}")
    if engine not in (None, "ray"):
        before.pop("ray_address", None)
    chosen = resolve(flags={**before, **given})
    stopping, bars = terminal.Stopping(), terminal.Bars()
    watch: list[Watcher] = [bars, *(tracker(name, folder) for name in track), stopping]
    federation = terminal.federation(chosen)
    experiment = Experiment.of(chosen, federation, folder=folder, resume=True, watch=watch)
    if model is not None:
        experiment = replace(experiment, model=own_model(model))
    _run_all([experiment], [folder], bars, stopping)


def _run_all(
    experiments: Sequence[Experiment],
    folders: Sequence[Path],
    bars: terminal.Bars,
    stopping: terminal.Stopping,
) -> None:
    """Run the experiments one after the other, and print their results as a table."""
    try:
        with stopping, bars:
            finished = [experiment.run(progress=bars.work) for experiment in experiments]
    except terminal.Stopped as stopped:
        begun = [folder for folder in folders if (folder / "config.toml").exists()]
        terminal.say(
            f"interrupted; go on with: {resume_command(begun[-1])}" if begun else "interrupted"
        )
        if left := [str(folder) for folder in folders if folder not in begun]:
            terminal.say(f"not begun: {', '.join(left)}")
        sys.exit(stopped.code)
    summaries = [
        {**result.summary, "config": experiment.written}
        for result, experiment in zip(finished, experiments, strict=True)
    ]
    terminal.console.print(rich_results(results(summaries)))
    for result in finished:
        for line in remarks(result.summary, refused_of(result.clients)):
            terminal.show(f"{result.method.name}: {line}")
    if len(finished) > 1 and any(result.method.name in BASELINES for result in finished):
        for found in verdict(finished):
            terminal.show(str(found))


def _folders(out: Path | None, configs: Sequence[Config]) -> list[Path]:
    """A folder for each run: OUT for one run, OUT/METHOD for several."""
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
        raise ConfigError(f"--method names a method more than once: {','.join(names)}")
    folders = [out / name for name in names] if several else [out]
    for folder in folders:
        check_new_folder(folder)
    return folders
