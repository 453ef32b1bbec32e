"""Divides samples among clients as a partition says: one array of indices per client.

Shares S are drawn again until every client has enough samples. Then the shuffled samples of each
class are cut at the cumulative shares, so that every sample belongs to exactly one client. The same
S cuts the training and the test labels, so a client is tested on its own distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wecfl.core.types import F64, Int
from wecfl.data.partition import PARTITIONS_BY_SIZE, describe
from wecfl.data.shares import Partition, Shares
from wecfl.data.source import Dataset
from wecfl.data.targets import Targets, may_be_labels
from wecfl.errors import DataError, PartitionError
from wecfl.rng import stream

if TYPE_CHECKING:
    from wecfl.data.federation import Federation

__all__ = [
    "MAX_DRAWS",
    "ClientRows",
    "allot",
    "check_clients",
    "class_counts",
    "share_out",
    "split_samples",
]

MAX_DRAWS = 10_000
"""The number of draws after which `split_samples` gives up. In the paper's hardest setting,
client-wise Dirichlet(0.1) over 200 clients, one draw in twelve gives every client enough data."""


@dataclass(frozen=True, slots=True)
class ClientRows:
    """The rows of each client in the training and test labels, ascending, and the true groups.

    >>> from wecfl.data.partition import Iid
    >>> y = np.zeros(6, int)
    >>> parts = split_samples(Iid(), y, y[:2], classes=1, clients=2, seed=0)
    >>> [len(rows) for rows in parts.train], parts.groups
    ([3, 3], None)
    """

    train: tuple[Int, ...]
    test: tuple[Int, ...]
    groups: Int | None
    """(m,), the group that generated each client; None if the partition has no groups."""
    names: Int | None = None
    """(m, classes), the label that client i gives to class c; None: no client changes labels."""


def share_out(
    data: Dataset, partition: Partition, *, clients: int, seed: int
) -> tuple[Targets, ClientRows]:
    """The targets as the clients name them, and the rows of each client in the whole pool.

    >>> data = Dataset("six", np.zeros((6, 1), np.float32), np.zeros(6, int), 4, 1)
    >>> _, held = share_out(data, PARTITIONS_BY_SIZE[0](), clients=2, seed=0)
    >>> [len(rows) for rows in held.train], sorted(int(rows[0]) for rows in held.test)
    ([2, 2], [4, 5])
    """
    if not hasattr(partition, "shares"):
        raise PartitionError(
            f"the partition must be a value such as wecfl.partitions.Iid(), got {partition!r}"
        )
    n, labels, classes = data.n_train, data.y, data.classes
    if not may_be_labels(labels):
        if not isinstance(partition, PARTITIONS_BY_SIZE):
            raise PartitionError(
                f"{partition.name} divides samples by class, but the targets are numbers; choose "
                f"{', '.join(kind.name for kind in PARTITIONS_BY_SIZE)}, or a folder with one "
                "file per client"
            )
        labels, classes = np.zeros(len(data.y), np.int64), 1
    held = split_samples(
        partition, labels[:n], labels[n:], classes=classes, clients=clients, seed=seed,
        min_test=min(1, len(data.y) - n),
    )  # fmt: skip
    test, y = tuple(rows + n for rows in held.test), data.y
    if held.names is not None:
        y = y.copy()  # every sample has one holder, so its label can be changed in place
        for names, rows in zip(held.names, zip(held.train, test, strict=True), strict=True):
            for own in rows:
                y[own] = names[y[own]]
    return y, replace(held, test=test)


def split_samples(
    partition: Partition,
    y_train: NDArray[np.integer],
    y_test: NDArray[np.integer],
    *,
    classes: int,
    clients: int,
    seed: int,
    min_train: int = 2,
    min_test: int = 1,
    max_draws: int = MAX_DRAWS,
) -> ClientRows:
    """Divide the samples; draw again until every client has enough, at most `max_draws` times.

    >>> from wecfl.data.partition import ClusterwiseNClass
    >>> y = np.repeat(np.arange(3), 20)
    >>> partition = ClusterwiseNClass((2, 1), groups=2)
    >>> parts = split_samples(partition, y, y, classes=3, clients=4, seed=0)
    >>> parts.groups.tolist(), [sorted(set(y[i].tolist())) for i in parts.train]
    ([0, 0, 1, 1], [[0], [2], [1], [0]])
    """
    if clients < 1:
        raise PartitionError(f"clients must be at least 1, got {clients}")
    for word, labels, minimum in (("training", y_train, min_train), ("test", y_test, min_test)):
        _check_labels(labels, classes, word)
        if len(labels) < minimum * clients:
            raise PartitionError(
                f"{len(labels)} {word} samples are not enough for {clients} clients with at least "
                f"{minimum} each; ask for fewer clients"
            )
    n_train, n_test = (np.bincount(y, minlength=classes) for y in (y_train, y_test))
    fault_counts: Counter[str] = Counter()
    faults: dict[str, str] = {}
    for attempt in range(max_draws):
        shares = partition.shares(classes, clients, stream(seed, "partition", attempt))
        train, test = allot(shares.matrix, n_train), allot(shares.matrix, n_test)
        found = (
            _unheld_classes(train + test, n_train + n_test)
            or _small_groups(shares, test)
            or _small_clients(train, min_train, "training")
            or _small_clients(test, min_test, "test")
        )
        if not found:
            return ClientRows(
                _deal(y_train, train, stream(seed, "deal", 0)),
                _deal(y_test, test, stream(seed, "deal", 1)),
                shares.groups,
                shares.names,
            )
        fault_counts.update(found.keys())
        faults |= found
    [(worst, _)] = fault_counts.most_common(1)
    raise PartitionError(
        f"{worst} {faults[worst]} ({describe(partition)}, {clients} clients, seed {seed}, "
        f"{max_draws} draws); {partition.remedy}"
    )


def class_counts(labels: NDArray[np.integer], indices: Sequence[Int], classes: int) -> Int:
    """(classes, m), the number of samples of each class at each client.

    >>> class_counts(np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([2, 3])], classes=3)
    array([[1, 0],
           [1, 1],
           [0, 1]])
    """
    return np.stack([np.bincount(labels[i], minlength=classes) for i in indices], axis=1)


def check_clients(clients: Federation) -> None:
    """Refuse no clients, two of one name, and a client with nothing to train on.

    >>> from wecfl.data.federation import Federation
    >>> Federation.from_arrays([[[0.0]] * 2] * 2, [[0, 1]] * 2, names=["a", "a"])
    Traceback (most recent call last):
    ...
    wecfl.errors.DataError: two clients have the name 'a'; give each a name of its own
    """
    if not clients.train:
        raise DataError("there are no clients, expected at least one; give samples for one")
    for field in ("test", "keys", "names", "groups"):
        value = getattr(clients, field)
        if value is not None and len(value) != clients.m:
            raise DataError(
                f"{field}: expected one value for each of {clients.m} clients, got {len(value)}"
            )
    if len(set(clients.names)) < clients.m:
        twice = next(name for name in clients.names if clients.names.count(name) > 1)
        raise DataError(f"two clients have the name {twice!r}; give each a name of its own")
    for name in clients.names:
        if name.encode(errors="replace").decode() != name:
            raise DataError(f"the client name {name!r} is not valid Unicode; choose another name")
    for name, train, test in zip(clients.names, clients.train, clients.test, strict=True):
        if not len(train):
            raise DataError(
                f"client {name}: no training samples ({len(test)} for testing), expected at "
                "least one; leave the client out or give it more data"
            )
    sizes = [
        (len(train), len(test)) for train, test in zip(clients.train, clients.test, strict=True)
    ]
    for change in clients.changes:
        later = [(len(a), len(b)) for a, b in zip(change.train, change.test, strict=True)]
        if later != sizes:
            raise DataError(
                f"the numbers of samples of clients differ in round {change.round} from those in "
                "round 1; let each client hold the same number in all rounds"
            )


def allot(matrix: F64, per_class: Int) -> Int:
    """(classes, m), how many of the n_c samples of class c each client i gets.

    The samples of class c are cut at ⌊n_c Σ_{j≤i} S_cj + u_c⌋. So no count is wrong by a whole
    sample, a share of zero gets no sample, and the last cut is n_c. If all classes were rounded in
    the same way (u_c = ½), the same clients would get too few samples in every class. With
    u_c = (c + ½)/C the errors cancel over the classes: Σ_c ⌊x + c/C⌋ = ⌊C x⌋ (Hermite).

    >>> allot(np.array([[0.5, 0.5], [0.5, 0.5]]), np.array([3, 3]))
    array([[1, 2],
           [2, 1]])
    """
    reached = matrix.cumsum(axis=1)
    whole = reached[:, -1:]
    # Division by the sum makes the cuts after the last holder exactly n_c.
    reached = np.divide(reached, whole, out=np.zeros_like(reached), where=whole > 0)
    offset = (np.arange(len(matrix)) + 0.5) / len(matrix)
    cuts = np.floor(reached * per_class[:, None] + offset[:, None]).astype(np.int64)
    sizes: Int = np.diff(cuts, axis=1, prepend=0)
    return sizes


def _deal(labels: NDArray[np.integer], sizes: Int, rng: np.random.Generator) -> tuple[Int, ...]:
    """The samples of each client: `sizes` (classes, m) of them from each shuffled class."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_class] = np.concatenate([np.repeat(np.arange(len(row)), row) for row in sizes])
    return tuple(np.split(np.argsort(owner, kind="stable"), sizes.sum(axis=0).cumsum()[:-1]))


def _unheld_classes(allotted: Int, per_class: Int) -> dict[str, str]:
    missing = np.flatnonzero(allotted.sum(axis=1) < per_class)
    return {f"class {c}": "would belong to no client" for c in missing}


def _small_groups(shares: Shares, test: Int) -> dict[str, str]:
    if shares.groups is None or not shares.floor or not test.any():
        return {}
    held = np.bincount(shares.groups, weights=test.sum(axis=0))
    small = np.flatnonzero(held <= shares.floor * held.mean())
    limit = f"not more than {shares.floor:.0%} of the mean group's {held.mean():.0f}"
    return {f"group {g}": f"would hold {held[g]:.0f} test samples, {limit}" for g in small}


def _small_clients(allotted: Int, minimum: int, word: str) -> dict[str, str]:
    held = allotted.sum(axis=0)
    small = np.flatnonzero(held < minimum)
    return {f"client {i}": f"would hold {held[i]} {word} samples, needs {minimum}" for i in small}


def _check_labels(labels: NDArray[np.integer], classes: int, word: str) -> None:
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise PartitionError(
            f"{word} labels must be a vector of integers, got {labels.dtype} {labels.shape}"
        )
    outside = np.flatnonzero((labels < 0) | (labels >= classes))
    if outside.size:
        raise PartitionError(
            f"{word} label {labels[outside[0]]} at position {outside[0]} is outside 0…{classes - 1}"
        )
