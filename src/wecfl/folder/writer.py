"""The writer of a run folder, which can be read at any time, also while the run goes on.

::

    config.toml          all choices; `wecfl run config.toml` repeats a run that came from a
                         configuration (for a run of Python values it only describes them)
    env.json             versions, machine, engine, command
    metrics.jsonl        one object per round (`wecfl.runs.record.RECORD_KEYS`)
    assignments.csv      one line per round: the cluster of each client (not of a fleet)
    classes.csv          one line per client: its training samples of each class, if known
    clients.csv          one line per client: samples, group if known, cluster, scores
    pipeline.json        how samples are made from a table or pixels (`wecfl.data.pipeline`), if so
    models.safetensors   the model of each cluster, tensors named cluster.K.NAME
    reference.safetensors  what newcomers are compared with (`wecfl.runs.newcomers`)
    newcomers.csv        one line per client that was kept out of the training, if there are any
    summary.json         method, engine, rounds, means of the last three rounds, status
    trace/               the clients' distances in each round (`wecfl.folder.distance_trace`)
    checkpoints/         the states from which `wecfl resume` continues (`wecfl.folder.checkpoint`)
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
import tomli_w

from wecfl.config import Config
from wecfl.core.clients import Clients
from wecfl.core.plan import LocalPlan
from wecfl.core.state import State
from wecfl.data.federation import Federation
from wecfl.errors import RunFolderError
from wecfl.folder import checkpoint
from wecfl.folder.checkpoint import FOLDER_FORMAT, Checkpoint, Manifest
from wecfl.folder.files import TEMPORARY_SUFFIX, GrowingFile, replace_file, replace_tensors, sync
from wecfl.folder.lock import LOCK_FILE, Lock
from wecfl.folder.newcomer_reference import REFERENCE_FILE, write_reference
from wecfl.folder.parsing import folder_errors
from wecfl.folder.readers import PIPELINE_FILE, is_begun, read_environment, resume_command
from wecfl.printing import log
from wecfl.runs.record import Record

if TYPE_CHECKING:
    from wecfl.runs.result import Result

__all__ = [
    "LARGE_STATE_BYTES",
    "RunFolder",
    "check_new_folder",
    "environment",
    "toml",
]

RECORDED_PACKAGES = ("wecfl", "numpy", "scipy", "scikit-learn", "torch")
"""The packages whose versions `env.json` holds."""

GROWING_FILES = ("metrics.jsonl", "assignments.csv")
"""The files that get a line in each round."""

CHANGEABLE_KEYS = (
    "rounds", "until", "patience", "tolerance", "engine", "device", "ray_address", "workers",
    "data_dir", "trace", "checkpoint_every", "network", "structure", "further", "memory",
)  # fmt: skip
"""The choices that may change when a run is resumed. (`structure` and `further` repeat for
`wecfl.load` what `components` and `conditions` say; older folders do not have them.)"""

CSV_LINE_END = re.compile(r'("(?:[^"]|"")*")|\r\n')
"""A quoted cell, which is kept, or the end of a line. Lines first end in both characters, because
only then a name that contains one of them is quoted."""

LARGE_STATE_BYTES = 1 << 28
"""If a state has more bytes than this, the round waits until its checkpoint is written. A smaller
checkpoint is written during the next round, which keeps the arrays of both rounds in memory."""


def check_new_folder(path: Path) -> None:
    """Refuse a path where no new run folder can be made; nothing is written."""
    try:
        os.fsencode(path)
        existing = next(place for place in (path, *path.absolute().parents) if place.exists())
        # This raises an error if it is not a folder.
        names = sorted(file.name for file in existing.iterdir())
        if "\0" in str(path):
            raise ValueError("embedded null byte")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"can't write the run folder {path}: {reason}") from None
    inside = names if existing == path else []
    if is_begun(path):
        raise RunFolderError(
            f"{path} already holds a run: choose another folder, or resume that run with "
            f"{resume_command(path)}"
        )
    # A run that was killed at its start leaves these files.
    others = [
        name
        for name in inside
        if name not in (LOCK_FILE, "env.json") and TEMPORARY_SUFFIX not in name
    ]
    if others:
        raise RunFolderError(f"{path} is not empty (it holds {others[0]}): choose another folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise RunFolderError(
            f"can't write the run folder {path}: {existing} is not writable; choose another folder"
        )


class RunFolder:
    """Writes a run folder, round by round: a `Watcher`.

    Use it in a `with` block, which keeps other processes out of the folder. With `resume`, the run
    in the folder continues from its checkpoint, or starts again if it has none. A checkpoint is
    written after every `every`-th round. The files in `growing` get a line in each round.
    """

    def __init__(
        self,
        path: Path,
        *,
        every: int = 1,
        resume: bool = False,
        growing: Sequence[str] = GROWING_FILES,
    ) -> None:
        self.path = path
        self.every, self._resume = every, resume
        self._lock = Lock(path)
        self._growing = {name: GrowingFile(path / name) for name in growing}
        self._writer = ThreadPoolExecutor(1, "wecfl-checkpoint")
        self._pending: Future[None] | None = None
        self._saved: Checkpoint | None = None
        self._states: Sequence[State] = ()
        self._written = 0  # the last round whose checkpoint is written or being written

    def __enter__(self) -> Self:
        if self._resume:
            if not is_begun(self.path):
                raise RunFolderError(
                    f"{self.path} holds no run to resume, since it has no config.toml or no "
                    f"env.json: check the path"
                )
            with self._writing():
                self._lock.take()
            try:
                self._saved = checkpoint.latest(self.path)
                if self._saved:
                    manifest = self._saved.manifest
                    for name, file in self._growing.items():
                        with folder_errors(self.path / name):
                            file.go_on(manifest.lengths[name], manifest.digests.get(name))
            except BaseException:
                self._lock.drop()
                raise
            for problem in self._saved.damaged if self._saved else ():
                log.warning("wecfl: %s: the run continues from an earlier checkpoint", problem)
        else:
            check_new_folder(self.path)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.shutdown()
        self._lock.drop()

    @property
    def saved(self) -> Checkpoint | None:
        """The checkpoint from which the run will continue; None after it has begun."""
        return self._saved

    @property
    def ended(self) -> bool:
        """Whether the run in the folder has ended and its summary is written."""
        return (self.path / "summary.json").is_file()

    def begin(self, config: Mapping[str, Any], env: Mapping[str, Any], clients: Clients) -> None:
        """Make the folder, and write what is run and where; or prepare the folder to continue."""
        self._about = {
            "config": json.loads(_json(config)),
            "data": clients.fingerprint,
            "engine": env["engine"],
        }
        before = self._saved
        if before:
            _check_same(before.manifest, self.path, **self._about)
        with self._writing():
            if not self._resume:
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock.take()
                check_new_folder(self.path)  # another run may have used it and ended
            if before:
                env = self._resumed(env, before.manifest.round)
                for file in self._growing.values():
                    file.cut()
            self._write("env.json", _json(env, indent=2) + "\n")
            self._write("config.toml", toml(config))
            if not before:
                for file in self._growing.values():
                    file.begin()
                self._assigned(lambda: ["round", *clients.names])
                if (held := clients.held) is not None:
                    index = pd.Index(clients.names, name="client")
                    self._write("classes.csv", _csv_table(pd.DataFrame(held.T, index)))
                if isinstance(clients, Federation) and clients.pipeline:
                    written = _json(clients.pipeline.written(), indent=2)
                    self._write(PIPELINE_FILE, f"{written}\n")
            ended = (self.path / name for name in ("summary.json", "newcomers.csv", REFERENCE_FILE))
            for old in (*ended, *self.path.rglob(f"*{TEMPORARY_SUFFIX}")):
                old.unlink(missing_ok=True)
            checkpoint.tidy(self.path)
        self._spent = before.manifest.seconds if before else 0.0
        self._written = before.manifest.round if before else 0
        self._saved = None
        self._began = perf_counter()

    def round(self, record: Record, states: Sequence[State]) -> None:
        """Append a round; after every `every`-th round, also write a checkpoint."""
        self._lock.check()
        with self._writing():
            self._growing["metrics.jsonl"].add(_json(record) + "\n")
            self._assigned(lambda: [record["round"], *states[0].labels.tolist()])
        self._states = states
        if record["round"] % self.every == 0:
            self._checkpoint()

    def end(self, result: Result) -> None:
        """Write the last complete state, the models and the summary, however the run ended."""
        self._lock.check()
        if self._states and self._states[0].round > self._written:
            self._checkpoint()
        self._wait()
        with self._writing():
            about = result.newcomer_setup.blueprint.written()
            replace_tensors(self.path / "models.safetensors", result.tensors, about)
            if result.reference:
                write_reference(result.reference, self.path)
            self._write("clients.csv", _csv_table(result.clients, index=False))
            if result.newcomers is not None:
                self._write("newcomers.csv", _csv_table(result.newcomers, index=False))
            summary = {"format": FOLDER_FORMAT, **result.summary}
            self._write("summary.json", _json(summary, indent=2) + "\n")

    def _assigned(self, cells: Callable[[], Sequence[object]]) -> None:
        """Add a line to `assignments.csv`, if this folder has that file."""
        if "assignments.csv" in self._growing:
            self._growing["assignments.csv"].add(_csv_line(cells()))

    def _checkpoint(self) -> None:
        """Begin to write the state of the last round; `_wait` raises errors of the writing."""
        self._wait()
        about = {
            **self._about,
            "lengths": {name: file.length for name, file in self._growing.items()},
            "digests": {name: file.sha256 for name, file in self._growing.items()},
            "seconds": self._spent + perf_counter() - self._began,
        }
        self._pending = self._writer.submit(self._put, self._states, about)
        self._written = self._states[0].round
        state_bytes = sum(
            array.nbytes
            for state in self._states
            for table in (state.replies or {}, state.memory, state.known, state.cluster)
            for array in table.values()
        )
        if state_bytes > LARGE_STATE_BYTES:
            self._wait()

    def _put(self, states: Sequence[State], about: Mapping[str, Any]) -> None:
        for name in self._growing:  # they must be on the disk before the checkpoint is
            sync(self.path / name)
        checkpoint.write(self.path, states, **about)

    def _wait(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, None
            with self._writing():
                pending.result()

    def _resumed(self, env: Mapping[str, Any], round: int) -> dict[str, Any]:
        """`env.json` with one more entry about where and when the run was resumed."""
        first = read_environment(self.path)
        now = {"round": round, **env}
        return {**first, "resumed": [*first.get("resumed", []), now]}

    def _write(self, name: str, text: str) -> None:
        replace_file(self.path / name, [text.encode()])

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except RunFolderError:
            raise
        except OSError as error:
            hint = f"; solve this, then {resume_command(self.path)}" if self._states else ""
            raise RunFolderError(
                f"can't write the run folder {self.path}: {error.strerror or error}{hint}"
            ) from None


def _check_same(
    saved: Manifest, path: Path, *, config: Mapping[str, Any], data: str, engine: str
) -> None:
    """Refuse to resume a run with choices or data that differ from those at its beginning."""
    # A choice that did not exist when the run began has its default. Then the task was always a
    # classification.
    defaults = Config().toml() | {"task": "classification"}
    for key in sorted((saved.config.keys() | config.keys()) - set(CHANGEABLE_KEYS)):
        was, now = (choices.get(key, defaults.get(key)) for choices in (saved.config, config))
        if key == "plan":
            was, now = ({**asdict(LocalPlan()), **(plan or {})} for plan in (was, now))
        if was != now:
            raise RunFolderError(
                f"{path} can't be resumed with {key} = {now!r}, since it began with {was!r}: give "
                f"the same {key}"
            )
    if saved.data != data:
        raise RunFolderError(
            f"{path} can't be resumed, since its clients hold other data than when it began: give "
            f"the same data"
        )
    if saved.engine != engine:
        log.warning(
            "wecfl: %s began with the engine %s and continues with %s: numbers may differ in the "
            "last digits from those of an uninterrupted run", path, saved.engine, engine,
        )  # fmt: skip


def toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML; it may hold NumPy numbers and arrays."""
    return tomli_w.dumps(json.loads(_json(config)))


def _csv_line(cells: Sequence[object]) -> str:
    text = StringIO()
    csv.writer(text).writerow(cells)
    return CSV_LINE_END.sub(_newline, text.getvalue())


def _csv_table(frame: pd.DataFrame, *, index: bool = True) -> str:
    return CSV_LINE_END.sub(_newline, frame.to_csv(index=index, lineterminator="\r\n"))


def _newline(found: re.Match[str]) -> str:
    return found[1] or "\n"


def _json(value: object, indent: int | None = None) -> str:
    """A value as JSON; it may hold NumPy numbers and arrays."""
    return json.dumps(value, indent=indent, default=lambda array: array.tolist())


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in RECORDED_PACKAGES}


def environment() -> dict[str, Any]:
    """The machine, the versions and the command of this process, for `env.json`."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "python": platform.python_version(),
        "packages": _versions(),
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
    }
