"""`wecfl run` and `wecfl resume`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from wecfl.config.resolve import resolve
from wecfl.errors import ConfigError

if TYPE_CHECKING:
    from wecfl.config import Config
    from wecfl.data.federation import Federation
    from wecfl.data.fleet import AnyFleet
    from wecfl.experiment import Experiment
    from wecfl.experiment.fleet import FleetExperiment
    from wecfl.runs.watcher import Watcher

__all__ = ["resume", "run"]

OutFlag = Annotated[
    Path | None, Parameter(help="The run folder to write (default: a new one in runs/).")
]
TrackFlag = Annotated[
    tuple[str, ...],
    Parameter(
        help="Also record the run in tensorboard, mlflow or wandb; may be given more than once.",
        negative_iterable=(),
        show_default=False,
    ),
]


UNTIL_KEYS = ("patience", "tolerance")
"""Choices that have no meaning if a run ends after all its rounds."""


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
            help="Also run three baselines: one model for all clients (fedavg), a model for each "
            "client (local), and one model that each client fine-tunes (fedavg-ft). Then say which "
            "clients are served better.",
            negative="",
        ),
    ] = False,
    flags: ExperimentFlags = ConfigFlags(),  # noqa: B008  (frozen)
    **options: MethodOptionFlag,
) -> None:
    """Train a federation and write a run folder.

    Without arguments it runs WeCFL on scikit-learn's digits, with 50 clients in 10 hidden groups.
    Give several methods, separated by commas, to run them on the same clients:
    --method fedavg,wecfl.

    Parameters
    ----------
    config
        A TOML file with any of the choices below; flags override it.

    """
    chosen = config_from_flags(config, preset, flags)
    check_figure(figure)
    if baselines:
        from wecfl.runs.verdict import BASELINES

        asked = [name.strip() for name in chosen.method.split(",")]
        further = [name for name in BASELINES if name not in asked]
        chosen = chosen.model_copy(update={"method": ",".join([*asked, *further])})
    configs = config_per_method(chosen, flags, options)
    from wecfl.config.keys import is_own
    from wecfl.experiment.fleet import prepared
    from wecfl.folder.run_list import write_run_list
    from wecfl.models.own import own_model

    stopping, bars = terminal.Stopping(), terminal.RunBars()
    folders = _folders(out, configs)
    made = [
        prepared(
            method_config,
            folder=folder,
            watch=[bars, *_trackers(track, folder), stopping],
        )
        for method_config, folder in zip(configs, folders, strict=True)
    ]  # errors in the choices are raised before data are loaded
    model = own_model(chosen.model) if is_own(chosen.model) else chosen.model
    held = terminal.clients(chosen)
    experiments = [experiment_on(held, model=model) for experiment_on in made]
    for experiment in experiments:
        experiment.check()
    _announce(chosen, held, experiments[0])
    if len(folders) > 1:
        runs = {
            path.name: experiment.written or {}
            for path, experiment in zip(folders, experiments, strict=True)
        }
        write_run_list(folders[0].parent, runs)
    _run_all(experiments, folders, bars, stopping)
    if figure:
        from wecfl.report.figures.overview import overview

        terminal.draw(overview(folders), figure)
    terminal.show(f"run folder: {folders[0] if len(folders) == 1 else folders[0].parent}")


def resume(
    folder: Path,
    /,
    *,
    rounds: Annotated[
        int | None,
        Parameter(help="The number of rounds in all (default: what the run was started with)."),
    ] = None,
    engine: Annotated[
        Literal["auto", "native", "torch", "ray"] | None,
        Parameter(help="The engine that trains the clients from now on."),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None,
        Parameter(help="Where the torch engine trains from now on."),
    ] = None,
    ray_address: Annotated[
        str | None, Parameter(help="The address of the Ray cluster to use from now on.")
    ] = None,
    workers: Annotated[
        int | None, Parameter(help="The number of threads, processes or actors from now on.")
    ] = None,
    until: Annotated[
        Literal["rounds", "settled", "score"] | None,
        Parameter(help="The rule by which the run ends from now on."),
    ] = None,
    data_dir: DataDirFlag = None,
    checkpoint_every: Annotated[
        int | None, Parameter(help="Write a checkpoint after every N-th round from now on.")
    ] = None,
    track: TrackFlag = (),
    model: OwnModelFlag = None,
    dataset: Annotated[
        str | None,
        Parameter(help="Your own fleet, FILE.py:NAME. This runs the code of that file."),
    ] = None,
) -> None:
    """Resume a run that was stopped, or add rounds to a run that has finished.

    The resumed run ends with the same numbers, to the bit, as if it had never been stopped. If
    several methods were run, those that were stopped continue, and those that had not begun begin.

    Parameters
    ----------
    folder
        The folder of the run; if several methods were run, the folder that holds theirs.

    """
    flags = {
        "rounds": rounds,
        "until": until,
        "engine": engine,
        "device": device,
        "ray_address": ray_address,
        "workers": workers,
        "data_dir": data_dir and str(data_dir),
        "checkpoint_every": checkpoint_every,
    }
    given = {name: value for name, value in flags.items() if value is not None}
    from wecfl.experiment.fleet import prepared
    from wecfl.folder.readers import config_of, is_begun, is_finished
    from wecfl.folder.run_list import RUN_LIST_FILE, read_run_list
    from wecfl.from_config import DATA_KEYS
    from wecfl.models.own import own_model

    several = (folder / RUN_LIST_FILE).is_file() and not (folder / "config.toml").is_file()
    listed = read_run_list(folder) if several else {folder: None}
    left: dict[Path, Config] = {}
    for path, config in listed.items():
        before = config_of(path) if config is None or is_begun(path) else config
        _check_same_code(path, "model", before.model, model)
        _check_same_code(path, "dataset", before.dataset, dataset)
        chosen = _continued(before, given)
        if not (several and is_begun(path) and is_finished(path, chosen)):
            left[path] = chosen
    if not left:
        raise ConfigError(
            f"all {len(listed)} runs of {folder} have ended: to continue, ask for more rounds "
            f"(--rounds), or for all of them (--until rounds)"
        )
    stopping, bars = terminal.Stopping(), terminal.RunBars()
    federations: dict[str, Federation | AnyFleet] = {}
    experiments = []
    for path, chosen in left.items():
        watch: list[Watcher] = [bars, *_trackers(track, path), stopping]
        resumes = not several or is_begun(path)
        experiment_on = prepared(chosen, folder=path, resume=resumes, watch=watch)
        data = chosen.model_dump_json(include=DATA_KEYS)
        if data not in federations:
            federations[data] = terminal.clients(chosen)
        own = {"model": own_model(model)} if model else {}
        experiments.append(experiment_on(federations[data], **own))
    _run_all(experiments, [*left], bars, stopping)


def _announce(
    chosen: Config, held: Federation | AnyFleet, first: Experiment | FleetExperiment
) -> None:
    """Print on which clients all experiments run; `first` is the first of them."""
    from wecfl.data.federation import Federation
    from wecfl.experiment.fleet import FleetExperiment
    from wecfl.from_config import holds_clients
    from wecfl.report.sentences import client_words, partition_words

    words = "" if holds_clients(chosen) else f", {partition_words(chosen.model_dump())}"
    several = client_words(held.sizes, held.groups) if isinstance(held, Federation) else "a fleet"
    each = " each" if isinstance(held, Federation) else ""
    terminal.show(f"{chosen.dataset}{words}: {several}{each}, seed {chosen.seed}")
    if isinstance(first, FleetExperiment):
        terminal.show(f"{len(first.fleet):,} clients are registered, {first.active:,} are active")
    if reason := first.fitted.reason:
        terminal.show(f"task: {reason}")
    if newcomers := first.kept_out:
        terminal.show(
            f"{len(newcomers)} of them are kept out of the training and assigned afterwards"
        )
    if chosen.joining:
        share = f"{100 * chosen.joining:g} % of them"
        terminal.show(f"{share} join later, in round {chosen.joining_round}")


def _trackers(names: Sequence[str], folder: Path) -> list[Watcher]:
    """The trackers that also record the run, by the names that the flag gives."""
    if not names:
        return []
    from wecfl.report.trackers import tracker

    return [tracker(name, folder) for name in names]


def _continued(before: Config, given: Mapping[str, Any]) -> Config:
    """The configuration with which a run continues: the old one, with what is given now."""
    idle: tuple[str, ...] = ()  # choices that have no meaning beside those that are given
    if given.get("engine", "ray") != "ray":
        idle = ("ray_address",)
    if given.get("until") == "rounds":
        idle = (*idle, *UNTIL_KEYS)
    choices = before.model_dump(exclude_unset=True, exclude={*idle})
    return resolve(flags={**choices, **given})


def _check_same_code(folder: Path, key: str, was: str, given: str | None) -> None:
    """Raise an error if code of the user's own is not given again, or is not that of the run."""
    from wecfl.config.keys import is_own

    if is_own(was) and given is None:
        raise ConfigError(
            f"the {key} of {folder} is code of your own, which is run only if you give it again: "
            f"add --{key} {was}"
        )
    if given is not None and given != was:
        raise ConfigError(
            f"{folder} can't be resumed with --{key} {given}: it began with {was}; give that one"
        )


def _run_all(
    experiments: Sequence[Experiment | FleetExperiment],
    folders: Sequence[Path],
    bars: terminal.RunBars,
    stopping: terminal.Stopping,
) -> None:
    """Run the experiments one after the other, and print their results as a table."""
    from wecfl.folder.readers import is_begun, refused_of, resume_command
    from wecfl.folder.run_list import RUN_LIST_FILE
    from wecfl.report.sentences import remarks
    from wecfl.report.tables.results import results, rich_results
    from wecfl.runs.verdict import BASELINES, verdict

    try:
        with stopping, bars:
            finished = [experiment.run(progress=bars.work) for experiment in experiments]
    except terminal.Stopped as stopped:
        listed = (folders[0].parent / RUN_LIST_FILE).is_file()
        place = folders[0].parent if listed else folders[0]
        resumable = listed or is_begun(place)
        terminal.say(
            f"interrupted; to continue: {resume_command(place)}" if resumable else "interrupted"
        )
        sys.exit(stopped.code)
    summaries = [
        {**result.summary, "config": experiment.written}
        for result, experiment in zip(finished, experiments, strict=True)
    ]
    terminal.table(rich_results(results(summaries)))
    for result in finished:
        for line in remarks(result.summary, refused_of(result.clients)):
            terminal.show(f"{result.method.name}: {line}")
    if len(finished) > 1 and any(result.method.name in BASELINES for result in finished):
        for found in verdict(finished):
            terminal.show(str(found))


def _folders(out: Path | None, configs: Sequence[Config]) -> list[Path]:
    """A folder for each run: OUT for one run, OUT/METHOD for several."""
    from wecfl.folder.writer import check_new_folder

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
