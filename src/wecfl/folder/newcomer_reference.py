"""The file of a run folder that holds what newcomers are compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from wecfl.folder.files import replace_tensors
from wecfl.folder.parsing import folder_errors, read_tensors
from wecfl.runs.input_moments import InputMoments
from wecfl.runs.member_reference import Reference
from wecfl.runs.novelty import Usual

__all__ = ["REFERENCE_FILE", "read_reference", "write_reference"]

REFERENCE_FILE = "reference.safetensors"
"""The name of the file in a run folder."""

Arrays = dict[str, np.ndarray[Any, Any]]


def write_reference(reference: Reference, folder: Path) -> None:
    """Write the reference to a run folder."""
    arrays: Arrays = {
        "clusters": reference.clusters, "centers": reference.centers, "lr": np.array([reference.lr])
    }  # fmt: skip
    if usual := reference.usual:
        arrays |= _written(usual, "usual")
    if inputs := reference.inputs:
        moments = {name: getattr(inputs, name) for name in ("centers", "spread", "found")}
        arrays |= {f"inputs.{name}": values for name, values in moments.items()}
        arrays |= _written(inputs.usual, "inputs.usual")
    replace_tensors(folder / REFERENCE_FILE, arrays)


def read_reference(folder: Path, clusters: int, width: int, moments: int) -> Reference | None:
    """Read the reference of a run folder with these numbers of clusters, columns and moments.

    None if an earlier version of wecfl has written it, which did not use numbers of samples.
    """
    file = folder / REFERENCE_FILE
    arrays = read_tensors(file, clusters=1, centers=2, lr=1)
    if "losses" in arrays:
        return None
    with folder_errors(file):
        labels, centers, lr = arrays["clusters"], arrays["centers"], arrays["lr"]
        if not 1 <= len(labels) == len(centers) or centers.shape[1] != width:
            raise ValueError(f"its centers must have a row of {width} columns for each cluster")
        if len(set(labels)) < len(labels) or not set(labels) <= set(range(clusters)):
            raise ValueError(f"its clusters {labels} are not those of models.safetensors")
        if len(lr) != 1 or lr[0] < 0:
            raise ValueError(f"lr must be one learning rate, got {lr}")
        usual = _read(file, arrays, "usual") if "usual.samples" in arrays else None
        inputs = None
        if "inputs.centers" in arrays:
            inputs = _read_inputs(file, arrays, (len(labels), moments))
    return Reference(labels, centers, float(lr[0]), usual, inputs)


def _written(usual: Usual, prefix: str) -> Arrays:
    names = ("samples", "distance", "loss", "limits")
    return {f"{prefix}.{name}": getattr(usual, name) for name in names}


def _read(file: Path, arrays: Arrays, prefix: str) -> Usual:
    names = {"samples": 1, "distance": 2, "loss": 2, "limits": 2}
    read_tensors(file, **{f"{prefix}.{name}": ndim for name, ndim in names.items()})
    samples, distance, loss, limits = (arrays[f"{prefix}.{name}"] for name in names)
    n = len(samples)
    if not n or not (samples > 0).all() or (np.diff(samples) < 0).any():
        raise ValueError(f"{prefix}.samples must be positive and ascending, got {samples}")
    if distance.shape != (n, 2) or limits.shape != (n, 2) or loss.shape not in ((0, 2), (n, 2)):
        raise ValueError(f"{prefix} must have two columns, and a row for each number of samples")
    if not all((table[:, 1] > 0).all() for table in (distance, loss)):
        raise ValueError(f"{prefix} holds a standard deviation that is not positive")
    return Usual(samples, distance, loss, limits)


def _read_inputs(file: Path, arrays: Arrays, shape: tuple[int, int]) -> InputMoments:
    read_tensors(file, **{"inputs.centers": 2, "inputs.spread": 1, "inputs.found": 1})
    centers, spread, found = (arrays[f"inputs.{name}"] for name in ("centers", "spread", "found"))
    usual = _read(file, arrays, "inputs.usual")
    if centers.shape != shape or spread.shape != shape[1:] or found.shape != usual.samples.shape:
        raise ValueError(f"its moments of inputs do not fit its {shape[0]} clusters")
    return InputMoments(centers, spread, found, usual)
