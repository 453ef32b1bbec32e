"""Naive twins of methods with a model for each cluster: plain loops, as in `twins.py`.

They share with the library the order of the mini-batches and the numbers that are drawn. K-means
is the best of all assignments, found by trying every one of them.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from twins import Buffers, Inputs, Named, load, mean, sgd, tensors, trainable

Modules = list[nn.Module]
Draws = Callable[[str, int], Any]
"""(m,), a number in [0, 1) of each client, for a purpose and a round."""


class Clustered(NamedTuple):
    """What there is after the last round."""

    centers: Modules
    labels: list[int]

    @property
    def models(self) -> Modules:
        return [self.centers[label] for label in self.labels]


def size(inputs: Inputs, i: int) -> int:
    return len(inputs.clients[i][1])


def loss(model: nn.Module, inputs: Inputs, i: int) -> float:
    """L(Ω, D_i), in evaluation."""
    x, y = inputs.clients[i]
    with torch.no_grad():
        return float(cross_entropy(deepcopy(model).eval()(x), y))


def all_models(inputs: Inputs, starts: Modules, t: int, labels: list[int], buffers: Buffers) -> Any:
    """What the clients of round t make of the models of their clusters."""
    models = {i: deepcopy(starts[labels[i]]) for i in inputs.here(t)}
    for i, model in models.items():
        sgd(model, buffers.of(i), inputs, i, inputs.batches(i, t))
    return models


def trial(inputs: Inputs, steps: int) -> dict[int, nn.Module]:
    """What the clients of the first round make of the initial model, in so many steps."""
    models = {i: deepcopy(inputs.module) for i in inputs.here(0)}
    longer = replace(inputs, steps=steps, done=None if steps != inputs.steps else inputs.done)
    for i, model in models.items():
        sgd(model, {}, inputs, i, longer.batches(i, 0))
    return models


def averaged(inputs: Inputs, centers: Modules, models: dict[int, nn.Module], labels: Any) -> None:
    for k, center in enumerate(centers):
        if members := {i: model for i, model in models.items() if labels[i] == k}:
            load(center, mean(inputs, members))


# ── losses ───────────────────────────────────────────────────────────────────────────────────────

Choose = Callable[[Modules, list[int]], dict[int, int]]
"""The model of each of these clients."""


def by_losses(
    inputs: Inputs, centers: Modules, choose: Choose, common: frozenset[str] = frozenset()
) -> Clustered:
    """Clients choose, train, are averaged, and those of the next round choose again.

    The tensors in `common` are averaged over all clients.
    """
    labels, buffers = [0] * len(inputs.clients), Buffers(inputs)
    for t in range(inputs.rounds + 1):
        for i, label in choose(centers, inputs.here(t)).items():
            labels[i] = label
        if t == inputs.rounds:
            break
        models = all_models(inputs, centers, t, labels, buffers)
        averaged(inputs, centers, models, labels)
        if common and models:
            body = {name: w for name, w in mean(inputs, models).items() if name in common}
            for center in centers:
                load(center, body)
    return Clustered(centers, labels)


def ifca_plus(
    inputs: Inputs, k: int, draws: Draws, *, restarts: int, common: set[str]
) -> Clustered:
    """The start by k-means++ on losses, and then IFCA."""
    models = trial(inputs, inputs.steps)
    body = {name: w for name, w in mean(inputs, models).items() if name in common}
    for model in models.values():
        load(model, body)
    best: tuple[float, list[int]] = (np.inf, [])
    for r in range(restarts):
        chosen: list[int] = []
        for j in range(k):
            times = {}
            for i in set(models) - set(chosen):
                near = min((loss(models[c], inputs, i) for c in chosen), default=1.0)
                times[i] = -np.log(1 - draws(f"spread {r} {j}", 0)[i]) / (near * size(inputs, i))
            chosen.append(min(times, key=lambda i: times[i]))
        total = sum(
            size(inputs, i) * min(loss(models[c], inputs, i) for c in chosen) for i in models
        )
        best = min(best, (total, chosen))
    centers = [deepcopy(models[i]) for i in best[1]]

    def choose(centers: Modules, here: list[int]) -> dict[int, int]:
        return {i: int(np.argmin([loss(c, inputs, i) for c in centers])) for i in here}

    return by_losses(inputs, centers, choose, frozenset(common))


def best_partition(points: dict[int, Any], k: int) -> dict[int, int]:
    """K-means by trying all assignments; the points count alike."""
    clients = sorted(points)

    def inertia(labels: Any) -> float:
        total = 0.0
        for c in set(labels):
            inside = np.stack([points[i] for i, at in zip(clients, labels, strict=True) if at == c])
            total += float(((inside - inside.mean(axis=0)) ** 2).sum())
        return total

    assignments = product(range(k), repeat=len(clients))
    return dict(zip(clients, min(assignments, key=inertia), strict=True))


def clove(inputs: Inputs, starts: Modules) -> Clustered:
    """Loss vectors, K-means, and the one-to-one matching of the least summed loss."""

    def choose(centers: Modules, here: list[int]) -> dict[int, int]:
        if not here:
            return {}
        vectors = {i: np.array([loss(c, inputs, i) for c in centers]) for i in here}
        found = best_partition(vectors, len(centers))
        used = sorted(set(found.values()))
        best = min(
            permutations(range(len(centers)), len(used)),
            key=lambda order: sum(vectors[i][order[used.index(found[i])]] for i in here),
        )
        return {i: best[used.index(found[i])] for i in here}

    return by_losses(inputs, [deepcopy(start) for start in starts], choose)


# ── once ─────────────────────────────────────────────────────────────────────────────────────────


def one_shot(inputs: Inputs, k: int, *, steps: int) -> Clustered:
    """Local models, K-means once, then FedAvg in each cluster.

    A client that comes later is sent the mean of all centers, each with the number of its clients
    as weight, and then joins the nearest center.
    """
    models = trial(inputs, steps)
    found = best_partition({i: parameters(model) for i, model in models.items()}, k)
    labels = [found.get(i, 0) for i in range(len(inputs.clients))]
    met, buffers = set(models), Buffers(inputs)
    centers = [deepcopy(inputs.module) for _ in range(k)]
    averaged(inputs, centers, models, labels)
    for t in range(inputs.rounds):
        shares = [sum(labels[i] == c for i in met) / len(met) for c in range(k)]
        stranger = deepcopy(inputs.module)
        load(stranger, weighted(centers, shares))
        starts = {i: centers[labels[i]] if i in met else stranger for i in inputs.here(t)}
        trained = {i: deepcopy(start) for i, start in starts.items()}
        for i, model in trained.items():
            sgd(model, buffers.of(i), inputs, i, inputs.batches(i, t))
        used = sorted({labels[i] for i in met})
        for i in set(trained) - met:
            far = [np.linalg.norm(parameters(trained[i]) - parameters(centers[c])) for c in used]
            labels[i] = used[int(np.argmin(far))]
        met |= set(trained)
        averaged(inputs, centers, trained, labels)
    return Clustered(centers, labels)


def parameters(model: nn.Module) -> Any:
    """What is trained, in one row."""
    return np.concatenate([w.detach().numpy().ravel() for w in trainable(model).values()])


def weighted(models: Modules, shares: Sequence[float]) -> Named:
    """Σ_k share_k Ω_k."""
    return {
        name: torch.stack(
            [tensors(m)[name].detach() * share for m, share in zip(models, shares, strict=True)]
        ).sum(dim=0)
        for name in tensors(models[0])
    }


# ── peers ────────────────────────────────────────────────────────────────────────────────────────


def fedp2p(inputs: Inputs, groups: int, draws: Draws) -> Clustered:
    """Groups of peers are averaged by size, and the groups' means plainly."""
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    for t in range(inputs.rounds):
        models = all_models(inputs, [center], t, [0] * len(inputs.clients), buffers)
        order = sorted(models, key=lambda i: draws("peers", t)[i])
        parts = [order[g::groups] for g in range(groups) if order[g::groups]]
        means = []
        for part in parts:
            means.append(deepcopy(inputs.module))
            load(means[-1], mean(inputs, {i: models[i] for i in part}))
        load(center, weighted(means, [1 / len(means)] * len(means)))
    return Clustered([center], [0] * len(inputs.clients))
