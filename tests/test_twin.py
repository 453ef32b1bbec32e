"""The library against the naive twin, method by method."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from torch import nn

import wecfl
from fuzzing import in_turns
from helpers import run_flat
from twin import twin
from wecfl.core.plan import LocalPlan
from wecfl.models import build, reinitialized


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 10),
    )  # fmt: skip


METHODS = {
    "fedavg": (wecfl.methods.fedavg, 1, 0.0),
    "fedprox": (wecfl.methods.fedprox(0.95), 1, 0.95),
    "ifca": (wecfl.methods.ifca(3), 3, 0.0),
    "fesem": (wecfl.methods.fesem(3), 3, 0.0),
    "wecfl": (wecfl.methods.wecfl(3), 3, 0.0),
    "pulled wecfl": (wecfl.methods.wecfl(3, pull=0.95), 3, 0.95),
}


SEED, ROUNDS = 3, 4


@cache
def federation() -> wecfl.Federation:
    partition = wecfl.partitions.ClusterwiseNClass((4, 4), groups=3)
    return wecfl.Federation.from_dataset("digits", partition, clients=9, seed=SEED)


def start(architecture: str) -> nn.Module:
    # The same CNN each time: of some thousand starts, one lets float error flip a ReLU. Start 0
    # does so for IFCA in torch on processors with AVX-512.
    if architecture == "cnn":
        return reinitialized(cnn(), SEED, 7)
    return build("mlp", shape=(1, 8, 8), classes=10, seed=SEED)


@cache
def twins(name: str, architecture: str) -> tuple[Any, list[nn.Module]]:
    """What the twin comes to, which is slow, for both engines."""
    _, k, mu = METHODS[name]
    given = start(architecture)
    inits = [given, *(reinitialized(given, SEED, j) for j in range(1, k))]
    plan = LocalPlan(steps=7, batch=16, lr=0.05)
    return twin(
        name.removeprefix("pulled "), federation(), inits, plan, rounds=ROUNDS, seed=SEED, mu=mu,
        common=name.startswith("pulled"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "architecture", "engine"),
    in_turns(product(METHODS, ["mlp", "cnn"], ["native", "torch"]), turn=0),
)
def test_same_assignments_and_models_as_the_twin(name: str, architecture: str, engine: Any) -> None:
    method, given = METHODS[name][0], start(architecture)
    labels, clients = twins(name, architecture)
    result = run_flat(
        federation(), method, model=given, rounds=ROUNDS, steps=7, batch=16, lr=0.05, seed=SEED,
        workers=2, engine=engine,
    )  # fmt: skip

    assert adjusted_rand_score(labels, result.labels) == 1.0
    moved = max(np.abs(wecfl.models.row_of(c) - wecfl.models.row_of(given)).max() for c in clients)
    for i, client in enumerate(clients):
        ours, theirs = (wecfl.models.row_of(m) for m in (result.model(client=i), client))
        np.testing.assert_allclose(ours, theirs, atol=1e-4 * moved, err_msg=f"client {i}")


EPS = (0.6, 0.9)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("name", ["cfl", "flhc"])
def test_methods_whose_k_grows_do_as_the_twin(name: str, engine: Any) -> None:
    """Three groups that permute the labels: CFL has to part clusters twice."""
    seed, rounds = 0, 9
    partition = wecfl.partitions.ClusterwisePermuted(groups=3)
    fed = wecfl.Federation.from_dataset("digits", partition, clients=12, seed=seed)
    given = build("mlp", shape=(1, 8, 8), classes=10, seed=seed)
    plan = LocalPlan(steps=7, batch=16, lr=0.05)
    labels, clients = twin(name, fed, [given], plan, rounds=rounds, seed=seed, mu=0.0, eps=EPS)
    method = wecfl.methods.cfl(eps1=EPS[0], eps2=EPS[1]) if name == "cfl" else wecfl.methods.flhc()
    result = run_flat(
        fed, method, model=given, rounds=rounds, steps=7, batch=16, lr=0.05, seed=seed,
        workers=2, engine=engine,
    )  # fmt: skip
    assert adjusted_rand_score(labels, result.labels) == 1.0
    assert result.records[-1]["clusters"] == 3
    assert result.records[-1]["ari"] == 1.0
    for i, client in enumerate(clients):
        ours, theirs = (wecfl.models.row_of(m) for m in (result.model(client=i), client))
        np.testing.assert_allclose(ours, theirs, atol=1e-3, err_msg=f"client {i}")
