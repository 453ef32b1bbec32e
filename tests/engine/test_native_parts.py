"""Networks of large tensors take a mini-batch a block of samples at a time: the same result."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from random_networks import federation
from wecfl.engine.native import _native, instruction_sets
from wecfl.engine.native.graph import graph
from wecfl.models import fill, layout_of, make, row_of

SHAPE, CLASSES = (3, 32, 32), 4


def large(rate: float = 0.0) -> nn.Module:
    """A network whose tensors of a block take more than a megabyte."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Dropout(rate),
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 7, 3, 2),
        nn.Flatten(), nn.Linear(1575, CLASSES),
    )  # fmt: skip


def step(model: nn.Module, isa: str, x: Any, y: Any, **by_sample: Any) -> NDArray[np.float64]:
    """The gradient of one mini-batch: what a step with η = 1 subtracts."""
    layout, row = layout_of(model), row_of(model)
    layers = [_native.Layer(**layer) for layer in graph(model, layout)]
    runner = _native.Runner(layers, list(SHAPE), CLASSES, layout.trainable, layout.width, isa)
    after = row[None].copy()
    runner.train(
        rows=after, buffers=None, anchor=None, offset=None, mu=None, free=None,
        lr=np.ones(1, np.float32), optimizer=_native.Optimizer("sgd", layout.trained_stops),
        x=x.reshape(len(x), -1), y=y, clients=np.zeros(1, np.int64), index=np.arange(len(x)),
        offsets=np.array([[0, len(x)]]), keys=np.ones(1, np.uint64), threads=1, **by_sample,
    )  # fmt: skip
    gradient: NDArray[np.float64] = row.astype(np.float64) - after[0]
    return gradient


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("size", [3, 16, 37])
def test_gradients_are_those_of_torch(size: int, isa: str) -> None:
    draws = np.random.default_rng(size)
    fed = federation(SHAPE, CLASSES, [60], 0)
    model = make(large, shape=SHAPE, classes=CLASSES, seed=0)
    x, y = np.ascontiguousarray(fed.x[:size]), np.ascontiguousarray(fed.y[:size])
    weights = draws.uniform(0.5, 2, size).astype(np.float32)
    bias = draws.standard_normal((size, CLASSES)).astype(np.float32)
    ours = step(model, isa, x, y, weights=weights, bias=bias)
    exact = fill(model, row_of(model)).double()
    outputs = exact(torch.from_numpy(x).double()) + torch.from_numpy(bias)
    losses = functional.cross_entropy(outputs, torch.from_numpy(y), reduction="none")
    torch.autograd.backward((losses * torch.from_numpy(weights)).mean())
    gradients = [p.grad.flatten().numpy() for p in exact.parameters() if p.grad is not None]
    for name, theirs, span in zip(
        [name for name, _ in exact.named_parameters()],
        gradients,
        np.split(ours, np.cumsum([len(g) for g in gradients])[:-1]),
        strict=True,
    ):
        assert np.abs(span - theirs).max() <= 1e-4 * np.abs(theirs).max() + 1e-6, name


@pytest.mark.parametrize("isa", instruction_sets())
def test_each_part_has_its_own_dropout(isa: str) -> None:
    """With the same masks in all parts, twice the same samples would have the same gradient."""
    fed = federation(SHAPE, CLASSES, [60], 0)
    model = make(lambda: large(0.5), shape=SHAPE, classes=CLASSES, seed=0)
    x, y = np.repeat(fed.x[:1], 32, axis=0), np.repeat(fed.y[:1], 32)
    few, many = step(model, isa, x[:16], y[:16]), step(model, isa, x, y)
    assert np.abs(few - many).max() > 0.02 * np.abs(many).max()
