"""t-SNE planes of the clients, one for each round, in which clients move smoothly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from sklearn.manifold import TSNE

from wecfl import rng
from wecfl.bilevel.threads import one_thread
from wecfl.core.types import F64

__all__ = ["MIN_MAPPED_CLIENTS", "tsne_planes"]

MIN_MAPPED_CLIENTS = 5
"""The smallest number of clients for a map: with fewer, neighbourhoods mean nothing."""


def tsne_planes(rounds: Iterable[F64], seed: int = 0) -> list[F64]:
    """The plane (m, 2) of each round from the distances (m, m) of its clients.

    Every round has a t-SNE of its own, made of the distances that its clustering saw. It starts
    where the previous round ended, and without early exaggeration. So clients move only as far as
    their neighbourhoods changed, however far their models moved.

    >>> near, far = np.array([[0.0, 1.0], [1.0, 0.0]]), np.full((2, 2), 9.0)
    >>> distances = np.block([[near, far, far], [far, near, far], [far, far, near]])
    >>> first, second = tsne_planes([distances, distances])
    >>> first.shape, bool(np.ptp(second) > 0)
    ((6, 2), True)
    """
    placed: list[F64] = []
    for distances in rounds:
        m = len(distances)
        # Neighbourhoods must reach beyond a client's own group, or it shrinks to a point.
        usual = {"perplexity": min(30.0, (m - 1) / 3), "metric": "precomputed"}
        if not placed:
            random = rng.derive(seed, "t-SNE")
            tsne = TSNE(init="random", max_iter=1000, random_state=random, **usual)
        else:
            start = placed[-1].astype(np.float32)
            tsne = TSNE(init=start, max_iter=250, early_exaggeration=1, **usual)
        # Only ratios count, and squares of distances must stay within float32.
        ratios = distances / max(distances.max(), np.finfo(np.float64).tiny)
        with one_thread():  # this is also faster, since a step is shorter than waking threads up
            plane = np.asarray(tsne.fit_transform(ratios), np.float64)
        placed.append(plane - plane.mean(axis=0))
    return placed
