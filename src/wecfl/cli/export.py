"""`wecfl export`: the model of a cluster in a file of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from wecfl.cli import terminal
from wecfl.cli.flags import OwnModelFlag, check_place
from wecfl.errors import ConfigError, unknown

__all__ = ["export"]


def export(
    folder: Path,
    /,
    *,
    cluster: Annotated[int | None, Parameter(help="The number of the cluster.")] = None,
    client: Annotated[
        str | None, Parameter(help="The name of a client; the model of its cluster is written.")
    ] = None,
    format: Annotated[
        Literal["safetensors", "onnx"], Parameter(help="The format of the file.")
    ] = "safetensors",
    out: Annotated[
        Path | None,
        Parameter(help="The file to write (default: cluster-K.FORMAT in the run folder)."),
    ] = None,
    replace: Annotated[bool, Parameter(help="Overwrite an existing file.", negative="")] = False,
    model: OwnModelFlag = None,
) -> None:
    """Write the model of a cluster to a file of its own, to use it elsewhere.

    A safetensors file names the tensors as the module does, for load_state_dict. An ONNX file maps
    samples to logits; BatchNorm uses its running statistics. If the run was on a table or on
    pixels, the ONNX file takes them without any preparation: scaling, imputation and encoding are
    part of it. To write your own model as ONNX, give it again with --model; the file then has one
    input for each array that the model's forward takes.

    Parameters
    ----------
    folder
        The folder of a finished run.

    """
    if (cluster is None) == (client is None):
        raise ConfigError("say which model: either --cluster NUMBER or --client NAME")
    from wecfl.folder.cluster_models import export_model
    from wecfl.models.own import own_model

    number = _cluster_of(folder, client) if client is not None else cluster or 0
    path = out or folder / f"cluster-{number}.{format}"
    check_place(path, "model")
    _check_whole(folder)
    own = own_model(model) if model else None
    file = export_model(folder, number, format, path, replace=replace, client=client, model=own)
    terminal.show(f"model: {file}")


def _cluster_of(folder: Path, client: str) -> int:
    """The cluster of the client of this name."""
    from wecfl.folder.readers import read_clients, read_summary

    read_summary(folder)  # raises an error if the run has not ended
    clients = read_clients(folder).set_index("client")["cluster"]
    if client not in clients:
        raise ConfigError(unknown("client", client, clients.index))
    return int(clients[client])


def _check_whole(folder: Path) -> None:
    """Refuse a run whose clients keep a part of their models: a cluster has no whole model."""
    from wecfl.folder.readers import read_config
    from wecfl.methods import METHODS, named, options
    from wecfl.runs.newcomers import NO_WHOLE_MODELS

    config = read_config(folder)
    name, parts = config.get("method", ""), config.get("components")
    if isinstance(name, dict):  # a table with the options of the method
        name = name.get("name", "")
    whole = True
    if parts is not None:
        whole = parts["shared"] == "all" and parts.get("local") != "Alone()"
        whole &= parts.get("serve") not in ("Mixed()", "Added()")  # several models
    elif name in METHODS:
        whole = named(name, **({"k": 2} if "k" in options(name) else {})).whole_centers
    if not whole:
        raise ConfigError(NO_WHOLE_MODELS.format(name))
