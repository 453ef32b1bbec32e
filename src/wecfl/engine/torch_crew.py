"""The workers of the torch engine: this process, or processes that are forked from it.

A single worker is this process itself. Several workers are forked once and stay alive, so they use
the clients' data without a copy. They take clients from a common queue. Models are exchanged
through shared memory (`Board`), and orders and answers as short JSON messages, never as pickles.
Each worker computes with one thread. It does not matter which worker computes for a client, because
everything that the computation depends on is keyed by (seed, round, client). So any number of
workers gives the same bits.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Lock
from multiprocessing.util import Finalize
from typing import Any, Protocol, final

import torch

from wecfl.engine.torch_worker import Worker
from wecfl.errors import EngineError
from wecfl.models.rows import one_at_a_time

__all__ = ["Crew", "ForkedCrew", "LoneCrew"]


class Crew(Protocol):
    """Workers that compute for clients."""

    def run(self, order: dict[str, Any], count: int) -> str:
        """Do the order for the first `count` clients on the board; return what went wrong."""

    def close(self) -> None:
        """End the workers; they can't be used afterwards."""


@final
class LoneCrew:
    """One worker, which is this process. It computes with one thread, as forked workers do."""

    def __init__(self, worker: Worker) -> None:
        worker.bind()
        self._worker: Worker | None = worker
        self._owner = os.getpid()

    def run(self, order: dict[str, Any], count: int) -> str:
        """Do the order for one client after the other (`Crew`)."""
        if self._worker is None:
            raise _closed()
        _check_owner(self._owner)
        with one_at_a_time, _one_thread(), torch.random.fork_rng(devices=[]):
            return self._worker.perform(order, range(count))

    def close(self) -> None:
        """Release the data (`Crew`)."""
        self._worker = None


@contextmanager
def _one_thread() -> Iterator[None]:
    """A context with one thread, so that sums are added in one order; then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@final
class ForkedCrew:
    """Worker processes."""

    def __init__(self, worker: Worker, workers: int) -> None:
        if not hasattr(os, "fork"):
            raise EngineError(
                "several workers of the torch engine need fork, which this system does not have: "
                "set workers to 1"
            )
        fork = mp.get_context("fork")
        # Only workers take the lock, so nothing hangs if one dies while it holds it.
        self._next, lock = fork.RawValue("q", 0), fork.Lock()
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []
        self._owner = os.getpid()
        # At exit, multiprocessing would send workers SIGTERM, which they ignore.
        Finalize(self, _end, (self._owner, self._pipes, self._processes), exitpriority=0)
        for number in range(workers):
            ours, theirs = fork.Pipe()
            process = fork.Process(
                target=_serve,
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

    def run(self, order: dict[str, Any], count: int) -> str:
        """Do the order; a worker that is done with a client takes the next one (`Crew`)."""
        if not self._processes:
            raise _closed()
        _check_owner(self._owner)
        self._next.value = 0
        message = {"count": count, "order": order}
        packed = json.dumps(message, default=lambda number: number.item()).encode()
        problems = []
        try:
            pending = {}
            for number, pipe in enumerate(self._pipes):
                pending[pipe] = number
                pipe.send_bytes(packed)
            while pending:
                for pipe in [pipe for pipe in wait(list(pending)) if isinstance(pipe, Connection)]:
                    number = pending.pop(pipe)
                    if problem := pipe.recv_bytes().decode():
                        problems.append(problem)
                        self._next.value = count  # the others stop at their next client
        except (EOFError, OSError):
            raise self._death(number, order["work"]) from None
        except (
            BaseException
        ):  # after Ctrl-C, a late answer must not be taken as that of a new order
            self.close()
            raise
        return problems[0] if problems else ""

    def close(self) -> None:
        """End the workers (`Crew`)."""
        _end(self._owner, self._pipes, self._processes)

    def _death(self, number: int, work: str) -> EngineError:
        """End all workers because one died, and return the error to raise."""
        process = self._processes[number]
        process.join(timeout=5)
        pid, code = process.pid, process.exitcode
        end = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        self.close()
        return EngineError(
            f"worker {number} (process {pid}) died with {end} during '{work}': if the machine is "
            f"short of memory, lower workers"
        )


def _closed() -> EngineError:
    return EngineError("the engine is closed: make a new one")


def _check_owner(owner: int) -> None:
    """Refuse to work in a fork: the board is shared with the process that made the engine."""
    if owner != os.getpid():
        raise EngineError(
            f"the engine belongs to process {owner}, of which this one is a fork: "
            f"make a new engine here"
        )


def _end(owner: int, pipes: list[Connection], processes: list[ForkProcess]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes if owner == os.getpid() else ():  # not the workers of a parent
        process.kill()  # at any moment, since a worker has nothing to clean up
        process.join()
        process.close()
    pipes.clear()
    processes.clear()


def _serve(
    worker: Worker, pipe: Connection, next_turn: Any, lock: Lock, others: list[Connection]
) -> None:
    """Work until the pipe closes: wait for an order, take clients one by one, and report."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    for inherited in others:
        inherited.close()
    torch.set_num_threads(1)
    worker.bind()

    def turns(count: int) -> Iterator[int]:
        while not pipe.poll():  # before the answer, only the closing of the pipe can come
            with lock:
                turn = next_turn.value
                next_turn.value += 1
            if turn >= count:
                return
            yield turn

    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            message = json.loads(pipe.recv_bytes())
            problem = worker.perform(message["order"], turns(message["count"]))
            pipe.send_bytes(problem.encode())
