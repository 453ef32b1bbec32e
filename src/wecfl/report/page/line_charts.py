"""Line charts of the report page, in Vega-Lite.

They are written as dictionaries, since a page holds dozens of them, and Altair needs some thirty
times as long for one. Colours are the page's (`var(--c0)` …), so that charts follow its light and
dark appearance.
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
    >>> [row["v1"] for row in spec["data"]["values"]]
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
    upwards = {"type": "quantitative", "title": None, **_upwards(known, percent, best)}
    layers: list[Spec] = []
    looks = strokes or [stroke(i) for i in range(len(fields))]
    for field, values, (color, dashes) in zip(fields, columns, looks, strict=True):
        y = {"field": field, **upwards}
        line: Spec = {"type": "line", "color": color, "strokeDash": dashes, "strokeWidth": 2}
        if sum(value is not None for value in values) == 1:
            line["point"] = {"color": color}
        dot = {"type": "circle", "color": color, "size": 60}
        layers.append({"mark": line, "encoding": {"y": y}})
        layers.append({"mark": dot, "encoding": {"y": y, "opacity": _where_pointed(1)}})
    number_format = ".1%" if percent else ".4~g"
    tooltip = [_told("round", over)] + [
        _told(field, name, number_format) for field, name in zip(fields, series, strict=True)
    ]
    return _chart(rows, over, [*layers, _rule("var(--muted)", tooltip)])


def _upwards(known: Sequence[float], percent: bool, best: float | None) -> Spec:
    """Scale and axis of these values, from the bottom to the top (`line_chart`)."""
    if best is None and known and 0 < 100 * min(known) < max(known):
        first, last = (int(np.floor(np.log10(edge(known)))) for edge in (min, max))
        tens = [10.0**power for power in range(first, last + 1)]
        ticks = [value for value in tens if value >= min(known)]
        return {"scale": {"type": "log", "nice": False}, "axis": {"format": "~g", "values": ticks}}
    scale: Spec = {"zero": False} if best is None else {"zero": True, "domainMax": best}
    whole = bool(known) and max(known) >= 10 and all(value == int(value) for value in known)
    number_format = "%" if percent else "~s" if whole else "~g"
    return {"scale": scale, "axis": {"format": number_format, "tickCount": 5}}


def area_chart(series: Mapping[str, Sequence[int]], rounds: Sequence[int]) -> Spec:
    """Counts over the rounds, one above the other; the pointer shows all of them.

    >>> spec = area_chart({"a": [1, 2], "b": [3, 4]}, [1, 2])
    >>> [row["top1"] for row in spec["data"]["values"]]
    [4, 6]
    """
    rows = [
        {"round": t, "top": 0}
        | {f"v{i}": count for i, count in enumerate(counts)}
        | {f"top{i}": sum(counts[: i + 1]) for i in range(len(counts))}
        for t, *counts in zip(rounds, *series.values(), strict=True)
    ]
    mark = "bar" if len(rows) == 1 else "area"
    axis = {"format": "~s", "tickCount": 5}
    layers: list[Spec] = []
    for i in range(len(series)):
        y = {"field": f"top{i}", "type": "quantitative", "title": None, "axis": axis}
        y2 = {"field": f"top{i - 1}" if i else "top"}
        layers.append(
            {"mark": {"type": mark, "color": stroke(i)[0]}, "encoding": {"y": y, "y2": y2}}
        )
    tooltip = [_told("round", "round")] + [
        _told(f"v{i}", name, ",") for i, name in enumerate(series)
    ]
    return _chart(rows, "round", [*layers, _rule("var(--ink)", tooltip)])


def _chart(rows: Sequence[Mapping[str, float | None]], over: str, layers: Sequence[Spec]) -> Spec:
    """These layers on an axis of whole numbers, each of which has a tick if they are few."""
    rounds = [int(row["round"] or 0) for row in rows]
    axis: Spec = {
        "title": over, "tickCount": MAX_TICKS, "labelFlush": False, "grid": False, "format": "d",
    }  # fmt: skip
    if rounds and max(rounds) - min(rounds) <= MAX_TICKS:
        axis["values"] = list(range(min(rounds), max(rounds) + 1))
    scale = {"nice": False, "zero": False}
    x = {"field": "round", "type": "quantitative", "axis": axis, "scale": scale}
    return {
        "width": "container", "height": 200, "data": {"values": rows}, "encoding": {"x": x},
        "layer": layers,
    }  # fmt: skip


def _rule(color: str, tooltip: Sequence[Spec]) -> Spec:
    """A vertical line at the round that the pointer is nearest to, with the values there."""
    nearest = {
        "type": "point", "fields": ["round"], "nearest": True, "on": "pointerover",
        "clear": "pointerout",
    }  # fmt: skip
    return {
        "params": [{"name": "hover", "select": nearest}],
        "mark": {"type": "rule", "color": color},
        "encoding": {"opacity": _where_pointed(0.5), "tooltip": tooltip},
    }


def _where_pointed(opacity: float) -> Spec:
    """Visible at the round that the pointer is nearest to."""
    return {"condition": {"param": "hover", "empty": False, "value": opacity}, "value": 0}


def _told(field: str, title: str, number_format: str | None = None) -> Spec:
    """A line of what the pointer shows."""
    shown: Spec = {"field": field, "type": "quantitative", "title": title}
    return shown if number_format is None else {**shown, "format": number_format}


def as_spec(chart: alt.LayerChart | alt.FacetChart) -> Spec:
    """The chart as a dictionary, without what the page sets for all charts."""
    spec: Spec = chart.to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
