"""Naive twins of methods with a model for each cluster: plain loops, as in `twins.py`.

They share with the library the order of the mini-batches and the numbers that are drawn. K-means
is the best of all assignments, found by trying every one of them.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
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


def best_partition(points: dict[int, Any], k: int, weights: Any = None) -> dict[int, int]:
    """K-means by trying all assignments; by default the points count alike."""
    clients = sorted(points)
    counts = np.array([1.0 if weights is None else weights[i] for i in clients])

    def inertia(labels: Any) -> float:
        total = 0.0
        for c in set(labels):
            which = [n for n, at in enumerate(labels) if at == c]
            inside, count = np.stack([points[clients[n]] for n in which]), counts[which]
            middle = np.average(inside, axis=0, weights=count)
            total += float(count @ ((inside - middle) ** 2).sum(axis=1))
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


# ── several models for each client ───────────────────────────────────────────────────────────────


class Mixtures(NamedTuple):
    """What there is after the last round."""

    centers: Modules
    weights: list[list[float]]
    """π or u of each client; empty for a client that was never there."""
    models: Modules
    """The client's own model, if the method has any."""


def by_hand(
    model: nn.Module, velocity: Named, inputs: Inputs, batches: Any, slope: Callable[[Any], Any]
) -> None:
    """Steps of SGD on the loss `slope(rows)` of each batch."""
    model.train()
    for chosen in batches:
        params = trainable(model)
        gradients = torch.autograd.grad(slope(torch.from_numpy(chosen)), list(params.values()))
        with torch.no_grad():
            for (name, w), gradient in zip(params.items(), gradients, strict=True):
                g = gradient + inputs.weight_decay * w
                velocity[name] = inputs.momentum * velocity.get(name, 0.0) + g
                w.sub_(inputs.lr * velocity[name])


def answers(model: nn.Module, x: Any) -> Any:
    """The outputs of a model in evaluation, without a gradient."""
    with torch.no_grad():
        return deepcopy(model).eval()(x)


def weighted_loss(model: nn.Module, x: Any, y: Any, weight: Any, rows: Any) -> Any:
    """The sum of q_s·loss_s over a batch, divided by the number of its samples."""
    each = cross_entropy(model(x[rows]), y[rows], reduction="none")
    return (weight[rows] * each).sum() / len(rows)


def tied_loss(model: nn.Module, client: Any, ties: Any, bias: Any, rows: Any) -> Any:
    """The loss with a bias, and mu/2·‖w − anchor‖² for each tie (mu, anchor)."""
    x, y = client
    found = cross_entropy(model(x[rows]) + bias[rows], y[rows])
    for mu, anchor in ties:
        for name, w in trainable(model).items():
            found = found + mu / 2 * ((w - tensors(anchor)[name].detach()) ** 2).sum()
    return found


def fedem(inputs: Inputs, starts: Modules, *, priors: bool = False) -> Mixtures:
    """Marfoq et al. 2021, sample by sample; with `priors` Guo et al. 2024 (FedRC)."""
    k, m = len(starts), len(inputs.clients)
    centers = [deepcopy(start) for start in starts]
    pi: list[list[float]] = [[] for _ in range(m)]
    velocity: list[list[Named]] = [[{} for _ in range(k)] for _ in range(m)]
    classes = answers(centers[0], inputs.clients[0][0]).shape[1]
    prior = np.full((k, classes), 1 / classes)
    for t in range(inputs.rounds):
        replies: list[dict[int, nn.Module]] = [{} for _ in range(k)]
        counts = np.ones((k, classes))
        for i in inputs.here(t):
            x, y = inputs.clients[i]
            old = pi[i] or [1 / k] * k
            losses = [cross_entropy(answers(c, x), y, reduction="none").numpy() for c in centers]
            q = np.zeros((len(y), k))
            for s in range(len(y)):
                for j in range(k):
                    q[s, j] = old[j] * np.exp(-losses[j][s])
                    if priors:
                        q[s, j] /= prior[j, y[s]]
                q[s] /= q[s].sum()
                for j in range(k):
                    counts[j, y[s]] += q[s, j]
            pi[i] = q.mean(axis=0).tolist()
            for j in range(k):
                model, weight = deepcopy(centers[j]), torch.tensor(q[:, j])

                slope = partial(weighted_loss, model, x, y, weight)
                by_hand(model, velocity[i][j], inputs, inputs.batches(i, t), slope)
                replies[j][i] = model
        for j in range(k):
            if replies[j]:
                load(centers[j], mean(inputs, replies[j]))
        prior = counts / counts.sum(axis=1, keepdims=True)
    return Mixtures(centers, pi, [])


def fedsoft(inputs: Inputs, starts: Modules, *, mu: float, interval: int) -> Mixtures:
    """Ruan and Joe-Wong 2022; centers are means by u_ik·|D_i| in the place of drawn clients."""
    k, m = len(starts), len(inputs.clients)
    centers = [deepcopy(start) for start in starts]
    shares: list[list[float]] = [[] for _ in range(m)]
    models: list[Any] = [None] * m
    velocity: list[Named] = [{} for _ in range(m)]
    labels: dict[int, int] = {}
    for t in range(inputs.rounds):
        start = received(centers, labels, inputs)
        for i in inputs.here(t):
            x, y = inputs.clients[i]
            if models[i] is None:
                models[i] = deepcopy(start)
            if t % interval == 0 or not shares[i]:
                losses = np.stack(
                    [cross_entropy(answers(c, x), y, reduction="none").numpy() for c in centers]
                )
                counted = [max((losses.argmin(axis=0) == j).mean(), 1e-4) for j in range(k)]
                shares[i] = [float(u / sum(counted)) for u in counted]
            ties = [(mu * u, center) for u, center in zip(shares[i], centers, strict=True)]
            none = torch.zeros(len(y), 1, dtype=x.dtype)
            slope = partial(tied_loss, models[i], (x, y), ties, none)
            by_hand(models[i], velocity[i], inputs, inputs.batches(i, t), slope)
        here = inputs.here(t)
        # A client that comes late first joins a cluster that has clients.
        inhabited = sorted(set(labels.values())) or range(k)
        found = {i: range(k) if i in labels or not labels else inhabited for i in here}
        labels |= {i: max(found[i], key=lambda j: shares[i][j]) for i in here}
        for j in range(k):
            odds = [shares[i][j] * size(inputs, i) for i in here]
            if here:
                load(
                    centers[j],
                    weighted([models[i] for i in here], [odd / sum(odds) for odd in odds]),
                )
    return Mixtures(centers, shares, models)


def received(centers: Modules, labels: dict[int, int], inputs: Inputs) -> nn.Module:
    """The first center; if others were there before, the mean of all centers by their clients."""
    model = deepcopy(centers[0])
    if labels:
        inside = [
            sum(size(inputs, i) for i, label in labels.items() if label == j)
            for j in range(len(centers))
        ]
        load(model, weighted(centers, [count / sum(inside) for count in inside]))
    return model


def cam(inputs: Inputs, k: int, *, mu: float, head: str) -> Clustered:
    """Ma et al. 2023 with WeCFL's clustering, for clients that are all there if k > 1.

    The common model is the last one of `centers`.
    """
    common = deepcopy(inputs.module)
    centers = [deepcopy(inputs.module) for _ in range(k)]
    labels, m = [0] * len(inputs.clients), len(inputs.clients)
    one: list[Named] = [{} for _ in range(m)]
    two: list[Named] = [{} for _ in range(m)]
    for t in range(inputs.rounds):
        alls, owns = {}, {}
        for i in inputs.here(t):
            x, _ = inputs.clients[i]
            center = centers[labels[i]]
            fixed = {"all": answers(common, x), "own": answers(center, x)}
            alls[i], owns[i] = deepcopy(common), deepcopy(center)

            ties = [(mu, deepcopy(center))]
            of_all = partial(tied_loss, alls[i], inputs.clients[i], [], fixed["own"])
            of_own = partial(tied_loss, owns[i], inputs.clients[i], ties, fixed["all"])
            by_hand(alls[i], one[i], inputs, inputs.batches(i, t), of_all)
            by_hand(owns[i], two[i], inputs, inputs.batches(i, t), of_own)
        if k > 1:
            points = {i: tensors(own)[head].detach().numpy().ravel() for i, own in owns.items()}
            sizes = [size(inputs, i) for i in range(m)]
            found = best_partition(points, k, sizes)
            labels = [found[i] for i in range(m)]
        averaged(inputs, centers, owns, labels)
        if alls:
            load(common, mean(inputs, alls))
    return Clustered([*centers, common], labels)
