"""The models of a run folder: one of them to whoever serves it, all of them for newcomers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from wecfl.core.state import F32
from wecfl.data.datasets import SOURCES
from wecfl.errors import ConfigError, RunFolderError
from wecfl.folder.files import replace_file, replace_tensors
from wecfl.folder.parsing import folder_errors, read_tensors
from wecfl.folder.readers import read_summary
from wecfl.layout import Layout
from wecfl.models import MODELS, Module, Vote, auto, fill, layout_of
from wecfl.models.onnx import to_onnx
from wecfl.runs.blueprint import Blueprint

__all__ = ["ClusterModels", "ModelFormat", "export_model"]

ModelFormat = Literal["safetensors", "onnx"]
"""Of the file a model is written to."""
TENSOR_NAME = re.compile(r"(?:member\.(\d+)\.)?cluster\.(\d+)\.(.+)")
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class ClusterModels:
    """`models.safetensors` of a run folder."""

    folder: Path
    blueprint: Blueprint | None
    """None where it can't be told: a module of the user's own, or an early folder."""
    tensors: Sequence[Sequence[Tensors]]
    """Of each soft-voted run and each cluster, by name."""

    @classmethod
    def read(cls, folder: Path) -> ClusterModels:
        """All of them."""
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
            each = [(j, k) for j in range(members) for k in range(len(found) // (members or 1))]
            if not found or sorted(found) != each or len({*map(frozenset, found.values())}) > 1:
                raise ValueError("its clusters do not belong together")
            blueprint = _blueprint(about, config)
        clusters = len(each) // members
        rows = [[found[j, k] for k in range(clusters)] for j in range(members)]
        return cls(folder, blueprint, rows)

    def of(self, cluster: int) -> list[Tensors]:
        """The models of a cluster, one of each soft-voted run."""
        most = len(self.tensors[0])
        if not 0 <= cluster < most:
            raise ConfigError(f"no cluster {cluster}: they are numbered 0 to {most - 1}")
        return [clusters[cluster] for clusters in self.tensors]

    def build(self, seed: int = 0) -> tuple[Blueprint, Module]:
        """A module of their kind."""
        known = self.blueprint
        if known is None or known.model not in MODELS:
            what = f"its model {known.model} is a module" if known else "its model may be a module"
            raise RunFolderError(
                f"{self.folder} can't be rebuilt: {what} of your own, or it is of an earlier "
                "version; use the result in Python, or export safetensors"
            )
        return known, known.build(seed)

    def row(self, layout: Layout, tensors: Tensors) -> F32:
        """(P,), a model as the layout of its module has it."""
        with folder_errors(self.folder / "models.safetensors"):
            shapes = {entry.name: entry.shape for entry in layout.entries}
            if shapes != {name: tensor.shape for name, tensor in tensors.items()}:
                raise ValueError("its tensors are not those of its model")
            flat = [tensors[name].astype(np.float32).reshape(-1) for name in shapes]
            row = np.concatenate(flat)
            if not np.isfinite(row).all():
                raise ValueError("a model is not finite")
            return row


def export_model(
    folder: Path, cluster: int, format: ModelFormat, out: Path, *, replace: bool = False
) -> Path:
    """Write the model of a cluster as safetensors, under the module's own names, or as ONNX.

    A soft vote is one model: `wecfl.models.Vote`, whose tensors are named `members.J.NAME`.
    """
    if out.exists() and not replace:
        raise ConfigError(f"{out} exists: choose another file, or say --replace")
    models = ClusterModels.read(folder)
    parts = models.of(cluster)
    about = _about(models, cluster)
    if format == "onnx":
        known, module = models.build()
        layout = layout_of(module)
        filled = [fill(module, models.row(layout, each)) for each in parts]
        proto = to_onnx(filled[0] if len(filled) == 1 else Vote(filled), known.shape)
        for key, value in about.items():
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, value
        content = [proto.SerializeToString()]
    tensors = {
        f"members.{j}.{name}" if len(parts) > 1 else name: tensor
        for j, each in enumerate(parts)
        for name, tensor in each.items()
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if format == "onnx":
            replace_file(out, content)
        else:
            replace_tensors(out, tensors, about)
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't write the model {out}: {why}") from None
    return out


def _about(models: ClusterModels, cluster: int) -> dict[str, str]:
    """What the exported file says about itself."""
    kind = models.blueprint.written() if models.blueprint else {}
    config = sha256((models.folder / "config.toml").read_bytes()).hexdigest()
    return {"made_by": "wecfl", **kind, "cluster": str(cluster), "config_sha256": config}


def _blueprint(about: Mapping[str, str], config: Mapping[str, Any]) -> Blueprint | None:
    """From the file; of an early folder, from its data set where that is known by name."""
    if about:
        return Blueprint.read(about)
    source, model = SOURCES.get(config.get("dataset", "")), config.get("model", "auto")
    if source is None or model not in (*MODELS, "auto"):
        return None
    return Blueprint(auto(source.shape) if model == "auto" else model, source.shape, source.classes)
