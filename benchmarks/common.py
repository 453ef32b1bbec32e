"""What the benchmarks share: the settings, paired turns, and the table with a goal by each figure.

Every benchmark is a module with a function `lines` that measures and returns `Line`s; its arguments
are its flags (`main`). `all.py` puts the lines of all of them into one table.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any, TypeVar

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import TensorDataset

from wecfl import Config, Engine, Federation, Plan, State
from wecfl.bilevel.local import Train
from wecfl.config.resolve import resolve
from wecfl.core.program import Job, Sent
from wecfl.core.types import F32, Int
from wecfl.data.datasets import SOURCES
from wecfl.data.source import Dataset
from wecfl.from_config import federation_of
from wecfl.memory import peak
from wecfl.models import build

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the two experiments of the paper."""

    title: str
    model: str
    """Its name in `wecfl.models.MODELS`."""
    dataset: str
    shape: tuple[int, int, int]
    """Of a sample."""
    flops: int
    """Of the forward pass of a sample, multiplications and additions."""


SETTINGS = (
    Setting("CIFAR-10 CNN", "cnn-cifar", "cifar-10", (3, 32, 32), 1_303_440),
    Setting("Fashion-MNIST CNN", "cnn-fashion", "fashion-mnist", (1, 28, 28), 5_676_160),
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the table: a figure, which is the median of `values`, and the goal beside it.

    >>> Line("training, native ÷ eager", "CIFAR-10 CNN", [4.4, 4.5, 4.6], least=4.3).goal
    '≥ 4.3'
    """

    work: str
    model: str
    values: Sequence[float]
    """One per turn; none if it could not be measured, and `detail` says why."""
    least: float | None = None
    most: float | None = None
    unit: str = ""
    detail: str = ""

    @property
    def figure(self) -> str:
        """Median and quartiles."""
        if not self.values:
            return "–"
        figure = f"{median(self.values):.3g}"
        if len(self.values) > 1:
            low, _, high = quantiles(self.values, n=4, method="inclusive")
            figure += f" [{low:.3g}–{high:.3g}]"
        return f"{figure} {self.unit}".rstrip()

    @property
    def goal(self) -> str:
        """The bound, if there is one."""
        bounds = [("≥", self.least), ("≤", self.most)]
        return " ".join(
            f"{sign} {bound:g} {self.unit}".rstrip() for sign, bound in bounds if bound is not None
        )

    @property
    def verdict(self) -> str:
        """Whether the figure reaches its goal."""
        if not self.values or not self.goal:
            return ""
        value = median(self.values)
        reached = (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )
        return "reached" if reached else "missed"


def show(lines: Iterable[Line]) -> None:
    """Print the table."""
    table = Table("work", "model", "figure [quartiles]", "goal", "", "detail", box=box.SIMPLE_HEAD)
    colors = {"reached": "green", "missed": "red", "": ""}
    for line in lines:
        verdict = line.verdict
        table.add_row(
            line.work, line.model, line.figure, line.goal, verdict, line.detail,
            style=colors[verdict],
        )  # fmt: skip
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def main(lines: Callable[..., list[Line]]) -> None:
    """Run one benchmark with flags made from the arguments of its function `lines`."""
    description = sys.modules[lines.__module__].__doc__
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, parameter in inspect.signature(lines).parameters.items():
        default = parameter.default
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(default),
            default=default,
            metavar=type(default).__name__,
            help=f"default: {default}" if default else None,
        )
    show(lines(**vars(parser.parse_args())))


def measure(
    turns: int, *works: Callable[[], object], clock: Callable[[], float] = perf_counter
) -> list[list[float]]:
    """Seconds of each piece of work in each turn; the first turn warms up and is left out."""
    seconds: list[list[float]] = [[] for _ in works]
    for turn in range(turns + 1):
        for work, times in zip(works, seconds, strict=True):
            began = clock()
            work()
            if turn:
                times.append(clock() - began)
    return seconds


def ratios(base: Sequence[float], ours: Sequence[float]) -> list[float]:
    """How many times as fast, turn by turn: neighbours in time, so a busy machine slows both."""
    return [a / b for a, b in zip(base, ours, strict=True)]


def sgd(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Sequence[torch.Tensor]],
) -> None:
    """What people write, and what every FL library runs for a client."""
    model.train()
    for x, y in batches:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()


@cache
def random_clients(setting: Setting, clients: int) -> Federation:
    """Clients with 320 random training samples each: 10 batches of 32, and 80 for testing."""
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((400, *setting.shape), np.float32) for _ in range(clients)]
    ys = [rng.integers(0, 10, 400) for _ in range(clients)]
    return Federation.from_arrays(xs, ys, classes=10)


def clients_of_a_pool(
    shape: tuple[int, ...], clients: int, *, train: int, test: int, apart: bool = False
) -> Federation:
    """Clients whose random samples come from 10,000 common ones, so that data take little memory.

    All alike, or `apart`: ten groups, of which each holds three of the ten classes.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((10_000, *shape), np.float32)
    y = rng.integers(0, 10, len(x))
    rows = rng.integers(0, len(x), (clients, train + test))
    groups = None
    if apart:
        groups = np.arange(clients) % 10
        y = np.arange(len(x)) % 10
        rows = rows - rows % 10 + (groups[:, None] + rows % 3) % 10
    return Federation(
        x,
        y,
        train=tuple(rows[:, :train]),
        test=tuple(rows[:, train:]),
        classes=10,
        keys=np.arange(clients),
        names=tuple(map(str, range(clients))),
        groups=groups,
    )


@cache
def training_sets(setting: Setting, clients: int) -> list[TensorDataset]:
    """The training samples of `random_clients`, for torch."""
    fed = random_clients(setting, clients)
    return [tensors(fed, rows) for rows in fed.train]


def tensors(fed: Federation, rows: Int) -> TensorDataset:
    """Samples of a federation for torch."""
    return TensorDataset(torch.from_numpy(fed.x[rows]), torch.from_numpy(fed.y[rows]))


def module_of(setting: Setting) -> nn.Module:
    """A new module of the setting, always with the same start."""
    return build(setting.model, shape=setting.shape, classes=10)


def paper(setting: Setting, data_dir: str = "") -> tuple[Config, Federation]:
    """The paper's experiment, 200 clients in 10 groups, WeCFL with K = 10.

    With the real images if `data_dir` is given, else random ones of the same number and shape.
    """
    config = resolve(preset="paper", flags={"dataset": setting.dataset})
    if data_dir:
        return config, federation_of(config.model_copy(update={"data_dir": data_dir}))
    source, rng = SOURCES[setting.dataset], np.random.default_rng(0)
    n = source.n_train + source.n_test
    x = rng.standard_normal((n, *source.shape), np.float32)
    y = rng.permutation(np.arange(n) % source.classes)
    return config, federation_of(config, Dataset("random", x, y, source.n_train, source.classes))


def cpu_seconds() -> float:
    """Used so far by this process and all that descend from it (Linux)."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = process_time() + ended.ru_utime + ended.ru_stime
    for pid in descendants(os.getpid()):
        with suppress(OSError):  # it has ended: its parent counts it from now on
            after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            # User and system, of itself and of its children that have ended.
            total += sum(map(int, after[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def descendants(pid: int) -> list[int]:
    """The processes that descend from a process (Linux)."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def in_a_fresh_process(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """The value of a function of a module, called in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments, **named).result()


def peak_memory() -> float:
    """The largest resident memory this process has had, in GB."""
    return peak() / 1e9


def resident_memory() -> float:
    """The resident memory this process has now, in GB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e9


def update(engine: Engine, state: State, plan: Plan) -> F32:
    """(m, P), the clients' models after a local update."""
    job, everyone = Job(Train(), plan, keep=True), np.arange(len(state.labels))
    answers = engine.ask(job, Sent({"model": state.fresh(everyone)}), everyone, state.memory)
    models: F32 = answers.rows["model"]
    return models
