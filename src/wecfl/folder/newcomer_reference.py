"""What newcomers are compared with, as a file of a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wecfl.folder.files import replace_tensors
from wecfl.folder.parsing import folder_errors, read_tensors
from wecfl.runs.newcomers import Reference

__all__ = ["REFERENCE_FILE", "read_reference", "write_reference"]

REFERENCE_FILE = "reference.safetensors"
"""In a run folder."""


def write_reference(reference: Reference, folder: Path) -> None:
    """To the run folder."""
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "clusters": reference.clusters, "centers": reference.centers,
        "distances": reference.distances, "losses": reference.losses,
        "lr": np.array([reference.lr]),
    }  # fmt: skip
    replace_tensors(folder / REFERENCE_FILE, arrays)


def read_reference(folder: Path, most: int, width: int) -> Reference:
    """From a run folder, of at most so many clusters and of models that wide."""
    file = folder / REFERENCE_FILE
    found = read_tensors(file, clusters=1, centers=2, distances=1, losses=1, lr=1)
    with folder_errors(file):
        clusters, centers = found["clusters"], found["centers"]
        if not 1 <= len(clusters) == len(centers) or centers.shape[1] != width:
            raise ValueError(f"clusters and centers of {width} columns do not belong together")
        if len(set(clusters)) < len(clusters) or not set(clusters) <= set(range(most)):
            raise ValueError(f"its clusters {clusters} are not those of models.safetensors")
        if len(found["lr"]) != 1 or found["lr"][0] < 0:
            raise ValueError(f"lr {found['lr']} is no learning rate")
    distances, losses = (np.sort(found[name]) for name in ("distances", "losses"))
    return Reference(clusters, centers, distances, losses, float(found["lr"][0]))
