"""The map of the clients: a chart in which they move from round to round and never overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt
import numpy as np

from wecfl.core.types import F64, Int
from wecfl.report.page.line_charts import COLOR_COUNT, Spec, as_spec
from wecfl.runs.json_values import json_number
from wecfl.runs.scores import ScoreKind

__all__ = ["MAP_SIZE", "client_map", "dot_diameter", "last_places", "spread_apart"]

SHAPES = ["circle", "square", "triangle-up", "diamond", "cross"]
MAP_SIZE = (1500, 1000)
"""Width and height. Places are whole numbers: short, and precise enough for any screen."""


def client_map(
    planes: Sequence[F64],
    *,
    labels: Int,
    groups: Int | None,
    scores: F64,
    kind: ScoreKind,
    names: Sequence[str],
    sizes: Int,
) -> Spec:
    """The clients as dots. The signal `t` moves them: t = 1.5 is half way from frame 1 to frame 2.

    The signal `by` colours them by `cluster` or `group`. Clients that have just moved to another
    cluster have a ring. `planes` holds one (m, 2) per frame; `labels` and `scores` (NaN where they
    are unknown), which are of that `kind`, are (frames, m).

    >>> spec = client_map(
    ...     [np.eye(2)] * 2, labels=np.zeros((2, 2), int), groups=None,
    ...     scores=np.array([[1, np.nan], [1, 0.5]]), kind=ScoreKind("accuracy", percent=True),
    ...     names=["a", "b"], sizes=np.array([5, 6]))
    >>> [p["value"] for p in spec["params"] if p["name"] in "XA"]
    [[[1398, 102], [1398, 102]], [[1.0, None], [1.0, 0.5]]]
    """
    gap = dot_diameter(len(names))
    whole = np.round(np.stack(spread_apart(planes, *MAP_SIZE, gap=gap))).astype(int)
    arrays = {
        "X": whole[:, :, 0].tolist(),
        "Y": whole[:, :, 1].tolist(),
        "L": np.asarray(labels).tolist(),
        "G": None if groups is None else np.asarray(groups).tolist(),
        "A": [
            [
                json_number(a, **({"decimals": 3} if kind.percent else {"significant": 4}))
                for a in frame
            ]
            for frame in scores
        ],
        "names": list(names),
        "samples": np.asarray(sizes).tolist(),
    }
    base = _moving(len(names))
    layers = [_dots(base, kind, groups is not None, gap), *_cluster_numbers(base, gap)]
    spec = as_spec(alt.layer(*layers).properties(width="container", height="container"))
    values = {**arrays, "t": len(planes) - 1, "by": "cluster"}
    # Added to the dictionary, because Altair validates each of ten thousands of numbers slowly.
    return {**spec, "params": [{"name": name, "value": value} for name, value in values.items()]}


def _dots(base: alt.Chart, kind: ScoreKind, grouped: bool, gap: float) -> alt.Chart:
    """A dot for each client; who has just moved has a ring."""
    tooltip = [
        alt.Tooltip("client:N"), alt.Tooltip("cluster:O"),
        *([alt.Tooltip("group:O")] if grouped else []),
        alt.Tooltip("samples:Q"),
        alt.Tooltip("score:Q", title=kind.label, format=".1%" if kind.percent else ".4~g"),
    ]  # fmt: skip
    hue = alt.Scale(
        domain=list(range(COLOR_COUNT)), range=[f"var(--c{c})" for c in range(COLOR_COUNT)]
    )
    form = alt.Scale(domain=list(range(len(SHAPES))), range=SHAPES)
    ring, edge = alt.value("var(--ink)"), alt.value("var(--paper)")
    radius = alt.expr(f"PI * pow(width * {gap / MAP_SIZE[0] / 2}, 2)")
    dots: alt.Chart = base.mark_point(filled=True, opacity=0.9, size=radius).encode(
        color=alt.Color("color:O", legend=None, scale=hue),
        shape=alt.Shape("shape:N", legend=None, scale=form),
        stroke=alt.when("datum.moved").then(ring).otherwise(edge),
        strokeWidth=alt.when("datum.moved").then(alt.value(2)).otherwise(alt.value(0.5)),
        tooltip=tooltip,
        description="spoken:N",
    )
    return dots


def _cluster_numbers(base: alt.Chart, gap: float) -> list[alt.Chart]:
    """The number of each cluster or group above its highest dot: a halo, and what is on it."""
    tops = base.transform_aggregate(top="argmax(y)", groupby=["key"]).transform_calculate(
        x="datum.top.x", y="datum.top.y"
    )
    style: dict[str, Any] = {
        "fontSize": alt.expr("width < 500 ? 12 : 15"),
        "fontWeight": 700,
        "baseline": "bottom",  # above the dot, not on it
        "dy": alt.expr(f"-2 - width * {gap / MAP_SIZE[0] / 2}"),
    }
    halo: dict[str, Any] = {"stroke": "var(--paper)", "strokeWidth": 4, "strokeJoin": "round"}
    return [tops.mark_text(**style, **more).encode(text="key:N") for more in (halo, {})]


def _moving(clients: int) -> alt.Chart:
    """A chart with one datum for each client, at its place and with its values at the time `t`."""
    between = (
        "{0}[floor(t)][datum.i] + (t - floor(t)) * ({0}[ceil(t)][datum.i] - {0}[floor(t)][datum.i])"
    )
    return (
        alt.Chart(alt.sequence(0, clients, as_="i"))
        .transform_calculate(
            x=between.format("X"),
            y=between.format("Y"),
            cluster="L[round(t)][datum.i]",
            group="G ? G[datum.i] : null",
            key="by == 'group' ? G[datum.i] : datum.cluster",
            color=f"datum.key % {COLOR_COUNT}",
            shape=f"floor(datum.key / {COLOR_COUNT}) % {len(SHAPES)}",
            moved="L[round(t)][datum.i] != L[max(round(t) - 1, 0)][datum.i]",
            client="names[datum.i]",
            samples="samples[datum.i]",
            score="A[round(t)][datum.i]",
            spoken="'client ' + datum.client + ', cluster ' + datum.cluster",
        )
        .encode(
            x=alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, MAP_SIZE[0]], nice=False)),
            y=alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, MAP_SIZE[1]], nice=False)),
        )
    )


def dot_diameter(clients: int) -> float:
    """The diameter of a dot: many clients need smaller ones.

    >>> dot_diameter(50), dot_diameter(10_000)
    (34.0, 2.8)
    """
    return min(280 / float(np.sqrt(clients)), 34.0)


def last_places(spec: Spec) -> list[tuple[int, int, int]]:
    """x, y (from the top) and the cluster of each client in the last frame of a map."""
    values = {param["name"]: param["value"] for param in spec["params"]}
    places = zip(values["X"][-1], values["Y"][-1], values["L"][-1], strict=True)
    return [(x, MAP_SIZE[1] - y, label) for x, y, label in places]


def spread_apart(planes: Iterable[F64], width: float, height: float, gap: float) -> list[F64]:
    """The planes, each scaled to a rectangle, with clients moved apart so that none hides another.

    Clients of one group nearly coincide. Two that are closer than `gap` push each other away. This
    starts from the arrangement of the round before, so that the reader recognizes it.

    >>> [placed] = spread_apart([np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])], 100, 100, gap=10)
    >>> bool(np.linalg.norm(placed[0] - placed[1]) > 9)
    True
    """
    placed: list[F64] = []
    aside: F64 | None = None
    for plane in planes:
        low, high = plane.min(axis=0), plane.max(axis=0)
        # The extent of a t-SNE means nothing; the margin leaves room for clients to be moved.
        part = np.where(high > low, (plane - low) / np.where(high > low, high - low, 1), 0.5)
        places = 3 * gap + part * (np.array([width, height]) - 6 * gap)
        if (
            aside is None
        ):  # points that coincide need different directions: those of a sunflower's seeds
            angle = np.arange(len(plane)) * np.pi * (3 - np.sqrt(5))
            aside = gap / 100 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        moved = places + aside
        for _ in range(60):
            between = moved[:, None] - moved
            length = np.hypot(between[..., 0], between[..., 1])
            push = np.clip(gap - length, 0, None) / np.maximum(length, 1e-9)
            if (length + 2 * gap * np.eye(len(plane))).min() > 0.98 * gap:
                break
            step = 0.35 * np.einsum("ij,ijc->ic", push, between)
            long = np.hypot(*step.T)[:, None]  # a crowd must not throw a client across the plane
            moved = moved + step * np.minimum(1, gap / 2 / np.maximum(long, 1e-9))
            moved = np.clip(moved, gap / 2, np.array([width, height]) - gap / 2)
        aside = moved - places
        placed.append(moved)
    return placed
