"""One thread for the server's linear algebra, so that sums have the same order on any machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import sklearn.cluster  # noqa: F401  (its OpenMP and SciPy's BLAS, before they are looked for)
from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[Any]:
    """A context in which BLAS and OpenMP use one thread.

    With more threads they add partial sums in another order, which changes the last bits, and
    results would depend on the number of cores.

    >>> with one_thread():
    ...     pass
    """
    limit: AbstractContextManager[Any] = _libraries().limit(limits=1)
    return limit


@cache
def _libraries() -> ThreadpoolController:
    """The libraries with threads of their own; cached, since finding them takes long."""
    return ThreadpoolController()
