"""Data sets that are drawn at random, not read: uniform samples, labelled by rules that may change.

They are the usual streams of the literature on concept drift, in the form of FedDrift
(Jothimurugesan et al., *Federated learning under distributed concept drift*, AISTATS 2023).

| name | samples | a sample has label 1 if | concepts |
|---|---|---|---|
| sine | [0, 1]² | x₂ ≤ sin x₁ | this; its opposite; x₂ ≤ ½ + 0.3 sin 3πx₁; its opposite |
| circle | [0, 1]² | it lies outside a circle | around (0.2, 0.5), r = 0.15; (0.6, 0.5), r = 0.25 |
| sea | [0, 10]³ | x₁ + x₂ > θ; a tenth of the labels is wrong | θ = 8, 9, 7, 9.5 |

The data sets have the first concept. The transform ``concept`` gives each group its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np

from wecfl.core.types import F32, Bool
from wecfl.data.source import Dataset, Source
from wecfl.rng import stream

__all__ = ["RULED_DATASETS", "Ruled", "find_drawn", "read_drawn"]

Rule: TypeAlias = Callable[[F32], Bool]
"""Says which samples (n, d) have the label 1."""


class Ruled(NamedTuple):
    """Uniform samples, and the rules by which they may be labelled: one for each concept."""

    features: int
    upper: float
    """The features are drawn between 0 and this number."""
    rules: tuple[Rule, ...]
    wrong: float = 0.0
    """The share of labels that are wrong."""


def _sine(x: F32) -> Bool:
    return np.asarray(x[:, 1] <= np.sin(x[:, 0]))


def _waves(x: F32) -> Bool:
    return np.asarray(x[:, 1] <= 0.5 + 0.3 * np.sin(3 * np.pi * x[:, 0]))


def _outside(x: float, y: float, radius: float) -> Rule:
    return lambda points: np.asarray(np.hypot(points[:, 0] - x, points[:, 1] - y) > radius)


def _above(threshold: float) -> Rule:
    return lambda x: np.asarray(x[:, 0] + x[:, 1] > threshold)


RULED_DATASETS = {
    "sine": Ruled(2, 1.0, (_sine, lambda x: ~_sine(x), _waves, lambda x: ~_waves(x))),
    "circle": Ruled(2, 1.0, (_outside(0.2, 0.5, 0.15), _outside(0.6, 0.5, 0.25))),
    "sea": Ruled(3, 10.0, tuple(map(_above, (8.0, 9.0, 7.0, 9.5))), wrong=0.1),
}
"""The data sets by name."""


def find_drawn(_: Path) -> Path:
    """The place of these data sets, which is this module; the folder does not matter."""
    return Path(__file__)


def read_drawn(source: Source, _: Path) -> Dataset:
    """The samples of a data set, always the same, with the labels of its first concept.

    >>> from wecfl.data.datasets import load
    >>> load("sea").x.shape, load("sea").y.mean().round(2)
    ((60000, 3), np.float64(0.64))
    """
    ruled, rng = RULED_DATASETS[source.name], stream(0, source.name)
    count = source.n_train + source.n_test
    x = (ruled.upper * rng.random((count, ruled.features))).astype(np.float32)
    y = ruled.rules[0](x) ^ (rng.random(count) < ruled.wrong)
    return Dataset(source.name, x, y.astype(np.int64), source.n_train, source.classes)
