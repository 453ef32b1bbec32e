"""The share matrix of a partition, the protocol of partitions, and what several of them need."""

from __future__ import annotations

from dataclasses import Field, dataclass
from math import inf
from typing import Any, ClassVar, Protocol

import numpy as np

from wecfl.core.types import F64, Int
from wecfl.errors import PartitionError

__all__ = [
    "OneAlpha",
    "Partition",
    "Shares",
    "TwoAlphas",
    "check_alpha",
    "check_groups",
    "dirichlet",
    "spread",
]


@dataclass(frozen=True, slots=True)
class Shares:
    """One draw of a partition: the part of each class that each client holds.

    >>> from wecfl.data.partition import Iid
    >>> Iid().shares(classes=1, clients=4, rng=np.random.default_rng(0)).matrix.tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """

    matrix: F64
    """(classes, m), S. A row sums to 1, or to 0 if the draw gave the class to no client."""
    groups: Int | None = None
    """(m,), the group that generated each client."""
    floor: float = 0.0
    """Each group must hold more than this part of the mean group's test samples."""
    names: Int | None = None
    """(m, classes), the label that client i gives to class c; None if all keep the labels."""


class Partition(Protocol):
    """What `split_samples` needs: a dataclass that draws shares and describes itself."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    name: ClassVar[str]
    usage: ClassVar[str]
    """The parameters of the partition, for error messages."""
    remedy: ClassVar[str]
    """What to do if no draw gives every client enough samples."""

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """One draw of the share matrix."""
        ...


@dataclass(frozen=True, slots=True)
class OneAlpha:
    """The common part of partitions with one parameter α."""

    alpha: float

    usage: ClassVar[str] = "alpha A"
    remedy: ClassVar[str] = "raise alpha or ask for fewer clients"

    def __post_init__(self) -> None:
        check_alpha(self.alpha)


@dataclass(frozen=True, slots=True)
class TwoAlphas:
    """What partitions share that have an α₁ between groups and an α₂ between clients of a group."""

    alpha: tuple[float, float]
    groups: int = 10

    usage: ClassVar[str] = "alpha A1 A2"
    remedy: ClassVar[str] = "raise alpha or ask for fewer clients or groups"

    def __post_init__(self) -> None:
        check_alpha(*self.alpha)
        check_groups(self.groups)


def dirichlet(alpha: float, over: int, rows: int, rng: np.random.Generator) -> F64:
    """(rows, over), one draw of Dirichlet(α) in each row.

    >>> dirichlet(1.0, 3, 2, np.random.default_rng(0)).sum(axis=1).round(9).tolist()
    [1.0, 1.0]
    """
    return rng.dirichlet(np.full(over, alpha), size=rows)


def spread(clients: int, groups: int) -> Int:
    """(clients,), the group of each client. Groups are consecutive and of nearly equal size.

    >>> spread(5, 2)
    array([0, 0, 0, 1, 1])
    """
    if groups > clients:
        raise PartitionError(
            f"{groups} groups need at least as many clients, got {clients}; ask for fewer groups"
        )
    return np.arange(clients) * groups // clients


def check_alpha(*alpha: float) -> None:
    """Refuse parameters of a Dirichlet distribution or a power law that are not positive."""
    for value in alpha:
        if not 0 < value < inf:
            raise PartitionError(f"alpha must be positive and finite, got {value:g}")


def check_groups(groups: int) -> None:
    """Refuse a number of groups below 1."""
    if groups < 1:
        raise PartitionError(f"groups must be at least 1, got {groups}")
