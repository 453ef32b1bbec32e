"""Sorts the members' values in each column, and takes their weighted median."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from wecfl.core.types import F32, F64

__all__ = ["EQUAL_SHARE", "in_order", "weighted_median"]

EQUAL_SHARE = 1e-12
"""Sums of λ that differ by less than this part of their total count as equal: a sum depends on the
order of its terms."""
NUMBER_BITS = 2**29 - 1
"""The bits of a float64 that are zero where it holds a float32."""
BLOCK_VALUES = 2**16
"""The number of values that are sorted at a time, so that they stay in the cache."""


def in_order(rows: F32 | F64, weight: F64) -> Iterator[tuple[slice, F64, F64]]:
    """Yield blocks of b columns: their place, the sorted values (n, b), and Σλ up to each (n, b).

    A float32 leaves 29 bits of a float64 unused. The number of the member is kept in these bits, so
    that a plain sort moves it too, which is faster than an argsort (`benchmarks/shortcuts.py`).

    >>> [(_, values, reached)] = in_order(np.array([[3.0], [1.0]], np.float32), np.array([2.0, 5]))
    >>> values.tolist(), reached.tolist()
    ([[1.0], [3.0]], [[5.0], [7.0]])
    """
    n, width = rows.shape
    block = max(BLOCK_VALUES // n, 1)
    for start in range(0, width, block):
        columns = slice(start, min(start + block, width))
        packed = rows[:, columns].T.astype(np.float32, order="C").astype(np.float64)
        bits = packed.view(np.int64)
        bits |= np.arange(n)
        packed.sort(axis=1)
        reached = weight.take(bits.T & NUMBER_BITS)
        for before, after in pairwise(reached):  # faster than cumsum over many short columns
            np.add(before, after, out=after)
        bits &= ~NUMBER_BITS
        yield columns, packed.T, reached


def weighted_median(rows: F32 | F64, weight: F64) -> F32:
    """(P,), the weighted median of each column; the midpoint if two values are in the middle.

    >>> weighted_median(np.array([[0.0], [1], [99]], np.float32), np.ones(3)).tolist()
    [1.0]
    """
    half, slack = weight.sum() / 2, EQUAL_SHARE * weight.sum()
    center = np.empty(rows.shape[1], np.float32)
    for columns, values, reached in in_order(rows, weight):
        column = np.arange(values.shape[1])
        lower = (reached >= half - slack).argmax(axis=0)
        upper = lower + (reached[lower, column] <= half + slack)
        center[columns] = (values[lower, column] + values[upper, column]) / 2
    return center
