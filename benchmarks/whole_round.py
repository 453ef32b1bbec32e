"""A whole round of the paper's experiment: `wecfl run` against a plain torch loop, on all cores.

200 clients, 10 batches of 32 each, WeCFL with K = 10. Both do the same round: local training,
weighted K-means of the clients' last layers, averaging, distribution, test accuracy and macro-F1 of
every client. `wecfl run` also writes its run folder and estimates R, which the loop does not. The
loop is what people write: a module, an SGD optimizer and a DataLoader
per client, scikit-learn's KMeans as it comes (one start; ours takes the best of eleven), and
averages of state dictionaries. It runs in two variants, torch's own threads in one process, and one
process per core with one thread each over modules in shared memory; the figure is taken against
the faster of them. The rounds of all three take turns.

The second figure compares our whole round with the loop's training alone. The third is what is left
of our round without training and tests (clustering, aggregation, distribution, R, bookkeeping,
writing) as a share of the round.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from os import getloadavg
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Self

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from torch.utils.data import DataLoader

from common import (
    SETTINGS,
    Line,
    Setting,
    cpu_seconds,
    main,
    module_of,
    paper,
    ratios,
    sgd,
    tensors,
)
from wecfl import Config, Federation, State, run_config
from wecfl.engine.hardware import cores
from wecfl.metrics import accuracy, macro_f1, weighted

SPEEDUP_GOALS = {"cnn-cifar": 4.0, "cnn-fashion": 2.6}
"""How many times as fast as the plain loop a round should be."""
TRAINING_GOALS = {"cnn-cifar": 3.8, "cnn-fashion": 2.6}
"""How many times as fast as the plain loop's training alone a whole round should be."""


def lines(
    turns: int = 3, data_dir: str = "", clients: int = 200, model: str = "", seconds: str = "wall"
) -> list[Line]:
    """The three figures for both models, or for one of them.

    On a crowded machine, measure `seconds` of the processors, `cpu`, in place of wall time.
    """
    chosen = [setting for setting in SETTINGS if model in ("", setting.model)]
    clock = cpu_seconds if seconds == "cpu" else perf_counter
    return [line for setting in chosen for line in _lines(setting, turns, data_dir, clients, clock)]


class PlainLoop:
    """One module, optimizer and DataLoader per client; batches go on from round to round."""

    def __init__(
        self,
        fed: Federation,
        setting: Setting,
        config: Config,
        processes: int,
        clock: Callable[[], float],
    ) -> None:
        self.fed, self.config, self.clock = fed, config, clock
        self.models = [module_of(setting).share_memory() for _ in range(fed.m)]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)
            for model in self.models
        ]
        self.batches = [
            _endless(DataLoader(tensors(fed, rows), config.batch, shuffle=True))
            for rows in fed.train
        ]
        self.tests = [DataLoader(tensors(fed, rows), config.batch) for rows in fed.test]
        fork = multiprocessing.get_context("fork")
        self.processes = [ProcessPoolExecutor(1, fork) for _ in range(processes)]
        self._on_all("ready")
        self.training = 0.0
        """Seconds that the training of the last round took."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.shutdown()

    def round(self) -> float:
        """One round; the weighted mean of the clients' test accuracies."""
        began = self.clock()
        self._on_all("train")
        self.training = self.clock() - began
        heads = np.stack([_head(model) for model in self.models])
        clustering = KMeans(self.config.clusters).fit(heads, sample_weight=self.fed.sizes)
        self._average(clustering.labels_)
        confusion = np.concatenate(self._on_all("test"))
        macro_f1(confusion)
        return weighted(accuracy(confusion), self.fed.sizes)

    def _on_all(self, step: str) -> list[np.ndarray]:
        """A step of all clients: here, or a share of them in each process."""
        global _loop  # noqa: PLW0603  (processes inherit it when they are forked)
        _loop = self
        if not self.processes:
            torch.set_num_threads(cores())
            return [getattr(self, step)(range(self.fed.m))]
        shares = np.array_split(np.arange(self.fed.m), len(self.processes))
        waiting = [
            process.submit(_in_process, step, share.tolist())
            for process, share in zip(self.processes, shares, strict=True)
        ]
        return [each.result() for each in waiting]

    def ready(self, clients: Sequence[int]) -> None:
        """Do nothing; by this call the processes are forked."""

    def train(self, clients: Sequence[int]) -> None:
        """Q steps of each of these clients."""
        for i in clients:
            batches = islice(self.batches[i], self.config.steps)
            sgd(self.models[i], self.optimizers[i], batches)

    @torch.no_grad()
    def test(self, clients: Sequence[int]) -> np.ndarray:
        """(n, C, C), truth by prediction; BatchNorm uses each batch, as in the paper's code."""
        confusion = np.zeros((len(clients), 10, 10), np.int64)
        for place, i in enumerate(clients):
            for x, y in self.tests[i]:
                np.add.at(confusion[place], (y.numpy(), self.models[i](x).argmax(1).numpy()), 1)
        return confusion

    @torch.no_grad()
    def _average(self, labels: np.ndarray) -> None:
        for k in np.unique(labels):
            members = np.flatnonzero(labels == k)
            share = self.fed.sizes[members] / self.fed.sizes[members].sum()
            states = [self.models[i].state_dict() for i in members]
            mean = {
                name: sum(float(s) * state[name] for s, state in zip(share, states, strict=True))
                for name in states[0]
            }
            for i in members:
                self.models[i].load_state_dict(mean)


_loop: PlainLoop


def _in_process(step: str, clients: list[int]) -> np.ndarray:
    torch.set_num_threads(1)
    result: np.ndarray = getattr(_loop, step)(clients)
    return result


def _endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from loader


def _head(model: torch.nn.Module) -> np.ndarray:
    *_, weight, _ = model.parameters()
    return weight.detach().numpy().ravel()


def _lines(
    setting: Setting, turns: int, data_dir: str, clients: int, clock: Callable[[], float]
) -> list[Line]:
    config, fed = paper(setting, data_dir)
    fed = fed.subset(range(clients))
    config = config.model_copy(update={"rounds": turns + 1})  # the first round warms up
    seconds: dict[str, list[float]] = {"ours": [], "threads": [], "processes": []}
    training: dict[str, list[float]] = {"threads": [], "processes": []}
    overhead: list[float] = []

    with (
        PlainLoop(fed, setting, config, cores(), clock) as processes,
        PlainLoop(fed, setting, config, 0, clock) as threads,
        TemporaryDirectory() as folder,
    ):
        plain = {"processes": processes, "threads": threads}

        def take_turns(record: dict[str, dict[str, float]], _: Sequence[State]) -> None:
            nonlocal began
            ours = clock() - began
            seconds["ours"].append(ours)
            used = record["seconds"]["L"] + record["seconds"]["score"]
            overhead.append(100 * (ours - used) / ours)
            for name, loop in plain.items():
                began = clock()
                loop.round()
                seconds[name].append(clock() - began)
                training[name].append(loop.training)
            torch.set_num_threads(1)
            began = clock()

        began = clock()
        run_config(config, fed, out=Path(folder) / "run", watch=[take_turns])
    times = {name: values[1:] for name, values in seconds.items()}
    best = min(plain, key=lambda name: median(times[name]))
    seconds_each = ", ".join(f"{name} {median(values):.2f} s" for name, values in times.items())
    images = "real images" if data_dir else "random images"
    speedup, share = ratios(times[best], times["ours"]), overhead[1:]
    alone = ratios(training[best][1:], times["ours"])
    load = f"load {getloadavg()[0]:.0f}"
    work, goal = f"round, `wecfl run` ÷ plain loop ({best})", SPEEDUP_GOALS[setting.model]
    return [
        Line(work, setting.title, speedup, goal, detail=f"{seconds_each}; {images}; {load}"),
        Line(
            f"round, `wecfl run` ÷ training alone of the loop ({best})",
            setting.title,
            alone,
            TRAINING_GOALS[setting.model],
        ),
        *(
            [Line("round, all but training and tests", setting.title, share, most=3, unit="%")]
            if clock is perf_counter  # the record of a round has wall times
            else []
        ),
    ]


if __name__ == "__main__":
    main(lines)
