"""Fits a pipeline to the training samples of clients, from statistics that each client may send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from wecfl.core.types import F32, F64, Int
from wecfl.data.pipeline import Column, Impute, Pipeline, Scale, ScaleBy, numbers_of, pixels_of
from wecfl.data.statistics import ColumnMoments, medians
from wecfl.errors import DataError

__all__ = [
    "check_scaled_by",
    "fit_pipeline",
    "rescaled_samples",
    "scaled_samples",
    "with_newcomer",
]

MAX_CATEGORIES = 1000
"""The largest number of different texts in a column of categories; a column of names has more."""
SMALLEST_SPREAD = 1e-12
"""A column whose values differ by less than this share of their size counts as constant: it is
shifted, but not divided."""


def fit_pipeline(
    parts: Mapping[str, pd.DataFrame],
    *,
    scale: Scale = "none",
    by: ScaleBy = "all",
    impute: Impute | None = None,
    classes: tuple[str, ...] | None = None,
    targets: tuple[str, ...] = (),
) -> Pipeline:
    """The pipeline for clients with these training samples, from statistics that each would send.

    >>> import pandas as pd
    >>> parts = {"a": pd.DataFrame({"u": [1.0, 3.0]}), "b": pd.DataFrame({"u": [5.0]})}
    >>> fit_pipeline(parts, scale="minmax").columns
    (Column(name='u', values=None, fill=None, indicator=False, shift=1.0, scale=4.0),)
    """
    check_scaled_by(scale, by)
    first = next(iter(parts.values()))
    columns = [
        Column(str(name), values=None if _is_number(first, name) else ()) for name in first.columns
    ]
    numbers = [column for column in columns if column.values is None]
    texts = [column.name for column in columns if column.values is not None]
    values = {name: numbers_of(part, numbers, f"client {name}") for name, part in parts.items()}
    own = {name: ColumnMoments.of(numeric) for name, numeric in values.items()}
    whole = ColumnMoments.merged(list(own.values()))
    if impute is None:
        _check_missing(parts, numbers, texts, whole)
    fills = _filling(impute, whole, list(values.values()), numbers)

    def scaling(moments: ColumnMoments) -> tuple[tuple[float, float], ...]:
        return _scaling(moments if fills is None else moments.filled(fills), scale)

    shared = scaling(whole) if by != "client" else ((0.0, 1.0),) * len(numbers)
    fitted = {name: Column(name, values=_values(parts, name)) for name in texts}
    for j, (column, (shift, by_this)) in enumerate(zip(numbers, shared, strict=True)):
        fill = None if fills is None else float(fills[j])
        indicator = impute is not None and bool(whole.missing[j])
        fitted[column.name] = Column(column.name, None, fill, indicator, shift, by_this)
    of_clients = tuple((name, scaling(moments)) for name, moments in own.items())
    return Pipeline(
        tuple(fitted[column.name] for column in columns),
        classes,
        of_clients if by == "client" else None,
        scale,
        targets=targets,
        clusters=() if by == "cluster" else None,
    )


def with_newcomer(pipeline: Pipeline, name: str, table: Any) -> Pipeline:
    """The pipeline with the scaling of a newcomer, if each client is scaled by its own data."""
    if pipeline.clusters is not None:
        raise DataError(
            "this run is scaled by cluster, and the cluster of a newcomer is found from its scaled "
            "samples, so newcomers can't be assigned; use a run with scale_by all or client"
        )
    if pipeline.own is None:
        return pipeline
    values = numbers_of(pipeline.frame(table, name), pipeline.numbers, name)
    fills = np.array([column.fill or 0.0 for column in pipeline.numbers], np.float64)
    found = _scaling(ColumnMoments.of(values).filled(fills), pipeline.scaled)
    return replace(pipeline, own=(*pipeline.own, (name, found)))


def scaled_samples(
    x: F32, held: Mapping[str, tuple[Int, Int]], scale: Scale, by: ScaleBy
) -> tuple[F32, Pipeline]:
    """The scaled samples, and the pipeline; `held` are each client's rows to train and to test."""
    check_scaled_by(scale, by)
    if scale == "pixels":
        return _pixel_samples(x), Pipeline(scaled="pixels")
    if x.ndim != 2:
        raise DataError(
            f"scale {scale} is for tables, whose samples have one axis, got samples of shape "
            f"{x.shape[1:]}; give images as uint8, or scale them yourself"
        )
    names = [str(j) for j in range(x.shape[1])]

    def table(rows: Any) -> pd.DataFrame:
        return pd.DataFrame(x[rows], columns=names)

    parts = {name: table(train) for name, (train, _) in held.items()}
    pipeline = fit_pipeline(parts, scale=scale, by=by)
    if by != "client":
        return pipeline.transform(table(slice(None))), pipeline
    out = x.copy()
    for name, both in held.items():
        for rows in both:
            out[rows] = pipeline.transform(table(rows), name)
    return out, pipeline


def check_scaled_by(scale: Scale, by: ScaleBy) -> None:
    """Refuse to scale by client or by cluster if the scaling has no statistics.

    >>> check_scaled_by("pixels", "client")
    Traceback (most recent call last):
    ...
    wecfl.errors.DataError: scale_by client needs scale standard or minmax, got scale pixels
    """
    if by != "all" and scale not in ("standard", "minmax"):
        raise DataError(f"scale_by {by} needs scale standard or minmax, got scale {scale}")


def rescaled_samples(
    x: F32, held: Mapping[str, tuple[Int, Int]], pipeline: Pipeline, labels: Int
) -> tuple[F32, Pipeline]:
    """The samples of each client, scaled by the merged statistics of its cluster, and the pipeline.

    Before, all clients were scaled in the same way, z = (x − a) / b. If the mean and deviation of z
    in a cluster are (m, s), its samples become (z − m) / s. For samples that come later, this is
    (x − (a + b·m)) / (b·s). z is float32, so if b is 10³ times as large as s·b, four digits are
    left.
    """
    clusters = dict(zip(held, map(int, labels), strict=True))
    shared = np.array(pipeline.scaling(), np.float64).reshape(-1, 2)
    p, out, own = len(shared), x.copy(), []
    moments = {name: ColumnMoments.of(x[train, :p].astype(np.float64)) for name, (train, _) in
               held.items()}  # fmt: skip
    for k in sorted(set(clusters.values())):
        members = [name for name in held if clusters[name] == k]
        merged = ColumnMoments.merged([moments[name] for name in members])
        pairs = np.array(_scaling(merged, pipeline.scaled), np.float64).reshape(-1, 2)
        for name in members:
            for rows in held[name]:
                out[rows, :p] = (x[rows, :p].astype(np.float64) - pairs[:, 0]) / pairs[:, 1]
        shift, scale = shared[:, 0] + shared[:, 1] * pairs[:, 0], shared[:, 1] * pairs[:, 1]
        own.append((str(k), tuple(zip(shift.tolist(), scale.tolist(), strict=True))))
    return out, replace(pipeline, own=tuple(own), clusters=tuple(clusters.items()))


def _pixel_samples(x: F32) -> F32:
    """Samples in [−1, 1]: as they are, or made from pixels 0 … 255."""
    low, high = float(x.min()), float(x.max())
    if -1 <= low < 0 and high <= 1:
        return x
    if high <= 1:
        raise DataError(
            f"scale pixels needs pixels from 0 to 255, or pixels scaled to [−1, 1], got numbers "
            f"from {low:g} to {high:g}; choose another scale"
        )
    return pixels_of("x", x)


def _filling(
    impute: Impute | None, whole: ColumnMoments, values: Sequence[F64], numbers: Sequence[Column]
) -> F64 | None:
    """(p,), the number that replaces a missing one in each column."""
    if impute is None:
        return None
    if isinstance(impute, int | float):
        return np.full(len(whole.mean), float(impute))
    if (empty := whole.count == 0).any():
        name = numbers[int(np.argmax(empty))].name
        raise DataError(f"the column {name} has no values, so it has no {impute}; drop the column")
    return whole.mean if impute == "mean" else medians(values, whole)


def _scaling(moments: ColumnMoments, scale: Scale) -> tuple[tuple[float, float], ...]:
    """The shift and scale of each column; a column that is constant is only shifted."""
    if scale == "none":
        return ((0.0, 1.0),) * len(moments.mean)
    spread = np.sqrt(moments.variance) if scale == "standard" else moments.high - moments.low
    shift = moments.mean if scale == "standard" else moments.low
    size = np.maximum(np.abs(moments.low), np.abs(moments.high))
    constant = ~(spread > SMALLEST_SPREAD * np.maximum(size, SMALLEST_SPREAD))
    pairs = zip(
        np.where(moments.count > 0, shift, 0.0), np.where(constant, 1.0, spread), strict=True
    )
    return tuple((float(a), float(b)) for a, b in pairs)


def _is_number(frame: pd.DataFrame, name: Any) -> bool:
    from pandas.api import types  # noqa: PLC0415

    kind = frame[name].dtype
    if types.is_datetime64_any_dtype(kind) or types.is_timedelta64_dtype(kind):
        raise DataError(
            f"the column {name} holds {kind}, expected numbers or texts; make a number of it, such "
            "as a year, or leave it out with features"
        )
    return bool(types.is_numeric_dtype(kind) or types.is_bool_dtype(kind))


def _values(parts: Mapping[str, pd.DataFrame], name: str) -> tuple[str, ...]:
    """The values of a column of categories, of all clients, in order."""
    found = sorted(
        {str(value) for part in parts.values() for value in part[name].dropna().unique()}
    )
    if not 1 <= len(found) <= MAX_CATEGORIES:
        raise DataError(
            f"the column {name} has {len(found)} different texts, expected 1 to {MAX_CATEGORIES} "
            "categories; leave it out with features"
        )
    return tuple(found)


def _check_missing(
    parts: Mapping[str, pd.DataFrame],
    numbers: Sequence[Column],
    texts: Sequence[str],
    whole: ColumnMoments,
) -> None:
    counts = {column.name: int(whole.missing[j]) for j, column in enumerate(numbers)}
    counts |= {name: sum(int(part[name].isna().sum()) for part in parts.values()) for name in texts}
    if lacking := [f"{name} ({count})" for name, count in counts.items() if count]:
        raise DataError(
            f"values are missing in the columns {', '.join(lacking)}; fill them in with "
            "impute='median' or 'mean' (--impute), or drop these rows or columns"
        )
