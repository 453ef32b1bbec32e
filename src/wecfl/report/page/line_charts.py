"""The charts of the report page, as Vega-Lite.

Colours are the page's (`var(--c0)` …), so that charts follow its light and dark appearance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

__all__ = ["COLOR_COUNT", "Series", "Spec", "Stroke", "as_spec", "limit", "lines", "stroke"]

COLOR_COUNT = 10
"""Colours of the page; cluster k has colour k mod 10 and shape k div 10."""
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3))
"""Line i has dashes i mod 4: told apart also without colour, and seen where lines coincide."""
Series = Mapping[str, Sequence[float | None]]
"""Lines by name; None where a value is not known."""
Spec = dict[str, Any]
"""A chart in Vega-Lite."""
Stroke = tuple[str, tuple[int, ...]]
"""Colour and dashes of a line."""


def stroke(number: int) -> Stroke:
    """The look of line or cluster `number`.

    >>> stroke(11)
    ('var(--c1)', (9, 3, 2, 3))
    """
    return f"var(--c{number % COLOR_COUNT})", DASHES[number % len(DASHES)]


def limit(of: int | None = None) -> Stroke:
    """The look of what bounds line `of`, or of what bounds all of them."""
    return "var(--muted)" if of is None else stroke(of)[0], (1, 4)


def lines(
    series: Series,
    rounds: Sequence[int],
    *,
    percent: bool = False,
    most: float | None = None,
    over: str = "round",
    strokes: Sequence[Stroke] | None = None,
) -> Spec:
    """Values over rounds (or what `over` says), one line each, and all of them under the pointer.

    `strokes` are the looks of the lines, by default those of lines 0, 1, … . `most` is the best
    value there is: the axis then goes from 0 to it. Otherwise positive values that span more than
    two orders of magnitude get a logarithmic axis.

    >>> spec = lines({"a": [1.0, 2.0], "b": [None, 4.0]}, [1, 2])
    >>> [rows] = spec["datasets"].values()
    >>> [row["v1"] for row in rows]
    [None, 4.0]
    """
    fields = [f"v{i}" for i in range(len(series))]
    columns = [[_finite(value) for value in values] for values in series.values()]
    rows = [
        {"round": t, **dict(zip(fields, values, strict=True))}
        for t, *values in zip(rounds, *columns, strict=True)
    ]
    known = [value for values in columns for value in values if value is not None]
    wide = bool(known) and min(known) > 0 and max(known) > 100 * min(known)
    scale = alt.Scale(zero=most is not None, domainMax=alt.Undefined if most is None else most)
    axis = alt.Axis(format="%" if percent else "~g", tickCount=5)
    if wide and most is None:
        tens = range(
            *(int(np.floor(np.log10(edge(known)))) + i for i, edge in enumerate((min, max)))
        )
        scale = alt.Scale(type="log", nice=False)
        axis = alt.Axis(format="~g", values=[10.0**e for e in tens if 10.0**e >= min(known)])
    written = ".1%" if percent else ".4~g"
    hover = alt.selection_point(
        name="hover", fields=["round"], nearest=True, on="pointerover", clear="pointerout",
        empty=False,
    )  # fmt: skip
    across = alt.Axis(title=over, tickMinStep=1, tickCount=6, labelFlush=False, grid=False)
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("round:Q", axis=across, scale=alt.Scale(nice=False, zero=False))
    )
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
        shown = alt.when(hover).then(alt.value(1)).otherwise(alt.value(0))
        layers.append(base.mark_circle(color=color, size=60).encode(y=y, opacity=shown))
    told = [alt.Tooltip("round:Q", title=over)] + [
        alt.Tooltip(f"{field}:Q", title=name, format=written)
        for field, name in zip(fields, series, strict=True)
    ]
    faint = alt.when(hover).then(alt.value(0.5)).otherwise(alt.value(0))
    rule = base.mark_rule(color="var(--muted)").encode(opacity=faint, tooltip=told)
    chart = alt.layer(*layers, rule.add_params(hover)).properties(width="container", height=200)
    return as_spec(chart)


def _finite(value: float | None) -> float | None:
    """JSON knows no NaN, and a model may diverge."""
    return float(f"{value:.6g}") if value is not None and np.isfinite(value) else None


def as_spec(chart: alt.LayerChart | alt.FacetChart) -> Spec:
    """Without what the page sets for all charts."""
    spec: Spec = chart.to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
