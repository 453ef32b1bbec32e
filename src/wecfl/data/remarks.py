"""What a user should know about the data before a run."""

from __future__ import annotations

import numpy as np

from wecfl.data.federation import Federation

__all__ = ["data_remarks"]

MAX_USUAL_SIZE = 10.0
"""A feature whose root mean square is larger than this counts as not scaled."""
MAX_EXAMINED_ROWS = 1000
"""The number of samples that are looked at, to see whether a feature is scaled."""
MAX_NAMED_FEATURES = 5
"""The largest number of features that are named."""


def data_remarks(federation: Federation, *, tokens: bool = False) -> list[str]:
    """A line if no client is tested, and one about features that are not scaled, unless tokens.

    >>> x = [[1000.0, 1.0], [-1000.0, 0.0]]
    >>> for line in data_remarks(Federation.from_arrays([x], [[0, 1]], test=0)): print(line)
    no client has test samples, so there will be no scores
    the features 0 are far from 0 or vary widely (up to 1e+03), and SGD learns them badly; scale ...
    """
    lines = []
    if not any(map(len, federation.test)):
        lines.append("no client has test samples, so there will be no scores")
    if len(federation.shape) == 1 and not tokens:
        lines += _unscaled(federation)
    return lines


def _unscaled(federation: Federation) -> list[str]:
    rows = np.concatenate(federation.train)
    some = federation.x[rows[:: max(1, len(rows) // MAX_EXAMINED_ROWS)]].astype(np.float64)
    size = np.sqrt((some**2).mean(axis=0))
    large = np.flatnonzero(size > MAX_USUAL_SIZE)
    if not large.size:
        return []
    pipeline = federation.pipeline
    names = (
        pipeline.features if pipeline and not pipeline.plain else [str(j) for j in range(len(size))]
    )
    shown = ", ".join(names[j] for j in large[:MAX_NAMED_FEATURES])
    more = f" and {len(large) - MAX_NAMED_FEATURES} more" * (len(large) > MAX_NAMED_FEATURES)
    return [
        f"the features {shown}{more} are far from 0 or vary widely (up to {size.max():.2g}), and "
        "SGD learns them badly; scale them: scale='standard' (--scale standard)"
    ]
