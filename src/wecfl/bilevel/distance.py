"""Distances d(g_i, G_k): how far a client is from a cluster."""

from __future__ import annotations

import numpy as np

from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Distance
from wecfl.core.types import F64, Int, Real
from wecfl.errors import ConfigError

__all__ = [
    "angle_sum",
    "check_squared_euclidean",
    "component",
    "cosine",
    "distances",
    "jensen_shannon",
    "kullback_leibler",
    "remainder",
    "smallest_angle",
    "squared_euclidean",
]


def squared_euclidean(points: Real, centers: Real) -> F64:
    """‖g_i − G_k‖², (m, K), the paper's distance of model parameters.

    >>> squared_euclidean(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 0.0]])).tolist()
    [[0.0], [25.0]]
    """
    # Squares of differences, not ‖a‖² + ‖b‖² − 2ab: clients of one cluster lie so close together
    # that the expansion would lose most of the digits of F.
    columns = [
        np.einsum("ip,ip->i", d := points - center, d, dtype=np.float64) for center in centers
    ]
    return np.stack(columns, axis=1)


def check_squared_euclidean(distance: Distance, work: str) -> None:
    """Raise an error if the work, which is only right for ‖g − G‖², is given another distance.

    >>> check_squared_euclidean(cosine, "K-means")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: K-means needs the distance squared_euclidean, got cosine
    """
    if distance is not squared_euclidean:
        name = getattr(distance, "__name__", repr(distance))
        raise ConfigError(f"{work} needs the distance squared_euclidean, got {name}")


def component(points: Real, centers: Real) -> F64:
    """⟨g_i, G_k⟩, (m, K): with the vector of losses as g_i and G = I, the loss L(Ω_k, D_i) itself.

    >>> component(np.array([[0.3, 0.7]]), np.eye(2)).tolist()
    [[0.3, 0.7]]
    """
    return np.asarray(points, dtype=np.float64) @ np.asarray(centers, dtype=np.float64).T


def remainder(points: Real, centers: Real) -> F64:
    """1 − ⟨g_i, G_k⟩, (m, K): with the weights π_i as g_i and G = I, the part of i outside of k.

    >>> remainder(np.array([[0.25, 0.75]]), np.eye(2)).tolist()
    [[0.75, 0.25]]
    """
    return 1 - component(points, centers)


def cosine(points: Real, centers: Real) -> F64:
    """1 − cos(g_i, G_k), (m, K); a vector of zeros has the cosine 0 with every other one.

    >>> cosine(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 3.0]])).tolist()
    [[0.0, 1.0], [1.0, 1.0]]
    """
    return 1 - component(_units(points), _units(centers))


def _units(points: Real) -> F64:
    norms = np.linalg.norm(points := np.asarray(points, np.float64), axis=-1, keepdims=True)
    units: F64 = np.divide(points, norms, out=np.zeros_like(points), where=norms > 0)
    return units


def jensen_shannon(points: Real, centers: Real) -> F64:
    """½ KL(g ‖ h) + ½ KL(G ‖ h) of histograms with the mean h, in bits, from 0 to 1; (m, K).

    >>> halves = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    >>> jensen_shannon(halves, halves).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    from scipy.special import rel_entr  # noqa: PLC0415  (slow to load)

    columns = []
    for center in np.asarray(centers, np.float64):
        middle = (points + center) / 2
        columns.append((rel_entr(points, middle) + rel_entr(center, middle)).sum(axis=1) / 2)
    return _bits(columns)


def kullback_leibler(points: Real, centers: Real) -> F64:
    """½ KL(g ‖ G) + ½ KL(G ‖ g) of histograms, in bits, (m, K).

    Each histogram is mixed with a hundredth of the uniform one, so that it is finite where a class
    is missing.

    >>> kullback_leibler(np.array([[0.5, 0.5]]), np.array([[0.5, 0.5], [1.0, 0.0]])).round(2)
    array([[0.  , 1.89]])
    """
    a, b = (_smoothed(histograms) for histograms in (points, centers))
    columns = [((a - center) * (np.log(a) - np.log(center))).sum(axis=1) / 2 for center in b]
    return _bits(columns)


def _bits(columns: list[F64]) -> F64:
    """(m, K), from columns in natural units; rounding may leave them just below zero."""
    return np.asarray(np.maximum(np.stack(columns, axis=1) / np.log(2), 0), np.float64)


def _smoothed(histograms: Real) -> F64:
    return np.asarray(0.99 * histograms + 0.01 / histograms.shape[1], np.float64)


def smallest_angle(points: Real, centers: Real) -> F64:
    """The smallest principal angle between two subspaces, in degrees, (m, K).

    A subspace is spanned by the rows of (q, D); rows of zeros do not count. The cosines of the
    principal angles are the singular values of Q₁Q₂ᵀ, where Q has orthonormal rows that span the
    subspace (Björck and Golub). The entries of Q₁Q₂ᵀ would not do: they change with the basis.

    >>> plane, line = np.eye(3)[:2], np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    >>> smallest_angle(plane[None], np.stack([plane, line])).round(3).tolist()
    [[0.0, 45.0]]
    """
    return _principal_angles(points, centers)[0]


def angle_sum(points: Real, centers: Real) -> F64:
    """The sum of all principal angles between two subspaces, in degrees, (m, K).

    There are as many as the smaller subspace has dimensions.

    >>> plane, tilted = np.eye(3)[:2], np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> angle_sum(plane[None], np.stack([plane, tilted])).round(3).tolist()
    [[0.0, 90.0]]
    """
    return _principal_angles(points, centers)[1]


def _principal_angles(points: Real, centers: Real) -> tuple[F64, F64]:
    """(m, K), the smallest angle and the sum of all angles."""
    (ours, sizes), (theirs, others) = _orthonormal(points), _orthonormal(centers)
    smallest, total = np.empty((2, len(ours), len(theirs)))
    with one_thread():
        for k, basis in enumerate(theirs):
            values = np.linalg.svd(ours @ basis.T, compute_uv=False)
            angles = np.degrees(np.arccos(np.clip(values, 0, 1)))
            counted = np.arange(angles.shape[1]) < np.minimum(sizes, others[k])[:, None]
            smallest[:, k] = angles[:, 0]
            total[:, k] = np.where(counted, angles, 0).sum(axis=1)
    return smallest, total


def _orthonormal(spans: Real) -> tuple[F64, Int]:
    """(n, q, D), orthonormal rows with the same spans, padded with zeros; (n,), their number."""
    rows = np.asarray(spans, np.float64)
    with one_thread():
        _, values, basis = np.linalg.svd(rows, full_matrices=False)
    independent = values > 1e-5 * np.maximum(values[:, :1], 1e-30)
    return basis * independent[..., None], independent.sum(axis=1)


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
