"""A loss and metrics of the user's own, in simulation and over a network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Message

import wecfl
from fakegrid import WAITS, FakeGrid, Node
from wecfl import Federation, methods
from wecfl.errors import ConfigError, EngineError
from wecfl.flower.client import client_app
from wecfl.flower.network_task import network_task
from wecfl.flower.server import serve
from wecfl.models import build
from wecfl.tasks import (
    Binary,
    Classification,
    Custom,
    Metric,
    Regression,
    described,
    parsed,
    register,
)

RNG = np.random.default_rng(0)
XS = [RNG.normal(size=(20, 3)).astype(np.float32) for _ in range(4)]
YS = [(x @ [1.0, -1.0, 2.0] * (-1) ** i).astype(np.float32) for i, x in enumerate(XS)]
QUICK: dict[str, Any] = {"rounds": 3, "model": "logistic", "plan": wecfl.Plan(lr=0.05)}


def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As `Regression("mse")` has it."""
    return ((outputs - targets) ** 2).mean(dim=1)


def worst(outputs: Any, targets: Any) -> float:
    return float(np.abs(outputs - targets).max())


OWN = Custom(Regression(), loss=squares, metrics=(Metric("worst", worst, better="lower"),))


def test_a_loss_of_ones_own_trains_as_the_same_loss_does() -> None:
    held = Federation.from_arrays(XS, YS)
    own = wecfl.run(held, methods.wecfl(k=2), task=OWN, **QUICK)
    known = wecfl.run(held, methods.wecfl(k=2), task=Regression(), engine="torch", **QUICK)
    np.testing.assert_allclose(own.centers, known.centers, rtol=1e-5, atol=1e-6)
    assert own.records[-1]["R_estimate"]["D"] == pytest.approx(
        known.records[-1]["R_estimate"]["D"], rel=1e-5
    )
    assert own.engine == "torch"


def test_a_metric_of_ones_own_is_the_headline_and_runs_on_any_engine() -> None:
    held = Federation.from_arrays(XS, YS)
    task = Custom(Regression(), metrics=OWN.metrics)
    result = wecfl.run(held, methods.fedavg, task=task, **QUICK)
    assert result.engine.startswith("native")
    assert result.summary["scores"] == {
        "worst": "lower", "rmse": "lower", "r2": "higher", "mae": "lower"
    }  # fmt: skip
    model = result.model(client=2)
    outputs = model(torch.from_numpy(held.x[held.test[2]])).detach().numpy()
    expected = np.abs(outputs[:, 0] - held.y[held.test[2]]).max()
    assert result.clients["worst"][2] == pytest.approx(expected, rel=1e-5)
    last = result.records[-1]
    assert last["worst_decile"] == pytest.approx(max(last["clients"]["worst"]), rel=1e-5)


def test_a_metric_that_is_undefined_for_a_client_is_unknown_there() -> None:
    def picky(outputs: Any, targets: Any) -> float:
        return float("nan") if len(outputs) > 3 else 1.0

    task = Custom(Regression(outputs=1), metrics=(Metric("picky", picky),))
    tally = task.tally(np.zeros((8, 1)), np.ones((8, 1)), np.array([0, 0, 0, 1, 1, 1, 1, 1]), 2)
    assert task.scores(tally)["picky"].tolist() == [1.0, pytest.approx(np.nan, nan_ok=True)]


def test_wrong_losses_and_metrics_are_said_in_one_line() -> None:
    held = Federation.from_arrays(XS, YS)
    mean = Custom(Regression(), loss=lambda outputs, targets: squares(outputs, targets).mean())
    with pytest.raises(EngineError, match="one number per sample"):
        wecfl.run(held, methods.fedavg, task=mean, **QUICK)
    with pytest.raises(ConfigError, match="loss or metrics"):
        Custom(Regression())
    with pytest.raises(ConfigError, match="one word"):
        Metric("my metric", worst)
    with pytest.raises(ConfigError, match="code of your own"):
        parsed(described(OWN))


@pytest.mark.parametrize(
    ("task", "classes", "said"),
    [
        (OWN, None, "register"),
        (None, None, "how many classes"),
        ("regression", None, "how many outputs"),
        (Binary(weight="balanced"), None, "balanced"),
        (Classification(weights="balanced"), 3, "balanced"),
        ("regression(outputs=1)", 3, "has no classes"),
    ],
)
def test_what_a_network_can_not_know_is_refused(task: Any, classes: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        network_task(task, classes)


# Over a network


def make_model() -> Any:
    return build("logistic", shape=(3,), classes=1, seed=5)


def nodes(place: Path, task: Any) -> dict[int, Node]:
    def load_data(config: Any) -> Any:
        return XS[int(config["partition-id"])], YS[int(config["partition-id"])]

    app = client_app(load_data, make_model, task=task)
    return {
        i: Node(app, {"client-id": f"c{i}", "partition-id": i, "state-dir": f"{place}/c{i}"})
        for i in range(4)
    }


def serve_all(grid: FakeGrid, out: Path, task: Any, **more: Any) -> Any:
    config = {
        "clients": 4, "rounds": 3, "steps": 10, "lr": 0.05, "clusters": 2, "timeout": 1,
        "enrolment": 0.05, "out": str(out), **more,
    }  # fmt: skip
    return serve(grid, config, make_model, task=task, **WAITS)


def test_a_registered_task_is_the_same_over_a_network_as_in_simulation(tmp_path: Path) -> None:
    task = register("worst_squares", Custom(Regression(outputs=1), squares, OWN.metrics))
    grid = FakeGrid(nodes(tmp_path, task))
    result = serve_all(grid, tmp_path / "run", "worst_squares")
    held = Federation.from_arrays(XS, YS)
    simulated = wecfl.run(
        held, methods.wecfl(k=2), task=task, engine="torch", rounds=3, model=make_model(),
        plan=wecfl.Plan(lr=0.05),
    )  # fmt: skip
    assert result.labels.tolist() == simulated.labels.tolist()
    # Each client draws its own test samples, so only what all were trained on can be compared.
    assert result.summary["scores"] == simulated.summary["scores"]
    assert result.records[-1]["worst"] < result.records[0]["worst"]


def test_another_task_is_refused_and_so_is_an_impossible_tally(tmp_path: Path) -> None:
    task = Regression(outputs=1)
    clients = nodes(tmp_path, task)
    clients[3].app = nodes(tmp_path, Regression("mae", outputs=1))[3].app

    def lie(message: Message) -> Message:
        for record in message.content.array_records.values():
            for name, array in record.items():
                if array.shape == (1, 5):
                    forged = array.numpy().copy()
                    forged[0, 1] = 0.0  # no squared error, but errors
                    record[name] = ArrayRecord([forged])[next(iter(ArrayRecord([forged])))]
        return message

    clients[0].tamper = lie
    result = serve_all(FakeGrid(clients), tmp_path / "run", task, **{"min-clients": 2})
    refused = [
        each for record in result.records for each in record.get("network", {}).get("refused", [])
    ]
    told = dict(refused)
    assert "regression(loss=mae" in told["node 3"]
    assert "contradict" in told["c0"]
    assert result.records[-1]["clients"]["rmse"][0] is None
    assert result.records[-1]["clients"]["rmse"][1] is not None
