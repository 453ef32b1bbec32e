"""The overview of finished runs: their headlines, and hidden groups against clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import altair as alt
import pandas as pd

from wecfl.errors import RunFolderError
from wecfl.folder.readers import read_clients, read_metrics
from wecfl.report.figures.curves import PANEL_HEIGHT, curves_panel
from wecfl.report.figures.files import AnyChart, styled
from wecfl.report.tables.results import named_runs
from wecfl.runs.scores import ScoreKind, kind_of

__all__ = ["overview"]


def overview(folders: Sequence[Path]) -> AnyChart:
    """How well clients are served over the rounds, and which hidden groups were found.

    On the left is the headline over the rounds, one panel for each task and one line per experiment
    (the mean over its seeds). On the right is how many clients of each hidden group ended in each
    cluster, for the run that found the most groups (of several, the best). It is left out if the
    groups are unknown.
    """
    runs = named_runs(folders)
    heads = [next(iter(scores.items())) for scores in runs["scores"]]
    panels: list[alt.LayerChart | alt.Chart] = [
        _curves(runs[[head == each for each in heads]], head[0], kind_of(*head))
        for head in dict.fromkeys(heads)
    ]
    sign = [-1 if better == "lower" else 1 for _, better in heads]
    merit = [
        s * runs[name].iloc[i] for i, (s, (name, _)) in enumerate(zip(sign, heads, strict=True))
    ]
    ranked = runs.assign(merit=merit).dropna(subset="clusters").sort_values(["clusters", "merit"])
    for _, best in ranked[-1:].iterrows():
        members = read_clients(best["folder"])
        if members["group"].notna().all() and members["cluster"].nunique() > 1:
            panels.append(_groups(members, best["name"]))
    return styled(alt.hconcat(*panels, spacing=30).resolve_scale(color="independent"))


def _curves(runs: pd.DataFrame, score: str, kind: ScoreKind) -> alt.LayerChart:
    records = [
        {"name": name, "round": record["round"], score: record.get(score)}
        for name, folder in zip(runs["name"], runs["folder"], strict=True)
        for record in read_metrics(folder)
    ]
    if not records:
        folder = runs["folder"].iloc[0]
        raise RunFolderError(f"nothing to draw: {folder} holds no complete round; resume the run")
    return curves_panel(
        pd.DataFrame(records), score, title=f"{kind.title} on the clients' own test data", kind=kind
    )


def _groups(members: pd.DataFrame, name: str) -> alt.LayerChart:
    counts = members.groupby(["group", "cluster"]).size().reset_index(name="clients")
    # Clusters in the order of the group that most of their clients come from: a perfect match is a
    # diagonal.
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
    layers: alt.LayerChart = (tiles + numbers).properties(width=PANEL_HEIGHT, height=PANEL_HEIGHT)
    return layers
