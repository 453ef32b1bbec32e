"""The reference engine: any `nn.Module`, trained by eager torch in worker processes.

Workers are forked once and stay alive: they see the clients' data without a copy, take clients
from a common queue, one thread each, and exchange models through shared memory. Which worker runs
a client does not matter: all that a client's computation depends on is keyed by (seed, round,
client), so results are the same bits for any number of workers. What travels between processes
are rows of numbers and short JSON messages, no pickles.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing as mp
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from math import prod
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from multiprocessing.synchronize import Lock
from multiprocessing.util import Finalize
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from wecfl.core.task import Task
from wecfl.core.types import F32, Bool, Int
from wecfl.data.federation import Federation
from wecfl.engine.local import EVALUATION_BATCH, Lesson, LocalEngine, Samples, Walk
from wecfl.errors import EngineError, ModelError
from wecfl.layout import Layout
from wecfl.models.rows import layout_of, named_tensors, row_of
from wecfl.tasks import Classification

__all__ = ["TorchEngine"]


@final
class TorchEngine(LocalEngine):
    """Runs the clients of a federation with torch on the CPU (a `wecfl.core.engine.Engine`).

    Arguments as of `LocalEngine`. Use it as a context manager, or call `close` to end the workers.

    >>> from torch import nn
    >>> from wecfl.bilevel.evaluation import tallies
    >>> fed = Federation.from_arrays([np.eye(4, dtype=np.float32)] * 2, [np.arange(4)] * 2)
    >>> with TorchEngine(fed, nn.Linear(4, 4), workers=1) as engine:
    ...     tallies(engine, np.zeros((2, 20), np.float32), "test").shape
    (2, 4, 4)
    """

    name = "torch"

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        workers: int | None = None,
        batchnorm: Literal["running", "batch"] = "running",
        batch: int = 32,
        task: Task = Classification(),  # noqa: B008  (frozen)
    ) -> None:
        if not hasattr(os, "fork"):
            raise EngineError("the torch engine forks its workers and needs Linux or macOS")
        super().__init__(
            federation, model, workers=workers, batchnorm=batchnorm, batch=batch, task=task
        )
        self._board = _Board.shared(federation, self.layout)
        self._channels_last = True
        local = _Local(
            federation, self._model, self._board, batchnorm=batchnorm, batch=batch, task=task
        )
        fork = mp.get_context("fork")
        # The lock is the workers' alone: if one is killed while it holds it, nobody but them hangs.
        self._next, lock = fork.RawValue("q", 0), fork.Lock()
        self._pipes: list[Connection] = []
        self._processes: list[ForkProcess] = []
        # At the exit multiprocessing ends what is left by SIGTERM, which workers leave to the run.
        Finalize(self, _end, (self._pipes, self._processes), exitpriority=0)
        for number in range(self.workers):
            ours, theirs = fork.Pipe()
            process = fork.Process(
                target=_serve,
                args=(local, theirs, self._next, lock, [*self._pipes, ours]),
                name=f"wecfl-worker-{number}",
                daemon=True,
            )
            with warnings.catch_warnings():
                # Python ≥ 3.12 warns that threads (torch's, a progress bar's) don't survive a fork;
                # a worker computes with one thread of its own and needs none of them.
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
        moving = lesson.momentum > 0
        if moving:
            board.momentum[:n] = 0 if lesson.velocity is None else lesson.velocity
        for target, values in (
            (board.anchor[:n], lesson.anchor), (board.offset[:n], lesson.offset),
            (board.mu, lesson.mu), (board.free, lesson.free),
        ):  # fmt: skip
            if values is not None:
                target[:] = values
        self._each(
            "train",
            clients,
            walk=asdict(lesson.walk),
            momentum=lesson.momentum,
            weight_decay=lesson.weight_decay,
            corrected=lesson.mu is not None,
            anchored=lesson.anchor is not None,
            shifted=lesson.offset is not None,
            held=lesson.free is not None,
        )
        rows = np.empty_like(lesson.rows) if lesson.out is None else lesson.out
        rows[:] = board.models[:n]
        return rows, board.momentum[:n].copy() if moving else None

    def close(self) -> None:
        """End the workers; the engine can't be used afterwards."""
        _end(self._pipes, self._processes)

    def _logits(self, models: F32, which: Int, samples: Samples, clients: Int) -> F32:
        """From the board, where the workers write them; a client's share may be limited."""
        self._board.models[: len(models)] = models
        self._board.index[: len(clients)] = which
        self._each("logits", clients, samples=asdict(samples))
        sizes = [len(rows) for rows in getattr(self._federation, samples.split)]
        taken = sizes if samples.limit is None else np.minimum(sizes, samples.limit)
        starts = np.cumsum([0, *sizes[:-1]])
        parts = [self._board.logits[starts[i] : starts[i] + taken[i]] for i in clients]
        return np.concatenate(parts)

    def _gradients(self, models: F32, samples: Samples, clients: Int) -> F32:
        self._board.models[: len(clients)] = models
        self._each("gradients", clients, samples=asdict(samples))
        return self._board.gradients[: len(clients)].copy()

    def _check_fit(self) -> None:
        """One forward pass of one client, so that a model that doesn't fit is said at once."""
        federation = self._federation
        self._board.models[0] = row_of(self._model)
        self._board.index[0] = 0
        for self._channels_last in (True, False):  # `x.view(…)` in a forward can't do with them
            problem = self._run("logits", np.zeros(1, np.int64), samples=asdict(Samples("test")))
            if not problem:
                return
        self.close()
        raise ModelError(
            f"{type(self._model).__name__} can't eat samples of shape {federation.shape} and give "
            f"{federation.classes} logits: {problem}"
        )

    def _each(self, work: str, clients: Int, **message: Any) -> None:
        """Let the workers run `work` for these clients; return when all are done."""
        if problem := self._run(work, clients, **message):
            raise EngineError(problem)

    def _run(self, work: str, clients: Int, **message: Any) -> str:
        """Let the workers run `work` for these clients; return what went wrong."""
        if not self._processes:
            raise EngineError("the engine is closed; make a new one")
        self._next.value, count = 0, len(clients)
        self._board.clients[:count] = clients
        message |= {"work": work, "count": count, "channels_last": self._channels_last}
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
        except BaseException:  # Ctrl-C: answers still under way must not be taken for later ones
            self.close()
            raise
        return problems[0] if problems else ""

    def _death(self, number: int, work: str) -> EngineError:
        process = self._processes[number]
        process.join(timeout=5)
        pid, code = process.pid, process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
        self.close()
        return EngineError(
            f"worker {number} (process {pid}) died with {how} during '{work}'; "
            f"if the machine is short of memory, lower workers"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Board:
    """Arrays in memory shared with the workers; pages never touched cost nothing."""

    # One row for each client whose turn it is, in this order.
    models: F32  # (m, P), in: start of each client; out: its trained model
    momentum: F32  # (m, trainable)
    anchor: F32  # (m, P)
    offset: F32  # (m, P)
    mu: F32  # (trainable,)
    free: Bool  # (trainable,)
    lr: F32  # (m,)
    steps: Int  # (m,)
    gradients: F32  # (m, trainable)
    clients: Int  # (m,), whose turn it is
    index: Int  # (m,), the row of `models` a client is evaluated with
    logits: F32  # (samples of all clients, C)

    @classmethod
    def shared(cls, federation: Federation, layout: Layout) -> _Board:
        m, width, trainable = len(federation), layout.width, layout.trainable
        samples = max(sum(map(len, federation.train)), sum(map(len, federation.test)))
        return cls(
            models=_shared((m, width)),
            momentum=_shared((m, trainable)),
            anchor=_shared((m, width)),
            offset=_shared((m, width)),
            mu=_shared((trainable,)),
            free=_shared((trainable,), np.bool_),
            lr=_shared((m,)),
            steps=_shared((m,), np.int64),
            gradients=_shared((m, trainable)),
            clients=_shared((m,), np.int64),
            index=_shared((m,), np.int64),
            logits=_shared((samples, federation.classes)),
        )


def _shared(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    buffer = mmap.mmap(-1, max(1, prod(shape) * np.dtype(dtype).itemsize))
    return np.frombuffer(buffer, dtype, prod(shape)).reshape(shape)


def _end(pipes: list[Connection], processes: list[ForkProcess]) -> None:
    for pipe in pipes:
        pipe.close()
    for process in processes:
        process.kill()  # whatever it is doing: a worker has nothing to clean up
        process.join()
        process.close()
    pipes.clear()
    processes.clear()


def _serve(
    local: _Local, pipe: Connection, following: Any, lock: Lock, others: list[Connection]
) -> None:
    """A worker: wait for an order, take clients one by one, report; until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the parent to handle
        signal.signal(number, signal.SIG_IGN)
    for inherited in others:
        inherited.close()
    torch.set_num_threads(1)
    local.bind()
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            order = json.loads(pipe.recv_bytes())
            work, count = getattr(local, order.pop("work")), order.pop("count")
            local.channels_last = order.pop("channels_last")
            problem = ""
            while not (problem or pipe.poll()):  # nothing comes before the answer but the end
                with lock:
                    turn = following.value
                    following.value += 1
                if turn >= count:
                    break
                client = int(local.board.clients[turn])
                try:
                    work(client, turn, **order)
                except Exception as error:
                    line = " ".join(str(error).split())
                    name = local.federation.names[client]
                    problem = (
                        f"client {name} failed in {work.__name__}: {type(error).__name__}: {line}"
                    )
            pipe.send_bytes(problem.encode(errors="replace"))


class _Local:
    """What a worker does for one client: train, or compute logits."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        board: _Board,
        *,
        batchnorm: str,
        batch: int,
        task: Task,
    ) -> None:
        self.federation = federation
        self.task = task
        self.board = board
        self.batchnorm = batchnorm
        self.channels_last = True
        self.batch = EVALUATION_BATCH if batchnorm == "running" else batch
        self.x = torch.from_numpy(federation.x)
        self.y = torch.from_numpy(federation.y)
        self.first = {
            split: np.cumsum([0, *map(len, getattr(federation, split))])
            for split in ("train", "test")
        }
        self.model = model

    def bind(self) -> None:
        """Make all tensors of the model views of one flat row, and their gradients of another.

        So a client's model is loaded by one copy, and SGD is three operations on one vector.
        """
        self.model = deepcopy(self.model)
        layout = layout_of(self.model)
        tensors = dict(named_tensors(self.model))
        self.row = torch.zeros(layout.width)
        self.gradient = torch.zeros(layout.trainable)
        for entry in layout.entries:
            tensor = tensors[entry.name]
            tensor.data = self.row[entry.start : entry.stop].view(entry.shape)
            if tensor.requires_grad:
                tensor.grad = self.gradient[entry.start : entry.stop].view(entry.shape)
        self.params = self.row[: layout.trainable]
        self.counters = {
            name: buffer.clone()
            for name, buffer in self.model.named_buffers()
            if not buffer.is_floating_point()
        }
        self.norms = [
            m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
        ]

    def load(self, row: F32) -> None:
        """Put a row (and the batch counters that are not part of it) into the model."""
        self.row.copy_(torch.from_numpy(row))
        for name, buffer in self.model.named_buffers():
            if name in self.counters:
                buffer.copy_(self.counters[name])

    def samples(self, rows: NDArray[np.integer]) -> Tensor:
        """The samples at these rows of the pool; images with the channels last, which is faster."""
        x = self.x[torch.from_numpy(rows)]
        if x.ndim != 4 or not self.channels_last:
            return x
        # Not `contiguous`: with one channel it would keep strides that torch takes for NCHW.
        return torch.empty(x.shape, memory_format=torch.channels_last).copy_(x)

    def train(
        self,
        client: int,
        turn: int,
        *,
        walk: dict[str, Any],
        momentum: float,
        weight_decay: float,
        corrected: bool,
        anchored: bool,
        shifted: bool,
        held: bool,
    ) -> None:
        """Steps of v ← momentum·v + g and w ← w − η·v, on the columns that are not held still.

        Here g = ∇L + decay·w + mu·(w − anchor) + offset.
        """
        board, key, way = self.board, int(self.federation.keys[client]), Walk(**walk)
        self.load(board.models[turn])
        torch.default_generator.manual_seed(way.dropout(key))
        w, g, trainable = self.params, self.gradient, len(self.params)
        anchor = torch.from_numpy(board.anchor[turn, :trainable]) if anchored else w.clone()
        mu, offset = torch.from_numpy(board.mu), torch.from_numpy(board.offset[turn, :trainable])
        v = torch.from_numpy(board.momentum[turn])
        still = ~torch.from_numpy(board.free)
        lr = float(board.lr[turn])
        self.model.train()
        for rows in way.batches(self.federation.train[client], key, int(board.steps[turn])):
            g.zero_()
            output = self.model(self.samples(rows))
            loss = self.task.objective(output, self.y[torch.from_numpy(rows)])
            torch.autograd.backward(loss)
            if weight_decay:
                g.add_(w, alpha=weight_decay)
            if corrected:
                g.addcmul_(mu, w - anchor)
            if shifted:
                g.add_(offset)
            if held:
                before = w[still], v[still]
            w.add_(v.mul_(momentum).add_(g) if momentum else g, alpha=-lr)
            if held:
                w[still], v[still] = before
        board.models[turn] = self.row.numpy()

    @torch.no_grad()
    def logits(self, client: int, turn: int, *, samples: dict[str, Any]) -> None:
        """Logits of the client's samples under the row the board names for it."""
        board, chosen = self.board, Samples(**samples)
        at = self.first[chosen.split][client]
        for rows, output in self.evaluated(client, board.models[board.index[turn]], chosen):
            if tuple(output.shape) != (len(rows), self.federation.classes):
                raise ValueError(f"the output has shape {tuple(output.shape)}")
            board.logits[at : at + len(rows)] = output.numpy()
            at += len(rows)

    def gradients(self, client: int, turn: int, *, samples: dict[str, Any]) -> None:
        """The gradient of the client's mean loss over its samples, at its row of the board."""
        count = 0
        self.gradient.zero_()
        for rows, output in self.evaluated(client, self.board.models[turn], Samples(**samples)):
            loss = self.task.objective(output, self.y[torch.from_numpy(rows)], "sum")
            torch.autograd.backward(loss)
            count += len(rows)
        self.board.gradients[turn] = (self.gradient / count).numpy()

    def evaluated(self, client: int, row: F32, samples: Samples) -> Iterator[tuple[Int, Tensor]]:
        """The client's samples in batches, with the output of the model in evaluation mode."""
        self.load(row)
        self.model.eval()
        if self.batchnorm == "batch":
            for norm in self.norms:
                norm.train()
        chosen = samples.of(self.federation, client)
        for first in range(0, len(chosen), self.batch):
            rows = chosen[first : first + self.batch]
            yield rows, self.model(self.samples(rows))
