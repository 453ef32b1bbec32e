"""One thread for the server's linear algebra, so that sums have the same order on any machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["one_thread"]


@contextmanager
def one_thread() -> Iterator[None]:
    """A context in which BLAS and OpenMP use one thread.

    With more threads they add partial sums in another order, which changes the last bits, and
    results would depend on the number of cores. The limit of OpenMP is one for each Python thread.
    The limit of BLAS is one for the process, which ends when the last Python thread leaves the
    context.

    >>> with one_thread():
    ...     pass
    """
    with _libraries().select(user_api="openmp").limit(limits=1), _one_blas_thread:
        yield


class _OneBlasThread:
    """Limits BLAS in the whole process while at least one thread is inside."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._limit: Any = None
        os.register_at_fork(
            before=self._lock.acquire,
            after_in_child=self._lock.release,
            after_in_parent=self._lock.release,
        )

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit = _libraries().select(user_api="blas").limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


_one_blas_thread = _OneBlasThread()


@cache
def _libraries() -> ThreadpoolController:
    """The libraries with threads of their own; cached, since finding them takes long."""
    # Only libraries that are loaded are found. A client that never clusters loads none of these.
    import_module("sklearn.cluster")  # loads its OpenMP, and SciPy's BLAS
    return ThreadpoolController()
