"""How many clusters: against scikit-learn, on shapes whose answer is known, and over rounds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, silhouette_score

import wecfl
from wecfl.bilevel.clustering import AtLeast
from wecfl.bilevel.clustering.auto import Auto, Criterion, Curve
from wecfl.bilevel.clustering.hierarchy import Agglomerative, Bipartition
from wecfl.bilevel.distance import squared_euclidean
from wecfl.core.components import Clusters, View
from wecfl.core.types import F64, Int, Real
from wecfl.errors import ConfigError


def blobs(k: int, each: int = 8, p: int = 30, seed: int = 0) -> tuple[F64, Int]:
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(k), each)
    return rng.normal(size=(k, p))[truth] * 3 + rng.normal(size=(k * each, p)) * 0.5, truth


def chosen(
    points: F64, labels: Int | None = None, centers: Real | None = None, **more: Any
) -> Clusters:
    start: Real = np.zeros((1, points.shape[1])) if centers is None else centers
    before = np.zeros(len(points), np.int64) if labels is None else labels
    view = View(points, start, np.ones(len(points)), before, **more)
    return Auto()(view, squared_euclidean, np.random.default_rng(0))


@given(st.integers(0, 10_000), st.integers(2, 6))
@settings(max_examples=20)
def test_the_silhouette_is_scikit_learns_where_all_count_the_same(seed: int, k: int) -> None:
    points, _ = blobs(k, seed=seed)
    curve = Curve.of(points, np.full(len(points), 3.0))
    for i in range(1, len(curve.silhouette)):
        expected = silhouette_score(points, curve.labels[i])
        assert curve.silhouette[i] == pytest.approx(expected, abs=1e-9)


def test_a_client_that_counts_twice_is_two_clients() -> None:
    points, _ = blobs(3, each=5)
    weight = np.random.default_rng(1).integers(1, 4, len(points)).astype(float)
    twice = points.repeat(weight.astype(int), axis=0)
    few, many = Curve.of(points, weight), Curve.of(twice, np.ones(len(twice)))
    # The partitions are the same up to K = 3, where the groups are clear. A mean distance to the
    # others of a cluster leaves the client itself out, once or twice: hence the tolerance.
    assert few.silhouette[2] == pytest.approx(many.silhouette[2], abs=0.05)
    assert few.best("both") == many.best("both") == 3


@pytest.mark.parametrize("criterion", ["both", "silhouette", "bic"])
@pytest.mark.parametrize("k", [2, 5, 12])
def test_clear_groups_are_counted(k: int, criterion: Criterion) -> None:
    points, truth = blobs(k)
    curve = Curve.of(points, np.ones(len(points)))
    assert curve.best(criterion) == k
    assert adjusted_rand_score(curve.labels[k - 1], truth) == 1.0


@pytest.mark.parametrize("criterion", ["both", "silhouette", "bic"])
def test_without_groups_there_is_one_cluster(criterion: Criterion) -> None:
    for seed in range(5):
        points = np.random.default_rng(seed).normal(size=(50, 100))
        assert Curve.of(points, np.ones(50)).best(criterion) == 1


def test_the_k_at_hand_is_left_only_for_a_better_one() -> None:
    curve = Curve(np.array([np.nan, 0.60, 0.61]), np.array([0.0, 1.0, 2.0]), np.zeros((3, 6), int))
    assert [curve.best("silhouette", now) for now in (1, 2, 3)] == [3, 2, 3]
    low = Curve(np.array([np.nan, 0.49, 0.3]), np.array([0.0, 1.0, 2.0]), np.zeros((3, 6), int))
    assert [low.best("silhouette", now) for now in (1, 2)] == [1, 2]


def test_clusters_keep_their_numbers_while_k_changes() -> None:
    points, truth = blobs(4)
    first = chosen(points[truth < 3])
    assert len(first.centers) == 3
    # A fourth group arrives in cluster 0; the others stay what they are.
    labels = np.concatenate([first.labels, np.zeros(8, np.int64)])
    second = chosen(points, labels, first.centers, notes=first.notes, round=2)
    np.testing.assert_array_equal(second.labels[:24], first.labels)
    assert set(second.labels[24:]) == {3}
    assert second.notes["rounds"].tolist() == [1.0]
    # It leaves: three clusters are left under their numbers, the empty one keeps its center.
    third = chosen(points[:24], second.labels[:24], second.centers, round=3)
    np.testing.assert_array_equal(third.labels, first.labels)
    np.testing.assert_array_equal(third.centers[3], second.centers[3])


def test_k_settles_and_stays() -> None:
    points, _ = blobs(3)
    found = chosen(points)
    for round in (2, 3):
        found = chosen(points, found.labels, found.centers, notes=found.notes, round=round)
    assert found.notes["rounds"].tolist() == [3.0]
    # Now even points that lie in five groups stay in three clusters, and no curve is made.
    other, _ = blobs(5, each=5, seed=1)
    after = chosen(other[:24], found.labels, found.centers, notes=found.notes, round=4)
    assert set(after.labels) == {0, 1, 2}
    assert set(after.notes) == {"k", "rounds", "clients", "settled"}


def test_a_new_client_keeps_k_open() -> None:
    points, _ = blobs(3)
    found = chosen(points[:-1])
    again = chosen(points, np.append(found.labels, 0), found.centers, notes=found.notes)
    assert again.notes["rounds"].tolist() == [1.0]


def test_wrong_choices_are_refused() -> None:
    with pytest.raises(ConfigError, match="most ≥ 2"):
        Auto(most=1)
    with pytest.raises(ConfigError, match="eps1"):
        Bipartition(eps1=-1)
    with pytest.raises(ConfigError, match="threshold"):
        Agglomerative(threshold=0)
    with pytest.raises(ConfigError, match="ward"):
        Agglomerative(linkage="ward")
    for name in ("ifca", "fedavg+", "fedprox+"):
        with pytest.raises(ConfigError, match="number of clusters"):
            wecfl.methods.named(name, k="auto")


# Updates


def test_the_bipartition_is_optimal() -> None:
    """Of all ways to part a cluster in two, the largest cosine between the parts is least."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        updates = rng.normal(size=(7, 3))
        view = View(updates, np.zeros((1, 3)), np.ones(7), np.zeros(7, np.int64))
        labels = Bipartition(eps1=9, eps2=0)(view, squared_euclidean, rng).labels
        units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        cosines = units @ units.T

        def worst(parts: Int, cosines: F64 = cosines) -> float:
            return float(cosines[np.ix_(parts == 0, parts == 1)].max())

        ways = [np.array([i >> j & 1 for j in range(7)]) for i in range(1, 2**6)]
        assert worst(labels) == pytest.approx(min(worst(way) for way in ways))


def test_a_cluster_that_moves_or_agrees_is_not_parted() -> None:
    apart = np.array([[1.0, 0.0], [-1.0, 0.1], [1.0, 0.1], [-1.0, 0.0]])
    together = apart + 5
    view = View(
        np.concatenate([apart, together]), np.zeros((2, 2)), np.ones(8), np.repeat([0, 1], 4)
    )
    found = Bipartition(eps1=0.5, eps2=0.5)(view, squared_euclidean, np.random.default_rng(0))
    assert found.labels.tolist() == [0, 2, 0, 2, 1, 1, 1, 1]
    np.testing.assert_allclose(found.notes["mean"], [0.05, np.hypot(5, 5.05)])
    still = Bipartition(eps1=0.5, eps2=2.0)(view, squared_euclidean, np.random.default_rng(0))
    assert still.labels.tolist() == view.labels.tolist()


def test_the_parts_of_a_second_split_have_the_right_clients() -> None:
    """The bug that others share: positions inside of a cluster taken for clients."""
    truth = np.tile(np.arange(3), 4)
    labels: Int = np.zeros(12, np.int64)
    centers: Real = np.zeros((1, 2))
    for pulls in ([[2.0, 0], [-1, 0], [-1, 0]], [[0.1, 0], [0, 1], [0, -1]]):
        points = np.array(pulls)[truth] + 0.01 * np.arange(24).reshape(12, 2) / 24
        view = View(points, centers, np.ones(12), labels)
        found = Bipartition(eps1=0.2, eps2=0.5)(view, squared_euclidean, np.random.default_rng(0))
        labels, centers = found.labels, found.centers
    assert adjusted_rand_score(labels, truth) == 1.0


def test_who_was_not_heard_keeps_its_cluster() -> None:
    points, truth = blobs(2)
    heard = np.arange(16) % 4 > 0
    points[~heard] = 0
    view = View(points, np.zeros((1, 30)), np.ones(16), np.zeros(16, np.int64), heard, round=1)
    for clustering in (Bipartition(eps1=99, eps2=0), Agglomerative()):
        found = clustering(view, squared_euclidean, np.random.default_rng(0))
        assert not found.labels[~heard].any()
        assert adjusted_rand_score(found.labels[heard], truth[heard]) == 1.0


def test_new_clusters_that_are_too_small_are_not_begun() -> None:
    view = View(
        np.array([[1.0], [1.1], [-1.0]]), np.zeros((1, 1)), np.ones(3), np.zeros(3, np.int64)
    )
    least = AtLeast(Bipartition(eps1=9, eps2=0), 2)
    found = least(view, squared_euclidean, np.random.default_rng(0))
    assert found.labels.tolist() == [0, 0, 0]
    assert len(found.centers) == 1


def test_a_relative_eps_does_not_depend_on_the_length_of_updates() -> None:
    """Two groups that pull apart: the same clusters at any scale, and by lengths at one only."""
    points = np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [-0.9, 0.1]])
    relative, lengths = Bipartition(0.2, 0.5, relative=True), Bipartition(0.2, 0.5)
    found = []
    for scale in (1e-3, 1.0, 1e3):
        view = View(scale * points, np.zeros((1, 2)), np.ones(4), np.zeros(4, int))
        draws = np.random.default_rng(0)
        clusters = [each(view, squared_euclidean, draws) for each in (relative, lengths)]
        found.append([len(each.centers) for each in clusters])
        assert clusters[0].labels.tolist() == [0, 0, 1, 1]
        assert clusters[0].notes["unit"][0] == pytest.approx(scale * np.hypot(1, 0.1))
    assert found == [[2, 1], [2, 2], [2, 1]]


def test_a_relative_eps_remembers_the_longest_update() -> None:
    """Clients that have come to rest are not split, though they still differ a little."""
    points = 0.1 * np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0], [-0.9, 0.1]])
    relative = Bipartition(0.3, 0.6, relative=True)
    for before, k in ((0.05, 2), (10.0, 1)):
        notes = {"unit": np.array([before])}
        view = View(points, np.zeros((1, 2)), np.ones(4), np.zeros(4, int), notes=notes)
        assert len(relative(view, squared_euclidean, np.random.default_rng(0)).centers) == k
    with pytest.raises(ConfigError, match="set it lower"):
        Bipartition(0.3, 1.0, relative=True)
