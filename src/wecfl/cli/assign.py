"""`wecfl assign`: which cluster of a finished run a new client belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from wecfl.cli import terminal
from wecfl.cli.flags import OwnModelFlag
from wecfl.config import Config
from wecfl.errors import ConfigError, DataError, unknown

__all__ = ["assign"]


def assign(
    folder: Path,
    /,
    *clients: Annotated[
        Path,
        Parameter(
            help="One file for each newcomer: a .npz with x and y, or a table with the columns of "
            "the run. A newcomer without y (or without the target) is assigned by its inputs, if "
            "inputs tell the clusters apart."
        ),
    ],
    by: Annotated[
        Literal["update", "losses", "inputs"] | None,
        Parameter(
            help="What to compare: the newcomer's model after one local update (the default if it "
            "has labels), the losses of the clusters' models, or the inputs (the default if it has "
            "no labels)."
        ),
    ] = None,
    json: Annotated[bool, Parameter(help="Print the table as JSON.", negative="")] = False,
    workers: Annotated[int | None, Parameter(help="The number of threads or processes.")] = None,
    model: OwnModelFlag = None,
) -> None:
    """Find the cluster of each newcomer in a finished run, and test that cluster's model on it.

    A newcomer that is unlike all clusters is called novel. To get the model of a cluster, use
    wecfl export.

    Parameters
    ----------
    folder
        The folder of a finished run.

    """
    if not clients:
        raise ConfigError(f"give a .npz for each newcomer: wecfl assign {folder} client.npz")
    from wecfl.data.samples import read_npz
    from wecfl.data.source import TABLE_ENDINGS
    from wecfl.experiment.loading import load
    from wecfl.folder.readers import read_config
    from wecfl.models.own import own_model
    from wecfl.report.tables.newcomers import input_words, rich_newcomers
    from wecfl.runs.simulated_newcomers import newcomer_table

    assigner = load(folder, workers=workers, model=model and own_model(model)).assigner
    about = read_config(folder)
    share = about.get("holdout", Config().holdout)
    assigned = []
    for file in clients:
        held = _table(file, about) if file.suffix in TABLE_ENDINGS else read_npz(file, labels=False)
        test = (held["x_test"], held["y_test"]) if "x_test" in held else share
        name = str(file.with_suffix(""))
        assigned.append(assigner.assign(held["x"], held.get("y"), test=test, by=by, name=name))
    frame = newcomer_table(assigned).drop(columns="group")
    if json:
        terminal.show_json(frame.to_json(orient="records", indent=2, force_ascii=False))
    else:
        terminal.wide(rich_newcomers(frame))
        for newcomer in assigned:
            if newcomer.found is not None:
                terminal.show(f"{newcomer.client}: {input_words(newcomer.found)}")


def _table(file: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a newcomer: its features, and its targets if it has them."""
    from wecfl.data.frames import read_frame, several_targets
    from wecfl.data.tables import TABLES

    known = TABLES.get(about.get("dataset", ""))
    frame, named = read_frame(file), about.get("target") or (known.target if known else None)
    if named is None:
        raise ConfigError(f"{file} is a table, but the clients of the run had arrays: give a .npz")
    targets: list[str] = [named] if isinstance(named, str) else named
    strange = [name for name in targets if name not in frame]
    if len(strange) == len(targets):
        return {"x": frame}
    if strange:
        raise DataError(f"{file}: " + unknown("column", strange[0], frame.columns))
    y = frame[targets[0]] if len(targets) == 1 else several_targets(frame, targets)
    return {"x": frame, "y": y}
