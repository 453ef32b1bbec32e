"""The table of what combines: every cell runs, and everything else is refused in one line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy

import wecfl
from helpers import run_flat
from wecfl import Config, Federation, methods
from wecfl.bilevel.combinations import DISTANCES, TOLD_REPRESENTATIONS
from wecfl.bilevel.distance import cosine, jensen_shannon, kullback_leibler
from wecfl.bilevel.representation.telling import local_clusters
from wecfl.core.program import Job, Sent
from wecfl.engine import make_engine
from wecfl.errors import ConfigError
from wecfl.method_from_config import method_of
from wecfl.models import build, row_of

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "representations.md"


def table() -> dict[tuple[str, str], list[str]]:
    """The distances of each representation and method, as the page's first table has them."""
    first = next(part for part in PAGE.read_text().split("\n\n") if part.startswith("|"))
    lines = first.splitlines()
    head, _, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in lines)
    cells = {}
    for name, _, *distances in rows:
        for columns, cell in zip(head[2:], distances, strict=True):
            for method in columns.replace("`", "").split(", "):
                cells[name.strip("`"), method] = [] if cell == "–" else cell.split(", ")
    return cells


TABLE = table()
CASES = [(*at, distance) for at in TABLE for distance in DISTANCES]


def config(name: str, method: str, distance: str) -> Config:
    k: dict[str, Any] = {"clusters": 2} if "k" in methods.options(method) else {}
    return Config(method=method, representation=name, distance=distance, **k)


def test_the_table_has_every_representation() -> None:
    assert {name for name, _ in TABLE} == {*TOLD_REPRESENTATIONS}


@pytest.mark.parametrize(("name", "method", "distance"), CASES)
def test_what_the_table_has_combines_and_the_rest_is_refused(
    name: str, method: str, distance: str
) -> None:
    if distance in TABLE[name, method]:
        assert method_of(config(name, method, distance)).distance is DISTANCES[distance]
    else:
        with pytest.raises(ConfigError) as refused:
            method_of(config(name, method, distance))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("name", "method"), [at for at in TABLE if TABLE[at]])
def test_every_cell_runs(name: str, method: str, fed: Federation) -> None:
    made = method_of(config(name, method, "method"))
    assert made.distance is DISTANCES[TABLE[name, method][0]]
    for distance in TABLE[name, method]:
        made = method_of(config(name, method, distance))
        result = run_flat(
            fed, made, model="mlp", rounds=2, steps=2, lr=0.05, participation=0.6, workers=1,
            objectives=False,
        )  # fmt: skip
        assert np.isfinite(result.centers).all()
        assert result.records[-1]["F"]["E"] >= 0


@pytest.mark.parametrize(
    ("method", "choices"),
    [
        ("fedavg", {"representation": "labels"}),
        ("ifca", {"representation": "labels"}),
        ("fedgroup", {"representation": "labels"}),
        ("wecfl", {"representation": "labels", "clusters": "auto"}),
        ("wecfl", {"distance": "cosine"}),
        ("wecfl", {"representation": "labels", "distance": "cosin"}),
        ("flhc", {"representation": "labels", "linkage": "ward"}),
    ],
)
def test_other_choices_are_refused(method: str, choices: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        method_of(Config(method=method, **choices))
    assert "\n" not in str(refused.value)


def test_the_same_is_refused_in_python(fed: Federation) -> None:
    mixed = methods.pacfl().replace(distance=jensen_shannon)
    with pytest.raises(ConfigError, match="smallest-angle"):
        wecfl.run(fed, mixed, model="mlp", rounds=1)


@pytest.mark.parametrize("k", [2, "auto"])
def test_a_distance_that_the_clustering_does_not_take_is_refused_before_anything_is_computed(
    fed: Federation, k: Any
) -> None:
    mine = methods.wecfl(k).replace(distance=cosine)
    with pytest.raises(ConfigError, match="squared-euclidean, got cosine"):
        wecfl.Experiment(fed, mine, model="mlp").check()


def test_what_is_told(fed: Federation) -> None:
    module = build("mlp", shape=fed.shape, classes=3, seed=0)
    start = np.repeat(row_of(module)[None], 5, axis=0)
    with make_engine("native", fed, module, workers=1) as engine:
        found = {
            name: engine.ask(Job(tells.sized(engine)), Sent({"model": start})).rows["told"]
            for name, tells in TOLD_REPRESENTATIONS.items()
            if name not in ("update", "directions")
        }
    import torch

    for i, rows in enumerate(fed.train):
        y, out = fed.y[rows], module.eval()(torch.from_numpy(fed.x[rows])).detach()
        shares = [(y == c).mean() for c in range(3)]
        np.testing.assert_allclose(found["labels"][i], shares, rtol=1e-6)
        chances = out.softmax(dim=1).mean(dim=0).numpy()
        np.testing.assert_allclose(found["predictions"][i], chances, atol=1e-6)
        spread = np.cov(out.numpy().T, bias=True)[np.triu_indices(3)]
        np.testing.assert_allclose(found["moments"][i][:3], out.mean(dim=0).numpy(), atol=1e-5)
        np.testing.assert_allclose(found["moments"][i][3:], spread, atol=1e-5)


def test_distances_of_histograms_are_scipys() -> None:
    draws = np.random.default_rng(0)
    a, b = draws.dirichlet(np.ones(4), 3), draws.dirichlet(np.ones(4), 2)
    theirs = [[jensenshannon(p, q, base=2) ** 2 for q in b] for p in a]
    np.testing.assert_allclose(jensen_shannon(a, b), theirs, atol=1e-12)
    smooth = [0.99 * each + 0.0025 for each in (a, b)]
    theirs = [[(entropy(p, q, 2) + entropy(q, p, 2)) / 2 for q in smooth[1]] for p in smooth[0]]
    np.testing.assert_allclose(kullback_leibler(a, b), theirs, atol=1e-12)
    angle = np.array([[1.0, 0.0]]), np.array([[1.0, 1.0]])
    assert cosine(*angle) == pytest.approx(1 - np.sqrt(0.5))


def test_local_clusters_are_those_of_well_separated_samples() -> None:
    draws = np.random.default_rng(0)
    truth = np.arange(40) % 3
    points = 10 * np.eye(5)[truth] + draws.normal(size=(40, 5))
    centers, labels = local_clusters(points, 3)
    for c in range(3):
        (found,) = set(labels[truth == c].tolist())
        np.testing.assert_allclose(centers[found], points[truth == c].mean(axis=0))
    few, which = local_clusters(np.array([[1.0], [1.0], [2.0]]), 5)
    assert (few.tolist(), which.tolist()) == ([[1.0], [2.0]], [0, 0, 1])
