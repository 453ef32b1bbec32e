"""`wecfl compare`, `wecfl check` and `wecfl report`: what finished runs show."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wecfl.cli import terminal
from wecfl.cli.flags import check_figure, check_place
from wecfl.errors import ConfigError

__all__ = ["check", "compare", "report"]


def compare(
    *folders: Annotated[Path, Parameter(help="Run folders, or folders that hold run folders.")],
    figure: Annotated[
        Path | None, Parameter(help="Also draw the runs into this .png, .svg, .pdf or .html.")
    ] = None,
) -> None:
    """Print runs as one table.

    Runs that differ only by their seed become one row with mean ± standard deviation.
    """
    check_figure(figure)
    found = _found(folders, "compare")
    from wecfl.report.tables.results import results, rich_results

    terminal.table(rich_results(results(found)))
    if figure:
        from wecfl.report.figures.overview import overview

        terminal.draw(overview(found), figure)


def check(
    *folders: Annotated[Path, Parameter(help="Run folders, or folders that hold run folders.")],
    epsilon: Annotated[
        float | None,
        Parameter(
            help="Also show how many rounds Theorem 3 needs until the mean ‖∇L‖² is at most this."
        ),
    ] = None,
    rounds: Annotated[
        bool, Parameter(help="Also show the margin in each round.", negative="")
    ] = False,
    json: Annotated[
        bool, Parameter(help="Print everything as JSON, one document for each run.", negative="")
    ] = False,
    strict: Annotated[
        bool,
        Parameter(
            help="Exit with 1 if a statement failed although its assumptions are met.", negative=""
        ),
    ] = False,
) -> None:
    """Check the paper's lemmas and theorems on runs that were made with --diagnostics."""
    if epsilon is not None and not 0 < epsilon < float("inf"):
        raise ConfigError(f"--epsilon must be positive and finite, got {epsilon:g}")
    runs = _found(folders, "check")
    from wecfl.theory.check import check_run
    from wecfl.theory.tables import rich_check, rich_rounds

    checks = [check_run(folder, epsilon) for folder in runs]
    for found in checks:
        if json:
            terminal.show_json(dumps(found.json(), indent=2, ensure_ascii=False))
            continue
        terminal.wide(rich_check(found))
        if rounds:
            terminal.wide(rich_rounds(found))
    if strict and any(found.refuted for found in checks):
        sys.exit(1)


def report(
    *folders: Annotated[Path, Parameter(help="Run folders, or folders that hold run folders.")],
    out: Annotated[
        Path | None, Parameter(help="The page to write (default: page.html in the first folder).")
    ] = None,
    open_: Annotated[
        bool, Parameter(name="--open", negative=(), help="Open the page in the browser.")
    ] = False,
) -> None:
    """Write a page about runs: one HTML file that works offline.

    It holds the table of results, curves over the rounds, a map on which the clients move from
    round to round, the clusters, the objectives, and the command that repeats each run. Several
    runs are compared.
    """
    found = _found(folders, "report")
    path = out or folders[0] / "page.html"
    if path.suffix.lower() != ".html":
        raise ConfigError(f"the report is an HTML file: --out must end in .html, got '{path}'")
    check_place(path, "report")
    from wecfl.report.page.html import page, write

    written = write(page(found, terminal.track_rounds), path)
    terminal.show(f"report: {written} ({written.stat().st_size / 1e6:.1f} MB)")
    if open_:
        webbrowser.open(written.absolute().as_uri())


def _found(folders: Sequence[Path], command: str) -> list[Path]:
    """All runs in these folders; at least one folder must be named."""
    if not folders:
        raise ConfigError(f"name at least one run folder: wecfl {command} runs/…")
    return [run for folder in folders for run in _runs_in(folder)]


def _runs_in(folder: Path) -> list[Path]:
    """The folder itself if it is a run folder, otherwise all run folders below it."""
    if not folder.is_dir():
        raise ConfigError(f"there is no run folder {folder}: check the path")
    from wecfl.folder.readers import read_summary

    inside = sorted(path.parent for path in folder.rglob("summary.json"))
    if inside and not (folder / "summary.json").exists():
        for begun in sorted(path.parent for path in folder.rglob("metrics.jsonl")):
            if begun not in inside:
                reason = "it has no summary.json, so its run has not ended"
                terminal.say(f"left out {begun}: {reason}")
        return inside
    read_summary(folder)
    return [folder]
