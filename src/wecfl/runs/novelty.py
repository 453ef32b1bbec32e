"""Novelty: how unusual a newcomer is, compared with members that have as many samples.

A client with few samples makes a noisy update. So it is farther from the center of its cluster than
a client with many samples, and the loss of its cluster's model varies more. Therefore members are
measured with several numbers of samples. For a newcomer with the distance d_k from cluster k, on
whose samples the model of cluster k has the loss l_k,

    novelty = min_k √(max(z(d_k), 0)² + max(z(l_k), 0)²)    z(d) = (d − mean) / sd, z(l) likewise,

where mean and standard deviation are those of members with as many samples, in their own clusters.
(A member's loss is of its test samples. If these are fewer, the standard deviation is corrected.)
So the novelty says how unusual the client is in the cluster that fits it best. The client is novel
if its novelty exceeds the limit, which one in twenty-five members exceeds (decisions 39, 54, 61).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wecfl.core.plan import LocalPlan
from wecfl.core.types import F64, Int

__all__ = ["FALSE_ALARM_RATE", "LossVariance", "MemberProbe", "Usual", "counting_samples"]

FALSE_ALARM_RATE = 0.04
"""The share of newcomers that are called novel although they are like the members."""

LEAST_SPREAD = 0.01
"""The smallest standard deviation, as a share of the mean. Without it, if all members are alike,
rounding errors would look novel."""


@dataclass(frozen=True, slots=True, eq=False)
class MemberProbe:
    """Members that were measured with the same number of their samples."""

    samples: float
    """The effective number of samples (`counting_samples`)."""
    distances: F64
    """(n, K), the distance of each member from each cluster."""
    losses: F64
    """(n, K), the loss of each cluster's model on its test samples; NaN if it has none."""
    own: Int
    """(n,), the position of its own cluster among these clusters."""
    loss_spread: float = 1.0
    """What the standard deviation of these losses is multiplied by, since a newcomer's loss is of
    another number of samples (`LossVariance.spread`)."""

    def of_own(self, values: F64) -> tuple[float, float]:
        """The mean and the standard deviation of the members' values with their own cluster."""
        return _mean_and_spread(np.take_along_axis(values, self.own[:, None], axis=1))


@dataclass(frozen=True, slots=True)
class LossVariance:
    """The variance of members' losses with the models of their clusters.

    It is between + within / n if the losses are of n samples each. A member holds back a part of
    its samples for tests, and its loss is of these; a newcomer's loss is of all its samples.
    """

    between: float
    within: float

    @classmethod
    def of(cls, losses: F64, counts: F64, parts: Iterable[tuple[F64, F64]]) -> LossVariance:
        """By members' losses (m,) on their test samples, `counts` many, and on a part of these.

        Each of the parts is (m,) losses, and on how many of the samples. The mean of s samples that
        are drawn from n differs from the mean of all n by the variance within · (1/s − 1/n).

        >>> losses, counts = np.array([1.0, 3.0]), np.array([8.0, 8.0])
        >>> LossVariance.of(losses, counts, [(np.array([1.5, 2.5]), np.array([4.0, 4.0]))])
        LossVariance(between=0.75, within=2.0)
        """
        squared, apart = 0.0, 0.0
        for loss, fewer in parts:
            known = np.isfinite(loss - losses)
            squared += float(((loss - losses)[known] ** 2).sum())
            apart += float((1 / fewer[known] - 1 / counts[known]).sum())
        known = np.isfinite(losses)
        if apart <= 0 or not known.any():
            return cls(0.0, 0.0)
        within = squared / apart
        between = float(losses[known].var()) - within * float((1 / counts[known]).mean())
        return cls(max(between, 0.0), within)

    def spread(self, counts: F64, samples: F64 | Int | float) -> float:
        """The ratio of the standard deviations of losses on `samples` and on `counts` samples.

        >>> LossVariance(between=0.0, within=2.0).spread(np.array([4.0, 4.0]), 16)
        0.5
        """
        counts, samples = counts[counts > 0], np.asarray(samples, np.float64)
        if not len(counts) or self.between + self.within == 0:
            return 1.0
        here, there = (self.between + self.within * (1 / n).mean() for n in (counts, samples))
        return float(np.sqrt(there / here))


@dataclass(frozen=True, slots=True, eq=False)
class Usual:
    """The usual values of members, by their number of samples.

    >>> unknown, own = np.full((3, 1), np.nan), np.zeros(3, np.int64)
    >>> few = MemberProbe(5, np.array([[2.0], [3.0], [4.0]]), unknown, own)
    >>> many = MemberProbe(500, np.array([[0.2], [0.3], [0.4]]), unknown, own)
    >>> usual = Usual.of([many, few])
    >>> [usual.novel(samples, distance=2.5) for samples in (5, 500)]
    [False, True]
    """

    samples: F64
    """(G,), the effective numbers of samples, in ascending order."""
    distance: F64
    """(G, 2), the mean and the standard deviation of the members' distances."""
    loss: F64
    """(G, 2), the mean and the standard deviation of their losses; (0, 2) if these are unknown."""
    limits: F64
    """(G, 2), the limits of the novelty by distance and loss, and of the novelty by loss alone. A
    share of `FALSE_ALARM_RATE` of the members exceeds them."""

    @classmethod
    def of(cls, probes: Sequence[MemberProbe]) -> Usual:
        """The usual values by these measurements, each of at least one member."""
        ordered = sorted(probes, key=lambda probe: probe.samples)
        distance = np.array([probe.of_own(probe.distances) for probe in ordered])
        known = all(np.isfinite(probe.losses).any() for probe in ordered)
        loss = np.empty((0, 2))
        if known:
            loss = np.array([probe.of_own(probe.losses) for probe in ordered])
        limits = []
        for i, probe in enumerate(ordered):
            # How unusual members are is compared with members, whose losses are of as few samples.
            far = _excess(probe.distances, distance[i])
            high = _excess(probe.losses, loss[i]) if known else np.zeros_like(far)
            least = [np.hypot(far, high).min(axis=1), high.min(axis=1)]
            limits.append(np.quantile(least, 1 - FALSE_ALARM_RATE, axis=1))
        if known:
            loss[:, 1] *= [probe.loss_spread for probe in ordered]
        samples = np.array([probe.samples for probe in ordered], np.float64)
        return cls(samples, distance, loss, np.array(limits))

    def novelty(
        self, samples: float, distance: F64 | float | None = None, loss: F64 | float | None = None
    ) -> tuple[float, float | None]:
        """The novelty of a client, and its limit; None if losses are unknown and no distance given.

        Distance and loss are those of each cluster (K,), or of one.
        """
        far: F64 | float = 0.0
        if distance is not None:
            far = _excess(distance, self._at(samples, "distance"))
        high: F64 | float = 0.0
        if loss is not None and len(self.loss):
            high = _excess(loss, self._at(samples, "loss"))
        by_both, by_loss = self._at(samples, "limits")
        least = float(np.min(np.hypot(far, high)))
        if distance is None:
            return least, float(by_loss) if len(self.loss) else None
        return least, float(by_both)

    def novel(
        self, samples: float, distance: F64 | float | None = None, loss: F64 | float | None = None
    ) -> bool:
        """Whether the novelty exceeds its limit."""
        score, limit = self.novelty(samples, distance, loss)
        return limit is not None and score > limit

    def _at(self, samples: float, which: str) -> F64:
        """(2,), the row for this number of samples, interpolated linearly in 1/√samples.

        Above the largest number that was measured, it is the row of the largest; below the smallest
        one, that of the smallest.
        """
        rows, place = getattr(self, which), 1 / np.sqrt(self.samples[::-1])
        return np.array([np.interp(1 / np.sqrt(samples), place, rows[::-1, j]) for j in range(2)])


def counting_samples(plan: LocalPlan, size: int) -> float:
    """The effective number of a client's samples in a local update, (Σ_j w_j)² / Σ_j w_j².

    w_j is the weight of sample j in the sum of all gradients. If the last mini-batch of a pass is
    small, its samples have a large weight, and the effective number is smaller than the number of
    samples. The variance of the update is inversely proportional to it, as long as the model
    changes little.

    >>> plan = LocalPlan(steps=10, batch=32, momentum=0)
    >>> [round(counting_samples(plan, size), 1) for size in (20, 32, 33, 100, 1000)]
    [20.0, 32.0, 11.3, 69.4, 320.0]
    """
    batches = plan.batches(size, seed=0, round=0, client=0)
    beta = 0.0 if plan.adaptive else plan.momentum
    weights = np.zeros(size)
    for left, rows in zip(range(len(batches), 0, -1), batches, strict=True):
        # The gradient of a step moves the model in all steps that are left.
        weights[rows] += (1 - beta**left) / (1 - beta) / len(rows)
    return float(weights.sum() ** 2 / (weights**2).sum())


def _mean_and_spread(values: F64) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    mean = float(known.mean())
    return mean, max(float(known.std()), LEAST_SPREAD * abs(mean), np.finfo(np.float64).tiny)


def _excess(values: F64 | float, usual: F64) -> F64:
    """The distance above the mean in standard deviations; 0 if a value is below it or unknown."""
    mean, spread = usual
    above: F64 = np.maximum((np.asarray(values) - mean) / spread, 0.0)
    return np.nan_to_num(above, posinf=np.inf)
