"""How other authors divide samples and test clients, for comparisons with their figures.

By default, the data set's test samples are divided among clients like those for training. Some
authors test each model on all test samples (`commonly_tested`), or merge both sets, so that each
client holds out a share of its own (`merged`, then `Federation.validating`). Some give every group
the whole data set (`repeated`), or few samples to each client (`limited`). Some take test samples
class by class (`tested_by_class`), which matters if BatchNorm uses the statistics of each batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wecfl import rng
from wecfl.data.federation import Federation
from wecfl.data.source import Dataset
from wecfl.inputs import check_room
from wecfl.limits import check_whole

__all__ = ["commonly_tested", "limited", "merged", "repeated", "tested_by_class"]


def merged(data: Dataset) -> Dataset:
    """The data set with all its samples for training.

    >>> from wecfl.data.datasets import load
    >>> merged(load("digits")).n_train
    1797
    """
    return replace(data, n_train=len(data.y))


def repeated(data: Dataset, copies: int) -> Dataset:
    """The data set with `copies` copies of every sample.

    >>> from wecfl.data.datasets import load
    >>> twice = repeated(load("digits"), 2)
    >>> twice.n_train, len(twice.y)
    (2876, 3594)
    """
    check_whole(copies=(copies, 1))
    needed = copies * (data.x.nbytes + data.y.nbytes + 8 * len(data.y))
    check_room(f"{copies} copies of the data set", needed, "choose fewer copies")
    rows = np.arange(len(data.y))
    cut = np.split(rows, [data.n_train])
    order = np.concatenate([np.tile(part, copies) for part in cut])
    return replace(data, x=data.x[order], y=data.y[order], n_train=copies * data.n_train)


def limited(federation: Federation, samples: int, seed: int = 0) -> Federation:
    """The same clients, each with at most `samples` of its training samples, drawn for `seed`.

    >>> fed = Federation.from_arrays([np.zeros((10, 1))], [np.arange(10) % 2])
    >>> limited(fed, 3).sizes
    array([3])
    """
    check_whole(samples=(samples, 1), seed=(seed, 0))
    train = tuple(
        np.sort(rng.stream(seed, "samples", 0, int(key)).permutation(rows)[:samples])
        for rows, key in zip(federation.train, federation.keys, strict=True)
    )
    return replace(federation, train=train)


def commonly_tested(federation: Federation) -> Federation:
    """The same clients, each tested on the test samples of all clients.

    >>> fed = Federation.from_arrays([np.zeros((5, 1))] * 2, [[0, 1, 0, 1, 0]] * 2)
    >>> [len(rows) for rows in commonly_tested(fed).test]
    [2, 2]
    """
    everything = np.sort(np.concatenate(federation.test))
    return replace(federation, test=(everything,) * federation.m)


def tested_by_class(federation: Federation) -> Federation:
    """The same clients, with their test samples in the order of the classes.

    >>> fed = Federation.from_arrays([np.zeros((6, 1))], [[1, 0, 1, 0, 1, 0]], test=0.5)
    >>> fed.y[tested_by_class(fed).test[0]]
    array([0, 0, 1])
    """
    labels = federation.y
    by_class = (rows[np.lexsort(np.atleast_2d(labels[rows].T)[::-1])] for rows in federation.test)
    return replace(federation, test=tuple(by_class))
