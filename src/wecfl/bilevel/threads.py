"""One thread for the server's linear algebra: sums then come in one order, on any machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import sklearn.cluster  # noqa: F401  (its OpenMP and SciPy's BLAS, before they are looked for)
from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[Any]:
    """Inside, BLAS and OpenMP use one thread.

    With more, they add up partial sums in another order, which changes the last bits: results would
    depend on the number of cores.

    >>> with one_thread():
    ...     pass
    """
    limit: AbstractContextManager[Any] = _libraries().limit(limits=1)
    return limit


@cache
def _libraries() -> ThreadpoolController:
    """Those with threads of their own; looking for them takes longer than clustering."""
    return ThreadpoolController()
