"""An engine for the clients of a fleet that take part, and for stand-ins of all the others."""

from __future__ import annotations

from typing import final

import numpy as np

from wecfl.core.engine import Engine, EngineAround
from wecfl.core.program import Answers, Job, Sent
from wecfl.core.types import Int, Table
from wecfl.engine.kept_rows import KeptRows

__all__ = ["StandInEngine"]


@final
class StandInEngine(EngineAround):
    """Reaches the clients that take part; stand-ins come after them, and are never asked.

    The engine stores what clients keep for themselves, so `State.memory` is empty, as over a
    network.
    """

    def __init__(self, engine: Engine, clients: Int, stand_ins: int, kept: KeptRows) -> None:
        super().__init__(engine)
        self._clients, self._kept = clients, kept
        self._sizes: Int = np.concatenate([engine.sizes, np.ones(stand_ins, np.int64)])

    @property
    def sizes(self) -> Int:
        """(m,), |D_i| of the clients that take part, and 1 for each stand-in."""
        return self._sizes

    def ask(self, job: Job, sent: Sent, who: Int | None = None, memory: Table = {}) -> Answers:  # noqa: B006
        """Let clients run a program with what they have kept; by default all but the stand-ins."""
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
