"""Partitions: how the samples of a data set are divided among clients.

Every partition draws a class × client matrix S of shares. S_ci is the part of class c that client i
holds, so a row sums to 1. `wecfl.data.client_rows` cuts the samples by these shares.

| name | parameters | S |
|---|---|---|
| iid | | equal shares |
| quantity-skew | alpha A | one Dirichlet(A) over clients, the same for all classes |
| quantity-power | alpha A | sizes ∝ rank^(−A), the same for all classes |
| clusterwise-quantity | alpha A1 A2 | a Dirichlet(A1) over groups, in each a Dirichlet(A2), once |
| clientwise-dirichlet | alpha A | for each class a Dirichlet(A) over clients |
| clientwise-nclass | classes_per N | N random classes per client, shared equally |
| clusterwise-dirichlet | alpha A1 A2 | a Dirichlet(A1) over groups, in each a Dirichlet(A2) |
| clusterwise-nclass | classes_per N1 N2 | N1 random classes per group, N2 of these per client |
| clusterwise-permuted | | equal shares; each group renames the classes in its own way |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from wecfl.core.types import F64, Int
from wecfl.data.quantity import ClusterwiseQuantity, QuantityPower, QuantitySkew
from wecfl.data.shares import (
    OneAlpha,
    Partition,
    Shares,
    TwoAlphas,
    check_groups,
    dirichlet,
    spread,
)
from wecfl.data.transforms import Permutation, SampleKind
from wecfl.errors import PartitionError, unknown

__all__ = [
    "PARTITIONS",
    "PARTITIONS_BY_SIZE",
    "ClientwiseDirichlet",
    "ClientwiseNClass",
    "ClusterwiseDirichlet",
    "ClusterwiseNClass",
    "ClusterwisePermuted",
    "ClusterwiseQuantity",
    "Iid",
    "Partition",
    "QuantityPower",
    "QuantitySkew",
    "Shares",
    "build",
    "describe",
]


@dataclass(frozen=True, slots=True)
class Iid:
    """Equal shares, S_ci = 1/m.

    >>> Iid().shares(2, 4, np.random.default_rng(0)).matrix[0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    name: ClassVar[str] = "iid"
    usage: ClassVar[str] = "neither alpha nor classes_per"
    remedy: ClassVar[str] = "ask for fewer clients"

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """The same matrix in every draw."""
        return Shares(np.full((classes, clients), 1 / clients))


@dataclass(frozen=True, slots=True)
class ClientwiseDirichlet(OneAlpha):
    """S_c ~ Dirichlet(α) over the clients, for each class c (Hsu et al., 2019).

    >>> drawn = ClientwiseDirichlet(alpha=0.1).shares(2, 3, np.random.default_rng(0))
    >>> drawn.matrix.sum(axis=1).round(9).tolist()
    [1.0, 1.0]
    """

    name: ClassVar[str] = "clientwise-dirichlet"

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """One vector per class."""
        return Shares(dirichlet(self.alpha, clients, classes, rng))


@dataclass(frozen=True, slots=True)
class ClientwiseNClass:
    """n random classes per client, each class shared equally among its holders.

    >>> drawn = ClientwiseNClass(n=2).shares(3, 6, np.random.default_rng(0))
    >>> (drawn.matrix > 0).sum(axis=0).tolist()
    [2, 2, 2, 2, 2, 2]
    """

    n: int

    name: ClassVar[str] = "clientwise-nclass"
    usage: ClassVar[str] = "classes_per N"
    remedy: ClassVar[str] = "raise classes_per or ask for fewer clients"

    def __post_init__(self) -> None:
        _check_n(self.n)

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """A class that no client holds has a row of zeros."""
        _check_capacity(self.n * clients, self.n, classes, f"{clients} clients")
        return Shares(_share_equally(_choose(self.n, classes, clients, rng), classes))


@dataclass(frozen=True, slots=True)
class ClusterwiseDirichlet(TwoAlphas):
    """S_ci = A_cg B_ci, client i in group g; A_c ~ Dirichlet(α₁), B_c ~ Dirichlet(α₂) per group.

    With the paper's (0.1, 10), groups differ a lot and clients of a group hardly differ. As in the
    paper's experiment, each group holds more than 30 % of the mean group's test samples.

    >>> partition = ClusterwiseDirichlet(alpha=(0.1, 10), groups=2)
    >>> drawn = partition.shares(3, 5, np.random.default_rng(0))
    >>> drawn.groups.tolist(), drawn.matrix.sum(axis=1).round(9).tolist()
    ([0, 0, 0, 1, 1], [1.0, 1.0, 1.0])
    """

    name: ClassVar[str] = "clusterwise-dirichlet"

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """Groups first, then the clients inside each group."""
        groups = spread(clients, self.groups)
        between = dirichlet(self.alpha[0], self.groups, classes, rng)
        within = [dirichlet(self.alpha[1], size, classes, rng) for size in np.bincount(groups)]
        return Shares(between[:, groups] * np.concatenate(within, axis=1), groups, floor=0.3)


@dataclass(frozen=True, slots=True)
class ClusterwiseNClass:
    """n₁ random classes per group, n₂ of these per client, each shared equally by its holders.

    >>> drawn = ClusterwiseNClass(n=(2, 1), groups=2).shares(3, 5, np.random.default_rng(1))
    >>> drawn.matrix.round(2)
    array([[0.  , 0.  , 0.33, 0.33, 0.33],
           [0.5 , 0.5 , 0.  , 0.  , 0.  ],
           [0.  , 0.  , 0.  , 0.  , 0.  ]])
    """

    n: tuple[int, int]
    groups: int = 10

    name: ClassVar[str] = "clusterwise-nclass"
    usage: ClassVar[str] = "classes_per N1 N2"
    remedy: ClassVar[str] = "raise classes_per or ask for fewer clients"

    def __post_init__(self) -> None:
        _check_n(*self.n)
        check_groups(self.groups)
        n1, n2 = self.n
        if n2 > n1:
            raise PartitionError(
                f"classes_per {n1} {n2}: a client can't hold {n2} of its group's {n1} classes; "
                f"lower the second number to at most {n1}"
            )

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """A class that no client holds has a row of zeros."""
        n1, n2 = self.n
        groups = spread(clients, self.groups)
        capacity = np.minimum(n1, n2 * np.bincount(groups)).sum()
        _check_capacity(int(capacity), n1, classes, f"{self.groups} groups of {clients} clients")
        of_group = _choose(n1, classes, self.groups, rng)
        of_client = np.take_along_axis(of_group[groups], _choose(n2, n1, clients, rng), axis=1)
        return Shares(_share_equally(of_client, classes), groups)


@dataclass(frozen=True, slots=True)
class ClusterwisePermuted:
    """Concept shift: all clients have equal shares, but each group labels the classes differently.

    Group 0 keeps the labels of the data set; every other group has a random permutation of its own
    (Sattler et al., 2020). What one group learns is wrong for the others.

    >>> drawn = ClusterwisePermuted(groups=2).shares(3, 4, np.random.default_rng(0))
    >>> drawn.names.tolist()
    [[0, 1, 2], [0, 1, 2], [2, 0, 1], [2, 0, 1]]
    """

    groups: int = 10

    name: ClassVar[str] = "clusterwise-permuted"
    usage: ClassVar[str] = "neither alpha nor classes_per"
    remedy: ClassVar[str] = "ask for fewer clients"

    def __post_init__(self) -> None:
        check_groups(self.groups)

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """Equal shares, and a different permutation of the labels for each group."""
        groups = spread(clients, self.groups)
        renamed = Permutation().of_groups(self.groups, SampleKind((), classes), rng)
        names = np.array(renamed, np.int64)[groups]
        return Shares(Iid().shares(classes, clients, rng).matrix, groups, names=names)


PARTITIONS: dict[str, type[Partition]] = {
    kind.name: kind
    for kind in (
        Iid,
        QuantitySkew,
        QuantityPower,
        ClusterwiseQuantity,
        ClientwiseDirichlet,
        ClientwiseNClass,
        ClusterwiseDirichlet,
        ClusterwiseNClass,
        ClusterwisePermuted,
    )
}
"""Every partition by its name."""

PARTITIONS_BY_SIZE = (Iid, QuantitySkew, QuantityPower, ClusterwiseQuantity)
"""The partitions that do not use classes: they divide samples with any targets."""


def build(
    name: str, *, alpha: tuple[float, ...] = (), n: tuple[int, ...] = (), groups: int = 10
) -> Partition:
    """The partition of that name from its parameters.

    >>> build("clusterwise-dirichlet", alpha=(0.1, 10), groups=5)
    ClusterwiseDirichlet(alpha=(0.1, 10), groups=5)
    >>> build("clusterwise-dirichlet", alpha=(0.1,))
    Traceback (most recent call last):
    wecfl.errors.PartitionError: clusterwise-dirichlet takes alpha A1 A2, got alpha 0.1
    """
    match name, alpha, n:
        case Iid.name, (), ():
            return Iid()
        case QuantitySkew.name, (a,), ():
            return QuantitySkew(a)
        case QuantityPower.name, (a,), ():
            return QuantityPower(a)
        case ClusterwiseQuantity.name, (a1, a2), ():
            return ClusterwiseQuantity((a1, a2), groups)
        case ClientwiseDirichlet.name, (a,), ():
            return ClientwiseDirichlet(a)
        case ClientwiseNClass.name, (), (k,):
            return ClientwiseNClass(k)
        case ClusterwiseDirichlet.name, (a1, a2), ():
            return ClusterwiseDirichlet((a1, a2), groups)
        case ClusterwiseNClass.name, (), (n1, n2):
            return ClusterwiseNClass((n1, n2), groups)
        case ClusterwisePermuted.name, (), ():
            return ClusterwisePermuted(groups)
    if name not in PARTITIONS:
        raise PartitionError(unknown("partition", name, PARTITIONS))
    parameters = {"alpha": alpha, "classes_per": n}
    words = [str(word) for key, values in parameters.items() if values for word in (key, *values)]
    given = " ".join(words) or "neither"
    raise PartitionError(f"{name} takes {PARTITIONS[name].usage}, got {given}")


def describe(partition: Partition) -> str:
    """Name and parameters on one line.

    >>> describe(ClusterwiseDirichlet(alpha=(0.1, 10.0)))
    'clusterwise-dirichlet alpha=(0.1, 10.0) groups=10'
    """
    return " ".join([partition.name, *(f"{k}={v}" for k, v in asdict(partition).items())])


def _choose(n: int, of: int, rows: int, rng: np.random.Generator) -> Int:
    """(rows, n), in each row n different numbers from 0 to of − 1."""
    return rng.permuted(np.tile(np.arange(of), (rows, 1)), axis=1)[:, :n]


def _share_equally(held: Int, classes: int) -> F64:
    """The share matrix of clients that hold the classes in their row of `held`."""
    clients = len(held)
    holds = np.zeros((classes, clients))
    holds[held, np.arange(clients)[:, None]] = 1
    shares: F64 = holds / np.maximum(holds.sum(axis=1, keepdims=True), 1)
    return shares


def _check_n(*n: int) -> None:
    for value in n:
        if value < 1:
            raise PartitionError(f"classes_per must be at least 1, got {value}")


def _check_capacity(capacity: int, n: int, classes: int, who: str) -> None:
    """Refuse a partition in which some class can have no holder."""
    if n > classes:
        raise PartitionError(
            f"classes_per is {n}, but the data have only {classes} classes; lower it"
        )
    if capacity < classes:
        raise PartitionError(
            f"{who} can hold only {capacity} of the {classes} classes; raise classes_per"
        )
