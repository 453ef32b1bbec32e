"""Partitions by quantity: clients or groups differ only in how many samples they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl.data.shares import OneAlpha, Shares, TwoAlphas, dirichlet, spread

__all__ = ["ClusterwiseQuantity", "QuantityPower", "QuantitySkew"]


@dataclass(frozen=True, slots=True)
class QuantitySkew(OneAlpha):
    """Clients differ in size only: S_ci = q_i with q ~ Dirichlet(α) over the clients.

    >>> drawn = QuantitySkew(alpha=1.0).shares(2, 3, np.random.default_rng(0)).matrix
    >>> bool((drawn[0] == drawn[1]).all())
    True
    """

    name: ClassVar[str] = "quantity-skew"

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """One vector for all classes."""
        return Shares(np.tile(dirichlet(self.alpha, clients, 1, rng), (classes, 1)))


@dataclass(frozen=True, slots=True)
class QuantityPower(OneAlpha):
    """Sizes follow a power law: S_ci ∝ r_i^(−α), where r is a random ranking of the clients.

    >>> drawn = QuantityPower(alpha=1.0).shares(1, 3, np.random.default_rng(0)).matrix
    >>> sorted((drawn[0] * 11).round(9).tolist())
    [2.0, 3.0, 6.0]
    """

    name: ClassVar[str] = "quantity-power"
    remedy: ClassVar[str] = "lower alpha or ask for fewer clients"

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """One vector for all classes."""
        sizes = (1.0 + rng.permutation(clients)) ** -self.alpha
        return Shares(np.tile(sizes / sizes.sum(), (classes, 1)))


@dataclass(frozen=True, slots=True)
class ClusterwiseQuantity(TwoAlphas):
    """Groups differ in size only: S_ci = a_g b_i, a ~ Dirichlet(α₁), b ~ Dirichlet(α₂) per group.

    Their samples are alike, so only the numbers of samples distinguish the groups: a method should
    find one cluster.

    >>> drawn = ClusterwiseQuantity((1.0, 100.0), groups=2).shares(2, 4, np.random.default_rng(0))
    >>> drawn.groups.tolist(), bool((drawn.matrix[0] == drawn.matrix[1]).all())
    ([0, 0, 1, 1], True)
    """

    name: ClassVar[str] = "clusterwise-quantity"

    def shares(self, classes: int, clients: int, rng: np.random.Generator) -> Shares:
        """Groups first, then the clients inside each group; one vector for all classes."""
        groups = spread(clients, self.groups)
        [between] = dirichlet(self.alpha[0], self.groups, 1, rng)
        within = [dirichlet(self.alpha[1], size, 1, rng)[0] for size in np.bincount(groups)]
        sizes = between[groups] * np.concatenate(within)
        return Shares(np.tile(sizes, (classes, 1)), groups)
