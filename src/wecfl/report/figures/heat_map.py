"""A heat map of a symmetric matrix: the cosines of the report page and of the paper's figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from wecfl.core.types import F64

__all__ = ["COLOR_LEVELS", "heat_map"]

COLOR_LEVELS = 1000
"""The number of steps from the smallest to the largest value: finer than an eye can see."""


def heat_map(
    matrix: F64,
    names: Sequence[str],
    *,
    colors: alt.Scale,
    labels: Mapping[float, str],
    seams: Sequence[int] = (),
    seam_color: str = "white",
    axis_title: str | None = None,
    legend: bool = True,
    dataset: str = "levels",
) -> alt.LayerChart:
    """One coloured cell for each pair of `names`, with its value under the pointer.

    `matrix` (n, n) is symmetric, so the file holds only its lower triangle, which is drawn twice.
    Cell i of an axis fills [i, i + 1]. `labels` are the texts along both axes by their place, and
    `seams` are the places where lines cross the map. `dataset` is the name of the data, which must
    differ between the maps of one figure.

    >>> chart = heat_map(np.array([[1.0, 0.5], [0.5, 1.0]]), ["a", "b"], colors=alt.Scale(),
    ...                  labels={0.5: "a", 1.5: "b"})
    >>> chart.to_dict()["data"]["values"]
    [1000, 0, 1000]
    """
    n, low, high = len(matrix), float(matrix.min()), float(matrix.max())
    levels = np.round((matrix - low) / max(high - low, 1e-12) * COLOR_LEVELS).astype(int)
    triangle = levels[np.tril_indices(n)].tolist()
    base = _cells(names, f"{low!r} + datum.data * {(high - low) / COLOR_LEVELS!r}", dataset)
    axis = alt.Axis(
        title=axis_title, values=list(labels), grid=False, domain=False, ticks=False,
        labelExpr=f"({_quoted(labels)})[datum.value]",
    )  # fmt: skip
    across = alt.Scale(domain=[0, n], nice=False)
    down = alt.Scale(domain=[0, n], nice=False, reverse=True)
    shown = [
        alt.Tooltip("first:N", title=" "),
        alt.Tooltip("second:N", title="and"),
        alt.Tooltip("value:Q", title="cosine", format=".5f"),
    ]
    hidden: dict[str, Any] = {} if legend else {"legend": None}
    halves = [
        # One pixel more, so that no line of the background shines through between two cells.
        base.mark_rect(x2Offset=1, y2Offset=1).encode(
            x=alt.X(f"{x}:Q", axis=axis, scale=across),
            x2=f"{x}_end:Q",
            y=alt.Y(f"{y}:Q", axis=axis, scale=down),
            y2=f"{y}_end:Q",
            color=alt.Color("value:Q", title="cosine", scale=colors, **hidden),
            tooltip=shown,
        )
        for x, y in (("row", "column"), ("column", "row"))
    ]
    seam = alt.Chart(alt.InlineData(values=list(seams), name=f"{dataset}-seams"))
    lines = [
        seam.mark_rule(color=seam_color, strokeWidth=1).encode(place)
        for place in (alt.X("data:Q"), alt.Y("data:Q"))
    ]
    data = alt.InlineData(values=triangle, name=dataset)
    return alt.LayerChart(layer=[*halves, *(lines if seams else [])], data=data)


def _cells(names: Sequence[str], value: str, dataset: str) -> alt.Chart:
    """A chart with the row, the column, both names and the `value` of each cell of the triangle."""
    numbered = [{"i": i, "name": name} for i, name in enumerate(names)]
    known = alt.InlineData(values=numbered, name=f"{dataset}-names")
    again = alt.NamedData(name=f"{dataset}-names")  # the same names, which the file holds once
    return (
        alt.Chart()
        .transform_window(number="row_number()")
        .transform_calculate(row="floor((sqrt(8 * (datum.number - 1) + 1) - 1) / 2)")
        .transform_calculate(column="datum.number - 1 - datum.row * (datum.row + 1) / 2")
        .transform_calculate(row_end="datum.row + 1", column_end="datum.column + 1", value=value)
        .transform_lookup("row", from_=alt.LookupData(known, "i", ["name"]), as_=["first"])
        .transform_lookup("column", from_=alt.LookupData(again, "i", ["name"]), as_=["second"])
    )


def _quoted(labels: Mapping[float, str]) -> str:
    """The labels as an object of Vega's expressions."""
    return "{" + ", ".join(f"{place!r}: {text!r}" for place, text in labels.items()) + "}"
