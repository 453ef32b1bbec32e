"""Peak resident memory of a run, by method, each in a process of its own.

First the paper's experiment, WeCFL with 200 clients on CIFAR-10: the images are held once, as
float32 (0.74 GB); random ones unless `--data-dir` is given. R is measured, as `wecfl run` does by
default.

Then FedAvg, WeCFL (K = 10) and Ditto with `--clients` clients and the same CNN, who hold 32 random
training samples and 8 for testing of a common pool and take one step a round, without R, as in
`growth.py`. What a method keeps for its clients is what sets the three apart: by default momentum,
and with Ditto a personal model and its momentum too. With `--clients 10000` a matrix of m × P is
2.48 GB, and Ditto's state alone is three of them: mind the memory of the machine.
"""

from __future__ import annotations

from common import (
    SETTINGS,
    Line,
    clients_of_a_pool,
    in_a_fresh_process,
    main,
    paper,
    peak_memory,
)
from wecfl import Measure, Plan, methods, run, run_config
from wecfl.core.method import Method

SETTING = SETTINGS[0]
METHODS = ("fedavg", "wecfl", "ditto")


def lines(rounds: int = 3, clients: int = 200, data_dir: str = "") -> list[Line]:
    """The paper's experiment, and one figure for each method."""
    data, peak = in_a_fresh_process(_run, rounds, data_dir)
    images = f"{data:.2f} GB of {'real' if data_dir else 'random'} images among it"
    found = [
        Line("peak memory, 200 clients", SETTING.title, [peak], most=1.5, unit="GB", detail=images)
    ]
    for name in METHODS:
        matrix, kept, peak = in_a_fresh_process(_pool, name, rounds, clients)
        detail = f"m × P is {matrix:.3g} GB; the state at the end is {kept:.3g} GB"
        work = f"peak memory, {name}, {clients:,} clients of a pool"
        found.append(Line(work, SETTING.title, [peak], unit="GB", detail=detail))
    return found


def _run(rounds: int, data_dir: str) -> tuple[float, float]:
    """GB of images, and of the whole process at its peak."""
    config, fed = paper(SETTING, data_dir)
    run_config(config.model_copy(update={"rounds": rounds, "objectives": True}), fed)
    return fed.x.nbytes / 1e9, peak_memory()


def _pool(name: str, rounds: int, clients: int) -> tuple[float, float, float]:
    """GB of a model for each client, of the state at the end, and of the process at its peak."""
    fed = clients_of_a_pool(SETTING.shape, clients, train=32, test=8)
    made: dict[str, Method] = {
        "fedavg": methods.fedavg, "wecfl": methods.wecfl(k=10), "ditto": methods.ditto(),
    }  # fmt: skip
    result = run(
        fed, made[name], rounds=rounds, plan=Plan(steps=1), measure=Measure(objectives=False)
    )
    [state] = result.states
    matrix = clients * state.centers.shape[1] * state.centers.itemsize
    tables = (state.memory, state.cluster, state.known, state.whole)
    held = sum(array.nbytes for table in tables for array in table.values()) + state.centers.nbytes
    return matrix / 1e9, held / 1e9, peak_memory()


if __name__ == "__main__":
    main(lines)
