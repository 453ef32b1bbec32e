"""The run folder: everything about a run, readable while it runs and after it was stopped.

::

    config.toml          the choices as resolved; `wecfl run config.toml` repeats a run that came
                         from a configuration (for a run of Python values it describes them)
    env.json             versions, machine, engine, command
    metrics.jsonl        one object per round (`wecfl.runs.record.RECORD_KEYS`)
    assignments.csv      one line per round: the cluster of each client
    classes.csv          one line per client: its training samples of each class, if known
    clients.csv          one line per client: samples, group if known, cluster, scores
    models.safetensors   the model of each cluster, tensors named cluster.K.NAME
    reference.safetensors  what newcomers are compared with (`wecfl.runs.newcomers`)
    newcomers.csv        one line per client that was kept out, if some were
    summary.json         method, engine, rounds, means of the last three rounds, status
    trace/               the clients' distances in each round (`wecfl.folder.trace`)
    checkpoints/         what `wecfl resume` goes on from (`wecfl.folder.checkpoint`)
"""

from __future__ import annotations

import csv
import json
import logging
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
import tomli_w

from wecfl.config import Config
from wecfl.core.clients import Clients
from wecfl.core.state import State
from wecfl.errors import RunFolderError
from wecfl.folder import checkpoint
from wecfl.folder.checkpoint import FORMAT, Checkpoint, Manifest
from wecfl.folder.files import TEMPORARY, replace_file, replace_tensors, sync
from wecfl.folder.lock import LOCK, Lock
from wecfl.folder.readers import go_on, read_environment
from wecfl.folder.reference import REFERENCE, write_reference
from wecfl.runs.record import Record

if TYPE_CHECKING:
    from wecfl.runs.result import Result

__all__ = [
    "RunFolder",
    "check_free",
    "environment",
    "toml",
]

PACKAGES = ("wecfl", "numpy", "scipy", "scikit-learn", "torch")


GROWING = ("metrics.jsonl", "assignments.csv")
"""Files that get a line in each round."""

FREE = (
    "rounds", "engine", "ray_address", "workers", "data_dir", "trace", "checkpoint_every",
    "network", "structure",
)  # fmt: skip
"""Choices that a run may go on with in another way, and still be the same run; `structure` says
again what `components` does, and older folders do not have it."""

LARGE = 1 << 28
"""Bytes of state above which a round waits for its checkpoint: below, it is written while the next
round goes on, which keeps the arrays of both in memory."""


def check_free(path: Path) -> None:
    """Refuse a place where no new run folder can be made; nothing is written."""
    try:
        os.fsencode(path)
        existing = next(place for place in (path, *path.absolute().parents) if place.exists())
        names = sorted(file.name for file in existing.iterdir())  # an error if it is no folder
        if "\0" in str(path):
            raise ValueError("embedded null byte")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunFolderError(f"can't write the run folder {path}: {why}") from None
    inside = names if existing == path else []
    if {"config.toml", "env.json"} <= set(inside):
        raise RunFolderError(
            f"{path} holds a run: choose another folder, or go on with that one: {go_on(path)}"
        )
    # What a run leaves that was killed while it began.
    others = [name for name in inside if name not in (LOCK, "env.json") and TEMPORARY not in name]
    if others:
        raise RunFolderError(f"{path} is not empty (it holds {others[0]}): choose another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunFolderError(f"can't write the run folder {path}: {existing} is not writable")


class RunFolder:
    """Writes a run folder, round by round: a `Watcher`.

    To be used in a `with` block: it keeps other processes out of the folder. `again` goes on with
    the run that the folder holds, if `saved` finds a checkpoint in it, or else begins it anew.
    """

    def __init__(self, path: Path, *, every: int = 1, again: bool = False) -> None:
        self.path = path
        self._every, self._again = every, again
        self._lock = Lock(path)
        self._writer = ThreadPoolExecutor(1, "wecfl-checkpoint")
        self._pending: Future[None] | None = None
        self._saved: Checkpoint | None = None
        self._states: Sequence[State] = ()
        self._written = 0  # the last round that has a checkpoint, or soon will have

    def __enter__(self) -> Self:
        if self._again:
            for name in ("config.toml", "env.json"):
                if not (self.path / name).is_file():
                    raise RunFolderError(
                        f"{self.path} holds no run to go on with: it has no {name}"
                    )
            with self._writing():
                self._lock.take()
            try:
                self._saved = checkpoint.latest(self.path)
            except BaseException:
                self._lock.drop()
                raise
            for problem in self._saved.damaged if self._saved else ():
                logging.getLogger("wecfl").warning(
                    "wecfl: %s: going on from an earlier checkpoint", problem
                )
        else:
            check_free(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._lock.drop()

    @property
    def saved(self) -> Checkpoint | None:
        """Where the run stood when it was last written down; None once it goes on."""
        return self._saved

    @property
    def ended(self) -> bool:
        """The run in the folder was ended in order: nothing is left to be written about it."""
        return (self.path / "summary.json").is_file()

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Make the folder and write down what is run, and where; or go on with what there is."""
        self._about = {
            "config": json.loads(_json(config)),
            "data": clients.fingerprint,
            "engine": env["engine"],
        }
        before = self._saved
        if before:
            _check_same(before.manifest, self.path, **self._about)
        with self._writing():
            if not self._again:
                check_free(self.path)
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock.take()
            if before:
                env = self._resumed(env, before.manifest.round)
                for name in GROWING:
                    self._cut(name, before.manifest.lengths[name])
            self._write("env.json", _json(env, indent=2) + "\n")
            self._write("config.toml", toml(config))
            if not before:
                self._write("metrics.jsonl", "")
                self._write("assignments.csv", "")
                self._add_line("assignments.csv", ["round", *clients.names])
                if (held := clients.held) is not None:
                    index = pd.Index(clients.names, name="client")
                    table = pd.DataFrame(held.T, index).to_csv(lineterminator="\n")
                    self._write("classes.csv", table)
            ended = (self.path / name for name in ("summary.json", "newcomers.csv", REFERENCE))
            for file in (*ended, *self.path.rglob(f"*{TEMPORARY}")):
                file.unlink(missing_ok=True)
            checkpoint.tidy(self.path)
        self._spent = before.manifest.seconds if before else 0.0
        self._written = before.manifest.round if before else 0
        self._saved = None
        self._began = perf_counter()

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Append a round; every so often also a checkpoint."""
        with self._writing():
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(_json(record) + "\n")
            self._add_line("assignments.csv", [record["round"], *states[0].labels.tolist()])
        self._states = states
        if record["round"] % self._every == 0:
            self._checkpoint()

    def end(self, result: Result) -> None:
        """Write the last complete state, the models and the summary, whatever ended the run."""
        if self._states and self._states[0].round > self._written:
            self._checkpoint()
        self._wait()
        with self._writing():
            about = result.newcomer_setup.blueprint.written()
            replace_tensors(self.path / "models.safetensors", result.tensors, about)
            if result.reference:
                write_reference(result.reference, self.path)
            self._write("clients.csv", result.clients.to_csv(index=False))
            if result.newcomers is not None:
                self._write("newcomers.csv", result.newcomers.to_csv(index=False))
            summary = {"format": FORMAT, **result.summary}
            self._write("summary.json", _json(summary, indent=2) + "\n")

    def _checkpoint(self) -> None:
        """Begin to write the state of the last round; errors are raised when it is waited for."""
        self._wait()
        about = {
            **self._about,
            "lengths": {name: (self.path / name).stat().st_size for name in GROWING},
            "seconds": self._spent + perf_counter() - self._began,
        }
        self._pending = self._writer.submit(self._put, self._states, about)
        self._written = self._states[0].round
        held = (
            each
            for state in self._states
            for table in (state.replies or {}, state.memory, state.known, state.cluster)
            for each in table.values()
        )
        if sum(each.nbytes for each in held) > LARGE:
            self._wait()

    def _put(self, states: Sequence[State], about: Mapping[str, Any]) -> None:
        for name in GROWING:  # a checkpoint must not outlive what it goes on from
            sync(self.path / name)
        checkpoint.write(self.path, states, **about)

    def _wait(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, None
            with self._writing():
                pending.result()

    def _resumed(self, env: Mapping[str, Any], round: int) -> dict[str, Any]:
        """`env.json` keeps where the run began, and each time it went on."""
        first = read_environment(self.path)
        now = {"round": round, **env}
        return {**first, "resumed": [*first.get("resumed", []), now]}

    def _cut(self, name: str, length: int) -> None:
        """Drop what was written after the checkpoint."""
        file = self.path / name
        if not file.is_file() or file.stat().st_size < length:
            raise RunFolderError(
                f"{file} is shorter than its checkpoint says ({length} bytes): it was changed, so "
                f"this run can't go on; start it again in another folder"
            )
        os.truncate(file, length)

    def _write(self, name: str, text: str) -> None:
        replace_file(self.path / name, [text.encode()])

    def _add_line(self, name: str, cells: Sequence[object]) -> None:
        with (self.path / name).open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except RunFolderError:
            raise
        except OSError as error:
            then = f"; then: {go_on(self.path)}" if self._states else ""
            raise RunFolderError(
                f"can't write the run folder {self.path}: {error.strerror or error}{then}"
            ) from None


def _check_same(
    saved: Manifest, path: Path, *, config: Mapping[str, Any], data: str, engine: str
) -> None:
    """Refuse to go on with another run than the one that was begun."""
    defaults = Config().toml()  # a choice that was not there when the run began was the default
    for key in sorted((saved.config.keys() | config.keys()) - set(FREE)):
        was, now = (said.get(key, defaults.get(key)) for said in (saved.config, config))
        if was != now:
            raise RunFolderError(
                f"{path} can't go on with {key} = {now!r}: it was begun with {was!r}"
            )
    if saved.data != data:
        raise RunFolderError(f"{path} can't go on: its clients hold other data than when it began")
    if saved.engine != engine:
        logging.getLogger("wecfl").warning(
            "wecfl: %s was begun on the engine %s and goes on with %s: numbers may differ in the "
            "last digits from those of a run in one go", path, saved.engine, engine,
        )  # fmt: skip


def toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML, also with NumPy's numbers and arrays in it."""
    return tomli_w.dumps(json.loads(_json(config)))


def _json(value: object, indent: int | None = None) -> str:
    """JSON also of NumPy's numbers and arrays."""
    return json.dumps(value, indent=indent, default=lambda array: array.tolist())


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
