"""Charts as files: which kinds there are, how charts are styled, and how they are saved."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import altair as alt

from wecfl.errors import ConfigError

__all__ = ["FORMATS", "AnyChart", "format_of", "save", "styled"]

AnyChart = alt.Chart | alt.LayerChart | alt.ConcatChart | alt.HConcatChart | alt.VConcatChart
"""A chart that Altair can save."""

FORMATS: dict[str, Literal["png", "svg", "pdf", "html"]] = {
    ".png": "png",
    ".svg": "svg",
    ".pdf": "pdf",
    ".html": "html",
}
"""The kinds of file that a chart can be written to, by suffix."""


def format_of(path: Path) -> Literal["png", "svg", "pdf", "html"]:
    """The kind of file, by the suffix of the path.

    >>> format_of(Path("chart.gif"))
    Traceback (most recent call last):
    wecfl.errors.ConfigError: can't save a chart as 'chart.gif'; use .png, .svg, .pdf or .html
    """
    if (kind := FORMATS.get(path.suffix.lower())) is None:
        raise ConfigError(f"can't save a chart as '{path}'; use .png, .svg, .pdf or .html")
    return kind


def styled(chart: AnyChart) -> AnyChart:
    """The chart with thin grey axes, and with titles over the left edge of each panel."""
    quiet: AnyChart = (
        chart.configure_view(stroke=None)
        .configure_axis(titleFontWeight="normal", domainColor="#888", tickColor="#888")
        .configure_title(fontSize=13, anchor="start", frame="group", offset=10)
    )
    return quiet


def save(chart: AnyChart, path: Path | str) -> Path:
    """Write the chart to a file whose suffix says its kind. HTML works offline."""
    path = Path(path)
    kind = format_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        chart.save(path, kind, scale_factor=2 if kind == "png" else 1, inline=kind == "html")
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't write the figure {path}: {why}") from None
    return path
