"""`wecfl assign` and `wecfl export`: what the models of a finished run are for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from wecfl.cli import terminal
from wecfl.cli.choices import check_place
from wecfl.data.arrays import read_npz
from wecfl.errors import ConfigError
from wecfl.folder.models import Format
from wecfl.folder.models import export as write_model
from wecfl.folder.readers import read_config
from wecfl.methods import METHODS, named, options
from wecfl.reception import reception_of
from wecfl.report.tables.newcomers import rich_newcomers
from wecfl.runs.kept_out import table
from wecfl.runs.newcomers import NOT_WHOLE, By

__all__ = ["assign", "export"]


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
    reception, config = reception_of(folder, workers)
    found = []
    for file in clients:
        held = read_npz(file)
        test = (held["x_test"], held["y_test"]) if "x_test" in held else config.holdout
        found.append(reception.assign(held["x"], held["y"], test=test, by=by, name=str(file)))
    frame = table(found).drop(columns="group")
    if json:
        print(frame.to_json(orient="records", indent=2, force_ascii=False))
    else:
        terminal.wide(rich_newcomers(frame, by))


def export(
    folder: Path,
    /,
    *,
    cluster: Annotated[int, Parameter(help="Whose model.")],
    format: Annotated[Format, Parameter(help="What to write.")] = "safetensors",
    out: Annotated[
        Path | None, Parameter(help="The file (default: cluster-K.FORMAT in the run folder).")
    ] = None,
    replace: Annotated[bool, Parameter(help="Write over an existing file.", negative="")] = False,
) -> None:
    """Write the model of a cluster to a file of its own, for whoever serves it.

    Safetensors under the module's own names, for load_state_dict; or ONNX, from samples to logits.
    BatchNorm uses its running statistics.

    Parameters
    ----------
    folder
        A run folder.

    """
    path = out or folder / f"cluster-{cluster}.{format}"
    check_place(path, "model")
    _check_whole(folder)
    terminal.show(f"model: {write_model(folder, cluster, format, path, replace=replace)}")


def _check_whole(folder: Path) -> None:
    """Refuse a run whose clients keep a part of their models."""
    written = read_config(folder)
    name, parts = written.get("method", ""), written.get("components")
    if isinstance(name, dict):  # a table with the options of the method
        name = name.get("name", "")
    whole = True
    if parts is not None:
        whole = parts["shared"] == "all" and parts.get("local") != "Alone()"
    elif name in METHODS:
        whole = named(name, **({"k": 2} if "k" in options(name) else {})).whole_centers
    if not whole:
        raise ConfigError(NOT_WHOLE.format(name))
