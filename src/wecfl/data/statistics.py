"""Statistics of columns that clients may send, and how the server merges them.

A client tells counts, means, sums of squares and extremes of its training samples, never a sample.
The merged statistics are equal to those of all samples together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from wecfl.core.types import F64, Int

__all__ = ["ColumnMoments", "medians"]

HISTOGRAM_BINS = 1024
"""The number of bins of the histograms that give medians. A median is wrong by less than a bin."""


@dataclass(frozen=True, slots=True, eq=False)
class ColumnMoments:
    """For each of p columns: the number of known values, their mean, spread and extremes.

    >>> parts = [np.array([[1.0], [3.0]]), np.array([[5.0], [np.nan]])]
    >>> whole = ColumnMoments.merged([ColumnMoments.of(part) for part in parts])
    >>> whole.mean.tolist(), whole.variance.round(3).tolist(), whole.missing.tolist()
    ([3.0], [2.667], [1])
    """

    count: Int
    mean: F64
    squares: F64
    """Σ (x − mean)²."""
    low: F64
    high: F64
    missing: Int

    @classmethod
    def of(cls, values: F64) -> ColumnMoments:
        """The statistics of (n, p) values; NaN is a value that is missing."""
        known = ~np.isnan(values)
        count = known.sum(axis=0)
        mean = np.where(known, values, 0.0).sum(axis=0) / np.maximum(count, 1)
        away = np.where(known, values - mean, 0.0)
        return cls(
            count, mean, (away**2).sum(axis=0),
            np.where(known, values, np.inf).min(axis=0, initial=np.inf),
            np.where(known, values, -np.inf).max(axis=0, initial=-np.inf),
            len(values) - count,
        )  # fmt: skip

    @classmethod
    def merged(cls, parts: Sequence[ColumnMoments]) -> ColumnMoments:
        """The statistics of all parts together (Chan, Golub & LeVeque, 1979)."""
        return reduce(cls._with, parts)

    def _with(self, other: ColumnMoments) -> ColumnMoments:
        count = self.count + other.count
        share = other.count / np.maximum(count, 1)
        gap = other.mean - self.mean
        return ColumnMoments(
            count,
            self.mean + gap * share,
            self.squares + other.squares + gap**2 * self.count * share,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.missing + other.missing,
        )

    def filled(self, fill: F64) -> ColumnMoments:
        """The statistics after the missing values were set to `fill` (p,)."""
        none = self.missing == 0
        same = ColumnMoments(
            self.missing, fill, np.zeros_like(fill), np.where(none, np.inf, fill),
            np.where(none, -np.inf, fill), np.zeros_like(self.missing),
        )  # fmt: skip
        known = ColumnMoments(
            self.count, self.mean, self.squares, self.low, self.high, np.zeros_like(self.missing)
        )
        return known._with(same)

    @property
    def variance(self) -> F64:
        """(p,), the variance of the known values, divided by their number."""
        return np.asarray(self.squares / np.maximum(self.count, 1), np.float64)


def medians(parts: Sequence[F64], whole: ColumnMoments) -> F64:
    """(p,), the median of each column, from histograms that clients count between the extremes.

    It is NaN for a column without known values.

    >>> values = np.arange(11.0)[:, None]
    >>> abs(medians([values[:3], values[3:]], ColumnMoments.of(values))[0] - 5) < 10 / 1024
    np.True_
    """
    found = []
    for j, (low, high) in enumerate(zip(whole.low, whole.high, strict=True)):
        if not low < high:
            found.append(low if low == high else np.nan)
            continue
        edges = np.linspace(low, high, HISTOGRAM_BINS + 1)
        counts = sum(np.histogram(part[:, j], edges)[0] for part in parts)
        reached = np.cumsum(counts)
        half = reached[-1] / 2
        found.append(float(np.interp(half, [0, *reached], edges)))
    return np.array(found, np.float64)
