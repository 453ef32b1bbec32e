"""Ten k-means++ starts by our code and by scikit-learn's `kmeans_plusplus`, which choose the same.

In processor time of one thread, in the space in which the E-step runs (`isometric`). The whole
E-step is what the ten starts are a part of.
"""

from __future__ import annotations

from time import process_time

import numpy as np
from sklearn.cluster import kmeans_plusplus

from common import Line, main, measure, ratios
from wecfl.bilevel.clustering.kmeans import KMeans, isometric, spread_seeds
from wecfl.bilevel.threads import one_thread

SIZES = ((200, 850), (200, 15_690), (10_000, 850))
"""Clients and columns: the heads of the two CNNs of the paper's setting, and many clients."""
K, STARTS = 10, 10


def lines(turns: int = 9) -> list[Line]:
    """The ratio of the starts, and what it changes in the whole E-step."""
    found = []
    for clients, columns in SIZES:
        rng = np.random.default_rng(0)
        groups = rng.normal(size=(K, columns))[np.arange(clients) % K]
        points = groups + rng.normal(size=(clients, columns))
        weight = rng.integers(20, 500, clients).astype(np.float64)
        near, old = isometric(points, points[:K])

        def ours(near=near, weight=weight) -> list[list[int]]:
            return [
                spread_seeds(near, K, weight, np.random.RandomState(seed)).tolist()
                for seed in range(STARTS)
            ]

        def theirs(near=near, weight=weight) -> list[list[int]]:
            return [
                kmeans_plusplus(near, K, sample_weight=weight, random_state=seed)[1].tolist()
                for seed in range(STARTS)
            ]

        def e_step(near=near, old=old, weight=weight) -> None:
            KMeans(fresh=STARTS).lloyd(near, old, weight, np.random.default_rng(0))

        with one_thread():
            same = sum(a == b for a, b in zip(ours(), theirs(), strict=True))
            mine, other, whole = measure(turns, ours, theirs, e_step, clock=process_time)
        shape = f"{clients:,} × {columns:,}"
        more = [100 * (b - a) / c for a, b, c in zip(mine, other, whole, strict=True)]
        milliseconds = f"{1000 * np.median(mine):.3g} and {1000 * np.median(other):.3g} ms"
        detail = f"{milliseconds}; the same seeds in {same} of {STARTS} starts"
        found += [
            Line(
                "k-means++ starts, ours ÷ scikit-learn", shape, ratios(other, mine), detail=detail
            ),
            Line("E-step longer with scikit-learn's starts", shape, more, unit="%"),
        ]
    return found


if __name__ == "__main__":
    main(lines)
