"""Local training and evaluation on one core: the engines against the loop every FL library runs.

All run the same clients for the same mini-batches, in turns; a figure is the median of the ratios
of paired turns. The peak is a 1024³ matrix product by torch in the same turn; its share counts
3 × the FLOPs of the forward pass for training and 1 × for evaluation.

What two threads gain is compared with what the machine allows in the same turn: as many of these
products as there are clients, in one process alone and shared out to two processes at once.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from statistics import median

import numpy as np
import torch
from torch.utils.data import DataLoader

from common import (
    SETTINGS,
    Line,
    Setting,
    main,
    measure,
    module_of,
    random_clients,
    ratios,
    sgd,
    training_sets,
    update,
)
from wecfl import NativeEngine, State, TorchEngine
from wecfl.bilevel import evaluation
from wecfl.core.plan import LocalPlan
from wecfl.models import row_of

TRAINING_GOALS = {"cnn-cifar": 4.3, "cnn-fashion": 2.7}
"""How many times as fast as the eager loop the native engine should train."""
SIDE = 1024
"""Of the matrices whose product is the peak."""


def lines(turns: int = 9, clients: int = 8) -> list[Line]:
    """Training, evaluation, the share of the peak, two threads."""
    torch.set_num_threads(1)
    return [line for setting in SETTINGS for line in _lines(setting, turns, clients)]


def _lines(setting: Setting, turns: int, clients: int) -> list[Line]:
    fed = random_clients(setting, clients)
    module, *models = (module_of(setting) for _ in range(clients + 1))
    sets = training_sets(setting, clients)
    loaders = [DataLoader(own, batch_size=32, shuffle=True) for own in sets]

    def eager() -> None:
        for model, loader in zip(models, loaders, strict=True):
            sgd(model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9), loader)

    @torch.no_grad()
    def eager_evaluation() -> None:
        for model, samples in zip(models, sets, strict=True):
            model.eval()
            for x in samples.tensors[0].split(64):
                model(x)

    rows = np.repeat(row_of(module)[None], clients, axis=0)
    state = State(0, {"model": rows}, rows[:1], np.zeros(clients, dtype=np.int64))
    plan = LocalPlan(steps=10, batch=32)
    native, pair = (NativeEngine(fed, module, workers=n) for n in (1, 2))
    spawn = multiprocessing.get_context("spawn")
    with (
        TorchEngine(fed, module, workers=1) as engine,
        ProcessPoolExecutor(1, spawn) as first,
        ProcessPoolExecutor(1, spawn) as second,
    ):

        def products(*processes: ProcessPoolExecutor) -> None:
            """Share out a product for each client, and wait for all."""
            share = clients // len(processes)
            for running in [process.submit(_multiply, share) for process in processes]:
                running.result()

        seconds = measure(
            turns,
            eager,
            lambda: update(engine, state, plan),
            lambda: update(native, state, plan),
            lambda: update(pair, state, plan),
            lambda: products(first),
            lambda: products(first, second),
            lambda: _multiply(1),
            eager_evaluation,
            lambda: evaluation.risk(engine, rows),
            lambda: evaluation.risk(native, rows),
        )
    base, slow, fast, both, alone, at_once, product, base_eval, slow_eval, fast_eval = seconds
    samples = clients * 320
    peak = [2 * SIDE**3 / t for t in product]
    gained, allowed = ratios(fast, both), ratios(alone, at_once)
    beside = Line("", "", allowed).figure

    def share(times: list[float], passes: int) -> list[float]:
        work = passes * setting.flops * samples
        return [100 * work / t / p for t, p in zip(times, peak, strict=True)]

    def line(work: str, before: list[float], after: list[float], least: float | None) -> Line:
        rates = f"{samples / median(after):,.0f} against {samples / median(before):,.0f} samples/s"
        return Line(work, setting.title, ratios(before, after), least, detail=rates)

    gigaflops = f"peak {median(peak) / 1e9:.0f} GFLOP/s"
    return [
        line("train, native ÷ eager + DataLoader", base, fast, TRAINING_GOALS[setting.model]),
        line("train, torch engine ÷ the same", base, slow, None),
        Line("train, share of sgemm peak", setting.title, share(fast, 3), 90, None, "%", gigaflops),
        line("train, native, 2 threads ÷ 1", fast, both, None),
        Line(
            "the same ÷ what two processes of sgemm gain",
            setting.title,
            [100 * a / b for a, b in zip(gained, allowed, strict=True)],
            95,
            unit="%",
            detail=f"two processes ÷ one: {beside}",
        ),
        line("evaluate, native ÷ eager NCHW", base_eval, fast_eval, 4),
        line("evaluate, torch engine ÷ the same", base_eval, slow_eval, None),
        Line("evaluate, share of sgemm peak", setting.title, share(fast_eval, 1), unit="%"),
    ]


@cache
def _square() -> torch.Tensor:
    torch.set_num_threads(1)
    return torch.rand(SIDE, SIDE)


def _multiply(count: int) -> None:
    """So many products of 2 · 1024³ operations on one thread."""
    for _ in range(count):
        _square() @ _square()


if __name__ == "__main__":
    main(lines)
