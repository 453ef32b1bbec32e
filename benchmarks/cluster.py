"""A whole round of the paper's CIFAR-10 experiment: Ray actors on this machine against threads.

200 clients with 10 batches of 32 each, WeCFL with K = 10. A round is local training, K-means,
averaging, distribution and the test scores of every client. There is one actor or one thread per
core. Both come to the same bits, and their rounds take turns. Ray costs the copying of rows into
its object store and out of it, so its share is larger the less a client trains. What clients keep
(momentum) stays with the actors in a run in memory. A run folder with a checkpoint in every round
needs it here in every round, which are the lines "and what clients keep".

With `--nodes 4` there is a cluster of four nodes on this machine, with one core and one actor each;
they share the cores, so seconds of the processor are what counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
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
from wecfl.engine.ray.cluster import imported
from wecfl.method_from_config import method_of
from wecfl.metrics import accuracy, weighted

SETTING = SETTINGS[0]


def lines(turns: int = 5, data_dir: str = "", nodes: int = 1) -> list[Line]:
    """The cost of a round on Ray, in time and in CPU-seconds of all its processes."""
    actors = nodes if nodes > 1 else cores()
    where = f" on {nodes} nodes" if nodes > 1 else ""
    title = f"round, {actors} Ray actors{where} ÷ {cores()} threads"
    if find_spec("ray") is None:
        return [Line(title, SETTING.title, [], detail="Ray is not installed")]
    config, fed = paper(SETTING, data_dir)
    with engines(nodes, config, fed) as (here, there):
        threads, sharded = (rounds_of(engine, config, fed) for engine in (here, there))
        fetched = rounds_of(there, config, fed, fetch=True)
        rounds = (sharded, fetched, threads)
        used = measure(turns, *(partial(next, each) for each in rounds), clock=_clocks)
        if len({next(each) for each in rounds}) > 1:
            raise RuntimeError("Ray actors and threads don't come to the same bits")
    *ours, theirs = np.array(used).transpose(0, 2, 1)
    return [
        Line(
            f"{title}{kept}{unit}",
            SETTING.title,
            ratios(those[clock].tolist(), theirs[clock].tolist()),
            most=1.15 if nodes == 1 else 1.10,
            detail=f"{median(those[clock]):.2f} s and {median(theirs[clock]):.2f} s",
        )
        for those, kept in zip(ours, ("", ", and what clients keep"), strict=True)
        for clock, unit in enumerate(("", ", CPU-seconds"))
    ]


@contextmanager
def engines(nodes: int, config: Config, fed: Federation) -> Iterator[tuple[BaseEngine, BaseEngine]]:
    """The engine of threads on this machine, and that of Ray actors on so many nodes."""
    options = {"batchnorm": config.batchnorm, "batch": config.batch}
    model = module_of(SETTING)
    with (
        cluster_of(nodes) as address,
        make_engine("native", fed, model, **options) as here,
        make_engine("ray", fed, model, address=address, **options) as there,
    ):
        yield here, there


@contextmanager
def cluster_of(nodes: int) -> Iterator[str | None]:
    """The address of a cluster of so many nodes on this machine; None for one, the engine's own."""
    if nodes == 1:
        yield None
        return
    ray = imported()
    from ray.cluster_utils import Cluster  # noqa: PLC0415  (Ray is an extra)

    cluster = Cluster(True, head_node_args={"num_cpus": 1})
    for _ in range(nodes - 1):
        cluster.add_node(num_cpus=1)
    ray.init(cluster.address, log_to_driver=False, logging_level="warning")
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def _clocks() -> np.ndarray:
    """The wall clock, and the CPU clock of all processes."""
    return np.array([perf_counter(), cpu_seconds()])


def rounds_of(
    engine: BaseEngine, config: Config, fed: Federation, *, fetch: bool = False
) -> Iterator[tuple[float, bytes]]:
    """Yield the mean test accuracy and the centers, round after round.

    With `fetch`, what clients keep is read in every round.
    """
    plan = LocalPlan(config.steps, config.batch, float(config.lr), config.momentum)
    setting = Setting(method_of(config), engine, plan, config.seed)
    for state in iterate(setting, opening(setting)):
        score = weighted(accuracy(evaluation.tallies(engine, state.models, "test")), fed.sizes)
        if fetch:
            dict(state.memory)
        yield score, state.centers.tobytes()


if __name__ == "__main__":
    main(lines)
