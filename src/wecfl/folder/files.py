"""Writes files atomically: after a crash at any moment, a file is complete or absent.

A file that grows line by line is an exception: a checkpoint records its length and its SHA-256.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from wecfl.errors import RunFolderError

__all__ = ["TEMPORARY_SUFFIX", "GrowingFile", "replace_file", "replace_tensors", "sync"]

TEMPORARY_SUFFIX = ".part"
"""The end of the name of a file that is being written. After a crash, such a file is useless."""

SAFETENSORS_DTYPES = {"float32": "F32", "float64": "F64", "int64": "I64", "int8": "I8"}
CHUNK_BYTES = 1 << 22


def replace_file(path: Path, parts: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a file under another name, flush it, rename it to `path`; return its size and SHA-256.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     size, digest = replace_file(Path(place) / "a", [b"x" * 3])
    ...     size, [file.name for file in Path(place).iterdir()]
    (3, ['a'])
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    digest, size = sha256(), 0
    try:
        with temporary.open("wb") as file:
            for part in parts:
                digest.update(part)
                size += file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(path.parent)
    return size, digest.hexdigest()


def replace_tensors(
    path: Path,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    about: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Write arrays in the safetensors format, like `safetensors.numpy.save_file`, but atomically.

    The arrays are not copied, since they may fill most of the memory. `about` becomes the metadata
    of the file.
    """
    return replace_file(path, _safetensors(arrays, about))


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class GrowingFile:
    """A file that gets more lines; `length` and `sha256` are those of all that was written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.length, self._digest = 0, sha256()

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was written."""
        return self._digest.hexdigest()

    def begin(self) -> None:
        """Create the file, or make it empty."""
        replace_file(self._path, [])
        self.length, self._digest = 0, sha256()

    def add(self, text: str) -> None:
        """Add to the file."""
        written = text.encode()
        with self._path.open("ab") as file:
            file.write(written)
        self.length += len(written)
        self._digest.update(written)

    def go_on(self, length: int, digest: str | None) -> None:
        """Read the file up to its length at a checkpoint, and refuse it if it has changed.

        Without a digest (None, in an older format) only the length is checked.
        """
        advice = "it was changed, so this run can't be resumed; start it again in another folder"
        held = self._path.stat().st_size if self._path.is_file() else 0
        if held < length:
            raise RunFolderError(
                f"{self._path} is shorter than the {length} bytes of its checkpoint: {advice}"
            )
        self.length, self._digest = length, sha256()
        with self._path.open("rb") as file:
            for first in range(0, length, CHUNK_BYTES):
                self._digest.update(file.read(min(CHUNK_BYTES, length - first)))
        if digest not in (None, self.sha256):
            raise RunFolderError(f"{self._path} differs from its checkpoint: {advice}")

    def cut(self) -> None:
        """Delete what was written after the checkpoint."""
        os.truncate(self._path, self.length)


def _safetensors(
    arrays: Mapping[str, np.ndarray[Any, Any]], about: Mapping[str, str] | None
) -> Iterable[bytes | memoryview]:
    """The parts of the file: the length of the header, the header, the arrays' bytes."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    # Wider numbers come first, so that each array begins at a multiple of the size of its numbers.
    names = sorted(contiguous, key=lambda name: (-contiguous[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(about)} if about else {}
    end = 0
    for name in names:
        array = contiguous[name]
        begin, end = end, end + array.nbytes
        dtype = SAFETENSORS_DTYPES[array.dtype.name]
        shape = np.shape(arrays[name])  # `ascontiguousarray` makes a single number a list of one
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in names:
        flat = contiguous[name].reshape(-1).view(np.uint8).data
        for first in range(0, len(flat), CHUNK_BYTES):
            yield flat[first : first + CHUNK_BYTES]
