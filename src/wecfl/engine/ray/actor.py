"""What runs on the nodes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
from torch import nn

from wecfl.core.plan import Correction
from wecfl.core.state import F32, Int, State
from wecfl.data.federation import Federation
from wecfl.engine.ray.cluster import imported
from wecfl.errors import EngineError

__all__ = ["Actor"]


class Actor:
    """An engine of one machine for some of the clients."""

    def instruction_sets(self) -> list[str]:
        """Those the native engine could use here, the best first."""
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
        """Make the engine; its name, and that of the node."""
        from wecfl.engine import make_engine  # noqa: PLC0415

        if (here := version("wecfl")) != release:
            raise EngineError(f"a node has wecfl {here}: install {release} on all of them")
        # What lies in the object store can't be written to, and torch is afraid that we might.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        self._engine = make_engine(kind, federation, model, **options)
        return self._engine.name, imported().get_runtime_context().get_node_id()

    def call(
        self,
        work: str,
        clients: Int,
        order: dict[str, Any],
        common: Any,
        which: Mapping[str, Int | None],
        *arrays: Any,
    ) -> Any:
        """Do `work` for these clients of the shard."""
        rows: dict[str, Any] = {
            name: array if array is None or numbers is None else array[numbers]
            for (name, numbers), array in zip(which.items(), arrays, strict=True)
        }
        if work == "train":
            return self._train(clients, order, **rows)
        if work == "losses":
            return self._engine.losses(common, active=clients.tolist(), **order)
        return getattr(self._engine, work)(rows["models"], **order)

    def _train(
        self,
        clients: Int,
        order: Mapping[str, Any],
        *,
        models: F32,
        momentum: F32 | None,
        anchor: F32 | None,
        offset: F32 | None,
    ) -> tuple[F32, F32 | None]:
        """Their models and momentum after it."""
        start = self._spread(clients, models)
        kept = {} if momentum is None else {"momentum": self._spread(clients, momentum)}
        correction = Correction(
            order["mu"],
            None if anchor is None else self._spread(clients, anchor),
            None if offset is None else self._spread(clients, offset),
        )
        state = State(order["round"], start, start[:1], np.zeros(len(start), np.int64), kept)
        trained, memory = self._engine.train(
            state, order["plan"], correction, order["seed"], clients.tolist()
        )
        if len(clients) == len(trained):
            return trained, memory.get("momentum")
        return trained[clients], memory["momentum"][clients] if memory else None

    def _spread(self, clients: Int, rows: F32) -> F32:
        """(n, …), these rows where their clients are in the shard; those of others don't matter."""
        n = len(self._engine.sizes)
        if len(clients) == n:
            return rows
        spread = np.zeros((n, rows.shape[1]), np.float32)
        spread[clients] = rows
        return spread
