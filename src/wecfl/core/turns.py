"""Turns: which of very many clients take part, without a draw for each of them.

Clients take turns in a random order. When all have had a turn, they begin again in another order.
The order is a keyed permutation that is computed only for the places that are needed. So the cost
of a round grows with its participants, and not with the number of registered clients.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wecfl import rng
from wecfl.core.types import Int

__all__ = ["participants", "shuffled"]

FEISTEL_ROUNDS = 6
"""Four rounds give a permutation that can't be told from a random one if its function is random."""


def participants(m: int, active: int, seed: int, round: int) -> Int:
    """(n,), the clients of m that take part after `round` rounds, in ascending order.

    Their number is `active`. In the last round of a pass there are more if m is not a multiple of
    `active`. If m is smaller than `active`, all clients take part.

    >>> turns = [participants(5, 2, seed=0, round=t).tolist() for t in range(2)]
    >>> sorted(client for turn in turns for client in turn), sorted(map(len, turns))
    ([0, 1, 2, 3, 4], [2, 3])
    """
    rounds = max(m // active, 1)
    number, turn = divmod(round, rounds)
    places = np.arange(turn * active, (turn + 1) * active if turn < rounds - 1 else m)
    return np.sort(shuffled(m, places, rng.stream(seed, "turns", number)))


def shuffled(m: int, places: Int, generator: np.random.Generator) -> Int:
    """(n,), the numbers at these places of a random order of 0, …, m − 1.

    The numbers below a power of 4 are permuted by a Feistel network: with the halves (a, b) of a
    number's bits and a keyed function f, (a, b) ↦ (b, a ⊕ f(b)) can be undone, whatever f is. A
    number that comes out above m − 1 goes through it again until it is below ("cycle walking"),
    which permutes 0, …, m − 1.

    >>> order = shuffled(10, np.arange(10), np.random.default_rng(0))
    >>> sorted(order.tolist()) == list(range(10))
    True
    """
    half = np.uint64(max(-(-int(m - 1).bit_length() // 2), 1))
    low = np.uint64((1 << int(half)) - 1)
    keys = generator.integers(2**64, size=FEISTEL_ROUNDS, dtype=np.uint64)
    found = places.astype(np.uint64)
    walking = np.ones(len(found), np.bool_)
    while walking.any():
        left, right = found[walking] >> half, found[walking] & low
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & low)
        found[walking] = (left << half) | right
        walking = found >= np.uint64(m)
    return found.astype(np.int64)


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers with all bits mixed (the finalizer of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return numbers ^ (numbers >> np.uint64(31))
