"""Line charts of the report page, in Vega-Lite.

Colours are the page's (`var(--c0)` …), so that charts follow its light and dark appearance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from wecfl.runs.json_values import json_number

__all__ = [
    "COLOR_COUNT",
    "Series",
    "Spec",
    "Stroke",
    "area_chart",
    "as_spec",
    "bound_stroke",
    "line_chart",
    "stroke",
]

COLOR_COUNT = 10
"""The number of colours of the page. Cluster k has colour k mod 10 and shape k div 10."""
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3))
"""Line i has dashes i mod 4, so that lines differ without colour and show where they coincide."""
MAX_TICKS = 6
"""About how many ticks the axis of rounds has."""
Series = Mapping[str, Sequence[float | None]]
"""The values of each line by its name; None where a value is not known."""
Spec = dict[str, Any]
"""A chart in Vega-Lite."""
Stroke = tuple[str, tuple[int, ...]]
"""Colour and dashes of a line."""


def stroke(number: int) -> Stroke:
    """Colour and dashes of line or cluster `number`.

    >>> stroke(11)
    ('var(--c1)', (9, 3, 2, 3))
    """
    return f"var(--c{number % COLOR_COUNT})", DASHES[number % len(DASHES)]


def bound_stroke(of: int | None = None) -> Stroke:
    """Colour and dashes of a bound on line `of`, or on all of them."""
    return "var(--muted)" if of is None else stroke(of)[0], (1, 4)


def line_chart(
    series: Series,
    rounds: Sequence[int],
    *,
    percent: bool = False,
    best: float | None = None,
    over: str = "round",
    strokes: Sequence[Stroke] | None = None,
) -> Spec:
    """One line for each series, over rounds or the quantity `over`; the pointer shows all values.

    `strokes` are the colours and dashes, by default those of lines 0, 1, … . If `best` is given,
    the axis goes from 0 to this best possible value. Otherwise positive values that span more than
    two orders of magnitude get a logarithmic axis.

    >>> spec = line_chart({"a": [1.0, 2.0], "b": [None, 4.0]}, [1, 2])
    >>> [rows] = spec["datasets"].values()
    >>> [row["v1"] for row in rows]
    [None, 4.0]
    """
    fields = [f"v{i}" for i in range(len(series))]
    columns = [
        [json_number(value, significant=6) for value in values] for values in series.values()
    ]
    rows = [
        {"round": t, **dict(zip(fields, values, strict=True))}
        for t, *values in zip(rounds, *columns, strict=True)
    ]
    known = [value for values in columns for value in values if value is not None]
    scale, axis = _upwards(known, percent, best)
    number_format = ".1%" if percent else ".4~g"
    hover = _nearest_round()
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=_rounds_axis(over, rounds))
    layers: list[alt.Chart] = []
    looks = strokes or [stroke(i) for i in range(len(fields))]
    for field, values, (color, dashes) in zip(fields, columns, looks, strict=True):
        y = alt.Y(f"{field}:Q", title=None, scale=scale, axis=axis)
        mark: dict[str, Any] = {
            "color": color,
            "strokeDash": list(dashes),
            "point": sum(v is not None for v in values) == 1 and {"color": color},
        }
        layers.append(base.mark_line(strokeWidth=2, **mark).encode(y=y))
        layers.append(base.mark_circle(color=color, size=60).encode(y=y, opacity=_where(hover, 1)))
    tooltip = [alt.Tooltip("round:Q", title=over)] + [
        alt.Tooltip(f"{field}:Q", title=name, format=number_format)
        for field, name in zip(fields, series, strict=True)
    ]
    rule = base.mark_rule(color="var(--muted)").encode(opacity=_where(hover, 0.5), tooltip=tooltip)
    chart = alt.layer(*layers, rule.add_params(hover)).properties(width="container", height=200)
    return as_spec(chart)


def _upwards(known: Sequence[float], percent: bool, best: float | None) -> tuple[Any, Any]:
    """Scale and axis of these values, from the bottom to the top (`line_chart`)."""
    if best is None and known and 0 < 100 * min(known) < max(known):
        first, last = (int(np.floor(np.log10(edge(known)))) for edge in (min, max))
        tens = [10.0**power for power in range(first, last + 1)]
        ticks = [value for value in tens if value >= min(known)]
        return alt.Scale(type="log", nice=False), alt.Axis(format="~g", values=ticks)
    scale = alt.Scale(zero=best is not None, domainMax=alt.Undefined if best is None else best)
    whole = bool(known) and max(known) >= 10 and all(value == int(value) for value in known)
    return scale, alt.Axis(format="%" if percent else "~s" if whole else "~g", tickCount=5)


def area_chart(series: Mapping[str, Sequence[int]], rounds: Sequence[int]) -> Spec:
    """Counts over the rounds, one above the other; the pointer shows all of them.

    >>> spec = area_chart({"a": [1, 2], "b": [3, 4]}, [1, 2])
    >>> [rows] = spec["datasets"].values()
    >>> [row["top1"] for row in rows]
    [4, 6]
    """
    rows = [
        {"round": t, "top": 0}
        | {f"v{i}": count for i, count in enumerate(counts)}
        | {f"top{i}": sum(counts[: i + 1]) for i in range(len(counts))}
        for t, *counts in zip(rounds, *series.values(), strict=True)
    ]
    hover = _nearest_round()
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=_rounds_axis("round", rounds))
    axis = alt.Axis(format="~s", tickCount=5)
    layers: list[alt.Chart] = []
    for i in range(len(series)):
        area = base.mark_bar if len(rows) == 1 else base.mark_area
        top, bottom = f"top{i}", f"top{i - 1}" if i else "top"
        layers.append(
            area(color=stroke(i)[0]).encode(y=alt.Y(f"{top}:Q", title=None, axis=axis), y2=bottom)
        )
    tooltip = [alt.Tooltip("round:Q")] + [
        alt.Tooltip(f"v{i}:Q", title=name, format=",") for i, name in enumerate(series)
    ]
    rule = base.mark_rule(color="var(--ink)").encode(opacity=_where(hover, 0.5), tooltip=tooltip)
    chart = alt.layer(*layers, rule.add_params(hover)).properties(width="container", height=200)
    return as_spec(chart)


def _nearest_round() -> alt.Parameter:
    """The round that the pointer is nearest to."""
    return alt.selection_point(
        name="hover", fields=["round"], nearest=True, on="pointerover", clear="pointerout",
        empty=False,
    )  # fmt: skip


def _where(hover: alt.Parameter, opacity: float) -> Any:
    """Visible where the pointer is."""
    return alt.when(hover).then(alt.value(opacity)).otherwise(alt.value(0))


def _rounds_axis(over: str, rounds: Sequence[int]) -> alt.X:
    """An axis of whole numbers, each of which has a tick if they are few."""
    few = len(rounds) and max(rounds) - min(rounds) <= MAX_TICKS
    ticks = range(min(rounds), max(rounds) + 1) if few else ()
    axis = alt.Axis(
        title=over, tickCount=MAX_TICKS, labelFlush=False, grid=False, format="d",
        values=list(ticks) or alt.Undefined,
    )  # fmt: skip
    return alt.X("round:Q", axis=axis, scale=alt.Scale(nice=False, zero=False))


def as_spec(chart: alt.LayerChart | alt.FacetChart) -> Spec:
    """The chart as a dictionary, without what the page sets for all charts."""
    spec: Spec = chart.to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
