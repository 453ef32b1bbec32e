"""The constants of the paper's theory, B, U, σ² and β, and the bounds of its theorems.

Gradients are rows, one for each client, over the trainable columns. `docs/theory.md` says which
inequality each function belongs to, how it is measured, and where it fails in practice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.core.types import F64, Int, Real

__all__ = [
    "Convergence",
    "clusterability",
    "convexity_bound",
    "descent_bound",
    "drift_bound",
    "gradient_bound",
    "gradient_variance",
    "lr_bound_1",
    "lr_bound_2",
    "secants",
    "squared_norms",
]

SHORTEST_SECANT = 1e-4
"""The shortest useful difference of two float32 rows, relative to the length of the model. Below it
the difference is mostly rounding."""


def clusterability(gradients: Real, labels: Int, importance: F64, k: int) -> F64:
    """(K,), B of each cluster: max_{i∈k} ‖ḡ_k − ∇l_i‖ / ‖ḡ_k‖, with ḡ_k the λ-mean in the cluster.

    The paper's clusterability measure: 0 where all clients pull the same way, 1 where the spread is
    as large as the common pull. NaN for a cluster without members.

    >>> pulls = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 5.0]])
    >>> clusterability(pulls, np.array([0, 0, 1]), np.ones(3), k=3).tolist()
    [0.5, 0.0, nan]
    """
    found = np.full(k, np.nan)
    for cluster in np.unique(labels):
        members = np.asarray(gradients[labels == cluster], dtype=np.float64)
        mean = np.average(members, axis=0, weights=importance[labels == cluster])
        spread, common = np.linalg.norm(members - mean, axis=1).max(), np.linalg.norm(mean)
        # A cluster of one client has no spread, also where its gradient vanishes.
        found[cluster] = spread / common if common > 0 else (np.inf if spread > 0 else 0.0)
    return found


def squared_norms(gradients: Real) -> F64:
    """(…,), ‖∇‖² of each row.

    >>> squared_norms(np.array([[3.0, 4.0]], np.float32)).tolist()
    [25.0]
    """
    return np.asarray(np.einsum("...p,...p->...", gradients, gradients, dtype=np.float64))


def gradient_bound(sampled: Real) -> float:
    """U of "bounded gradients": max_i E‖∇l(ω_i, ξ)‖ from mini-batch gradients (draws, m, P).

    >>> gradient_bound(np.array([[[3.0], [1.0]], [[5.0], [1.0]]]))
    4.0
    """
    return float(np.sqrt(squared_norms(sampled)).mean(axis=0).max())


def gradient_variance(sampled: Real, full: Real) -> float:
    """σ² of "bounded variance": max_i E‖∇l(ω_i, ξ) − ∇l(ω_i)‖² from (draws, m, P) and (m, P).

    >>> gradient_variance(np.array([[[3.0], [1.0]], [[5.0], [1.0]]]), np.array([[4.0], [1.0]]))
    1.0
    """
    return float(squared_norms(sampled - full).mean(axis=0).max())


def secants(models: Real, gradients: Real, others: Real, other_gradients: Real) -> tuple[F64, F64]:
    """(m,) ‖∇l(w) − ∇l(w')‖ / ‖w − w'‖ and (m,) ⟨∇l(w) − ∇l(w'), w − w'⟩ / ‖w − w'‖².

    The first is at most β for a β-smooth loss. The second is nowhere negative for a convex loss.
    Both compare one pair of points, so they can refute an assumption, but not prove it. They are
    NaN for a client that hardly moved (`SHORTEST_SECANT`).

    >>> w, v = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    >>> [each.tolist() for each in secants(w, -2 * w, v, -2 * v)]       # of l(w) = −‖w‖²
    [[2.0, nan], [-2.0, nan]]
    """
    step, turn = models - others, gradients - other_gradients
    length = np.sqrt(squared_norms(step))
    length[length <= SHORTEST_SECANT * np.sqrt(squared_norms(models))] = np.nan
    along = np.einsum("ip,ip->i", turn, step, dtype=np.float64)
    return np.sqrt(squared_norms(turn)) / length, along / length**2


def lr_bound_1(gap: F64, steps: int, U: float) -> F64:
    """(m,), Theorem 1: η_i ≤ ‖ω_i − Ω_k‖ / (Q·U), with ω_i as it was before the distribution.

    Q steps of at most η·U each then leave client i no further from its center than it was, so F
    does not rise in the local update (Lemma 3).

    >>> lr_bound_1(np.array([0.0, 3.0]), steps=10, U=2.0).tolist()
    [0.0, 0.15]
    """
    return np.divide(gap, steps * U, out=np.full_like(gap, np.inf), where=steps * U > 0)


def lr_bound_2(squared: F64, B: F64, U: float, sigma2: float, beta: float) -> F64:
    """(m,), Theorem 2: η < (‖∇L‖² − B·U²) / (‖∇L‖² + σ²) · 2/β, from ‖∇L‖² (m,) and B (m,).

    It is not positive where the gradients of a cluster's clients differ too much (B·U² ≥ ‖∇L‖²).
    Then no learning rate meets the condition.

    >>> squared, B = np.array([4.0, 4.0]), np.array([0.0, 0.5])
    >>> lr_bound_2(squared, B, U=3.0, sigma2=0.0, beta=2.0).tolist()
    [1.0, -0.125]
    """
    total = np.maximum(squared + sigma2, np.finfo(np.float64).tiny)
    with np.errstate(over="ignore"):  # a client that lies about its gradient can make it −∞
        bound: F64 = (squared - B * U**2) / total * 2 / beta
    return bound


def drift_bound(B: F64, importance: F64, lr: float, steps: int, U: float) -> float:
    """Lemma 4: averaging raises R by at most η·B·Q·U², here λ-averaged over the clusters' B (m,).

    >>> drift_bound(np.array([0.5, 0.5]), np.ones(2), lr=0.1, steps=10, U=2.0)
    2.0
    """
    return float(lr * steps * U**2 * np.average(B, weights=importance))


def convexity_bound(squared: F64, moved: F64, importance: F64) -> float:
    """The first half of Lemma 4's proof: Σ λ_i ‖∇L(Ω_k, D_i)‖·‖ω_i − Ω_k‖ / Σλ.

    It needs convexity, but neither B, nor the same learning rate for all, nor a common start.
    `squared` is ‖∇L(Ω_k, D_i)‖² (m,), and `moved` is ‖ω_i − Ω_k‖ (m,) over all parameters.

    >>> convexity_bound(np.array([4.0, 1.0]), np.array([0.5, 0.1]), np.array([1.0, 3.0]))
    0.325
    """
    return float(np.average(np.sqrt(squared) * moved, weights=importance))


def descent_bound(
    squared: F64, importance: F64, lr: Real | float, *, steps: int, beta: float, sigma2: float
) -> float:
    """Lemma 5: the local updates change R by at most Σ λ_i Q((βη²/2 − η)‖∇L‖² + βη²σ²/2) / Σλ.

    `squared` stands for ‖∇L‖² in all Q steps of a client. On a convex loss it never grows during
    gradient descent with η ≤ 2/β, so its value after the last step gives a valid bound.

    >>> descent_bound(np.array([4.0]), np.ones(1), lr=0.5, steps=2, beta=1.0, sigma2=0.0)
    -3.0
    """
    rate = np.asarray(lr, dtype=np.float64)
    noise = beta * rate**2 / 2
    return float(
        np.average(steps * ((noise - rate) * squared + noise * sigma2), weights=importance)
    )


@dataclass(frozen=True, slots=True)
class Convergence:
    """Theorem 3: the number of rounds T after which the mean squared gradient is at most ε.

    T ≥ Δ / (Q(ε(η − βη²/2) − βη²σ²/2 − ηBU²)), with Δ = R_0 − R*.

    >>> theorem = Convergence(delta=2.0, steps=10, lr=0.1, beta=2.0, sigma2=0.0, B=0.1, U=1.0)
    >>> round(theorem.rounds(epsilon=0.5), 9)
    5.714285714
    >>> round(theorem.epsilon(rounds=7), 9), round(theorem.rounds(theorem.epsilon(7)), 9)
    (0.428571429, 7.0)
    >>> theorem.rounds(epsilon=0.1)
    inf
    """

    delta: float
    steps: int
    lr: float
    beta: float
    sigma2: float
    B: float
    U: float

    def rounds(self, epsilon: float) -> float:
        """T for ε; infinite if ε is too small for the noise and the differences of clients."""
        gain = epsilon * self._gain - self._loss
        return self.delta / (self.steps * gain) if gain > 0 else float("inf")

    def epsilon(self, rounds: float) -> float:
        """ε after T rounds, also for T = ∞; infinite if η ≥ 2/β, where the theorem says nothing."""
        loss = self.delta / (rounds * self.steps) + self._loss
        return loss / self._gain if self._gain > 0 else float("inf")

    @property
    def _gain(self) -> float:
        return self.lr - self.beta * self.lr**2 / 2

    @property
    def _loss(self) -> float:
        return self.beta * self.lr**2 * self.sigma2 / 2 + self.lr * self.B * self.U**2
