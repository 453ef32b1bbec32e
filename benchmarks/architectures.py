"""Training of other models than the paper's on one core: the native engine against the eager loop.

ResNet-8 with GroupNorm and with BatchNorm on 32 × 32 images, the small models with small batches
that other libraries use, and models of 80 characters. Each client passes once over 320 samples. All
run the same number of mini-batches, in turns; a figure is the median of the ratios of paired turns,
in seconds of the processor, so that other work on the machine counts less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from common import Line, main, measure, ratios, sgd, tensors, update
from wecfl import Federation, NativeEngine, State
from wecfl.core.plan import LocalPlan
from wecfl.data.packing import parts_of
from wecfl.models import make, row_of

SAMPLES = 320
"""The number of samples that each client trains on in a turn."""


class Block(nn.Module):
    """Two convolutions of 3 × 3 with norms, and the residual connection around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """ReLU of the sum."""
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet8(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Three blocks of 16, 32 and 64 channels (78,042 parameters)."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), norm(16), nn.ReLU(),
        Block(16, 16, 1, norm), Block(16, 32, 2, norm), Block(32, 64, 2, norm),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def mlp() -> nn.Module:
    """784-200-10, the MLP of many papers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


def lenet5() -> nn.Module:
    """LeNet-5 with ReLU and maxima, 28 × 28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10),
    )  # fmt: skip


class NextCharacter(nn.Module):
    """The last step of a recurrent layer tells which of 80 characters comes next."""

    def __init__(self, recurrent: nn.GRU | nn.LSTM):
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(80, recurrent.input_size), recurrent
        self.head = nn.Linear(recurrent.hidden_size, 80)

    def forward(self, characters: Tensor) -> Tensor:
        """(n, 80), from (n, 80) characters."""
        steps, _ = self.recurrent(self.embedding(characters))
        out: Tensor = self.head(steps[:, -1])
        return out


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model, its samples and batches, and how many times as fast as eager it should be."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch: int
    goal: float | None
    tokens: int = 0
    """Samples are whole numbers below this one, and so are labels; 0: random normal numbers."""

    def samples(self, rng: np.random.Generator, count: int) -> Any:
        """So many of them."""
        if self.tokens:
            return rng.integers(0, self.tokens, (count, *self.shape))
        return rng.standard_normal((count, *self.shape), np.float32)

    def clients(self, m: int) -> tuple[Federation, list[TensorDataset]]:
        """So many clients, and what each trains on in a round as a loop takes it."""
        rng = np.random.default_rng(0)
        xs = [self.samples(rng, 400) for _ in range(m)]
        ys = [rng.integers(0, self.classes, 400) for _ in xs]
        fed = Federation.from_arrays(xs, ys, classes=self.classes)
        sets = []
        for own in fed.train:
            x, y = tensors(fed, own[:SAMPLES]).tensors
            sets.append(TensorDataset(x.long() if self.tokens else x, y))
        return fed, sets

    def module(self) -> nn.Module:
        """The model for samples as a federation holds them."""
        parts = parts_of([self.samples(np.random.default_rng(0), 1)]) if self.tokens else ()
        return make(self.build(), shape=self.shape, classes=self.classes, seed=0, parts=parts)

    @property
    def classes(self) -> int:
        """How many outputs the model has."""
        return self.tokens or 10


ARCHITECTURES = (
    Architecture(
        "ResNet-8, GroupNorm, batch 32",
        lambda: resnet8(lambda c: nn.GroupNorm(8, c)),
        (3, 32, 32),
        32,
        2.5,
    ),
    Architecture(
        "ResNet-8, BatchNorm, batch 32", lambda: resnet8(nn.BatchNorm2d), (3, 32, 32), 32, 2.5
    ),
    Architecture("MLP 784-200-10, batch 10", mlp, (1, 28, 28), 10, 4),
    Architecture("LeNet-5, batch 10", lenet5, (1, 28, 28), 10, 4),
    *(
        Architecture(
            f"GRU of 128 on 80 characters, batch {batch}",
            lambda: NextCharacter(nn.GRU(8, 128, batch_first=True)),
            (80,),
            batch,
            2,
            tokens=80,
        )
        for batch in (32, 10)
    ),
    Architecture(
        "LSTM of 2 × 128 on 80 characters, batch 32",
        lambda: NextCharacter(nn.LSTM(8, 128, 2, batch_first=True)),
        (80,),
        32,
        None,
        tokens=80,
    ),
)


def lines(turns: int = 9, clients: int = 4) -> list[Line]:
    """Training of each model."""
    torch.set_num_threads(1)
    return [_line(each, turns, clients) for each in ARCHITECTURES]


def _line(each: Architecture, turns: int, clients: int) -> Line:
    fed, sets = each.clients(clients)
    models = [each.build() for _ in range(clients)]
    loaders = [DataLoader(own, batch_size=each.batch, shuffle=True) for own in sets]

    def eager() -> None:
        for model, loader in zip(models, loaders, strict=True):
            sgd(model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9), loader)

    made = each.module()
    rows = np.repeat(row_of(made)[None], clients, axis=0)
    state = State(0, {"model": rows}, rows[:1], np.zeros(clients, dtype=np.int64))
    plan = LocalPlan(steps=SAMPLES // each.batch, batch=each.batch)
    native = NativeEngine(fed, made, workers=1)
    before, after = measure(turns, eager, lambda: update(native, state, plan), clock=process_time)
    samples = clients * SAMPLES
    rates = f"{samples / median(after):,.0f} against {samples / median(before):,.0f} samples/s"
    work = "train, native ÷ eager + DataLoader"
    return Line(work, each.title, ratios(before, after), each.goal, detail=rates)


if __name__ == "__main__":
    main(lines)
