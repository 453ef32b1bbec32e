"""Rows of what the clients of a fleet keep, for the clients that have taken part."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from wecfl.core.types import Int, Table

__all__ = ["KeptRows"]


@final
class KeptRows:
    """Tables of m clients, with rows only for clients that were given some; others have zeros.

    A table that grows above `budget` bytes is moved to a file in the folder of temporary files; the
    system keeps the parts in memory that were used last.

    >>> kept = KeptRows(1_000_000, budget=1 << 30)
    >>> kept.put(np.array([7, 5]), {"momentum": np.array([[7.0], [5.0]])})
    >>> kept.take(np.array([5, 6, 7]))["momentum"].tolist()
    [[5.0], [0.0], [7.0]]
    """

    def __init__(self, m: int, budget: float) -> None:
        self._row = np.full(m, -1, np.int64)
        self._tables: dict[str, NDArray[Any]] = {}
        self._count, self._budget = 0, budget
        self._folder: TemporaryDirectory[str] | None = None

    def __len__(self) -> int:
        """The number of clients that have rows."""
        return self._count

    @property
    def nbytes(self) -> int:
        """The size of all rows."""
        return sum(self._count * table[:1].nbytes for table in self._tables.values())

    def take(self, who: Int, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
        """(n, …), copies of the rows of some clients, from the tables `names`, by default all."""
        rows, known = self._row[who], self._row[who] >= 0
        found = {}
        for name, table in self._tables.items():
            if names is None or name in names:
                found[name] = np.zeros((len(who), *table.shape[1:]), table.dtype)
                found[name][known] = table[rows[known]]
        return found

    def put(self, who: Int, tables: Table) -> None:
        """Replace the rows of some clients."""
        new = who[self._row[who] < 0]
        self._row[new] = np.arange(self._count, self._count + len(new))
        self._count += len(new)
        for name, made in tables.items():
            self._tables[name] = self._with_room(name, made)
            self._tables[name][self._row[who]] = made

    def rows(self, copied_bytes: float) -> dict[str, NDArray[Any]]:
        """All rows, and the numbers of their clients as `client`; nothing if there are none.

        They are copies if they have at most `copied_bytes` bytes. Otherwise `put` changes them.
        """
        if not self._tables:
            return {}
        client = np.empty(self._count, np.int64)
        numbers = np.flatnonzero(self._row >= 0)
        client[self._row[numbers]] = numbers
        for name, table in self._tables.items():
            self._tables[name] = self._with_room(name, table)
        tables = {name: table[: self._count] for name, table in self._tables.items()}
        if self.nbytes <= copied_bytes:
            tables = {name: table.copy() for name, table in tables.items()}
        return {"client": client, **tables}

    def close(self) -> None:
        """Drop all rows, and remove the files."""
        self._tables.clear()
        if self._folder:
            self._folder.cleanup()

    def _with_room(self, name: str, made: NDArray[Any]) -> NDArray[Any]:
        """The table, with a row for every client that has one; new rows are zero."""
        before = self._tables.get(name)
        if before is not None and len(before) >= self._count:
            return before
        shape = (max(self._count, 0 if before is None else 2 * len(before)), *made.shape[1:])
        if made.dtype.itemsize * int(np.prod(shape)) <= self._budget:
            table = np.zeros(shape, made.dtype)
            if before is not None:
                table[: len(before)] = before
            return table
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="wecfl-rows-")
        file = Path(self._folder.name) / name
        if isinstance(before, np.memmap):  # the file grows, and its new part is zero
            before.flush()
            return np.memmap(file, made.dtype, "r+", shape=shape)
        mapped = np.memmap(file, made.dtype, "w+", shape=shape)
        if before is not None:
            mapped[: len(before)] = before
        return mapped
