"""An engine for some clients of a fleet, beside stand-ins for all the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from wecfl.core.engine import Engine
from wecfl.core.program import Answers, Job, Sent
from wecfl.core.task import Task
from wecfl.core.types import F32, Int, Table
from wecfl.engine.kept_rows import KeptRows
from wecfl.layout import Layout

__all__ = ["StandInEngine"]


@final
class StandInEngine:
    """Reaches the clients that take part; stand-ins come after them, and are never asked.

    It keeps what clients keep for themselves, so `State.memory` is empty, as over a network. It is
    a `wecfl.core.engine.Engine`.
    """

    def __init__(self, engine: Engine, clients: Int, stand_ins: int, kept: KeptRows) -> None:
        self._engine, self._clients, self._kept = engine, clients, kept
        self.sizes: Int = np.concatenate([engine.sizes, np.ones(stand_ins, np.int64)])

    def ask(self, job: Job, sent: Sent, who: Int | None = None, memory: Table = {}) -> Answers:  # noqa: B006
        """Let clients run a program on what they have kept; by default all but the stand-ins."""
        asked = np.arange(len(self._clients)) if who is None else who
        whole = np.arange(len(self._clients))
        fields = {*job.keeps(self.layout), "begun"}
        # The engine's tables have a row for each of its clients, asked or not.
        held = self._kept.take(self._clients[whole], fields) if len(fields) > 1 else {}
        answers = self._engine.ask(job, sent, asked, held)
        if job.keep and answers.memory:
            rows = {name: table[asked] for name, table in answers.memory.items()}
            self._kept.put(self._clients[asked], rows)
        return Answers(answers.rows, answers.outcome)

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """The initial models of the engine."""
        return self._engine.starts(which, seed)

    def move_to(self, round: int) -> None:
        """Let the data be those of this round, where they change with it."""
        self._engine.move_to(round)

    def network_report(self) -> dict[str, Any]:
        """Empty: all clients that were drawn are present."""
        return {}

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self._engine.name

    @property
    def workers(self) -> int:
        """How many clients the engine trains at the same time."""
        return self._engine.workers

    @property
    def nodes(self) -> int:
        """How many machines the engine uses."""
        return self._engine.nodes

    @property
    def layout(self) -> Layout:
        """Which columns of a row hold which parameter."""
        return self._engine.layout

    @property
    def task(self) -> Task:
        """What is learned."""
        return self._engine.task

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample."""
        return self._engine.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self._engine.shape
