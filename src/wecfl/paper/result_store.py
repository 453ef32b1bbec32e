"""The folder of finished runs: each is one small JSON file, which is complete or absent.

::

    RESULTS/NAME.json                 one finished run: choices, seed, scores, curve, time, versions
    RESULTS/DEFINITION.jsonl          one line per run, for a definition with hundreds of runs; the
                                      first line holds the choices that all of them have
    RESULTS/models/NAME.safetensors   the model of the last three rounds of a run with one cluster,
                                      so that soft votes (FedAvg+, FedProx+) share their members
    RESULTS/claims/NAME               locked by the process that does the run
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from wecfl.config import Config
from wecfl.core.types import F32
from wecfl.folder.files import replace_file, replace_tensors
from wecfl.folder.parsing import read_json, read_json_lines, read_tensors
from wecfl.folder.result_schema import ResultSchema
from wecfl.from_config import INCIDENTAL_KEYS
from wecfl.method_from_config import method_of
from wecfl.methods import options
from wecfl.paper.definitions import PlannedRun

__all__ = ["ResultStore", "StoredResult"]

StoredResult = dict[str, Any]
"""A finished run, as in its JSON file (`wecfl.folder.result_schema.ResultSchema`)."""

ResultKey = tuple[str, int, int, bool]
"""What identifies a run: hash, seed, member, and whether it has a trace."""


@dataclass(frozen=True, slots=True)
class ResultStore:
    """The folder of results."""

    folder: Path

    def file(self, run: PlannedRun) -> Path:
        """The file in which the result of a run is, or will be."""
        return self.folder / (f"{run.pool}.jsonl" if run.pool else f"{run.stem}.json")

    def models(self, run: PlannedRun) -> Path:
        """The file in which the last models of a run with one cluster are, or will be."""
        return self.folder / "models" / f"{run.stem}.safetensors"

    def read(self, run: PlannedRun) -> StoredResult | None:
        """The result of a run, if it was finished with the same choices."""
        stored = _read(self.file(run)).get((run.hash, run.config.seed, run.member, run.trace))
        return stored if stored and _same(stored, run) else None

    def seeds(self, run: PlannedRun) -> list[StoredResult]:
        """The stored results of a run, with any seed."""
        asked = (run.hash, run.member, run.trace)
        alone = self.folder.glob(f"*_{run.hash}.json")
        files = [self.file(run)] if run.pool else sorted(alone)
        return [
            stored
            for file in files
            for (name, _, member, trace), stored in _read(file).items()
            if (name, member, trace) == asked and _same(stored, run)
        ]

    def complete(self, run: PlannedRun) -> bool:
        """Whether the result is stored, together with the models that a vote needs.

        The repository keeps results but no models.
        """
        needs_models = not run.parts and method_of(run.config).k == 1
        return self.read(run) is not None and (not needs_models or self.models(run).exists())

    def all(self) -> list[StoredResult]:
        """All results, also of runs that no definition asks for."""
        files = sorted(self.folder.glob("*.json")) + sorted(self.folder.glob("*.jsonl"))
        return [stored for file in files for stored in _read(file).values()]

    def write(self, run: PlannedRun, outcome: StoredResult) -> StoredResult:
        """Store a finished run. A reader sees all of it or nothing."""
        stored = {
            "config": _choices(run.config),
            "config_hash": run.hash,
            "seed": run.config.seed,
            "member": run.member,
            "votes": len(run.parts),
            **outcome,
        }
        file = self.file(run)
        self.folder.mkdir(parents=True, exist_ok=True)
        if run.pool:
            with self._claimed(file.name, wait=True):
                kept = {**_read(file), _key(stored): stored}
                # Sorted, so that the file is the same whichever process finished first.
                packed = _without_common([kept[key] for key in sorted(kept)])
                replace_file(file, [f"{json.dumps(line)}\n".encode() for line in packed])
        else:
            lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(v)}" for key, v in stored.items())
            replace_file(file, [f"{{\n{lines}\n}}\n".encode()])
        return stored

    def write_models(self, run: PlannedRun, models: F32) -> None:
        """Store the models of the last rounds (rounds, P)."""
        self.models(run).parent.mkdir(parents=True, exist_ok=True)
        replace_tensors(self.models(run), {"models": models})

    def read_models(self, run: PlannedRun) -> F32:
        """The models of the last rounds (rounds, P)."""
        models: F32 = read_tensors(self.models(run), models=2)["models"]
        return models

    @contextmanager
    def claim(self, run: PlannedRun) -> Iterator[bool]:
        """Whether this process, and no other, may do the run; the claim ends with the process."""
        with self._claimed(run.stem) as path:
            yield path is not None
            # Not earlier: another process could lock the removed file, and this one a new file.
            if path and self.read(run):
                path.unlink(missing_ok=True)

    @contextmanager
    def _claimed(self, name: str, *, wait: bool = False) -> Iterator[Path | None]:
        """A file that this process has locked; None if another one has, and `wait` is False."""
        path = self.folder / "claims" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield None
                return
            yield path


def _same(stored: StoredResult, run: PlannedRun) -> bool:
    """Whether all choices agree. The hash leaves out defaults, and a default may have changed."""
    now = _choices(run.config)
    return all(now[key] == value for key, value in stored["config"].items() if key in now)


def _choices(config: Config) -> dict[str, Any]:
    """The choices that decide the result, as values that JSON can write."""
    chooses = config.clusters == "auto" and "criterion" in options(config.method)
    apart = set(INCIDENTAL_KEYS) | (set() if chooses else {"criterion"})
    return config.completed().model_dump(mode="json", exclude=apart)


def _without_common(results: Sequence[StoredResult]) -> list[StoredResult]:
    """A first line with what is common to all results, and the results without it.

    >>> made = {"commit": "a", "cores": 2}
    >>> _without_common([{"config": {"lr": lr, "k": 3}, "made_by": made} for lr in (1, 2)])[:2]
    [{'common': {'config': {'k': 3}, 'made_by': {'commit': 'a', 'cores': 2}}},
     {'config': {'lr': 1}, 'made_by': {}}]
    """
    common = {
        name: {
            key: value
            for key, value in results[0][name].items()
            if all(key in each[name] and each[name][key] == value for each in results)
        }
        for name in ("config", "made_by")
    }
    left = [
        {**each, **{name: {key: value for key, value in each[name].items() if key not in entries}
                    for name, entries in common.items()}}
        for each in results
    ]  # fmt: skip
    return [{"common": common}, *left]


def _key(stored: StoredResult) -> ResultKey:
    return stored["config_hash"], stored["seed"], stored["member"], "trace" in stored


def _read(file: Path) -> Mapping[ResultKey, StoredResult]:
    """The results in a file, which is parsed again only after it has changed."""
    if not file.exists():
        return {}
    seen = file.stat()
    return _parsed(file, seen.st_ino, seen.st_mtime_ns, seen.st_size)


@lru_cache(maxsize=1024)
def _parsed(file: Path, *_stamp: int) -> Mapping[ResultKey, StoredResult]:
    if file.suffix == ".jsonl":
        found = read_json_lines(file, ResultSchema)
    else:
        found = [read_json(file, ResultSchema, "remove it")]
    return {_key(stored): stored for stored in found}
