"""Server optimizers: the M-step as a gradient step, with moments kept for each cluster.

The pseudo-gradient of a cluster is Δ_k = mean of its members' ω_i − Ω_k, so that a plain step of
length 1 is the mean itself (Reddi et al., *Adaptive Federated Optimization*, ICLR 2021; FedAvgM:
Hsu et al., 2019). There is no bias correction. A cluster takes no step in a round in which none of
its clients was heard. If a cluster is split, both parts get its moments. BatchNorm statistics are
averaged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from wecfl.bilevel.aggregation.mean import Mean
from wecfl.core.components import Aggregation
from wecfl.core.state import State
from wecfl.core.types import F64, Int
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_positive

__all__ = ["Adaptive", "Momentum", "adagrad", "adam", "yogi"]

Second = Callable[[F64, F64, float], F64]
"""Gives the next v from v, Δ² and β₂."""


def adagrad(v: F64, squared: F64, beta2: float) -> F64:
    """The next v is v + Δ².

    >>> adagrad(np.array([1.0]), np.array([4.0]), 0.99).tolist()
    [5.0]
    """
    return v + squared


def adam(v: F64, squared: F64, beta2: float) -> F64:
    """The next v is β₂·v + (1 − β₂)·Δ².

    >>> adam(np.array([1.0]), np.array([4.0]), 0.5).tolist()
    [2.5]
    """
    return beta2 * v + (1 - beta2) * squared


def yogi(v: F64, squared: F64, beta2: float) -> F64:
    """The next v is v − (1 − β₂)·Δ²·sign(v − Δ²).

    >>> yogi(np.array([1.0]), np.array([4.0]), 0.5).tolist()
    [3.0]
    """
    return np.asarray(v - (1 - beta2) * squared * np.sign(v - squared))


@dataclass(frozen=True, slots=True)
class Momentum:
    """FedAvgM: m ← β·m + Δ, Ω ← Ω + η·m.

    >>> state = State(1, {"model": np.array([[2.0]], np.float32)}, np.zeros((1, 1), np.float32),
    ...               np.array([0]))
    >>> after = Momentum(beta=0.5)(state, np.ones(1), np.ones(1, int))
    >>> after.centers.tolist(), after.cluster["m"].tolist()
    ([[2.0]], [[2.0]])
    """

    lr: float = 1.0
    beta: float = 0.9
    of: Aggregation = field(default_factory=Mean)

    def __post_init__(self) -> None:
        _check(self.lr, beta=self.beta)

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state after a step of each cluster with clients that were heard."""

        def step(delta: F64, moments: dict[str, F64]) -> tuple[F64, dict[str, F64]]:
            m = self.beta * moments["m"] + delta
            return self.lr * m, {"m": m}

        mean = self.of(state, importance, sizes, layout)
        return _stepped(state, mean, layout, {"m": 0.0}, step)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """FedAdagrad, FedAdam, FedYogi: Ω ← Ω + η·m / (√v + τ), m ← β₁·m + (1 − β₁)·Δ, v by `second`.

    v starts from τ². `of` is the aggregation that gives the mean.

    >>> Adaptive(yogi, lr=0.1).beta2
    0.99
    """

    second: Second
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    of: Aggregation = field(default_factory=Mean)

    def __post_init__(self) -> None:
        _check(self.lr, beta1=self.beta1, beta2=self.beta2)
        check_positive(tau=self.tau)

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state after a step of each cluster with clients that were heard."""

        def step(delta: F64, moments: dict[str, F64]) -> tuple[F64, dict[str, F64]]:
            m = self.beta1 * moments["m"] + (1 - self.beta1) * delta
            v = self.second(moments["v"], delta**2, self.beta2)
            return self.lr * m / (np.sqrt(v) + self.tau), {"m": m, "v": v}

        mean = self.of(state, importance, sizes, layout)
        return _stepped(state, mean, layout, {"m": 0.0, "v": self.tau**2}, step)


Step = Callable[[F64, dict[str, F64]], tuple[F64, dict[str, F64]]]


def _stepped(
    state: State, mean: State, layout: Layout | None, starts: dict[str, float], step: Step
) -> State:
    """Clusters with clients that were heard take a step; before the first round none does."""
    if state.round == 0:
        return mean
    (k, width), heard = state.centers.shape, np.unique(state.labels)
    n = width if layout is None else layout.trainable
    moments = {
        name: state.cluster.get(name, np.full((k, n), start)).copy()
        for name, start in starts.items()
    }
    before = state.centers[heard, :n].astype(np.float64)
    move, after = step(
        mean.centers[heard, :n] - before, {name: rows[heard] for name, rows in moments.items()}
    )
    centers = mean.centers.copy()
    centers[heard, :n] = before + move
    for name, rows in after.items():
        moments[name][heard] = rows
    return mean.replace(centers=centers, cluster={**state.cluster, **moments})


def _check(lr: float, **betas: float) -> None:
    check_positive(server_lr=lr)
    for name, beta in betas.items():
        if not 0 <= beta < 1:
            raise ConfigError(f"{name} must lie in [0, 1), got {beta}")
