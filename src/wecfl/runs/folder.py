"""The run folder: everything about a run, readable while it runs and after it was stopped.

::

    config.toml          the choices as resolved; `wecfl run config.toml` repeats a run that came
                         from a configuration (for a run of Python values it describes them)
    env.json             versions, machine, engine, command
    metrics.jsonl        one object per round (`wecfl.runs.record.KEYS`)
    assignments.csv      one line per round: the cluster of each client
    clients.csv          one line per client: samples, group if known, cluster, scores
    models.safetensors   the model of each cluster, tensors named cluster.K.NAME
    state.safetensors    the whole `State` after the last complete round
    summary.json         method, engine, rounds, means of the last three rounds, status
"""

from __future__ import annotations

import csv
import json
import os
import platform
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from wecfl.base import State
from wecfl.errors import RunFolderError
from wecfl.layout import Layout
from wecfl.runs.record import Record

__all__ = [
    "RunFolder",
    "check_free",
    "read_clients",
    "read_metrics",
    "read_state",
    "read_summary",
    "tensor_names",
]

PACKAGES = ("wecfl", "numpy", "scipy", "scikit-learn", "torch")


SUMMARY: dict[str, type | UnionType] = {
    "method": str,
    "k": int,
    "rounds": int,
    "accuracy": float | int | None,
    "macro_f1": float | int | None,
    "ari": float | int | None,
    "clusters": int | None,
    "seconds": float | int,
    "seed": int,
    "status": str,
}
"""What a reader of `summary.json` may rely on."""


def check_free(path: Path) -> None:
    """Refuse a place where no new run folder can be made; nothing is written."""
    try:
        existing = next(place for place in (path, *path.absolute().parents) if place.exists())
        inside = next(existing.iterdir(), None)  # an error if it is no folder
    except OSError as error:
        raise RunFolderError(f"can't write the run folder {path}: {error.strerror}") from None
    if existing == path and inside:
        raise RunFolderError(f"{path} is not empty (it holds {inside.name}): choose another --out")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunFolderError(f"can't write the run folder {path}: {existing} is not writable")


class RunFolder:
    """Writes a run folder, round by round."""

    def __init__(
        self, path: Path, config: Mapping[str, Any], env: Mapping[str, Any], names: Sequence[str]
    ) -> None:
        check_free(path)
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._write("config.toml", tomli_w.dumps(json.loads(_json(config))))
            self._write("env.json", _json({**environment(), **env}, indent=2) + "\n")
            self._write("metrics.jsonl", "")
            self._add_line("assignments.csv", ["round", *names])
        except OSError as error:
            raise RunFolderError(f"can't write the run folder {path}: {error.strerror}") from None

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Append a round."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_json(record) + "\n")
        self._add_line("assignments.csv", [record["round"], *states[0].labels.tolist()])

    def end(
        self,
        states: Sequence[State],
        layout: Layout,
        clients: pd.DataFrame,
        summary: Mapping[str, Any],
    ) -> None:
        """Write the last complete state, the models and the summary, whatever ended the run."""
        several = len(states) > 1
        tensors = {
            f"{f'member.{j}.' if several else ''}cluster.{k}.{name}": np.ascontiguousarray(tensor)
            for j, state in enumerate(states)
            for k, center in enumerate(state.centers)
            for name, tensor in layout.tensors(center).items()
        }
        save_file(tensors, self.path / "models.safetensors")
        for j, state in enumerate(states):
            save_state(
                state, self.path / (f"state.{j}.safetensors" if several else "state.safetensors")
            )
        clients.to_csv(self.path / "clients.csv", index=False)
        self._write("summary.json", _json(summary, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="utf-8")

    def _add_line(self, name: str, cells: Sequence[object]) -> None:
        with (self.path / name).open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)


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
    try:
        arrays = load_file(file)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"can't read the state {file}: {error}") from None
    memory = {
        name.removeprefix("memory."): values
        for name, values in arrays.items()
        if name.startswith("memory.")
    }
    return State(
        int(arrays["round"][0]), arrays["models"], arrays["centers"], arrays["labels"], memory
    )


def read_summary(path: Path) -> dict[str, Any]:
    """`summary.json` and `config.toml` of a run folder, together."""
    try:
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise RunFolderError(f"{path} is no finished run folder: it has no {missing}") from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"can't read the run folder {path}: {error}") from None
    for key, kind in SUMMARY.items():
        if not isinstance(summary, dict) or not isinstance(summary.get(key), kind):
            raise RunFolderError(f"{path / 'summary.json'} has no usable '{key}': run it again")
    return {"config": config, **summary}


def read_metrics(path: Path) -> list[Record]:
    """The records of a run folder."""
    try:
        lines = (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise RunFolderError(f"can't read {path / 'metrics.jsonl'}: {error}") from None


def read_clients(path: Path) -> pd.DataFrame:
    """The clients of a run folder, one row each."""
    try:
        return pd.read_csv(path / "clients.csv")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"can't read {path / 'clients.csv'}: {error}") from None


def tensor_names(path: Path) -> list[str]:
    """The tensors of the models of a run folder, without the cluster they belong to."""
    file = path / "models.safetensors"
    try:
        with safe_open(file, framework="numpy") as tensors:
            names = list(tensors.keys())
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"can't read {file}: {error}") from None
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
