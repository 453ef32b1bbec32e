"""The flags that commands share, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wecfl.config import PARTITIONING, PRESETS, Config, resolve
from wecfl.configured import holds_clients
from wecfl.errors import ConfigError
from wecfl.report.charts import format_of

__all__ = ["DataDirFlag", "Flags", "PresetFlag", "check_figure", "check_place", "choices"]

Flags = Annotated[Config, Parameter(name="*", negative_iterable=(), consume_multiple=True)]
"""The choices of an experiment."""
PresetFlag = Annotated[
    str | None, Parameter(help=f"Start from named choices: {', '.join(PRESETS)}.")
]
"""Named choices to start from."""
DataDirFlag = Annotated[Path | None, Parameter(help="Where to look for data sets first.")]
"""A folder of data sets."""


def choices(file: Path | None, preset: str | None, flags: Config) -> Config:
    """What file, preset and flags come to; flags that can't apply are refused, not ignored."""
    said = {name: getattr(flags, name) for name in flags.model_fields_set}
    chosen = resolve(file, preset, said)
    idle = [name for name in PARTITIONING if name in said]
    if idle and holds_clients(chosen):
        raise ConfigError(
            f"{chosen.dataset} holds one file per client, so there is nothing to share out: "
            f"leave out --{idle[0].replace('_', '-')}"
        )
    return chosen


def check_figure(path: Path | None) -> None:
    """Refuse a place where no figure can be written, before the work that ends in it."""
    if path:
        format_of(path)
        check_place(path, "figure")


def check_place(path: Path, what: str) -> None:
    """Refuse a file that can't be written, since what is above it is a file."""
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise ConfigError(f"can't write the {what} {path}: {above} is no folder")
