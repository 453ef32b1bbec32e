"""Brings the targets of a federation into the form of a task; errors name client and sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wecfl.core.types import F64, Bool
from wecfl.data.federation import Federation
from wecfl.data.targets import may_be_labels
from wecfl.errors import DataError

__all__ = ["labels", "numbers", "without_samples", "wrong_counts", "yes_or_no"]


def labels(federation: Federation, classes: int | None, ignore: int | None = None) -> Federation:
    """The federation with int64 labels 0 … classes − 1, without samples with the label `ignore`.

    By default, `classes` is the largest label + 1.
    """
    y = federation.y
    if y.ndim != 1:
        raise DataError(
            f"a target has {y.shape[1]} numbers, expected one label: choose task multi-label for "
            "several labels, or regression for numbers"
        )
    if ignore is not None:
        federation = without_samples(federation, y == ignore)
    used = _used(federation)
    with np.errstate(invalid="ignore"):
        whole = y.astype(np.int64)
    wrong = used & ((whole != y) | (whole < 0))
    if classes is not None:
        wrong |= used & (whole >= classes)
    expected = "whole numbers from 0" if classes is None else f"0 … {classes - 1}"
    _refuse(federation, wrong, "label", f"is out of range, expected {expected}")
    count = int(whole[used].max()) + 1 if classes is None else classes
    if classes is None and not may_be_labels(whole[used]):
        raise DataError(
            f"the largest label, {count - 1}, is far above the number of samples, {len(y)}: number "
            "the classes from 0, or give their names as texts"
        )
    if ignore is not None:  # engines check all labels of the pool
        whole = np.where(used, whole, 0)
    elif y.dtype == np.int64 and federation.classes == count:
        return federation
    return replace(federation, y=whole, classes=count)


def numbers(federation: Federation, columns: int | None) -> Federation:
    """The federation with float32 targets (n, d), where d must be `columns` if that is given."""
    y = federation.y if federation.y.ndim == 2 else federation.y[:, None]
    _check_columns(y, columns)
    if y is federation.y and y.dtype == np.float32:
        return federation
    return replace(federation, y=y.astype(np.float32), classes=y.shape[1])


def yes_or_no(federation: Federation, columns: int | None) -> Federation:
    """The federation with float32 targets (n, d) that are 0 or 1."""
    y = federation.y if federation.y.ndim == 2 else federation.y[:, None]
    _check_columns(y, columns)
    _refuse(federation, ((y != 0) & (y != 1)).any(axis=1), "target", "must be 0 or 1")
    return numbers(federation, columns)


def without_samples(federation: Federation, left_out: Bool) -> Federation:
    """The federation in which no client holds these samples of the pool."""
    if not left_out[_used(federation)].any():
        return federation
    train, test = (
        tuple(rows[~left_out[rows]] for rows in split)
        for split in (federation.train, federation.test)
    )
    return replace(federation, train=train, test=test)


def wrong_counts(counts: F64, most: int) -> str:
    """What is wrong with the counts of a client with at most `most` samples; empty: nothing."""
    if (counts < 0).any() or (counts != np.floor(counts)).any():
        return "counts must be whole numbers and not negative"
    too_many = (counts > most).any() or counts.sum() > most  # single counts first: no overflow
    return f"it counts more than {most} test samples" if too_many else ""


def _check_columns(y: NDArray[Any], columns: int | None) -> None:
    """Refuse targets with another number of columns."""
    if columns is not None and y.shape[1] != columns:
        raise DataError(
            f"a target has {y.shape[1]} numbers, expected {columns} for each sample: change the "
            "outputs or classes of the task, or the targets"
        )


def _used(federation: Federation) -> Bool:
    """(n,), the samples of the pool that some client holds."""
    used = np.zeros(len(federation.y), np.bool_)
    for rows in (*federation.train, *federation.test):
        used[rows] = True
    return used


def _refuse(federation: Federation, wrong: Bool, what: str, problem: str) -> None:
    """Raise an error about the first wrong target that a client holds, if there is one."""
    if not wrong.any():
        return
    for name, train, test in zip(federation.names, federation.train, federation.test, strict=True):
        own = np.sort(np.concatenate([train, test]))
        if (bad := np.flatnonzero(wrong[own])).size:
            value = federation.y[own[bad[0]]]
            raise DataError(f"client {name}: {what} {value} of sample {bad[0]} {problem}")
