"""Naive twins of methods that cluster clients by what these tell about their data.

Plain loops, as in `cluster_twins.py`. Principal angles are SciPy's, and a hierarchy compares every
pair of clients again for every pair of clusters.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.linalg import subspace_angles
from torch import nn

from cluster_twins import (
    Clustered,
    all_models,
    averaged,
    best_partition,
    parameters,
    weighted,
)
from twins import Buffers, Inputs, load, mean, sgd, tensors, trainable

Place = Callable[[int], int]
"""The cluster of a client that comes later."""


def by_clusters(inputs: Inputs, labels: dict[int, int], place: Place) -> Clustered:
    """FedAvg in each cluster, from the same start; clients that come later are placed first."""
    labels, buffers = dict(labels), Buffers(inputs)
    centers = [deepcopy(inputs.module) for _ in range(max(labels.values()) + 1)]
    for t in range(inputs.rounds):
        for i in inputs.here(t):
            if i not in labels:
                labels[i] = place(i)
        everyone = [labels.get(i, 0) for i in range(len(inputs.clients))]
        averaged(inputs, centers, all_models(inputs, centers, t, everyone, buffers), everyone)
    return Clustered(centers, [labels.get(i, 0) for i in range(len(inputs.clients))])


def merged(clients: list[int], apart: Callable[[int, int], float], limit: float) -> list[list[int]]:
    """Clusters are merged, the nearest first; their distance is the mean over all pairs."""
    clusters = [[i] for i in clients]
    while len(clusters) > 1:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a)]
        far = {
            (a, b): np.mean([apart(i, j) for i in clusters[a] for j in clusters[b]])
            for a, b in pairs
        }
        a, b = min(pairs, key=lambda pair: far[pair])
        if far[a, b] > limit:
            break
        clusters[b] += clusters.pop(a)
    return clusters


def middle(cluster: list[int], apart: Callable[[int, int], float], weight: Any) -> int:
    """The medoid."""
    return min(cluster, key=lambda i: sum(weight(j) * apart(i, j) for j in cluster))


def pacfl(inputs: Inputs, *, vectors: int, limit: float, total: bool = False) -> Clustered:
    """Vahidian et al. 2023, with true principal angles and average linkage by size."""
    spans = []
    for x, y in inputs.clients:
        parts = []
        for c in sorted(set(y.tolist())):
            columns = x[y == c].reshape(int((y == c).sum()), -1).T.numpy()
            parts.append(np.linalg.svd(columns)[0][:, : min(vectors, columns.shape[1])])
        spans.append(np.hstack(parts))

    def apart(i: int, j: int) -> float:
        found = np.degrees(subspace_angles(spans[i], spans[j]))
        return float(found.sum() if total else found.min())

    def weight(i: int) -> int:
        return len(inputs.clients[i][1])

    clusters = merged(inputs.here(0), apart, limit)
    labels = {i: k for k, cluster in enumerate(clusters) for i in cluster}
    middles = [middle(cluster, apart, weight) for cluster in clusters]
    return by_clusters(inputs, labels, lambda i: int(np.argmin([apart(i, mid) for mid in middles])))


# ── updates of the initial model ─────────────────────────────────────────────────────────────────


def trained_alone(inputs: Inputs, i: int, steps: int) -> nn.Module:
    """What client i makes of the initial model, on the batches of the first round."""
    model, longer = deepcopy(inputs.module), replace(inputs, steps=steps, done=None)
    sgd(model, {}, inputs, i, longer.batches(i, 0))
    return model


def update(inputs: Inputs, i: int, steps: int) -> Any:
    return parameters(trained_alone(inputs, i, steps)) - parameters(inputs.module)


def cos(a: Any, b: Any) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def fedgroup(inputs: Inputs, k: int, *, steps: int, rate: float = 0.0) -> Clustered:
    """Duan et al. 2022: TruncatedSVD of the updates, cosines to its directions, K-means."""
    first = inputs.here(0)
    updates = {i: update(inputs, i, steps) for i in first}
    directions = np.linalg.svd(np.stack([updates[i] for i in first]).T)[0][:, :k].T
    found = best_partition({i: np.array([cos(u, v) for v in directions])
                            for i, u in updates.items()}, k)  # fmt: skip
    labels, m = dict(found), len(inputs.clients)
    groups = sorted(set(found.values()))
    means = {g: np.mean([updates[i] for i in first if found[i] == g], axis=0) for g in groups}
    centers, buffers = [deepcopy(inputs.module) for _ in range(k)], Buffers(inputs)
    alone = {i: trained_alone(inputs, i, steps) for i in first}
    averaged(inputs, centers, alone, [labels.get(i, -1) for i in range(m)])
    for t in range(inputs.rounds):
        for i in set(inputs.here(t)) - set(labels):
            own = update(inputs, i, steps)
            labels[i] = max(groups, key=lambda g: cos(own, means[g]))
        everyone = [labels.get(i, -1) for i in range(m)]
        averaged(inputs, centers, all_models(inputs, centers, t, everyone, buffers), everyone)
        heard = sorted({labels[i] for i in inputs.here(t)})
        steps_along = {g: parameters(centers[g]) for g in heard}
        for g in heard:
            others = [row for h, row in steps_along.items() if h != g]
            along = sum(
                (row / np.linalg.norm(row) for row in others), np.zeros(len(steps_along[g]))
            )
            moved, at = steps_along[g] + rate * along, 0
            for w in trainable(centers[g]).values():
                w.data.copy_(torch.from_numpy(moved[at : at + w.numel()]).view_as(w))
                at += w.numel()
    return Clustered(centers, [labels.get(i, 0) for i in range(m)])


def stocfl(inputs: Inputs, *, tau: float, mu: float, steps: int) -> Clustered:
    """Zeng et al. 2023; the common model is trained by all clients from the same start."""
    m, sizes = len(inputs.clients), [len(y) for _, y in inputs.clients]
    clusters: list[list[int]] = []
    models: list[nn.Module] = []
    updates: dict[int, Any] = {}
    common, own, shared = deepcopy(inputs.module), Buffers(inputs), Buffers(inputs)

    def mean_update(cluster: list[int]) -> Any:
        return np.average(
            [updates[i] for i in cluster], axis=0, weights=[sizes[i] for i in cluster]
        )

    for t in range(inputs.rounds):
        start = deepcopy(inputs.module)
        if clusters:
            weight = np.array([sum(sizes[i] for i in cluster) for cluster in clusters])
            load(start, weighted(models, (weight / weight.sum()).tolist()))
        for i in [i for i in inputs.here(t) if i not in updates]:
            updates[i] = update(inputs, i, steps)
            clusters.append([i])
            models.append(deepcopy(start))
        while len(clusters) > 1:
            pairs = [(a, b) for b in range(len(clusters)) for a in range(b)]
            near = {(a, b): cos(mean_update(clusters[a]), mean_update(clusters[b]))
                    for a, b in pairs}  # fmt: skip
            a, b = max(pairs, key=lambda pair: near[pair])
            if near[a, b] < tau:
                break
            clusters[a] += clusters.pop(b)
            models.pop(b)
        labels = [next((k for k, c in enumerate(clusters) if i in c), -1) for i in range(m)]
        anchor = {name: w.detach().clone() for name, w in tensors(common).items()}
        theirs, replies = {}, {}
        for i in inputs.here(t):
            theirs[i], replies[i] = deepcopy(common), deepcopy(models[labels[i]])
            sgd(theirs[i], shared.of(i), inputs, i, inputs.batches(i, t))
            sgd(replies[i], own.of(i), inputs, i, inputs.batches(i, t), lam=mu, anchor=anchor)
        averaged(inputs, models, replies, labels)
        load(common, mean(inputs, theirs))
    return Clustered([*models, common], labels)


# ── local centers ────────────────────────────────────────────────────────────────────────────────


def k_fed(inputs: Inputs, k: int) -> Clustered:
    """Dennis et al. 2021 with one local cluster: the mean of a client's samples."""
    means = [x.reshape(len(x), -1).numpy().mean(axis=0) for x, _ in inputs.clients]

    def apart(a: Any, b: Any) -> float:
        return float(((a - b) ** 2).sum())

    here = inputs.here(0)
    chosen = [max(here, key=lambda i: len(inputs.clients[i][1]))]
    while len(chosen) < k:
        far = {i: min(apart(means[i], means[c]) for c in chosen) for i in here}
        chosen.append(max(here, key=lambda i: far[i]))
    labels = {i: int(np.argmin([apart(means[i], means[c]) for c in chosen])) for i in here}
    centers = [np.mean([means[i] for i in here if labels[i] == c], axis=0) for c in range(k)]
    return by_clusters(
        inputs, labels, lambda i: int(np.argmin([apart(means[i], center) for center in centers]))
    )
