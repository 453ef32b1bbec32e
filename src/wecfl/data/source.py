"""What a data set is, and what is known about one before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from wecfl.core.types import F32, Int

__all__ = ["TABLE_ENDINGS", "Dataset", "Package", "Source"]

TABLE_ENDINGS = (".csv", ".parquet")
"""The endings of files that hold a table, with a column that says whose each row is."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Labelled samples, the training set first.

    >>> from wecfl.data.datasets import load
    >>> digits = load("digits")
    >>> digits.x.shape, digits.n_train, digits.classes
    ((1797, 1, 8, 8), 1438, 10)
    """

    name: str
    x: F32
    """(n, …): the samples. Rows [0, n_train) are for training, the rest for testing."""
    y: Int
    """(n,): their labels in 0 … classes − 1."""
    n_train: int
    classes: int


class Package(NamedTuple):
    """A Debian package and the folder it installs the files in."""

    name: str
    folder: PurePosixPath


@dataclass(frozen=True, slots=True)
class Source:
    """A data set known by name: what it holds, how to recognise and read it, where to get it."""

    name: str
    shape: tuple[int, ...]
    """Of one sample: channels, height, width."""
    n_train: int
    n_test: int
    classes: int
    find: Callable[[Path], Path | None]
    """Folder ↦ the path to give to `read`, or None if the folder does not hold the data set."""
    read: Callable[[Source, Path], Dataset]
    files: Mapping[str, str]
    """Official file name ↦ SHA-256 sum."""
    urls: tuple[str, ...] = ()
    """The folders to download the files from, in the order in which they are tried."""
    debian: Package | None = None
