"""The run folder: everything about a run, readable while it runs and after it was stopped.

::

    config.toml          the choices as resolved; `wecfl run config.toml` repeats a run that came
                         from a configuration (for a run of Python values it describes them)
    env.json             versions, machine, engine, command
    metrics.jsonl        one object per round (`wecfl.runs.record.KEYS`)
    assignments.csv      one line per round: the cluster of each client
    classes.csv          one line per client: its training samples of each class
    clients.csv          one line per client: samples, group if known, cluster, scores
    models.safetensors   the model of each cluster, tensors named cluster.K.NAME
    state.safetensors    the whole `State` after the last complete round
    summary.json         method, engine, rounds, means of the last three rounds, status
    trace/               the clients' distances in each round (`wecfl.runs.trace`)
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import tomli_w
from safetensors import safe_open
from safetensors.numpy import save_file

from wecfl.base import Int, State
from wecfl.data.federation import Federation
from wecfl.data.partition import counts
from wecfl.errors import RunFolderError
from wecfl.runs.record import Record
from wecfl.runs.schema import (
    Client,
    Environment,
    Round,
    RunConfig,
    Summary,
    read_json,
    read_json_lines,
    read_table,
    read_tensors,
    read_toml,
    reading,
)

if TYPE_CHECKING:
    from wecfl.runs.experiment import Result

__all__ = [
    "RunFolder",
    "check_free",
    "environment",
    "read_assignments",
    "read_classes",
    "read_clients",
    "read_environment",
    "read_metrics",
    "read_state",
    "read_summary",
    "tensor_names",
    "toml",
]

PACKAGES = ("wecfl", "numpy", "scipy", "scikit-learn", "torch")


def check_free(path: Path) -> None:
    """Refuse a place where no new run folder can be made; nothing is written."""
    try:
        os.fsencode(path)
        existing = next(place for place in (path, *path.absolute().parents) if place.exists())
        inside = next(existing.iterdir(), None)  # an error if it is no folder
        if "\0" in str(path):
            raise ValueError("embedded null byte")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunFolderError(f"can't write the run folder {path}: {why}") from None
    if existing == path and inside:
        raise RunFolderError(f"{path} is not empty (it holds {inside.name}): choose another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunFolderError(f"can't write the run folder {path}: {existing} is not writable")


class RunFolder:
    """Writes a run folder, round by round: a `Watcher`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(
        self, config: Mapping[str, Any], env: Mapping[str, Any], federation: Federation
    ) -> None:
        """Make the folder and write down what is run, and where."""
        check_free(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._write("config.toml", toml(config))
            self._write("env.json", _json(env, indent=2) + "\n")
            self._write("metrics.jsonl", "")
            self._add_line("assignments.csv", ["round", *federation.names])
            held = counts(federation.y, federation.train, federation.classes)
            index = pd.Index(federation.names, name="client")
            pd.DataFrame(held.T, index).to_csv(self.path / "classes.csv", lineterminator="\n")
        except OSError as error:
            raise RunFolderError(
                f"can't write the run folder {self.path}: {error.strerror}"
            ) from None

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Append a round."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_json(record) + "\n")
        self._add_line("assignments.csv", [record["round"], *states[0].labels.tolist()])

    def end(self, result: Result) -> None:
        """Write the last complete state, the models and the summary, whatever ended the run."""
        save_file(result.tensors, self.path / "models.safetensors")
        several = len(result.states) > 1
        for j, state in enumerate(result.states):
            save_state(
                state, self.path / (f"state.{j}.safetensors" if several else "state.safetensors")
            )
        result.clients.to_csv(self.path / "clients.csv", index=False)
        self._write("summary.json", _json(result.summary, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def _add_line(self, name: str, cells: Sequence[object]) -> None:
        with (self.path / name).open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)


def toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML, also with NumPy's numbers and arrays in it."""
    return tomli_w.dumps(json.loads(_json(config)))


def _json(value: object, indent: int | None = None) -> str:
    """JSON also of NumPy's numbers and arrays."""
    return json.dumps(value, indent=indent, default=lambda array: array.tolist())


def save_state(state: State, file: Path) -> None:
    """A state as named arrays."""
    arrays = {
        "models": state.models,
        "centers": state.centers,
        "labels": state.labels,
        "round": np.array([state.round]),
        **{f"memory.{name}": values for name, values in state.memory.items()},
    }
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file)


def read_state(file: Path) -> State:
    """The state that `save_state` wrote."""
    arrays = read_tensors(file, models=2, centers=2, labels=1, round=1)
    with reading(file):
        [number], labels, k = arrays["round"].tolist(), arrays["labels"], len(arrays["centers"])
        if labels.dtype != np.int64 or not ((labels >= 0) & (labels < k)).all() or number < 0:
            raise ValueError(f"its labels must be whole numbers below {k}")
        if arrays["models"].shape != (len(labels), arrays["centers"].shape[1]):
            raise ValueError("its arrays do not belong together")
    memory = {
        name.removeprefix("memory."): values
        for name, values in arrays.items()
        if name.startswith("memory.")
    }
    return State(number, arrays["models"], arrays["centers"], labels, memory)


def read_summary(path: Path) -> dict[str, Any]:
    """`summary.json` and `config.toml` of a run folder, together."""
    for name in ("summary.json", "config.toml"):
        if path.is_dir() and not (path / name).exists():
            raise RunFolderError(f"{path} is no finished run folder: it has no {name}")
    summary = read_json(path / "summary.json", Summary)
    return {**summary, "config": read_toml(path / "config.toml", RunConfig)}


def read_metrics(path: Path) -> list[Record]:
    """The records of a run folder, of rounds 1, 2, 3, …"""
    file = path / "metrics.jsonl"
    records = read_json_lines(file, Round)
    for t, record in enumerate(records, 1):
        if record["round"] != t or len(record["clients"]["accuracy"]) != _m(records):
            raise RunFolderError(f"can't read {file}: line {t} is not about round {t} of its run")
    return records


def _m(records: Sequence[Record]) -> int:
    return len(records[0]["clients"]["accuracy"])


def read_clients(path: Path) -> pd.DataFrame:
    """The clients of a run folder, one row each."""
    file = path / "clients.csv"
    head, *rows = read_table(file)
    with reading(file):
        if not rows or len(set(head)) < len(head):
            raise ValueError("it names no client, or a column twice")
        lines = [Client.model_validate(dict(zip(head, row, strict=True))) for row in rows]
        return pd.DataFrame([line.model_dump(exclude_unset=True) for line in lines], columns=head)


def read_classes(path: Path) -> Int | None:
    """(classes, m), the training samples of each class at each client; None in older folders."""
    file = path / "classes.csv"
    return _whole_numbers(file).T if file.exists() else None


def read_assignments(path: Path) -> Int:
    """(rounds, m), the cluster of each client after each round."""
    return _whole_numbers(path / "assignments.csv")


def _whole_numbers(file: Path) -> Int:
    """A table without its head and its first column, which say what they belong to."""
    head, *rows = read_table(file)
    with reading(file):
        numbers = np.array([row[1:] for row in rows], np.int64).reshape(len(rows), len(head) - 1)
        if (numbers < 0).any():
            raise ValueError(f"{numbers.min()} is no count and no cluster")
    return numbers


def read_environment(path: Path) -> dict[str, Any]:
    """`env.json` of a run folder: versions, machine, engine, command."""
    return read_json(path / "env.json", Environment)


def tensor_names(path: Path) -> list[str]:
    """The tensors of the models of a run folder, without the cluster they belong to."""
    file = path / "models.safetensors"
    with reading(file), safe_open(file, framework="numpy") as tensors:
        names = list(tensors.keys())
    return sorted({name.partition("cluster.")[2].partition(".")[2] for name in names})


def environment() -> dict[str, Any]:
    """What a reader needs to know about the machine and the command."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
    }
