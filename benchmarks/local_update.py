"""Local training: the torch engine against the eager loop every FL library runs.

Both train the same clients for the same number of mini-batches on one core, in turns; the figure is
the median of the ratios of paired turns, so a busy machine slows both alike.

    python benchmarks/local_update.py [--turns 9] [--clients 8]
"""

from __future__ import annotations

import argparse
from statistics import median, quantiles
from time import perf_counter

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from wecfl import Correction, Federation, Plan, State, TorchEngine
from wecfl.models import build, row_of

SETTINGS = {"cnn-cifar": (3, 32, 32), "cnn-fashion": (1, 28, 28)}


def eager_loop(models: list[nn.Module], loaders: list[DataLoader[tuple[torch.Tensor, ...]]]) -> None:
    """What people write: a DataLoader, a module and an optimizer per client."""
    for model, loader in zip(models, loaders, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()


def main() -> None:
    """Print one line per model."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--turns", type=int, default=9)
    flags.add_argument("--clients", type=int, default=8)
    args = flags.parse_args()
    torch.set_num_threads(1)
    print("model        samples/s eager   samples/s engine   ratio [quartiles]")
    for name, shape in SETTINGS.items():
        rng = np.random.default_rng(0)
        xs = [rng.normal(size=(400, *shape)).astype(np.float32) for _ in range(args.clients)]
        ys = [rng.integers(0, 10, 400) for _ in range(args.clients)]
        fed = Federation.from_arrays(xs, ys, classes=10)  # 320 training samples: 10 batches of 32
        module = build(name, shape=shape, classes=10)
        models = [build(name, shape=shape, classes=10) for _ in range(args.clients)]
        sets = [TensorDataset(*map(torch.from_numpy, (fed.x[r], fed.y[r]))) for r in fed.train]
        loaders = [DataLoader(each, batch_size=32, shuffle=True) for each in sets]
        rows = np.repeat(row_of(module)[None], args.clients, axis=0)
        state = State(0, rows, rows[:1], np.zeros(args.clients, dtype=np.int64))
        plan, samples = Plan(steps=10, batch=32), args.clients * 320
        with TorchEngine(fed, module, workers=1) as engine:
            times = []
            for _ in range(args.turns + 1):
                began = perf_counter()
                eager_loop(models, loaders)
                between = perf_counter()
                engine.train(state, plan, Correction(), seed=0)
                times.append((between - began, perf_counter() - between))
        ratios = [eager / ours for eager, ours in times[1:]]  # the first turn warms up
        low, _, high = quantiles(ratios, n=4)
        eager, ours = (median(pair[i] for pair in times[1:]) for i in (0, 1))
        print(
            f"{name:<12} {samples / eager:>12,.0f} {samples / ours:>18,.0f}"
            f"   {median(ratios):>7.2f} [{low:.2f}–{high:.2f}]"
        )


if __name__ == "__main__":
    main()
