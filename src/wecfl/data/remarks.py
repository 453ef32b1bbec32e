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


MIN_NUMBERS_AMONG_TEXTS = 10
"""A column of texts is named if at least this many of its values, and most of them, are numbers."""


def data_remarks(federation: Federation, *, tokens: bool = False) -> list[str]:
    """What a user may have overlooked, one line for each.

    That no client is tested, that texts are mostly numbers, and, unless the samples are tokens,
    that features are not scaled.

    >>> x = [[1000.0, 1.0], [-1000.0, 0.0]]
    >>> for line in data_remarks(Federation.from_arrays([x], [[0, 1]], test=0)): print(line)
    no client has test samples, so there will be no scores
    the features 0 are far from 0 or vary widely (up to 1e+03), and SGD learns them badly; scale ...
    """
    lines = []
    if not any(map(len, federation.test)):
        lines.append("no client has test samples, so there will be no scores")
    lines += _numbers_as_texts(federation)
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


def _numbers_as_texts(federation: Federation) -> list[str]:
    """A line for each column of texts that are mostly numbers, such as 41, 67 and ?."""
    lines = []
    for column in federation.pipeline.columns if federation.pipeline else ():
        values = column.values or ()
        others = [value for value in values if not _is_number(value)]
        numbers = len(values) - len(others)
        if numbers >= max(MIN_NUMBERS_AMONG_TEXTS, len(others)):
            but = f" but {', '.join(map(repr, others[:MAX_NAMED_FEATURES]))}" if others else ""
            lines.append(
                f"the column {column.name} holds texts that are numbers{but}, so each of its "
                f"{len(values)} values is a category; if they are quantities, make numbers of them "
                "(pandas.to_numeric(column, errors='coerce')) and give impute"
            )
    return lines


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
