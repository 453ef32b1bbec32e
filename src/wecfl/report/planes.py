"""The clients in the plane, round by round: t-SNE that moves smoothly."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from sklearn.manifold import TSNE

from wecfl import rng
from wecfl.base import F64
from wecfl.bilevel.threads import one_thread

__all__ = ["apart", "planes"]

LEAST = 5
"""Clients below which neighbourhoods mean nothing."""


def planes(rounds: Iterable[F64], seed: int = 0) -> list[F64]:
    """The plane (m, 2) of each round from the distances (m, m) of its clients.

    Every round has a t-SNE of its own, of the distances that its clustering saw. It starts where
    the previous round ended and without early exaggeration, so that clients move only as far as
    their neighbourhoods changed, however far the models went meanwhile.

    >>> near, far = np.array([[0.0, 1.0], [1.0, 0.0]]), np.full((2, 2), 9.0)
    >>> distances = np.block([[near, far, far], [far, near, far], [far, far, near]])
    >>> first, second = planes([distances, distances])
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
        with one_thread():  # also the faster way: a step is shorter than waking up threads
            plane = np.asarray(tsne.fit_transform(ratios), np.float64)
        placed.append(plane - plane.mean(axis=0))
    return placed


def apart(planes: Iterable[F64], width: float, height: float, gap: float) -> list[F64]:
    """The planes, each filling a rectangle, with clients moved aside so that none hides another.

    Clients of one group nearly coincide. Where two are closer than `gap` they push each other away,
    starting from the arrangement of the round before, so that it stays recognizable.

    >>> [placed] = apart([np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])], 100, 100, gap=10)
    >>> bool(np.linalg.norm(placed[0] - placed[1]) > 9)
    True
    """
    placed: list[F64] = []
    aside: F64 | None = None
    for plane in planes:
        low, high = plane.min(axis=0), plane.max(axis=0)
        # t-SNE's own extent means nothing; a margin leaves room to be moved aside.
        part = np.where(high > low, (plane - low) / np.where(high > low, high - low, 1), 0.5)
        places = 3 * gap + part * (np.array([width, height]) - 6 * gap)
        if aside is None:  # points that coincide need a direction: a sunflower's
            angle = np.arange(len(plane)) * np.pi * (3 - np.sqrt(5))
            aside = gap / 100 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        moved = places + aside
        for _ in range(60):
            between = moved[:, None] - moved
            length = np.hypot(between[..., 0], between[..., 1])
            push = np.clip(gap - length, 0, None) / np.maximum(length, 1e-9)
            if (length + 2 * gap * np.eye(len(plane))).min() > 0.98 * gap:
                break
            step = 0.35 * np.einsum("ij,ijc->ic", push, between)
            long = np.hypot(*step.T)[:, None]  # a crowd must not throw anybody across the plane
            moved = moved + step * np.minimum(1, gap / 2 / np.maximum(long, 1e-9))
            moved = np.clip(moved, gap / 2, np.array([width, height]) - gap / 2)
        aside = moved - places
        placed.append(moved)
    return placed
