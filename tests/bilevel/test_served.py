"""A K that serves: the hierarchy against SciPy, the looks against naive ones, and whole runs."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import cut_tree, ward
from sklearn.metrics import adjusted_rand_score, silhouette_samples

import wecfl
from helpers import same_folders
from wecfl.bilevel.clustering import AtLeast, KMeans
from wecfl.bilevel.clustering.look import Gains, Look
from wecfl.bilevel.clustering.served import Served
from wecfl.bilevel.clustering.ward import silhouettes, weighted_ward
from wecfl.bilevel.distance import distances, squared_euclidean
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.representation import Columns
from wecfl.core.components import Clusters, Judge, View
from wecfl.core.plan import LocalPlan, validation_part
from wecfl.core.types import F64, Bool, Int
from wecfl.errors import ConfigError
from wecfl.method_from_config import method_of


def blobs(k: int, each: int = 8, apart: float = 3.0, seed: int = 0) -> tuple[F64, Int]:
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(k), each)
    return rng.normal(size=(k, 6))[truth] * apart + rng.normal(size=(k * each, 6)) * 0.3, truth


def judge_of(points: F64, noise: float = 0.3) -> Judge:
    """Clients want the model of their own group; a mean over few clients is less exact."""

    def judge(labels: Int | None, who: Bool) -> F64:
        own = np.arange(len(points)) if labels is None else labels
        far = ((points - cluster_means(points, own, np.ones(len(points)))[own]) ** 2).sum(axis=1)
        size = np.bincount(own)[own]
        unbiased = far * size / np.maximum(size - 1, 1) + noise * 6 / size
        return np.where(who, unbiased, np.nan)

    return judge


def view_of(points: F64, **more: Any) -> View:
    n = len(points)
    start, labels = points.mean(axis=0)[None], np.zeros(n, np.int64)
    view = View(points, start, np.ones(n), labels, round=1, judge=judge_of(points))
    return replace(view, **more)


def looked(view: View, clustering: Served | None = None) -> Clusters:
    return (clustering or Served())(view, squared_euclidean, np.random.default_rng(0))


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_the_hierarchy_is_wards_where_all_count_the_same(seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(20, 3))
    nodes = weighted_ward(distances(points), np.full(20, 2.0), 8)
    cuts = cut_tree(ward(points), np.arange(1, 9)).T
    assert [adjusted_rand_score(*pair) for pair in zip(nodes, cuts, strict=True)] == [1.0] * 8


@given(st.integers(0, 10_000))
@settings(max_examples=20)
def test_a_client_that_counts_twice_is_two_clients(seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, weight = rng.normal(size=(12, 3)), rng.integers(1, 4, 12)
    many = np.repeat(np.arange(12), weight)
    few = weighted_ward(distances(points), weight.astype(float), 5)
    more = weighted_ward(distances(points[many]), np.ones(len(many)), 5)
    for one, other in zip(few, more, strict=True):
        assert adjusted_rand_score(one[many], other) == 1.0


def test_silhouettes_are_scikit_learns() -> None:
    points, truth = blobs(3)
    found = silhouettes(distances(points) @ np.eye(3)[truth], truth, np.ones(24))
    np.testing.assert_allclose(found, silhouette_samples(points, truth), atol=1e-12)


def test_trying_by_generations_is_trying_every_k() -> None:
    points, _ = blobs(4, each=5, apart=1.0)
    judge, weight = judge_of(points), np.random.default_rng(1).uniform(1, 3, 20)
    asked = []

    def counting(labels: Int | None, who: Bool) -> F64:
        asked.append(int(who.sum()))
        return judge(labels, who)

    look = Look.of(points, weight, counting, most=10)
    everyone = np.ones(20, np.bool_)
    naive = np.stack([judge(labels, everyone) for labels in look.labels], axis=1)
    np.testing.assert_allclose(look.losses, naive)
    assert sum(asked) < 20 * len(look.labels)  # a client is asked only if its cluster changes


@pytest.mark.parametrize("k", [2, 5, 9])
def test_groups_are_counted(k: int) -> None:
    points, truth = blobs(k)
    look = Look.of(points, np.ones(len(points)), judge_of(points), most=20)
    assert look.best == k
    assert adjusted_rand_score(look.labels[k - 1], truth) == 1.0


def test_clients_that_are_alike_or_all_different_have_one_cluster() -> None:
    same = np.random.default_rng(0).normal(size=(30, 6))
    assert Look.of(same, np.ones(30), judge_of(same, noise=9.0), most=20).best == 1
    # Each client wants a model of its own, which any division serves a little better than none.
    far = np.random.default_rng(0).normal(size=(30, 40)) * 9
    alone = Look.of(far, np.ones(30), judge_of(far), most=20)
    assert alone.clearest > 1
    assert alone.best == 1


def test_a_division_that_serves_no_better_is_not_made() -> None:
    """Two groups, one of which lies in two places that want the same model, as far as is known."""
    rng = np.random.default_rng(0)
    losses = np.stack([np.full(20, 2.0), np.full(20, 1.0), 1.0 - rng.normal(0.01, 0.2, 20)], axis=1)
    silhouette, labels = np.array([np.nan, 0.5, 0.6]), np.zeros((3, 20), np.int64)
    look = Look(labels, silhouette, losses, np.full(20, 0.95), np.full(20, 1 / 20))
    assert (look.clearest, look.proposed, look.best) == (3, 2, 2)
    surely = replace(look, losses=losses - np.array([0, 0, 0.3]))
    assert (surely.clearest, surely.proposed, surely.best) == (3, 3, 3)


def test_losses_with_the_models_of_others() -> None:
    """If losses are linear, they are those of models that each client had no part in."""
    rng = np.random.default_rng(0)
    points, slopes, weight = rng.normal(size=(12, 3)), rng.normal(size=(12, 3)), np.arange(1.0, 13)
    own = np.arange(12) % 2

    def linear(labels: Int | None, who: Bool) -> F64:
        models = points if labels is None else cluster_means(points, labels, weight)[labels]
        return np.where(who, (slopes * models).sum(axis=1), np.nan)

    nodes = np.stack([np.zeros(12, np.int64), own + 1])
    look = Look.judged(nodes, np.array([np.nan, 0.5]), weight / weight.sum(), linear)
    for level, labels in enumerate(look.labels):
        for i in range(12):
            others = (labels == labels[i]) & (np.arange(12) != i)
            theirs = np.average(points[others], axis=0, weights=weight[others])
            np.testing.assert_allclose(look.from_others[i, level], slopes[i] @ theirs)


def test_a_client_that_makes_most_of_its_model_counts_as_half_of_it() -> None:
    labels = np.array([[0, 0, 0], [0, 0, 1]])
    losses, alone = np.array([[2.0, 2.0], [2.0, 2.0], [2.0, 5.0]]), np.array([3.0, 3.0, 5.0])
    look = Look(labels, np.array([np.nan, 0.5]), losses, alone, np.array([0.8, 0.1, 0.1]))
    np.testing.assert_allclose(look.from_others[0], [1.0, 1.0])
    np.testing.assert_allclose(look.from_others[2], [(2 - 0.1 * 5) / 0.9, 5.0])


def test_what_clients_gain_from_their_own_part_in_a_model_does_not_divide_them() -> None:
    """Each has something of its own, and the larger its share of a model, the less the loss."""
    rng = np.random.default_rng(0)
    labels = np.stack([np.arange(40) * k // 40 for k in (1, 2, 4, 8)])
    share = 1 / np.stack([np.bincount(own)[own] for own in labels], axis=1)
    losses = 2 - share + rng.normal(0, 0.001, (40, 4)) - 0.5 * (np.arange(4) > 0)
    silhouette = np.array([np.nan, 0.4, 0.4, 0.4])
    look = Look(labels, silhouette, losses, np.full(40, 0.5), np.full(40, 1 / 40))
    assert look.loss.argmin() == 3
    assert look.proposed == 2
    assert replace(look, losses=np.tile(look.alone[:, None], 4)).proposed == 1


def test_two_rounds_together_show_what_one_of_them_does_not() -> None:
    rng = np.random.default_rng(0)
    gains = rng.normal(size=40)
    gains = 1.5 * gains.std(ddof=1) / np.sqrt(40) + gains - gains.mean()  # 1.5 standard errors
    look = Look(
        np.stack([np.zeros(40, np.int64), np.arange(40) % 2]), np.array([np.nan, 0.5]),
        np.stack([np.full(40, 5.0), 5.0 - gains], axis=1), np.full(40, 9.0), np.full(40, 1 / 40),
    )  # fmt: skip
    now = look.gains(2)
    assert now.clusters == pytest.approx(1.5 * now.error)
    assert look.best == 1
    assert look.confirmed(Gains(3.0 * now.error, now.error, -4.0)) == 2
    assert look.confirmed(Gains(2.4 * now.error, now.error, -4.0)) == 1
    assert look.confirmed(Gains(3.0 * now.error, now.error, 20.0)) == 1  # local models are better


def test_once_divided_a_lower_f_that_nobody_judged_does_not_part_them_anew() -> None:
    """The first group has most of λ and two halves; K-means would rather divide it."""
    place = np.array([0.0] * 4 + [1.0] * 4 + [6.0] * 4 + [9.0] * 4)
    points = place[:, None] + np.random.default_rng(0).normal(size=(16, 1)) * 0.01
    weight = np.array([100.0] * 8 + [1.0] * 8)
    truth = np.repeat([0, 1, 2], [8, 4, 4])
    settled = {name: np.array([value]) for name, value in
               {"k": 3.0, "settled": 1.0, "found": 3.0, "next": 9.0}.items()}  # fmt: skip
    view = view_of(
        points, centers=cluster_means(points, truth, weight), labels=truth, importance=weight,
        notes=settled, round=3,
    )  # fmt: skip
    parted = KMeans()(view, squared_euclidean, np.random.default_rng(0)).labels
    assert adjusted_rand_score(parted, truth) < 1
    np.testing.assert_array_equal(looked(view).labels, truth)


def test_two_looks_must_agree_before_clients_are_divided() -> None:
    points, truth = blobs(3)
    first = looked(view_of(points))
    assert (first.labels == 0).all()
    assert first.validate
    again = looked(view_of(points, notes=first.notes, round=2))
    assert adjusted_rand_score(again.labels, truth) == 1.0
    assert not again.validate
    # Now K stays, and nobody is asked any more.
    after = looked(
        view_of(points, notes=again.notes, round=3, labels=again.labels, centers=again.centers,
                judge=None)
    )  # fmt: skip
    np.testing.assert_array_equal(after.labels, again.labels)
    assert after.notes["k"].tolist() == [3.0]
    assert "loss" not in after.notes


def second_look(before: Clusters, points: F64, judge: Judge, **more: Any) -> Clusters:
    """What is found in the next round, when the clients have moved."""
    more = {"notes": before.notes, "candidate": before.candidate, "round": 2, "judge": judge} | more
    return looked(view_of(points, **more))


def test_what_the_first_look_found_is_made_if_it_serves_in_the_next_round() -> None:
    """The clients' models then tell nothing any more, but those who were together still do well."""
    points, truth = blobs(4)
    noise = np.random.default_rng(1).normal(size=points.shape)
    found = second_look(looked(view_of(points)), noise, judge_of(points))
    assert adjusted_rand_score(found.labels, truth) == 1.0
    assert found.notes["settled"].tolist() == [1.0]
    np.testing.assert_allclose(found.centers, cluster_means(noise, found.labels, np.ones(32)))
    assert found.candidate is None


def test_clusters_that_gain_nothing_in_the_next_round_are_one() -> None:
    """In the first round one group seems to be two."""
    points, truth = blobs(3)
    halves = truth + (np.arange(24) % 8 > 3) * 3 * (truth == 2)
    apart = points + 2.0 * (halves == 5)[:, None]
    first = looked(view_of(apart, judge=judge_of(apart)))
    assert first.notes["found"].tolist() == [4.0]
    found = second_look(first, apart, judge_of(points))
    assert adjusted_rand_score(found.labels, truth) == 1.0
    assert found.notes["k"].tolist() == [3.0]
    kept = second_look(first, apart, judge_of(apart))
    assert adjusted_rand_score(kept.labels, halves) == 1.0


def test_clusters_that_do_not_serve_in_the_next_round_are_not_made() -> None:
    first, (points, truth) = looked(view_of(blobs(2)[0])), blobs(4, each=4, seed=5)
    again = second_look(first, points, judge_of(points))
    assert (again.labels == 0).all()
    assert again.notes["found"].tolist() == [4.0]
    third = second_look(again, points, judge_of(points), round=3)
    assert adjusted_rand_score(third.labels, truth) == 1.0


def test_clients_that_the_first_look_missed_join_the_nearest_cluster() -> None:
    points, truth = blobs(3)
    early, late = np.arange(24) % 8 != 0, np.arange(24) % 8 != 1
    first = looked(view_of(points, heard=early))
    found = second_look(first, points, judge_of(points), heard=late)
    assert found.notes["settled"].tolist() == [1.0]
    assert adjusted_rand_score(found.labels[late], truth[late]) == 1.0
    assert found.placed is not None
    np.testing.assert_array_equal(found.placed, late)
    # If nobody of a cluster is heard again, nobody can say whether it serves: a new look is taken.
    gone = second_look(first, points, judge_of(points), heard=truth > 0)
    assert gone.notes["found"].tolist() == [2.0]
    assert not gone.notes["settled"][0]


def test_a_run_that_stops_between_two_looks_finds_the_same(tmp_path: Path) -> None:
    config = wecfl.Config(
        transform=("rotation",), partition="iid", clients=24, groups=4, clusters="auto", lr=0.03,
        rounds=3, objectives=False,
    )  # fmt: skip
    wecfl.run_config(config, out=tmp_path / "whole")
    wecfl.run_config(config.model_copy(update={"rounds": 1}), out=tmp_path / "run")
    found = wecfl.run_config(config, out=tmp_path / "run", resume=True)
    assert found.records[-1]["clusters"] == 4
    same_folders(tmp_path / "whole", tmp_path / "run")


def test_a_look_compares_other_columns_than_clusters_follow() -> None:
    """The groups are seen in these columns only; centers are those of the representation."""
    shown, truth = blobs(3)
    points = np.random.default_rng(1).normal(size=(24, 2))

    def by_columns(which: str) -> View:
        assert which == "linear"
        return view_of(shown)

    judge = judge_of(shown)
    first = looked(view_of(points, judge=judge, by_columns=by_columns))
    assert first.notes["found"].tolist() == [3.0]
    assert first.centers.shape == (1, 2)
    found = looked(
        view_of(points, judge=judge, by_columns=by_columns, notes=first.notes,
                candidate=first.candidate, round=2)
    )  # fmt: skip
    assert adjusted_rand_score(found.labels, truth) == 1.0
    np.testing.assert_allclose(found.centers, cluster_means(points, found.labels, np.ones(24)))
    alone = Served(columns="representation")
    blind = looked(view_of(points, judge=judge, by_columns=by_columns), alone)
    assert blind.notes["found"].tolist() == [1.0]


def test_wide_models_are_folded_for_a_look() -> None:
    few, truth = blobs(4)
    wide = np.pad(few, ((0, 0), (5000, 0)))

    def by_columns(which: str) -> View:
        return replace(view_of(few), points=wide, centers=wide.mean(axis=0)[None])

    first = looked(view_of(few * 0, judge=judge_of(few), by_columns=by_columns))
    assert first.candidate is not None
    assert adjusted_rand_score(first.candidate[:, -1], truth) == 1.0


def between() -> tuple[F64, Int]:
    """The first client is of the first of two groups; K-means gives it to the other, smaller one.

    The mean of a small cluster follows a single client more.
    """
    truth = np.repeat([0, 1], [14, 8])
    points = 10.0 * truth[:, None] + np.random.default_rng(0).normal(size=(22, 1)) * 0.01
    points[0] = 4.98
    return points, truth


def judge_by_companions(truth: Int, wanted: int) -> Judge:
    """The loss is 0 where half of a client's companions are of the group that it wants.

    The first client wants the group `wanted`, the others want their own. Their own models serve
    them nearly as well.
    """
    wants = np.where(np.arange(len(truth)) == 0, wanted, truth)

    def judge(labels: Int | None, who: Bool) -> F64:
        if labels is None:
            return np.where(who, 0.05, np.nan)
        together = (labels[:, None] == labels) & ~np.eye(len(truth), dtype=bool)
        alike = (together & (truth == wants[:, None])).sum(axis=1)
        served = together.any(axis=1) & (alike >= together.sum(axis=1) / 2)
        return np.where(who, 1.0 - served, np.nan)

    return judge


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_client_between_two_clusters_says_which_one_serves_it(wanted: int) -> None:
    points, truth = between()
    judge = judge_by_companions(truth, wanted)
    first = looked(view_of(points, judge=judge))
    found = looked(view_of(points, judge=judge, notes=first.notes, round=2))
    assert found.notes["k"].tolist() == [2.0]
    assert (adjusted_rand_score(found.labels, truth) == 1.0) == (wanted == 0)
    means = cluster_means(points, found.labels, np.ones(22))
    np.testing.assert_allclose(found.centers, means)


def test_in_the_next_round_it_is_asked_again() -> None:
    points, truth = between()
    first = looked(view_of(points, judge=judge_by_companions(truth, 1)))
    for wanted in (0, 1):
        found = second_look(first, points, judge_by_companions(truth, wanted))
        assert (adjusted_rand_score(found.labels, truth) == 1.0) == (wanted == 0)


def test_after_three_looks_without_groups_there_is_a_pause() -> None:
    points = np.random.default_rng(0).normal(size=(30, 6))
    judge, validates = judge_of(points, noise=9.0), []
    notes: dict[str, F64] = {}
    for round in range(1, 14):
        found = looked(view_of(points, notes=notes, round=round, judge=judge))
        notes = dict(found.notes)
        validates.append(found.validate)
    assert [t for t, validate in enumerate(validates, 1) if validate] == [1, 2, 12]


def test_who_was_not_heard_is_placed_later() -> None:
    points, truth = blobs(3)
    heard = np.arange(24) % 4 > 0
    first = looked(view_of(points, heard=heard))
    found = looked(view_of(points, heard=heard, notes=first.notes, round=2))
    assert adjusted_rand_score(found.labels[heard], truth[heard]) == 1.0
    assert found.placed is not None
    np.testing.assert_array_equal(found.placed, heard)
    small = AtLeast(Served(), 2)(
        view_of(points, heard=heard, notes=first.notes, round=2),
        squared_euclidean, np.random.default_rng(0),
    )  # fmt: skip
    np.testing.assert_array_equal(small.placed, heard)


def test_validation_samples_are_not_trained_on() -> None:
    for size in (2, 7, 50, 300):
        kept, held = validation_part(size, 3, 5)
        assert sorted([*kept, *held]) == list(range(size))
        plan = LocalPlan(steps=40, batch=16, leave_validation=True)
        used = np.unique(np.concatenate(plan.batches(size, 3, 0, 5)))
        np.testing.assert_array_equal(used, kept)


@cache
def turned_digits(groups: int) -> wecfl.Federation:
    fed = wecfl.Federation.from_dataset("digits", wecfl.partitions.Iid(), clients=24, seed=1)
    x, truth = fed.x.copy(), np.arange(24) % groups
    for own in (fed.train, fed.test):
        for group, rows in zip(truth, own, strict=True):
            x[rows] = np.rot90(x[rows], int(group), axes=(-2, -1))
    return replace(fed, x=x, groups=truth)


@pytest.mark.parametrize("groups", [1, 4])
def test_turned_digits_have_as_many_clusters_as_turns(groups: int) -> None:
    """Rotated images were taken for one group by the fixed threshold of the silhouette."""
    result = wecfl.run(
        turned_digits(groups), wecfl.methods.wecfl("auto"), rounds=3, plan=wecfl.Plan(lr=0.03),
        measure=wecfl.Measure(objectives=False),
    )  # fmt: skip
    assert result.records[-1]["clusters"] == groups
    assert result.records[-1]["ari"] == 1.0
    words = f"{groups} groups" if groups > 1 else "would not serve held-out samples better"
    assert words in result.choice
    assert words in repr(result)


def turned_run(columns: str, **more: Any) -> wecfl.Result:
    method = wecfl.methods.wecfl("auto").replace(clustering=Served(columns=columns), **more)
    return wecfl.run(
        turned_digits(4), method, rounds=3, plan=wecfl.Plan(lr=0.03),
        measure=wecfl.Measure(objectives=False),
    )  # fmt: skip


def test_columns_that_clients_keep_are_not_compared() -> None:
    found = turned_run("linear", shared="~classifier", representation=Columns("~classifier"))
    assert found.records[-1]["ari"] == 1.0
    with pytest.raises(ConfigError, match="share no column 'head'"):
        turned_run("head", shared="~classifier", representation=Columns("~classifier"))


@pytest.mark.parametrize("recluster", ["every", "settled"])
def test_a_chosen_representation_also_chooses_k(recluster: Any) -> None:
    usual = wecfl.Config(clusters="auto", options=(("recluster", recluster),))
    chosen = usual.model_copy(update={"representation": "parameters"})
    words = [repr(method_of(config).clustering) for config in (usual, chosen)]
    assert "columns='linear'" in words[0]
    assert "columns='representation'" in words[1]


def test_privacy_and_wrong_choices_are_refused() -> None:
    with pytest.raises(ConfigError, match="set criterion to both"):
        wecfl.Experiment(
            turned_digits(4), wecfl.methods.wecfl("auto"), privacy=wecfl.Privacy(1.0, 1.0)
        ).check()
    with pytest.raises(ConfigError, match="most ≥ 2"):
        Served(most=1)
