"""A panel of curves: a score over the rounds, one line for each experiment."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import pandas as pd

from wecfl.runs.scores import ScoreKind, kind_of

__all__ = ["CURVE_COLORS", "PANEL_HEIGHT", "curves_panel"]

PANEL_HEIGHT = 260
"""The height of a panel, in pixels."""
NAME_GAP = 15
"""The smallest distance between the names of two curves, in pixels."""
CURVE_COLORS = (
    "#4e79a7", "#e15759", "#59a14f", "#b07aa1", "#f28e2b",
    "#499894", "#9c755f", "#d37295", "#79706e", "#b6992d",
)  # fmt: skip
"""Tableau's colours, without those that are too light for text."""


def curves_panel(
    records: pd.DataFrame, score: str, *, title: str, kind: ScoreKind | None = None
) -> alt.LayerChart:
    """A score over the rounds: one line for each `name`, the mean of its rows, named at its end.

    Where a name has several rows for a round, which are its seeds, a band reaches from the smallest
    to the largest.
    """
    names = records["name"].unique().tolist()
    rows = records.groupby(["name", "round"], sort=False)[score]
    curves = rows.mean().reset_index().assign(lowest=rows.min().array, highest=rows.max().array)
    color = alt.Color("name:N", legend=None, scale=alt.Scale(domain=names, range=CURVE_COLORS))
    kind = kind or kind_of(score)
    low, top = 0.0, 1.05 * curves["highest"].max()
    if kind.percent:
        top = min(1.0, top)
    elif not curves["lowest"].min() >= 0:  # R² has no lower end
        low, top = curves["lowest"].min(), max(curves["highest"].max(), 0.0)
    form = ".1%" if kind.percent else ".4~g"
    lines = (
        alt.Chart(curves, title=title)
        .mark_line(strokeWidth=2.5, point=curves["round"].nunique() == 1)
        .encode(
            x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, grid=False)),
            y=alt.Y(
                f"{score}:Q",
                title=kind.label,
                axis=alt.Axis(format="%" if kind.percent else "~g", gridOpacity=0.4),
                scale=alt.Scale(domain=[low, top], nice=False),
            ),
            color=color,
            tooltip=["name:N", "round:Q", alt.Tooltip(f"{score}:Q", format=form)],
        )
    )
    bands = (
        alt.Chart(curves)
        .mark_area(opacity=0.18)
        .encode(x="round:Q", y="lowest:Q", y2="highest:Q", color=color)
    )
    ends = curves.sort_values("round").groupby("name").tail(1).assign(round=curves["round"].max())
    ends = ends.sort_values(score)
    ends["place"] = _apart(ends[score].tolist(), gap=NAME_GAP / PANEL_HEIGHT * (top - low))
    labels = (
        alt.Chart(ends)
        .mark_text(align="left", dx=8, fontSize=12)
        .encode(x="round:Q", y="place:Q", text="name:N", color=color)
    )
    several = bool((rows.size() > 1).any())
    drawn = [bands, lines, labels] if several else [lines, labels]
    return alt.LayerChart(layer=drawn, width=340, height=PANEL_HEIGHT)


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """Ascending values, moved as little as possible so that neighbours are `gap` apart.

    >>> _apart([0.0, 5.0, 5.0, 9.0], gap=2)
    [0.0, 4.0, 6.0, 9.0]
    """
    # Neighbours that come too close form a block around the mean of their values.
    blocks: list[list[float]] = []
    for value in values:
        block = [value]
        while blocks and _spread(block, gap)[0] - _spread(blocks[-1], gap)[-1] < gap:
            block = blocks.pop() + block
        blocks.append(block)
    return [place for block in blocks for place in _spread(block, gap)]


def _spread(block: Sequence[float], gap: float) -> list[float]:
    first = sum(block) / len(block) - gap * (len(block) - 1) / 2
    return [first + gap * i for i in range(len(block))]
