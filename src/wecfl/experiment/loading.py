"""Loads the result of a run from its folder, without the clients' data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from wecfl.channel.privacy import Privacy
from wecfl.config import Config
from wecfl.config.resolve import resolve
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.state import State
from wecfl.core.task import Task
from wecfl.data.pipeline import Pipeline
from wecfl.engine import local
from wecfl.errors import ConfigError, ModelError, RunFolderError
from wecfl.experiment.assembly import Experiment
from wecfl.folder import checkpoint
from wecfl.folder.cluster_models import ClusterModels
from wecfl.folder.newcomer_reference import REFERENCE_FILE, read_reference, write_reference
from wecfl.folder.readers import (
    config_of,
    read_assignments,
    read_config,
    read_environment,
    read_metrics,
    read_newcomers,
    read_pipeline,
    read_summary,
    resume_command,
)
from wecfl.folder.stored_clients import StoredClients
from wecfl.from_config import federation_of, options_of
from wecfl.methods import rebuilt
from wecfl.models import MODELS, Model, Module, layout_of, make
from wecfl.runs.blueprint import Blueprint
from wecfl.runs.fleet_result import FleetResult, no_reference
from wecfl.runs.member_reference import Reference, compared_columns
from wecfl.runs.newcomers import NewcomerSetup
from wecfl.runs.result import Result
from wecfl.tasks.choice import for_outputs
from wecfl.tasks.custom import Custom

__all__ = ["load"]


def load(
    folder: str | Path,
    *,
    model: Model | None = None,
    method: Method | None = None,
    task: Task | None = None,
    workers: int | None = None,
) -> Result:
    """The result of a run that has ended or was stopped, from its folder alone.

    It holds what the result in memory held: labels, models, history and scores. It predicts, and
    assigns newcomers. The data of the members are read only if newcomers are to be assigned, and
    the folder does not hold yet what they are compared with.

    Args:
        folder: The run folder.
        model: The module, or the function that makes it, if the run had a model of your own.
        method: The method, if the run had one with components of your own.
        task: The task, if the run had a loss or a metric of your own.
        workers: The number of threads or processes that train newcomers.

    >>> import tempfile
    >>> from wecfl import Config, run_config
    >>> config = Config(clients=6, groups=2, clusters=2, rounds=2, objectives=False)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     result, loaded = run_config(config, out=place), load(place)
    >>> loaded.labels.tolist() == result.labels.tolist(), loaded.summary == result.summary
    (True, True)

    """
    path = Path(folder)
    about = read_config(path)
    choices = _Choices.of(path, about, method)
    ended = (path / "summary.json").exists()
    summary = read_summary(path) if ended else {}
    saved = checkpoint.latest(path)
    if saved is None and not ended:
        raise RunFolderError(
            f"{path} holds no finished round, so there is nothing to load: continue the run with "
            f"{resume_command(path)}"
        )
    records = read_metrics(path, saved.round if saved else None)
    blueprint = _blueprint(path, ended)
    pipeline = read_pipeline(path)
    module = _module(path, blueprint, model, choices.seed, pipeline)
    states = saved.states if saved else _without_checkpoint(path, choices.method, module)
    if states[0].centers.shape[1] != (width := layout_of(module).width):
        raise ModelError(
            f"the models of {path} have {states[0].centers.shape[1]} parameters, but this model "
            f"has {width}: give the model of the run"
        )
    data = saved.manifest.data if saved else None
    learned = _task(path, blueprint, task)
    engine = summary.get("engine", saved.manifest.engine if saved else "torch")
    setup = NewcomerSetup(
        choices.method, blueprint, module, choices.plan, choices.seed,
        local(engine),
        {"workers": workers, "batchnorm": choices.batchnorm, "batch": choices.plan.batch},
        learned, privacy=choices.privacy, pipeline=pipeline,
    )  # fmt: skip
    return (FleetResult if "registered" in about else Result)(
        choices.method,
        StoredClients.read(path, blueprint.shape, blueprint.classes, data),
        records, states, module, engine,
        summary.get("seconds", saved.manifest.seconds if saved else 0.0), choices.seed, setup,
        no_reference if "registered" in about else _Referring(path, choices.config, workers),
        summary.get("status", "interrupted"), path,
        choices.privacy, _reference(path, choices.method, module, states, blueprint),
        read_newcomers(path) if ended else None, choices.unseen, summary.get("stopped"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class _Choices:
    """The choices of a run by its `config.toml`, from a configuration or from Python values."""

    method: Method
    plan: LocalPlan
    seed: int
    batchnorm: str
    privacy: Privacy | None
    unseen: int | None
    config: Config | None
    """The configuration that can repeat the run; None if there is none."""

    @classmethod
    def of(cls, path: Path, about: Mapping[str, Any], given: Method | None) -> _Choices:
        if "components" in about:
            return cls._of_values(path, about, given)
        simulated = "network" not in about
        # The config.toml of a network can't repeat the run, but its choices have the same names.
        known = {key: value for key, value in about.items() if key in Config.model_fields}
        config = config_of(path) if simulated else resolve(flags=known)
        values = options_of(config)
        method = given or values["method"]
        return cls(
            method, values["plan"].complete(method.plan), config.seed, config.batchnorm,
            values["privacy"], config.unseen, config if simulated else None,
        )  # fmt: skip

    @classmethod
    def _of_values(cls, path: Path, about: Mapping[str, Any], given: Method | None) -> _Choices:
        further = about.get("further", {})
        if "privacy" in about.get("conditions", {}) and "privacy" not in further:
            raise RunFolderError(
                f"{path} was written by an earlier version, without the numbers of its privacy, so "
                "it can't be loaded: run it again"
            )
        if given is None and "structure" not in about:
            raise ConfigError(
                f"{path} was written by an earlier version, without its whole method: give the "
                "method, load(…, method=…)"
            )
        method = given or _rebuilt(path, about)
        known = {field.name for field in fields(LocalPlan)}
        plan = {name: value for name, value in about["plan"].items() if name in known}
        if "lr" not in plan:
            raise RunFolderError(
                f"can't read {path / 'config.toml'}: its plan has no learning rate, lr; put back "
                "the file that the run wrote, or run it again"
            )
        if plan["lr"] == "theory":
            plan["lr"] = 0.0  # newcomers train with the learning rate in the reference
        return cls(
            method, LocalPlan(**plan), about.get("seed", 0), further.get("batchnorm", "running"),
            Privacy(**further["privacy"]) if "privacy" in further else None,
            further.get("unseen"), None,
        )  # fmt: skip


def _rebuilt(path: Path, about: Mapping[str, Any]) -> Method:
    try:
        return rebuilt(about["method"], about["clusters"], about["structure"])
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, SyntaxError, AttributeError) as error:
        raise RunFolderError(
            f"can't read {path / 'config.toml'}: its structure does not describe a method "
            f"({type(error).__name__}: {error})"
        ) from None


def _blueprint(path: Path, ended: bool) -> Blueprint:
    """How the model is built, by the file of models, or before that exists, by `env.json`."""
    if ended:
        found = ClusterModels.read(path).blueprint
    else:
        written = read_environment(path).get("model")
        found = Blueprint.read(written) if written else None
    if found is None:
        raise RunFolderError(
            f"{path} was written by an earlier version, without the shape of its samples: let the "
            f"run end first, with {resume_command(path)}"
        )
    return found


def _module(
    path: Path, blueprint: Blueprint, model: Model | None, seed: int, pipeline: Pipeline | None
) -> Module:
    if model is not None:
        parts = pipeline.parts if pipeline else ()
        return make(model, shape=blueprint.shape, classes=blueprint.classes, seed=seed, parts=parts)
    if blueprint.model not in MODELS:
        raise ModelError(
            f"the models of {path} are of your own class {blueprint.model}: give this class, "
            f"wecfl.load({str(path)!r}, model={blueprint.model})"
        )
    return blueprint.build(seed)


def _task(path: Path, blueprint: Blueprint, given: Task | None) -> Task:
    """The task of the run; one with code of the user's own must be given."""
    text = blueprint.task
    if given is not None:
        fitting = for_outputs(given, blueprint.classes)
        if fitting.outputs != blueprint.classes:
            raise ConfigError(
                f"this task has {fitting.outputs} outputs, but the models of {path} have "
                f"{blueprint.classes}: give the task of the run"
            )
        return fitting
    if text.startswith(f"{Custom.name}("):
        raise ConfigError(
            f"the task of {path} has code of your own, {text}: give this task, "
            f"wecfl.load({str(path)!r}, task=…)"
        )
    return blueprint.fitted_task


def _without_checkpoint(path: Path, method: Method, module: Module) -> tuple[State, ...]:
    """The states of a folder without checkpoints: the models and the last line of labels."""
    if method.serve.needs_memory or not method.whole_centers:
        raise RunFolderError(
            f"{path} has no checkpoint, and without one the clients' own models of {method.name} "
            f"are not known: run it again with checkpoints"
        )
    models, layout = ClusterModels.read(path), layout_of(module)
    labels = read_assignments(path)
    return tuple(
        State(
            len(labels), None, np.array([models.row(layout, own) for own in clusters]), labels[-1]
        )
        for clusters in models.tensors
    )


def _reference(
    path: Path,
    method: Method,
    module: Module,
    states: tuple[State, ...],
    blueprint: Blueprint,
) -> Reference | None:
    """What newcomers are compared with; None if the folder does not hold it in this version."""
    if not (path / REFERENCE_FILE).exists():
        return None
    layout = layout_of(module)
    width, moments = compared_columns(method, layout).width(layout), 2 * prod(blueprint.shape)
    return read_reference(path, len(states[0].centers), width, moments)


@dataclass(frozen=True, slots=True)
class _Referring:
    """Makes the reference for newcomers from the data of a configuration, and stores it."""

    path: Path
    config: Config | None
    workers: int | None

    def __call__(self, state: State) -> Reference:
        missing = f"{self.path} has no {REFERENCE_FILE}, with which newcomers are compared"
        if (self.path / REFERENCE_FILE).exists():
            missing += " (only one of an earlier version)"
        if self.config is None:
            raise ConfigError(
                f"{missing}, and its config.toml can't repeat the run: call result.assign(x, y) "
                "once in the program that runs the experiment, to write this file"
            )
        saved = checkpoint.latest(self.path)
        if saved is None:
            raise RunFolderError(f"{missing}, and no checkpoint to make it: run it again")
        config = self.config.model_copy(update={"workers": self.workers})
        experiment = Experiment.prepared(config)(federation_of(config))
        if experiment.members.fingerprint != saved.manifest.data:
            raise RunFolderError(
                f"{missing}, and it can't be made, since the data are not those of the run: give "
                "the same data"
            )
        made = experiment.reference(state)
        write_reference(made, self.path)
        return made
