"""Distances d(g_i, G_k): how far a client is from a cluster."""

from __future__ import annotations

import numpy as np

from wecfl.core.types import F64, Real

__all__ = ["component", "distances", "remainder", "squared_euclidean"]


def squared_euclidean(points: Real, centers: Real) -> F64:
    """‖g_i − G_k‖², (m, K), the paper's distance of model parameters.

    >>> squared_euclidean(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0]])).tolist()
    [[0.0], [25.0]]
    """
    # Differences, not ‖a‖² + ‖b‖² − 2ab: clients of one cluster lie so close together that the
    # expansion would cancel most of the digits F is made of.
    columns = [
        np.einsum("ip,ip->i", d := points - center, d, dtype=np.float64) for center in centers
    ]
    return np.stack(columns, axis=1)


def component(points: Real, centers: Real) -> F64:
    """⟨g_i, G_k⟩, (m, K): with g_i the vector of losses and G = I, the loss L(Ω_k, D_i) itself.

    >>> component(np.array([[0.3, 0.7]]), np.eye(2)).tolist()
    [[0.3, 0.7]]
    """
    return np.asarray(points, dtype=np.float64) @ np.asarray(centers, dtype=np.float64).T


def remainder(points: Real, centers: Real) -> F64:
    """1 − ⟨g_i, G_k⟩, (m, K): with g_i the weights π_i and G = I, what does not belong to k.

    >>> remainder(np.array([[0.25, 0.75]]), np.eye(2)).tolist()
    [[0.75, 0.25]]
    """
    return 1 - component(points, centers)


def distances(points: Real) -> F64:
    """(m, m), ‖g_i − g_j‖, the distances between all clients.

    >>> distances(np.array([[0.0, 0.0], [3.0, 4.0]], np.float32)).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    # Around their mean and in double precision the expansion ‖a‖² + ‖b‖² − 2ab keeps enough digits
    # for a figure or a hierarchy, and needs only one matrix product.
    centered = np.asarray(points, np.float64)
    centered = centered - centered.mean(axis=0)
    squares = np.einsum("ip,ip->i", centered, centered)
    squared = squares[:, None] + squares - 2 * centered @ centered.T
    np.fill_diagonal(squared, 0.0)
    return np.asarray(np.sqrt(np.maximum(squared, 0)), np.float64)
