"""The file of a run folder that holds what newcomers are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wecfl.folder.files import replace_tensors
from wecfl.folder.parsing import folder_errors, read_tensors
from wecfl.runs.newcomers import Reference

__all__ = ["REFERENCE_FILE", "read_reference", "write_reference"]

REFERENCE_FILE = "reference.safetensors"
"""The name of the file in a run folder."""


def write_reference(reference: Reference, folder: Path) -> None:
    """Write the reference to a run folder."""
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "clusters": reference.clusters, "centers": reference.centers,
        "distances": reference.distances, "losses": reference.losses,
        "lr": np.array([reference.lr]),
    }  # fmt: skip
    replace_tensors(folder / REFERENCE_FILE, arrays)


def read_reference(folder: Path, clusters: int, width: int) -> Reference:
    """Read the reference of a run folder with these numbers of clusters and of columns."""
    file = folder / REFERENCE_FILE
    arrays = read_tensors(file, clusters=1, centers=2, distances=1, losses=1, lr=1)
    with folder_errors(file):
        labels, centers, lr = arrays["clusters"], arrays["centers"], arrays["lr"]
        if not 1 <= len(labels) == len(centers) or centers.shape[1] != width:
            raise ValueError(f"its centers are not one row of {width} columns for each cluster")
        if len(set(labels)) < len(labels) or not set(labels) <= set(range(clusters)):
            raise ValueError(f"its clusters {labels} are not those of models.safetensors")
        if len(lr) != 1 or lr[0] < 0:
            raise ValueError(f"lr must be one learning rate, got {lr}")
    distances, losses = (np.sort(arrays[name]) for name in ("distances", "losses"))
    return Reference(labels, centers, distances, losses, float(lr[0]))
