"""Reuses the memory of large matrices, and says how much memory this process needed.

A round makes a few matrices of m × P, and drops as many. For new memory, the system must find and
clear pages. This may take longer than the work on them (`benchmarks/shortcuts.py` measures it).
"""

from __future__ import annotations

import resource
import sys
from math import prod
from pathlib import Path
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

__all__ = ["empty", "peak"]

MIN_REUSED_BYTES = 1 << 22
"""The smallest size of a block that is reused. Below it, the system's allocator is as fast."""
MAX_FREE_BLOCKS = 4
"""The largest number of blocks that wait to be reused; others are given back to the system."""

_free_blocks: dict[int, NDArray[np.float32]] = {}
"""The free blocks by their identity. Each access is a single operation on the dictionary, since
threads share it, and the garbage collector may give a block back at any moment."""


def empty(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A float32 array of any content, like `numpy.empty`.

    >>> first = empty((1000, 2000))
    >>> where = first.ctypes.data
    >>> del first
    >>> empty((2000, 1000)).ctypes.data == where
    True
    """
    count = prod(shape)
    if 4 * count < MIN_REUSED_BYTES:
        return np.empty(shape, np.float32)
    fitting = [key for key, block in list(_free_blocks.items()) if block.size == count]
    block = _free_blocks.pop(fitting[-1], None) if fitting else None
    if block is None or block.size != count:  # another thread was faster
        block = np.empty(count, np.float32)
    owner = _Owner(block)
    finalize(owner, _give_back, block).atexit = False
    return np.asarray(owner).reshape(shape)


def peak() -> int:
    """The largest resident memory that this process has had so far, in bytes.

    >>> peak() > 10_000_000
    True
    """
    status = Path("/proc/self/status")
    if status.exists():  # on Linux `ru_maxrss` begins with the memory of the parent process
        lines = status.read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _Owner:
    """Owns the memory of an array and all its views.

    When the last of them is deleted, the owner is deleted too, and the block is free.
    """

    def __init__(self, block: NDArray[np.float32]) -> None:
        self.__array_interface__ = block.__array_interface__


def _give_back(block: NDArray[np.float32]) -> None:
    _free_blocks[id(block)] = block
    for key in list(_free_blocks)[:-MAX_FREE_BLOCKS]:
        _free_blocks.pop(key, None)
