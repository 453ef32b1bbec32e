"""A fleet: what a round costs with a million registered clients, and with ten thousand.

`--active` clients take part in a round, in turns. Each holds 24 training samples of one of ten
groups, which differ in the means of their classes; they are made when the client is asked. WeCFL
with K = 10 and with K chosen by the server, with momentum that clients keep. Each case is a process
of its own with one worker; seconds are those of the processor, and rounds after the first count.

With `--apart labels` all groups have the same means, but call the classes by other names, so that
no one model serves two of them. By default one model can learn all groups.

With `--rounds 0` the larger fleet trains until each of its clients took part once, and the smaller
one for as many rounds. Then clients keep no momentum, which nobody would use a second time.

The figures are the ratios of both fleets, in memory at the peak and in seconds per round, and the
ARI of clusters and groups over all that were heard.
"""

from __future__ import annotations

from os import getloadavg
from statistics import median
from time import process_time
from typing import Any

import numpy as np

from common import Line, in_a_fresh_process, main, peak_memory
from wecfl import Compute, Fleet, Plan, methods, run_fleet

SHAPES = {"mlp": (64,), "cnn-cifar": (3, 32, 32)}
GROUPS, CLASSES, SAMPLES = 10, 10, 30
RATES = {"mlp": 0.1, "cnn-cifar": 0.02}


def lines(
    rounds: int = 6,
    active: int = 1000,
    few: int = 10_000,
    many: int = 1_000_000,
    *,
    model: str = "mlp",
    apart: str = "means",
) -> list[Line]:
    """Three figures for K = 10 and for K auto."""
    found = []
    for k in (10, "auto"):
        small, large = (
            in_a_fresh_process(
                _run,
                registered,
                k,
                rounds or -(-many // active),
                active,
                model,
                apart=apart,
                keep_momentum=rounds > 0,
            )
            for registered in (few, many)
        )
        memory, seconds = large["memory"] / small["memory"], large["seconds"] / small["seconds"]
        load = f"load {getloadavg()[0]:.0f}"
        detail = f"{small['memory']:.2f} and {large['memory']:.2f} GB; {load}"
        times = f"{small['seconds']:.2f} and {large['seconds']:.2f} s"
        groups = (
            f"{large['heard']:,} heard, {large['clusters']} clusters; {small['ari']:.3f} of {few:,}"
        )
        what = f"{many:,} ÷ {few:,} registered, K = {k}"
        found += [
            Line(f"memory, {what}", model, [memory], most=1.5, detail=detail),
            Line(f"seconds per round, {what}", model, [seconds], most=1.3, detail=times),
            Line(f"ARI, {many:,} registered, K = {k}", model, [large["ari"]], detail=groups),
        ]
    return found


def _run(
    registered: int,
    k: Any,
    rounds: int,
    active: int,
    model: str,
    *,
    apart: str,
    keep_momentum: bool,
) -> dict[str, Any]:
    """What one run needed, and what it found."""
    shape = SHAPES[model]
    means = np.random.default_rng(0).standard_normal((GROUPS, CLASSES, *shape), np.float32)

    def load(number: int) -> tuple[np.ndarray, np.ndarray]:
        draws = np.random.default_rng([1, number])
        y = draws.integers(0, CLASSES, SAMPLES)
        group = number % GROUPS
        x = means[group if apart == "means" else 0][y]
        x = x + draws.standard_normal((SAMPLES, *shape), np.float32)
        return x, y if apart == "means" else (y + group) % CLASSES

    fleet = Fleet(range(registered), load, CLASSES, groups=np.arange(registered) % GROUPS)
    clock = [process_time()]
    result = run_fleet(
        fleet, methods.wecfl(k=k), active=active, model=model, rounds=rounds,
        plan=Plan(lr=RATES[model], keep_momentum=keep_momentum), engine=Compute(workers=1),
        watch=[lambda *_: clock.append(process_time())],
    )  # fmt: skip
    return {
        "memory": peak_memory(),
        "seconds": median(np.diff(clock)[1:]),
        "ari": result.agreement()["ari"],
        "heard": result.records[-1]["heard"],
        "clusters": sum(size > 0 for size in result.records[-1]["sizes"]),
    }


if __name__ == "__main__":
    main(lines)
