"""The bytes that are sent between server and clients, counted from what programs declare.

Only arrays count: no headers, no configurations, no compression. A column that stays at the client
is not sent. If a `mask` (n, P) comes with a model, only the columns in the mask count, and the mask
itself counts one bit for each column. Over a network, the counts are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from wecfl.core.engine import Engine, EngineAround
from wecfl.core.program import Answers, Job, Sent
from wecfl.core.state import Reply
from wecfl.core.types import Int, Table

__all__ = ["Metered", "array_bytes"]


def array_bytes(tables: Mapping[str, NDArray[Any]], n: int, width: int, shared: int) -> Int:
    """(n,), the bytes of each client's rows; of the P columns, only the shared ones are sent.

    >>> mask = np.array([[True, False, False, False]])
    >>> array_bytes({"model": np.zeros((1, 4), np.float32)}, 1, width=4, shared=3).tolist()
    [12]
    >>> array_bytes({"model": np.zeros((1, 4), np.float32), "mask": mask}, 1, 4, 4).tolist()
    [5]
    """
    total = np.zeros(n, np.int64)
    for name, rows in tables.items():
        row = rows[0] if len(rows) else rows
        parts = row.size // width * shared if row.shape[-1:] == (width,) else row.size
        if name == "mask":
            total += -(-parts // 8)
        elif name == "model" and "mask" in tables:
            total += np.count_nonzero(tables["mask"], axis=1) * rows.dtype.itemsize
        else:
            total += parts * rows.dtype.itemsize
    return total


@final
class Metered(EngineAround):
    """An engine that counts the bytes and messages that go through it."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.clear()

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|."""
        return self._engine.sizes

    def clear(self) -> None:
        """Start counting from zero."""
        m = len(self._engine.sizes)
        self.up, self.down = np.zeros(m, np.int64), np.zeros(m, np.int64)
        self.messages = 0

    def ask(self, job: Job, sent: Sent, who: Int | None = None, memory: Table = {}) -> Answers:  # noqa: B006
        """Ask clients through the inner engine, and count requests and replies."""
        clients = np.arange(len(self.sizes)) if who is None else who
        n, width = len(clients), self.layout.width
        shared = len(np.arange(width)[self.layout.columns(job.shared)])
        common = {name: rows[None] for name, rows in sent.common.items()}
        self.down[clients] += array_bytes(sent.own, n, width, shared)
        self.down[clients] += array_bytes(common, n, width, shared)
        answers = self._engine.ask(job, sent, who, memory)
        heard = answers.outcome == Reply.HEARD
        self.up[clients] += heard * array_bytes(answers.rows, n, width, shared)
        self.messages += n + int(heard.sum())
        return answers
