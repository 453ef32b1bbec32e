"""Figures of finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import pandas as pd

from wecfl.runs.folder import read_clients, read_metrics, read_summary

__all__ = ["overview"]


def overview(folders: Sequence[Path]) -> alt.HConcatChart:
    """How well clients are served over the rounds, and which hidden groups were found.

    Left: accuracy per round, one line per run. Right, for the run with the most clusters: how many
    clients of each generating group ended in each cluster (left out if the groups are unknown).
    """
    panels: list[alt.LayerChart | alt.Chart] = [_curves(folders)]
    most = max(folders, key=lambda folder: read_summary(folder)["k"])
    members = read_clients(most)
    if members["group"].notna().all() and members["cluster"].nunique() > 1:
        panels.append(_groups(members, read_summary(most)["method"]))
    chart: alt.HConcatChart = (
        alt.hconcat(*panels, spacing=90)
        .resolve_scale(color="independent")
        .configure_view(stroke=None)
        .configure_axis(titleFontWeight="normal", domainColor="#888", tickColor="#888")
        .configure_title(fontSize=13, anchor="start", frame="group", offset=10)
    )
    return chart


def _curves(folders: Sequence[Path]) -> alt.LayerChart:
    rows = [
        {
            "run": _name(folder),
            "round": record["round"],
            "accuracy": record["accuracy"],
        }
        for folder in folders
        for record in read_metrics(folder)
    ]
    frame = pd.DataFrame(rows)
    base = alt.Chart(frame, title="Accuracy on the clients' own test data").encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, grid=False)),
        y=alt.Y("accuracy:Q", title="accuracy", axis=alt.Axis(format="%", gridOpacity=0.4)),
        color=alt.Color("run:N", legend=None, scale=alt.Scale(scheme="tableau10")),
    )
    last = frame.sort_values("round").groupby("run").tail(1)
    ends = (
        alt.Chart(last)
        .mark_text(align="left", dx=6, fontSize=12)
        .encode(
            x="round:Q",
            y="accuracy:Q",
            text="run:N",
            color=alt.Color("run:N", legend=None, scale=alt.Scale(scheme="tableau10")),
        )
    )
    layers: alt.LayerChart = (base.mark_line(strokeWidth=2.5) + ends).properties(
        width=340, height=260
    )
    return layers


def _groups(members: pd.DataFrame, method: str) -> alt.LayerChart:
    counts = members.groupby(["group", "cluster"]).size().reset_index(name="clients")
    # Clusters in the order of the group most of them come from: a perfect match is a diagonal.
    main = counts.sort_values("clients", ascending=False).drop_duplicates("cluster")
    order = main.sort_values(["group", "cluster"])["cluster"].tolist()
    base = alt.Chart(
        counts, title=f"Clients of each hidden group in each cluster ({method})"
    ).encode(
        x=alt.X("group:O", title="hidden group", axis=alt.Axis(labelAngle=0)),
        y=alt.Y("cluster:O", title="cluster found", sort=order),
    )
    tiles = base.mark_rect(cornerRadius=3).encode(
        color=alt.Color("clients:Q", scale=alt.Scale(scheme="blues", domainMin=0), legend=None)
    )
    half = counts["clients"].max() / 2
    numbers = base.mark_text(fontSize=12).encode(
        text="clients:Q",
        color=alt.when(alt.datum.clients > half)
        .then(alt.value("white"))
        .otherwise(alt.value("black")),
    )
    layers: alt.LayerChart = (tiles + numbers).properties(width=260, height=260)
    return layers


def _name(folder: Path) -> str:
    summary = read_summary(folder)
    return f"{summary['method']}" + (f" K={summary['k']}" if summary["k"] > 1 else "")
