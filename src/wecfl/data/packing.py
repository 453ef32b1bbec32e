"""Samples of whole numbers, of several arrays, or of unequal length, packed into rows of numbers.

A pool of samples is one float32 array, whatever the samples consist of. `pack` makes its rows, and
the model unpacks them before its `forward` (`wecfl.models.unpacking`)::

    tokens                      (n, L) whole numbers      forward(tokens), if the model embeds them
    a dict of arrays            {"text": …, "age": …}     forward(text=…, age=…)
    a tuple of arrays           (text, age)               forward(text, age)
    lists of unequal length     [[3, 1], [2, 7, 7]]       forward(x, mask), padded with zeros

Whole numbers reach the model as int64, truth values and masks as bool, all others as float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from wecfl.core.types import F32
from wecfl.data.samples import Array, fill_pixels
from wecfl.errors import DataError

__all__ = ["Part", "pack", "parts_of"]

MAX_WHOLE = 1 << 24
"""Whole numbers up to this one are exact in float32."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the arrays of which samples consist."""

    name: str
    """The keyword of `forward` for it; empty: it is a positional argument."""
    shape: tuple[int, ...]
    """The shape in one sample."""
    kind: Literal["number", "whole", "mask"] = "number"

    @property
    def width(self) -> int:
        """The number of its numbers in a row."""
        return prod(self.shape)


def parts_of(xs: Sequence[Any]) -> tuple[Part, ...]:
    """The parts of which the samples of all clients consist; empty: one array of any numbers.

    >>> parts_of([[[1, 2, 3]]])
    (Part(name='', shape=(3,), kind='whole'),)
    >>> parts_of([([[1, 2]], [[0.5]])])
    (Part(name='', shape=(2,), kind='whole'), Part(name='', shape=(1,), kind='number'))
    >>> parts_of([[[3, 1], [2, 7, 7]]])
    (Part(name='', shape=(3,), kind='whole'), Part(name='', shape=(3,), kind='mask'))
    >>> parts_of([np.zeros((4, 2))])
    ()
    """
    first = xs[0] if len(xs) else ()
    if isinstance(first, Mapping):
        names = list(first)
        for x in xs:
            if not isinstance(x, Mapping) or list(x) != names:
                raise DataError(
                    f"all clients must have the same arrays as the first one, "
                    f"{', '.join(map(str, names))}; give these to each client"
                )
        return tuple(_part(str(name), [x[name] for x in xs]) for name in names)
    if isinstance(first, tuple):
        if any(not isinstance(x, tuple) or len(x) != len(first) for x in xs):
            raise DataError(
                f"all clients must have a tuple of {len(first)} arrays, as the first one has; give "
                "such a tuple for each client"
            )
        return tuple(_part("", list(arrays)) for arrays in zip(*xs, strict=True))
    if any(map(_is_ragged, xs)):
        sequences = [np.asarray(sequence) for x in xs for sequence in x]
        longest = max(map(len, sequences))
        rest = sequences[0].shape[1:]
        kind = _kind(sequences)
        return Part("", (longest, *rest), kind), Part("", (longest,), "mask")
    arrays = [np.asarray(x) for x in xs]
    if all(x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim > 1 for x in arrays) and arrays:
        return (Part("", arrays[0].shape[1:], "whole"),)
    return ()


def _part(name: str, xs: Sequence[Any]) -> Part:
    """What the arrays of all clients have in common."""
    arrays = [np.asarray(x) for x in xs]
    return Part(name, arrays[0].shape[1:], _kind(arrays))


def _kind(arrays: Sequence[Array]) -> Literal["number", "whole", "mask"]:
    kinds = {array.dtype.kind for array in arrays}
    if kinds == {"b"}:
        return "mask"
    pixels = any(array.dtype == np.uint8 for array in arrays)
    return "whole" if kinds <= set("iu") and not pixels else "number"


def _is_ragged(x: Any) -> bool:
    """Whether it is a list of sequences of unequal length."""
    if not isinstance(x, list):
        return False
    return len({len(item) if hasattr(item, "__len__") else -1 for item in x}) > 1


def pack(where: str, x: Any, parts: Sequence[Part]) -> F32:
    """(n, width), the rows of samples; of a single part, (n, *shape).

    >>> parts = Part("", (2,), "whole"), Part("", (1,))
    >>> pack("client 0", ([[1, 2]], [[0.5]]), parts).tolist()
    [[1.0, 2.0, 0.5]]
    >>> pack("client 0", ([[1, 2]], [[0.5]] * 2), parts)
    Traceback (most recent call last):
    wecfl.errors.DataError: client 0: its arrays have 1 and 2 samples, expected the same number
    """
    arrays = _arrays(where, x, parts)
    counts = sorted({len(array) for array in arrays})
    if len(counts) > 1:
        several = " and ".join(map(str, counts))
        raise DataError(f"{where}: its arrays have {several} samples, expected the same number")
    rows = np.empty((counts[0], sum(part.width for part in parts)), np.float32)
    start = 0
    for part, array in zip(parts, arrays, strict=True):
        _check(where, part, array)
        fill_pixels(rows[:, start : start + part.width], array.reshape(len(array), part.width))
        start += part.width
    return rows if len(parts) > 1 else rows.reshape(-1, *parts[0].shape)


def _arrays(where: str, x: Any, parts: Sequence[Part]) -> list[Array]:
    """One array for each part."""
    if len(parts) == 2 and parts[1].kind == "mask" and not isinstance(x, tuple | Mapping):
        return _padded(where, x, parts[0])
    if len(parts) == 1 and not parts[0].name:
        return [_array(where, x)]
    if not isinstance(x, tuple | Mapping):  # rows, as the HTTP endpoint gets them
        rows = list(x)
        keyed = bool(rows) and isinstance(rows[0], Mapping)
        keys: Any = [part.name for part in parts] if keyed else range(len(parts))
        try:
            columns = [[row[key] for row in rows] for key in keys]
        except (KeyError, IndexError, TypeError):
            raise DataError(f"{where}: each sample must have {_part_words(parts)}") from None
        return [_array(where, column) for column in columns]
    given = list(x) if isinstance(x, tuple) else [x[p.name] for p in parts if p.name in x]
    if len(given) != len(parts):
        raise DataError(
            f"{where}: got {len(given)} arrays of the training, expected {_part_words(parts)}"
        )
    return [_array(where, values) for values in given]


def _part_words(parts: Sequence[Part]) -> str:
    names = [part.name for part in parts if part.name]
    return f"the arrays {', '.join(names)}" if names else f"{len(parts)} arrays"


def _array(where: str, x: Any) -> Array:
    try:
        return np.asarray(x)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{where}: x is not an array of numbers: {error}") from None


def _padded(where: str, x: Any, part: Part) -> list[Array]:
    """The sequences in one padded array, and a mask of the places that they fill."""
    sequences = [_array(where, sequence) for sequence in x]
    length, *rest = part.shape
    kind = np.int64 if part.kind == "whole" else np.float64
    out, mask = np.zeros((len(sequences), length, *rest), kind), np.zeros((len(sequences), length))
    for i, sequence in enumerate(sequences):
        if sequence.ndim != len(part.shape) or list(sequence.shape[1:]) != rest:
            raise DataError(
                f"{where}: sequence {i} has shape {sequence.shape}, expected (length, …{rest})"
            )
        if not 1 <= len(sequence) <= length:
            raise DataError(
                f"{where}: sequence {i} has the length {len(sequence)}, expected 1 to {length}, "
                "the greatest length in the training"
            )
        if sequence.dtype.kind not in "uifb":
            raise DataError(f"{where}: sequence {i} holds {sequence.dtype}, expected numbers")
        out[i, : len(sequence)], mask[i, : len(sequence)] = sequence, 1
    return [out, mask.astype(np.bool_)]


def _check(where: str, part: Part, array: Array) -> None:
    what = f"{where}: {part.name or 'x'}"
    if array.dtype.kind not in "uifb":
        raise DataError(f"{what} holds {array.dtype}, expected numbers")
    if array.shape[1:] != part.shape:
        expected = ", ".join(map(str, ("samples", *part.shape)))
        raise DataError(f"{what} has shape {array.shape}, expected ({expected})")
    if part.kind == "whole" and array.size:
        if array.dtype.kind == "f" and (array != np.floor(array)).any():
            raise DataError(f"{what} must hold whole numbers, as in the training")
        if np.abs(array).max() > MAX_WHOLE:
            raise DataError(
                f"{what} holds whole numbers above {MAX_WHOLE}, the largest one that is exact in "
                "float32; number them from 0"
            )
