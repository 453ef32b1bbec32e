"""Clients compared by a random projection, beside the matrix written out in full."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

import wecfl
from helpers import BowlEngine, run_flat
from wecfl import Config, Federation, methods, rng
from wecfl.bilevel.representation import Columns
from wecfl.bilevel.representation.projection import folded
from wecfl.core.state import State
from wecfl.core.types import F32, F64
from wecfl.errors import ConfigError
from wecfl.experiment import run_config
from wecfl.folder.readers import read_states
from wecfl.method_from_config import method_of

if TYPE_CHECKING:
    from helpers import Wecfl


def projected(rows: F32, width: int, seed: int) -> F32:
    """What stands for clusters with these heads, by the component."""
    engine: Any = BowlEngine(np.zeros((1, rows.shape[1])), np.ones(1, np.int64))
    centers = np.pad(rows, ((0, 0), (0, 2)), constant_values=9)  # two columns are no head
    state = State(0, None, centers, np.zeros(1, np.int64))
    return Columns("head", project=width).centers(state, engine, seed)


def written_out(rows: Any, width: int, seed: int) -> F64:
    """The same by the matrix as a whole."""
    matrix = rng.stream(seed, "projection").standard_normal((rows.shape[1], width))
    return np.asarray(rows.astype(np.float64) @ matrix / np.sqrt(width))


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 99))
def test_it_is_the_product_with_one_matrix(p: int, width: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(3, p)).astype(np.float32)
    found = projected(rows, width, seed)
    np.testing.assert_allclose(found, written_out(rows, width, seed), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "p"), [(2, 20_001), (2050, 12)])
def test_rows_in_pieces_are_projected_as_a_whole(n: int, p: int) -> None:
    """Long rows meet the matrix in pieces, and many rows come in groups."""
    rows = np.random.default_rng(0).normal(size=(n, p)).astype(np.float32)
    np.testing.assert_allclose(projected(rows, 8, 3), written_out(rows, 8, 3), rtol=1e-5, atol=1e-4)


def test_squared_distances_are_kept_as_johnson_and_lindenstrauss_say() -> None:
    """Over draws the mean is right, the variance is 2/N, and large errors are as rare as they say.

    For a Gaussian matrix, N times the ratio of squared lengths is χ² with N degrees of freedom.
    """
    rows = np.random.default_rng(1).laplace(size=(2, 500)).astype(np.float32)
    width, draws = 32, 2000
    true = ((rows[0] - rows[1]).astype(np.float64) ** 2).sum()
    both = np.array([projected(rows, width, seed) for seed in range(draws)])
    ratio = ((both[:, 0] - both[:, 1]) ** 2).sum(axis=1) / true
    error = np.sqrt(2 / width / draws)
    assert abs(ratio.mean() - 1) < 4 * error
    assert ratio.var() == pytest.approx(2 / width, rel=0.15)
    for eps in (0.5, 0.9):
        bound = 2 * np.exp(-width * (eps**2 / 4 - eps**3 / 6))
        assert (abs(ratio - 1) > eps).mean() <= bound


@pytest.fixture(scope="module")
def fed() -> Federation:
    partition = wecfl.partitions.ClusterwiseDirichlet((0.1, 10.0), groups=4)
    return Federation.from_dataset("digits", partition, clients=20, seed=3)


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("make", [methods.wecfl, methods.fesem])
def test_digits_are_clustered_as_without_it(fed: Federation, engine: str, make: Any) -> None:
    how: Any = {
        "rounds": 8, "lr": 0.03, "seed": 3, "engine": engine, "workers": 1, "objectives": False,
    }  # fmt: skip
    plain, short = (run_flat(fed, make(4, project=project), **how) for project in (None, 64))
    assert adjusted_rand_score(short.labels, plain.labels) == 1
    assert adjusted_rand_score(short.labels, fed.groups) == 1


def test_k_is_chosen_by_projections_too(fed: Federation) -> None:
    how: Any = {"rounds": 8, "lr": 0.03, "seed": 3, "objectives": False}
    found = run_flat(fed, methods.wecfl("auto", project=64), **how)
    assert adjusted_rand_score(found.labels, fed.groups) == 1


def test_the_matrix_follows_the_seed_of_the_run(fed: Federation) -> None:
    one, other = (projected(np.ones((1, 9), np.float32), 4, seed) for seed in (0, 1))
    assert not np.allclose(one, other)
    # F is measured by the matrix that clients were clustered by: it never rises in E or M.
    result = run_flat(fed, methods.wecfl(4, project=16), rounds=4, lr=0.05, seed=9)
    for record in result.records:
        assert record["F"]["M"] <= record["F"]["E"] * (1 + 1e-5)
        assert record["F"]["E"] <= record["F"]["L"] * (1 + 1e-5)


def test_newcomers_of_a_stored_run_are_compared_by_it(fed: Federation, tmp_path: Path) -> None:
    how: Any = {"rounds": 3, "lr": 0.05, "seed": 9, "objectives": False, "folder": tmp_path / "run"}
    result = run_flat(fed, methods.wecfl(4, project=64), **how)
    for client in range(3):
        x, y = fed.x[fed.train[client]], fed.y[fed.train[client]]
        found, stored = result.assign(x, y), wecfl.load(tmp_path / "run").assign(x, y)
        assert found.cluster == stored.cluster == result.labels[client]
        assert found.distance == stored.distance


def test_it_is_an_option_that_a_folder_keeps(wecfl: "Wecfl", tmp_path: Path) -> None:
    """A run that was stopped, and one made by flags, end with the bits of a run from Python."""
    config = Config(
        clients=6, groups=2, clusters=2, rounds=3, steps=3, model="logistic", workers=1,
        representation="parameters", options=(("project", 8),),
    )  # fmt: skip
    assert method_of(config).representation == Columns("parameters", project=8)
    run_config(config, out=tmp_path / "whole")
    flags = (
        "--clients 6 --groups 2 --clusters 2 --steps 3 --model logistic --workers 1 "
        "--representation parameters --project 8"
    )
    done = wecfl("run", *flags.split(), "--rounds", "1", "--out", str(tmp_path / "run"))
    assert done.code == 0, done
    assert wecfl("resume", str(tmp_path / "run"), "--rounds", "3").code == 0
    [a], [b] = (read_states(tmp_path / name) for name in ("whole", "run"))
    assert a.centers.tobytes() == b.centers.tobytes() and a.labels.tolist() == b.labels.tolist()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--project 0", "at least 1"),
        ("--project 641", "at most 640"),
        ("--project 8 --representation labels", "labels"),
        ("--project 8 --method fedavg", "fedavg"),
        ("--project 8 --lr theory --momentum 0", "lr theory"),
    ],
)
def test_what_can_not_be_projected_is_refused(
    wecfl: "Wecfl", tmp_path: Path, flags: str, told: str
) -> None:
    found = wecfl("run", "--out", str(tmp_path / "run"), *flags.split())
    assert not (tmp_path / "run").exists()
    assert found.code == 2
    assert told in found.err and "project" in found.err and found.err.count("\n") == 1


def test_too_many_directions_are_refused_before_anything_is_computed(fed: Federation) -> None:
    for method in (methods.wecfl(4, project=641), methods.cfl(project=641)):
        with pytest.raises(ConfigError, match="640"):
            wecfl.Experiment(fed, method, model="mlp").check()


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 99))
def test_folding_adds_columns_with_random_signs(p: int, width: int, seed: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(3, p)).astype(np.float32)
    signs = np.random.default_rng(seed).integers(0, 2, p) * 2 - 1
    matrix = np.zeros((p, width))
    matrix[np.arange(p), np.arange(p) % width] = signs
    found = folded(rows, width, np.random.default_rng(seed))
    np.testing.assert_allclose(found, rows @ matrix, rtol=1e-4, atol=1e-5)


def test_folding_keeps_squared_distances_on_average() -> None:
    rows = np.random.default_rng(1).laplace(size=(2, 5000)).astype(np.float32)
    true = ((rows[0] - rows[1]) ** 2).sum()
    draws = np.random.default_rng(2)
    ratios = []
    for _ in range(400):
        one, other = folded(rows, 200, draws)
        ratios.append(((one - other) ** 2).sum() / true)
    assert np.mean(ratios) == pytest.approx(1, abs=4 * np.sqrt(2 / 200 / 400))
    assert np.std(ratios) < 1.2 * np.sqrt(2 / 200)
