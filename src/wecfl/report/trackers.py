"""Trackers: watchers that show a run in another tool, with the same numbers as its folder.

`wecfl run --track tensorboard --track mlflow`, or from Python, with the run's own folder::

    from wecfl.report.trackers import TensorBoard
    wecfl.run(..., folder="runs/mine", watch=[TensorBoard("runs/mine")])

The tools are TensorBoard, MLflow and Weights & Biases. Each is an extra of its own:
`pip install 'wecfl[tensorboard]'`, `pip install 'wecfl[mlflow]'`, `pip install 'wecfl[wandb]'`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from wecfl.core.clients import Clients
from wecfl.core.state import State
from wecfl.errors import ConfigError, TrackError, unknown
from wecfl.folder.writer import toml
from wecfl.report.figures.files import save
from wecfl.report.figures.overview import overview
from wecfl.runs.json_values import leaves
from wecfl.runs.record import Record
from wecfl.runs.result import Result
from wecfl.runs.watcher import Watcher

__all__ = ["TRACKERS", "MLflow", "TensorBoard", "WandB", "numbers", "tracker"]


class TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs` shows all runs side by side.

    They hold the numbers of every round under the names of `metrics.jsonl` (`accuracy`, `F/E`,
    `sizes/3`), the values of the clients as histograms, and the configuration as text and as
    hyper-parameters. At the end they also get the overview figure, and the parameters of the
    clusters' models as histograms (the models themselves are in the run folder).
    """

    def __init__(self, folder: str | Path) -> None:
        self._tool = _imported("torch.utils.tensorboard", "tensorboard")
        self._pictures = _imported("PIL.Image", "tensorboard")
        self._folder = Path(folder)

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Write the configuration and the environment."""
        _check_folder(self._folder)
        self._config = config
        self._writer = self._tool.SummaryWriter(self._folder / "tensorboard")
        self._writer.add_text("config", f"```toml\n{toml(config)}```")
        self._writer.add_text("env", f"```json\n{json.dumps(env, indent=2)}\n```")

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Write the numbers of a round."""
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])
        for name, values in record["clients"].items():
            known = [value for value in values or () if value is not None]
            if known:
                self._writer.add_histogram(f"clients/{name}", np.array(known), record["round"])
        self._writer.flush()

    def end(self, result: Result) -> None:
        """Write models, figure and summary."""
        done = len(result.records)
        for name, tensor in result.tensors.items():
            self._writer.add_histogram(f"models/{name}", tensor, done)
        with _figure(result) as file:
            if file:
                picture = np.asarray(self._pictures.open(file).convert("RGB"))
                self._writer.add_image("overview", picture, done, dataformats="HWC")
        scores = {f"summary/{name}": value for name, value in numbers(result.summary).items()}
        self._writer.add_hparams(_flat(self._config), scores, run_name=".")
        self._writer.close()


class MLflow:
    """A run in the store that MLflow's own settings name (`MLFLOW_TRACKING_URI`, …).

    Its parameters are the configuration. Its metrics are the numbers of every round, under the
    names of `metrics.jsonl` (`accuracy`, `F/E`, `sizes/3`). Its artifacts are the overview figure
    and the files of the run folder, with the clusters' models but without the state, which is
    large.
    """

    def __init__(self, folder: str | Path) -> None:
        os.environ.setdefault(
            "MLFLOW_DISABLE_TELEMETRY", "true"
        )  # no statistics are sent to others
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        self._tool = _imported("mlflow", "mlflow")
        self._folder = Path(folder)

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Start an MLflow run, inside the active one if there is one."""
        _check_folder(self._folder)
        with self._writing():
            self._tool.start_run(run_name=str(self._folder), nested=True)
            self._tool.log_params(_flat(config))
            self._tool.set_tags({name: env[name] for name in ("engine", "command")})

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Log the numbers of a round."""
        with self._writing():
            self._tool.log_metrics(numbers(record), step=record["round"])

    def end(self, result: Result) -> None:
        """Log figure, models and summary, and end the MLflow run with the status of this run."""
        scores = {f"summary/{name}": value for name, value in numbers(result.summary).items()}
        ends = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
        with self._writing(), _figure(result) as figure:
            for file in (*_files(self._folder), *([figure] if figure else [])):
                self._tool.log_artifact(str(file))
            self._tool.log_metrics(scores)
            self._tool.end_run(ends[result.status])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except self._tool.MlflowException as error:
            where = self._tool.get_tracking_uri()
            raise TrackError(f"can't write to MLflow at {where}: {error}") from None


class WandB:
    """A run of Weights & Biases in the run folder, which `wandb sync` sends to a server.

    It is offline unless `WANDB_MODE` says otherwise, and its project is `wecfl` unless
    `WANDB_PROJECT` does. It holds the configuration, the numbers of every round under the names of
    `metrics.jsonl` (`accuracy`, `F/E`, `sizes/3`), and at the end the overview figure and the files
    of the run folder, with the clusters' models but without the state, which is large.
    """

    def __init__(self, folder: str | Path) -> None:
        self._tool = _imported("wandb", "wandb")
        self._folder = Path(folder)

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Start a run of the tool, without any information about this machine."""
        _check_folder(self._folder)
        quiet = self._tool.Settings(
            silent=True, console="off", save_code=False, disable_git=True, disable_code=True,
            x_disable_meta=True, x_disable_stats=True, x_disable_machine_info=True,
            x_save_requirements=False,
        )  # fmt: skip
        with self._writing():
            self._run = self._tool.init(
                mode=os.environ.get("WANDB_MODE", "offline"),
                project=os.environ.get("WANDB_PROJECT", "wecfl"),
                dir=self._folder,
                name=str(self._folder),
                config={**_flat(config), "engine_used": env["engine"]},
                settings=quiet,
            )

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Log the numbers of a round."""
        with self._writing():
            self._run.log(numbers(record), step=record["round"])

    def end(self, result: Result) -> None:
        """Log figure, files and summary, and end the run; one that failed counts as crashed."""
        with self._writing(), _figure(result) as figure:
            if figure:
                self._run.log({"overview": self._tool.Image(str(figure))})
            for name, value in numbers(result.summary).items():
                self._run.summary[f"summary/{name}"] = value
            for file in _files(self._folder):  # copies: it would complain about its own links
                copied = copy(file, self._run.dir)
                self._run.save(copied, base_path=self._run.dir, policy="end")
            self._run.finish(exit_code=0 if result.status == "finished" else 1)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except self._tool.Error as error:
            raise TrackError(f"can't write to Weights & Biases: {error}") from None


TRACKERS: dict[str, Callable[[Path], Watcher]] = {
    "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB,
}  # fmt: skip
"""The trackers by name; each is made for the folder that its run writes."""


def tracker(name: str, folder: Path) -> Watcher:
    """The tracker of that name for the run that will write `folder`.

    >>> tracker("tensorbord", Path("runs/mine"))
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown tracker 'tensorbord'; did you mean 'tensorboard'?
    """
    if name not in TRACKERS:
        raise ConfigError(unknown("tracker", name, TRACKERS))
    return TRACKERS[name](folder)


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record by name, without unknown values and values of single clients.

    >>> numbers({"round": 1, "ari": None, "F": {"E": 0.5}, "sizes": [3, 2], "clients": {"f": [1]}})
    {'round': 1.0, 'F/E': 0.5, 'sizes/0': 3.0, 'sizes/1': 2.0}
    """
    shown = {name: value for name, value in record.items() if name != "clients"}
    return {
        name: float(value)
        for name, value in leaves(shown, between="/")
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _flat(config: Mapping[str, Any]) -> dict[str, str | float | bool]:
    """The configuration as names and values that all tools accept."""
    return {
        name: value if isinstance(value, int | float) else str(value)
        for name, value in leaves(config, between="/")
    }


@contextmanager
def _figure(result: Result) -> Iterator[Path | None]:
    """The overview figure of the run; None before its first complete round."""
    with TemporaryDirectory() as place:
        chosen = result.folder if result.records else None
        yield save(overview([chosen]), Path(place) / "overview.png") if chosen else None


def _files(folder: Path) -> list[Path]:
    """The files of a run folder, without its state."""
    inside = sorted(file for file in folder.iterdir() if file.is_file())
    return [file for file in inside if not file.name.startswith("state.")]


def _check_folder(folder: Path) -> None:
    if not (folder / "config.toml").exists():
        raise ConfigError(
            f"the tracker was made for {folder}, which holds no run; give the run the same folder"
        )


def _imported(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise TrackError(
            f"{extra} needs an extra: pip install 'wecfl[{extra}]' ({error})"
        ) from None
