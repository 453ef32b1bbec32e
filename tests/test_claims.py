"""The figures of docs/claims.md are those of the stored runs, and its commands parse."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wecfl.cli import app

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "claims.md").read_text(encoding="utf-8")
ROWS = {int(row[1]): row[0] for row in re.finditer(r"^\| (\d+) \|.*$", PAGE, re.M)}
ANSWERS = ("reproduced", "in part", "not reproduced", "contradicted", "not yet")
PRESET = {
    "lr": 0.001,
    "keep_momentum": True,
    "validation": None,
    "batchnorm": "batch",
    "warm_start": True,
    "importance": "method",
    "representation": "head",
}
CIFAR, FASHION = "cifar-10", "fashion-mnist"


def stored(rounds: int) -> list[dict[str, Any]]:
    """The runs of the preset `paper` with so many rounds and nothing else changed."""
    runs = [
        json.loads(file.read_text("utf-8")) for file in sorted(DOCS.glob("results/*_seed*.json"))
    ]
    return [
        run
        for run in runs
        if run["config"]["rounds"] == rounds
        and not run.get("member")  # of a vote
        and all(run["config"][name] == value for name, value in PRESET.items())
    ]


CELLS = {
    (
        *(run["config"][name] for name in ("dataset", "partition", "method", "clusters")),
        run["seed"],
    ): run
    for run in stored(100)
}


def cell(dataset: str, partition: str, method: str, k: int, *seeds: int) -> float:
    """Mean accuracy in percent."""
    return 100 * float(
        np.mean([CELLS[dataset, partition, method, k, seed]["accuracy"] for seed in seeds])
    )


def traced(dataset: str, k: int, rounds: int) -> dict[str, Any]:
    """What was recorded of WeCFL for the figures."""
    for run in stored(rounds):
        if "trace" in run and (run["config"]["dataset"], run["config"]["clusters"]) == (dataset, k):
            trace: dict[str, Any] = run["trace"]
            return trace
    raise LookupError(f"no trace of {dataset}, K = {k}, {rounds} rounds")


def gradients() -> dict[str, Any]:
    """What was recorded for Theorem 3 of clients that are alike."""
    files = DOCS.glob("results/digits_*_trace_*.json")
    runs = [json.loads(file.read_text("utf-8")) for file in files]
    [trace] = [run["trace"] for run in runs if run["config"]["alpha"] == [0.1, 1000.0]]
    return dict(trace)


def cosines(trace: dict[str, Any], of: str) -> np.ndarray:
    matrix = np.array(trace["cosine"][of])
    return matrix[np.triu_indices(len(matrix), 1)]


def first_above(method: str, seed: int, level: float) -> int:
    curve = CELLS[CIFAR, "clusterwise-nclass", method, 10, seed]["curve"]["accuracy"]
    return next(number for number, value in enumerate(curve, 1) if value >= level)


def differences() -> list[float]:
    """WeCFL minus FeSEM where both were run with one seed and one partition."""
    return [
        100 * (run["accuracy"] - CELLS[*cell[:2], "fesem", *cell[3:]]["accuracy"])
        for cell, run in CELLS.items()
        if cell[2] == "wecfl" and (*cell[:2], "fesem", *cell[3:]) in CELLS
    ]


def figures() -> dict[int, list[str]]:
    """By number of the claim, figures that its row must hold."""
    groups, pairs = "clusterwise-dirichlet", "clusterwise-nclass"
    wide = traced(CIFAR, 10, 30)
    fashion, few = traced(FASHION, 10, 5), traced(FASHION, 3, 5)
    moved = [np.not_equal(a["cluster"], b["cluster"]).sum() for a, b in pairwise(few["rounds"])]
    after_l, gaps = wide["F"]["L"], differences()
    rate = gradients()
    measured, promised = rate["gradient"]["measured"], rate["gradient"]["promised"]
    power = np.log(measured[-1] / measured[99]) / np.log(len(measured) / 100)
    two = [
        f"{cell(CIFAR, groups, method, k, 0, 1):.2f} and {cell(CIFAR, pairs, method, k, 0, 1):.2f}"
        for method, k in (("wecfl", 10), ("fesem", 10), ("ifca", 10), ("fedavg", 1))
    ]
    alone = [
        f"{cell(CIFAR, 'clientwise-dirichlet', method, k, 0):.2f} and "
        f"{cell(CIFAR, 'clientwise-nclass', method, k, 0):.2f}"
        for method, k in (("wecfl", 10), ("fesem", 10), ("ifca", 10), ("fedavg", 1))
    ]
    apart = [
        f"{name} {cell(FASHION, 'clientwise-dirichlet', method, k, 0):.2f} and "
        f"{cell(FASHION, 'clientwise-nclass', method, k, 0):.2f}"
        for name, method, k in (("WeCFL", "wecfl", 10), ("IFCA", "ifca", 10))
    ]
    votes = {
        k: [
            cell(CIFAR, data, f"{one}+", k, 0) - cell(CIFAR, data, one, 1, 0)
            for one in ("fedavg", "fedprox")
            for data in (groups, pairs, "clientwise-dirichlet", "clientwise-nclass")
        ]
        for k in (5, 10)
    }
    return {
        1: two,
        2: [*alone, *apart],
        3: [
            f"FedAvg {cell(CIFAR, groups, 'fedavg', 1, 0, 1):.2f}",
            f"FedProx {cell(CIFAR, groups, 'fedprox', 1, 0, 1):.2f}",
        ],
        4: [
            ", ".join(f"{cell(dataset, groups, 'wecfl', k, 0):.2f}" for k in (1, 3, 5, 10))
            for dataset in (CIFAR, FASHION)
        ],
        5: [" and ".join(f"{cell(CIFAR, groups, 'ifca', 10, seed):.2f}" for seed in (0, 1))],
        6: [
            f"{len(gaps)} pairs",
            f"−{-min(gaps):.2f} to +{max(gaps):.2f}",
            f"mean +{np.mean(gaps):.2f}",
            f"ahead in {sum(gap > 0.005 for gap in gaps)} pairs",
        ],
        7: [
            f"FedAvg has {cell(CIFAR, groups, 'fedavg', 1, 0):.2f}",
            f"vote of five models {cell(CIFAR, groups, 'fedavg+', 5, 0):.2f} and of ten "
            f"{cell(CIFAR, groups, 'fedavg+', 10, 0):.2f}",
            f"five gains {min(votes[5]):.2f} to {max(votes[5]):.2f} points",
            f"ten {min(votes[10]):.2f} to {max(votes[10]):.2f}",
            f"({cell(CIFAR, groups, 'wecfl', 10, 0):.2f})",
        ],
        8: [f"{moved[0]} clients", "none later" if not any(moved[1:]) else "some later"],
        9: [f"ARI {CELLS[CIFAR, groups, 'wecfl', 10, 1]['ari']:.2f}"],
        10: [
            f"centers {cosines(fashion, 'centers').mean():.3f}",
            f"{cosines(fashion, 'clients').mean():.4f}",
            f"{cosines(fashion, 'clients').min():.3f} at least",
            f"{cosines(traced(CIFAR, 10, 5), 'centers').mean():.3f} in round 5",
            f"{cosines(wide, 'centers').mean():.3f} in round 30",
        ],
        11: [
            f"{wide['B']['0'][0]:.2f} in round 1",
            f"{max(wide['B']['0']):.2f} in round {1 + np.argmax(wide['B']['0'])}",
        ],
        12: [
            f"{fashion['F']['L'][0]:.3f} to {fashion['F']['L'][-1]:.4f}",
            f"{max(after_l) / after_l[0]:.1f}-fold until round {1 + np.argmax(after_l)}",
            f"{after_l[-1] / after_l[0]:.1f} times",
        ],
        13: [
            f"{first_above(method, 0, 0.6)} and {first_above(method, 1, 0.6)} by {name}"
            for method, name in (("wecfl", "WeCFL"), ("fesem", "FeSEM"), ("ifca", "IFCA"))
        ],
        14: [
            f"{measured[0]:.2f} after one round, {measured[99]:.3f} after 100 and "
            f"{measured[-1]:.3f} after {len(measured)}",
            f"T^−{-power:.2f}",
            f"{min(promised):.1f} after {1 + np.argmin(promised)}",
            f"{promised[-1]:.1f} after {len(promised)}",
            f"{max(rate['B']['0'][0], rate['B']['Q'][0]):.2f} to "
            f"{max(rate['B']['0'] + rate['B']['Q']):.2f}",
        ],
    }


FIGURES = figures()


@pytest.mark.parametrize("number", FIGURES)
def test_figures_are_those_of_the_stored_runs(number: int) -> None:
    for figure in FIGURES[number]:
        assert figure in ROWS[number], f"claim {number}: the stored runs give {figure!r}"


@pytest.mark.parametrize("number", ROWS)
def test_every_claim_has_an_answer_and_a_command(number: int) -> None:
    answer, command = (
        part.strip() for part in (ROWS[number].split("|")[3], ROWS[number].split("|")[5])
    )
    assert answer.strip("*") in ANSWERS
    summary = re.search(rf"^\| {answer.strip('*')} \| ([\d, ]+) \|$", PAGE, re.M)
    assert summary and str(number) in summary[1].split(", ")
    if command != "–":
        app.parse_args(shlex.split(command.strip("`"))[1:], exit_on_error=False, print_error=False)


def test_claims_are_numbered_in_order() -> None:
    assert list(ROWS) == list(range(1, len(ROWS) + 1))


def test_the_home_page_says_what_was_found() -> None:
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    for method, k, seeds in (("wecfl", 10, 3), ("fedavg", 1, 3), ("ifca", 10, 2)):
        figure = f"{cell(CIFAR, 'clusterwise-dirichlet', method, k, *range(seeds)):.1f} %"
        assert figure in readme, f"the stored runs of {method} give {figure}"
