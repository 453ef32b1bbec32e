"""The charts of the report page, as Vega-Lite.

Colours are the page's (`var(--c0)` …), so that charts follow its light and dark appearance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np

from wecfl.core.types import F64, Int
from wecfl.report.room import apart

__all__ = ["COLORS", "Series", "Spec", "Stroke", "limit", "lines", "plane", "stroke"]

COLORS = 10
"""Colours of the page; cluster k has colour k mod 10 and shape k div 10."""
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross"]
DASHES = ((1, 0), (7, 3), (2, 2), (9, 3, 2, 3))
"""Line i has dashes i mod 4: told apart also without colour, and seen where lines coincide."""
SIDES = (1500, 1000)
"""The plane in whole numbers: precise enough for any screen, and short."""

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
    return f"var(--c{number % COLORS})", DASHES[number % len(DASHES)]


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
    return _spec(chart)


def plane(
    planes: Sequence[F64],
    *,
    labels: Int,
    groups: Int | None,
    accuracy: F64,
    names: Sequence[str],
    sizes: Int,
) -> Spec:
    """Clients in the plane. The signal `t` moves them (t = 1.5 is half way from frame 1 to 2), `by`
    colours them by `cluster` or `group`; those that have just moved to another cluster have a ring.

    `planes` holds one (m, 2) per frame, `labels` and `accuracy` (NaN: unknown) are (frames, m).

    >>> spec = plane(
    ...     [np.eye(2)] * 2, labels=np.zeros((2, 2), int), groups=None,
    ...     accuracy=np.array([[1, np.nan], [1, 0.5]]), names=["a", "b"], sizes=np.array([5, 6]))
    >>> [p["value"] for p in spec["params"] if p["name"] in "XA"]
    [[[1398, 102], [1398, 102]], [[1.0, None], [1.0, 0.5]]]
    """
    gap = min(280 / len(names) ** 0.5, 34.0)  # the size of a client: many need smaller ones
    whole = np.round(np.stack(apart(planes, *SIDES, gap=gap))).astype(int)
    arrays = {
        "X": whole[:, :, 0].tolist(),
        "Y": whole[:, :, 1].tolist(),
        "L": np.asarray(labels).tolist(),
        "G": None if groups is None else np.asarray(groups).tolist(),
        "A": [[None if np.isnan(a) else round(float(a), 3) for a in frame] for frame in accuracy],
        "names": list(names),
        "samples": np.asarray(sizes).tolist(),
    }
    between = (
        "{0}[floor(t)][datum.i] + (t - floor(t)) * ({0}[ceil(t)][datum.i] - {0}[floor(t)][datum.i])"
    )
    base = (
        alt.Chart(alt.sequence(0, len(names), as_="i"))
        .transform_calculate(
            x=between.format("X"),
            y=between.format("Y"),
            cluster="L[round(t)][datum.i]",
            group="G ? G[datum.i] : null",
            key="by == 'group' ? G[datum.i] : datum.cluster",
            color=f"datum.key % {COLORS}",
            shape=f"floor(datum.key / {COLORS}) % {len(SHAPES)}",
            moved="L[round(t)][datum.i] != L[max(round(t) - 1, 0)][datum.i]",
            client="names[datum.i]",
            samples="samples[datum.i]",
            accuracy="A[round(t)][datum.i]",
            said="'client ' + datum.client + ', cluster ' + datum.cluster",
        )
        .encode(
            x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, SIDES[0]], nice=False)),
            y=alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, SIDES[1]], nice=False)),
        )
    )
    told = [
        alt.Tooltip("client:N"), alt.Tooltip("cluster:O"),
        *([alt.Tooltip("group:O")] if groups is not None else []),
        alt.Tooltip("samples:Q"), alt.Tooltip("accuracy:Q", format=".1%"),
    ]  # fmt: skip
    hue = alt.Scale(domain=list(range(COLORS)), range=[f"var(--c{c})" for c in range(COLORS)])
    form = alt.Scale(domain=list(range(len(SHAPES))), range=SHAPES)
    ring, edge = alt.value("var(--ink)"), alt.value("var(--paper)")
    radius = alt.expr(f"PI * pow(width * {gap / SIDES[0] / 2}, 2)")
    dots = base.mark_point(filled=True, opacity=0.9, size=radius).encode(
        color=alt.Color("color:O", legend=None, scale=hue),
        shape=alt.Shape("shape:N", legend=None, scale=form),
        stroke=alt.when("datum.moved").then(ring).otherwise(edge),
        strokeWidth=alt.when("datum.moved").then(alt.value(2)).otherwise(alt.value(0.5)),
        tooltip=told,
        description="said:N",
    )
    tops = base.transform_aggregate(top="argmax(y)", groupby=["key"]).transform_calculate(
        x="datum.top.x", y="datum.top.y"
    )
    style: dict[str, Any] = {
        "fontSize": alt.expr("width < 500 ? 12 : 15"),
        "fontWeight": 700,
        "dy": -12,
    }
    halo: dict[str, Any] = {"stroke": "var(--paper)", "strokeWidth": 4, "strokeJoin": "round"}
    numbers = [tops.mark_text(**style, **more).encode(text="key:N") for more in (halo, {})]
    spec = _spec(alt.layer(dots, *numbers).properties(width="container", height="container"))
    values = {**arrays, "t": len(planes) - 1, "by": "cluster"}
    # Not through Altair, which looks at each of ten thousands of numbers several times.
    return {**spec, "params": [{"name": name, "value": value} for name, value in values.items()]}


def _finite(value: float | None) -> float | None:
    """JSON knows no NaN, and a model may diverge."""
    return float(f"{value:.6g}") if value is not None and np.isfinite(value) else None


def _spec(chart: alt.LayerChart | alt.FacetChart) -> Spec:
    """Without what the page sets for all charts."""
    spec: Spec = chart.to_dict()
    return {key: value for key, value in spec.items() if key not in ("$schema", "config")}
