"""Aggregations that limit what a minority of a cluster can do, and all aggregations by name.

`Mean` is the paper's aggregation, and a single member can move it anywhere. The aggregations in
this file limit what a minority can do. They do so inside each cluster, where honest clients are
alike, and not over all clients. A member of a cluster is a client with its label and λ_i > 0. A
cluster without members keeps its center, and a cluster with one member takes that member's model.
Up to rounding, the center does not depend on the order of the clients.

A dishonest client can also lie about |D_i|. Where an aggregation uses λ, "a minority" means members
that hold less than half of λ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import floor

import numpy as np

from wecfl.bilevel.aggregation.column_order import EQUAL_SHARE, in_order, weighted_median
from wecfl.bilevel.aggregation.mean import Mean, own_importance
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Aggregation, Importance
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Int
from wecfl.errors import ConfigError, unknown
from wecfl.layout import Layout

__all__ = [
    "AGGREGATIONS",
    "GeometricMedian",
    "Krum",
    "Median",
    "NormClip",
    "TrimmedMean",
    "robust",
]


class _OneByOne(ABC):
    """An aggregation that makes each center from its own members alone."""

    __slots__ = ()
    importance: Importance | None

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        weight = own_importance(self.importance, importance, sizes)
        models, centers = state.models, state.centers.copy()
        with one_thread():
            for k in range(len(centers)):
                members = np.flatnonzero((state.labels == k) & (weight > 0))
                if len(members):
                    centers[k] = self._center(models[members], weight[members])
        return state.replace(centers=centers)

    @abstractmethod
    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center from a copy of the members' rows, and their λ."""


@dataclass(frozen=True, slots=True)
class Median(_OneByOne):
    """The weighted median of each column (Yin et al., ICML 2018, with λ).

    At most half of the cluster's λ lies below the median, and at most half above it. If two values
    have this property (the λ up to the lower one is exactly half), the median is their midpoint.
    For equal λ it is numpy's median. So two members with equal λ give their mean, and a member with
    more than half of λ decides alone. While dishonest members hold less than half of λ, every
    column stays between values of honest members.

    >>> models = {"model": np.array([[0], [1], [99]], np.float32)}
    >>> state = State(1, models, np.zeros((1, 1), np.float32), labels=np.array([0, 0, 0]))
    >>> Median()(state, np.array([1.0, 1, 1]), sizes=np.ones(3, int)).centers.tolist()
    [[1.0]]
    >>> Median()(state, np.array([2.0, 1, 1]), sizes=np.ones(3, int)).centers.tolist()
    [[0.5]]
    """

    importance: Importance | None = None

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        return weighted_median(rows, weight)


@dataclass(frozen=True, slots=True)
class TrimmedMean(_OneByOne):
    """The weighted mean of each column without its two ends (Yin et al., ICML 2018, with λ).

    In each column the values are laid side by side in order, each as wide as its λ. `share` of the
    whole width is cut off at either end, and the rest is averaged. A member on the edge of the cut
    counts with what is left of its λ. If all λ are equal and `share`·n is a whole number, this is
    `scipy.stats.trim_mean`. (Otherwise SciPy rounds the number of members to cut down.)

    While dishonest members hold at most `share` of λ, every column stays between values of honest
    members. In a small cluster a single member holds more than that. With `share` = 0.2 and up to
    four members of equal λ, the influence of one dishonest member is reduced, but not bounded.

    >>> state = State(1, {"model": np.array([[-99], [1], [2], [3], [99]], np.float32)},
    ...               np.zeros((1, 1), np.float32), labels=np.zeros(5, int))
    >>> TrimmedMean(0.2)(state, np.ones(5), sizes=np.ones(5, int)).centers.tolist()
    [[2.0]]
    """

    share: float = 0.2
    importance: Importance | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ConfigError(f"trimmed mean: share must lie in [0, 0.5), got {self.share}")

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        total = weight.sum()
        low, high = self.share * total, (1 - self.share) * total
        center = np.empty(rows.shape[1], np.float32)
        for columns, values, reached in in_order(rows, weight):
            kept = np.diff(np.clip(reached, low, high), axis=0, prepend=low)
            # Rounding may leave a little of members that are cut off.
            kept[kept <= EQUAL_SHARE * total] = 0
            center[columns] = np.einsum("ip,ip->p", kept, values) / kept.sum(axis=0)
        return center


@dataclass(frozen=True, slots=True)
class Krum(_OneByOne):
    """The model of the member with the nearest neighbours (Blanchard et al., NeurIPS 2017).

    Of n members, f = ⌊`attackers`·n⌋ are taken to be dishonest. The score of a member is the sum of
    its squared distances to the n − f − 2 members nearest to it, and the model of the member with
    the smallest score becomes the center. The proof counts members, so λ is not used. It also needs
    n ≥ 2f + 3, so f is at most ⌊(n − 3)/2⌋: a small cluster is protected from fewer attackers than
    were asked for. With two members, both score 0, and there is no protection. With three members,
    one of the nearest pair is taken. If scores are equal, the bytes of the models decide, which do
    not depend on the order of the clients.

    With `several`, the center is the λ-mean of the n − f members with the smallest scores
    (multi-Krum). By default f = 0 for fewer than five members, where this is the mean of all.

    >>> state = State(1, {"model": np.array([[0], [1], [1.5], [3], [99]], np.float32)},
    ...               np.zeros((1, 1), np.float32), labels=np.zeros(5, int))
    >>> Krum(0.2)(state, np.ones(5), sizes=np.ones(5, int)).centers.tolist()
    [[1.0]]
    >>> several = Krum(0.2, several=True)
    >>> several(state, np.array([1.0, 2, 2, 3, 9]), np.ones(5, int)).centers.tolist()
    [[1.75]]
    """

    attackers: float = 0.2
    several: bool = False
    importance: Importance | None = None
    """λ; unless `several` is set, it decides only who is a member (λ_i > 0)."""

    def __post_init__(self) -> None:
        if not 0 <= self.attackers < 0.5:
            raise ConfigError(f"Krum: attackers must lie in [0, 0.5), got {self.attackers}")

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        n = len(rows)
        f = min(floor(self.attackers * n * (1 + EQUAL_SHARE)), max(n - 3, 0) // 2)
        nearest = np.sort(_squared_distances(rows), axis=1)[:, 1 : max(n - f - 2, 0) + 1]
        scores = nearest.sum(axis=1)
        best = sorted(range(n), key=lambda i: (scores[i], rows[i].tobytes()))
        kept = best[: n - f] if self.several else best[:1]
        return _mix(weight[kept], rows[kept])


@dataclass(frozen=True, slots=True)
class GeometricMedian(_OneByOne):
    """The point with the smallest weighted sum of distances, argmin_z Σ_{i∈k} λ_i ‖z − ω_i‖.

    It is found by the smoothed Weiszfeld algorithm (RFA: Pillutla et al., IEEE TSP 2022), which
    starts from the weighted mean and repeats z ← Σ β_i ω_i / Σ β_i with
    β_i = λ_i / max(`smoothing`, ‖z − ω_i‖). It ends after `steps` steps, or when z moves by at most
    `tolerance` times the weighted median of its distances to the members. No step raises the
    (smoothed) sum, so ending early is not an error, but makes z less exact. z is a mixture of the
    members, so all steps but the last work with their n × n Gram matrix.

    Two members give the model of the one with the greater λ, or their mean if λ is equal. While
    dishonest members hold a share α < ½ of λ, ‖z − c‖ ≤ 2(1 − α)/(1 − 2α) · max ‖ω_i − c‖ over
    honest i, for any c.

    >>> models = {"model": np.array([[0], [1], [99]], np.float32)}
    >>> state = State(1, models, np.zeros((1, 1), np.float32), labels=np.array([0, 0, 0]))
    >>> GeometricMedian()(state, np.ones(3), sizes=np.ones(3, int)).centers.round(3).tolist()
    [[1.0]]
    """

    smoothing: float = 1e-6
    tolerance: float = 1e-6
    steps: int = 1000
    importance: Importance | None = None

    def __post_init__(self) -> None:
        if not (self.smoothing > 0 and self.tolerance >= 0 and self.steps >= 1):
            raise ConfigError(
                "geometric median: smoothing must be positive, tolerance not negative and steps "
                f"at least 1, got {self.smoothing}, {self.tolerance}, {self.steps}"
            )

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        # Models are taken relative to the most central one, so that outliers cost them no digits.
        origin = (np.sqrt(_squared_distances(rows)) @ weight).argmin()
        gap = np.subtract(rows, rows[origin], dtype=np.float64)
        gram = gap @ gap.T
        mixture = weight / weight.sum()
        for _ in range(self.steps):
            toward = gram @ mixture  # ‖Σ_j a_j g_j − g_i‖² = aᵀGa − 2(Ga)_i + G_ii
            squared = mixture @ toward - 2 * toward + gram.diagonal()
            away = np.sqrt(np.maximum(squared, 0))
            pull = weight / np.maximum(away, self.smoothing)
            after = pull / pull.sum()
            step = after - mixture
            mixture = after
            # The change of the sum would be no good test: a far outlier makes up nearly all of it.
            moved = np.sqrt(max(step @ gram @ step, 0))
            if moved <= self.tolerance * weighted_median(away[:, None], weight)[0]:
                break
        return _mix(mixture, rows)


@dataclass(frozen=True, slots=True)
class NormClip(_OneByOne):
    """The weighted mean of the members, each moved to within τ of their median v:

        v + Σ_{i∈k} λ_i min(1, τ/‖ω_i − v‖) (ω_i − v) / Σ_{i∈k} λ_i.

    Here v is the weighted median of each column (`Median`), and τ is the weighted median of
    ‖ω_i − v‖.

    It is one step of centered clipping (Karimireddy et al., ICML 2021). There, v is the server's
    previous momentum and τ is a constant to be tuned. Here the members of a cluster may have come
    from different centers and have no common past, so v and τ are both computed from the members.
    So τ follows the training, but there is no history to resist an attack that drifts slowly.

    The center lies within τ of v. While dishonest members hold less than half of λ, v stays between
    honest values in every column, and τ ≤ max ‖ω_i − v‖ over honest i. For given v and τ, they
    move the center by at most 2τ times their share of λ. Two members give the model of the one with
    the greater λ, or their mean if λ is equal.

    >>> state = State(1, {"model": np.array([[0], [1], [2], [3], [99]], np.float32)},
    ...               np.zeros((1, 1), np.float32), labels=np.zeros(5, int))
    >>> NormClip()(state, np.ones(5), sizes=np.ones(5, int)).centers.round(3).tolist()
    [[2.0]]
    """

    importance: Importance | None = None

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        middle = weighted_median(rows, weight)
        rows -= middle
        length = np.sqrt(np.einsum("ip,ip->i", rows, rows, dtype=np.float64))
        radius = weighted_median(length[:, None], weight)[0]
        clip = np.divide(radius, length, out=np.ones_like(length), where=length > radius)
        center: F32 = middle + (weight * clip / weight.sum()).astype(np.float32) @ rows
        return center


AGGREGATIONS: dict[str, Callable[..., Aggregation]] = {
    "mean": Mean,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": partial(Krum, several=True),
    "geometric-median": GeometricMedian,
    "norm-clip": NormClip,
}
"""The aggregations by name. Each takes options of its own, and `importance`."""


def robust(name: str, like: Aggregation, **options: float) -> Aggregation:
    """The aggregation of that name, with the importance of the aggregation `like`.

    >>> from wecfl import methods
    >>> robust("trimmed-mean", like=methods.wecfl(3).aggregation, share=0.1)
    TrimmedMean(share=0.1, importance=None)
    >>> robust("median", like=methods.fesem(3).aggregation).importance.__name__
    'data_size'
    """
    if name not in AGGREGATIONS:
        raise ConfigError(unknown("aggregation", name, AGGREGATIONS))
    return AGGREGATIONS[name](importance=getattr(like, "importance", None), **options)


def _squared_distances(rows: F32) -> F64:
    """(n, n), ‖ω_i − ω_j‖².

    The Gram matrix makes it fast. Double precision is needed, since clients of one cluster differ
    in the sixth digit, and their squares in the twelfth. No common center is subtracted, since an
    outlier could be anywhere.
    """
    double = rows.astype(np.float64)
    gram = double @ double.T
    own = gram.diagonal()
    return np.maximum(own[:, None] + own - 2 * gram, 0)


def _mix(mixture: F64, rows: F32) -> F32:
    """(P,), the mean of the rows with these weights."""
    center: F32 = (mixture / mixture.sum()).astype(np.float32) @ rows
    return center
