"""Theorem 3 on the records of a run: the mean ‖∇L‖² so far, and what T rounds promise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from wecfl.bilevel.bounds import Convergence
from wecfl.runs.record import Record

__all__ = ["mean_gradients", "theorem_3"]


def theorem_3(records: Sequence[Record], steps: int) -> Convergence:
    """Theorem 3 with the constants as known after these rounds, and the largest η of the last.

    Δ = R_0 − R* is at most R_0, since no cross-entropy is negative.
    """
    last = records[-1]
    B = max(b for each in records for side in each["B"].values() for b in side if b is not None)
    lr, R_0, theory = max(last["clients"]["lr"]), records[0]["R"]["L"], last["theory"]
    return Convergence(R_0, steps, lr, theory["beta"], theory["sigma2"], B, theory["U"])


def mean_gradients(records: Sequence[Record], steps: int) -> Iterator[tuple[float, float]]:
    """After T = 1, 2, … rounds: the mean ‖∇L‖² so far, and the ε that T rounds promise.

    The mean over the Q steps of a round is taken as that of the first and the last. T counts from
    the second record on, because R_0 is measured after the first local update.
    """
    total = 0.0
    for T, (_, record) in enumerate(pairwise(records), start=1):
        total += sum(record["theory"]["gradient"].values()) / 2
        yield total / T, theorem_3(records[: T + 1], steps).epsilon(rounds=T)
