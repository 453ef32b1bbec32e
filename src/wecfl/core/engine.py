"""The engine: the only object that reaches clients and their data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from wecfl.core.program import Answers, Job, Sent
from wecfl.core.task import Task
from wecfl.core.types import F32, Int, Table
from wecfl.layout import Layout

__all__ = ["Engine", "EngineAround"]


class Engine(Protocol):
    """The server's side of every exchange: one way to reach m clients, wherever they are."""

    @property
    def name(self) -> str:
        """The name. Engines agree up to rounding, so the last bits of a result depend on it."""

    @property
    def workers(self) -> int:
        """The number of clients that are trained at the same time."""

    @property
    def nodes(self) -> int:
        """The number of machines on which clients are trained."""

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
        """The number of outputs of a model for a sample: C, the number of classes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    def ask(self, job: Job, sent: Sent, who: Int | None = None, memory: Table = ...) -> Answers:
        """Let n clients run a program: those in `who`, in ascending order; by default all clients.

        `sent` has a row for each of these clients, which may be overwritten. `memory` (m, …) is
        what all clients keep, if they are simulated.
        """

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """(n, P), initial models by number: 0 is the given model, the others are random."""

    def move_to(self, round: int) -> None:
        """Give clients their data of this round (1, 2, …); called before its first step.

        It has an effect only if clients are simulated and their data drift.
        """

    def network_report(self) -> dict[str, Any]:
        """What the record of this round should say about the network; empty for most engines."""


class EngineAround(ABC):
    """An engine that reaches clients through another engine, and has its properties."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    @abstractmethod
    def sizes(self) -> Int:
        """(m,), |D_i|."""

    @abstractmethod
    def ask(self, job: Job, sent: Sent, who: Int | None = None, memory: Table = ...) -> Answers:
        """Let clients run a program."""

    @property
    def name(self) -> str:
        """The name of the inner engine."""
        return self._engine.name

    @property
    def workers(self) -> int:
        """The number of clients that the inner engine trains at the same time."""
        return self._engine.workers

    @property
    def nodes(self) -> int:
        """The number of machines that the inner engine uses."""
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
        """The number of outputs of a model for a sample."""
        return self._engine.outputs

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self._engine.shape

    def starts(self, which: Sequence[int], seed: int) -> F32:
        """The initial models of the inner engine."""
        return self._engine.starts(which, seed)

    def move_to(self, round: int) -> None:
        """Give clients their data of this round."""
        self._engine.move_to(round)

    def network_report(self) -> dict[str, Any]:
        """What the inner engine reports about the network."""
        return self._engine.network_report()
