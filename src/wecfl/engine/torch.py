"""The reference engine: any `nn.Module`, trained by eager torch (`wecfl.engine.torch_crew`)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Unpack, final

import numpy as np
from torch import nn

from wecfl.core.types import F32, Int
from wecfl.data.federation import Federation
from wecfl.engine.lesson import Lesson, Samples
from wecfl.engine.local import EngineOptions, LocalEngine
from wecfl.engine.torch_crew import Crew, ForkedCrew, LoneCrew
from wecfl.engine.torch_worker import Board, Worker
from wecfl.errors import EngineError
from wecfl.models.rows import row_of

__all__ = ["TorchEngine"]


@final
class TorchEngine(LocalEngine):
    """Runs the clients of a federation with torch on the CPU (a `wecfl.core.engine.Engine`).

    The arguments are those of `LocalEngine`. Use it as a context manager, or call `close`.

    >>> from torch import nn
    >>> from wecfl.bilevel.evaluation import tallies
    >>> fed = Federation.from_arrays([np.eye(4, dtype=np.float32)] * 2, [np.arange(4)] * 2)
    >>> with TorchEngine(fed, nn.Linear(4, 4), workers=1) as engine:
    ...     tallies(engine, np.zeros((2, 20), np.float32), "test").shape
    (2, 4, 4)
    """

    name = "torch"
    offers = frozenset({"features"})

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(federation, model, **options)
        federation = self._drifting
        self._board = Board.shared(federation, self.layout, self.outputs)
        self._channels_last = True
        worker = Worker(
            federation,
            self._model,
            self._board,
            batchnorm=self._batchnorm,
            batch=self._batch,
            task=self.task,
        )
        self._crew: Crew = (
            LoneCrew(worker) if self.workers == 1 else ForkedCrew(worker, self.workers)
        )
        self._check_fit()

    def _train(self, clients: Int, lesson: Lesson) -> tuple[F32, F32 | None]:
        board, n = self._board, len(clients)
        board.models[:n] = lesson.rows
        board.lr[:n], board.steps[:n] = lesson.lr, lesson.done
        buffer = lesson.plan.buffer(self.layout)
        board.buffers[:n, :buffer] = 0 if lesson.velocity is None else lesson.velocity
        for target, values in (
            (board.anchor[:n], lesson.anchor), (board.offset[:n], lesson.offset),
            (board.mu, lesson.mu), (board.free, lesson.free),
        ):  # fmt: skip
            if values is not None:
                target[:] = values
        term = lesson.term
        by_sample: list[tuple[F32, F32 | None]] = [
            (board.weights, lesson.weights), (board.bias, lesson.bias),
            (board.points, term.points if term else None),
            (board.factors, term.factors if term else None),
        ]  # fmt: skip
        if any(values is not None for _, values in by_sample):
            spots = self._spots(clients)
        for table, given in by_sample:
            if given is not None:
                table[spots] = given
        self._each(
            "train",
            clients,
            walk=asdict(lesson.walk),
            plan=asdict(lesson.plan),
            corrected=lesson.mu is not None,
            anchored=lesson.anchor is not None,
            shifted=lesson.offset is not None,
            held=lesson.free is not None,
            weighted=lesson.weights is not None,
            biased=lesson.bias is not None,
            term=term.kind if term else "",
        )
        rows = np.empty_like(lesson.rows) if lesson.out is None else lesson.out
        rows[:] = board.models[:n]
        return rows, board.buffers[:n, :buffer].copy() if buffer else None

    def _spots(self, clients: Int) -> Int:
        """The positions of these clients' training samples on the board."""
        firsts = np.cumsum([0, *self.sizes[:-1]])
        return np.concatenate([firsts[i] + np.arange(self.sizes[i]) for i in clients])

    def close(self) -> None:
        """End the workers; the engine can't be used afterwards."""
        self._crew.close()

    def _logits(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        return self._evaluated("logits", models, which, samples, clients)

    def _features(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        return self._evaluated("features", models, which, samples, clients)

    def _evaluated(self, work: str, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        """The logits or features, which the workers write to the board."""
        self._board.models[: len(models)] = models
        self._board.index[: len(clients)] = which
        self._each(work, clients, samples=asdict(samples))
        table = getattr(self._board, work)
        sizes = [len(rows) for rows in getattr(self._federation, samples.held_as)]
        taken = [len(rows) for rows in self._rows(samples, clients)]
        starts = np.cumsum([0, *sizes[:-1]])[clients]
        parts = [table[at : at + n] for at, n in zip(starts, taken, strict=True)]
        return np.concatenate(parts)

    def _gradients(self, models: F32, samples: Samples, clients: Int) -> F32:
        self._board.models[: len(clients)] = models
        self._each("gradients", clients, samples=asdict(samples))
        return self._board.gradients[: len(clients)].copy()

    def _check_fit(self) -> None:
        """Run one forward pass of one client, to refuse at once a model that does not fit."""
        self._board.models[0] = row_of(self._model)
        self._board.index[0] = 0
        for self._channels_last in (True, False):  # a forward with `x.view(…)` fails if True
            problem = self._run("logits", np.zeros(1, np.int64), samples=asdict(Samples("test")))
            if not problem:
                return
        self.close()
        raise self._misfit(problem)

    def _each(self, work: str, clients: Int, **message: Any) -> None:
        """Do `work` for these clients."""
        if problem := self._run(work, clients, **message):
            raise EngineError(problem)

    def _run(self, work: str, clients: Int, **given: Any) -> str:
        """Do `work` for these clients; return what went wrong."""
        self._board.clients[: len(clients)] = clients
        order = {"work": work, "round": self._round, "channels_last": self._channels_last, **given}
        return self._crew.run(order, len(clients))
