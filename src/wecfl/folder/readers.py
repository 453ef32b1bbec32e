"""Reads run folders, also those of runs that are not finished."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open

from wecfl.config import Config
from wecfl.config.resolve import resolve
from wecfl.core.state import State
from wecfl.core.types import Int
from wecfl.data.pipeline import Pipeline
from wecfl.errors import ConfigError, RunFolderError
from wecfl.folder import checkpoint
from wecfl.folder.checkpoint import check_format
from wecfl.folder.parsing import (
    folder_errors,
    read_json,
    read_json_lines,
    read_table,
    read_toml,
)
from wecfl.folder.pipeline_schema import PipelineSchema
from wecfl.folder.schema import (
    ClientSchema,
    ConfigSchema,
    EnvironmentSchema,
    NewcomerSchema,
    RoundSchema,
    SummarySchema,
)
from wecfl.runs.record import Record

__all__ = [
    "PIPELINE_FILE",
    "config_of",
    "is_begun",
    "is_finished",
    "read_assignments",
    "read_classes",
    "read_clients",
    "read_config",
    "read_environment",
    "read_metrics",
    "read_newcomers",
    "read_pipeline",
    "read_states",
    "read_summary",
    "refused_of",
    "resume_command",
    "tensor_names",
]

PIPELINE_FILE = "pipeline.json"
"""The file that holds the pipeline, in a run folder that has one."""


def resume_command(path: Path) -> str:
    """The command that resumes a run.

    >>> resume_command(Path("runs/my run"))
    "wecfl resume 'runs/my run'"
    """
    return shlex.join(["wecfl", "resume", str(path)])


def is_begun(path: Path) -> bool:
    """Whether a folder holds a run, even if it has no round yet."""
    return all((path / name).is_file() for name in ("config.toml", "env.json"))


def is_finished(path: Path, config: Config) -> bool:
    """Whether the run in a folder has ended in order, after its last round or by its rule.

    `config` are the choices with which it would be resumed.
    """
    if not (path / "summary.json").exists():
        return False
    summary = read_summary(path)
    stopped = summary.get("stopped") and config_of(path).until == config.until
    return bool(summary["status"] == "finished" and (stopped or summary["rounds"] >= config.rounds))


def read_states(path: Path) -> tuple[State, ...]:
    """The state at the last checkpoint of a run folder; one for each run of a soft vote."""
    found = checkpoint.latest(path)
    if found is None:
        raise RunFolderError(
            f"{path} has no checkpoint: choose the folder of a run that wrote checkpoints"
        )
    return found.states


def read_summary(path: Path) -> dict[str, Any]:
    """`summary.json` of a run folder, with `config.toml` under the key `config`."""
    config = read_config(path)
    if not (path / "summary.json").exists():
        raise RunFolderError(
            f"{path} has no summary.json, so its run has not ended yet: resume the run with "
            f"{resume_command(path)}"
        )
    summary = read_json(path / "summary.json", SummarySchema)
    check_format(summary.get("format", 0), path / "summary.json")
    return {**summary, "config": config}


def read_config(path: Path) -> dict[str, Any]:
    """`config.toml` of a run folder."""
    if not path.is_dir():
        raise RunFolderError(f"there is no run folder {path}: check the path")
    if not (path / "config.toml").exists():
        held = sorted(file.parent.name for file in path.glob("*/config.toml"))
        reason = (
            f"it holds several runs, {', '.join(held)}: give one of them, such as {path / held[0]}"
            if held
            else "it has no config.toml: check the path"
        )
        raise RunFolderError(f"{path} is not a run folder: {reason}")
    return read_toml(path / "config.toml", ConfigSchema)


def config_of(folder: str | Path) -> Config:
    """The configuration of a run folder, as `wecfl resume` reads it."""
    path = Path(folder)
    about = read_config(path)
    if "network" in about:
        raise ConfigError(
            f"{path} is a run over a network: to resume it, start its app again (flwr run) with "
            f"out = {str(path)!r}"
        )
    if "components" in about:
        raise ConfigError(
            f"{path} is a run from Python values, which config.toml can't hold: resume it in "
            f"Python, by run(…, folder=Folder({str(path)!r}, resume=True))"
        )
    return resolve(path / "config.toml")


def read_metrics(path: Path, rounds: int | None = None) -> list[Record]:
    """The records of all rounds of a run folder, or of its first `rounds` rounds."""
    file = path / "metrics.jsonl"
    records = read_json_lines(file, RoundSchema, rounds)
    for t, record in enumerate(records, 1):
        # In a fleet, the last round of a pass may have more clients than the others.
        alike = "heard" in record or _client_count(record) == _client_count(records[0])
        if record["round"] != t or not alike:
            raise RunFolderError(f"can't read {file}: line {t} is not round {t} of the same run")
    return records


def _client_count(record: Record) -> int:
    return len(next(values for values in record["clients"].values() if values is not None))


def read_clients(path: Path) -> pd.DataFrame:
    """The clients of a run folder, one row each."""
    return _read_lines(path / "clients.csv", ClientSchema)


def read_newcomers(path: Path) -> pd.DataFrame | None:
    """The clients that were kept out of a run, one row each; None if there were none."""
    file = path / "newcomers.csv"
    return _read_lines(file, NewcomerSchema) if file.exists() else None


def _read_lines(file: Path, schema: type[ClientSchema] | type[NewcomerSchema]) -> pd.DataFrame:
    head, *rows = read_table(file)
    with folder_errors(file):
        if not rows or len(set(head)) < len(head):
            raise ValueError("it has no clients, or two columns with the same name")
        lines = [schema.model_validate(dict(zip(head, row, strict=True))) for row in rows]
        return pd.DataFrame([line.model_dump(exclude_unset=True) for line in lines], columns=head)


def refused_of(clients: pd.DataFrame) -> dict[str, int]:
    """For each client with refused replies, their number."""
    if "refused" not in clients:
        return {}
    refused = clients[clients["refused"] > 0]
    return dict(zip(refused["client"], refused["refused"], strict=True))


def read_classes(path: Path) -> Int | None:
    """(classes, m), the training samples of each class at each client; None in older folders."""
    file = path / "classes.csv"
    return _whole_numbers(file).T if file.exists() else None


def read_assignments(path: Path) -> Int:
    """(rounds, m), the cluster of each client after each round; a fleet has no such file."""
    if "registered" in read_config(path):
        raise ConfigError(
            f"{path} is a run on a fleet, which does not write the cluster of each client in each "
            f"round: use its metrics.jsonl and clients.csv, or wecfl.load({str(path)!r})"
        )
    return _whole_numbers(path / "assignments.csv")


def _whole_numbers(file: Path) -> Int:
    """The numbers of a table, without its header and its first column, which hold names."""
    head, *rows = read_table(file)
    with folder_errors(file):
        numbers = np.array([row[1:] for row in rows], np.int64).reshape(len(rows), len(head) - 1)
        if (numbers < 0).any():
            raise ValueError(f"expected counts or clusters, got {numbers.min()}")
    return numbers


def read_pipeline(path: Path) -> Pipeline | None:
    """How samples are made from tables or pixels; None if they are used as they are given."""
    file = path / PIPELINE_FILE
    return Pipeline.read(read_json(file, PipelineSchema)) if file.exists() else None


def read_environment(path: Path) -> dict[str, Any]:
    """`env.json` of a run folder: versions, machine, engine, command."""
    return read_json(path / "env.json", EnvironmentSchema)


def tensor_names(path: Path) -> list[str]:
    """The names of the tensors of each model of a run folder, without the name of the cluster."""
    file = path / "models.safetensors"
    with folder_errors(file), safe_open(file, framework="numpy") as tensors:
        names = list(tensors.keys())
    return sorted({name.partition("cluster.")[2].partition(".")[2] for name in names})
