"""A fleet: very many registered clients, whose data are loaded when they take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wecfl import rng
from wecfl.core.types import Int
from wecfl.data.federation import Federation
from wecfl.data.samples import holdout
from wecfl.errors import DataError
from wecfl.limits import check_whole

__all__ = ["AnyFleet", "DrawnFleet", "Fleet"]

Array = NDArray[Any]


class AnyFleet(Protocol):
    """m registered clients; for any few of them, the data can be loaded."""

    def __len__(self) -> int:
        """The number of registered clients, m."""

    @property
    def names(self) -> Sequence[Any]:
        """The name of each client, as a text or as something that can be written as one."""

    @property
    def groups(self) -> Int | None:
        """(m,), the hidden groups that generated the data, if they are known."""

    @property
    def fingerprint(self) -> str:
        """A digest that differs between the clients of one run and those of another."""

    def federation(self, who: Int) -> Federation:
        """These clients with their data; each keeps its number as its key, and its name."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """m registered clients: their names, and a function that loads the data of one of them.

    >>> def load(number):                                       # two kinds of clients
    ...     y = np.arange(10) % 2
    ...     return np.eye(2, dtype=np.float32)[y] * (1 if number % 2 else -1), y
    >>> fleet = Fleet(range(1_000_000), load, classes=2)
    >>> fleet.federation(np.array([3, 999_999]))
    Federation(2 clients, 16 training and 4 test samples of shape (2,), 2 classes)
    """

    names: Sequence[Any]
    """For each client the argument for `load`; `range(m)` needs no memory."""
    load: Callable[[Any], tuple[ArrayLike, ...]]
    """Gives the samples x (n_i, …) and the targets y of a client, as `Federation.from_arrays` takes
    them; or also those for testing, (x, y, x_test, y_test). It must always give the same data for
    the same client."""
    classes: int | None = None
    """The number of classes, which can't be seen from a few clients; None: targets are numbers."""
    test: float = 0.2
    """The share of a client's samples that is kept for testing, if `load` gives no test samples."""
    groups: Int | None = None
    """(m,), the hidden groups that generated the data, if they are known."""
    seed: int = 0
    """The seed of the division into training and test samples."""

    def __post_init__(self) -> None:
        if not len(self.names):
            raise DataError("there are no clients; give at least one name")
        if not 0 <= self.test < 1:
            raise DataError(f"test must be a share in [0, 1), got {self.test}")
        if self.groups is not None and len(self.groups) != len(self):
            raise DataError(
                f"groups: expected one value for each of {len(self)} clients, got "
                f"{len(self.groups)}"
            )

    def __len__(self) -> int:
        """The number of registered clients, m."""
        return len(self.names)

    def federation(self, who: Int) -> Federation:
        """These clients with their data; each keeps its number as its key, and its name."""
        x, y, x_test, y_test = zip(*map(self._parts, who.tolist()), strict=True)
        made = Federation.from_arrays(
            x, y, test=(x_test, y_test), names=[str(self.names[i]) for i in who.tolist()],
            classes=self.classes, groups=None if self.groups is None else self.groups[who],
        )  # fmt: skip
        return replace(made, keys=who)

    @property
    def fingerprint(self) -> str:
        """A digest of the names, the groups and the data of the first client."""
        names = repr(self.names) if isinstance(self.names, range) else repr([*self.names])
        digest = sha256(repr((names, self.classes, self.test, self.seed)).encode())
        for array in (() if self.groups is None else (np.asarray(self.groups),), self._parts(0)):
            for part in array:
                digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def _parts(self, number: int) -> tuple[Array, Array, Array, Array]:
        """Samples and targets of a client, to train and to test."""
        name, given = self.names[number], self.load(self.names[number])
        if len(given) not in (2, 4):
            raise DataError(
                f"client {name}: load must give (x, y) or (x, y, x_test, y_test), got {given!r:.60}"
            )
        arrays = [np.asarray(values) for values in given]
        for x, y in zip(arrays[::2], arrays[1::2], strict=True):
            if len(x) != len(y):
                raise DataError(
                    f"client {name}: load gave {len(x)} samples and {len(y)} targets, expected one "
                    "target for each sample"
                )
        if len(arrays) == 4:
            return arrays[0], arrays[1], arrays[2], arrays[3]
        x, y = arrays
        kept, held = holdout(y, self.test, rng.stream(self.seed, "holdout", 0, number))
        return x[kept], y[kept], x[held], y[held]


@final
@dataclass(frozen=True, slots=True, eq=False)
class DrawnFleet:
    """Registered clients that each hold a few samples of one client of a federation.

    Client i draws from client i mod m of the source: training samples from its training samples,
    and test samples from its test samples. So no model has seen what it is tested on.

    >>> xs, ys = [np.zeros((40, 1)), np.ones((40, 1))], [np.arange(40) % 2] * 2
    >>> fleet = DrawnFleet(Federation.from_arrays(xs, ys, groups=[0, 1]), 1_000_000, samples=10)
    >>> fleet.federation(np.array([3, 999_998])).groups
    array([1, 0])
    """

    source: Federation
    registered: int
    """m, the number of clients that are registered."""
    samples: int = 30
    """The number of training samples that a client draws; all, if the source has fewer."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(registered=(self.registered, 1), samples=(self.samples, 1))
        if self.source.changes:
            raise DataError("the data of a fleet's clients can't drift; leave out drift")
        pipeline = self.source.pipeline
        if pipeline and not (pipeline.own is None and pipeline.clusters is None):
            raise DataError(
                "all clients of a fleet are scaled in the same way; set scale_by to all"
            )

    def __len__(self) -> int:
        """The number of registered clients."""
        return self.registered

    @property
    def names(self) -> Sequence[int]:
        """Their numbers."""
        return range(self.registered)

    @property
    def groups(self) -> Int | None:
        """(m,), the groups of the clients from which they draw."""
        groups = self.source.groups
        return None if groups is None else groups[np.arange(self.registered) % len(self.source)]

    @property
    def fingerprint(self) -> str:
        """A digest of the source's fingerprint, and of how clients draw from it."""
        drawn = (self.source.fingerprint, self.registered, self.samples, self.seed)
        return sha256(repr(drawn).encode()).hexdigest()

    def federation(self, who: Int) -> Federation:
        """These clients with what they drew; the samples are those of the source, not copies."""
        train, test = zip(*map(self._rows, who.tolist()), strict=True)
        source = self.source
        groups = None if source.groups is None else source.groups[who % len(source)]
        return replace(
            source, train=train, test=test, keys=who, names=tuple(map(str, who.tolist())),
            groups=groups,
        )  # fmt: skip

    def _rows(self, number: int) -> tuple[Int, Int]:
        """The rows that a client draws, for training and for testing."""
        whose, draws = number % len(self.source), rng.stream(self.seed, "registered", 0, number)
        train, test = self.source.train[whose], self.source.test[whose]
        count = min(self.samples, len(train))
        tested = min(len(test), max(1, round(count * len(test) / len(train))))
        return np.sort(draws.choice(train, count, replace=False)), np.sort(
            draws.choice(test, tested, replace=False)
        )
