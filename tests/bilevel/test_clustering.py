"""K-means against scikit-learn, and its defined corners."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans as Reference
from sklearn.metrics import adjusted_rand_score

from wecfl.bilevel.clustering import KMeans, Nearest, isometric
from wecfl.bilevel.distance import component, squared_euclidean
from wecfl.core.components import Clustering, View
from wecfl.core.types import F64, Int, Real
from wecfl.errors import ConfigError


def clustered(
    clustering: Clustering, points: Real, centers: Real, weight: F64, seed: int, *, d: Any = None
) -> tuple[Int, F64]:
    view = View(points, centers, weight, np.zeros(len(points), np.int64))
    found = clustering(view, d or squared_euclidean, np.random.default_rng(seed))
    return found.labels, np.asarray(found.centers)


def inertia(points: F64, centers: F64, labels: Int, weight: F64) -> float:
    return float(
        (weight * squared_euclidean(points, centers)[np.arange(len(points)), labels]).sum()
    )


def blobs(seed: int, m: int = 60, k: int = 5, p: int = 400) -> tuple[F64, Int, F64]:
    rng = np.random.default_rng(seed)
    truth = np.sort(rng.integers(0, k, m))
    points = rng.normal(size=(k, p))[truth] * 3 + rng.normal(size=(m, p)) * 0.3
    return points, truth, rng.integers(1, 50, m).astype(float)


@pytest.mark.parametrize("p", [3, 100, 400])  # as they are, p > m, and p ≫ m: by the Gram matrix
def test_no_worse_than_scikit_learn_and_as_exact_in_few_dimensions(p: int) -> None:
    points, _, weight = blobs(0, p=p)
    start = np.random.default_rng(1).normal(size=(5, p))
    labels, centers = clustered(KMeans(), points, start, weight, 2)
    reference = Reference(5, n_init=10, random_state=0).fit(points, sample_weight=weight)
    ours = inertia(points, centers, labels, weight)
    assert ours <= reference.inertia_ * (1 + 1e-9)
    for k in range(5):  # centers are the weighted means of their members
        members = labels == k
        mean = np.average(points[members], axis=0, weights=weight[members])
        np.testing.assert_allclose(centers[k], mean, atol=1e-9)


@given(st.integers(0, 10_000), st.integers(2, 30), st.integers(1, 60))
@settings(max_examples=50)
def test_isometric_keeps_all_distances(seed: int, m: int, p: int) -> None:
    rng = np.random.default_rng(seed)
    points, centers = rng.normal(size=(m, p)) + 100, rng.normal(size=(3, p)) + 100
    near, old = isometric(points, centers)
    assert near.shape[1] <= max(p, m + 3)
    np.testing.assert_allclose(
        squared_euclidean(near, old), squared_euclidean(points, centers), rtol=1e-6, atol=1e-9
    )
    np.testing.assert_allclose(
        squared_euclidean(near, near), squared_euclidean(points, points), rtol=1e-6, atol=1e-9
    )


@given(st.integers(0, 10_000), st.integers(12, 80), st.integers(1, 30), st.integers(2, 11))
@settings(max_examples=30)
def test_a_fresh_start_is_that_of_scikit_learn(seed: int, m: int, p: int, k: int) -> None:
    draws = np.random.default_rng(seed)
    points, weight = draws.normal(size=(m, p)), draws.uniform(0.1, 3, m)
    points = points[np.lexsort(points.T[::-1])]  # the order in which they are clustered
    one = KMeans(fresh=1, warm=False)
    labels, centers = clustered(one, points, np.zeros((k, p)), weight, seed)
    state = int(np.random.default_rng(seed).integers(2**31))
    reference = Reference(k, n_init=1, random_state=state).fit(
        isometric(points, np.zeros((k, p)))[0], sample_weight=weight
    )
    assert adjusted_rand_score(labels, reference.labels_) == 1
    assert inertia(points, centers, labels, weight) == pytest.approx(reference.inertia_)


@pytest.mark.parametrize("seed", range(8))
def test_the_better_start_wins(seed: int) -> None:
    """Warm from the best that is known, or from one point for all: there a fresh one is better."""
    draws = np.random.default_rng(seed)
    points, weight = draws.normal(size=(40, 3)), draws.uniform(0.1, 3, 40)
    best = Reference(6, n_init=50, random_state=0).fit(points, sample_weight=weight)
    for old in (best.cluster_centers_, np.zeros((6, 3))):

        def found(kmeans: KMeans, old: Any = old) -> float:
            labels, centers = clustered(kmeans, points, old, weight, seed)
            return inertia(points, centers, labels, weight)

        both, warm, fresh = (
            found(KMeans(fresh=n, warm=w)) for n, w in ((1, True), (0, True), (1, False))
        )
        assert both == pytest.approx(min(warm, fresh))


def test_a_label_means_the_same_cluster_over_rounds() -> None:
    points, truth, weight = blobs(3)
    centers = np.stack([points[truth == k].mean(axis=0) for k in (3, 1, 4, 0, 2)])
    for seed in range(5):
        moved = points + 0.05 * np.random.default_rng(seed).normal(size=points.shape)
        labels, _ = clustered(KMeans(warm=False), moved, centers, weight, seed)
        np.testing.assert_array_equal(np.array([3, 1, 4, 0, 2])[labels], truth)


def test_the_warm_start_alone_can_be_stuck_and_the_fresh_ones_leave() -> None:
    points, _, weight = blobs(4)
    stuck = np.concatenate([points[:1] + 1e-3 * np.arange(4)[:, None], points[-1:]])
    warm, both = (clustered(each, points, stuck, weight, 0) for each in (KMeans(0), KMeans()))
    assert inertia(points, both[1], both[0], weight) <= inertia(points, warm[1], warm[0], weight)


def test_the_result_does_not_depend_on_the_order_of_the_clients() -> None:
    points, _, weight = blobs(5, k=8)
    start = np.random.default_rng(0).normal(size=(6, points.shape[1]))
    order = np.random.default_rng(1).permutation(len(points))
    one, _ = clustered(KMeans(), points, start, weight, 2)
    two, _ = clustered(KMeans(), points[order], start, weight[order], 2)
    np.testing.assert_array_equal(one[order], two)


@pytest.mark.parametrize("same", [0, 8, 300, 400])
def test_clients_that_begin_alike_are_told_apart_and_equal_ones_are_not(same: int) -> None:
    points, truth, weight = blobs(6, p=400)
    points[:, :same] = 0.5
    points[7] = points[3]
    order = np.random.default_rng(1).permutation(len(points))
    start = points[:5].copy()
    one, _ = clustered(KMeans(), points, start, weight, 2)
    two, _ = clustered(KMeans(), points[order], start, weight[order], 2)
    np.testing.assert_array_equal(one[order], two)
    assert one[3] == one[7]
    if same == 400:
        assert len(set(one)) == 1
    else:
        assert len(set(one)) == 5
        assert all(len(set(one[truth == k])) == 1 for k in range(5))


@pytest.mark.parametrize(("distinct", "k"), [(1, 3), (2, 3), (3, 3)])
def test_no_more_distinct_clients_than_clusters(distinct: int, k: int) -> None:
    points = np.repeat(np.eye(distinct, 50), 4, axis=0)
    start = np.full((k, 50), 7.0)
    labels, centers = clustered(KMeans(), points, start, np.ones(len(points)), 0)
    assert len(set(labels)) == distinct
    assert inertia(points, centers, labels, np.ones(len(points))) == 0
    for empty in set(range(k)) - set(labels):
        np.testing.assert_array_equal(centers[empty], start[empty])


def test_nearest_takes_the_least_loss() -> None:
    losses = np.array([[0.2, 0.1, 0.3], [0.5, 0.9, 0.5]])
    labels, _ = clustered(Nearest(), losses, np.eye(3), np.ones(2), 0, d=component)
    assert labels.tolist() == [1, 0]


def test_other_distances_are_refused() -> None:
    with pytest.raises(ConfigError, match="squared_euclidean, got component"):
        clustered(KMeans(), np.eye(2), np.eye(2), np.ones(2), 0, d=component)


def test_of_very_many_clients_a_sample_finds_what_all_would() -> None:
    draws = np.random.default_rng(3)
    groups = draws.integers(0, 4, 10_500)
    points = np.array([[0.0, 0], [9, 0], [0, 9], [9, 9]])[groups] + draws.normal(size=(10_500, 2))
    weight, start = draws.integers(1, 9, len(points)).astype(float), np.zeros((4, 2))
    labels, centers = clustered(KMeans(warm=False), points, start, weight, 2)
    found = inertia(points, centers, labels, weight)
    best = Reference(4, n_init=10, random_state=0).fit(points, sample_weight=weight)
    assert found == pytest.approx(best.inertia_, rel=1e-6)
