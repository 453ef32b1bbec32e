"""The M-step: the center of a cluster from the models of its members.

`Mean` is the paper's, and a single member can move it anywhere. The others bound what a minority
can do: inside each cluster, where honest clients are alike, rather than over all clients. A member
is a client with the cluster's label and λ_i > 0; a cluster without members keeps its center, one
with a single member takes its model. All give the same center for any order of the clients, up to
rounding.

A dishonest client can also lie about |D_i|. Where λ counts, "a minority" means a minority of λ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import floor

import numpy as np

from wecfl.bilevel.column_order import EQUAL_SHARE, in_order, weighted_median
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
    "Mean",
    "Median",
    "NormClip",
    "Stay",
    "TrimmedMean",
    "robust",
]


@dataclass(frozen=True, slots=True)
class Mean:
    """Weighted mean of each cluster, Ω_k = Σ_{i∈k} λ_i ω_i / Σ_{i∈k} λ_i (Lemma 2).

    A cluster without members keeps its center. The aggregation may weigh clients differently from
    the clustering (FeSEM clusters uniformly and averages by data size): `importance`, if given,
    replaces the method's λ here.

    >>> models = {"model": np.array([[0.0], [4.0]], np.float32)}
    >>> state = State(1, models, np.full((2, 1), 9, np.float32), labels=np.array([0, 0]))
    >>> Mean()(state, np.array([3.0, 1.0]), sizes=np.array([3, 1])).centers.tolist()
    [[1.0], [9.0]]
    """

    importance: Importance | None = None

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers, by one matrix product."""
        weight = _own(self.importance, importance, sizes)
        share = np.zeros((len(state.centers), len(weight)))
        share[state.labels, np.arange(len(weight))] = weight
        total = share.sum(axis=1)
        inhabited = total > 0
        share[inhabited] /= total[inhabited, None]
        centers = state.centers.copy()
        with one_thread():
            centers[inhabited] = share[inhabited].astype(np.float32) @ state.models
        return state.replace(centers=centers)


@dataclass(frozen=True, slots=True)
class Stay:
    """Nothing is put together: every center stays as it is (local training only).

    >>> state = State(1, None, np.ones((1, 1), np.float32), np.array([0, 0]))
    >>> Stay()(state, np.ones(2), sizes=np.ones(2, int)).centers.tolist()
    [[1.0]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with a copy of the same centers."""
        return state.replace(centers=state.centers.copy())


@dataclass(frozen=True, slots=True)
class Median:
    """Coordinate-wise weighted median (Yin et al., ICML 2018, with λ).

    In each column, a value with at most half of the cluster's λ below it and at most half above.
    Where two values share the middle (the λ up to the lower one is exactly half), their midpoint,
    as for numpy's median, which it equals for equal λ. So two members with equal λ give their
    mean, and a member with more than half of λ decides alone. While dishonest members hold less
    than half of λ, every column stays between values of honest members.

    >>> models = {"model": np.array([[0], [1], [99]], np.float32)}
    >>> state = State(1, models, np.zeros((1, 1), np.float32), labels=np.array([0, 0, 0]))
    >>> Median()(state, np.array([1.0, 1, 1]), sizes=np.ones(3, int)).centers.tolist()
    [[1.0]]
    >>> Median()(state, np.array([2.0, 1, 1]), sizes=np.ones(3, int)).centers.tolist()
    [[0.5]]
    """

    importance: Importance | None = None

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        return _by_cluster(state, _own(self.importance, importance, sizes), weighted_median)


@dataclass(frozen=True, slots=True)
class TrimmedMean:
    """Coordinate-wise weighted mean without both ends (Yin et al., ICML 2018, with λ).

    In each column the values are laid side by side in order, each as wide as its λ; `share` of the
    whole width is cut off at either end and the rest is averaged. A member on the edge of the cut
    counts with what is left of its λ. For equal λ and a whole `share`·n this is
    `scipy.stats.trim_mean`, which rounds the number of members down where it is not whole.
    While dishonest members hold at most `share` of λ, every column stays between values of honest
    members. In a cluster of few members that is less than one of them: with 0.2, one dishonest
    member of up to four with equal λ is damped but not bounded.

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

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        return _by_cluster(state, _own(self.importance, importance, sizes), self._center)

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        total = weight.sum()
        low, high = self.share * total, (1 - self.share) * total
        center = np.empty(rows.shape[1], np.float32)
        for columns, values, reached in in_order(rows, weight):
            kept = np.diff(np.clip(reached, low, high), axis=0, prepend=low)
            kept[kept <= EQUAL_SHARE * total] = 0  # rounding leaves a little of what is cut off
            center[columns] = np.einsum("ip,ip->p", kept, values) / kept.sum(axis=0)
        return center


@dataclass(frozen=True, slots=True)
class Krum:
    """The one member with the nearest neighbours (Blanchard et al., NeurIPS 2017).

    The score of a member is the sum of its squared distances to its n − f − 2 nearest fellows,
    f = ⌊`attackers`·n⌋ of n members being dishonest; the member with the least score is the
    center. The proof counts members and needs n ≥ 2f + 3, so λ plays no part and f is at most
    ⌊(n − 3)/2⌋: small clusters are protected from fewer than asked for. Two members both score 0
    and nothing is promised; of three, one of the nearest pair is taken.

    Equal scores are settled by the models' bytes, which do not depend on the order of clients.

    `several` takes the λ-mean of the n − f members with the least scores (multi-Krum). With the
    default no one is left out of fewer than five members: there that is the mean.

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
    """Of one member alone, it decides who is a member (λ_i > 0) and nothing else."""

    def __post_init__(self) -> None:
        if not 0 <= self.attackers < 0.5:
            raise ConfigError(f"Krum: attackers must lie in [0, 0.5), got {self.attackers}")

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        return _by_cluster(state, _own(self.importance, importance, sizes), self._center)

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        n = len(rows)
        f = min(floor(self.attackers * n * (1 + EQUAL_SHARE)), max(n - 3, 0) // 2)
        near = np.sort(_squared_distances(rows), axis=1)[:, 1 : max(n - f - 2, 0) + 1]
        scores = near.sum(axis=1)
        best = sorted(range(n), key=lambda i: (scores[i], rows[i].tobytes()))
        kept = best[: n - f] if self.several else best[:1]
        return _mix(weight[kept], rows[kept])


@dataclass(frozen=True, slots=True)
class GeometricMedian:
    """argmin_z Σ_{i∈k} λ_i ‖z − ω_i‖ by the smoothed Weiszfeld algorithm (RFA: Pillutla et al.,
    IEEE TSP 2022).

    From the weighted mean, z ← Σ β_i ω_i / Σ β_i with β_i = λ_i / max(`smoothing`, ‖z − ω_i‖),
    until z moves by at most `tolerance` of the weighted median of its distances to the members, or
    `steps` times. No step raises the (smoothed) sum, so stopping early is no error: z is then less
    exact. z is a mixture of the members, so all but the last mixing happens in their n × n Gram
    matrix.

    Two members: the one with the greater λ, their mean if equal. While dishonest members hold a
    share α < ½ of λ, ‖z − c‖ ≤ 2(1 − α)/(1 − 2α) · max ‖ω_i − c‖ over honest i, for any c.

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

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        return _by_cluster(state, _own(self.importance, importance, sizes), self._center)

    def _center(self, rows: F32, weight: F64) -> F32:
        """(P,), the center of the members' rows."""
        # About the most central member, so that far outliers leave the digits of the others alone.
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
            # Not by the fall of the sum, of which a far outlier hides everything else.
            moved = np.sqrt(max(step @ gram @ step, 0))
            if moved <= self.tolerance * weighted_median(away[:, None], weight)[0]:
                break
        return _mix(mixture, rows)


@dataclass(frozen=True, slots=True)
class NormClip:
    """Weighted mean of the members, each drawn to within τ of their median v:

        v + Σ_{i∈k} λ_i min(1, τ/‖ω_i − v‖) (ω_i − v) / Σ_{i∈k} λ_i,

    v the coordinate-wise weighted median (`Median`), τ the weighted median of ‖ω_i − v‖.

    One step of centered clipping (Karimireddy et al., ICML 2021). There v is the server's previous
    momentum and τ a constant to be tuned; here members of a cluster may have come from different
    centers and have no common past, so both are taken from the members themselves. So τ follows
    the training, but a history that would outlast a slowly drifting attack is missing.

    The center lies within τ of v. While dishonest members hold less than half of λ, v stays
    between honest values in every column and τ ≤ max ‖ω_i − v‖ over honest i; beyond v and τ they
    move the center by at most their share of λ times 2τ. Two members: the one with the greater λ,
    their mean if equal.

    >>> state = State(1, {"model": np.array([[0], [1], [2], [3], [99]], np.float32)},
    ...               np.zeros((1, 1), np.float32), labels=np.zeros(5, int))
    >>> NormClip()(state, np.ones(5), sizes=np.ones(5, int)).centers.round(3).tolist()
    [[2.0]]
    """

    importance: Importance | None = None

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        return _by_cluster(state, _own(self.importance, importance, sizes), self._center)

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
"""The aggregations by name; each takes its own options and `importance`."""


def robust(name: str, like: Aggregation, **options: float) -> Aggregation:
    """The aggregation of that name, with the importance of another.

    >>> from wecfl import methods
    >>> robust("trimmed-mean", like=methods.wecfl(3).aggregation, share=0.1)
    TrimmedMean(share=0.1, importance=None)
    >>> robust("median", like=methods.fesem(3).aggregation).importance.__name__
    'data_size'
    """
    if name not in AGGREGATIONS:
        raise ConfigError(unknown("aggregation", name, AGGREGATIONS))
    return AGGREGATIONS[name](importance=getattr(like, "importance", None), **options)


def _own(own: Importance | None, importance: F64, sizes: Int) -> F64:
    """λ (m,) that the aggregation uses: its own if it has one, else the method's."""
    return importance if own is None else own(sizes)


def _by_cluster(state: State, weight: F64, center: Callable[[F32, F64], F32]) -> State:
    """The state with centers that `center` makes of each cluster's rows (a copy) and λ."""
    models, centers = state.models, state.centers.copy()
    with one_thread():
        for k in range(len(centers)):
            members = np.flatnonzero((state.labels == k) & (weight > 0))
            if len(members):
                centers[k] = center(models[members], weight[members])
    return state.replace(centers=centers)


def _squared_distances(rows: F32) -> F64:
    """(n, n): ‖ω_i − ω_j‖².

    Through the Gram matrix, for speed, and in double precision: clients of one cluster differ in
    the sixth digit, their squares in the twelfth. No common center is subtracted, since an
    outlier could be anywhere.
    """
    double = rows.astype(np.float64)
    gram = double @ double.T
    own = gram.diagonal()
    return np.maximum(own[:, None] + own - 2 * gram, 0)


def _mix(mixture: F64, rows: F32) -> F32:
    """(P,): the mean of the rows with these weights."""
    center: F32 = (mixture / mixture.sum()).astype(np.float32) @ rows
    return center
