"""Growth: seconds of a client's round with 100, 1,000 and 10,000 clients, and the memory it takes.

WeCFL (K = 10) with the CIFAR-10 CNN (62,006 parameters) through `wecfl.run`. Every client holds 32
random training samples and 8 for testing from a common pool and takes `--steps` batches of 32 a
round. Each size runs in a process of its own; the first round warms up, and the others count by
their median. Less time per client in a larger federation is no fault.
"""

from __future__ import annotations

from statistics import median
from time import perf_counter

import numpy as np

from common import SETTINGS, Line, clients_of_a_pool, in_a_fresh_process, main, peak_memory
from wecfl import Measure, Plan, methods, run

SETTING = SETTINGS[0]
ROUNDS_OF = {100: 21, 1_000: 6, 10_000: 3}
"""Clients ↦ rounds: small federations are quick and need more rounds for a steady figure."""


def lines(steps: int = 5) -> list[Line]:
    """Time per client against that of 100 clients, and the largest peak memory."""
    found = {m: in_a_fresh_process(_run, m, rounds, steps) for m, rounds in ROUNDS_OF.items()}
    smallest, *_, largest = ROUNDS_OF
    base = median(found[smallest][0])
    result = [
        Line(
            f"growth, time per client, {m:,} ÷ {smallest} clients",
            SETTING.title,
            [seconds / base for seconds in found[m][0]],
            most=1.1 if m > smallest else None,
            detail=f"{1e3 * median(found[m][0]):.2f} ms per client and round",
        )
        for m in ROUNDS_OF
    ]
    peak = [found[largest][1]]
    return [
        *result,
        Line(f"peak memory, {largest:,} clients", SETTING.title, peak, most=6, unit="GB"),
    ]


def _run(clients: int, rounds: int, steps: int) -> tuple[list[float], float]:
    """Seconds per client of each round, and the peak memory in GB."""
    fed = clients_of_a_pool(SETTING.shape, clients, train=32, test=8)
    times = [perf_counter()]
    run(
        fed,
        methods.wecfl(k=10),
        rounds=rounds,
        plan=Plan(steps=steps),
        measure=Measure(objectives=False),
        watch=[lambda *_: times.append(perf_counter())],
    )
    return [seconds / clients for seconds in np.diff(times)[1:].tolist()], peak_memory()


if __name__ == "__main__":
    main(lines)
