"""Several runs in one process: in threads, after a fork, one inside and one after the other."""

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor, nn

from helpers import same_bits
from wecfl import Compute, Federation, Folder, Plan, memory, methods, run
from wecfl.bilevel.threads import one_thread
from wecfl.errors import WecflError
from wecfl.options import EngineName
from wecfl.runs.result import Result

ENGINES = pytest.mark.parametrize("engine", ["native", "torch"])
PAUSE = 0.002
"""Seconds in which the other threads get on."""


class Slow(nn.Module):
    """A model during whose making and whose forward pass other threads get their turn."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, 4)
        self.reset_parameters()
        self.last = nn.Linear(4, classes)

    def reset_parameters(self) -> None:
        """Before those of the layers."""
        time.sleep(PAUSE)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1))
        time.sleep(PAUSE)
        return self.last(torch.relu(hidden))  # type: ignore[no-any-return]


def slow_run(
    fed: Federation, seed: int = 0, engine: EngineName = "native", **options: Any
) -> Result:
    features = int(np.prod(fed.shape))
    plan = Plan(steps=2, lr=0.05)
    return run(
        fed, methods.ifca(k=2), model=lambda: Slow(features, fed.classes), rounds=2, plan=plan,
        seed=seed, engine=Compute(engine, workers=1), **options,
    )  # fmt: skip


def limited() -> None:
    """Give this process some seconds: what hangs in it ends."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(30)


def in_a_fork(work: Callable[[], None]) -> str:
    """What the work has to say against itself in a forked child; empty: nothing."""
    read, write = os.pipe()
    if pid := os.fork():
        os.close(write)
        with os.fdopen(read) as told:
            complaint = told.read()
        _, status = os.waitpid(pid, 0)
        return complaint or ("" if status == 0 else f"it ended with status {status}")
    limited()
    try:
        work()
    except BaseException as error:
        os.write(write, f"{type(error).__name__}: {error}".encode())
    os._exit(0)


@ENGINES
def test_runs_in_threads_come_to_the_bits_that_each_has_alone(
    engine: EngineName, fed: Federation
) -> None:
    seeds = range(3)
    alone = [slow_run(fed, seed, engine=engine) for seed in seeds]
    together = Barrier(len(seeds))

    def begin(seed: int) -> Result:
        together.wait()
        return slow_run(fed, seed, engine=engine)

    with ThreadPoolExecutor(len(seeds)) as threads:
        for one, two in zip(alone, threads.map(begin, seeds), strict=True):
            assert one.engine == two.engine
            same_bits(one, two)


def blas_threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_one_thread_of_blas_until_the_last_run_is_through_and_then_all_of_them() -> None:
    before, first_inside, both_inside, left = blas_threads(), Event(), Event(), Event()

    def first() -> None:
        with one_thread():
            first_inside.set()
            both_inside.wait()
        left.set()

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(first)
        first_inside.wait()
        with one_thread():
            both_inside.set()
            left.wait()
            assert blas_threads() == {1}
        done.result()
    assert blas_threads() == before


def test_memory_is_not_given_to_two_threads() -> None:
    """Arrays of a few sizes, so that threads look for the same blocks."""

    def work(number: int) -> None:
        for turn in range(5000):
            shape = (1 + (number + turn) % 3, 1 << 20)
            one, two = memory.empty(shape), memory.empty(shape)
            one[0, 0], two[0, 0] = number, turn
            assert one.shape == two.shape == shape
            assert (one[0, 0], two[0, 0]) == (number, turn)

    patient = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
    finally:
        sys.setswitchinterval(patient)


@ENGINES
def test_a_run_after_a_fork(engine: EngineName, fed: Federation) -> None:
    """Where torch has used threads, which are gone in the child, and would use them again."""
    model = nn.Sequential(nn.Linear(6, 20_000), nn.ReLU(), nn.Linear(20_000, fed.classes))

    def result() -> Result:
        return run(fed, methods.fedavg, model=model, rounds=1, plan=Plan(steps=1), engine=engine)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        alone = result()
        assert in_a_fork(lambda: same_bits(alone, result())) == ""
    finally:
        torch.set_num_threads(before)


@ENGINES
def test_a_run_that_is_forked_goes_on_in_the_parent_alone(
    engine: EngineName, fed: Federation, tmp_path: Path
) -> None:
    alone, forks = slow_run(fed, engine=engine), list[int]()

    def fork(*_: object) -> None:
        if not forks:
            forks.append(os.fork())
            if forks[0]:
                os.waitpid(forks[0], 0)
            else:
                limited()

    def forked_run() -> None:
        same_bits(alone, slow_run(fed, engine=engine, folder=tmp_path / "run", watch=[fork]))

    told = in_a_fork(forked_run)
    assert told.count("Error: ") == 1  # of the two that went on
    assert "fork" in told


@ENGINES
def test_runs_one_inside_the_other_and_one_after_another(
    engine: EngineName, fed: Federation
) -> None:
    """As in a notebook: cells run one after another, and a cell may start a run in a callback."""
    alone = [slow_run(fed, seed, engine=engine) for seed in (0, 1)]
    state, inner = torch.get_rng_state(), []
    outer = slow_run(
        fed, 0, engine=engine, watch=[lambda *_: inner.append(slow_run(fed, 1, engine=engine))]
    )
    assert torch.equal(state, torch.get_rng_state())
    same_bits(alone[0], outer)
    assert len(inner) == 2
    for result in inner:
        same_bits(alone[1], result)


def test_two_threads_do_not_write_one_folder(fed: Federation, tmp_path: Path) -> None:
    alone, folder = slow_run(fed), tmp_path / "run"
    refused: list[str] = []

    def second(*_: object) -> None:
        for resume in (False, True):
            with ThreadPoolExecutor(1) as threads, pytest.raises(WecflError) as error:
                place = Folder(folder, resume=resume)
                threads.submit(slow_run, fed, folder=place).result()
            refused.append(str(error.value))

    same_bits(alone, slow_run(fed, folder=folder, watch=[second]))
    assert ["this process" in line for line in refused] == [False, True] * 2
