"""Finds the cluster of a newcomer without labels by its inputs.

The inputs of a client are described by the mean and the standard deviation of each feature. A
newcomer is compared with the mean of these moments over the members of each cluster. Whether this
distinguishes the clusters is measured: `found` is the share of members that are put into their own
cluster by a part of their samples, while they are left out of its mean. The stored moments reveal
something about the inputs of a cluster as a whole, such as its mean picture. So they are not made
under privacy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wecfl.core.types import F32, F64, Bool, Int
from wecfl.runs.novelty import MemberProbe, Usual

__all__ = ["MIN_FOUND_SHARE", "InputMoments", "moments"]

MIN_FOUND_SHARE = 0.8
"""The smallest share of members that must be found by their inputs, as the mean over clusters."""


def moments(x: F32) -> F64:
    """(2d,), the mean and the standard deviation of each of the d features of samples (n, …).

    >>> moments(np.array([[0.0, 5.0], [2.0, 5.0]])).tolist()
    [1.0, 5.0, 1.0, 0.0]
    """
    flat = np.asarray(x, np.float64).reshape(len(x), -1)
    return np.concatenate([flat.mean(axis=0), flat.std(axis=0)])


@dataclass(frozen=True, slots=True, eq=False)
class InputMoments:
    """The moments of each cluster's inputs, and how well they distinguish the clusters."""

    centers: F32
    """(n, 2d), the mean moments of the members, for each cluster that has members."""
    spread: F32
    """(2d,), the standard deviation of the moments among members of a cluster. If it is 0, the
    moment is the same for all, and is not used."""
    found: F64
    """(G,), the share of members found with each of G numbers of samples, as the mean over
    clusters."""
    usual: Usual
    """The usual values of members, at the same G numbers of samples."""

    @classmethod
    def of(cls, whole: F64, parts: Mapping[int, tuple[F64, Bool]], labels: Int) -> InputMoments:
        """From the moments (m, 2d) of members in these clusters; at least one cluster has two.

        For each number of samples, `parts` has the moments of members by a part of this number of
        their samples, and the members that have enough.
        """
        several = np.bincount(labels)[labels] > 1
        clusters, place = np.unique(labels, return_inverse=True)
        centers = np.array([whole[labels == k].mean(axis=0) for k in clusters])
        apart = (whole - centers[place])[several]
        freedom = max(1, several.sum() - len(np.unique(labels[several])))
        spread = np.sqrt((apart**2).sum(axis=0) / freedom)
        spread[spread <= np.finfo(np.float32).eps * np.abs(whole).max(axis=0)] = 0.0
        counts = np.bincount(place)[place]
        others = (counts[:, None] * centers[place] - whole) / np.maximum(counts - 1, 1)[:, None]
        found, probes = [], []
        for size, (rows, enough) in parts.items():
            far = _apart(rows, centers, spread)
            far[np.arange(len(far)), place] = _apart(rows, others[:, None], spread)[:, 0]
            judged = several & enough
            found.append(_mean_share(far.argmin(axis=1) == place, place, judged))
            least = far[judged].min(axis=1, keepdims=True)
            one = np.zeros(len(least), np.int64)
            probes.append(MemberProbe(size, least, np.full(least.shape, np.nan), one))
        return cls(
            centers.astype(np.float32), spread.astype(np.float32), np.array(found), Usual.of(probes)
        )

    def distances(self, x: F32) -> F64:
        """(n,), the distance of samples from each cluster, in standard deviations per moment."""
        far: F64 = _apart(moments(x)[None], self.centers.astype(np.float64), self.spread)[0]
        return far

    def found_with(self, samples: int) -> float:
        """The share of members that are found with this number of samples, or the next smaller."""
        fewer = int(np.searchsorted(self.usual.samples, samples, "right")) - 1
        return float(self.found[max(fewer, 0)])


def _apart(rows: F64, centers: F64, spread: F64 | F32) -> F64:
    """(m, n), the root of the mean squared standardized difference of moments.

    `centers` are (n, 2d), or (m, 1, 2d) if each row has its own.
    """
    used = spread > 0
    if not used.any():
        return np.zeros((len(rows), centers.shape[-2]))
    scaled, goals = rows[:, used] / spread[used], centers[..., used] / spread[used]
    paired = goals if goals.ndim == 3 else np.broadcast_to(goals, (len(rows), *goals.shape))
    squares = [((row - goal) ** 2).mean(axis=1) for row, goal in zip(scaled, paired, strict=True)]
    far: F64 = np.sqrt(np.array(squares))
    return far


def _mean_share(right: Bool, place: Int, judged: Bool) -> float:
    """The share of the judged members that are right, as the mean over clusters.

    If members are few, this share is uncertain. So one more member is counted as not found.

    >>> _mean_share(np.array([True, True, True, False]), np.array([0, 0, 0, 1]), np.ones(4, bool))
    0.4
    """
    clusters, n = np.unique(place[judged]), judged.sum()
    mean = np.mean([right[judged & (place == k)].mean() for k in clusters])
    return float(mean * n / (n + 1))
