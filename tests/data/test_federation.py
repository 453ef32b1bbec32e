"""Federations: the rows of each client are its own, whoever else is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from wecfl.data.datasets import load
from wecfl.data.federation import Federation
from wecfl.data.partition import ClusterwiseDirichlet, ClusterwisePermuted, Iid
from wecfl.data.source import Dataset
from wecfl.errors import ConfigError, DataError, PartitionError

Floats = list[NDArray[np.float64]]
Ints = list[NDArray[np.int64]]


def clients(*sizes: int) -> tuple[Floats, Ints]:
    """Samples that say whose they are (first feature) and which (second), labels 0, 1, 0, 1, …"""
    xs = [
        np.stack([np.full(n, i), np.arange(n)], axis=1).astype(float) for i, n in enumerate(sizes)
    ]
    return xs, [np.arange(n) % 2 for n in sizes]


@given(
    sizes=st.lists(st.integers(2, 30), min_size=1, max_size=6),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 5),
)
def test_every_sample_is_its_clients_train_or_test(
    sizes: list[int], share: float, seed: int
) -> None:
    xs, ys = clients(*sizes)
    fed = Federation.from_arrays(xs, ys, test=share, seed=seed)
    assert len(fed) == fed.m == len(sizes)
    assert fed.sizes.tolist() == [len(rows) for rows in fed.train]
    for i, n in enumerate(sizes):
        rows = np.sort(np.concatenate([fed.train[i], fed.test[i]]))
        np.testing.assert_array_equal(fed.x[rows], xs[i])
        np.testing.assert_array_equal(fed.y[rows], ys[i])
        assert len(fed.test[i]) == min(max(round(share * n), 1), n - 1)


def test_types_and_names() -> None:
    fed = Federation.from_arrays(*clients(5, 6), groups=[1, 0])
    assert [str(a.dtype) for a in (fed.x, fed.y, fed.keys)] == ["float32", "int64", "int64"]
    assert (fed.shape, fed.classes, fed.names) == ((2,), 2, ("0", "1"))
    assert fed.keys.tolist() == [0, 1]
    assert fed.groups is not None
    assert fed.groups.tolist() == [1, 0]
    assert Federation.from_arrays(*clients(5), classes=7).classes == 7


def test_one_copy() -> None:
    xs, ys = clients(50, 60)
    fed = Federation.from_arrays(xs, ys)
    assert fed.x.base is None
    assert len(fed.x) == 110
    assert fed.subset([1]).x is fed.x


def test_the_split_is_seeded_and_a_clients_own() -> None:
    xs, ys = clients(40, 40, 40)
    one, same, other = (Federation.from_arrays(xs, ys, seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(one.test, same.test)
    assert not np.array_equal(one.test, other.test)
    np.testing.assert_array_equal(Federation.from_arrays(xs[:1], ys[:1]).test[0], one.test[0])
    assert not np.array_equal(one.test[0], one.test[1] - 40)


def test_own_test_samples() -> None:
    xs, ys = clients(3, 1)
    fed = Federation.from_arrays(xs, ys, test=clients(2, 4))
    assert fed.sizes.tolist() == [3, 1]
    for i, n in enumerate((2, 4)):
        np.testing.assert_array_equal(fed.x[fed.train[i]], xs[i])
        np.testing.assert_array_equal(fed.x[fed.test[i]], clients(2, 4)[0][i])
        assert len(fed.test[i]) == n


def test_pixels_are_scaled_and_integers_are_not() -> None:
    pixels = np.array([[0], [255]], np.uint8)
    assert Federation.from_arrays([pixels], [[0, 1]]).x.ravel().tolist() == [-1, 1]
    assert Federation.from_arrays([pixels.astype(int)], [[0, 1]]).x.ravel().tolist() == [0, 255]


X, Y = np.zeros((4, 2)), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (X[:0], Y[:0], "^client b: 0 samples.*1"),
        (X, Y[:3], r"^client b: y .*\(3,\).*\(4,\)"),
        (X[:, :1], Y, r"^client b: .*\(1,\).*client a .*\(2,\)"),
        (X.astype(np.uint8), Y, "^client b: .*uint8.*client a .*float64"),
        (X + np.inf, Y, "^client b: .*NaN"),
        (X, Y + 2, "^client b: label 3 of sample 1 .*0 … 2"),
        (X, Y - 1, "^client b: label -1 of sample 0"),
        (X, Y / 2, "^client b: label 0.5 of sample 1"),
        (X, Y.astype(str), "^client b: y "),
        (np.float64(1), Y[:1], "client b: "),
        (np.ma.masked_array(X, mask=X > 1), Y, "^client b: .* masked"),
        (X, np.ma.masked_array(Y, mask=Y > 0), "^client b: .* masked"),
    ],
)
def test_the_client_at_fault_is_named(x: Any, y: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        Federation.from_arrays([X, x], [Y, y], names=["a", "b"], classes=3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"xs": [], "ys": []}, "no clients"),
        ({"ys": [Y]}, "2 arrays x, 1 arrays y and 2 names"),
        ({"names": ["a"]}, "2 arrays x, 2 arrays y and 1 names"),
        ({"test": ([X], [Y])}, "1 arrays x, 1 arrays y and 2 names"),
        ({"names": ["a", "\ud800"]}, r"'\\ud800' is not valid Unicode"),
        ({"xs": [X[:, :0]] * 2}, "at least one number"),
        ({"groups": [0, 1, 2]}, "^groups: .* 2 clients, got 3"),
    ],
)
def test_clients_that_do_not_add_up(words: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        Federation.from_arrays(**{"xs": [X, X], "ys": [Y, Y], **words})


@pytest.mark.parametrize("share", [1, -0.2, 1.5, float("nan")])
def test_a_share_that_is_none(share: float) -> None:
    with pytest.raises(ConfigError, match=r"^test: .*share"):
        Federation.from_arrays([X], [Y], test=share)


def test_subset_keeps_identities() -> None:
    fed = Federation.from_arrays(*clients(5, 6, 7), groups=[4, 5, 6], names=["a", "b", "c"])
    some = fed.subset([2, 0]).subset([1, 0])
    assert some.names == ("a", "c")
    assert some.keys.tolist() == [0, 2]
    assert some.groups is not None
    assert some.groups.tolist() == [4, 6]
    assert some.train[1] is fed.train[2]
    assert some.test[1] is fed.test[2]
    assert fed.subset(np.array([False, True, True])).names == ("b", "c")
    with pytest.raises(DataError, match="no clients"):
        fed.subset([])


# Folders


def test_folder(tmp_path: Path) -> None:
    xs, ys = clients(5, 6)
    np.savez(tmp_path / "b.npz", x=xs[1], y=ys[1])
    np.savez(tmp_path / "a.npz", x=xs[0], y=ys[0])
    (tmp_path / "notes.txt").write_text("ignored")
    fed = Federation.from_folder(tmp_path, seed=3)
    same = Federation.from_arrays(xs, ys, seed=3)
    assert fed.names == ("a", "b")
    np.testing.assert_array_equal(fed.x, same.x)
    np.testing.assert_array_equal(fed.test[1], same.test[1])


def test_folder_with_test_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, x_test=X[:1], y_test=Y[:1])
    np.savez(tmp_path / "b.npz", x=X, y=Y, x_test=X, y_test=Y)
    fed = Federation.from_folder(str(tmp_path))
    assert [len(rows) for rows in fed.test] == [1, 4]
    np.savez(tmp_path / "b.npz", x=X, y=Y)
    with pytest.raises(DataError, match=r"client b: .*x_test .*client a"):
        Federation.from_folder(tmp_path)


def test_folder_at_fault(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(DataError, match=f"^{folder}: .*.npz file .* none"):
            Federation.from_folder(folder)
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", x=X * np.nan, y=Y)
    with pytest.raises(DataError, match=r"client b: .*NaN"):
        Federation.from_folder(tmp_path)
    np.savez(tmp_path / "b.npz", x=X)
    with pytest.raises(DataError, match=r"b.npz: .*lacks y"):
        Federation.from_folder(tmp_path)


# Data sets


def test_dataset_by_name() -> None:
    fed = Federation.from_dataset(
        "digits", ClusterwiseDirichlet((0.1, 10.0), groups=10), clients=50, seed=0
    )
    assert (len(fed), fed.shape, fed.classes) == (50, (1, 8, 8), 10)
    assert fed.groups is not None
    assert len(np.unique(fed.groups)) == 10
    n_train = 1438
    assert sorted(np.concatenate(fed.train)) == list(range(n_train))
    assert sorted(np.concatenate(fed.test)) == list(range(n_train, 1797))


def test_dataset_by_value_and_by_path(tmp_path: Path) -> None:
    x, y = np.zeros((40, 3), np.float32), np.arange(40) % 2
    data = Dataset("mine", x, y, n_train=30, classes=2)
    fed = Federation.from_dataset(data, Iid(), clients=4)
    assert fed.x is x
    assert fed.groups is None
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    fed = Federation.from_dataset(tmp_path / "mine.npz", Iid(), clients=4)
    assert sorted(np.concatenate([*fed.train, *fed.test])) == list(range(40))


def test_fewer_samples_than_clients() -> None:
    data = Dataset("mine", np.zeros((6, 1), np.float32), np.arange(6) % 2, n_train=4, classes=2)
    with pytest.raises(PartitionError, match="5 clients"):
        Federation.from_dataset(data, Iid(), clients=5)


def test_groups_call_the_same_classes_something_else() -> None:
    """Concept shift: samples and classes are shared out as for iid, only the labels differ."""
    permuted = ClusterwisePermuted(groups=3)
    fed = Federation.from_dataset("digits", permuted, clients=9, seed=1)
    plain = Federation.from_dataset("digits", Iid(), clients=9, seed=1)
    assert fed.groups is not None
    assert fed.groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    names: dict[int, dict[int, int]] = {}
    for i, group in enumerate(fed.groups):
        for mine, theirs in ((fed.train[i], plain.train[i]), (fed.test[i], plain.test[i])):
            np.testing.assert_array_equal(mine, theirs)
            for true, said in zip(plain.y[mine], fed.y[mine], strict=True):
                assert names.setdefault(group, {}).setdefault(true, said) == said
    assert all(name == true for true, name in names[0].items())
    permutations = [tuple(names[group][c] for c in range(10)) for group in range(3)]
    assert len(set(permutations)) == 3
    assert all(sorted(each) == list(range(10)) for each in permutations)


def test_a_data_set_keeps_its_own_names() -> None:
    digits = load("digits")
    before = digits.y.copy()
    fed = Federation.from_dataset(digits, ClusterwisePermuted(groups=3), clients=9)
    assert (fed.y != before).any()
    np.testing.assert_array_equal(digits.y, before)


def test_no_more_groups_than_permutations() -> None:
    with pytest.raises(PartitionError, match=r"2 classes .*3 different ways"):
        ClusterwisePermuted(3).shares(2, 3, np.random.default_rng(0))
