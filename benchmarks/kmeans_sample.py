"""K-means of very many clients: fresh starts on a sample, on all, and scikit-learn's mini-batches.

In processor time of one thread, with one start or ten on 20,000 points of ten groups.
"""

from __future__ import annotations

from time import process_time

import numpy as np
from sklearn.cluster import KMeans as Lloyd
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import adjusted_rand_score

from common import Line, main
from wecfl.bilevel.clustering import KMeans
from wecfl.bilevel.threads import one_thread

CLIENTS, COLUMNS, K = 20_000, 640, 10


def lines(seeds: int = 3, first_seed: int = 3, spread: float = 3.0) -> list[Line]:
    """Seconds, F relative to all points, and the agreement with the groups."""
    seconds: dict[str, list[float]] = {}
    agreement: dict[str, list[float]] = {}
    risen: dict[str, list[float]] = {}
    for seed in range(first_seed, first_seed + seeds):
        rng = np.random.default_rng(seed)
        groups = np.arange(CLIENTS) % K
        points = rng.normal(size=(K, COLUMNS))[groups] + spread * rng.normal(
            size=(CLIENTS, COLUMNS)
        )
        weight = rng.integers(20, 500, CLIENTS).astype(np.float64)
        ways = {
            "ten starts on all": lambda x, w, s: (
                Lloyd(K, n_init=10, random_state=s).fit(x, sample_weight=w).labels_
            ),
            "ours, on a sample": lambda x, w, s: KMeans().lloyd(
                x, x[:K], w, np.random.default_rng(s)
            ),
            "MiniBatchKMeans": lambda x, w, s: (
                MiniBatchKMeans(K, n_init=10, random_state=s).fit(x, sample_weight=w).labels_
            ),
        }
        with one_thread():
            base = 0.0
            for name, way in ways.items():
                began = process_time()
                labels = way(points, weight, seed)
                seconds.setdefault(name, []).append(process_time() - began)
                agreement.setdefault(name, []).append(adjusted_rand_score(groups, labels))
                f = _f(points, weight, labels)
                base = base or f
                risen.setdefault(name, []).append(f / base)
    return [
        line
        for name in seconds
        for line in (
            Line(f"seconds, {name}", f"{CLIENTS:,} × {COLUMNS}", seconds[name]),
            Line(f"ARI, {name}", f"{CLIENTS:,} × {COLUMNS}", agreement[name]),
            Line(f"F ÷ ten starts on all, {name}", f"{CLIENTS:,} × {COLUMNS}", risen[name]),
        )
    ]


def _f(points: np.ndarray, weight: np.ndarray, labels: np.ndarray) -> float:
    """Σ_i λ_i ‖g_i − G_{r_i}‖², with G the weighted means."""
    total = 0.0
    for k in np.unique(labels):
        own = labels == k
        center = np.average(points[own], axis=0, weights=weight[own])
        total += float(weight[own] @ ((points[own] - center) ** 2).sum(axis=1))
    return total


if __name__ == "__main__":
    main(lines)
