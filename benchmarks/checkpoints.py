"""What checkpoints cost: a round of the paper's experiment with one in every round, and with none.

200 clients, 10 batches of 32 each, WeCFL with K = 10 on random images, with momentum that clients
keep and that a checkpoint therefore holds. A checkpoint is written while the next round trains. The
two kinds of runs take turns; a figure is the median of the ratios of neighbours. Rounds after the
second count.
"""

from __future__ import annotations

from os import getloadavg
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

import numpy as np

from common import SETTINGS, Line, Setting, main, paper, ratios
from wecfl import Config, Federation, run_config

NEVER = 1_000
"""Rounds between checkpoints: more than there are, so that one is written at the end."""


def lines(turns: int = 3, rounds: int = 8, clients: int = 200) -> list[Line]:
    """Wall time and CPU-seconds of both experiments, and the bytes of a checkpoint."""
    return [line for setting in SETTINGS for line in _lines(setting, turns, rounds, clients)]


def _lines(setting: Setting, turns: int, rounds: int, clients: int) -> list[Line]:
    config, fed = paper(setting)
    fed = fed.subset(range(clients))
    config = config.model_copy(update={"rounds": rounds})
    _run(config, fed, 1)  # warms up
    pairs = [(_run(config, fed, 1), _run(config, fed, NEVER)) for _ in range(turns)]
    found = []
    for clock, name in enumerate(("time", "CPU-seconds")):
        with_one, without = (
            [float(taken[clock]) for taken, _ in runs] for runs in zip(*pairs, strict=True)
        )
        seconds = f"{median(with_one):.2f} s and {median(without):.2f} s"
        load = f"load {getloadavg()[0]:.0f}"
        found.append(
            Line(
                f"round, {name}, with a checkpoint ÷ without",
                setting.title,
                ratios(with_one, without),
                detail=f"{seconds}; {load}",
            )
        )
    size = pairs[0][0][1] / 1e6
    return [*found, Line("a checkpoint", setting.title, [size], unit="MB")]


def _run(config: Config, fed: Federation, every: int) -> tuple[np.ndarray, int]:
    """Wall time and CPU-seconds of a round, and the bytes of the last checkpoint."""
    times: list[np.ndarray] = []
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        config = config.model_copy(update={"checkpoint_every": every})
        run_config(config, fed, out=folder, watch=[lambda *_: times.append(_clocks())])
        size = sum(file.stat().st_size for file in folder.glob(f"checkpoints/*{config.rounds}.*"))
    return (times[-1] - times[1]) / (len(times) - 2), size


def _clocks() -> np.ndarray:
    return np.array([perf_counter(), process_time()])


if __name__ == "__main__":
    main(lines)
