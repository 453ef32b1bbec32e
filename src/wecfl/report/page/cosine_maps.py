"""Heat maps of the page: cosines between centers and between clients in the last traced round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import altair as alt
import numpy as np

from wecfl.core.types import Int
from wecfl.folder.distance_trace import cosines
from wecfl.report.figures.heat_map import COLOR_LEVELS, heat_map
from wecfl.report.page.line_charts import Spec, as_spec
from wecfl.report.page.run_data import RunData

__all__ = ["CosineMap", "cosine_maps"]

MAX_MAPPED_CLIENTS = 200
"""The largest number of clients on a map. If there are more, every second, third, … is shown."""


@dataclass(frozen=True, slots=True)
class CosineMap:
    """A heat map, what it shows, and how its levels become cosines: low + level · step."""

    title: str
    about: str
    spec: Spec
    low: float
    high: float

    @property
    def step(self) -> float:
        """The cosine between two levels."""
        return (self.high - self.low) / COLOR_LEVELS


def cosine_maps(run: RunData) -> list[CosineMap]:
    """The map of the centers, if there are several, and that of the clients."""
    if not run.traced:
        return []
    last = run.traced[-1]
    labels = run.labels[last - 1]
    used = np.unique(labels)
    maps = []
    if len(used) > 1:
        names = [f"cluster {k}" for k in used]
        maps.append(_map(run, "centers", f"after round {last}", used, names=names, clusters=used))
    every = -(-len(labels) // MAX_MAPPED_CLIENTS)
    within = np.zeros_like(labels) if run.groups is None else run.groups
    order = np.lexsort((within, labels))[::every]  # by cluster, and inside of it by group
    about = f"after local update {last}, by cluster" + (f" (one in {every})" if every > 1 else "")
    names = [f"{run.clients['client'][i]} (cluster {labels[i]})" for i in order]
    maps.append(_map(run, "clients", about, order, names=names, clusters=labels[order]))
    return maps


def _map(
    run: RunData,
    of: Literal["clients", "centers"],
    about: str,
    order: Int,
    *,
    names: list[str],
    clusters: Int,
) -> CosineMap:
    """The map of some clients or centers, in that order, with seams between the clusters."""
    matrix = cosines(*run.trace(run.traced[-1], of))[np.ix_(order, order)]
    matrix = np.clip(np.nan_to_num(matrix), -1, 1)
    kinds, counts = np.unique(clusters, return_counts=True)
    ends = counts.cumsum()
    chart = heat_map(
        matrix,
        names,
        colors=alt.Scale(range=["var(--card)", "var(--accent)"], interpolate="rgb"),
        labels=dict(zip((ends - counts / 2).tolist(), map(str, kinds), strict=True)),
        seams=ends[:-1].tolist(),
        seam_color="var(--paper)",
        legend=False,
    )
    # The cell that the arrow keys have reached: the page sets both signals.
    marker = (
        alt.Chart(alt.sequence(0, 1, as_="i"))
        .transform_calculate(row="max(at_row, 0)", column="max(at_column, 0)")
        .transform_calculate(row_end="datum.row + 1", column_end="datum.column + 1")
        .mark_rect(
            fillOpacity=0, stroke="var(--ink)", strokeWidth=alt.expr("at_row < 0 ? 0 : 2"),
            tooltip=None,
        )
        .encode(x="column:Q", x2="column_end:Q", y="row:Q", y2="row_end:Q")
    )  # fmt: skip
    whole = alt.layer(chart, marker).properties(width="container", height="container")
    spec = as_spec(whole)
    params = [{"name": name, "value": -1} for name in ("at_row", "at_column")]
    low, high = float(matrix.min()), float(matrix.max())
    return CosineMap(of.capitalize(), about, spec | {"params": params}, low, high)
