"""The paper's figures, drawn from stored results; each has a definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wecfl.config import Config
from wecfl.data.client_rows import class_counts
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError, RunFolderError, unknown
from wecfl.paper.definitions import Cell, Definition
from wecfl.paper.result_store import ResultStore, StoredResult
from wecfl.report.figures.curves import CURVE_COLORS, curves_panel
from wecfl.report.figures.files import AnyChart, styled
from wecfl.report.figures.heat_map import heat_map
from wecfl.report.figures.partition import bars

__all__ = ["FIGURES", "draw"]

Clients = Callable[[Config], Federation]
Found = list[tuple[Cell, list[StoredResult]]]
"""The cells that have results, each with the results of its seeds."""

SMALL_TITLE: dict[str, Any] = {"fontSize": 11, "fontWeight": "normal", "offset": 4}
LOSS_REMEDY = "remove its file and run it again with objectives and diagnostics"
DATASET_TITLES = {"cifar-10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}


def draw(definition: Definition, store: ResultStore, clients: Clients) -> AnyChart | None:
    """The figure of the stored results; None if there are none."""
    if definition.figure == "partition":  # the only figure that needs data, but no run
        return _partition([cell.config for cell in definition.cells], clients)
    if definition.figure not in FIGURES:
        raise ConfigError(unknown("figure", str(definition.figure), [*FIGURES, "partition"]))
    found = [(cell, store.seeds(cell.run(0))) for cell in definition.cells]
    found = [(cell, results) for cell, results in found if results]
    return FIGURES[definition.figure](found) if found else None


def _partition(configs: Sequence[Config], clients: Clients) -> AnyChart:
    """How many samples of each class each client holds."""
    panels = []
    for config in configs:
        federation = clients(config)
        held = class_counts(federation.y, federation.train, federation.classes)
        panels.append((_setting(config), held, federation.groups))
    return bars(panels)


def _convergence(found: Found) -> AnyChart:
    """Accuracy and macro-F1 over the rounds, mean over seeds."""
    methods = {cell.config.method for cell, _ in found}
    records = pd.DataFrame(
        [
            {
                "name": _name(cell.config, several=len(methods) > 1),
                "round": t,
                "accuracy": accuracy,
                "macro_f1": macro_f1,
            }
            for cell, results in found
            for stored in results
            for t, accuracy, macro_f1 in zip(
                *(stored["curve"][key] for key in ("round", "accuracy", "macro_f1")), strict=True
            )
        ]
    )
    where = _setting(found[0][0].config)
    panels = [
        curves_panel(records, "accuracy", title=f"{where}: accuracy"),
        curves_panel(records, "macro_f1", title=f"{where}: macro-F1"),
    ]
    return styled(alt.hconcat(*panels, spacing=40).resolve_scale(color="shared"))


def _cosine(found: Found) -> AnyChart:
    """Cosine similarity of the centers, and of clients of one cluster before aggregation."""
    rows = []
    for number, (cell, results) in enumerate(found):
        seen = results[0]["trace"]["cosine"]
        where = f"{_dataset(cell.config)}, round {cell.config.rounds}"
        many = f"{len(seen['members'])} clients of cluster {seen['cluster']}"
        rows.append(
            alt.hconcat(
                _cosine_map(
                    seen["centers"], seen["clusters"], f"{where}: the centers", "cluster", number
                ),
                _cosine_map(seen["clients"], seen["members"], many, "client", number),
                spacing=30,
            ).resolve_scale(color="independent")
        )
    return styled(alt.vconcat(*rows, spacing=30).resolve_scale(color="independent"))


def _cosine_map(
    matrix: Sequence[Sequence[float]], numbers: Sequence[int], title: str, kind: str, row: int
) -> alt.LayerChart:
    """A heat map of cosines between clusters or clients with these numbers."""
    values = np.asarray(matrix)
    between = values[~np.eye(len(values), dtype=bool)]
    spread = f"between {between.min():.5f} and {between.max():.5f}, mean {between.mean():.5f}"
    chart = heat_map(
        values,
        [f"{kind} {number}" for number in numbers],
        colors=alt.Scale(scheme="viridis"),
        labels={place + 0.5: str(number) for place, number in enumerate(numbers)},
        axis_title=kind,
        dataset=f"{kind}-{row}",
    )
    sized: alt.LayerChart = chart.properties(
        width=300, height=300, title=alt.TitleParams(title, subtitle=spread)
    )
    return sized


def _tsne(found: Found) -> AnyChart:
    """The clients in the plane, round by round, coloured by the cluster they were assigned to."""
    rows = []
    for cell, results in found:
        config, trace = cell.config, results[0]["trace"]
        where = f"{_dataset(config)}, K = {config.clusters}"
        last, clusters = trace["rounds"][-1], range(int(config.clusters))
        panels = [
            _plane(seen, trace["group"], clusters, legend=seen is last) for seen in trace["rounds"]
        ]
        row = alt.hconcat(*panels, spacing=12, title=where)
        rows.append(row.resolve_scale(color="independent"))
    return styled(alt.vconcat(*rows, spacing=24).resolve_scale(color="independent"))


def _plane(
    seen: dict[str, Any], group: list[int] | None, clusters: Sequence[int], *, legend: bool
) -> alt.Chart:
    points = pd.DataFrame({key: seen[key] for key in ("x", "y", "cluster")})
    points["client"] = range(len(points))
    points["group"] = group if group is not None else "unknown"
    bare = alt.Axis(labels=False, ticks=False, grid=False, title=None, domain=False)
    scale = alt.Scale(zero=False, nice=False, padding=8)
    named = alt.Legend(title="cluster", symbolSize=60) if legend else None
    colors = alt.Scale(domain=[*clusters], range=CURVE_COLORS[: len(clusters)])
    title = alt.TitleParams(f"round {seen['round']}", **SMALL_TITLE)
    chart: alt.Chart = (
        alt.Chart(points, title=title)
        .mark_circle(size=24, opacity=1)  # PDF and SVG draw translucent points one by one
        .encode(
            x=alt.X("x:Q", axis=bare, scale=scale),
            y=alt.Y("y:Q", axis=bare, scale=scale),
            color=alt.Color("cluster:N", scale=colors, legend=named),
            tooltip=["client:O", "cluster:N", "group:N"],
        )
        .properties(width=155, height=155, view=alt.ViewConfig(stroke="#ddd"))
    )
    return chart


def _objectives(found: Found) -> AnyChart:
    """F after L, E and M, R after L and D, and B before and after L, over the rounds."""
    rows = []
    for cell, results in found:
        where = f"{_setting(cell.config)}, {_name(cell.config, several=True)}"
        seen = results[0]["trace"]
        panels = [_objective(seen[name], name) for name in LEGEND_TITLES if seen.get(name)]
        if not panels:
            raise RunFolderError(f"the stored run '{where}' has no objective: {LOSS_REMEDY}")
        panel = alt.hconcat(*panels, spacing=24, title=where)
        rows.append(panel.resolve_scale(color="independent", strokeDash="independent"))
    chart = alt.vconcat(*rows, spacing=30)
    return styled(chart.resolve_scale(color="independent", strokeDash="independent"))


STEP_NAMES = {
    "L": "local update", "E": "expectation", "M": "maximization", "D": "distribution",
    "0": "before the local update", "Q": "after it",
}  # fmt: skip
LEGEND_TITLES = {"F": "F after the", "R": "R after the", "B": "largest B of a cluster"}


def _objective(by_step: dict[str, list[float]], name: str) -> alt.Chart:
    values = pd.DataFrame(
        [
            {"round": t, "after": STEP_NAMES[step], name: value}
            for step, values in by_step.items()
            for t, value in enumerate(values, 1)
        ]
    )
    names = [STEP_NAMES[step] for step in by_step]
    legend = alt.Legend(title=LEGEND_TITLES[name], orient="bottom", direction="vertical")
    # F after M equals F after E if K-means has converged, and R after D nearly equals R after L if
    # local updates are short. Dashes show both lines.
    dashes = [[1, 0]] * (len(names) - 1) + [[5, 5]]
    chart: alt.Chart = (
        alt.Chart(values, title=alt.TitleParams(_course(by_step, name), **SMALL_TITLE))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("round:Q", title="round", axis=alt.Axis(tickMinStep=1, grid=False)),
            y=alt.Y(f"{name}:Q", title=name, axis=alt.Axis(gridOpacity=0.4, format="~g")),
            color=alt.Color(
                "after:N", legend=legend, scale=alt.Scale(domain=names, range=CURVE_COLORS)
            ),
            strokeDash=alt.StrokeDash(
                "after:N", legend=legend, scale=alt.Scale(domain=names, range=dashes)
            ),
            tooltip=["after:N", "round:Q", alt.Tooltip(f"{name}:Q", format=".4g")],
        )
        .properties(width=235, height=220)
    )
    return chart


def _course(by_step: dict[str, list[float]], name: str) -> str:
    """The course of an objective after the first of its steps, in words.

    >>> _course({"L": [1.0, 4.0, 2.0]}, "F"), _course({"L": [3.0, 2.0, 1.0]}, "R")
    ('F: from 1 up to 4 in round 2, then 2', 'R: from 3 to 1')
    """
    values = next(iter(by_step.values()))
    first, top, last = values[0], max(values), values[-1]
    if top > max(first, last):
        peak = f"{top:.2g} in round {values.index(top) + 1}"
        return f"{name}: from {first:.2g} up to {peak}, then {last:.2g}"
    return f"{name}: from {first:.2g} to {last:.2g}"


def _rate(found: Found) -> AnyChart:
    """The mean ‖∇L‖² over the first T rounds, beside what Theorem 3 promises and beside 1/T."""
    panels = []
    for cell, results in found:
        seen = results[0]["trace"].get("gradient")
        if seen is None:
            raise RunFolderError(f"the stored run '{cell.label}' has no gradients: {LOSS_REMEDY}")
        first = seen["measured"][0]
        curves = {
            **{RATE_NAMES[key]: values for key, values in seen.items()},
            "1/T": [first / t for t in range(1, len(seen["measured"]) + 1)],
        }
        values = pd.DataFrame(
            [
                {"T": t, "curve": name, "mean": value}
                for name, each in curves.items()
                for t, value in enumerate(each, 1)
            ]
        )
        names = [*RATE_NAMES.values(), "1/T"]
        dashes = [[1, 0], [5, 5], [2, 3]]
        panels.append(
            alt.Chart(values, title=f"{cell.label}: mean ‖∇L‖² over T rounds")
            .mark_line(strokeWidth=2)
            .encode(
                x=alt.X("T:Q", title="T, rounds", scale=LOG_SCALE, axis=LOG_AXIS),
                y=alt.Y("mean:Q", title=None, scale=LOG_SCALE, axis=LOG_AXIS),
                color=alt.Color(
                    "curve:N", title=None, scale=alt.Scale(domain=names, range=CURVE_COLORS)
                ),
                strokeDash=alt.StrokeDash(
                    "curve:N", title=None, scale=alt.Scale(domain=names, range=dashes)
                ),
                tooltip=["curve:N", "T:Q", alt.Tooltip("mean:Q", format=".3g")],
            )
            .properties(width=320, height=240)
        )
    return styled(alt.hconcat(*panels, spacing=40))


RATE_NAMES = {"measured": "measured", "promised": "ε that Theorem 3 promises"}
LOG_SCALE = alt.Scale(type="log", nice=False)
LOG_AXIS = alt.Axis(format="~g", gridOpacity=0.4, tickCount=5)


def _robustness(found: Found) -> AnyChart:
    """Accuracy of honest clients by attack and aggregation, mean over seeds, one map per method."""
    values = pd.DataFrame(
        [
            {
                "method": _name(cell.config, several=True),
                "attack": cell.label or cell.config.attack,
                "aggregation": cell.config.aggregation,
                "accuracy": float(np.mean(scores)),
                "seeds": len(scores),
            }
            for cell, results in found
            if (scores := [100 * result["accuracy"] for result in results if result["accuracy"]])
        ]
    )
    low = 10 * int(values["accuracy"].min() // 10)
    by_method = values.groupby("method", sort=False)
    panels = [_map(rows, str(method), low) for method, rows in by_method]
    return styled(alt.concat(*panels, columns=3, spacing=24))


def _drift(found: Found) -> AnyChart:
    """Accuracy over the rounds where data change once, for each kind of drift."""
    records = pd.DataFrame(
        [
            {"drift": cell.config.drift, "name": cell.label, "round": t, "accuracy": accuracy}
            for cell, results in found
            if "round=" in (cell.config.drift or "")
            for stored in results
            for t, accuracy in zip(*map(stored["curve"].get, ("round", "accuracy")), strict=True)
        ]
    )
    panels = []
    for text, rows in records.groupby("drift", sort=False):
        change = pd.DataFrame({"round": [int(str(text).partition("round=")[2].rstrip(")"))]})
        rule = alt.Chart(change).mark_rule(color="#888", strokeDash=[4, 4]).encode(x="round:Q")
        panels.append(curves_panel(rows, "accuracy", title=str(text)) + rule)
    return styled(alt.concat(*panels, columns=2, spacing=30).resolve_scale(color="shared"))


def _map(values: pd.DataFrame, title: str, low: int) -> alt.LayerChart:
    across, down = ([*dict.fromkeys(values[key])] for key in ("aggregation", "attack"))
    base = alt.Chart(values, title=title).encode(
        x=alt.X("aggregation:N", title=None, sort=across, axis=alt.Axis(labelAngle=-40)),
        y=alt.Y("attack:N", title=None, sort=down),
        tooltip=["attack:N", "aggregation:N", alt.Tooltip("accuracy:Q", format=".2f"), "seeds:Q"],
    )
    color = alt.Color(
        "accuracy:Q",
        title=["accuracy of", "honest clients %"],
        scale=alt.Scale(scheme="viridis", domain=[low, 100]),
    )
    dark = f"datum.accuracy < {(low + 100) / 2}"
    ink = alt.condition(dark, alt.value("white"), alt.value("black"))
    numbers = base.mark_text(fontSize=11).encode(text=alt.Text("accuracy:Q", format=".0f"))
    chart: alt.LayerChart = base.mark_rect().encode(color=color) + numbers.encode(color=ink)
    return chart.properties(width=36 * len(across), height=24 * len(down))


def _dataset(config: Config) -> str:
    return DATASET_TITLES.get(config.dataset, config.dataset)


def _setting(config: Config) -> str:
    numbers = config.completed().alpha or config.completed().classes_per or ()
    inside = ", ".join(f"{number:g}" for number in numbers)
    return f"{_dataset(config)}, {config.partition}({inside})"


def _name(config: Config, *, several: bool) -> str:
    return f"{config.method} K={config.clusters}" if several else f"K={config.clusters}"


FIGURES: dict[str, Callable[[Found], AnyChart]] = {
    "convergence": _convergence,
    "cosine": _cosine,
    "tsne": _tsne,
    "objectives": _objectives,
    "rate": _rate,
    "robustness": _robustness,
    "drift": _drift,
}
"""The figures by name. Beside them there is `partition`, which needs no run."""
