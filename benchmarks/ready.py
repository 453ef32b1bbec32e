"""From a fresh clone to the first result: the build, `make run`, the start of a job, help.

The native engine is built by CMake in a folder of its own, in CPU-seconds of all its processes.
`make run` is called in a clone of this repository's last commit, with the packages in pip's cache.
The start of a job is the time from calling `wecfl run` until its folder has the record of the first
round; `wecfl run --rounds 1` is all of a run. These and `wecfl --help` are medians of `--turns`
processes, in wall time.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

from common import Line, main

ROOT = Path(__file__).parent.parent
WECFL = Path(sys.executable).parent / "wecfl"


def lines(turns: int = 5) -> list[Line]:
    """Each figure with its goal."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        cpu, wall = _build(place / "build")
        _seconds("git", "clone", "--quiet", ROOT, place / "clone")
        installed = _seconds("make", "-C", place / "clone", "run")
        runs = [_run(place / f"run-{turn}") for turn in range(turns)]
        helped = [_seconds(WECFL, "--help") for _ in range(turns)]
    return [
        Line("native build, CPU-seconds", "", [cpu], most=60, unit="s", detail=f"{wall:.0f} s"),
        Line("`make run` in a fresh clone", "digits", [installed], most=100, unit="s"),
        Line("the start of a job", "digits", [start for start, _ in runs], most=3, unit="s"),
        Line("`wecfl run --rounds 1`", "digits", [whole for _, whole in runs], unit="s"),
        Line("`wecfl --help`", "", helped, most=0.3, unit="s"),
    ]


def _build(place: Path) -> tuple[float, float]:
    """CPU-seconds and seconds of the build as pip makes it, with a process per core."""
    before, began = _used(), perf_counter()
    python = f"-DPython_EXECUTABLE={sys.executable}"
    release = "-DCMAKE_BUILD_TYPE=Release"
    _seconds("cmake", "-S", ROOT / "native", "-B", place, release, python)
    _seconds("cmake", "--build", place, "--parallel", os.cpu_count() or 1)
    return _used() - before, perf_counter() - began


def _run(folder: Path) -> tuple[float, float]:
    """Seconds until the first round is on record, and until the run has ended."""
    records, began = folder / "metrics.jsonl", perf_counter()
    command = [str(WECFL), "run", "--rounds", "1", "--out", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while run.poll() is None and not (records.exists() and records.stat().st_size):
            sleep(0.005)
        start = perf_counter() - began
        if run.wait():
            raise RuntimeError(f"{' '.join(command)} ended with exit code {run.returncode}")
    return start, perf_counter() - began


def _used() -> float:
    """CPU-seconds of the processes that were started and have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def _seconds(*command: object) -> float:
    """Of a command, which must succeed."""
    began = perf_counter()
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    return perf_counter() - began


if __name__ == "__main__":
    main(lines)
