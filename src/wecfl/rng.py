"""Keyed randomness: a draw depends on (seed, purpose, round, client), never on a global state.

So a result does not depend on the number of workers, on the order of the clients or on the machine
that trains them, and a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

__all__ = ["derive", "stream"]


def stream(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """The random generator for one purpose, one round and one client.

    >>> [int(stream(0, "shuffle", round=3, client=17).integers(100)) for _ in range(2)]
    [37, 37]
    >>> int(stream(0, "dropout", round=3, client=17).integers(100))
    92
    """
    return np.random.default_rng([seed, crc32(purpose.encode()), round, client])


def derive(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A seed for code that needs an integer instead of a generator (torch, scikit-learn).

    >>> 0 <= derive(0, "init") < 2**31
    True
    """
    return int(stream(seed, purpose, round, client).integers(2**31))
