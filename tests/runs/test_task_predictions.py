"""Predictions, a loaded result and the verdict follow the task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wecfl
from wecfl import Federation, methods
from wecfl.errors import ConfigError
from wecfl.tasks import Binary, MultiLabel, Regression

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
TARGETS: dict[str, tuple[Any, Any]] = {
    "regression": (Regression(), X[:, 0]),
    "binary": (Binary(), (X[:, 0] > 0).astype(int)),
    "multi-label": (MultiLabel(), (X[:, :2] > 0).astype(int)),
}


@pytest.mark.parametrize("name", TARGETS)
def test_predictions_are_those_of_the_outputs(name: str, tmp_path: Path) -> None:
    task, y = TARGETS[name]
    fed = Federation.from_arrays([X, X], [y, y])
    result = wecfl.run(
        fed, methods.fedavg, model="logistic", task=task, rounds=2, folder=tmp_path / "run"
    )
    with torch.no_grad():
        outputs = result.model(cluster=0)(torch.tensor(X)).numpy()
    expected = {"regression": outputs[:, 0], "binary": outputs[:, 0] >= 0}.get(name, outputs >= 0)
    loaded = wecfl.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.predict(X, cluster=0), expected, rtol=1e-6)
    if name == "regression":
        with pytest.raises(ConfigError, match="no probabilities"):
            loaded.predict_proba(X, cluster=0)
        return
    shares = loaded.predict_proba(X, cluster=0)
    yes = 1 / (1 + np.exp(-outputs))
    np.testing.assert_allclose(shares[:, -1], yes[:, -1], rtol=1e-5)


def test_a_low_error_is_the_better_one() -> None:
    fed = Federation.from_arrays([X, X], [X[:, 0], -X[:, 0]])
    plan = wecfl.Plan(lr=0.1)
    one, own = (
        wecfl.run(fed, method, model="logistic", rounds=10, plan=plan)
        for method in (methods.fedavg, methods.wecfl(k=2))
    )
    [found] = wecfl.verdict([own, one])
    assert found.score == "rmse" and found.better == {"fedavg": 2}
    assert "RMSE of the worst decile" in str(found) and "as well or better" not in str(found)
