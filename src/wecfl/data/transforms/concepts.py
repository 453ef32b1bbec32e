"""Transforms of the targets: concept shift."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import comb, factorial, prod
from typing import ClassVar

import numpy as np

from wecfl.core.types import F32
from wecfl.data.targets import Targets
from wecfl.data.transforms.base import By, SampleKind, check_by
from wecfl.errors import PartitionError
from wecfl.limits import check_whole

__all__ = ["Permutation", "Sign", "Swap"]

MAX_FACTORIAL = 20
"""No one asks for more groups than 20! permutations."""


class _Renaming(ABC):
    """What transforms of labels share: the first group keeps them, and no two groups agree."""

    __slots__ = ()

    def of_groups(
        self, groups: int, kind: SampleKind, rng: np.random.Generator
    ) -> list[tuple[int, ...]]:
        """For each group, the new label of every class."""
        _check_labels(self, kind)
        if self.possible(kind.classes) < groups:
            raise PartitionError(
                f"{self.name}: {kind.classes} classes can't be renamed in {groups} different ways; "
                "ask for fewer groups"
            )
        chosen = {tuple(range(kind.classes)): None}
        while len(chosen) < groups:
            chosen[self.of_client(kind, rng)] = None
        return list(chosen)

    def __call__(
        self, setting: tuple[int, ...], x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Give each sample its new label."""
        return x, np.array(setting, np.int64)[y]

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the transform."""

    @abstractmethod
    def possible(self, classes: int) -> int:
        """In how many ways the classes can be renamed; not at all is one of them."""

    @abstractmethod
    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> tuple[int, ...]:
        """One of them, drawn at random."""


@dataclass(frozen=True, slots=True)
class Permutation(_Renaming):
    """Renames the classes: class c of one group is class π(c) of another (Sattler et al., 2020).

    >>> Permutation().of_groups(2, SampleKind((2,), 3), np.random.default_rng(0))
    [(0, 1, 2), (2, 0, 1)]
    """

    by: By = "group"

    name: ClassVar[str] = "permutation"

    def __post_init__(self) -> None:
        check_by(self)

    def possible(self, classes: int) -> int:
        """C!, or a large number."""
        return factorial(min(classes, MAX_FACTORIAL))

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> tuple[int, ...]:
        """A random permutation."""
        _check_labels(self, kind)
        return tuple(rng.permutation(kind.classes).tolist())


@dataclass(frozen=True, slots=True)
class Swap(_Renaming):
    """Swaps the names of `pairs` of classes, and keeps the others.

    >>> Swap().of_groups(2, SampleKind((2,), 4), np.random.default_rng(0))
    [(0, 1, 2, 3), (2, 1, 0, 3)]
    """

    pairs: int = 1
    by: By = "group"

    name: ClassVar[str] = "swap"

    def __post_init__(self) -> None:
        check_by(self)
        check_whole(pairs=(self.pairs, 1))

    def possible(self, classes: int) -> int:
        """C! / ((C − 2p)! p! 2ᵖ) ways to choose p pairs, and none."""
        if 2 * self.pairs > classes:
            return 1
        return 1 + comb(classes, 2 * self.pairs) * prod(range(1, 2 * self.pairs, 2))

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> tuple[int, ...]:
        """The names after random pairs are swapped."""
        _check_labels(self, kind)
        if 2 * self.pairs > kind.classes:
            raise PartitionError(
                f"swap(pairs={self.pairs}) needs {2 * self.pairs} classes, got {kind.classes}"
            )
        names = np.arange(kind.classes)
        one, other = rng.permutation(kind.classes)[: 2 * self.pairs].reshape(2, -1)
        names[one], names[other] = other, one
        return tuple(names.tolist())


@dataclass(frozen=True, slots=True)
class Sign:
    """Turns the sign of targets that are numbers: a regression with the opposite slope.

    >>> Sign().of_groups(2, SampleKind((2,), 0), np.random.default_rng(0))
    [1, -1]
    """

    by: By = "group"

    name: ClassVar[str] = "sign"

    def __post_init__(self) -> None:
        check_by(self)

    def of_groups(self, groups: int, kind: SampleKind, rng: np.random.Generator) -> list[int]:
        """Plus, then minus: there are no more."""
        if groups > 2:
            raise PartitionError(f"there are two signs, but {groups} groups; ask for two groups")
        self._check(kind)
        return [1, -1][:groups]

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> int:
        """A random sign."""
        self._check(kind)
        return 1 - 2 * int(rng.integers(2))

    def _check(self, kind: SampleKind) -> None:
        if kind.classes:
            raise PartitionError(
                "sign needs targets that are numbers, got labels of classes; use permutation or "
                "swap, or say which task it is (regression)"
            )

    def __call__(
        self, setting: int, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Multiply the targets."""
        return x, y * np.float32(setting)


def _check_labels(transform: _Renaming, kind: SampleKind) -> None:
    if not kind.classes:
        raise PartitionError(
            f"{transform.name} renames classes, but the targets are numbers; use sign, or say "
            "which task it is (classification)"
        )
