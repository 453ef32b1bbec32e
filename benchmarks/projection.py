"""The E-step of WeCFL with and without a random projection of what clients are compared by.

1,000 clients hold random models of the CIFAR-10 CNN around ten centers, as far from them as a
center is from another. In processor time of one thread, in turns; memory is what Python and NumPy
hold at the peak of the step beyond the models, in a step of its own.
"""

from __future__ import annotations

import tracemalloc
from time import process_time
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from common import SETTINGS, Line, main
from wecfl import methods
from wecfl.bilevel.objectives import F
from wecfl.bilevel.representation import Columns
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import expectation
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.models import build, layout_of

SETTING = SETTINGS[0]
K = 10


def lines(clients: int = 1000, project: int = 64, repeats: int = 3, seed: int = 0) -> list[Line]:
    """Seconds, memory and ARI of each representation, whole and projected."""
    model = build("cnn-cifar", shape=SETTING.shape, classes=10, seed=seed)
    draws, layout = np.random.default_rng(seed), layout_of(model)
    centers = draws.standard_normal((K, layout.width), np.float32)
    groups = np.arange(clients) % K
    models = draws.standard_normal((clients, layout.width), np.float32)
    models += centers[groups]
    engine: Any = SimpleNamespace(layout=layout, sizes=draws.integers(20, 500, clients))
    before = State(1, {"model": models}, centers[:1].repeat(K, axis=0), np.zeros(clients, np.int64))
    found = []
    for which in ("head", "linear", "parameters"):
        ways = {"whole": None, f"{project} numbers": project}
        settings = {
            name: Setting(
                methods.wecfl(K).replace(representation=Columns(which, width)),
                engine, LocalPlan(), seed,
            )
            for name, width in ways.items()
        }  # fmt: skip
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        of_f: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(repeats):
            for name, setting in settings.items():
                began = process_time()
                after = expectation(before, setting)
                seconds[name].append(process_time() - began)
                began = process_time()
                F(after, setting.method, engine, seed)
                of_f[name].append(process_time() - began)
        for name, setting in settings.items():
            tracemalloc.start()
            after = expectation(before, setting)
            peak = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            ari = adjusted_rand_score(groups, after.labels)
            title = f"{which}, {Columns(which).width(layout):,} columns, {name}"
            found += [
                Line(f"E-step, {title}", SETTING.title, seconds[name], unit="s"),
                Line(f"F after it, {title}", SETTING.title, of_f[name], unit="s"),
                Line(
                    f"peak of E, {title}", SETTING.title, [peak], unit="MB", detail=f"ARI {ari:.3f}"
                ),
            ]
    return found


if __name__ == "__main__":
    main(lines)
