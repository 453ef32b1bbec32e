"""Clusters by losses, and what goes wrong elsewhere."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest

import wecfl
from helpers import BowlEngine
from wecfl import methods
from wecfl.bilevel.aggregation.joint_means import PeerGroups, PeerMeans
from wecfl.bilevel.clustering import KMeans, Nearest, Once
from wecfl.bilevel.clustering.losses import LossSpread, LossVectors
from wecfl.bilevel.distance import component, squared_euclidean
from wecfl.bilevel.evaluation import losses
from wecfl.core.components import View
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import opening
from wecfl.core.setting import Setting
from wecfl.core.state import State


def view(points: Any) -> View:
    points = np.asarray(points, float)
    return View(points, np.eye(points.shape[1]), np.ones(len(points)), np.zeros(len(points), int))


def draws() -> np.random.Generator:
    return np.random.default_rng(0)


def test_a_model_that_is_best_for_all_does_not_win_all() -> None:
    """IFCA's collapse: every client chooses for itself."""
    seen = view([[0.1, 0.5], [0.2, 0.5], [0.4, 0.9], [0.5, 0.9]])
    assert set(Nearest()(seen, component, draws()).labels) == {0}
    found = LossVectors()(seen, component, draws()).labels
    assert found.tolist() == [1, 1, 0, 0]  # 0.5 + 0.5 + 0.4 + 0.5 < 0.1 + 0.2 + 0.9 + 0.9


@pytest.mark.parametrize("seed", range(8))
def test_models_are_matched_to_clusters_by_the_least_summed_loss(seed: int) -> None:
    """Three groups of clients far apart, so that K-means is sure; the matching is tried out."""
    random = np.random.default_rng(seed)
    groups = np.repeat(np.arange(3), 4)
    levels = random.permutation(9).reshape(3, 3).astype(float)
    seen = view(levels[groups] + 0.01 * random.random((12, 3)))
    found = LossVectors()(seen, component, draws()).labels
    totals = {
        order: sum(seen.points[i, order[groups[i]]] for i in range(12))
        for order in permutations(range(3))
    }
    best = min(totals, key=lambda order: totals[order])
    assert found.tolist() == [best[group] for group in groups]


def test_fewer_clients_than_models() -> None:
    """Each of two clients gets a model of its own, and the third model stays."""
    found = LossVectors()(view([[0.3, 0.1, 0.2], [0.3, 0.1, 0.9]]), component, draws())
    assert found.labels.tolist() == [2, 1]
    np.testing.assert_array_equal(found.centers, np.eye(3))


def spread(restarts: int) -> tuple[State, BowlEngine]:
    random = np.random.default_rng(1)
    targets = np.repeat(random.normal(size=(3, 4), scale=5), 4, axis=0)
    targets += 0.01 * random.normal(size=targets.shape)
    engine = BowlEngine(targets, np.arange(1, 13))
    method = methods.ifca_plus(3, share_body=False, restarts=restarts, start_steps=50)
    setting = Setting(method, engine, LocalPlan(lr=0.5, momentum=0.0))
    return opening(setting), engine


def test_the_spread_start_gives_each_group_a_model() -> None:
    """Where random starts leave groups together, each of three groups finds its own."""
    state, _ = spread(restarts=10)
    assert len(np.unique(state.labels)) == 3
    assert [len(set(state.labels[4 * g : 4 * g + 4])) for g in range(3)] == [1, 1, 1]


def test_more_restarts_never_start_worse() -> None:
    totals = []
    for restarts in (1, 3, 10):
        state, engine = spread(restarts)
        totals.append(float(engine.sizes @ losses(engine, state.centers).min(axis=1)))
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LossSpread(restarts=0), lambda: LossVectors(fresh=0), lambda: PeerGroups(0),
        lambda: methods.ifca_one_shot(2, start_steps=0),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(wecfl.errors.ConfigError, match=r"at least 1|≥ 1"):
        make()


def test_peers_are_told_apart_evenly_and_anew(fed: wecfl.Federation) -> None:
    seen = []

    def watch(step: str, state: State, seconds: float) -> None:
        if step == "L":
            seen.append(state.known["peers"].tolist())

    wecfl.Experiment(fed, methods.fedp2p(2), model="mlp", rounds=6).run(observe=watch)
    assert all(sorted(peers.count(g) for g in (0, 1)) == [2, 3] for peers in seen)
    assert len({tuple(peers) for peers in seen}) > 1


def test_groups_count_alike_whatever_their_size() -> None:
    """Two levels: the mean of means is not the mean of all."""
    models = {"model": np.array([[0.0], [2.0], [9.0]], np.float32)}
    start, labels = np.zeros((1, 1), np.float32), np.zeros(3, int)
    state = State(1, models, start, labels, known={"peers": np.array([0, 0, 1])})
    assert PeerMeans()(state, np.array([3.0, 1, 1]), np.ones(3, int)).centers.item() == 4.75


def test_one_group_of_peers_is_fedavg(fed: wecfl.Federation) -> None:
    one, plain = (
        wecfl.run(fed, method, model="mlp", rounds=3)
        for method in (methods.fedp2p(1), methods.fedavg)
    )
    np.testing.assert_allclose(one.centers, plain.centers, atol=1e-6)


@pytest.mark.parametrize(
    "method", [methods.ifca_one_shot(2), methods.ifca_plus(2), methods.cam(2), methods.fedem(2)]
)
def test_what_noise_does_not_cover_is_refused(method: Any, fed: wecfl.Federation) -> None:
    privacy = wecfl.Privacy(clip=1.0, noise=1.0)
    with pytest.raises(wecfl.errors.ConfigError, match=r"^[^\n]*no noise|budget[^\n]*$"):
        measure = wecfl.Measure(objectives=False)
        wecfl.run(fed, method, model="mlp", rounds=1, privacy=privacy, measure=measure)


def test_once_is_once() -> None:
    """Clients that have moved since keep their clusters."""
    clustering = Once(KMeans())
    first = View(np.array([[0.0], [0.1], [9.0]]), np.zeros((2, 1)), np.ones(3), np.zeros(3, int))
    found = clustering(first, squared_euclidean, draws())
    assert found.labels[0] == found.labels[1] != found.labels[2]
    moved = np.array([[0.0], [9.1], [9.0]])
    later = View(moved, found.centers, np.ones(3), found.labels, round=1, notes=found.notes)
    again = clustering(later, squared_euclidean, draws())
    np.testing.assert_array_equal(again.labels, found.labels)
    assert again.notes.keys() == {"clustered"}
