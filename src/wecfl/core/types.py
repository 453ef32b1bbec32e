"""Array types, and tables of named arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["F32", "F64", "Bool", "Int", "Int8", "Real", "Split", "Table", "under", "without"]

F32 = NDArray[np.float32]
"""Models, as rows."""
F64 = NDArray[np.float64]
"""What is summed: distances, losses, importance."""
Int = NDArray[np.int64]
"""Labels, counts, positions."""
Int8 = NDArray[np.int8]
"""Codes."""
Bool = NDArray[np.bool_]
"""One yes or no per client, or per cluster."""
Real = NDArray[np.floating]
"""Representations, in whatever precision they come."""
Table = Mapping[str, NDArray[Any]]
"""Named arrays; where a table stands says what their first axis is."""
Split = Literal["train", "test"]
"""Of a client's data."""


def under(prefix: str, arrays: Table) -> dict[str, NDArray[Any]]:
    """Those whose name begins so, by the rest of it.

    >>> under("a.", {"a.b": np.ones(1), "c": np.ones(1)})
    {'b': array([1.])}
    """
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def without(names: Collection[str], arrays: Table) -> dict[str, NDArray[Any]]:
    """All others.

    >>> without(["a"], {"a": np.ones(1), "c": np.ones(1)})
    {'c': array([1.])}
    """
    return {name: array for name, array in arrays.items() if name not in names}
