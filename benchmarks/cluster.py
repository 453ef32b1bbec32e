"""A whole round of the paper's CIFAR-10 experiment: Ray actors on this machine against threads.

200 clients with 10 batches of 32 each, WeCFL with K = 10. A round is local training, K-means,
averaging, distribution and the test scores of every client. There is one actor or one thread per
core. Both come to the same bits, and their rounds take turns. Ray costs the copying of rows into
its object store and out of it, so its share is larger the less a client trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from statistics import median
from time import perf_counter

import numpy as np

from common import SETTINGS, Line, cpu_seconds, main, measure, module_of, paper, ratios
from wecfl import Config, Federation, make_engine
from wecfl.bilevel import evaluation
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.engine.hardware import cores
from wecfl.engine.local import BaseEngine
from wecfl.from_config import method_of
from wecfl.metrics import accuracy, weighted

SETTING = SETTINGS[0]


def lines(turns: int = 5, data_dir: str = "") -> list[Line]:
    """The cost of a round on Ray, in time and in CPU-seconds of all its processes."""
    title = f"round, {cores()} Ray actors ÷ {cores()} threads"
    if find_spec("ray") is None:
        return [Line(title, SETTING.title, [], detail="Ray is not installed")]
    config, fed = paper(SETTING, data_dir)
    options = {"batchnorm": config.batchnorm, "batch": config.batch}
    model = module_of(SETTING)
    with (
        make_engine("native", fed, model, **options) as here,
        make_engine("ray", fed, model, **options) as there,
    ):
        threads, actors = (_rounds(engine, config, fed) for engine in (here, there))
        used = measure(turns, lambda: next(actors), lambda: next(threads), clock=_clocks)
        if next(actors) != next(threads):
            raise RuntimeError("Ray actors and threads don't come to the same bits")
    ours, theirs = np.array(used).transpose(0, 2, 1)
    return [
        Line(
            name,
            SETTING.title,
            ratios(ours[clock].tolist(), theirs[clock].tolist()),
            most=1.15,
            detail=f"{median(ours[clock]):.2f} s and {median(theirs[clock]):.2f} s",
        )
        for clock, name in enumerate((title, "the same, CPU-seconds"))
    ]


def _clocks() -> np.ndarray:
    """The wall clock, and the CPU clock of all processes."""
    return np.array([perf_counter(), cpu_seconds()])


def _rounds(engine: BaseEngine, config: Config, fed: Federation) -> Iterator[tuple[float, bytes]]:
    """Yield the mean test accuracy and the centers, round after round."""
    plan = LocalPlan(config.steps, config.batch, float(config.lr), config.momentum)
    setting = Setting(method_of(config), engine, plan, config.seed)
    for state in iterate(setting, opening(setting)):
        score = weighted(accuracy(evaluation.tallies(engine, state.models, "test")), fed.sizes)
        yield score, state.centers.tobytes()


if __name__ == "__main__":
    main(lines)
