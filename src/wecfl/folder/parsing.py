"""Reads the files of run folders and checks them against their schemas.

If anything is wrong with a file, the error is a `RunFolderError` of one line.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file

from wecfl.errors import RunFolderError
from wecfl.folder.schema import Schema
from wecfl.inputs import check_fits, check_regular
from wecfl.validation import one_line

__all__ = [
    "folder_errors",
    "read_json",
    "read_json_lines",
    "read_table",
    "read_tensors",
    "read_toml",
]

MAX_DIGITS = 300
"""The largest number of digits of a whole number; it then fits into a float."""


@contextmanager
def folder_errors(file: str | Path, remedy: str = "") -> Iterator[None]:
    """Turn an error of a parser or a check about `file` into a `RunFolderError` of one line.

    Only errors that readers raise are caught: a `TypeError` or a `KeyError` is a bug of wecfl.

    >>> from wecfl.folder.schema import EnvironmentSchema
    >>> with folder_errors("env.json"): EnvironmentSchema.model_validate({"command": 3})
    Traceback (most recent call last):
    wecfl.errors.RunFolderError: can't read env.json: command: input should be a valid string, got 3
    """
    try:
        yield
    except RunFolderError:
        raise
    except (OSError, ValueError, OverflowError, RecursionError, MemoryError, csv.Error,
            SafetensorError) as error:  # fmt: skip
        strerror = error.strerror if isinstance(error, OSError) else None
        known = one_line(error, None) if isinstance(error, ValidationError) else strerror
        reason = " ".join(str(known or error).split()) or type(error).__name__
        raise RunFolderError(
            f"can't read {file}: {reason[:200]}{remedy and '; '}{remedy}"
        ) from None


def read_json(file: Path, schema: type[Schema], remedy: str = "") -> dict[str, Any]:
    """The object that a JSON file holds, checked against its schema."""
    with folder_errors(file, remedy):
        return _checked(_parse_json(_content(file)), schema)


def read_json_lines(
    file: Path, schema: type[Schema], max_lines: int | None = None
) -> list[dict[str, Any]]:
    """The object in each line of a file, or in its first `max_lines` lines, checked.

    If the first line is ``{"common": {NAME: {…}, …}}``, all other lines have these entries too.
    """
    with folder_errors(file):
        lines = _content(file).splitlines()[:max_lines]
    objects, common = [], dict[str, Any]()
    for number, line in enumerate(lines, 1):
        with folder_errors(f"{file}, line {number}"):
            found = _parse_json(line)
            if number == 1 and isinstance(found, dict) and [*found] == ["common"]:
                common = _common(found["common"])
                continue
            for name, entries in common.items():
                if isinstance(found, dict) and isinstance(own := found.get(name, {}), dict):
                    found[name] = {**entries, **own}
            objects.append(_checked(found, schema))
    return objects


def _common(found: Any) -> dict[str, Any]:
    if not isinstance(found, dict) or not all(isinstance(part, dict) for part in found.values()):
        raise ValueError("'common' must hold tables by name")
    return found


def read_toml(file: Path, schema: type[Schema]) -> dict[str, Any]:
    """The tables of a TOML file, checked against their schema."""
    with folder_errors(file):
        return _checked(tomllib.loads(_content(file).decode()), schema)


def read_table(file: Path) -> list[list[str]]:
    """The rows of a CSV file, the header first; all have the same number of cells."""
    with folder_errors(file):
        lines = StringIO(_content(file).decode(), newline="")
        rows = list(csv.reader(lines, strict=True))
        for number, row in enumerate(rows, 1):
            if len(row) != len(rows[0]):
                raise ValueError(f"line {number} has {len(row)} cells, expected {len(rows[0])}")
        if not rows:
            raise ValueError("it is empty")
        return rows


def read_tensors(file: Path, **dimensions: int) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file.

    `dimensions` says which arrays must exist and be finite, and how many dimensions each has.
    """
    with folder_errors(file):
        arrays = _load_safetensors(file)
        for name, ndim in dimensions.items():
            if name not in arrays:
                raise ValueError(f"it has no {name}")
            if arrays[name].ndim != ndim or not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} must be finite numbers in {ndim} dimensions")
        return arrays


def _content(file: Path) -> bytes:
    check_regular(file)
    check_fits(file.stat().st_size)
    return file.read_bytes()


def _load_safetensors(file: Path) -> dict[str, NDArray[Any]]:
    check_regular(file)
    check_fits(file.stat().st_size)
    try:
        return load_file(file)
    except (KeyError, TypeError) as error:
        # safetensors raises these for a type that numpy does not have.
        raise ValueError(f"it holds numbers of a type that numpy does not know: {error}") from error


def _parse_json(data: bytes) -> Any:
    return json.loads(data, parse_int=_parse_int)


def _parse_int(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a whole number has {len(digits)} digits, expected at most {MAX_DIGITS}")
    return int(digits)


def _checked(value: Any, schema: type[Schema]) -> dict[str, Any]:
    schema.model_validate(value)
    return dict(value)
