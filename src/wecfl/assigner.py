"""Makes the `Assigner` of newcomers from a run folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from wecfl.config import Config
from wecfl.engine import local
from wecfl.errors import ConfigError, RunFolderError
from wecfl.experiment import Experiment
from wecfl.folder import checkpoint
from wecfl.folder.cluster_models import ClusterModels
from wecfl.folder.newcomer_reference import REFERENCE_FILE, read_reference, write_reference
from wecfl.folder.readers import config_of, read_config
from wecfl.from_config import federation_of, options_of
from wecfl.models import layout_of
from wecfl.runs.newcomers import NO_WHOLE_MODELS, Assigner, NewcomerSetup, compared_columns

__all__ = ["assigner_of"]


def assigner_of(folder: Path, workers: int | None = None) -> tuple[Assigner, Config]:
    """The assigner of newcomers for a run folder, and the configuration of the run.

    What newcomers are compared with is computed at the first call, and kept in the folder.
    """
    if "components" in read_config(folder):
        raise ConfigError(
            f"{folder} was made by a Python program, and its config.toml can't repeat the run: "
            "assign newcomers in Python by result.assign(x, y)"
        )
    models, config = ClusterModels.read(folder), config_of(folder)
    config = config.model_copy(update={"workers": workers})
    kind, module = models.build(config.seed)
    layout, chosen = layout_of(module), options_of(config)
    rows = [[models.row(layout, tensors) for tensors in clusters] for clusters in models.tensors]
    centers = np.array(rows, np.float32)
    method = chosen["method"]
    if not method.whole_centers:
        raise ConfigError(NO_WHOLE_MODELS.format(method.name))
    width = np.arange(layout.width)[layout.columns(compared_columns(method, layout).which)].size
    if not (folder / REFERENCE_FILE).exists():
        _make_reference(folder, config)
    plan = chosen["plan"].complete(method.plan)
    setup = NewcomerSetup(
        method, kind, module, plan, config.seed, local(config.engine),
        {"workers": workers, "batchnorm": config.batchnorm, "batch": plan.batch},
        kind.fitted_task,
        privacy=chosen["privacy"],
    )  # fmt: skip
    return Assigner(setup, read_reference(folder, centers.shape[1], width), centers), config


def _make_reference(folder: Path, config: Config) -> None:
    """Let all members of the run make one local update on their training data."""
    saved = checkpoint.latest(folder)
    missing = f"{folder} has no {REFERENCE_FILE}, which newcomers are compared with"
    if saved is None:
        raise RunFolderError(f"{missing}, and no checkpoint to make it from: run it again")
    experiment = Experiment.prepared(config)(federation_of(config))
    if experiment.members.fingerprint != saved.manifest.data:
        raise RunFolderError(f"{missing}, and it can't be made: these are not the data of the run")
    write_reference(experiment.reference(saved.states[0]), folder)
