"""Random projections: few numbers that keep the distances between long rows.

By Johnson and Lindenstrauss (1984), for a matrix A (p × N) of independent standard normal numbers
and any x,

    E ‖xA / √N‖² = ‖x‖²,    P(|‖xA / √N‖² − ‖x‖²| > ε ‖x‖²) ≤ 2 exp(−N (ε² / 4 − ε³ / 6)).

The standard deviation of ‖xA / √N‖² is √(2/N) ‖x‖², however large p is: 18 % with N = 64. To keep
all distances between n clients up to ε, N must grow with log n / ε². Since the map is linear, means
are kept exactly: the projection of a cluster's mean is the mean of the projections.

A row can also be folded: its columns get random signs, and every N-th of them are added up
(Charikar, Chen and Farach-Colton, 2002). Squared lengths are right on average, and their standard
deviation is at most √(2/N) ‖x‖² where every N-th column holds its share of the row. Each number is
used only once, not N times.
"""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.threads import one_thread
from wecfl.core.types import F32, F64, Real

__all__ = ["folded", "in_random_directions"]

DRAWN_ROWS = 8192
"""The number of rows of A that are drawn at a time, so that a wide model needs little memory."""
CLIENTS_AT_ONCE = 1024
"""The number of clients that are converted to float64 at a time."""


def in_random_directions(rows: Real, width: int, draws: np.random.Generator) -> F64:
    """(n, N), xA for each row x (n, p), where A (p × N) is drawn piece by piece and not kept.

    >>> x, y = np.eye(2, 10_000, dtype=np.float32)
    >>> of_x, of_y, of_both = (
    ...     in_random_directions(row[None], 64, np.random.default_rng(3)) for row in (x, y, x + y))
    >>> of_x.shape, np.allclose(of_x + of_y, of_both)
    ((1, 64), True)
    """
    found = np.zeros((len(rows), width))
    with one_thread():
        for start in range(0, rows.shape[1], DRAWN_ROWS):
            columns = slice(start, min(start + DRAWN_ROWS, rows.shape[1]))
            directions = draws.standard_normal((columns.stop - start, width))
            for first in range(0, len(rows), CLIENTS_AT_ONCE):
                some = slice(first, first + CLIENTS_AT_ONCE)
                found[some] += rows[some, columns] @ directions
    return found


def folded(rows: Real, width: int, draws: np.random.Generator) -> F32:
    """(n, N), Σ_j ±x_{jN + l} for each row x (n, p) and l < N, with signs that are drawn.

    >>> x, y = np.eye(2, 10_000, dtype=np.float32)
    >>> of_x, of_both = (folded(row[None], 64, np.random.default_rng(3)) for row in (x, x + y))
    >>> of_x.shape, float((of_x**2).sum()), float((of_both**2).sum())
    ((1, 64), 1.0, 2.0)
    """
    found = np.zeros((len(rows), width), np.float32)
    for start in range(0, rows.shape[1], width):
        part = rows[:, start : start + width]
        signs = draws.integers(0, 2, part.shape[1]).astype(np.float32) * 2 - 1
        found[:, : part.shape[1]] += part * signs
    return found
