"""Clients that are not tested: they train like all others, and their scores are unknown."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import wecfl
from fuzzing import in_turns
from helpers import method_named
from wecfl.data.federation import Federation
from wecfl.methods import METHODS

if TYPE_CHECKING:
    from helpers import Wecfl

SIZES = (12, 1, 15, 9)


def small(test: float = 0.2) -> Federation:
    """Four clients, the second of one sample."""
    rng = np.random.default_rng(0)
    ys = [np.arange(n) % 3 for n in SIZES]
    xs = [(np.eye(3, 6)[y] + rng.normal(0, 0.2, (len(y), 6))).astype(np.float32) for y in ys]
    return Federation.from_arrays(xs, ys, test=test)


def quick(fed: Federation, name: str, engine: Any = "auto") -> Any:
    return wecfl.run(
        fed, method_named(name, 2), model="mlp", rounds=2, plan=wecfl.Plan(steps=2, batch=8),
        engine=wecfl.Compute(engine, workers=1),
    )  # fmt: skip


@pytest.mark.parametrize("name", in_turns(METHODS, 2))
def test_one_sample_is_enough_to_train(name: str) -> None:
    fed = small()
    assert [len(rows) for rows in fed.train] == [10, 1, 12, 7]
    result = quick(fed, name)
    scores = result.clients["accuracy"]
    assert scores.isna().tolist() == [False, True, False, False]
    known = scores.drop(1).astype(float)
    mean = np.average(known, weights=fed.sizes[[0, 2, 3]])
    assert result.history["accuracy"].iloc[-1] == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_nobody_is_tested(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    fed = small(test=0)
    assert fed.sizes.tolist() == list(SIZES)
    with caplog.at_level(logging.WARNING, "wecfl"):
        result = quick(fed, "wecfl", engine)
    assert "no scores" in caplog.text
    assert result.summary["accuracy"] is None
    assert result.clients["accuracy"].isna().all()
    assert "accuracy" not in repr(result)
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    assert result.assign(x, y).cluster in (0, 1)
    assert result.assign(x, y, by="losses").limit is None


@pytest.mark.parametrize("engine", ["native", "torch"])
def test_newcomers_are_compared_with_those_who_were_tested(engine: Any) -> None:
    fed = small()
    result = quick(fed, "wecfl", engine)
    usual = result.assigner.reference.usual
    assert usual.loss.shape == usual.distance.shape
    assert np.isfinite(usual.loss).all()
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    assert np.isfinite(result.assign(x, y, by="losses").limit)


def test_from_the_command_line(wecfl: Wecfl) -> None:
    flags = ["--clients", "6", "--groups", "2", "--clusters", "2", "--rounds", "2", "--steps", "2"]
    rng = np.random.default_rng(0)
    np.savez("all.npz", x=rng.normal(size=(120, 5)), y=np.arange(120) % 3)
    code, out, err = wecfl(
        "run",
        "--dataset",
        "all.npz",
        "--holdout",
        "0",
        "--out",
        "run",
        "--newcomers",
        "0.2",
        *flags,
    )
    assert code == 0, err
    assert "accuracy unknown" in out
    assert wecfl("report", "run").code == 0
    assert Path("run/page.html").exists()
