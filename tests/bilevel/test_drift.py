"""Drift is found at the stated rate, and clients go where they belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import same_folders
from wecfl.bilevel.clustering import KMeans
from wecfl.bilevel.clustering.drift import UntilSettled, Watch, has_settled
from wecfl.bilevel.distance import squared_euclidean
from wecfl.config import Config
from wecfl.core.components import View
from wecfl.core.program import Answers
from wecfl.core.state import State
from wecfl.errors import ConfigError
from wecfl.experiment import run_config
from wecfl.folder.readers import read_metrics, read_summary
from wecfl.from_config import federation_of

WORLD = Config(
    partition="iid", transform=("permutation",), clients=24, groups=3, clusters=3, rounds=11,
    model="logistic", lr=0.1, workers=1, objectives=False, drift="abrupt(round=9, share=0.25)",
    options=(("alarm", 0.05), ("recluster", "drift")),
)  # fmt: skip


def changed(**choices: Any) -> Config:
    return WORLD.model_copy(update=choices)


def watched(watch: Watch, losses: Any, k: Any = 2, unchanged: float = 9.0) -> list[State]:
    """The states after rounds in which the clients' losses (rounds, m, K) are these."""
    _, m, clusters = losses.shape
    state = State(0, None, np.eye(clusters, 2, dtype=np.float32), np.zeros(m, np.int64),
                  whole={"notes.unchanged": np.array([unchanged])})  # fmt: skip
    states = []
    for now in losses:

        def ask(job: Any, sent: Any, who: Any, memory: Any, now: Any = now) -> Answers:
            of = now[who][:, : len(sent.common["models"])]
            return Answers({"losses": of}, np.zeros(len(who), np.int8))

        setting: Any = SimpleNamespace(
            engine=SimpleNamespace(ask=ask), seed=0, method=SimpleNamespace(k=k)
        )
        own = now[np.arange(m), np.minimum(state.labels, now.shape[1] - 1)]
        after = replace(state, replies={"risk": own})
        state = replace(watch(state, after, {}, setting), round=state.round + 1)
        states.append(state)
    return states


def noise(rounds: int, m: int, seed: int = 0) -> Any:
    """Losses that fall, with noise whose tails are heavy."""
    rng = np.random.default_rng(seed)
    trend = -0.1 * np.arange(rounds)[:, None] + 0.1 * rng.standard_t(4, (rounds, m))
    one = np.exp(trend)
    return np.stack([one, 50 * one], axis=2)


@pytest.mark.parametrize("alarm", [0.01, 0.05, 0.2])
def test_without_drift_alarms_are_as_rare_as_stated(alarm: float) -> None:
    states = watched(Watch(alarm), noise(60, 60))
    found = np.stack([state.known["drifted"] for state in states[10:]])
    assert alarm / 5 < found.mean() <= alarm
    assert not any(state.labels.any() for state in states)


def test_clients_whose_loss_rises_go_to_the_model_that_suits_them() -> None:
    losses = noise(20, 30)
    losses[15:, :9] = losses[15:, :9, ::-1]  # from now on the other model is the good one
    before, at, after = watched(Watch(), losses)[14:17]
    assert not before.known["drifted"][:9].any()
    assert np.flatnonzero(at.known["drifted"]).tolist() == list(range(9))
    assert after.labels.tolist() == [1] * 9 + [0] * 21


@pytest.mark.parametrize(("k", "clusters"), [(2, 2), ("auto", 3)])
def test_clients_that_no_model_suits_make_a_cluster_if_k_is_open(k: Any, clusters: int) -> None:
    losses = noise(18, 30)
    losses[15:, :9] *= 60
    at = watched(Watch(), losses, k)[15]
    assert at.known["drifted"][:9].all()
    assert len(at.centers) == clusters
    assert (at.labels[:9] == clusters - 1).all() == (k == "auto")
    assert not at.labels[9:].any()


def walked(lengths: Any, losses: Any, alarm: float = 0.01) -> list[tuple[State, State]]:
    """The states after local updates of these lengths (rounds, m), watched, and as they were sent.

    `losses` (K,) are those of the clusters' models for whoever is asked.
    """
    m = lengths.shape[1]
    whole = {"notes.unchanged": np.array([9.0])}
    state = State(0, None, np.eye(2, dtype=np.float32), np.zeros(m, np.int64), whole=whole)
    by_model = SimpleNamespace(asks=False, tells=None, clients=lambda state, *_: state.models)
    setting: Any = SimpleNamespace(
        engine=SimpleNamespace(
            ask=lambda job, sent, who, memory: Answers(
                {"losses": np.tile(losses, (len(who), 1))}, np.zeros(len(who), np.int8)
            )
        ),
        seed=0, method=SimpleNamespace(k=2, representation=by_model),
    )  # fmt: skip
    states = []
    for length in lengths:
        trained = state.sent + np.array([[0, 1]]) * length[:, None].astype(np.float32)
        after = replace(state, replies={"model": trained}, round=state.round + 1)
        found = Watch(alarm, by="distance")(state, after, {}, setting)
        states.append((found, after))
        state = replace(found, replies=None)
    return states


def test_by_distance_alarms_are_as_rare_as_stated() -> None:
    states = walked(noise(60, 60)[:, :, 0], np.array([1.0, 2.0]), alarm=0.05)
    found = np.stack([state.known["drifted"] for state, _ in states[10:]])
    assert 0.01 < found.mean() <= 0.05
    for state, after in states:  # nobody moves, and nobody's update is touched
        assert not state.labels.any()
        assert np.array_equal(state.models, after.models)


def test_clients_whose_update_is_long_move_and_their_update_is_dropped() -> None:
    lengths = noise(18, 30)[:, :, 0]
    lengths[15, :9] *= 60
    before, (at, after), (later, _) = walked(lengths, np.array([2.0, 1.0]))[14:17]
    assert not before[0].known["drifted"][:9].any()
    assert np.flatnonzero(at.known["drifted"]).tolist() == list(range(9))
    assert at.labels.tolist() == later.labels.tolist() == [1] * 9 + [0] * 21
    assert np.array_equal(at.models[:9], np.tile(at.centers[1], (9, 1)))
    assert np.array_equal(at.models[9:], after.models[9:])


@pytest.mark.parametrize(("clusters", "found"), [(1, 2), (2, 2)])
def test_one_cluster_need_not_have_settled_to_be_divided(clusters: int, found: int) -> None:
    losses = noise(18, 30)[:, :, :clusters]
    losses[15:, :9] *= 60
    at = watched(Watch(), losses, "auto", unchanged=0)[15]
    assert len(at.centers) == found
    assert has_settled(at.notes) == (clusters == 1)


def test_an_assignment_that_has_settled_stays() -> None:
    points = np.array([[0.0], [1.0], [9.0]])
    view = View(points, np.array([[0.5], [9.0]]), np.ones(3), np.array([0, 0, 1]), round=2)
    clustering, draws = UntilSettled(KMeans(), patience=2), np.random.default_rng(0)
    for _ in range(3):
        found = clustering(view, squared_euclidean, draws)
        view = replace(view, labels=found.labels, notes=found.notes)
    assert found.notes["unchanged"].tolist() == [2.0]
    elsewhere = replace(view, points=points[::-1].copy())
    assert clustering(elsewhere, squared_euclidean, draws).labels.tolist() == [0, 0, 1]
    fresh = replace(elsewhere, notes={})
    assert clustering(fresh, squared_euclidean, draws).labels.tolist() == [1, 0, 0]


def test_a_run_finds_its_groups_again_and_tells_it(tmp_path: Path) -> None:
    fed: Any = federation_of(WORLD)
    result = run_config(WORLD, out=tmp_path / "run")
    last = read_metrics(tmp_path / "run")[-1]
    told = read_summary(tmp_path / "run")["drift"]
    assert (told["rounds"], told["changed"], told["found"], told["at_once"]) == ([9], 6, 6, 6)
    assert last["ari"] == 1.0
    assert told["who"] == np.flatnonzero(fed.at(9).groups != fed.groups).tolist()
    static = run_config(changed(options=(("recluster", "settled"),)))
    assert static.records[-1]["ari"] < last["ari"]
    assert static.records[-1]["accuracy"] < result.records[-1]["accuracy"]


def test_a_new_group_gets_a_cluster_when_k_is_chosen() -> None:
    records = run_config(changed(clusters="auto", drift="appear(round=9)", rounds=10)).records
    assert [records[t - 1]["clusters"] for t in (8, 10)] == [2, 3]
    assert records[-1]["ari"] == 1


def test_a_stopped_run_finds_the_same(tmp_path: Path) -> None:
    """It stops in the round of the change, and goes on in the next."""
    config = changed(rounds=10, participation=0.8)
    run_config(config, out=tmp_path / "whole")
    run_config(config.model_copy(update={"rounds": 9}), out=tmp_path / "run")
    run_config(config, out=tmp_path / "run", resume=True)
    same_folders(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize(
    "options",
    [
        (("recluster", "never"),), (("recluster", "drift"), ("alarm", 0.0)),
        (("recluster", "drift"), ("alarm", 2.0)), (("alarm", 0.1),), (("watch", "loss"),),
        (("recluster", "drift"), ("watch", "angle")),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        run_config(changed(options=options))
    assert "\n" not in str(caught.value)


def test_a_run_that_watches_distances_finds_most_and_sends_less() -> None:
    options = (*WORLD.options, ("watch", "distance"))
    far, by_loss = run_config(changed(options=options)), run_config(WORLD)
    assert far.summary["drift"]["at_once"] >= 4
    assert far.records[-1]["ari"] > 0.7
    down = [sum(record["traffic"]["down"] for record in run.records) for run in (far, by_loss)]
    assert down[0] < 0.75 * down[1]
    with pytest.raises(ConfigError, match="watch to loss"):
        run_config(changed(options=options, representation="moments", distance="squared-euclidean"))


def test_under_privacy_no_loss_leaves_a_client() -> None:
    with pytest.raises(ConfigError):
        run_config(changed(clip=1.0, noise=1.0))
