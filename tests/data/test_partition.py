from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wecfl.core.types import F64, Int
from wecfl.data.client_rows import ClientRows, allot, class_counts, split_samples
from wecfl.data.partition import (
    PARTITIONS,
    ClientwiseDirichlet,
    ClientwiseNClass,
    ClusterwiseDirichlet,
    ClusterwiseNClass,
    ClusterwisePermuted,
    ClusterwiseQuantity,
    Iid,
    Partition,
    QuantityPower,
    QuantitySkew,
    Shares,
    build,
    describe,
)
from wecfl.errors import PartitionError
from wecfl.rng import stream

CLASSES = 10
BALANCED = np.repeat(np.arange(CLASSES), 600)
BALANCED_TEST = np.repeat(np.arange(CLASSES), 100)

SAMPLES: list[Partition] = [
    Iid(),
    QuantitySkew(2.0),
    QuantityPower(0.5),
    ClusterwiseQuantity((2.0, 10.0), groups=4),
    ClientwiseDirichlet(1.0),
    ClientwiseNClass(3),
    ClusterwiseDirichlet((0.5, 10.0), groups=4),
    ClusterwiseNClass((5, 2), groups=4),
    ClusterwisePermuted(groups=4),
]
every_partition = pytest.mark.parametrize("partition", SAMPLES, ids=lambda p: p.name)


def partitions() -> st.SearchStrategy[Partition]:
    alpha = st.floats(0.3, 20.0)
    groups = st.integers(1, 5)
    n = st.integers(1, 6)
    return st.one_of(
        st.just(Iid()),
        st.builds(QuantitySkew, alpha),
        st.builds(QuantityPower, st.floats(0.1, 2)),
        st.builds(ClusterwiseQuantity, st.tuples(alpha, alpha), groups),
        st.builds(ClientwiseDirichlet, alpha),
        st.builds(ClientwiseNClass, n),
        st.builds(ClusterwiseDirichlet, st.tuples(alpha, alpha), groups),
        st.builds(
            ClusterwiseNClass,
            st.tuples(n, n).map(lambda pair: (max(pair), min(pair))),
            groups,
        ),
    )


@st.composite
def labels(draw: st.DrawFn, least: int, most: int) -> Int:
    """Unbalanced, unordered, some classes rare or absent."""
    weights = draw(st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(any))
    size = draw(st.integers(least, most))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return rng.choice(6, size, p=np.array(weights) / sum(weights))


def balanced(partition: Partition, clients: int = 20, seed: int = 0, **options: int) -> ClientRows:
    how = {"classes": CLASSES, "clients": clients, "seed": seed, **options}
    return split_samples(partition, BALANCED, BALANCED_TEST, **how)


def same(a: ClientRows, b: ClientRows) -> bool:
    pairs = zip(a.train + a.test, b.train + b.test, strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


@settings(max_examples=200)
@given(partitions(), labels(40, 400), labels(0, 200), st.integers(5, 20), st.integers(0, 99))
def test_every_sample_has_exactly_one_owner(
    partition: Partition, y_train: Int, y_test: Int, clients: int, seed: int
) -> None:
    how = {"classes": 6, "clients": clients, "seed": seed, "min_train": 0, "min_test": 0}
    try:
        parts = split_samples(partition, y_train, y_test, max_draws=200, **how)
    except PartitionError:
        assume(False)
    for indices, y in ((parts.train, y_train), (parts.test, y_test)):
        assert len(indices) == clients
        assert np.array_equal(np.sort(np.concatenate(indices)), np.arange(len(y)))
        assert all(np.all(np.diff(i) > 0) for i in indices)
    assert (parts.groups is None) == (not partition.name.startswith("clusterwise"))


@every_partition
def test_a_seed_is_a_split(partition: Partition) -> None:
    assert same(balanced(partition, seed=3), balanced(partition, seed=3))
    assert not same(balanced(partition, seed=3), balanced(partition, seed=4))


@pytest.mark.parametrize("partition", SAMPLES[1:-1], ids=lambda p: p.name)
def test_a_seed_draws_its_own_shares(partition: Partition) -> None:
    a, b = (
        class_counts(BALANCED, balanced(partition, seed=seed).train, CLASSES) for seed in (3, 4)
    )
    assert not np.array_equal(a, b)


@every_partition
def test_splitting_does_not_touch_global_randomness(partition: Partition) -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002
    balanced(partition)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]  # noqa: NPY002


@every_partition
def test_test_data_follow_the_clients_own_distribution(partition: Partition) -> None:
    parts = balanced(partition)
    train = class_counts(BALANCED, parts.train, CLASSES) / 600
    test = class_counts(BALANCED_TEST, parts.test, CLASSES) / 100
    # Either cut is off by less than one sample.
    assert np.abs(train - test).max() <= 1 / 600 + 1 / 100


@pytest.mark.parametrize("seed", range(30))
def test_every_client_gets_what_it_needs(seed: int) -> None:
    parts = split_samples(
        ClientwiseDirichlet(1.0),
        BALANCED,
        BALANCED_TEST,
        classes=CLASSES,
        clients=20,
        seed=seed,
        min_train=180,
        min_test=31,
    )
    assert min(map(len, parts.train)) >= 180
    assert min(map(len, parts.test)) >= 31


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=7, max_size=7).filter(any), min_size=3, max_size=3),
    st.lists(st.integers(0, 5000), min_size=3, max_size=3),
)
def test_rounding_is_off_by_less_than_one_and_gives_nothing_for_nothing(
    raw: list[list[float]], per_class: list[int]
) -> None:
    matrix: F64 = np.array(raw) / np.sum(raw, axis=1, keepdims=True)
    assume(np.isfinite(matrix).all())
    sizes = allot(matrix, np.array(per_class))
    assert sizes.sum(axis=1).tolist() == per_class
    assert (sizes >= 0).all()
    assert (sizes[matrix == 0] == 0).all()
    assert np.abs(sizes - matrix * np.array(per_class)[:, None]).max() < 1 + 1e-6


@pytest.mark.parametrize("clients", [7, 33, 49, 50])
def test_rounding_errors_do_not_add_up_over_the_classes(clients: int) -> None:
    """Rounded alike, 36 samples per class would leave the same clients empty in every class."""
    few = np.repeat(np.arange(10), 36)
    parts = split_samples(Iid(), few, few, classes=10, clients=clients, seed=0)
    sizes = [len(i) for i in parts.test]
    assert max(sizes) - min(sizes) <= 1


def test_sizes_follow_a_power_law() -> None:
    sizes = class_counts(BALANCED, balanced(QuantityPower(1.0)).train, CLASSES).sum(axis=0)
    ranks = np.arange(1, 21)
    np.testing.assert_allclose(np.sort(sizes)[::-1], 6000 / ranks / (1 / ranks).sum(), atol=1)
    assert not np.array_equal(sizes, np.sort(sizes)[::-1])  # the ranking is random


def test_groups_differ_in_size_and_in_nothing_else() -> None:
    parts = balanced(ClusterwiseQuantity((1.0, 1000.0), groups=4))
    held = class_counts(BALANCED, parts.train, CLASSES)
    assert (np.ptp(held, axis=0) <= 1).all()
    sizes = held.sum(axis=0).reshape(4, 5)
    assert (sizes.std(axis=1) < 0.1 * sizes.mean(axis=1)).all()
    assert sizes.mean(axis=1).std() > 0.3 * sizes.mean()


def test_iid_and_quantity_skew_have_the_classes_in_equal_parts() -> None:
    iid = class_counts(BALANCED, balanced(Iid()).train, CLASSES)
    assert (iid == 30).all()
    skew = class_counts(BALANCED, balanced(QuantitySkew(1.0)).train, CLASSES)
    assert np.ptp(skew, axis=0).max() <= 1
    assert np.ptp(skew.sum(axis=0)) > 100


@pytest.mark.parametrize(("clients", "groups"), [(20, 4), (23, 4), (5, 5), (7, 1)])
def test_groups_are_even_and_consecutive(clients: int, groups: int) -> None:
    for partition in (
        ClusterwiseDirichlet((5.0, 5.0), groups),
        ClusterwiseNClass((10, 8), groups),
    ):
        found = balanced(partition, clients).groups
        assert found is not None
        assert np.array_equal(found, np.sort(found))
        sizes = np.bincount(found)
        assert len(sizes) == groups
        assert np.ptp(sizes) <= 1


@settings(max_examples=50)
@given(
    st.integers(3, 6).flatmap(lambda n1: st.tuples(st.just(n1), st.integers(1, n1))),
    st.integers(5, 8),
    st.integers(0, 99),
)
def test_n_class_honours_the_groups(n: tuple[int, int], groups: int, seed: int) -> None:
    parts = balanced(ClusterwiseNClass(n, groups), clients=40, seed=seed)
    holds = class_counts(BALANCED, parts.train, CLASSES) > 0
    assert (holds.sum(axis=0) == n[1]).all()
    assert parts.groups is not None
    for g in range(groups):
        assert holds[:, parts.groups == g].any(axis=1).sum() <= n[0]


def test_n_class_shares_a_class_equally_among_its_holders() -> None:
    for partition in (ClientwiseNClass(2), ClusterwiseNClass((3, 2), groups=8)):
        table = class_counts(BALANCED, balanced(partition, clients=40).train, CLASSES)
        for row in table:
            assert np.ptp(row[row > 0]) <= 1


def test_clientwise_n_class_gives_each_client_n() -> None:
    parts = balanced(ClientwiseNClass(3), clients=30)
    assert ((class_counts(BALANCED, parts.train, CLASSES) > 0).sum(axis=0) == 3).all()


def test_n_class_redraws_until_every_class_has_a_holder() -> None:
    # Four groups of four have sixteen places for ten classes: most draws miss one.
    parts = balanced(ClusterwiseNClass((4, 4), groups=4), clients=12)
    assert sum(map(len, parts.train)) == len(BALANCED)


def spreads(alpha: tuple[float, float]) -> tuple[float, float]:
    """Mean L1 distance of class distributions within a group, and between groups' means."""
    inside, between = [], []
    for seed in range(10):
        drawn = ClusterwiseDirichlet(alpha, groups=5).shares(CLASSES, 50, stream(seed, "test"))
        profile = (drawn.matrix / drawn.matrix.sum(axis=0)).reshape(CLASSES, 5, 10)
        center = profile.mean(axis=2)
        inside.append(np.abs(profile - center[:, :, None]).sum(axis=0).mean())
        pairs = np.abs(center[:, :, None] - center[:, None, :]).sum(axis=0)
        between.append(pairs[~np.eye(5, dtype=bool)].mean())
    return float(np.mean(inside)), float(np.mean(between))


def test_alpha_says_how_unlike_groups_and_clients_are() -> None:
    alike_inside, unlike_groups = spreads((0.1, 100.0))
    unlike_inside, _ = spreads((0.1, 0.3))
    _, alike_groups = spreads((100.0, 100.0))
    assert alike_inside < 0.1
    assert unlike_inside > 0.3
    assert alike_groups < 0.2
    assert unlike_groups > 1.0


def test_cluster_wise_dirichlet_leaves_no_group_behind() -> None:
    for seed in range(10):
        parts = balanced(ClusterwiseDirichlet((0.1, 10.0)), clients=50, seed=seed)
        assert parts.groups is not None
        held = np.bincount(parts.groups, weights=[len(i) for i in parts.test])
        assert held.min() > 0.3 * held.mean()


@pytest.mark.parametrize("seed", range(5))
def test_client_sizes_of_the_papers_settings(seed: int) -> None:
    y, y_test = np.repeat(np.arange(10), 6000), np.repeat(np.arange(10), 1000)
    for partition, spread in (
        (ClusterwiseDirichlet((0.1, 10.0)), (110, 230)),
        (ClusterwiseNClass((3, 2)), (40, 200)),
        (ClientwiseDirichlet(0.1), (220, 360)),
        (ClientwiseNClass(2), (10, 60)),
    ):
        parts = split_samples(partition, y, y_test, classes=10, clients=200, seed=seed)
        sizes = np.array([len(i) for i in parts.train])
        assert sizes.mean() == 300
        assert spread[0] < sizes.std() < spread[1]


@pytest.mark.parametrize("seed", range(21))
def test_the_default_job_can_be_drawn(seed: int) -> None:
    y, y_test = np.arange(1438) % 10, np.arange(359) % 10
    split_samples(ClusterwiseDirichlet((0.1, 10.0)), y, y_test, classes=10, clients=50, seed=seed)


def test_a_class_may_be_missing_from_the_test_data() -> None:
    y_test = BALANCED_TEST[BALANCED_TEST != 4]
    parts = split_samples(Iid(), BALANCED, y_test, classes=CLASSES, clients=20, seed=0)
    assert class_counts(y_test, parts.test, CLASSES)[4].sum() == 0


def test_small_label_types_do_not_overflow() -> None:
    y = np.repeat(np.arange(2, dtype=np.uint8), 300)
    parts = split_samples(Iid(), y, y, classes=2, clients=10, seed=0)
    assert [len(i) for i in parts.train] == [60] * 10


def test_names_build_the_partitions() -> None:
    assert build("iid") == Iid()
    assert build("quantity-skew", alpha=(1.0,)) == QuantitySkew(1.0)
    assert build("quantity-power", alpha=(1.0,)) == QuantityPower(1.0)
    quantity = build("clusterwise-quantity", alpha=(1.0, 9.0), groups=3)
    assert quantity == ClusterwiseQuantity((1.0, 9.0), 3)
    assert build("clientwise-dirichlet", alpha=(0.1,)) == ClientwiseDirichlet(0.1)
    assert build("clientwise-nclass", n=(2,)) == ClientwiseNClass(2)
    assert build("clusterwise-dirichlet", alpha=(0.1, 10.0), groups=7) == ClusterwiseDirichlet(
        (0.1, 10.0), 7
    )
    assert build("clusterwise-nclass", n=(3, 2)) == ClusterwiseNClass((3, 2), 10)
    assert list(PARTITIONS) == [p.name for p in SAMPLES]
    assert describe(build("clientwise-nclass", n=(2,))) == "clientwise-nclass n=2"


@pytest.mark.parametrize(
    ("name", "alpha", "n", "groups", "message"),
    [
        ("clusterwise-dirichle", (0.1, 10.0), (), 10, "did you mean 'clusterwise-dirichlet'?"),
        ("clusterwise-dirichlet", (0.1,), (), 10, "alpha A1 A2.* alpha 0.1$"),
        ("clientwise-dirichlet", (0.1, 1.0), (), 10, "alpha A,.* alpha 0.1 1.0$"),
        ("clientwise-dirichlet", (), (), 10, "alpha A,.* neither"),
        ("clusterwise-nclass", (), (3,), 10, "classes_per N1 N2.* classes_per 3$"),
        ("iid", (0.1,), (2,), 10, "neither .* alpha 0.1 classes_per 2$"),
        ("quantity-skew", (-1.0,), (), 10, "alpha .*-1$"),
        ("clientwise-dirichlet", (0.0,), (), 10, "alpha .*0$"),
        ("clusterwise-dirichlet", (0.1, float("nan")), (), 10, "alpha .*nan"),
        ("clusterwise-dirichlet", (float("inf"), 1.0), (), 10, "alpha .*inf"),
        ("clientwise-nclass", (), (0,), 10, "classes_per .*0$"),
        ("clusterwise-nclass", (), (2, 3), 10, "3 of .* 2 classes"),
        ("clusterwise-nclass", (), (3, 2), 0, "groups .*0$"),
        ("clusterwise-dirichlet", (0.1, 10.0), (), -1, "groups .*-1$"),
    ],
)
def test_wrong_flags_are_named(
    name: str, alpha: tuple[float, ...], n: tuple[int, ...], groups: int, message: str
) -> None:
    with pytest.raises(PartitionError, match=message) as caught:
        build(name, alpha=alpha, n=n, groups=groups)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (Iid(), 0, "clients .*0$"),
        (Iid(), 3001, "6000 training .* 3001 clients .* 2 each; .*fewer clients"),
        (Iid(), 1001, "1000 test .* 1001 clients .* 1 each; .*fewer clients"),
        (ClusterwiseDirichlet((0.1, 10.0), 30), 20, "30 groups .* 20; .*fewer groups"),
        (ClusterwiseNClass((3, 2), 30), 20, "30 groups .* 20; .*fewer groups"),
        (ClientwiseNClass(11), 20, "classes_per is 11.* 10 classes"),
        (ClusterwiseNClass((11, 2)), 20, "classes_per is 11.* 10 classes"),
        (ClientwiseNClass(2), 4, "4 clients .* 8 of the 10 .*classes_per"),
        (ClusterwiseNClass((3, 2), 3), 30, "9 of the 10 .*classes_per"),
        (ClusterwiseNClass((5, 1), 2), 8, "8 of the 10 .*classes_per"),
    ],
)
def test_the_impossible_is_refused_at_once(
    partition: Partition, clients: int, message: str
) -> None:
    with pytest.raises(PartitionError, match=message) as caught:
        balanced(partition, clients, max_draws=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        (
            ClientwiseDirichlet(0.001),
            r"^client \d+ .*[01] training .*2 \(clientwise-dirichlet alpha=0.001, 50 clients, "
            r"seed 4, 30 draws\); .*fewer clients$",
        ),
        (
            ClusterwiseDirichlet((0.001, 10.0), 20),
            r"^group \d+ .*\d+ test samples.* 30% .* 50 \(.*; .*groups$",
        ),
        (
            ClusterwiseNClass((1, 1)),
            r"^class \d .*no client \(.*30 draws\); .*classes_per",
        ),
    ],
)
def test_hopeless_draws_end_in_an_error_that_helps(partition: Partition, message: str) -> None:
    with pytest.raises(PartitionError, match=message) as caught:
        balanced(partition, clients=50, seed=4, max_draws=30)
    assert "\n" not in str(caught.value)


@dataclass(frozen=True)
class Starving:
    """Always forgets one client; every third time another one."""

    always: int
    sometimes: int

    name: ClassVar[str] = "starving"
    usage: ClassVar[str] = ""
    remedy: ClassVar[str] = "feed them"

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        matrix = np.ones((classes, clients))
        matrix[:, self.always] = 0
        matrix[:, self.sometimes] = rng.random() > 1 / 3
        return Shares(matrix / matrix.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("always", "sometimes"), [(3, 8), (8, 3)])
def test_the_error_names_the_client_that_failed_most_often(always: int, sometimes: int) -> None:
    with pytest.raises(PartitionError, match=rf"^client {always} .*30 draws\); feed them$"):
        balanced(Starving(always, sometimes), max_draws=30)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.array([0, 1, 10, 2]), "10 at position 2 .*0…9"),
        (np.array([0, -1]), "-1 at position 1 .*0…9"),
        (np.array([0.0, 1.0]), "integers.* float64"),
        (np.zeros((3, 2), dtype=np.int64), r"vector.* int64 \(3, 2\)"),
    ],
)
def test_wrong_labels_are_refused(wrong: Int, message: str) -> None:
    for y_train, y_test, word in (
        (wrong, BALANCED_TEST, "training"),
        (BALANCED, wrong, "test"),
    ):
        with pytest.raises(PartitionError, match=f"{word} label.*{message.removeprefix('label')}"):
            split_samples(Iid(), y_train, y_test, classes=CLASSES, clients=2, seed=0)
