"""Robust centers beside libraries and naive twins, and what theory promises of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from wecfl import methods
from wecfl.bilevel.aggregation import (
    AGGREGATIONS,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    NormClip,
    TrimmedMean,
    robust,
)
from wecfl.bilevel.importance import data_size, uniform
from wecfl.core.components import Aggregation
from wecfl.core.state import State
from wecfl.core.types import F32, F64
from wecfl.errors import ConfigError

EVERY = [pytest.param(make(), id=name) for name, make in AGGREGATIONS.items()]


def center(aggregation: Aggregation, rows: Any, weight: Any = None) -> F64:
    """What the members with these rows and λ are aggregated to."""
    models = np.asarray(rows, np.float32)
    n = len(models)
    importance = np.ones(n) if weight is None else np.asarray(weight, np.float64)
    state = State(
        1, {"model": models}, np.full((1, models.shape[1]), 7, "f4"), np.zeros(n, np.int64)
    )
    before = models.copy()
    found = aggregation(state, importance, np.ones(n, np.int64)).centers
    np.testing.assert_array_equal(models, before)
    assert found.dtype == np.float32
    return np.asarray(found[0], np.float64)


def members(n: int, p: int = 40, seed: int = 0) -> tuple[F32, F64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, p)).astype("f4"), rng.integers(1, 9, n).astype(float)


# ── beside libraries and naive twins ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 20, 31])
def test_median_is_numpys_for_equal_importance(n: int) -> None:
    rows, _ = members(n, 3000)  # more than one block
    rows[:, :5] = rows[0, 0]  # ties
    rows[:, 5:9] = np.sign(rows[:, 5:9]) * 0
    for weight in (np.ones(n), np.full(n, 0.1), np.full(n, 3e7)):
        np.testing.assert_array_equal(center(Median(), rows, weight), np.median(rows, axis=0))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 20])
def test_weighted_median_is_the_median_of_repeated_members(n: int) -> None:
    rows, weight = members(n)
    repeated = np.repeat(rows, weight.astype(int), axis=0)
    np.testing.assert_array_equal(center(Median(), rows, weight), np.median(repeated, axis=0))


@pytest.mark.parametrize(("n", "share"), [(5, 0.2), (10, 0.1), (20, 0.2), (30, 0.1), (8, 0.25)])
def test_trimmed_mean_is_scipys_for_whole_counts(n: int, share: float) -> None:
    rows, _ = members(n, 3000)
    expected = scipy.stats.trim_mean(rows.astype(np.float64), share + 1e-12, axis=0)
    np.testing.assert_allclose(center(TrimmedMean(share), rows), expected, atol=1e-6)


def test_weighted_trimmed_mean_is_that_of_repeated_members() -> None:
    rows, _ = members(4)
    weight = np.array([1, 4, 2, 3])
    repeated = np.repeat(rows, weight, axis=0)  # 10: one of them is cut at each end
    expected = scipy.stats.trim_mean(repeated, 0.1, axis=0)
    np.testing.assert_allclose(center(TrimmedMean(0.1), rows, weight), expected, atol=1e-6)
    halves = np.repeat(rows, 2 * weight, axis=0)  # 20 of half the size: three are cut
    expected = scipy.stats.trim_mean(halves, 0.15, axis=0)
    np.testing.assert_allclose(center(TrimmedMean(0.15), rows, weight), expected, atol=1e-6)


def test_what_is_cut_off_leaves_no_trace() -> None:
    """0.1 + 0.1 + 0.1 > 0.3, by 4e-17: of 1e30 that would be the whole center."""
    rows = np.concatenate([np.full((3, 1), -1e30), np.ones((7, 1))])
    assert center(TrimmedMean(0.3), rows, np.full(10, 0.1)).tolist() == [1]


def test_trimming_nothing_is_the_mean_and_nearly_all_the_median() -> None:
    rows, weight = members(9)
    np.testing.assert_allclose(
        center(TrimmedMean(0), rows, weight), center(Mean(), rows, weight), atol=1e-6
    )
    np.testing.assert_allclose(
        center(TrimmedMean(0.49999), rows, weight), center(Median(), rows, weight), atol=1e-3
    )


def krum_scores(rows: F64, f: int) -> list[float]:
    """Blanchard et al., section 4, with loops."""
    n, scores = len(rows), []
    for i in range(n):
        squared = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(squared[: n - f - 2]))
    return scores


@pytest.mark.parametrize(
    ("n", "share", "f"), [(5, 0.2, 1), (7, 0.3, 2), (10, 0.3, 3), (20, 0.4, 8), (6, 0.49, 1)]
)
def test_krum_and_multi_krum_are_those_of_brute_force(n: int, share: float, f: int) -> None:
    for seed in range(5):
        rows, weight = members(n, seed=seed)
        order = np.argsort(krum_scores(rows.astype(np.float64), f))
        np.testing.assert_array_equal(center(Krum(share), rows, weight), rows[order[0]])
        kept = order[: n - f]
        np.testing.assert_allclose(
            center(Krum(share, several=True), rows, weight),
            np.average(rows[kept], axis=0, weights=weight[kept]),
            atol=1e-6,
        )


def test_krum_sees_differences_in_the_sixth_digit() -> None:
    rng = np.random.default_rng(0)
    common, noise = rng.normal(size=2000), rng.normal(size=(9, 2000))
    rows = (common + 1e-5 * noise).astype("f4")
    order = np.argsort(krum_scores(rows.astype(np.float64), 1))
    rows[order[-1]] = 1e9  # a far outlier must not blur the others
    order = np.argsort(krum_scores(rows.astype(np.float64), 1))
    np.testing.assert_array_equal(center(Krum(), rows), rows[order[0]])


@pytest.mark.parametrize("n", [3, 4, 8, 15])
def test_geometric_median_minimizes_the_sum_of_distances(n: int) -> None:
    rows, weight = members(n, p=4)

    def total(z: F64) -> float:
        return float(weight @ np.linalg.norm(rows - z, axis=1))

    found = center(GeometricMedian(), rows, weight)
    best = min(
        (scipy.optimize.minimize(total, start, method="Nelder-Mead",
                                 options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 10_000})
         for start in (np.average(rows, axis=0, weights=weight), found)),
        key=lambda result: float(result.fun),
    )  # fmt: skip
    assert total(found) <= best.fun * (1 + 1e-6)
    np.testing.assert_allclose(found, best.x, atol=2e-3)


def test_geometric_median_of_a_line_is_its_weighted_median() -> None:
    rows = np.array([[0], [1], [5], [9], [20]])
    assert center(GeometricMedian(), rows, [3, 1, 2, 5, 4]) == pytest.approx([9], abs=1e-2)


def test_norm_clip_by_hand() -> None:
    # v = 2; distances 2, 1, 0, 2, 98: τ = 2; the last counts as 4.
    assert center(NormClip(), [[0], [1], [2], [4], [100]]) == pytest.approx([11 / 5])
    # With λ = 1, 1, 1, 1, 3 (half: 3.5): v = 4; distances 4, 3, 2, 0, 96: τ = 4; the last is 8.
    weight = [1, 1, 1, 1, 3]
    assert center(NormClip(), [[0], [1], [2], [4], [100]], weight) == pytest.approx([31 / 7])


# ── corners ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("aggregation", EVERY)
def test_one_member_is_its_own_center(aggregation: Aggregation) -> None:
    rows, _ = members(1)
    np.testing.assert_allclose(center(aggregation, rows, [5]), rows[0], atol=1e-7)


@pytest.mark.parametrize("aggregation", EVERY)
def test_equal_members_are_their_own_center(aggregation: Aggregation) -> None:
    rows = np.repeat(members(1)[0], 6, axis=0)
    np.testing.assert_allclose(center(aggregation, rows, np.arange(1, 7)), rows[0], atol=1e-6)


@pytest.mark.parametrize("aggregation", [Median(), GeometricMedian(), NormClip()])
def test_of_two_members_the_heavier_wins(aggregation: Aggregation) -> None:
    rows, _ = members(2)
    np.testing.assert_allclose(center(aggregation, rows), rows.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(center(aggregation, rows, [1, 3]), rows[1], atol=1e-4)


def test_krum_takes_a_member_however_few_there_are() -> None:
    rows = np.array([[0.0, 0], [9, 9], [9, 10]])
    assert center(Krum(), rows[:2]).tolist() in rows[:2].tolist()
    assert center(Krum(0.4), rows).tolist() in rows[1:].tolist()
    np.testing.assert_allclose(center(Krum(several=True), rows), rows.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize("aggregation", EVERY)
def test_clusters_are_separate_and_empty_ones_keep_their_center(aggregation: Aggregation) -> None:
    rows, weight = members(12)
    labels = np.array([2, 0, 2, 2, 0, 0, 2, 0, 2, 4, 4, 2])
    weight[9:11] = 0  # nobody who counts: nobody
    before = np.arange(5 * 40, dtype="f4").reshape(5, 40)
    found = aggregation(
        State(1, {"model": rows}, before, labels), weight, np.ones(12, np.int64)
    ).centers
    for k in (1, 3, 4):
        np.testing.assert_array_equal(found[k], before[k])
    for k in (0, 2):
        alone = center(aggregation, rows[labels == k], weight[labels == k])
        np.testing.assert_allclose(found[k], alone, atol=1e-6)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_the_importance_of_the_aggregation_replaces_that_of_the_method(name: str) -> None:
    rows, weight = members(9)
    state = State(1, {"model": rows}, np.zeros((1, 40), "f4"), np.zeros(9, np.int64))
    sizes = weight.astype(np.int64)
    own = AGGREGATIONS[name](importance=data_size)
    lambda_ = AGGREGATIONS[name]()
    np.testing.assert_array_equal(
        own(state, np.ones(9), sizes).centers, lambda_(state, weight, sizes).centers
    )
    assert robust(name, like=methods.fesem(3).aggregation) == own
    assert robust(name, like=methods.wecfl(3).aggregation) == lambda_
    assert robust(name, like=Median(uniform)) == AGGREGATIONS[name](importance=uniform)


def test_aggregations_are_described_without_addresses() -> None:
    def word(aggregation: Aggregation) -> str:
        return methods.components(methods.fedavg.replace(aggregation=aggregation))["aggregation"]

    assert word(TrimmedMean(0.1, data_size)) == "TrimmedMean(share=0.1, data_size)"
    assert [word(Mean()), word(Krum())] == ["Mean()", "Krum(attackers=0.2, several=False)"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrimmedMean(0.5),
        lambda: TrimmedMean(-0.1),
        lambda: Krum(0.5),
        lambda: Krum(-1, several=True),
        lambda: GeometricMedian(steps=0),
        lambda: GeometricMedian(smoothing=0),
        lambda: robust("medain", like=Mean()),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], Aggregation]) -> None:
    with pytest.raises(ConfigError):
        make()


# ── for all members ──────────────────────────────────────────────────────────────────────────────

clusters = st.builds(
    members,
    st.integers(1, 14), st.integers(1, 6), st.integers(0, 10_000),
)  # fmt: skip


@pytest.mark.parametrize("aggregation", EVERY)
@given(cluster=clusters, seed=st.integers(0, 99), shift=st.sampled_from([-3.0, 0.5, 8.0]))
@settings(max_examples=25)
def test_neither_order_nor_origin_matters(
    aggregation: Aggregation, cluster: tuple[F32, F64], seed: int, shift: float
) -> None:
    rows, weight = cluster
    if isinstance(aggregation, Krum) and len(rows) < 4:
        shift = 0.0  # ties are settled by the models' bytes
    found = center(aggregation, rows, weight)
    order = np.random.default_rng(seed).permutation(len(rows))
    np.testing.assert_allclose(center(aggregation, rows[order], weight[order]), found, atol=1e-4)
    moved = center(aggregation, rows + np.float32(shift), weight) - shift
    np.testing.assert_allclose(moved, found, atol=1e-4)


@st.composite
def attacked(draw: st.DrawFn) -> tuple[F32, F64, F64]:
    """Honest rows and then others, λ; how many are honest, which share of λ the others hold."""
    honest, weight = draw(clusters)
    far = draw(
        st.lists(st.sampled_from([-1e9, -50.0, 3.0, 1e3, 1e15, 1e18]), min_size=1, max_size=4)
    )
    part = draw(st.sampled_from([0.05, 0.2, 0.45]))
    rows = np.concatenate([honest, np.multiply.outer(far, np.ones(honest.shape[1]))])
    lying = np.full(len(far), part / (1 - part) * weight.sum() / len(far))
    return rows.astype("f4"), np.concatenate([weight, lying]), np.array([len(honest), part])


@given(attacked())
@settings(max_examples=60)
def test_less_than_half_of_the_importance_does_not_break_them(case: tuple[F32, F64, F64]) -> None:
    rows, weight, (count, part) = case
    honest = rows[: int(count)].astype(np.float64)
    low, high = honest.min(axis=0) - 1e-5, honest.max(axis=0) + 1e-5

    middle = center(Median(), rows, weight)
    assert ((low <= middle) & (middle <= high)).all()
    trimmed = center(TrimmedMean(part), rows, weight)
    assert ((low <= trimmed) & (trimmed <= high)).all()

    reach = np.linalg.norm(honest - middle, axis=1).max()
    clipped = center(NormClip(), rows, weight)
    assert np.linalg.norm(clipped - middle) <= reach * (1 + 1e-4) + 1e-5

    origin = honest.mean(axis=0)
    radius = np.linalg.norm(honest - origin, axis=1).max()
    geometric = center(GeometricMedian(), rows, weight)
    bound = 2 * (1 - part) / (1 - 2 * part) * radius
    assert np.linalg.norm(geometric - origin) <= bound * (1 + 1e-3) + 1e-3


@pytest.mark.parametrize(("n", "f"), [(5, 1), (10, 3), (20, 8)])
def test_krum_leaves_out_scattered_attackers(n: int, f: int) -> None:
    rows, weight = members(n)
    rows[:f] *= 1e3
    chosen = center(Krum(f / n), rows, weight)
    assert (chosen == rows[f:]).all(axis=1).any()
    mean = np.average(rows[f:], axis=0, weights=weight[f:])
    np.testing.assert_allclose(center(Krum(f / n, several=True), rows, weight), mean, atol=1e-5)


def test_the_mean_breaks() -> None:
    rows, weight = members(20)
    rows[0] = 1e9
    assert np.abs(center(Mean(), rows, weight)).min() > 1e6


@pytest.mark.parametrize("aggregation", EVERY)
def test_a_cluster_of_attackers_does_not_touch_the_others(aggregation: Aggregation) -> None:
    rows, weight = members(12)
    labels, before, sizes = np.repeat([0, 1], 6), np.zeros((2, 40), "f4"), np.ones(12, np.int64)
    found = aggregation(State(1, {"model": rows}, before, labels), weight, sizes).centers
    rows[6:] = 1e9
    again = aggregation(State(1, {"model": rows}, before, labels), weight, sizes).centers
    np.testing.assert_array_equal(again[0], found[0])
