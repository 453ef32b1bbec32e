"""The actor that runs on the nodes of a Ray cluster."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import nn

from wecfl.core.program import Job, Sent
from wecfl.core.types import Int, Table
from wecfl.data.federation import Federation
from wecfl.engine.ray.cluster import imported
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
        clients: Int,
        job: Job,
        memory: Table,
        common: Sequence[str],
        which: Mapping[str, Int | None],
        *arrays: Any,
        round: int,
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Run a program for these clients of the shard; return what they reply and what they keep.

        Their data are those of this round of the run. `arrays` are first the common arrays, and
        then the arrays with a row for each client.
        """
        own = {
            name: array if numbers is None else array[numbers]
            for (name, numbers), array in zip(which.items(), arrays[len(common) :], strict=True)
        }
        shared = dict(zip(common, arrays, strict=False))
        writable = {name: np.array(rows) for name, rows in own.items()}
        held = self._spread(clients, memory)
        self._engine.move_to(round)
        answers = self._engine.ask(job, Sent(writable, shared), clients, held)
        kept = {name: rows[clients] for name, rows in answers.memory.items()} if job.keep else {}
        return answers.rows, kept

    def _spread(self, clients: Int, memory: Table) -> dict[str, Any]:
        """Tables (n, …) of the whole shard with these clients' rows; the other rows are zero."""
        n = len(self._engine.sizes)
        spread = {}
        for name, rows in memory.items():
            spread[name] = np.zeros((n, *rows.shape[1:]), rows.dtype)
            spread[name][clients] = rows
        return spread
