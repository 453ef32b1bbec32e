"""What runs the clients: the only object that may touch their data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from wecfl.core.program import Answers, Job, Sent
from wecfl.core.task import Task
from wecfl.core.types import F32, Int, Table
from wecfl.layout import Layout

__all__ = ["Engine"]


class Engine(Protocol):
    """The server's side of all exchanges: one way to reach m clients, wherever they are."""

    @property
    def name(self) -> str:
        """Part of the reproducibility key: engines agree to float tolerance, each to the bit."""

    @property
    def workers(self) -> int:
        """How many clients are at work at once."""

    @property
    def nodes(self) -> int:
        """On how many machines."""

    @property
    def layout(self) -> Layout:
        """Which columns of a row hold which parameter."""

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|."""

    @property
    def task(self) -> Task:
        """What is learned."""

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample: C, the classes."""

    def ask(self, job: Job, sent: Sent, who: Int | None = None, memory: Table = ...) -> Answers:
        """Let clients run a program: the n in `who`, by rising number; all by default.

        `sent` has a row for each of them, which may be overwritten; `memory` (m, …) is what all
        clients keep, where they are simulated.
        """

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), initial models by number: 0 is the model as given, others are drawn anew."""

    def network_report(self) -> dict[str, Any]:
        """What else is worth writing down about the round that ends; nothing of most engines."""
