"""Checkpoints: the state after a round, so that a crash at any moment loses at most one round.

A checkpoint is two files in `checkpoints/`:

- ``000012.safetensors`` holds the `State` of each run J of a soft vote (usually one run, 0). The
  arrays are `J.round`, `J.tick`, `J.centers`, `J.labels`, and by owner `J.memory.NAME`,
  `J.cluster.NAME`, `J.known.NAME` and `J.whole.NAME`; `J.replies.NAME` only if a round does not end
  with D.
- ``000012.json`` is the manifest, which is written last and makes the checkpoint valid. It holds
  the format, the round, the size and SHA-256 of the first file, the lengths and SHA-256 of the
  files that grow from round to round, what was run, and a SHA-256 of all this.

Each file is written under another name, flushed to the disk and renamed. The last two checkpoints
are kept: if the newest one is damaged, the one before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from wecfl.core.state import State
from wecfl.core.types import under
from wecfl.errors import RunFolderError
from wecfl.folder.files import TEMPORARY_SUFFIX, replace_file, replace_tensors
from wecfl.inputs import RefusedFileError, check_fits, check_regular

__all__ = [
    "FOLDER_FORMAT",
    "Checkpoint",
    "Manifest",
    "check_format",
    "latest",
    "tidy",
    "write",
]

FOLDER_FORMAT = 3
"""The format of run folders. Folders without a number are older and have no checkpoints. Before
format 2 a state was not sorted by owner; before format 3 `Manifest.digests` did not exist."""
KEPT_CHECKPOINTS = 2
"""The number of checkpoints that are kept."""
CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of a checkpoint."""

    format: int
    round: int
    members: int
    """The number of soft-voted runs."""
    bytes: int
    sha256: str
    lengths: dict[str, int]
    """The bytes, up to this round, of the files that grow."""
    seconds: float
    """The wall time of the run so far."""
    engine: str
    data: str
    """The fingerprint of the clients' data."""
    config: dict[str, Any]
    """The content of `config.toml`."""
    digests: dict[str, str] = field(default_factory=dict)
    """The SHA-256, up to this round, of the files that grow."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A checkpoint that was read: the states of the soft-voted runs after a round."""

    manifest: Manifest
    states: tuple[State, ...]
    damaged: tuple[str, ...] = ()
    """Why newer checkpoints could not be used, one line for each."""

    @property
    def round(self) -> int:
        """The round after which the run continues."""
        return self.manifest.round


def write(folder: Path, states: Sequence[State], **about: Any) -> None:
    """Write the checkpoint of a round to a run folder, and delete those before the last two."""
    place, round = folder / CHECKPOINTS_FOLDER, states[0].round
    place.mkdir(exist_ok=True)
    arrays = {
        f"{j}.{name}": array
        for j, state in enumerate(states)
        for name, array in _arrays(state).items()
    }
    size, digest = replace_tensors(place / f"{round:06}.safetensors", arrays)
    manifest = asdict(Manifest(FOLDER_FORMAT, round, len(states), size, digest, **about))
    signed = {"manifest": manifest, "sha256": _digest(manifest)}
    replace_file(place / f"{round:06}.json", [json.dumps(signed, indent=2).encode()])
    tidy(folder)


def tidy(folder: Path) -> None:
    """Delete the checkpoints before the last two, and incomplete files that a crash has left."""
    place = folder / CHECKPOINTS_FOLDER
    for file in _manifests(folder)[:-KEPT_CHECKPOINTS]:
        file.unlink()
    names = {file.stem for file in place.glob("*.json")}
    for file in place.glob(f"*.safetensors*{TEMPORARY_SUFFIX}"):
        file.unlink()
    for file in place.glob("*.safetensors"):
        if file.stem not in names:
            file.unlink()


def latest(folder: Path) -> Checkpoint | None:
    """The newest usable checkpoint of a run folder; None if none was ever written.

    If a file of a checkpoint is damaged, the checkpoint before it is used.
    """
    damaged: list[str] = []
    for file in reversed(_manifests(folder)):
        try:
            manifest = _manifest(file)
            states = tuple(_states(manifest, file.with_suffix(".safetensors")))
        except RunFolderError as error:
            damaged.append(str(error))
        else:
            return Checkpoint(manifest, states, tuple(damaged))
    if damaged:
        raise RunFolderError(
            f"no checkpoint of {folder} can be used ({'; '.join(damaged)}): "
            f"start the run again in another folder"
        )
    return None


def _manifests(folder: Path) -> list[Path]:
    """The manifests of a run folder, by round; from round 10⁶ on, names are longer."""
    found = (folder / CHECKPOINTS_FOLDER).glob("*.json")
    return sorted(found, key=lambda file: (len(file.stem), file.stem))


def check_format(number: object, where: Path) -> None:
    """Refuse a file that a later version wrote."""
    if not isinstance(number, int) or number > FOLDER_FORMAT:
        raise RunFolderError(
            f"{where} has format {number}, but this version of wecfl reads formats up to "
            f"{FOLDER_FORMAT}: use a later version"
        )


STATE_TABLES = ("memory", "cluster", "known", "whole", "replies")
"""The tables of a state."""


def _arrays(state: State) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "round": np.array([state.round]),
        "tick": np.array([state.tick]),
        "centers": state.centers,
        "labels": state.labels,
    }
    for owner in STATE_TABLES:
        for name, values in (getattr(state, owner) or {}).items():
            is_bool = values.dtype == np.bool_  # a type that some readers do not know
            arrays[f"{owner}.{name}"] = values.astype(np.int8) if is_bool else values
    return arrays


def _state(arrays: Mapping[str, np.ndarray[Any, Any]], format: int) -> State:
    if format < 2:
        arrays = _sorted_by_owner(arrays)
    tables = {owner: under(f"{owner}.", arrays) for owner in STATE_TABLES}
    for owner, name in (("known", "met"), ("memory", "begun")):
        if name in tables[owner]:
            tables[owner][name] = tables[owner][name].astype(np.bool_)
    return State(
        int(arrays["round"][0]),
        tables.pop("replies") or None,
        arrays["centers"],
        arrays["labels"],
        tick=int(arrays["tick"][0]),
        **tables,
    )


def _sorted_by_owner(arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    """A state of format 1, with the names of format 2.

    In format 1, what the server knows about clients was in the memory, or in fields of the state.
    """
    names = {
        "memory.lr": "known.lr", "replies": "known.outcome", "met": "known.met",
        "models": "replies.model",
    }  # fmt: skip
    renamed = {
        names.get(name, f"whole.{name}" if name.startswith("notes.") else name): array
        for name, array in arrays.items()
    }
    return {**renamed, "tick": arrays["round"]}


def _manifest(file: Path) -> Manifest:
    """The manifest in a file. Its checksum shows that wecfl wrote it, so no more is checked."""
    try:
        check_regular(file)
        signed = json.loads(file.read_bytes())
    except OSError as error:
        raise RunFolderError(f"can't read {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{file} is damaged ({error})") from None
    manifest = signed.get("manifest") if isinstance(signed, dict) else None
    if not isinstance(manifest, dict):
        raise RunFolderError(f"{file} is damaged (it has no manifest)")
    check_format(manifest.get("format", 0), file)
    if signed.get("sha256") != _digest(manifest):
        raise RunFolderError(f"{file} is damaged (its checksum differs)")
    return Manifest(**manifest)


def _states(manifest: Manifest, file: Path) -> Iterator[State]:
    """The states in a file whose size and checksum are those of the manifest."""
    try:
        check_regular(file)
        check_fits(manifest.bytes)
        if file.stat().st_size != manifest.bytes:
            raise RunFolderError(
                f"{file} is damaged ({file.stat().st_size} bytes, expected {manifest.bytes})"
            )
        with file.open("rb") as content:
            if file_digest(content, "sha256").hexdigest() != manifest.sha256:
                raise RunFolderError(f"{file} is damaged (its checksum differs)")
        arrays = load_file(file)
    except RefusedFileError as error:
        raise RunFolderError(f"can't read {file}: {error}") from None
    except OSError as error:
        raise RunFolderError(f"can't read {file}: {error.strerror}") from None
    for j in range(manifest.members):
        yield _state(under(f"{j}.", arrays), manifest.format)


def _digest(manifest: Mapping[str, Any]) -> str:
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
