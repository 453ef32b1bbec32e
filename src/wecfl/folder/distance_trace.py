"""The trace: the distances between clients, and between centers, in each round.

One file per round, `trace/0007.safetensors`:

- ``clients.distances`` (m·(m−1)/2,), ‖g_i − g_j‖ for i < j in SciPy's condensed order, right after
  the local update, and ``clients.norms`` (m,), ‖g_i‖, from which the cosines follow;
- ``centers.distances`` and ``centers.norms``, the same for the centers G_k, after the aggregation.

A clustering uses these distances, and t-SNE and heat maps need them. They are exact for a model of
any width, and need 80 KB a round for 200 clients. Their number grows with m², so above
`MAX_TRACED_CLIENTS` clients they are recorded only on request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from scipy.spatial.distance import squareform

from wecfl.bilevel.distance import distances
from wecfl.bilevel.representation import last_layer
from wecfl.bilevel.threads import one_thread
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Real
from wecfl.folder.files import replace_tensors
from wecfl.folder.parsing import folder_errors, read_tensors

__all__ = ["MAX_TRACED_CLIENTS", "DistanceTrace", "cosines", "read_trace", "traced_rounds"]

MAX_TRACED_CLIENTS = 500
"""The largest number of clients for which the trace is recorded by default."""


class DistanceTrace:
    """Writes the trace of a run: an `Observer` of `rounds.iterate`.

    The distances are those of the representations g_i that the method clusters. If g_i is not made
    from models (IFCA asks for losses), the last layer of each model takes its place.
    """

    def __init__(self, folder: Path, method: Method, engine: Engine, seed: int) -> None:
        self._folder = folder / "trace"
        self._engine, self._seed = engine, seed
        chosen = method.representation
        elsewhere = chosen.asks or chosen.tells
        self._representation = last_layer(engine.layout) if elsewhere else chosen
        self._clients: dict[str, F32] = {}

    def step(self, step: str, state: State, seconds: float) -> None:
        """Measure the clients after step L and the centers after step M, then write the file."""
        if step == "L":
            points = self._representation.clients(state, self._engine, self._seed)
            self._clients = _geometry("clients", points)
        if step == "M":
            centers = _geometry(
                "centers", self._representation.centers(state, self._engine, self._seed)
            )
            self._folder.mkdir(exist_ok=True)
            file = self._folder / f"{state.round:04}.safetensors"
            replace_tensors(file, {**self._clients, **centers})


def _geometry(of: str, points: Real) -> dict[str, F32]:
    with one_thread(), np.errstate(over="ignore"):
        # Distances may be infinite if training is about to diverge.
        pairs = squareform(distances(points), checks=False)
        norms = np.linalg.norm(np.asarray(points, np.float64), axis=1)
        arrays = {f"{of}.distances": pairs, f"{of}.norms": norms}
        return {name: values.astype(np.float32) for name, values in arrays.items()}


def traced_rounds(folder: Path) -> list[int]:
    """The rounds that the trace of a run folder holds; empty if it was not recorded."""
    return sorted(int(file.stem) for file in (folder / "trace").glob("[0-9]*.safetensors"))


def read_trace(
    folder: Path, round: int, of: Literal["clients", "centers"] = "clients"
) -> tuple[F64, F64]:
    """The distances (m, m) and norms (m,) of one round."""
    file = folder / "trace" / f"{round:04}.safetensors"
    names = (f"{of}.distances", f"{of}.norms")
    arrays = read_tensors(file, **dict.fromkeys(names, 1))
    with folder_errors(file):
        pairs, norms = (arrays[name].astype(np.float64) for name in names)
        between = squareform(pairs)
        if len(between) != len(norms) or (pairs < 0).any():
            raise ValueError(f"its {' and '.join(names)} do not fit together")
    return between, norms


def cosines(distances: F64, norms: F64) -> F64:
    """(m, m), cos(g_i, g_j) by the law of cosines.

    >>> cosines(np.array([[0.0, 5.0], [5.0, 0.0]]), np.array([3.0, 4.0])).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    products = np.maximum(norms[:, None] * norms, np.finfo(np.float64).tiny)
    return np.asarray((norms[:, None] ** 2 + norms**2 - distances**2) / (2 * products), np.float64)
