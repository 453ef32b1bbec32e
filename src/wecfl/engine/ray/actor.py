"""The actor that runs on the nodes of a Ray cluster."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from wecfl.core.program import Job, Sent
from wecfl.core.types import Int, Table
from wecfl.data.federation import Federation
from wecfl.engine.ray.cluster import imported
from wecfl.engine.ray.rows import array_for
from wecfl.errors import EngineError

__all__ = ["Actor"]


class Actor:
    """An engine of one machine for some of the clients."""

    def instruction_sets(self) -> list[str]:
        """The instruction sets that the native engine could use on this node, the best first."""
        from wecfl.engine.native import instruction_sets  # noqa: PLC0415

        return instruction_sets()

    def load(
        self,
        federation: Federation,
        *,
        kind: Any,
        model: nn.Module,
        options: Mapping[str, Any],
        release: str,
    ) -> tuple[str, str]:
        """Make the engine; returns its name and the id of the node."""
        from wecfl.engine import make_engine  # noqa: PLC0415

        if (installed := version("wecfl")) != release:
            raise EngineError(
                f"a node has wecfl {installed}, expected {release}: install {release} on all nodes"
            )
        # Torch warns that arrays in the object store are read-only, but they are only read here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self._engine = make_engine(kind, federation, model, **options)
        return self._engine.name, imported().get_runtime_context().get_node_id()

    def call(
        self,
        memory: Table,
        clients: Int,
        job: Job,
        common: Sequence[str],
        which: Mapping[str, Int | None],
        *arrays: Any,
        round: int,
    ) -> tuple[tuple[Table, dict[str, int]], Table]:
        """Run a program for these clients of the shard, with their data of this round of the run.

        `memory` is what all clients of the shard keep. `arrays` are first the common arrays, and
        then the arrays with a row for each client. The first value is for the driver: what the
        clients reply, and the bytes of a row of what clients keep. The second one is what all
        clients of the shard keep.
        """
        own = {
            name: _writable(array, numbers)
            for (name, numbers), array in zip(which.items(), arrays[len(common) :], strict=True)
        }
        shared = dict(zip(common, arrays, strict=False))
        self._engine.move_to(round)
        answers = self._engine.ask(job, Sent(own, shared), clients, memory)
        kept = answers.memory if job.keep else {}
        return (answers.rows, {name: rows[:1].nbytes for name, rows in kept.items()}), kept


def _writable(array: NDArray[Any], numbers: Int | None) -> NDArray[Any]:
    """The rows with these numbers, or all rows, in an array that a program may overwrite."""
    if numbers is None:
        rows = array_for(array, array.shape)
        rows[...] = array
        return rows
    rows = array_for(array, (*numbers.shape, *array.shape[1:]))
    return np.take(array, numbers, axis=0, out=rows, mode="clip")
