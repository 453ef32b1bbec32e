"""Figures of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import pandas as pd

from wecfl.errors import RunFolderError
from wecfl.folder.readers import read_clients, read_metrics
from wecfl.report.charts import AnyChart, styled
from wecfl.report.tables import experiments

__all__ = ["COLORS", "named_runs", "overview", "panel_of_curves"]

HEIGHT = 260
LINE = 15
"""Pixels between the names of two curves."""
COLORS = (
    "#4e79a7", "#e15759", "#59a14f", "#b07aa1", "#f28e2b",
    "#499894", "#9c755f", "#d37295", "#79706e", "#b6992d",
)  # fmt: skip
"""Tableau's, but for those too light to write a name in."""


def overview(folders: Sequence[Path]) -> AnyChart:
    """How well clients are served over the rounds, and which hidden groups were found.

    Left: accuracy per round, one line per experiment (mean over its seeds). Right, for the run that
    found the most groups, the best of them: how many clients of each generating group ended in each
    cluster (left out if the groups are unknown).
    """
    runs = named_runs(folders)
    panels: list[alt.LayerChart | alt.Chart] = [_curves(runs)]
    for _, best in (
        runs.dropna(subset="clusters").sort_values(["clusters", "accuracy"])[-1:].iterrows()
    ):
        members = read_clients(best["folder"])
        if members["group"].notna().all() and members["cluster"].nunique() > 1:
            panels.append(_groups(members, best["name"]))
    return styled(alt.hconcat(*panels, spacing=30).resolve_scale(color="independent"))


def named_runs(folders: Sequence[Path]) -> pd.DataFrame:
    """One row per run with the `name` of its experiment: what sets it apart from the others."""
    runs, key = experiments(folders)
    shown = key[3:] if runs["planned"].nunique() == 1 else key[2:]
    return runs.assign(name=[_name(row, shown) for _, row in runs.iterrows()])


def _curves(runs: pd.DataFrame) -> alt.LayerChart:
    records = [
        {"name": name, "round": record["round"], "accuracy": record["accuracy"]}
        for name, folder in zip(runs["name"], runs["folder"], strict=True)
        for record in read_metrics(folder)
    ]
    if not records:
        raise RunFolderError(f"nothing to draw: {runs['folder'].iloc[0]} holds no complete round")
    return panel_of_curves(
        pd.DataFrame(records), "accuracy", title="Accuracy on the clients' own test data"
    )


def panel_of_curves(records: pd.DataFrame, score: str, *, title: str) -> alt.LayerChart:
    """A score over the rounds, one line for each `name`, the mean of its rows; named at its end."""
    names = records["name"].unique().tolist()
    curves = records.groupby(["name", "round"], sort=False)[score].mean().reset_index()
    color = alt.Color("name:N", legend=None, scale=alt.Scale(domain=names, range=COLORS))
    top = min(1.0, 1.05 * curves[score].max())
    lines = (
        alt.Chart(curves, title=title)
        .mark_line(strokeWidth=2.5, point=curves["round"].nunique() == 1)
        .encode(
            x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, grid=False)),
            y=alt.Y(
                f"{score}:Q",
                title=score.replace("_f1", "-F1"),
                axis=alt.Axis(format="%", gridOpacity=0.4),
                scale=alt.Scale(domain=[0, top], nice=False),
            ),
            color=color,
            tooltip=["name:N", "round:Q", alt.Tooltip(f"{score}:Q", format=".1%")],
        )
    )
    ends = curves.sort_values("round").groupby("name").tail(1).assign(round=curves["round"].max())
    ends = ends.sort_values(score)
    ends["place"] = _apart(ends[score].tolist(), gap=LINE / HEIGHT * top)
    labels = (
        alt.Chart(ends)
        .mark_text(align="left", dx=8, fontSize=12)
        .encode(x="round:Q", y="place:Q", text="name:N", color=color)
    )
    layers: alt.LayerChart = (lines + labels).properties(width=340, height=HEIGHT)
    return layers


def _apart(values: Sequence[float], gap: float) -> list[float]:
    """Rising values moved as little as leaves a gap between neighbours.

    >>> _apart([0.0, 5.0, 5.0, 9.0], gap=2)
    [0.0, 4.0, 6.0, 9.0]
    """
    # Neighbours that come too close form a block around the mean of its members.
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


def _groups(members: pd.DataFrame, name: str) -> alt.LayerChart:
    counts = members.groupby(["group", "cluster"]).size().reset_index(name="clients")
    # Clusters in the order of the group most of them come from: a perfect match is a diagonal.
    main = counts.sort_values("clients", ascending=False).drop_duplicates("cluster")
    order = main.sort_values(["group", "cluster"])["cluster"].tolist()
    apart = alt.Scale(paddingInner=0.06)
    base = alt.Chart(counts, title=f"Clients by hidden group and cluster ({name})").encode(
        x=alt.X("group:O", title="hidden group", axis=alt.Axis(labelAngle=0), scale=apart),
        y=alt.Y("cluster:O", title="cluster found", sort=order, scale=apart),
    )
    tiles = base.mark_rect(cornerRadius=3).encode(
        color=alt.Color(
            "clients:Q", scale=alt.Scale(range=["#e3edf7", "#4e79a7"], domainMin=0), legend=None
        )
    )
    half = counts["clients"].max() / 2
    numbers = base.mark_text(fontSize=12).encode(
        text="clients:Q",
        color=alt.when(alt.datum.clients > half)
        .then(alt.value("white"))
        .otherwise(alt.value("black")),
    )
    layers: alt.LayerChart = (tiles + numbers).properties(width=HEIGHT, height=HEIGHT)
    return layers


def _name(run: pd.Series[str], choices: Sequence[str]) -> str:
    """The method with what sets it apart: K, and the choices in which the experiments differ."""
    parts = [f"K={run['k']}"] if str(run["k"]) != "1" else []
    parts += [f"{'rounds' if c == 'planned' else c}={run[c]}" for c in choices]
    return " ".join([run["method"], *parts])
