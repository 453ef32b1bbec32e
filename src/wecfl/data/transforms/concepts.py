"""Transforms of the targets: concept shift."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import comb, factorial, prod
from typing import ClassVar

import numpy as np

from wecfl.core.types import F32
from wecfl.data.rules import RULED_DATASETS
from wecfl.data.targets import Targets
from wecfl.data.transforms.transform import By, SampleKind, check_by
from wecfl.errors import ConfigError, PartitionError, unknown
from wecfl.limits import check_whole

__all__ = ["Concept", "Permutation", "Sign", "Swap"]

MAX_FACTORIAL = 20
"""With more classes than this, the number of permutations is taken to be that of this many."""
MIN_JUDGED_SAMPLES = 50
"""The number of samples from which on it is checked whether labels follow a rule."""
MIN_AGREEMENT = 0.6
"""The smallest share of labels that must follow the rule; some may be wrong."""


class _Renaming(ABC):
    """The common part of transforms of labels. The first group keeps them, and no groups agree."""

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
        """The number of ways to rename the classes, including the one that keeps all names."""

    @abstractmethod
    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> tuple[int, ...]:
        """One of these ways, drawn at random."""


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
                f"swap(pairs={self.pairs}) needs {2 * self.pairs} classes, got {kind.classes}; ask "
                "for fewer pairs"
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
        """Plus and minus; there are only two."""
        if groups > 2:
            raise PartitionError(
                f"sign has two settings, but there are {groups} groups; ask for two"
            )
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
                "swap, or set task to regression"
            )

    def __call__(
        self, setting: int, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Multiply the targets."""
        return x, y * np.float32(setting)


@dataclass(frozen=True, slots=True)
class Concept:
    """Labels by another rule: group g has concept g of the data set `of` (`wecfl.data.rules`).

    A label changes if the rule differs from the first rule for its sample. So labels that were
    wrong stay wrong.

    >>> x, y = np.array([[0.2, 0.1], [0.2, 0.9]], np.float32), np.array([1, 0])
    >>> Concept(of="sine")(1, x, y, np.random.default_rng(0))[1]
    array([0, 1])
    """

    of: str = "sine"
    by: By = "group"

    name: ClassVar[str] = "concept"

    def __post_init__(self) -> None:
        check_by(self)
        if self.of not in RULED_DATASETS:
            raise ConfigError(unknown("data set with concepts", str(self.of), RULED_DATASETS))

    def of_groups(self, groups: int, kind: SampleKind, rng: np.random.Generator) -> range:
        """The numbers of the rules."""
        known = len(RULED_DATASETS[self.of].rules)
        self._check(kind)
        if groups > known:
            raise PartitionError(
                f"{self.of} has {known} concepts, but there are {groups} groups; ask for {known} "
                "groups"
            )
        return range(groups)

    def of_client(self, kind: SampleKind, rng: np.random.Generator) -> int:
        """The number of a random rule."""
        self._check(kind)
        return int(rng.integers(len(RULED_DATASETS[self.of].rules)))

    def _check(self, kind: SampleKind) -> None:
        expected = SampleKind((RULED_DATASETS[self.of].features,), 2)
        if kind != expected:
            raise PartitionError(
                f"concept(of={self.of}) needs samples of shape {expected.shape} and two classes, "
                f"got {kind.shape} and {kind.classes}; use dataset {self.of}"
            )

    def __call__(
        self, setting: int, x: F32, y: Targets, rng: np.random.Generator
    ) -> tuple[F32, Targets]:
        """Change the labels on which the rules differ."""
        first, own = (RULED_DATASETS[self.of].rules[number](x) for number in (0, setting))
        if len(y) >= MIN_JUDGED_SAMPLES and (y == first).mean() < MIN_AGREEMENT:
            raise PartitionError(
                f"concept(of={self.of}): the labels of a client do not follow the first rule of "
                f"{self.of}; use dataset {self.of}, with a partition that does not rename classes"
            )
        return x, np.where(first == own, y, 1 - y)


def _check_labels(transform: _Renaming, kind: SampleKind) -> None:
    if not kind.classes:
        raise PartitionError(
            f"{transform.name} renames classes, but the targets are numbers; use sign, or set task "
            "to classification"
        )
