"""The pipeline: it makes the samples for a model from a table or from pixels.

It is made from statistics that clients may send, and it belongs to the models: `predict`,
newcomers, the exported ONNX graph and `wecfl serve` begin with it.

::

    numbers      a missing value is filled in, then (x − shift) / scale
    indicators   1 where a number was missing, for columns in which the training data lacked some
    categories   one feature for each value in the training data; for other values all are zero
    pixels       0 … 255 to [−1, 1]
    other        tokens, several arrays, sequences of unequal length (`wecfl.data.packing`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wecfl.core.types import F32, F64, Bool, Int
from wecfl.data.packing import Part, pack
from wecfl.data.samples import Array, fill_pixels
from wecfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Column",
    "Impute",
    "Pipeline",
    "Scale",
    "ScaleBy",
    "numbers_of",
    "pixels_of",
    "texts_of",
]

Scale = Literal["none", "standard", "minmax", "pixels"]
"""How numbers are scaled: to mean 0 and variance 1, to [0, 1], or as pixels to [−1, 1]."""
ScaleBy = Literal["all", "client", "cluster"]
"""Whose statistics scale the samples of a client: those of all clients merged, its own, or those of
the members of its cluster merged."""
Impute = Literal["mean", "median"] | float
"""What replaces a missing number: the mean or the median of its column, or a constant."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and how features are made from it."""

    name: str
    values: tuple[str, ...] | None = None
    """The categories, one feature each; None for a column of numbers."""
    fill: float | None = None
    """What replaces a missing number; None: a missing value is refused."""
    indicator: bool = False
    """Whether another feature says where the number was missing."""
    shift: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How samples are prepared before a model gets them; a value that JSON can hold.

    >>> pipeline = Pipeline((Column("age", fill=40.0, shift=40.0, scale=10.0),
    ...                      Column("sex", values=("f", "m"))))
    >>> pipeline.transform([[50, "m"], [None, "f"]]).tolist()
    [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    >>> Pipeline.read(pipeline.written()) == pipeline
    True
    """

    columns: tuple[Column, ...] = ()
    """The columns of a table; empty for pixels."""
    classes: tuple[str, ...] | None = None
    """The names of the classes 0, 1, 2, …; None: they have no names."""
    own: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] | None = None
    """For each client, the shift and scale of each column of numbers, if clients are scaled by
    their own statistics; if there are `clusters`, for each cluster by its number."""
    scaled: Scale = "none"
    """How the numbers were scaled."""
    parts: tuple[Part, ...] = ()
    """The arrays of which samples consist, if they are not one table or array of numbers."""
    targets: tuple[str, ...] = ()
    """The names of the columns that are predicted, if there are several."""
    clusters: tuple[tuple[str, int], ...] | None = None
    """For each client, the cluster whose statistics scale it; empty: clusters are not found yet,
    and all clients are scaled in the same way. None: clients are not scaled by cluster."""

    @property
    def plain(self) -> bool:
        """Whether samples are only packed (`wecfl.data.packing`), or used as they are."""
        return not self.columns and self.scaled == "none"

    @property
    def numbers(self) -> list[Column]:
        """The columns of numbers."""
        return [column for column in self.columns if column.values is None]

    @property
    def categories(self) -> list[Column]:
        """The columns of categories."""
        return [column for column in self.columns if column.values is not None]

    @property
    def features(self) -> list[str]:
        """The names of the features, in their order: numbers, indicators, categories."""
        return [
            *(column.name for column in self.numbers),
            *(f"{column.name} is missing" for column in self.numbers if column.indicator),
            *(f"{column.name} = {v}" for column in self.categories for v in column.values or ()),
        ]

    @property
    def learned(self) -> bool:
        """Whether it holds statistics that clients had to send."""
        seen = any(
            column.values or column.fill or (column.shift, column.scale) != (0, 1)
            for column in self.columns
        )
        return seen and self.scaled != "pixels"

    def transform(self, table: Any, whose: str | int | None = None, where: str = "predict") -> F32:
        """(n, features), the samples of a table: a DataFrame, rows in the columns' order, or dicts.

        If clients are scaled by client or by cluster, `whose` is the name of a client or the number
        of a cluster. Samples of other kinds are packed; a single array of numbers stays as it is.
        """
        if self.plain:
            return pack(where, table, self.parts) if self.parts else table
        if self.scaled == "pixels":
            return pixels_of(where, table)
        frame = self.frame(table, where)
        if not len(frame):
            return np.empty((0, len(self.features)), np.float32)
        parts: list[Any] = []
        if self.numbers:
            parts += self._numbers(numbers_of(frame, self.numbers, where), whose, where)
        if self.categories:
            parts.append(self._one_hot(frame))
        with np.errstate(over="ignore"):
            x = np.hstack(parts).astype(np.float32)
        if not np.isfinite(x).all():
            name = self.features[int(np.argmin(np.isfinite(x).all(axis=0)))]
            raise DataError(
                f"{where}: the column {name} holds numbers too large for float32 (10³⁸); scale it"
            )
        return x

    def frame(self, table: Any, where: str) -> Any:
        """The table as a DataFrame of pandas that has the columns."""
        import pandas as pd  # noqa: PLC0415  (a client over a network does not need it)

        names = [column.name for column in self.columns]
        if not isinstance(table, pd.DataFrame):
            rows = list(table)
            keyed = rows and isinstance(rows[0], Mapping)
            widths = {len(row) if hasattr(row, "__len__") else 0 for row in rows}
            if not keyed and widths - {len(names)}:
                raise DataError(
                    f"{where}: a row has {(widths - {len(names)}).pop()} values, expected "
                    f"{len(names)}: {', '.join(names)}"
                )
            table = pd.DataFrame(rows, columns=None if keyed else names)
        if missing := [name for name in names if name not in table]:
            raise DataError(f"{where}: the table lacks the columns {', '.join(missing)}; add them")
        return table

    def _numbers(self, values: F64, whose: str | int | None, where: str) -> list[F64]:
        """The columns of numbers, filled and scaled, and where they were missing."""
        from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

        if (infinite := np.isinf(values).any(axis=0)).any():
            name = self.numbers[int(np.argmax(infinite))].name
            raise DataError(f"{where}: the column {name} holds Inf; clean or drop these samples")
        missing = np.isnan(values)
        refused = [c.fill is None and bool(missing[:, j].any()) for j, c in enumerate(self.numbers)]
        if any(refused):
            raise DataError(_lacking(where, self.numbers, missing, np.array(refused)))
        filled = np.where(missing, [column.fill or 0.0 for column in self.numbers], values)
        scaler = StandardScaler()
        pairs = np.array(self.scaling(whose, where), np.float64)
        scaler.mean_, scaler.scale_ = pairs[:, 0], pairs[:, 1]
        scaler.var_, scaler.n_features_in_ = pairs[:, 1] ** 2, len(pairs)
        indicated = [j for j, column in enumerate(self.numbers) if column.indicator]
        return [scaler.transform(filled), missing[:, indicated].astype(np.float64)]

    def scaling(
        self, whose: str | int | None = None, where: str = "predict"
    ) -> list[tuple[float, float]]:
        """The shift and scale of each column of numbers, for all, for a client or for a cluster."""
        if self.own is None:
            return [(column.shift, column.scale) for column in self.numbers]
        known: dict[Any, Any] = dict(self.own)
        groups: dict[Any, int] = dict(self.clusters or ())
        found = known.get(str(groups.get(whose, whose)) if groups else whose)
        if found is None:
            what, further = ("cluster", " or the number of a cluster") if groups else ("client", "")
            raise DataError(
                f"{where}: each {what} is scaled by its own statistics, so the name of a client"
                f"{further} must be given, got {whose!r}"
            )
        return list(found)

    def _one_hot(self, frame: pd.DataFrame) -> F64:
        from sklearn.preprocessing import OneHotEncoder  # noqa: PLC0415

        known = [list(column.values or ()) for column in self.categories]
        encoder = OneHotEncoder(
            categories=[np.array(values, object) for values in known], handle_unknown="ignore",
            sparse_output=False,
        ).fit(np.array([[values[0] for values in known]], object))  # fmt: skip
        texts = texts_of(frame, [column.name for column in self.categories])
        return np.asarray(encoder.transform(texts), np.float64)

    def labels(self, y: Any, where: str = "predict") -> Any:
        """The numbers of classes that are given by their names; numbers stay as they are."""
        given = np.asarray(y)
        if self.classes is None or given.dtype.kind in "uif":
            return y
        numbers = {name: number for number, name in enumerate(self.classes)}
        if strange := [name for name in given.astype(str).tolist() if name not in numbers]:
            raise DataError(
                f"{where}: there is no class {strange[0]!r}; the classes are "
                f"{', '.join(self.classes)}"
            )
        return np.array([numbers[name] for name in given.astype(str).tolist()], np.int64)

    def of(self, whose: str | int) -> Pipeline:
        """The pipeline of one client or of one cluster, with its scaling."""
        pairs = dict(zip((c.name for c in self.numbers), self.scaling(whose), strict=True))
        columns = tuple(
            column if column.values is not None
            else replace(column, shift=pairs[column.name][0], scale=pairs[column.name][1])
            for column in self.columns
        )  # fmt: skip
        return replace(self, columns=columns, own=None, clusters=None)

    def written(self) -> dict[str, Any]:
        """The pipeline as JSON."""
        columns = [
            {"name": c.name, "values": None if c.values is None else list(c.values), "fill": c.fill,
             "indicator": c.indicator, "shift": c.shift, "scale": c.scale}
            for c in self.columns
        ]  # fmt: skip
        return {
            "columns": columns,
            "classes": None if self.classes is None else list(self.classes),
            "own": None if self.own is None else {n: list(map(list, each)) for n, each in self.own},
            "scaled": self.scaled,
            "parts": [{"name": p.name, "shape": list(p.shape), "kind": p.kind} for p in self.parts],
            "targets": list(self.targets),
            "clusters": None if self.clusters is None else dict(self.clusters),
        }

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Pipeline:
        """The pipeline from JSON."""
        columns = [
            Column(**{**c, "values": None if c["values"] is None else tuple(c["values"])})
            for c in written["columns"]
        ]
        classes, own = written["classes"], written["own"]
        clusters = written.get("clusters")  # folders of older versions have no clusters …
        return cls(
            tuple(columns),
            None if classes is None else tuple(classes),
            None if own is None else tuple((n, tuple(map(tuple, each))) for n, each in own.items()),
            written["scaled"],
            tuple(Part(**{**p, "shape": tuple(p["shape"])}) for p in written["parts"]),
            tuple(written.get("targets", ())),  # … and no targets
            None if clusters is None else tuple(clusters.items()),
        )


def numbers_of(frame: pd.DataFrame, columns: Sequence[Column], where: str) -> F64:
    """(n, p), the columns of numbers as float64; NaN for a missing value."""
    found = []
    for column in columns:
        try:
            found.append(frame[column.name].astype("float64").to_numpy(np.float64))
        except (TypeError, ValueError, OverflowError) as error:
            reason = " ".join(str(error).split())[:80]
            raise DataError(
                f"{where}: the column {column.name} must hold numbers: {reason}"
            ) from None
    return np.column_stack(found) if found else np.empty((len(frame), 0))


def texts_of(frame: pd.DataFrame, names: Sequence[str]) -> Any:
    """(n, p), the columns of categories as texts; None for a missing value."""
    chosen = frame[list(names)]
    texts = chosen.astype(str).to_numpy(object, copy=True)
    texts[chosen.isna().to_numpy()] = None
    return texts


def _lacking(where: str, numbers: Sequence[Column], missing: Bool, refused: Bool) -> str:
    names = ", ".join(numbers[int(j)].name for j in np.flatnonzero(refused))
    rows: Int = np.flatnonzero(missing[:, refused].any(axis=1))
    return (
        f"{where}: values are missing in the columns {names} (first in sample {rows[0]}), but the "
        "run was trained without missing values; fill them in, or train with impute"
    )


def pixels_of(where: str, x: Any) -> F32:
    """Pixels 0 … 255 as [−1, 1]."""
    given: Array = np.asarray(x)
    with np.errstate(invalid="ignore"):
        whole = given.astype(np.uint8) if given.dtype.kind in "uif" else None
    if whole is None or (whole != given).any():
        raise DataError(f"{where}: expected pixels, whole numbers from 0 to 255")
    out = np.empty(given.shape, np.float32)
    fill_pixels(out, whole)
    return out
