"""Checks the arrays that users give for their clients, and cuts them to train and to test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from wecfl import rng
from wecfl.core.types import Int
from wecfl.data.packing import Part, pack, parts_of
from wecfl.data.pipeline import Pipeline
from wecfl.data.samples import NamedArray, holdout, refuse_masked
from wecfl.data.targets import Targets, as_targets, encoded
from wecfl.errors import ConfigError, DataError

__all__ = ["Arrays", "PlainArrays", "cut_clients", "held_arrays", "pooled_clients"]

Arrays: TypeAlias = Sequence[Any]
"""For each client an array, or something from which `wecfl.data.packing` can make one."""


def held_arrays(
    clients: Mapping[str, Any],
) -> tuple[Arrays, Arrays, tuple[Arrays, Arrays] | None]:
    """The samples and targets of clients that hold x and y, as pairs or by name.

    The third value has those for testing, if all clients hold x_test and y_test.
    """
    held = [
        dict(arrays) if isinstance(arrays, Mapping) else dict(zip("xy", arrays, strict=True))
        for arrays in clients.values()
    ]
    for name, arrays in zip(clients, held, strict=True):
        if not {"x", "y"} <= arrays.keys():
            raise DataError(
                f"client {name}: expected the arrays x and y, got {', '.join(arrays) or 'none'}; "
                "give both"
            )
    tested = {name: "x_test" in arrays for name, arrays in zip(clients, held, strict=True)}
    without = [name for name, has in tested.items() if not has]
    if without and any(tested.values()):
        other = next(name for name, has in tested.items() if has)
        raise DataError(
            f"client {without[0]}: lacks x_test and y_test, which client {other} has; give them to "
            "all clients or to none"
        )

    def column(key: str) -> Arrays:
        return [arrays[key] for arrays in held]

    tests = None if without else (column("x_test"), column("y_test"))
    return column("x"), column("y"), tests


@dataclass(frozen=True, slots=True, eq=False)
class PlainArrays:
    """Samples and targets as plain arrays of numbers, and what made them from other forms."""

    xs: Arrays
    ys: Arrays
    test: float | tuple[Arrays, Arrays]
    parts: tuple[Part, ...]
    """The parts of a sample; empty: a sample is one array of any numbers."""
    classes: tuple[str, ...] | None
    """The names of the classes, if they have names."""

    @property
    def pipeline(self) -> Pipeline | None:
        """The pipeline that makes such samples and classes; None: none is needed."""
        if not self.parts and self.classes is None:
            return None
        return Pipeline(classes=self.classes, parts=self.parts)

    @classmethod
    def of(
        cls, names: Sequence[str], xs: Arrays, ys: Arrays, test: float | tuple[Arrays, Arrays]
    ) -> PlainArrays:
        """Make rows of tokens, several arrays and lists of unequal length; number the texts."""
        given = isinstance(test, float | int)
        more_xs, more_ys = ((), ()) if isinstance(test, float | int) else test
        for name, *held in zip(names, xs, ys, strict=False):
            for values in held:
                refuse_masked(f"client {name}", values)
        parts = parts_of([*xs, *more_xs])
        if parts:
            wheres = [*(f"client {name}" for name in names)]
            pairs = zip(
                [*wheres, *(f"{where} (test)" for where in wheres)], [*xs, *more_xs], strict=False
            )
            rows = [pack(where, x, parts) for where, x in pairs]
            xs, more_xs = rows[: len(xs)], rows[len(xs) :]
        numbers, classes = encoded([*ys, *more_ys])
        tests = test if given else (more_xs, numbers[len(ys) :])
        return cls(xs, numbers[: len(ys)], tests, parts, classes)


def pooled_clients(
    names: Sequence[str],
    xs: Arrays,
    ys: Arrays,
    test: float | tuple[Arrays, Arrays],
    *,
    classes: int | None,
    seed: int,
) -> tuple[list[NamedArray], list[Targets], list[Int], list[Int]]:
    """The parts of a pool with their targets, and the rows of each client to train and to test."""
    if isinstance(test, float | int):
        parts, targets = _checked(names, xs, ys, classes)
        cuts = zip(_rows_of(targets), cut_clients(targets, test, seed), strict=True)
        pairs = [(own[kept], own[held]) for own, (kept, held) in cuts]
        return parts, targets, [train for train, _ in pairs], [tested for _, tested in pairs]
    parts, targets = _checked(names, xs, ys, classes)
    more = _checked(names, *test, classes, side=" (test)")
    parts, targets = parts + more[0], targets + more[1]
    rows = _rows_of(targets)
    return parts, targets, rows[: len(names)], rows[len(names) :]


def _checked(
    names: Sequence[str],
    xs: Arrays,
    ys: Arrays,
    classes: int | None,
    *,
    side: str = "",
) -> tuple[list[NamedArray], list[Targets]]:
    """Each client's samples and targets; a client needs at least one to train."""
    if not names:
        raise DataError("there are no clients; give at least one array of samples")
    if not len(names) == len(xs) == len(ys):
        raise DataError(
            f"expected samples x, targets y and a name for each client, "
            f"got {len(xs)} arrays x, {len(ys)} arrays y and {len(names)} names"
        )
    parts = [(f"client {name}{side}", np.atleast_1d(x)) for name, x in zip(names, xs, strict=True)]
    for where, x in parts:
        if not len(x) and not side:
            raise DataError(f"{where}: 0 samples, expected at least 1; leave the client out")
    pairs = zip(parts, ys, strict=True)
    return parts, [as_targets(where, y, len(x), classes) for (where, x), y in pairs]


def cut_clients(labels: Sequence[Any], share: float, seed: int) -> list[tuple[Int, Int]]:
    """For each client which of its samples are for training, and which for testing."""
    if not 0 <= share < 1:
        raise ConfigError(f"test: expected a share from 0 to below 1, got {share}")
    return [
        holdout(np.asarray(y), share, rng.stream(seed, "holdout", 0, i))
        for i, y in enumerate(labels)
    ]


def _rows_of(labels: Sequence[Targets]) -> list[Int]:
    """The rows of each part in the pool of all parts."""
    ends = np.cumsum([len(y) for y in labels])
    return np.split(np.arange(ends[-1]), ends[:-1])
