"""Tiny federations and the command line, for all tests."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # idle threads sleep at once, not after 20 ms

import numpy as np
import pytest
import torch
from hypothesis import settings

if build := os.environ.get("WECFL_NATIVE"):  # another build of the kernels: `make sanitize`
    found = spec_from_file_location("wecfl.engine.native._native", build)
    assert found is not None and found.loader is not None
    sys.modules[found.name] = module_from_spec(found)
    found.loader.exec_module(sys.modules[found.name])

import wecfl  # first, so that doctests see the same modules as the tests
from wecfl import cli
from wecfl.data.federation import Federation

if TYPE_CHECKING:
    from helpers import Wecfl

settings.register_profile("patient", deadline=None)  # a busy machine is no mistake of the code
settings.load_profile("patient")
torch.set_num_threads(1)  # the cores belong to pytest-xdist
gc.disable()  # until all tests are collected: importing makes no garbage

MEMORY_DISK, MIN_MEMORY_DISK = Path("/dev/shm"), 4 << 30
if MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > MIN_MEMORY_DISK:
    # Run folders are written through to the disk, thousands of times; in memory that takes no time.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: children too
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores, since some tests wait."""
    return len(os.sched_getaffinity(0)) + 1


def pytest_collection_finish() -> None:
    """What is there by now stays: the collector need not look at it, nor forks copy its pages."""
    gc.freeze()
    gc.enable()


def federation(shape: tuple[int, ...], m: int = 5, classes: int = 3, seed: int = 0) -> Federation:
    """m clients of two kinds and different sizes: the kinds swap the first two classes."""
    rng = np.random.default_rng(seed)
    prototypes = rng.normal(size=(classes, *shape))
    xs, ys = [], []
    for i in range(m):
        y = np.arange(12 + 5 * i) % classes
        swapped = np.where(y < 2, 1 - y, y) if i % 2 else y
        xs.append((prototypes[swapped] + 0.3 * rng.normal(size=(len(y), *shape))).astype("f4"))
        ys.append(y)
    return wecfl.Federation.from_arrays(xs, ys, groups=np.arange(m) % 2, seed=seed)


@pytest.fixture(scope="session")
def fed() -> Federation:
    """Five clients of two kinds, six features, three classes."""
    return federation((6,))


@pytest.fixture(scope="session")
def images() -> Federation:
    """Five clients of two kinds, pictures of two channels, three classes."""
    return federation((2, 6, 6))


@pytest.fixture(name="wecfl")
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> "Wecfl":
    """Run a command in an empty folder, in this process."""
    from helpers import Outcome

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WECFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*tokens: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["wecfl", *map(str, tokens)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Every test ends the workers it began."""
    from helpers import workers

    before = workers()
    yield
    assert workers() == before
