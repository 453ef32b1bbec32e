"""Room for every client in the plane."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from wecfl.core.types import F64

__all__ = ["apart"]


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
