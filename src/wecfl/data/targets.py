"""Targets: what is to be predicted for each sample, as users and files give it.

Whole numbers, truth values and texts become int64, and all other numbers float32. Whether whole
numbers are labels of classes is not decided here, but by the task (`wecfl.tasks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wecfl.core.types import F32
from wecfl.data.samples import Array, as_labels
from wecfl.errors import DataError

__all__ = ["Targets", "alike", "as_targets", "count_targets", "encoded", "may_be_labels"]

Targets: TypeAlias = NDArray[Any]
"""(n,) or (n, d), one row for each sample: int64 or float32."""

MIN_CLASS_LIMIT = 1000
"""Up to this number of classes is plausible, however few samples there are."""


def as_targets(where: str, y: ArrayLike, n: int, classes: int | None = None) -> Targets:
    """The targets of `n` samples; labels in 0 … classes − 1 if the number of classes is given.

    >>> as_targets("client 0", [True, False], 2), as_targets("client 0", [[0.5, 2.0]], 1)
    (array([1, 0]), array([[0.5, 2. ]], dtype=float32))
    >>> as_targets("client 0", [0.5, np.nan], 2)
    Traceback (most recent call last):
    wecfl.errors.DataError: client 0: y holds NaN or Inf (sample 1); clean or drop it
    """
    if classes is not None:
        return as_labels(where, y, n, classes)
    given = np.asarray(y)
    if given.dtype.kind not in "uifb":
        raise DataError(f"{where}: y holds {given.dtype}, expected numbers or labels")
    if given.ndim not in (1, 2) or len(given) != n or 0 in given.shape[1:]:
        raise DataError(
            f"{where}: y has shape {given.shape}, expected one target per sample: ({n},), or "
            f"several: ({n}, d)"
        )
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    if given.dtype.kind != "f":
        if given.dtype.kind == "u" and (given > np.iinfo(np.int64).max).any():
            raise DataError(f"{where}: y holds whole numbers above 2⁶³ − 1; give them as floats")
        return given.astype(np.int64)
    with np.errstate(over="ignore"):
        numbers: F32 = given.astype(np.float32)
    if not np.isfinite(numbers).all():
        row = int(np.argmin(np.isfinite(numbers).reshape(n, -1).all(axis=1)))
        raise DataError(f"{where}: y holds NaN or Inf (sample {row}); clean or drop it")
    return numbers


def encoded(ys: Sequence[ArrayLike]) -> tuple[list[Array], tuple[str, ...] | None]:
    """The arrays as they are; texts become the numbers of their classes, in alphabetical order.

    The second value has the names of the classes, if the targets are texts.

    >>> encoded([["no", "yes"], ["no"]])
    ([array([0, 1]), array([0])], ('no', 'yes'))
    """
    arrays = [np.asarray(y) for y in ys]
    texts = [
        y.dtype.kind in "US"
        or (y.dtype.kind == "O" and all(isinstance(target, str) for target in y.ravel()))
        for y in arrays
    ]
    if not all(texts) or not texts:
        return arrays, None
    names, numbers = np.unique(np.concatenate([y.astype(str).ravel() for y in arrays]),
                           return_inverse=True)  # fmt: skip
    ends = np.cumsum([y.size for y in arrays])
    parts = zip(np.split(numbers, ends[:-1]), arrays, strict=True)
    return [part.reshape(y.shape) for part, y in parts], tuple(map(str, names))


def alike(parts: Sequence[tuple[str, Targets]]) -> Targets:
    """The targets of all parts, one after the other; if some are floats, all become floats.

    >>> alike([("a", np.array([1])), ("b", np.array([0.5], np.float32))])
    array([1. , 0.5], dtype=float32)
    """
    first, expected = parts[0]
    for where, y in parts:
        if y.shape[1:] != expected.shape[1:]:
            raise DataError(
                f"{where}: a target has shape {y.shape[1:]}, but a target of {first} has "
                f"{expected.shape[1:]}; give all targets the same shape"
            )
    kind = np.int64 if all(y.dtype.kind == "i" for _, y in parts) else np.float32
    return np.concatenate([y.astype(kind, copy=False) for _, y in parts])


def may_be_labels(y: Targets) -> bool:
    """Whether the targets could be labels of classes: whole numbers from 0, not far above n.

    >>> may_be_labels(np.array([0, 2])), may_be_labels(np.array([0, 10**12]))
    (True, False)
    """
    whole = y.dtype.kind == "i" and y.ndim == 1
    return whole and int(y.min()) >= 0 and int(y.max()) < max(MIN_CLASS_LIMIT, 10 * len(y))


def count_targets(y: Targets) -> int:
    """C, the largest label + 1; if targets are not labels, the number of them for a sample.

    >>> count_targets(np.array([0, 2])), count_targets(np.zeros((3, 5), np.float32))
    (3, 5)
    """
    if may_be_labels(y):
        return int(y.max()) + 1
    return 1 if y.ndim == 1 else y.shape[1]
