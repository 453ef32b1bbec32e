"""A fleet: very many registered clients, whose data are loaded when they take part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wecfl import rng
from wecfl.core.types import Int
from wecfl.data.federation import Federation
from wecfl.data.samples import holdout
from wecfl.errors import DataError

__all__ = ["Fleet"]

Array = NDArray[Any]


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
    """The clients, each by what `load` takes; `range(m)` takes no memory."""
    load: Callable[[Any], tuple[ArrayLike, ArrayLike]]
    """The samples x (n_i, …) and the targets y of a client, as `Federation.from_arrays` takes them.
    Each call for a client must give the same data."""
    classes: int | None = None
    """The number of classes, which a few clients can't tell; None: targets are numbers."""
    test: float = 0.2
    """The share of a client's samples that is kept for testing."""
    groups: Int | None = None
    """(m,), the hidden groups that generated the data, where they are known."""
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

    def _parts(self, number: int) -> tuple[Array, Array, Array, Array]:
        """Samples and targets of a client, to train and to test."""
        x, y = map(np.asarray, self.load(self.names[number]))
        if not len(x) == len(y):
            raise DataError(
                f"client {self.names[number]}: load gave {len(x)} samples and {len(y)} targets, "
                f"expected as many"
            )
        kept, held = holdout(y, self.test, rng.stream(self.seed, "holdout", 0, number))
        return x[kept], y[kept], x[held], y[held]
