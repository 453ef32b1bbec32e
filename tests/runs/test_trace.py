"""The trace: what it holds, for whom it is recorded, how it is read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics.pairwise import cosine_similarity

from helpers import run_flat
from wecfl import Federation, Method, methods
from wecfl.bilevel.distance import distances
from wecfl.core.components import Clusters, View
from wecfl.core.types import Real
from wecfl.errors import RunFolderError
from wecfl.folder.distance_trace import MAX_TRACED_CLIENTS, cosines, read_trace, traced_rounds
from wecfl.folder.readers import read_assignments, read_classes

QUICK: dict[str, Any] = {"model": "logistic", "rounds": 2, "steps": 3, "lr": 0.05, "workers": 1}


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_distances_and_cosines_are_those_of_scipy_and_scikit_learn(offset: float) -> None:
    points = np.random.default_rng(0).normal(size=(7, 30)) + offset
    assert np.allclose(distances(points), squareform(pdist(points)), rtol=1e-6, atol=1e-6)
    norms = np.linalg.norm(points, axis=1)
    assert np.allclose(cosines(distances(points), norms), cosine_similarity(points), atol=1e-9)


def test_the_trace_is_what_k_means_saw_and_left(fed: Federation, tmp_path: Path) -> None:
    seen: list[Real] = []

    def clustering(view: View, *others: Any) -> Clusters:
        seen.append(view.points.copy())
        return methods.wecfl(2).clustering(view, *others)

    method = methods.wecfl(k=2).replace(clustering=clustering)
    result = run_flat(fed, method, out=tmp_path / "run", **QUICK)
    assert traced_rounds(tmp_path / "run") == [1, 2]
    clients, norms = read_trace(tmp_path / "run", 2)
    assert np.allclose(clients, squareform(pdist(seen[-1])), rtol=1e-4, atol=1e-6)
    assert np.allclose(norms, np.linalg.norm(seen[-1], axis=1))
    centers, _ = read_trace(tmp_path / "run", 2, "centers")
    columns = slice(0, 18)  # the weight of a logistic regression of 6 features and 3 classes
    assert np.allclose(centers, squareform(pdist(result.centers[:, columns])), rtol=1e-4)


@pytest.mark.parametrize("method", [methods.fedavg, methods.ifca(2), methods.fedavg_plus(2)])
def test_every_method_has_one(method: Method, fed: Federation, tmp_path: Path) -> None:
    run_flat(fed, method, out=tmp_path / "run", **QUICK)
    assert traced_rounds(tmp_path / "run") == [1, 2]
    between, norms = read_trace(tmp_path / "run", 1)
    assert between.shape == (5, 5)
    assert (between[np.triu_indices(5, 1)] > 0).all()
    assert (norms > 0).all()
    assert read_trace(tmp_path / "run", 1, "centers")[0].shape == (method.k, method.k)


def test_it_is_left_out_for_many_clients_or_on_request(fed: Federation, tmp_path: Path) -> None:
    run_flat(fed, methods.fedavg, out=tmp_path / "no", trace=False, **QUICK)
    assert traced_rounds(tmp_path / "no") == []
    m = MAX_TRACED_CLIENTS + 1
    many = Federation.from_arrays([np.zeros((2, 1))] * m, [[0, 1]] * m)
    for name, asked in (("auto", None), ("yes", True)):
        how = {**QUICK, "rounds": 1, "steps": 1, "objectives": False, "trace": asked}
        run_flat(many, methods.fedavg, out=tmp_path / name, **how)
    assert traced_rounds(tmp_path / "auto") == []
    assert traced_rounds(tmp_path / "yes") == [1]


def test_a_trace_changes_no_result(fed: Federation, tmp_path: Path) -> None:
    with_trace, without = (
        run_flat(fed, methods.wecfl(2), out=tmp_path / str(asked), trace=asked, **QUICK)
        for asked in (True, False)
    )
    assert np.array_equal(with_trace.centers, without.centers)


def test_classes_and_assignments_are_read_back(fed: Federation, tmp_path: Path) -> None:
    result = run_flat(fed, methods.wecfl(2), out=tmp_path / "run", **QUICK)
    held = read_classes(tmp_path / "run")
    assert held is not None
    assert held.shape == (3, 5)
    for i, rows in enumerate(fed.train):
        assert held[:, i].tolist() == np.bincount(fed.y[rows], minlength=3).tolist()
    labels = read_assignments(tmp_path / "run")
    assert labels.shape == (2, 5)
    assert labels[-1].tolist() == result.labels.tolist()
    (tmp_path / "run" / "classes.csv").unlink()
    assert read_classes(tmp_path / "run") is None


def test_a_broken_trace_is_said(fed: Federation, tmp_path: Path) -> None:
    run_flat(fed, methods.wecfl(2), out=tmp_path / "run", **QUICK)
    (tmp_path / "run" / "trace" / "0002.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(RunFolderError, match=r"can't read .*0002\.safetensors"):
        read_trace(tmp_path / "run", 2)
