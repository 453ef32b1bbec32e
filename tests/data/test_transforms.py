"""Transforms and mixtures: who is changed, how, and that nothing else is."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.spatial import transform as turns

from wecfl.config.named_values import write_value
from wecfl.core.types import F32
from wecfl.data.federation import Federation
from wecfl.data.partition import ClusterwiseDirichlet, ClusterwiseNClass, Iid
from wecfl.data.source import Dataset
from wecfl.data.transforms import (
    TRANSFORMS,
    Affine,
    Blur,
    Concept,
    Contrast,
    Hue,
    Permutation,
    Rotation,
    SampleKind,
    SensorNoise,
    Sign,
    Swap,
    Transform,
    parsed,
)
from wecfl.errors import ConfigError, PartitionError

IMAGES = SampleKind((2, 6, 6), 4)
NUMBERS = SampleKind((3,), 0)
by = st.sampled_from(["group", "client", "cross"])
of_images: list[st.SearchStrategy[Transform]] = [
    st.builds(Rotation, st.sampled_from([7.5, 30, 90, 100.0]), by),
    st.builds(Contrast, st.floats(0.1, 0.9), by),
    st.builds(Blur, st.floats(1.5, 3), by),
    st.builds(SensorNoise, st.floats(0.1, 2), by),
    st.builds(Affine, st.floats(0.1, 1), by),
    st.builds(Permutation, by),
    st.builds(Swap, st.integers(1, 2), by),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def images(n: int = 240, kind: SampleKind = IMAGES) -> Dataset:
    x = rng(1).uniform(-1, 1, (n, *kind.shape)).astype(np.float32)
    return Dataset("made", x, np.arange(n) % 4, n - n // 4, 4)


def federation(partition: Any = None, clients: int = 8) -> Federation:
    return Federation.from_dataset(images(), partition or Iid(), clients=clients)


def regression(clients: int = 4) -> Federation:
    xs = [rng(i).normal(size=(20, 3)) for i in range(clients)]
    return Federation.from_arrays(xs, [x @ [1.0, -2.0, 0.5] for x in xs])


def samples(of: Federation, client: int) -> tuple[F32, Any]:
    rows = np.concatenate([of.train[client], of.test[client]])
    return of.x[rows], of.y[rows]


@settings(max_examples=80)
@given(
    st.lists(st.one_of(of_images), min_size=1, max_size=3, unique_by=lambda t: t.name),
    st.integers(0, 99),
    st.booleans(),
)
def test_a_world_keeps_who_holds_what_and_is_the_same_for_the_same_seed(
    transforms: list[Transform], seed: int, grouped: bool
) -> None:
    before = federation(ClusterwiseNClass((2, 2), groups=2) if grouped else None, clients=16)
    x, y = before.x.copy(), before.y.copy()
    try:
        one, two = (before.transformed(*transforms, groups=2, seed=seed) for _ in range(2))
    except PartitionError:  # more groups than ways to swap two pairs of four classes
        assume(False)
    assert one.fingerprint == two.fingerprint
    np.testing.assert_array_equal(one.x, two.x)
    np.testing.assert_array_equal(before.x, x)  # what was given is not written to
    np.testing.assert_array_equal(before.y, y)
    for side in ("train", "test", "keys"):
        assert all(map(np.array_equal, getattr(one, side), getattr(before, side)))
    assert np.isfinite(one.x).all()
    assert one.x.dtype == np.float32
    assert set(one.y.tolist()) <= set(range(4))
    assert (one.groups is None) == (not grouped and all(t.by == "client" for t in transforms))
    assert np.array_equal(np.concatenate(one.train), np.concatenate(before.train))


@settings(max_examples=60)
@given(st.one_of(of_images), st.integers(2, 5), st.integers(0, 99))
def test_settings_of_groups_differ(transform: Transform, groups: int, seed: int) -> None:
    try:
        drawn = transform.of_groups(groups, IMAGES, rng(seed))
    except PartitionError:  # rotation by 90° or 2 pairs of 4 classes
        assert groups > 3
        return
    assert len(drawn) == groups
    x, y = images(8).x, images(8).y
    changed = [transform(setting, x, y, rng(3)) for setting in drawn]
    for one, other in combinations(changed, 2):
        assert not all(map(np.array_equal, one, other))
    if not isinstance(transform, Affine):
        assert all(map(np.array_equal, changed[0], (x, y)))  # the first group stays as it is


def test_a_group_shares_its_setting_and_a_client_does_not() -> None:
    shared = federation().transformed(Affine(), groups=4)
    alone = federation().transformed(Affine(by="client"))
    for fed, equal in ((shared, True), (alone, False)):
        gains = [samples(fed, i)[0].std() / samples(federation(), i)[0].std() for i in range(8)]
        for one, other in ((0, 1), (2, 3), (6, 7)):
            assert np.isclose(gains[one], gains[other], rtol=0.03) == equal
    assert shared.groups is not None
    assert shared.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert alone.groups is None


def test_rotation_turns_each_group_by_its_angle_and_back() -> None:
    before = federation()
    after = before.transformed(Rotation(), groups=4)
    for i in range(8):
        (x, y), (turned, same) = samples(before, i), samples(after, i)
        for image, other in zip(x, turned, strict=True):
            for colour, changed in zip(image, other, strict=True):
                expected = colour
                for _ in range(i // 2):  # by hand: columns from the right become rows
                    expected = np.array([expected[:, -1 - c] for c in range(6)])
                np.testing.assert_array_equal(expected, changed)
        np.testing.assert_array_equal(y, same)
        back, _ = Rotation()(360 - 90 * (i // 2), turned, y, rng())
        np.testing.assert_array_equal(back, x)


@settings(max_examples=25)
@given(st.floats(1, 359), st.integers(3, 9))
def test_any_angle_is_that_of_scipy(angle: float, size: int) -> None:
    x = rng(2).normal(size=(2, 1, size, size)).astype(np.float32)
    turned, _ = Rotation()(angle, x, np.zeros(2, int), rng())
    expected = ndimage.rotate(
        x.astype(np.float64), angle, axes=(-2, -1), reshape=False, order=1, mode="nearest"
    )
    np.testing.assert_allclose(turned, expected, atol=1e-4)


@settings(max_examples=25)
@given(st.floats(0.2, 3), st.integers(3, 9))
def test_a_blur_is_that_of_scipy(width: float, size: int) -> None:
    x = rng(2).normal(size=(2, 1, size, size)).astype(np.float32)
    blurred, _ = Blur()(width, x, np.zeros(2, int), rng())
    reach = int(np.ceil(3 * width))
    expected = ndimage.gaussian_filter(
        x.astype(np.float64), width, axes=(-2, -1), mode="nearest", radius=reach
    )
    np.testing.assert_allclose(blurred, expected, atol=1e-5)


@settings(max_examples=25)
@given(st.floats(0, 359))
def test_a_hue_is_a_turn_about_grey(angle: float) -> None:
    x = rng(2).normal(size=(5, 3, 4, 6)).astype(np.float32)
    turned, y = Hue()(angle, x, np.arange(5), rng())
    about_grey = turns.Rotation.from_rotvec(np.full(3, np.deg2rad(angle) / np.sqrt(3)))
    expected = about_grey.apply(np.moveaxis(x, 1, -1).reshape(-1, 3)).reshape(5, 4, 6, 3)
    np.testing.assert_allclose(turned, np.moveaxis(expected, -1, 1), atol=1e-5)
    np.testing.assert_array_equal(y, np.arange(5))
    assert turned.dtype == np.float32


def test_groups_see_other_colours() -> None:
    before = Federation.from_dataset(images(kind=SampleKind((3, 4, 4), 4)), Iid(), clients=6)
    after = before.transformed(Hue(120), groups=3)
    for i in range(6):
        moved = np.roll(samples(before, i)[0], i // 2, axis=1)  # red becomes green, and so on
        np.testing.assert_allclose(samples(after, i)[0], moved, atol=1e-6)
    assert before.transformed(Hue(by="client")).groups is None
    with pytest.raises(PartitionError, match="4 different angles"):
        before.transformed(Hue(120), groups=4)
    with pytest.raises(PartitionError, match="three colours"):
        federation().transformed(Hue(), groups=2)


@given(st.floats(0.05, 2), st.integers(0, 9))
def test_scales_and_names_can_be_undone(spread: float, seed: int) -> None:
    x, y = images(20).x, images(20).y
    affine = Affine(spread)
    u, v = affine.of_client(IMAGES, rng(seed))
    moved, _ = affine((u, v), x, y, rng())
    back, _ = affine((-u, -v * np.exp(-u)), moved, y, rng())
    np.testing.assert_allclose(back, x, atol=1e-4 * np.exp(np.abs(u)).max() * (1 + np.abs(v).max()))
    for renaming in (Permutation(), Swap(pairs=2)):
        names = renaming.of_client(IMAGES, rng(seed))
        _, renamed = renaming(names, x, y, rng())
        _, again = renaming(tuple(np.argsort(names).tolist()), x, renamed, rng())
        np.testing.assert_array_equal(again, y)
    swapped = np.array(Swap(pairs=2).of_client(IMAGES, rng(seed)))
    assert (swapped != np.arange(4)).all()
    np.testing.assert_array_equal(swapped[swapped], range(4))


def test_the_sign_of_a_regression() -> None:
    before = regression()
    after = before.transformed(Sign(), groups=2)
    assert after.groups is not None
    for i, sign in enumerate([1, 1, -1, -1]):
        np.testing.assert_array_equal(samples(after, i)[1], sign * samples(before, i)[1])
    drawn = [before.transformed(Sign(by="client"), seed=seed) for seed in range(9)]
    assert len({float(samples(fed, 0)[1][0]) for fed in drawn}) == 2


@pytest.mark.parametrize(("name", "concepts"), [("sine", 4), ("circle", 2), ("sea", 4)])
def test_each_group_has_labels_by_its_own_rule(name: str, concepts: int) -> None:
    """Against the rules of FedDrift, sample by sample; a tenth of SEA's labels is wrong."""

    def label(concept: int, *x: float) -> bool:
        if name == "sea":
            return x[0] + x[1] > [8, 9, 7, 9.5][concept]
        if name == "circle":
            a, b, radius = [(0.2, 0.5, 0.15), (0.6, 0.5, 0.25)][concept]
            return (x[0] - a) ** 2 + (x[1] - b) ** 2 - radius**2 > 0
        curve = math.sin(x[0]) if concept < 2 else 0.5 + 0.3 * math.sin(3 * math.pi * x[0])
        return (x[1] <= curve) != concept % 2

    before = Federation.from_dataset(name, Iid(), clients=100)
    after = before.transformed(Concept(name), groups=concepts)
    assert (before.x is not after.x) and np.array_equal(before.x, after.x)
    assert after.groups is not None
    for i in range(0, 100, 11):
        x, y = samples(after, i)
        right = np.mean([label(int(after.groups[i]), *map(float, row)) for row in x] == y)
        assert 0.85 < right < 0.95 if name == "sea" else right == 1
    assert 0 <= before.x.min() < before.x.max() <= (10 if name == "sea" else 1)
    with pytest.raises(PartitionError, match=f"{concepts} concepts"):
        before.transformed(Concept(name), groups=5)
    other = before.transformed(Concept(name, by="client"))
    assert other.groups is None
    with pytest.raises(PartitionError, match=r"first rule|shape"):
        other.transformed(Concept("circle" if name == "sine" else "sine"), groups=2)


def test_groups_of_the_partition_are_those_of_the_transform() -> None:
    before = federation(ClusterwiseDirichlet((1.0, 10.0), groups=2))
    after = before.transformed(Rotation(), Permutation(), groups=4)
    np.testing.assert_array_equal(after.groups, before.groups)
    for i in (0, 7):
        turned, _ = Rotation()(90 * (i // 4), samples(before, i)[0], np.zeros(1), rng())
        np.testing.assert_array_equal(samples(after, i)[0], turned)


def test_crossing_groups_are_pairs() -> None:
    before = federation(ClusterwiseNClass((2, 2), groups=2))
    after = before.transformed(Contrast(-1, by="cross"), groups=2)
    signs = [int(np.sign(np.sum(samples(after, i)[0] * samples(before, i)[0]))) for i in range(8)]
    assert signs == [1, -1] * 4
    assert after.groups is not None
    assert before.groups is not None
    pairs = list(zip(before.groups.tolist(), signs, strict=True))
    assert len(set(pairs)) == len(set(after.groups.tolist())) == 4
    assert len(set(zip(pairs, after.groups.tolist(), strict=True))) == 4


@settings(max_examples=40)
@given(st.floats(0.05, 0.5), st.integers(2, 4), st.integers(6, 12), st.integers(0, 99))
def test_mixed_clients_hold_samples_of_two_groups(
    share: float, groups: int, clients: int, seed: int
) -> None:
    parted = federation(clients=clients).transformed(Permutation(), groups=groups, seed=seed)
    try:
        mixed = parted.mixed(share, seed)
    except PartitionError:
        assert parted.groups is not None
        assert 2 * np.bincount(parted.groups).max() > clients
        return
    assert mixed.fingerprint == parted.mixed(share, seed).fingerprint
    for side in ("train", "test"):
        held, before = getattr(mixed, side), getattr(parted, side)
        assert np.array_equal(np.sort(np.concatenate(held)), np.sort(np.concatenate(before)))
        origin = np.empty(len(parted.y), np.int64)
        for group, rows in zip(parted.groups, before, strict=True):  # type: ignore[arg-type]
            origin[rows] = group
        for i, rows in enumerate(held):
            assert np.all(np.diff(rows) > 0)
            kept = np.isin(rows, before[i])
            assert kept.sum() == len(before[i]) - round(share * len(before[i]))
            foreign = set(origin[rows[~kept]].tolist())
            assert len(foreign) <= 1
            assert parted.groups[i] not in foreign  # type: ignore[index]


@pytest.mark.parametrize("name", TRANSFORMS)
def test_texts(name: str) -> None:
    assert write_value(parsed(name)) == name
    other = parsed(f"{name}(by=client)")
    assert (write_value(other), other.by) == (f"{name}(by=client)", "client")
    with pytest.raises(ConfigError, match="by"):
        parsed(f"{name}(by=site)")
    with pytest.raises(ConfigError, match=f"option of the transform {name}"):
        parsed(f"{name}(colour=1)")


@pytest.mark.parametrize(
    ("transform", "groups", "said"),
    [
        (Rotation(), 5, "5 different angles"),
        (Rotation(step=100), 19, "19 different"),
        (Contrast(-1), 3, "by 0"),
        (Permutation(), 25, "renamed in 25"),
        (Swap(pairs=2), 5, "renamed in 5"),
        (Swap(pairs=3), 2, "renamed in 2"),
        (Swap(pairs=3, by="client"), 2, "needs 6 classes"),
        (Sign(), 2, "numbers"),
        (Blur(), 9, "9 groups.*8"),
    ],
)
def test_what_cannot_be(transform: Transform, groups: int, said: str) -> None:
    with pytest.raises(PartitionError, match=said) as caught:
        federation(clients=8 if groups < 10 else 30).transformed(transform, groups=groups)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("transform", [Rotation(), Hue(), Blur(), Permutation(), Swap(by="client")])
def test_tables_and_numbers_are_no_images_and_no_classes(transform: Transform) -> None:
    with pytest.raises(PartitionError, match=r"images|numbers"):
        regression().transformed(transform, groups=2)


@pytest.mark.parametrize(
    "text",
    ["rotation(step=0)", "rotation(step=360)", "rotation(step=x)", "noise(deviation=-1)",
     "contrast(least=1)", "contrast(least=-2)", "blur(width=True)", "swap(pairs=0)",
     "swap(pairs=1.5)", "affine(spread=0)", "affine(0.5)", "affine(", "turn"],
)  # fmt: skip
def test_bad_texts(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    assert "\n" not in str(caught.value)


def test_what_does_not_go_together() -> None:
    fed = federation()
    with pytest.raises(ConfigError, match="rotation is given twice"):
        fed.transformed(Rotation(), Rotation(30, by="client"))
    with pytest.raises(PartitionError, match="needs clients with groups"):
        fed.mixed(0.2)
    with pytest.raises(ConfigError, match=r"at most 0\.5"):
        fed.mixed(0.7)
    with pytest.raises(PartitionError, match="half"):
        fed.transformed(Rotation(), groups=1).mixed(0.2)
    grouped = federation(ClusterwiseNClass((2, 2), groups=4))
    with pytest.raises(PartitionError, match="cross"):
        grouped.transformed(Rotation(by="cross"), groups=3)
    with pytest.raises(PartitionError, match="square"):
        Rotation().of_groups(2, SampleKind((1, 4, 6), 2), rng())
