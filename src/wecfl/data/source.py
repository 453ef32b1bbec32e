"""A loaded data set, and what is known about a data set before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wecfl.core.types import F32
from wecfl.data.targets import Targets

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLE_ENDINGS", "Dataset", "KnownSource", "Package", "Source", "TableSource"]

TABLE_ENDINGS = (".csv", ".parquet")
"""The endings of files that hold a table, in which a column names the client of each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Samples and their targets, the training set first.

    >>> from wecfl.data.datasets import load
    >>> digits = load("digits")
    >>> digits.x.shape, digits.n_train, digits.classes
    ((1797, 1, 8, 8), 1438, 10)
    """

    name: str
    x: F32
    """(n, …), the samples. The first `n_train` rows are for training, the others for testing."""
    y: Targets
    """(n,), their labels, from 0 to classes − 1; or their targets as numbers, (n,) or (n, d)."""
    n_train: int
    classes: int
    """C, the number of classes; if targets are numbers, the number of them for a sample."""


class Package(NamedTuple):
    """A Debian package and the folder it installs the files in."""

    name: str
    folder: PurePosixPath


@dataclass(frozen=True, slots=True)
class Source:
    """A data set known by name: what it holds, how to find and read it, and where to get it."""

    name: str
    shape: tuple[int, ...]
    """The shape of one sample: channels, height, width."""
    n_train: int
    n_test: int
    classes: int
    find: Callable[[Path], Path | None]
    """Gives, for a folder, the path to give to `read`; None if the data set is not in the
    folder."""
    read: Callable[[Source, Path], Dataset]
    files: Mapping[str, str]
    """The SHA-256 sums by the official names of the files."""
    urls: tuple[str, ...] = ()
    """The folders to download the files from, in the order in which they are tried."""
    debian: Package | None = None


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table known by name, in which a column names the client of each row.

    >>> from wecfl.data.tables import TABLES
    >>> TABLES["vowel"].client, TABLES["vowel"].target
    ('speaker', 'vowel')
    """

    name: str
    rows: int
    clients: int
    client: str
    """The column that names the client of a row."""
    target: str
    """The column to predict."""
    find: Callable[[Path], Path | None]
    """Gives, for a folder, the path to give to `read`; None if the table is not in the folder."""
    read: Callable[[Path], pd.DataFrame]
    files: Mapping[str, str]
    """The SHA-256 sums by the official names of the files."""
    urls: tuple[str, ...] = ()
    """The folders to download the files from, in the order in which they are tried."""
    debian: Package | None = None
    features: tuple[str, ...] | None = None
    """The columns to predict from; None: all others."""


KnownSource: TypeAlias = Source | TableSource
"""Every kind of data set that is known by name."""
