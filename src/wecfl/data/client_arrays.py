"""Arrays of clients as users give them: checked, and cut into training and test samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from wecfl import rng
from wecfl.core.types import Int
from wecfl.data.samples import NamedArray, as_labels, holdout
from wecfl.errors import ConfigError, DataError

__all__ = ["Arrays", "checked_clients", "cut_clients", "rows_of"]

Arrays: TypeAlias = Sequence[ArrayLike]
"""One array per client."""


def checked_clients(
    names: Sequence[str],
    xs: Arrays,
    ys: Arrays,
    classes: int | None,
    *,
    side: str = "",
) -> tuple[list[NamedArray], list[Int]]:
    """Each client's samples and labels; a client needs at least one to train."""
    if not names:
        raise DataError("there are no clients; give at least one array of samples")
    if not len(names) == len(xs) == len(ys):
        raise DataError(
            f"expected samples, labels and a name for each client, "
            f"got {len(xs)} arrays x, {len(ys)} arrays y, {len(names)} names"
        )
    parts = [(f"client {name}{side}", np.atleast_1d(x)) for name, x in zip(names, xs, strict=True)]
    for where, x in parts:
        if not len(x) and not side:
            raise DataError(f"{where}: 0 samples, expected at least 1; leave the client out")
    pairs = zip(parts, ys, strict=True)
    return parts, [as_labels(where, y, len(x), classes) for (where, x), y in pairs]


def cut_clients(labels: Sequence[Any], share: float, seed: int) -> list[tuple[Int, Int]]:
    """For each client which of its samples are for training, and which for testing."""
    if not 0 <= share < 1:
        raise ConfigError(f"test: expected a share from 0 to below 1, got {share}")
    return [
        holdout(np.asarray(y), share, rng.stream(seed, "holdout", 0, i))
        for i, y in enumerate(labels)
    ]


def rows_of(labels: Sequence[Int]) -> list[Int]:
    """For each part its rows in the pool of all parts."""
    ends = np.cumsum([len(y) for y in labels])
    return np.split(np.arange(ends[-1]), ends[:-1])
