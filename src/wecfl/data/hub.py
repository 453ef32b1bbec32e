"""Data sets of Hugging Face, and the partitioners of flwr-datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wecfl.data.samples import Array
from wecfl.errors import DataError, unknown

__all__ = ["OWNER_COLUMN", "arrays_of", "held_by", "table_of"]

OWNER_COLUMN = "client of the partitioner"
"""The column that says which client of a partitioner a row belongs to."""


def held_by(partitioner: Any) -> dict[str, Any]:
    """The data set of each client by its name, which is its natural id or its number."""
    if not hasattr(partitioner, "load_partition"):
        raise DataError(
            f"expected a partitioner of flwr-datasets that has a dataset, got {partitioner!r}"
        )
    held = {i: partitioner.load_partition(i) for i in range(partitioner.num_partitions)}
    natural = getattr(partitioner, "partition_id_to_natural_id", {})  # known once it has loaded
    return {str(natural.get(i, i)): rows for i, rows in held.items()}


def arrays_of(name: str, rows: Any, feature: str, target: str) -> tuple[Array, Array]:
    """The samples in one column of arrays or pictures, and the targets.

    Pictures are (n, channels, height, width).
    """
    for column in (feature, target):
        if column not in rows.column_names:
            raise DataError(f"client {name}: " + unknown("column", column, rows.column_names))
    held = [np.asarray(array) for array in rows[feature]]
    if len({array.shape for array in held}) > 1:
        raise DataError(
            f"client {name}: the arrays of {feature} have several shapes, expected one; resize them"
        )
    x = np.stack(held)
    if type(rows.features[feature]).__name__ == "Image":
        x = x[:, None] if x.ndim == 3 else np.moveaxis(x, 3, 1)
    return x, np.asarray(rows[target])


def table_of(held: Mapping[str, Any]) -> Any:
    """The rows of all clients in one DataFrame, with a column that says whose they are."""
    import pandas as pd  # noqa: PLC0415  (a client over a network does without)

    owned = [rows.to_pandas().assign(**{OWNER_COLUMN: name}) for name, rows in held.items()]
    return pd.concat(owned, ignore_index=True)
