"""The reference engine: any `nn.Module`, trained by eager torch in worker processes.

Workers are forked once and stay alive. So they see the clients' data without a copy. Each works
with one thread, takes clients from a common queue, and exchanges models through shared memory. It
does not matter which worker runs a client, because everything that a client's computation depends
on is keyed by (seed, round, client). So any number of workers gives the same bits. Processes
exchange rows of numbers and short JSON messages, and no pickles.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import warnings
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.util import Finalize
from typing import Any, Unpack, final

import numpy as np
from torch import nn

from wecfl.core.types import F32, Int
from wecfl.data.federation import Federation
from wecfl.engine.lesson import Lesson, Samples
from wecfl.engine.local import EngineOptions, LocalEngine
from wecfl.engine.torch_worker import Board, Worker, serve
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
        if not hasattr(os, "fork"):
            raise EngineError("the torch engine forks its workers and needs Linux or macOS")
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
        fork = mp.get_context("fork")
        # Only workers take the lock, so the engine does not hang if one dies while it holds it.
        self._next, lock = fork.RawValue("q", 0), fork.Lock()
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []
        self._owner = os.getpid()
        # At exit, multiprocessing would send workers SIGTERM, which they ignore.
        Finalize(self, _end, (self._owner, self._pipes, self._processes), exitpriority=0)
        for number in range(self.workers):
            ours, theirs = fork.Pipe()
            process = fork.Process(
                target=serve,
                args=(worker, theirs, self._next, lock, [*self._pipes, ours]),
                name=f"wecfl-worker-{number}",
                daemon=True,
            )
            with warnings.catch_warnings():
                # Python ≥ 3.12 warns that threads, of torch or of a progress bar, don't survive a
                # fork. A worker needs none of them.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
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
        """Where the training samples of these clients are on the board."""
        firsts = np.cumsum([0, *self.sizes[:-1]])
        return np.concatenate([firsts[i] + np.arange(self.sizes[i]) for i in clients])

    def close(self) -> None:
        """End the workers; the engine can't be used afterwards."""
        _end(self._owner, self._pipes, self._processes)

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
        """Let the workers run `work` for these clients; return when all are done."""
        if problem := self._run(work, clients, **message):
            raise EngineError(problem)

    def _run(self, work: str, clients: Int, **message: Any) -> str:
        """Let the workers run `work` for these clients; return what went wrong."""
        if not self._processes:
            raise EngineError("the engine is closed; make a new one")
        if self._owner != os.getpid():
            raise EngineError(
                f"the engine and its workers belong to process {self._owner}, of which this one is "
                f"a fork; make a new one"
            )
        self._next.value, count = 0, len(clients)
        self._board.clients[:count] = clients
        message |= {"work": work, "count": count, "channels_last": self._channels_last}
        message |= {"round": self._round}
        order = json.dumps(message, default=lambda number: number.item()).encode()
        problems = []
        try:
            pending = {}
            for number, pipe in enumerate(self._pipes):
                pending[pipe] = number
                pipe.send_bytes(order)
            while pending:
                for pipe in [pipe for pipe in wait(list(pending)) if isinstance(pipe, Connection)]:
                    number = pending.pop(pipe)
                    if problem := pipe.recv_bytes().decode():
                        problems.append(problem)
                        self._next.value = count  # the others stop at their next client
        except (EOFError, OSError):
            raise self._death(number, work) from None
        except BaseException:  # Ctrl-C: a late answer must not be taken for that of a later order
            self.close()
            raise
        return problems[0] if problems else ""

    def _death(self, number: int, work: str) -> EngineError:
        """End the engine because a worker died, and return the error to raise."""
        process = self._processes[number]
        process.join(timeout=5)
        pid, code = process.pid, process.exitcode
        end = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        self.close()
        return EngineError(
            f"worker {number} (process {pid}) died with {end} during '{work}'; "
            f"if the machine is short of memory, lower workers"
        )


def _end(owner: int, pipes: list[Connection], processes: list[ForkProcess]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes if owner == os.getpid() else ():  # a fork must not end its parent's
        process.kill()  # whatever it is doing: a worker has nothing to clean up
        process.join()
        process.close()
    pipes.clear()
    processes.clear()
