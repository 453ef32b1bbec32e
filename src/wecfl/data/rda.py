"""Reads a data frame from a file of R (``.rda``), without R: columns of numbers and of factors.

The file is a compressed stream of items in XDR: an item begins with flags (type, attributes, tag),
and a data frame is a list of columns whose attributes hold their names. Other things that R can
save, such as code, are refused; nothing that is read is ever run.
"""

from __future__ import annotations

import lzma
import struct
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from wecfl.data.samples import data_errors
from wecfl.errors import DataError

__all__ = ["read_rda"]

MAX_BYTES = 50_000_000
"""The largest file that is unpacked, in bytes."""
SYMBOL, PAIRS, CHARS, INTEGERS, REALS, TEXTS, LIST, NIL, REFERENCE = (
    1,
    2,
    9,
    13,
    14,
    16,
    19,
    254,
    255,
)
"""The numbers of R for the types of items."""


def read_rda(path: Path) -> dict[str, Any]:
    """The columns of the only data frame in an ``.rda``: floats, or the texts of a factor.

    >>> read_rda(Path("nothing.rda"))
    Traceback (most recent call last):
    wecfl.errors.DataError: nothing.rda: there is no such file; check the path
    """
    errors = (OSError, EOFError, ValueError, struct.error, lzma.LZMAError, RecursionError)
    with data_errors(path, "get it again", errors):
        data = lzma.LZMADecompressor().decompress(path.read_bytes(), MAX_BYTES)
        if not data.startswith(b"RDX2\nX\n"):
            raise DataError(
                f"{path}: expected a file of R with packed data (RDX2, XDR), and it is not one; "
                "get it again"
            )
        reader = _Reader(BytesIO(data[7 + 12 :]))  # without the versions of the format and of R
        saved = reader.item()
        if not isinstance(saved, dict) or len(saved) != 1:
            raise DataError(f"{path}: expected one data frame; get it again")
        [(columns, about)] = saved.values()
        return dict(zip(about["names"], [_column(column) for column in columns], strict=True))


def _column(item: Any) -> Any:
    """A column of numbers, or the texts of a factor: numbers from 1 with the attribute `levels`."""
    values, about = item if isinstance(item, tuple) else (item, {})
    return np.array(about["levels"])[values - 1] if "levels" in about else values


class _Reader:
    """Reads one item after the other; an item with attributes is a pair (value, attributes)."""

    def __init__(self, stream: BytesIO) -> None:
        self._stream = stream
        self._symbols: list[str] = []

    def item(self) -> Any:
        flags = self._number()
        kind = flags & 255
        if kind == REFERENCE:  # the other bits are the number of the symbol
            return self._symbols[(flags >> 8) - 1]
        if kind == PAIRS:
            return self._pairs(bool(flags & 1024))
        value = self._value(kind)
        return (value, self.item()) if flags & 512 else value

    def _value(self, kind: int) -> Any:
        if kind == NIL:
            return {}
        if kind == SYMBOL:
            self._symbols.append(self.item())
            return self._symbols[-1]
        if kind == CHARS:
            return self._bytes(max(self._number(), 0)).decode("latin-1")
        if kind in (INTEGERS, REALS):
            count, form = self._number(), ">i4" if kind == INTEGERS else ">f8"
            size = count * np.dtype(form).itemsize
            numbers = np.frombuffer(self._bytes(size), form)
            return numbers.astype(np.int64 if kind == INTEGERS else np.float64)
        if kind in (TEXTS, LIST):
            return [self.item() for _ in range(self._number())]
        raise ValueError(f"it holds an item of type {kind}, which this reader does not know")

    def _pairs(self, has_tag: bool) -> dict[str, Any]:
        """A list of pairs: each holds a name, a value and the rest of the list."""
        found: dict[str, Any] = {}
        while has_tag:
            name = self.item()
            found[name] = self.item()
            flags = self._number()
            if flags & 255 == NIL:
                return found
            has_tag = bool(flags & 1024)
        raise ValueError("it holds a list of pairs without names")

    def _number(self) -> int:
        return int(struct.unpack(">i", self._bytes(4))[0])

    def _bytes(self, count: int) -> bytes:
        data = self._stream.read(count)
        if count < 0 or len(data) != count:
            raise EOFError(f"cut short: expected {count} bytes, got {len(data)}")
        return data
