"""Large matrices in memory that was used before.

A round makes a few matrices of m × P and drops as many. The pages of fresh memory must be found and
cleared by the system, which may take longer than what is done with them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from numpy.typing import NDArray

__all__ = ["empty"]

LEAST = 1 << 22
"""Bytes below which the allocator of the system is as good."""
KEPT = 4
"""Blocks that wait to be used again; more are given back to the system."""

_waiting: list[NDArray[np.float32]] = []


def empty(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A float32 array of any content, like `numpy.empty`.

    >>> first = empty((1000, 2000))
    >>> where = first.ctypes.data
    >>> del first
    >>> empty((2000, 1000)).ctypes.data == where
    True
    """
    count = prod(shape)
    if 4 * count < LEAST:
        return np.empty(shape, np.float32)
    fitting = [i for i, block in enumerate(_waiting) if block.size == count]
    block = _waiting.pop(fitting[-1]) if fitting else np.empty(count, np.float32)
    return np.asarray(_Loan(block)).reshape(shape)


class _Loan:
    """What an array refers to as its owner: when the last reference goes, the block waits again."""

    def __init__(self, block: NDArray[np.float32]) -> None:
        self._block = block
        self.__array_interface__ = block.__array_interface__

    def __del__(self, back: Callable[[NDArray[np.float32]], None] = _waiting.append) -> None:
        back(self._block)
        del _waiting[:-KEPT]
