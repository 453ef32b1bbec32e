"""Packs rows of numbers for actors: each distinct row is sent once, if that is shorter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wecfl import memory
from wecfl.core.types import F32, Int

__all__ = ["Packed", "array_for", "distinct"]

KEY_COLUMNS = 64
"""The number of columns that are compared first, to find rows that may be equal."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A matrix of rows as it is sent: whole, or as its distinct rows and their numbers."""

    array: Any
    nbytes: int
    numbers: Int | None = None

    def rows(self, part: Int) -> Any:
        """The rows that are sent to the actor with this part of the clients."""
        return self.array if self.numbers is not None else self.array[part]

    def which(self, part: Int) -> Int | None:
        """The number of each client's row; None: each client has its own row, in order."""
        return None if self.numbers is None else self.numbers[part]


def array_for(rows: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of any content, for numbers like these."""
    return memory.empty(shape) if rows.dtype == np.float32 else np.empty(shape, rows.dtype)


def distinct(rows: F32) -> tuple[Int, Int]:
    """The positions of the distinct rows, and for each row the number of its distinct row.

    Equal rows may count as distinct if another row equals them only in the key columns.

    >>> chosen, which = distinct(np.array([[1, 2], [3, 4], [1, 2], [1, 5]], np.float32))
    >>> chosen.tolist(), which.tolist()
    ([0, 1, 3], [0, 1, 0, 2])
    """
    bits = rows.view(np.uint32)  # so that NaN equals itself and 0 differs from −0
    some = np.ascontiguousarray(bits[:, :: max(1, bits.shape[1] // KEY_COLUMNS)])
    numbers: dict[bytes, int] = {}
    chosen: list[int] = []
    which = np.empty(len(rows), np.int64)
    for i, key in enumerate(some):
        number = numbers.setdefault(key.tobytes(), len(chosen))
        if number == len(chosen) or not np.array_equal(bits[i], bits[chosen[number]]):
            number = len(chosen)
            chosen.append(i)
        which[i] = number
    return np.array(chosen, np.int64), which
