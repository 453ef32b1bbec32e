"""A worker of the torch engine, and the memory that it shares with the engine."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor, nn

from wecfl.core.plan import LocalPlan
from wecfl.core.task import Task
from wecfl.core.types import F32, Bool, Int
from wecfl.data.federation import Federation
from wecfl.engine.feature_losses import FEATURE_LOSSES
from wecfl.engine.lesson import Samples, Walk
from wecfl.engine.local import EVALUATION_BATCH
from wecfl.engine.torch_optimizer import Descent
from wecfl.layout import Layout
from wecfl.models.features import with_features
from wecfl.models.rows import layout_of, named_tensors

__all__ = ["Board", "Worker"]

Made = TypeVar("Made")
"""The result of a forward pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Board:
    """Arrays that the engine and its workers share. Pages that are never used need no memory."""

    # Row i belongs to the i-th of the clients that are asked.
    models: F32  # (m, P), in: start of each client; out: its trained model
    buffers: F32  # (m, 2 · trainable + tensors), of the optimizer; most need less of it
    anchor: F32  # (m, P)
    offset: F32  # (m, P)
    mu: F32  # (trainable,)
    free: Bool  # (trainable,)
    lr: F32  # (m,)
    steps: Int  # (m,)
    gradients: F32  # (m, trainable)
    clients: Int  # (m,), the clients that are asked
    index: Int  # (m,), the row of `models` a client is evaluated with
    logits: F32  # (samples of all clients, outputs)
    weights: F32  # (samples of all clients,), factors of their losses
    bias: F32  # (samples of all clients, outputs), added to the outputs
    features: F32  # (samples of all clients, D)
    points: F32  # (samples of all clients, D), of a term on features
    factors: F32  # (samples of all clients,), of that term

    @classmethod
    def shared(cls, federation: Federation, layout: Layout, outputs: int) -> Board:
        """The board for all clients, with models of this layout and this number of outputs."""
        m, width, trainable = len(federation), layout.width, layout.trainable
        samples = max(sum(map(len, federation.train)), sum(map(len, federation.test)))
        return cls(
            models=_shared((m, width)),
            buffers=_shared((m, LocalPlan(optimizer="adam").buffer(layout))),
            anchor=_shared((m, width)),
            offset=_shared((m, width)),
            mu=_shared((trainable,)),
            free=_shared((trainable,), np.bool_),
            lr=_shared((m,)),
            steps=_shared((m,), np.int64),
            gradients=_shared((m, trainable)),
            clients=_shared((m,), np.int64),
            index=_shared((m,), np.int64),
            logits=_shared((samples, outputs)),
            weights=_shared((samples,)),
            bias=_shared((samples, outputs)),
            features=_shared((samples, layout.head[1])),
            points=_shared((samples, layout.head[1])),
            factors=_shared((samples,)),
        )


def _shared(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    buffer = mmap.mmap(-1, max(1, prod(shape) * np.dtype(dtype).itemsize))
    return np.frombuffer(buffer, dtype, prod(shape)).reshape(shape)


class Worker:
    """Trains one client at a time, or computes its logits or gradients."""

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        board: Board,
        *,
        batchnorm: str,
        batch: int,
        task: Task,
    ) -> None:
        self.drifting, self.federation = federation, federation.at(1)
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

    def perform(self, order: dict[str, Any], turns: Iterable[int]) -> str:
        """Do the order for the clients of these turns; return what went wrong, or an empty text."""
        given = dict(order)
        work = getattr(self, given.pop("work"))
        self.channels_last = given.pop("channels_last")
        self.federation = self.drifting.at(given.pop("round"))
        for turn in turns:
            client = int(self.board.clients[turn])
            try:
                work(client, turn, **given)
            except Exception as error:
                name = self.federation.names[client]
                reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
                problem = f"client {name} failed in {work.__name__}: {reason}"
                return problem.encode(errors="replace").decode()
        return ""

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
        self.layout = layout
        self.counters = {
            name: buffer.clone()
            for name, buffer in self.model.named_buffers()
            if not buffer.is_floating_point()
        }
        self.norms = [
            m for m in self.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
        ]

    def load(self, row: F32) -> None:
        """Put a row into the model, and reset the batch counters, which are not part of it."""
        self.row.copy_(torch.from_numpy(row))
        for name, buffer in self.model.named_buffers():
            if name in self.counters:
                buffer.copy_(self.counters[name])

    def samples(self, rows: NDArray[np.integer]) -> Tensor:
        """The samples at these rows of the pool; the channels are last, which is faster."""
        x = self.x[torch.from_numpy(rows)]
        if x.ndim != 4 or not self.channels_last:
            return x
        # `contiguous` is not enough: with one channel it keeps strides that torch takes for NCHW.
        return torch.empty(x.shape, memory_format=torch.channels_last).copy_(x)

    def train(
        self,
        client: int,
        turn: int,
        *,
        walk: dict[str, Any],
        plan: dict[str, Any],
        corrected: bool,
        anchored: bool,
        shifted: bool,
        held: bool,
        weighted: bool,
        biased: bool,
        term: str,
    ) -> None:
        """Take steps of the plan's optimizer, on the columns that are trained.

        The steps are along ∇L, which may be clipped, plus mu·(w − anchor) + offset. `term` is the
        name of a loss of features that is part of L; empty: there is none.
        """
        board, key, steps = self.board, int(self.federation.keys[client]), Walk(**walk)
        self.load(board.models[turn])
        torch.default_generator.manual_seed(steps.dropout(key))
        w, g, trainable = self.params, self.gradient, len(self.params)
        anchor = torch.from_numpy(board.anchor[turn, :trainable]) if anchored else w.clone()
        mu, offset = torch.from_numpy(board.mu), torch.from_numpy(board.offset[turn, :trainable])
        free = torch.from_numpy(board.free) if held else None
        buffer = torch.from_numpy(board.buffers[turn])
        descent = Descent(LocalPlan(**plan), self.layout, float(board.lr[turn]), buffer, free)
        self.model.train()
        own, first = self.federation.train[client], self.first["train"][client]
        for chosen in steps.batches(np.arange(len(own)), key, int(board.steps[turn])):
            g.zero_()
            self._backward(own[chosen], first + chosen, weighted, biased, term)
            descent.prepare(w, g)
            if corrected:
                g.addcmul_(mu, w - anchor)
            if shifted:
                g.add_(offset)
            descent.step(w, g)
        board.models[turn] = self.row.numpy()

    def _backward(self, rows: Int, at: Int, weighted: bool, biased: bool, term: str) -> None:
        """Add the gradient of the loss of a batch, the samples `rows`, to `gradient`.

        `at` are their places on the board, where their weights, biases and points are.
        """
        board = self.board
        terms: list[Tensor] = []
        if term:
            output, features = self.featured(rows)
            far = FEATURE_LOSSES[term](features, torch.from_numpy(board.points[at]))
            terms = [(torch.from_numpy(board.factors[at]) * far).mean()]
        else:
            output = self.output(rows)
        if biased:
            output = output + torch.from_numpy(board.bias[at])
        loss = self.task.objective(output, self.y[torch.from_numpy(rows)])
        if weighted:  # the loss is a sum over samples: each row of its slope is of one
            (slope,) = torch.autograd.grad(loss, output, retain_graph=True)
            slope = slope * torch.from_numpy(board.weights[at])[:, None]
            torch.autograd.backward([output, *terms], [slope, *(None for _ in terms)])
        else:
            torch.autograd.backward([loss, *terms])

    @torch.no_grad()
    def logits(self, client: int, turn: int, *, samples: dict[str, Any]) -> None:
        """Compute the logits of the client's samples, with the board's model at its `index`."""
        board, chosen = self.board, Samples(**samples)
        at = self.first[chosen.held_as][client]
        row = board.models[board.index[turn]]
        for rows, output in self.evaluated(client, row, chosen, self.output):
            if tuple(output.shape) != (len(rows), self.task.outputs):
                raise ValueError(f"the output has shape {tuple(output.shape)}")
            board.logits[at : at + len(rows)] = output.numpy()
            at += len(rows)

    @torch.no_grad()
    def features(self, client: int, turn: int, *, samples: dict[str, Any]) -> None:
        """Compute the features of the client's samples, with the board's model at its `index`."""
        board, chosen = self.board, Samples(**samples)
        at = self.first[chosen.held_as][client]
        row, forward = board.models[board.index[turn]], self.featured
        for rows, (_, features) in self.evaluated(client, row, chosen, forward):
            board.features[at : at + len(rows)] = features.numpy()
            at += len(rows)

    def featured(self, rows: Int) -> tuple[Tensor, Tensor]:
        """The output of the model for these rows of the pool, and their features."""
        x = self.samples(rows)
        return with_features(self.model, lambda: self.model(x))

    def gradients(self, client: int, turn: int, *, samples: dict[str, Any]) -> None:
        """Compute the gradient of the client's mean loss, at its model on the board."""
        count = 0
        self.gradient.zero_()
        row, chosen = self.board.models[turn], Samples(**samples)
        for rows, output in self.evaluated(client, row, chosen, self.output):
            loss = self.task.objective(output, self.y[torch.from_numpy(rows)], "sum")
            torch.autograd.backward(loss)
            count += len(rows)
        self.board.gradients[turn] = (self.gradient / count).numpy()

    def output(self, rows: Int) -> Tensor:
        """The output of the model for these rows of the pool."""
        made: Tensor = self.model(self.samples(rows))
        return made

    def evaluated(
        self, client: int, row: F32, samples: Samples, forward: Callable[[Int], Made]
    ) -> Iterator[tuple[Int, Made]]:
        """Yield the client's samples in batches, and the model's result for each, in evaluation."""
        self.load(row)
        self.model.eval()
        if self.batchnorm == "batch":
            for norm in self.norms:
                norm.train()
        chosen = samples.of(self.federation, client)
        for first in range(0, len(chosen), self.batch):
            rows = chosen[first : first + self.batch]
            yield rows, forward(rows)
