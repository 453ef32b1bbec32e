"""Drift: who holds what in which round, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wecfl.config.named_values import write_value
from wecfl.data.changes import changed_clients
from wecfl.data.drift import (
    DRIFTS,
    Abrupt,
    Appear,
    Drift,
    Gradual,
    Recurring,
    Sensor,
    Staggered,
    Vanish,
    parsed,
)
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError, DataError, PartitionError

rounds = st.integers(2, 12)
shares = st.floats(0.2, 1)
drifts: st.SearchStrategy[Drift] = st.one_of(
    st.builds(Abrupt, rounds, shares),
    st.builds(Gradual, rounds, shares, st.integers(2, 5)),
    st.builds(Recurring, rounds, shares, st.integers(1, 4), st.integers(2, 4)),
    st.builds(Appear, rounds),
    st.builds(Vanish, rounds),
    st.builds(Sensor, rounds, shares, st.sampled_from(["noise", "contrast", "affine"])),
)


def federation(m: int = 9, groups: int = 3, *, known: bool = True) -> Federation:
    """Sample j of client i is (i, j), its label is the group, and sizes differ."""
    xs = [np.array([[i, j] for j in range(6 + 2 * i)], float) for i in range(m)]
    of = np.arange(m) % groups
    ys = [np.full(len(x), g) for x, g in zip(xs, of, strict=True)]
    return Federation.from_arrays(xs, ys, test=0.25, groups=of if known else None)


def groups(of: Federation, round: int = 1) -> Any:
    """The groups of a round, which are known."""
    return of.at(round).groups


@settings(max_examples=80)
@given(drifts, st.integers(0, 99))
def test_a_client_holds_samples_of_its_group_in_each_round(drift: Drift, seed: int) -> None:
    still = federation()
    one, two = (still.drifting(drift, seed) for _ in range(2))
    assert one.fingerprint == two.fingerprint != still.fingerprint
    assert len(one.changes) and one.names == still.names
    for round in range(1, 30):
        now, before = one.at(round), one.at(max(round - 1, 1))
        assert not now.changes
        assert now.sizes.tolist() == still.sizes.tolist()
        assert [*map(len, now.test)] == [*map(len, still.test)]
        changed = set(changed_clients(one, round).tolist())
        for i in range(now.m):
            same = now.train[i] is before.train[i] or np.array_equal(now.train[i], before.train[i])
            assert (i in changed) == (not same)
            assert not set(now.train[i]) & set(now.test[i])
            held = np.concatenate([now.y[now.train[i]], now.y[now.test[i]]])
            if not isinstance(drift, Gradual):
                assert set(held) == {groups(now)[i]}
            else:  # the group of at least half of the training samples
                assert (now.y[now.train[i]] == groups(now)[i]).mean() >= 0.4
        if not isinstance(drift, Gradual):  # of few samples, none may change in a step
            assert set(np.flatnonzero(groups(now) != groups(before))) <= changed


@pytest.mark.parametrize("name", DRIFTS)
def test_who_trains_on_a_sample_is_never_tested_on_it_by_another(name: str) -> None:
    drift = Staggered(schedule="012012012 000111222") if name == "staggered" else DRIFTS[name]()
    fed = federation().drifting(drift)
    versions: list[Any] = [fed, *fed.changes]
    trained = {int(row) for held in versions for rows in held.train for row in rows}
    tested = {int(row) for held in versions for rows in held.test for row in rows}
    assert not trained & tested


def test_abrupt_moves_its_share_once_and_gradual_sample_by_sample() -> None:
    fed = federation().drifting(Abrupt(round=4, share=1 / 3), seed=1)
    assert [len(changed_clients(fed, t)) for t in range(1, 8)] == [0, 0, 0, 3, 0, 0, 0]
    slow = federation().drifting(Gradual(round=4, share=1 / 3, over=3), seed=1)
    assert [len(changed_clients(slow, t)) for t in range(1, 8)] == [0, 0, 0, 3, 3, 3, 0]
    moved = np.flatnonzero(groups(slow, 9) != groups(slow))
    new = [
        [(slow.y[slow.at(t).train[i]] != groups(slow)[i]).mean() for i in moved] for t in (4, 5, 6)
    ]
    np.testing.assert_allclose(new, np.array([[1 / 3], [2 / 3], [1]]) * np.ones((3, 3)), atol=0.1)
    assert groups(slow, 4).tolist() == groups(slow).tolist() != groups(slow, 5).tolist()


def test_recurring_comes_back_to_what_it_held() -> None:
    fed = federation().drifting(Recurring(round=3, period=2, times=3))
    for round, twin in ((5, 1), (6, 2), (7, 3), (20, 4)):
        for a, b in zip(fed.at(round).train, fed.at(twin).train, strict=True):
            assert np.array_equal(a, b)
    assert groups(fed, 3).tolist() != groups(fed, 5).tolist() == groups(fed).tolist()


@settings(max_examples=30)
@given(st.integers(1, 4), st.lists(st.text("012", min_size=9, max_size=9), min_size=2, max_size=4))
def test_staggered_clients_follow_their_schedule_with_new_samples(
    every: int, schedule: list[str]
) -> None:
    still = Federation.from_arrays(
        [np.full((40, 1), i) for i in range(9)], [np.full(40, i % 3) for i in range(9)],
        test=0.25, groups=np.arange(9) % 3,
    )  # fmt: skip
    fed = still.drifting(Staggered(every, " ".join(schedule)), seed=4)
    steps = [fed.at(1 + step * every) for step in range(len(schedule))]
    assert np.array_equal(fed.at(every * len(schedule)).train, steps[-1].train)
    for step, (held, now) in enumerate(zip(steps, schedule, strict=True)):
        assert "".join(map(str, groups(held))) == now
        for own, digit in zip((*held.train, *held.test), now * 2, strict=True):
            assert set(fed.y[own].tolist()) == {int(digit)}
        before = schedule[max(step - 1, 0)]
        changed = changed_clients(fed, 1 + every * step).tolist()
        assert changed == [i for i in range(9) if now[i] != before[i]]
    assert [len(rows) for rows in fed.train] == [30 // len(schedule)] * 9
    for group in range(3):  # each sample of a group is used once before any is used twice
        rows = [own for held in steps for own, g in zip(held.train, groups(held), strict=True)
                if g == group]  # fmt: skip
        counts = np.bincount(np.concatenate([[], *rows]).astype(int), minlength=len(fed.y))
        pool = counts[np.concatenate([still.train[i] for i in range(group, 9, 3)])]
        assert pool.sum() == counts.sum()
        assert pool.max() - pool.min() <= 1


def test_groups_appear_and_vanish() -> None:
    appear, vanish = federation().drifting(Appear(5)), federation().drifting(Vanish(5))
    counts = [[len(set(groups(fed, t))) for t in (1, 4, 5, 9)] for fed in (appear, vanish)]
    assert counts == [[2, 2, 3, 3], [3, 3, 2, 2]]
    assert groups(appear, 5).tolist() == groups(vanish).tolist()


def test_a_broken_sensor_changes_features_and_keeps_targets_and_groups() -> None:
    still = federation(known=False)
    fed = still.drifting(Sensor(round=3, share=1 / 3, how="contrast"))
    assert fed.at(3).groups is None
    broken = changed_clients(fed, 3)
    assert len(broken) == 3
    for side in ("train", "test"):
        for i in broken:
            a, b = getattr(still, side)[i], getattr(fed.at(3), side)[i]
            np.testing.assert_allclose(fed.x[b], still.x[a] * 0.25, rtol=1e-6)
            assert np.array_equal(fed.y[b], still.y[a])


def test_a_subset_drifts_as_before() -> None:
    fed = federation().drifting(Abrupt(round=3, share=0.5))
    part = fed.subset([7, 2])
    for t in (1, 3):
        assert groups(part, t).tolist() == groups(fed, t)[[7, 2]].tolist()
        assert np.array_equal(part.at(t).train[0], fed.at(t).train[7])


def test_what_cannot_be_done_to_drifting_clients() -> None:
    fed = federation().drifting(Abrupt())
    tries: list[Callable[[], object]] = [
        lambda: fed.drifting(Abrupt()), lambda: fed.validating(0.2), lambda: fed.mixed(0.2),
        fed.transformed, lambda: fed.scaled("standard"),
    ]  # fmt: skip
    for refused in tries:
        with pytest.raises(DataError, match="drifting last"):
            refused()


@pytest.mark.parametrize(
    "drift", [Abrupt(3), Gradual(over=9), Sensor(how="blur"), Staggered(3, "01 10")]
)
def test_a_drift_is_written_as_it_is_read(drift: Any) -> None:
    assert parsed(write_value(drift)) == drift


@pytest.mark.parametrize(
    "bad",
    [
        "abrubt", "abrupt(10)", "abrupt(round=1)", "abrupt(round=2.5)", "abrupt(share=0)",
        "abrupt(share=1.5)", "abrupt(share=many)", "abrupt(period=3)", "gradual(over=1)",
        "recurring(times=1)", "recurring(period=0)", "sensor(how=permutation)", "vanish(share=1)",
        "abrupt(share=nan)", "abrupt(round=", "", "abrupt(share=True)", "sensor(how=3)",
        "staggered(every=0)", "staggered(schedule=three)", "staggered(schedule='01 0')",
        "staggered(schedule='01')", "staggered(schedule=12)", "staggered(round=3)",
    ],
)  # fmt: skip
def test_bad_drifts_are_refused_in_one_line(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(bad)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("drift", "fed", "said"),
    [
        (Abrupt(), federation(known=False), "needs clients with groups"),
        (Vanish(), federation(groups=1), "two groups"),
        (Abrupt(share=0.01), federation(), "none of 9 clients"),
        (Sensor(how="rotation"), federation(), "needs images"),
        (Staggered(), federation(), "ask for 10 clients"),
        (Staggered(schedule="000000003 000000000"), federation(), "ask for 4 groups"),
        (Staggered(schedule="000000000 " * 9), federation(), "more samples"),
    ],
)
def test_worlds_that_cannot_drift_so(drift: Drift, fed: Federation, said: str) -> None:
    with pytest.raises(PartitionError, match=said):
        fed.drifting(drift)
