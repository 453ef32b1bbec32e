"""Local training and evaluation: the engines against the eager loop every FL library runs.

All run the same clients for the same mini-batches on one core, in turns; a figure is the median of
the ratios of paired turns, so a busy machine slows all alike. The peak is a 1024³ matrix product by
torch in the same turn; its share counts 3 × the FLOPs of the forward pass.

    python benchmarks/local_update.py [--turns 9] [--clients 8]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median, quantiles
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from wecfl import Correction, Federation, NativeEngine, Plan, State, TorchEngine
from wecfl.models import build, row_of

SETTINGS = {"cnn-cifar": ((3, 32, 32), 1_303_440), "cnn-fashion": ((1, 28, 28), 5_676_160)}
"""Shape of a sample, FLOPs of its forward pass."""
GOALS = {"cnn-cifar": "4.3", "cnn-fashion": "2.7"}


def eager_loop(
    models: list[nn.Module], loaders: list[DataLoader[tuple[torch.Tensor, ...]]]
) -> None:
    """What people write: a DataLoader, a module and an optimizer per client."""
    for model, loader in zip(models, loaders, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()


@torch.no_grad()
def eager_evaluation(models: list[nn.Module], sets: list[torch.Tensor]) -> None:
    """Batches of 64 through the module in evaluation mode."""
    for model, x in zip(models, sets, strict=True):
        model.eval()
        for first in range(0, len(x), 64):
            model(x[first : first + 64])


def measure(turns: int, *works: Callable[[], object]) -> list[list[float]]:
    """Seconds of each piece of work in each turn; the first turn warms up and is left out."""
    seconds: list[list[float]] = [[] for _ in works]
    for turn in range(turns + 1):
        for work, times in zip(works, seconds, strict=True):
            began = perf_counter()
            work()
            if turn:
                times.append(perf_counter() - began)
    return seconds


def ratio(base: list[float], ours: list[float]) -> str:
    """Median and quartiles of the paired ratios."""
    ratios = [a / b for a, b in zip(base, ours, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    return f"{median(ratios):.2f} [{low:.2f}–{high:.2f}]"


def main() -> None:
    """Print one block of lines per model."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--turns", type=int, default=9)
    flags.add_argument("--clients", type=int, default=8)
    args = flags.parse_args()
    torch.set_num_threads(1)
    table = Table("model", "work", "samples/s", "ratio [quartiles]", "goal", "share of sgemm peak")
    square = torch.rand(1024, 1024)
    for name, (shape, flops) in SETTINGS.items():
        rng = np.random.default_rng(0)
        xs = [rng.normal(size=(400, *shape)).astype(np.float32) for _ in range(args.clients)]
        ys = [rng.integers(0, 10, 400) for _ in range(args.clients)]
        fed = Federation.from_arrays(xs, ys, classes=10)  # 320 training samples: 10 batches of 32
        module = build(name, shape=shape, classes=10)
        models = [build(name, shape=shape, classes=10) for _ in range(args.clients)]
        sets = [TensorDataset(*map(torch.from_numpy, (fed.x[r], fed.y[r]))) for r in fed.train]
        loaders = [DataLoader(each, batch_size=32, shuffle=True) for each in sets]
        inputs = [each.tensors[0] for each in sets]
        rows = np.repeat(row_of(module)[None], args.clients, axis=0)
        state = State(0, rows, rows[:1], np.zeros(args.clients, dtype=np.int64))
        plan, samples = Plan(steps=10, batch=32), args.clients * 320
        native, pair = (NativeEngine(fed, module, workers=n) for n in (1, 2))
        with TorchEngine(fed, module, workers=1) as engine:
            eager, slow, fast, both, peak, eager_eval, slow_eval, fast_eval = measure(
                args.turns,
                lambda: eager_loop(models, loaders),  # noqa: B023
                lambda: engine.train(state, plan, Correction(), 0),  # noqa: B023
                lambda: native.train(state, plan, Correction(), 0),  # noqa: B023
                lambda: pair.train(state, plan, Correction(), 0),  # noqa: B023
                lambda: square @ square,
                lambda: eager_evaluation(models, inputs),  # noqa: B023
                lambda: engine.risk(rows),  # noqa: B023
                lambda: native.risk(rows),  # noqa: B023
            )
        top = [2 * 1024**3 / t for t in peak]
        lines = [
            ("train, eager + DataLoader", eager, eager, "", 3),
            ("train, torch engine", eager, slow, "", 3),
            ("train, native engine", eager, fast, GOALS[name], 3),
            ("the same, 2 threads ÷ 1", fast, both, "1.9", 3),
            ("evaluate, eager", eager_eval, eager_eval, "", 1),
            ("evaluate, torch engine", eager_eval, slow_eval, "", 1),
            ("evaluate, native engine", eager_eval, fast_eval, "4", 1),
        ]
        for work, base, times, goal, passes in lines:
            share = median(
                passes * flops * samples / t / p for t, p in zip(times, top, strict=True)
            )
            rate = f"{samples / median(times):,.0f}"
            table.add_row(name, work, rate, ratio(base, times), goal, f"{100 * share:.0f} %")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
