"""The types of arrays, and tables of named arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["F32", "F64", "Bool", "Int", "Int8", "Real", "Split", "Table", "under", "without"]

F32 = NDArray[np.float32]
"""Models, one in each row."""
F64 = NDArray[np.float64]
"""Numbers that are summed: distances, losses, importance."""
Int = NDArray[np.int64]
"""Labels, counts, positions."""
Int8 = NDArray[np.int8]
"""Codes of an `IntEnum`."""
Bool = NDArray[np.bool_]
"""A yes or no for each client, or for each cluster."""
Real = NDArray[np.floating]
"""Representations, in single or double precision."""
Table = Mapping[str, NDArray[Any]]
"""Arrays by name. The field that holds a table says what the first axis of its arrays is."""
Split = Literal["train", "validation", "test"]
"""A part of a client's data. The validation samples are some of the training samples; a local
update may leave them out (`wecfl.core.plan.validation_part`)."""


def under(prefix: str, arrays: Table) -> dict[str, NDArray[Any]]:
    """The arrays whose names begin with `prefix`, named by the rest of their names.

    >>> under("a.", {"a.b": np.ones(1), "c": np.ones(1)})
    {'b': array([1.])}
    """
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def without(names: Collection[str], arrays: Table) -> dict[str, NDArray[Any]]:
    """The table without the arrays of these names.

    >>> without(["a"], {"a": np.ones(1), "c": np.ones(1)})
    {'c': array([1.])}
    """
    return {name: array for name, array in arrays.items() if name not in names}
