"""The report: one page about one or several runs that works offline, in a single file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from json import dumps
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from wecfl import __version__
from wecfl.errors import ConfigError, RunFolderError
from wecfl.folder.readers import read_config, read_metrics, read_summary
from wecfl.printing import printable_lines
from wecfl.report.page.fleet_section import fleet_section
from wecfl.report.page.line_charts import COLOR_COUNT, line_chart, stroke
from wecfl.report.page.objective_charts import Chart
from wecfl.report.page.run_section import TrackRounds, run_section
from wecfl.report.tables.results import (
    first_scores,
    named_runs,
    result_cells,
    results,
    text_columns,
)
from wecfl.runs.scores import headline_of, kind_of

__all__ = ["PageLimits", "page", "write"]

ARI_TITLE = "ARI with the hidden groups"
MAX_TITLE_METHODS = 5
"""The largest number of methods that the title of a page names; of more it tells the number."""


@dataclass(frozen=True, slots=True)
class PageLimits:
    """Limits that keep a page small, so that it is made within half a minute."""

    detailed_runs: int = 12
    """The largest number of runs shown in detail; the table and the curves hold all runs."""
    frames: int = 100
    """The largest number of rounds on all maps of clients together."""
    min_frames: int = 10
    """The number of rounds that the map of each run may show in any case."""
    places: int = 50_000
    """The largest product of clients and rounds on one map: 100 rounds of 500 clients take 0.7
    MB."""


def page(
    folders: Sequence[Path],
    track: TrackRounds = lambda rounds, title: rounds,
    limits: PageLimits | None = None,
) -> str:
    """The page about these run folders, as HTML.

    Several runs are compared: their curves share the charts, and there is one table. Runs that
    differ by their seed alone are one experiment: their mean is drawn, and the first of them is
    shown in detail.
    """
    limits = limits or PageLimits()
    runs = named_runs(folders)
    table = results(folders)
    charts, numbers = _convergence(runs, first_scores(table))
    firsts = runs.drop_duplicates("name")
    shown = firsts[firsts["rounds"] > 0].head(limits.detailed_runs)
    if shown.empty:
        raise RunFolderError(
            "nothing to show: no run has a complete round, by its summary.json; resume a run"
        )
    frames = max(limits.frames // len(shown), limits.min_frames)
    heads, rows = result_cells(table)
    environment = Environment(
        loader=PackageLoader("wecfl.report.page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_shown,
    )  # fmt: skip
    environment.policies["json.dumps_function"] = _json
    return environment.get_template("page.html").render(
        title=_title(firsts),
        runs=len(runs),
        heads=heads,
        numeric=text_columns(table),
        rows=rows,
        experiments=[(name, stroke(i)) for i, name in enumerate(firsts["name"])],
        charts=charts,
        numbers=numbers,
        headline=headline_of(read_summary(shown["folder"].iloc[0]))[1],
        fleets=any("registered" in read_config(folder) for folder in runs["folder"]),
        details=[
            fleet_section(row["name"], row["folder"])
            if "registered" in read_config(row["folder"])
            else run_section(row["name"], row["folder"], track, frames=frames, places=limits.places)
            for _, row in shown.iterrows()
        ],
        colors=COLOR_COUNT,
        version=__version__,
        bundle=_scripts(),
    )


def _shown(value: Any) -> Any:
    """A value of the page, in whose texts control characters are shown; HTML stays as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable_lines(value)
    if isinstance(value, Mapping):
        return {_shown(key): _shown(each) for key, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, list | tuple) else value


def _json(value: Any, **_: Any) -> str:
    return dumps(_shown(value), separators=(",", ":"))  # no spaces


def write(html: str, path: Path) -> Path:
    """Write the page to a file, with the folders above it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file name may hold bytes that are not UTF-8: they are shown as \udcff.
        path.write_text(html, encoding="utf-8", errors="backslashreplace")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't write the report {path}: {why}") from None
    return path


@cache
def _scripts() -> str:
    """Vega, Vega-Lite and vega-embed, minified: about 900 KB."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed")


def _title(firsts: pd.DataFrame) -> str:
    *others, last = firsts["method"].unique().tolist()
    methods = f"{', '.join(others)} and {last}" if others else last
    if len(others) >= MAX_TITLE_METHODS:
        methods = f"{len(others) + 1} methods"
    configs = [read_summary(folder)["config"] for folder in firsts["folder"]]
    data = sorted({Path(config["dataset"]).name for config in configs if "dataset" in config})
    return f"{methods} on {' and '.join(data)}" if data else str(methods)


def _convergence(runs: pd.DataFrame, scores: Sequence[str]) -> tuple[list[Chart], list[list[str]]]:
    """Charts of the scores, each the mean over an experiment's runs; the headline as a table."""
    better = {name: b for each in runs["scores"] for name, b in each.items()}
    kinds = {name: kind_of(name, better[name]) for name in scores}
    keys = [*scores, "ari"]
    records = [
        {"name": name, "round": record["round"], **{key: record.get(key) for key in keys}}
        for name, folder in zip(runs["name"], runs["folder"], strict=True)
        for record in read_metrics(folder)
    ]
    if not records:
        folder = runs["folder"].iloc[0]
        raise RunFolderError(f"nothing to show: {folder} holds no complete round; resume the run")
    names = runs["name"].unique().tolist()
    frame = pd.DataFrame(records).astype(dict.fromkeys(keys, float))
    # Every chart holds all experiments, so that a colour means the same in each of them.
    means = {key: frame.pivot_table(key, "round", "name").reindex(columns=names) for key in keys}
    charts = []
    for key in keys:
        series = {name: means[key][name].tolist() for name in names}
        if means[key].notna().to_numpy().any():
            title = (
                ARI_TITLE
                if key == "ari"
                else kinds[key].title + " (lower is better)" * (kinds[key].better == "lower")
            )
            spec = line_chart(
                series, means[key].index.tolist(), percent=key != "ari" and kinds[key].percent,
                best=1.0 if key == "ari" else None,
            )  # fmt: skip
            charts.append(Chart(title, spec))
    kind = kinds[scores[0]]
    numbers = [
        [str(t), *(kind.number(value, digits=2) for value in row)]
        for t, *row in means[scores[0]].itertuples()
    ]
    return charts, [["round", *(name + " %" * kind.percent for name in names)], *numbers]
