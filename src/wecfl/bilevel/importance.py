"""Importance λ_i: how much a client counts, from its number of samples |D_i|."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.core.types import F64, Int

__all__ = ["Batches", "data_size", "uniform"]


def data_size(sizes: Int) -> F64:
    """λ_i = |D_i|, as in FedAvg and WeCFL.

    >>> data_size(np.array([3, 5])).tolist()
    [3.0, 5.0]
    """
    return sizes.astype(np.float64)


def uniform(sizes: Int) -> F64:
    """λ_i = 1, as in FeSEM's clustering.

    >>> uniform(np.array([3, 5])).tolist()
    [1.0, 1.0]
    """
    return np.ones(len(sizes))


@dataclass(frozen=True, slots=True)
class Batches:
    """λ_i = ⌈|D_i| / batch⌉, which the authors' code calls the size of a client.

    >>> Batches(32)(np.array([31, 33])).tolist()
    [1.0, 2.0]
    """

    batch: int = 32

    def __call__(self, sizes: Int) -> F64:
        """Importance (m,) of clients with these data sizes."""
        return np.ceil(sizes / self.batch)
