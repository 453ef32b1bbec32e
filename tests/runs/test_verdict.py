"""The verdict: the counts are those of a loop over the clients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wecfl
from wecfl import methods
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.runs.result import Result


@pytest.fixture(scope="module")
def clients() -> Federation:
    """Twelve clients of two kinds, which swap two classes; the last has no test samples."""
    rng = np.random.default_rng(0)
    ys = [np.arange(30) % 3 if i < 11 else np.array([0]) for i in range(12)]
    truth = [np.where(y < 2, 1 - y, y) if i % 2 else y for i, y in enumerate(ys)]
    xs = [np.eye(3, 5)[t] + rng.normal(0, 0.7, (len(t), 5)) for t in truth]
    return Federation.from_arrays([x.astype(np.float32) for x in xs], ys)


@pytest.fixture(scope="module")
def results(clients: Federation) -> dict[str, Result]:
    chosen = (methods.wecfl(k=2), methods.local(), methods.fedavg, methods.fedavg_ft())
    plan = wecfl.Plan(lr=0.1, steps=5)
    return {
        each.name: wecfl.run(clients, each, model="logistic", rounds=5, plan=plan)
        for each in chosen
    }


def naive(result: Result) -> list[float | None]:
    """For each client the mean of its scores in the last three rounds."""
    last = [record["clients"]["accuracy"] for record in result.records[-3:]]
    return [None if None in each else sum(each) / 3 for each in zip(*last, strict=True)]


def test_it_counts_clients(results: dict[str, Result], clients: Federation) -> None:
    [found] = wecfl.verdict(list(results.values()))
    mine = naive(results["wecfl"])
    assert (found.method, found.clients) == ("wecfl", 11)
    for name in ("fedavg", "local", "fedavg-ft"):
        pairs: Any = [
            (a, b) for a, b in zip(mine, naive(results[name]), strict=True) if a is not None
        ]
        assert found.better[name] == sum(a > b + 1e-9 for a, b in pairs)
        assert found.alike[name] == sum(abs(a - b) <= 1e-9 for a, b in pairs)
        assert found.worst_decile[name] == results[name].summary["worst_decile"]
        expected = sum(n * b for n, (_, b) in zip(clients.sizes[:11], pairs, strict=True))
        assert found.mean[name] == pytest.approx(expected / clients.sizes[:11].sum())
    assert found.better["fedavg"] > 6, "swapped classes can't be served by one model"
    assert f"serves {found.better['fedavg']} of 11 clients better than one model" in str(found)
    assert "\n" not in str(found)


def test_a_baseline_that_does_as_well_is_named(results: dict[str, Result]) -> None:
    one = results["fedavg"]
    [better] = wecfl.verdict([one, results["wecfl"]])
    assert better.mean["wecfl"] > better.mean["fedavg"]
    assert "as well or better" not in str(better)
    alike = replace(one, method=one.method.replace(name="mine"))
    assert "one model serves as well or better" in str(wecfl.verdict([alike, one])[0])


def test_what_can_t_be_compared(results: dict[str, Result], fed: Federation) -> None:
    other = wecfl.run(fed, methods.fedavg, model="logistic", rounds=1)
    for chosen, said in (
        ([results["wecfl"]], "baseline"),
        ([results["fedavg"], results["fedavg"]], "one result of each"),
        ([results["wecfl"], other], "same clients"),
    ):
        with pytest.raises(ConfigError, match=said):
            wecfl.verdict(chosen)


def test_results_from_folders(
    results: dict[str, Result], clients: Federation, tmp_path: Path
) -> None:
    plan = wecfl.Plan(lr=0.1, steps=5)
    wecfl.run(
        clients, methods.wecfl(k=2), model="logistic", rounds=5, plan=plan, folder=tmp_path / "run"
    )
    loaded = wecfl.load(tmp_path / "run")
    assert wecfl.verdict([loaded, results["local"]]) == wecfl.verdict(
        [results["wecfl"], results["local"]]
    )
