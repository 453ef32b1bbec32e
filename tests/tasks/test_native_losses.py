"""The native engine's losses beside autograd in double precision, and where torch takes over."""

import logging
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import wecfl
from wecfl import Federation, methods
from wecfl.bilevel.evaluation import gradients
from wecfl.engine import NativeEngine, TorchEngine
from wecfl.engine.native import instruction_sets
from wecfl.models import build, row_of
from wecfl.tasks import Classification, Regression

TASKS: list[Any] = [
    Classification(),
    Classification(weights=(0.5, 1.0, 4.0)),
    Classification(smoothing=0.3),
    Classification(weights=(2.0, 0.0, 1.0), smoothing=0.1),
    Regression(),
]


def federation(task: Any, outputs: int = 3) -> Federation:
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 4)).astype(np.float32) for n in (37, 20, 11)]
    if isinstance(task, Regression):
        return Federation.from_arrays(xs, [rng.normal(size=(len(x), outputs)) for x in xs])
    return Federation.from_arrays(
        xs, [rng.integers(0, outputs, len(x)) for x in xs], classes=outputs
    )


@pytest.mark.parametrize("isa", instruction_sets())
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_gradients_are_those_of_autograd_in_double_precision(task: Any, isa: str) -> None:
    held = federation(task)
    model = build("mlp", shape=(4,), classes=3, seed=1)
    with NativeEngine(held, model, task=task, isa=isa, workers=1) as engine:
        ready, data = engine.task, task.fit(held)[1]
        found = gradients(engine, np.repeat(row_of(model)[None], 3, axis=0))
    for client, rows in enumerate(data.train):
        exact = deepcopy(model).double()
        y = torch.from_numpy(data.y[rows])
        loss = ready.objective(exact(torch.from_numpy(data.x[rows]).double()), y)
        each = torch.autograd.grad(loss, list(exact.parameters()))
        expected = np.concatenate([gradient.numpy().ravel() for gradient in each])
        np.testing.assert_allclose(found[client], expected, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_both_engines_train_alike(task: Any) -> None:
    held = federation(task)
    results = [
        wecfl.run(held, methods.fedavg, task=task, engine=name, rounds=3, model="mlp",
                  plan=wecfl.Plan(lr=0.05))
        for name in ("native", "torch")
    ]  # fmt: skip
    assert results[0].engine.startswith("native")
    np.testing.assert_allclose(results[0].centers, results[1].centers, rtol=1e-3, atol=1e-5)
    assert results[0].records[-1]["R_estimate"]["D"] == pytest.approx(
        results[1].records[-1]["R_estimate"]["D"], rel=1e-4
    )


@pytest.mark.parametrize("task", [Classification(gamma=2.0), Regression("mae")], ids=str)
def test_auto_says_in_one_line_that_torch_computes_the_loss(
    task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "wecfl"), wecfl.make_engine(
        "auto", federation(task), build("mlp", shape=(4,), classes=3), task=task, workers=1
    ) as engine:  # fmt: skip
        assert isinstance(engine, TorchEngine)
    (line,) = caplog.messages
    assert "torch" in line and task.name in line and "\n" not in line
