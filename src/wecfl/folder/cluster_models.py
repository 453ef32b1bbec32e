"""The models of the clusters in a run folder, and the export of one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from wecfl.core.types import F32
from wecfl.data.datasets import SOURCES
from wecfl.data.pipeline import Pipeline
from wecfl.errors import ConfigError, RunFolderError
from wecfl.folder.files import replace_file, replace_tensors
from wecfl.folder.parsing import folder_errors, read_tensors
from wecfl.folder.pipeline_graph import with_pipeline
from wecfl.folder.readers import read_pipeline, read_summary
from wecfl.layout import Layout
from wecfl.models import MODELS, Model, Module, Vote, auto, fill, layout_of, make
from wecfl.models.onnx import to_onnx
from wecfl.models.unpacking import reads_parts
from wecfl.runs.blueprint import Blueprint

__all__ = ["ClusterModels", "ModelFormat", "export_model"]

ModelFormat = Literal["safetensors", "onnx"]
"""The format of the file to which a model is exported."""
TENSOR_NAME = re.compile(r"(?:member\.(\d+)\.)?cluster\.(\d+)\.(.+)")
"""The member of a soft vote (0 if there is one run), the cluster, and the name in the module."""
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class ClusterModels:
    """`models.safetensors` of a run folder."""

    folder: Path
    blueprint: Blueprint | None
    """How to build the module; None if that is unknown, as in early folders."""
    tensors: Sequence[Sequence[Tensors]]
    """For each soft-voted run and each cluster, the tensors by name."""

    @classmethod
    def read(cls, folder: Path) -> ClusterModels:
        """Read all models of a run folder whose run has ended."""
        config = read_summary(folder)["config"]
        file = folder / "models.safetensors"
        found: dict[tuple[int, int], dict[str, NDArray[Any]]] = {}
        for name, tensor in read_tensors(file).items():
            with folder_errors(file):
                if not (parts := TENSOR_NAME.fullmatch(name)):
                    raise ValueError(f"the tensor {name} belongs to no cluster")
                found.setdefault((int(parts[1] or 0), int(parts[2])), {})[parts[3]] = tensor
        with folder_errors(file), safe_open(file, framework="numpy") as opened:
            about = opened.metadata() or {}
            members = len({member for member, _ in found})
            expected = [(j, k) for j in range(members) for k in range(len(found) // (members or 1))]
            if not found or sorted(found) != expected or len({*map(frozenset, found.values())}) > 1:
                raise ValueError("its clusters do not all have the same tensors")
            blueprint = _blueprint(about, config)
        clusters = len(expected) // members
        rows = [[found[j, k] for k in range(clusters)] for j in range(members)]
        return cls(folder, blueprint, rows)

    def of(self, cluster: int) -> list[Tensors]:
        """The models of a cluster, one from each soft-voted run."""
        count = len(self.tensors[0])
        if not 0 <= cluster < count:
            raise ConfigError(f"there is no cluster {cluster}: give a number from 0 to {count - 1}")
        return [clusters[cluster] for clusters in self.tensors]

    def build(self, seed: int = 0, own: Model | None = None) -> tuple[Blueprint, Module]:
        """The blueprint of the models, and a module that was built from it, or the user's own."""
        blueprint = self.blueprint
        if blueprint is not None and own is not None:
            shape, outputs = blueprint.shape, blueprint.classes
            return blueprint, make(own, shape=shape, classes=outputs, seed=seed)
        if blueprint is None or blueprint.model not in MODELS:
            name = f" {blueprint.model}" if blueprint else ""
            raise RunFolderError(
                f"the model{name} of {self.folder} can't be rebuilt, since it is a module of your "
                "own, or the folder is of an earlier version: give the module with --model "
                "FILE.py:NAME, or export safetensors"
            )
        return blueprint, blueprint.build(seed)

    def row(self, layout: Layout, tensors: Tensors) -> F32:
        """(P,), a model as one row, in the layout of its module."""
        with folder_errors(self.folder / "models.safetensors"):
            shapes = {entry.name: entry.shape for entry in layout.entries}
            if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
                raise ValueError("its tensors do not fit the model")
            flat = [tensors[name].astype(np.float32).reshape(-1) for name in shapes]
            row = np.concatenate(flat)
            if not np.isfinite(row).all():
                raise ValueError("a model holds NaN or Inf")
            return row


def export_model(
    folder: Path,
    cluster: int,
    format: ModelFormat,
    out: Path,
    *,
    replace: bool = False,
    client: str | None = None,
    model: Model | None = None,
) -> Path:
    """Write the model of a cluster as safetensors, under the module's own names, or as ONNX.

    A soft vote is one model: `wecfl.models.Vote`, whose tensors are named `members.J.NAME`. The
    pipeline of the run is the beginning of an ONNX graph; for safetensors, it is in the metadata.
    If clients are scaled by their own statistics, it is the pipeline of `client`. `model` is the
    module of the run, or the function that makes it, if it is the user's own.
    """
    if out.exists() and not replace:
        raise ConfigError(f"{out} exists already: choose another file, or add --replace")
    models = ClusterModels.read(folder)
    parts = models.of(cluster)
    about, pipeline = _about(models, cluster), _pipeline(folder, client, cluster)
    if pipeline:
        about["pipeline"] = json.dumps(pipeline.written())
    if format == "onnx":
        blueprint, module = models.build(own=model)
        layout = layout_of(module)
        filled = [fill(module, models.row(layout, tensors)) for tensors in parts]
        taken = pipeline.parts if pipeline and reads_parts(module, pipeline.parts) else ()
        if len(taken) > 1 and len(filled) > 1:
            raise ConfigError("a soft vote of models with several inputs can't be written as ONNX")
        proto = to_onnx(filled[0] if len(filled) == 1 else Vote(filled), blueprint.shape, taken)
        if pipeline:
            proto = with_pipeline(proto, pipeline, blueprint.shape)
        for key, value in about.items():
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, value
        content = [proto.SerializeToString()]
    tensors = {
        f"members.{j}.{name}" if len(parts) > 1 else name: tensor
        for j, part in enumerate(parts)
        for name, tensor in part.items()
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if format == "onnx":
            replace_file(out, content)
        else:
            replace_tensors(out, tensors, about)
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't write the model {out}: {reason}") from None
    return out


def _pipeline(folder: Path, client: str | None, cluster: int) -> Pipeline | None:
    """The pipeline of a run, with the scaling of the client or the cluster if each has its own."""
    pipeline = read_pipeline(folder)
    if pipeline is None or pipeline.own is None:
        return pipeline
    if client is None and not pipeline.clusters:
        raise ConfigError(
            "each client of this run is scaled by its own statistics: give the client for which "
            "the model is, with --client NAME"
        )
    return pipeline.of(cluster if client is None else client)


def _about(models: ClusterModels, cluster: int) -> dict[str, str]:
    """The metadata of an exported file."""
    kind = models.blueprint.written() if models.blueprint else {}
    config = sha256((models.folder / "config.toml").read_bytes()).hexdigest()
    return {"made_by": "wecfl", **kind, "cluster": str(cluster), "config_sha256": config}


def _blueprint(about: Mapping[str, str], config: Mapping[str, Any]) -> Blueprint | None:
    """The blueprint from the metadata of the file; for early folders, from the data set's name."""
    if about:
        keys = ("model", "classes")  # over a network the shape of a sample is not known: empty
        missing = [key for key in keys if not about.get(key, "").strip()]
        if missing := missing + ["shape"] * ("shape" not in about):
            raise ValueError(f"its metadata lack {', '.join(missing)}")
        return Blueprint.read(about)
    source, model = SOURCES.get(config.get("dataset", "")), config.get("model", "auto")
    if source is None or model not in (*MODELS, "auto"):
        return None
    return Blueprint(auto(source.shape) if model == "auto" else model, source.shape, source.classes)
