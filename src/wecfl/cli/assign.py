"""`wecfl assign`: which cluster of a finished run a new client belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wecfl.assigner import assigner_of
from wecfl.cli import terminal
from wecfl.data.samples import read_npz
from wecfl.errors import ConfigError
from wecfl.report.tables.newcomers import rich_newcomers
from wecfl.runs.newcomers import By
from wecfl.runs.simulated_newcomers import newcomer_table

__all__ = ["assign"]


def assign(
    folder: Path,
    /,
    *clients: Annotated[Path, Parameter(help="A .npz with x and y of each newcomer.")],
    by: Annotated[
        By, Parameter(help="Compare its model after one local update, or the clusters' losses.")
    ] = "update",
    json: Annotated[bool, Parameter(help="Print everything as JSON.", negative="")] = False,
    workers: Annotated[int | None, Parameter(help="Threads or processes.")] = None,
) -> None:
    """Tell which cluster of a finished run newcomers belong to, and how its model would serve them.

    A client that is unlike all clusters is called novel. Its cluster's model: wecfl export.

    Parameters
    ----------
    folder
        A run folder.

    """
    if not clients:
        raise ConfigError(f"name a .npz for each newcomer: wecfl assign {folder} client.npz")
    assigner, config = assigner_of(folder, workers)
    found = []
    for file in clients:
        held = read_npz(file)
        test = (held["x_test"], held["y_test"]) if "x_test" in held else config.holdout
        found.append(assigner.assign(held["x"], held["y"], test=test, by=by, name=str(file)))
    frame = newcomer_table(found).drop(columns="group")
    if json:
        print(frame.to_json(orient="records", indent=2, force_ascii=False))
    else:
        terminal.wide(rich_newcomers(frame, by))
