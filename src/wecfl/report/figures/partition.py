"""The picture of a partition: how many samples of each class each client holds."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from wecfl.core.types import F64, Int

__all__ = ["Panel", "bars"]

Panel = tuple[str, Int, Int | None]
"""Title, samples (classes, clients), and the group of each client or None."""

AXIS_COLOR = "#888"


def bars(
    panels: Sequence[Panel],
    *,
    names: Sequence[str] = (),
    beside: Sequence[alt.Chart | alt.FacetChart] = (),
) -> alt.ConcatChart:
    """One bar per client, as long as its number of samples, coloured by class; two panels a row.

    `names` are the names of the classes in the legend (default 0, 1, …). Clients with groups are
    drawn group by group, with a gap between groups. `wecfl.data.client_rows.class_counts` makes the
    counts. Charts `beside` the panels follow them.

    >>> chart = bars([("two clients", np.array([[3, 0], [1, 4]]), None)])
    >>> [rows] = chart.to_dict()["datasets"].values()
    >>> [(row["client"], row["class"], row["samples"]) for row in rows]
    [(0, '0', 3), (0, '1', 1), (1, '1', 4)]
    """
    classes = max((len(counts) for _, counts, _ in panels), default=0)
    legend = list(names) or [str(c) for c in range(classes)]
    chart: alt.ConcatChart = (
        alt.concat(*(_panel(*panel, legend) for panel in panels), *beside, columns=2, spacing=28)
        .configure_view(stroke=None)
        .configure_axis(
            grid=False,
            domainColor=AXIS_COLOR,
            tickColor=AXIS_COLOR,
            labelFlush=False,
            labelPadding=4,
            titlePadding=10,
            titleFontWeight="normal",
        )
        .configure_title(fontSize=13, anchor="start", frame="group", offset=10)
        .configure_legend(titleFontWeight="normal")
    )
    return chart


def _panel(title: str, counts: Int, groups: Int | None, legend: list[str]) -> alt.Chart:
    clients = counts.shape[1]
    top, bottom = _edges(clients, groups)
    right = counts.cumsum(axis=0)
    rows = [
        {
            "client": int(i),
            "class": legend[c],
            "samples": int(counts[c, i]),
            "left": int(right[c, i] - counts[c, i]),
            "right": int(right[c, i]),
            "top": float(top[i]),
            "bottom": float(bottom[i]),
        }
        | ({} if groups is None else {"group": int(groups[i])})
        for i, c in zip(*np.nonzero(counts.T), strict=True)
    ]
    lanes = clients if groups is None else int(groups.max()) + 1
    colors = alt.Scale(domain=legend, scheme="tableau10" if len(legend) <= 10 else "tableau20")
    shown = [*(["group"] if groups is not None else []), "client", "class", "samples"]
    chart: alt.Chart = (
        alt.Chart(alt.InlineData(values=rows), title=title)
        .properties(width=280, height=min(max(2 * clients, 320), 400))
        .mark_rect()
        .encode(
            x=alt.X("left:Q", title="samples", axis=alt.Axis(tickCount=5)),
            x2="right:Q",
            y=alt.Y(
                "top:Q",
                axis=_axis("client" if groups is None else "group", lanes),
                scale=alt.Scale(domain=[0, lanes], reverse=True, padding=5),
            ),
            y2="bottom:Q",
            color=alt.Color("class:N", scale=colors),
            tooltip=[f"{name}:N" for name in shown],
        )
    )
    return chart


def _axis(title: str, lanes: int) -> alt.Axis:
    """About a dozen round numbers. Lane i fills [i, i + 1], so its label stands at i + ½."""
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100, lanes) if lanes <= 12 * step)
    middles = [lane + 0.5 for lane in range(0, lanes, every)]
    return alt.Axis(title=title, values=middles, labelExpr="floor(datum.value)", domain=False)


def _edges(clients: int, groups: Int | None) -> tuple[F64, F64]:
    """Where each client's bar begins and ends: client i in [i, i + 1], or group g in [g, g + 1]."""
    lane = np.arange(clients) if groups is None else groups
    sizes = np.bincount(lane)
    first = sizes.cumsum() - sizes
    rank = np.argsort(np.argsort(lane, kind="stable")) - first[lane]
    seam = 0.0 if groups is None else 0.1
    step = (1 - seam) / sizes[lane]
    start = lane + seam / 2 + rank * step
    # Between bars of one or two pixels, gaps would only make the picture grey.
    return start, start + step * (0.88 if clients <= 80 else 1)
