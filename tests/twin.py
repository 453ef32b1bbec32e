"""A naive twin of Algorithm 1: plain loops over deep-copied modules, no rows, no engine.

It shares with the library only what is data: clients, initial modules, batch order."""

from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import nn
from torch.nn.functional import cross_entropy

from wecfl import Federation
from wecfl.core.plan import LocalPlan

Modules = list[nn.Module]


def twin(
    name: str,
    fed: Federation,
    inits: Modules,
    plan: LocalPlan,
    *,
    rounds: int,
    seed: int,
    mu: float,
    common: bool = False,
    eps: tuple[float, float] = (0.0, 0.0),
) -> tuple[list[int], Modules]:
    """Run the named method from K = len(inits) clusters; the labels and the clients' models.

    With `common`, mu pulls every client towards the mean of all clients.
    """
    m, ifca = len(fed), name == "ifca"
    centers = [deepcopy(inits[j if ifca else 0]) for j in range(len(inits))]
    labels = [least_loss(centers, fed, i) if ifca else 0 for i in range(m)]
    clients = [deepcopy(centers[labels[i]]) for i in range(m)]
    sgd = partial(torch.optim.SGD, lr=float(plan.lr), momentum=plan.momentum)
    optimizers = [sgd(client.parameters()) for client in clients]
    for t in range(rounds):
        everybody = deepcopy(clients[0])
        average(everybody, clients, list(fed.sizes))
        for i in range(m):
            batches = plan.batches(len(fed.train[i]), seed, t, i)
            anchor = everybody if common else deepcopy(clients[i])
            rows = [fed.train[i][b] for b in batches]
            local_update(clients[i], optimizers[i], fed, rows, mu=mu, pull_to=anchor)
        if name in ("wecfl", "fesem"):
            labels = kmeans(clients, len(centers), fed.sizes if name == "wecfl" else None)
        updates = [head(clients[i]) - head(centers[labels[i]]) for i in range(m)]
        if name == "cfl":
            for k in range(len(centers)):
                members = [i for i in range(m) if labels[i] == k]
                moved = [part for part in cfl(members, updates, fed.sizes, *eps) if part]
                for i in moved[1] if len(moved) > 1 else []:
                    labels[i] = len(centers)
                centers += [deepcopy(centers[k])] * (len(moved) - 1)
        if name == "flhc" and t == 0:
            labels = flhc(updates, distance=0.5)
            centers = [deepcopy(centers[0]) for _ in range(max(labels) + 1)]
        for k in range(len(centers)):
            members = [i for i in range(m) if labels[i] == k]
            if members:
                average(centers[k], [clients[i] for i in members], [fed.sizes[i] for i in members])
        if ifca:
            labels = [least_loss(centers, fed, i) for i in range(m)]
        for i in range(m):
            clients[i].load_state_dict(centers[labels[i]].state_dict())
    return labels, clients


def local_update(
    client: nn.Module,
    optimizer: Any,
    fed: Federation,
    batches: Any,
    *,
    mu: float,
    pull_to: nn.Module,
) -> None:
    client.train()
    for rows in batches:
        loss = cross_entropy(client(torch.from_numpy(fed.x[rows])), torch.from_numpy(fed.y[rows]))
        for w, anchor in zip(client.parameters(), pull_to.parameters(), strict=True):
            loss = loss + mu / 2 * ((w - anchor.detach()) ** 2).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def cfl(
    members: list[int], updates: list[Any], sizes: Any, eps1: float, eps2: float
) -> list[list[int]]:
    """The cluster, or its two parts: Sattler et al.'s Algorithm 1, by merging likest pairs."""
    total = sum(sizes[i] for i in members)
    mean = sum(updates[i] * sizes[i] / total for i in members)
    if np.linalg.norm(mean) >= eps1 or max(np.linalg.norm(updates[i]) for i in members) <= eps2:
        return [members]
    pairs = [(cosine(updates[i], updates[j]), i, j) for i in members for j in members if i < j]
    parts = [[i] for i in members]
    for _, i, j in sorted(pairs, reverse=True):
        one, two = (next(part for part in parts if client in part) for client in (i, j))
        if one is not two and len(parts) > 2:
            parts = [part for part in parts if part is not one and part is not two] + [one + two]
    return sorted(parts, key=lambda part: -sum(sizes[i] for i in part))


def flhc(updates: list[Any], distance: float) -> list[int]:
    """Merge the nearest two clusters, by the mean of 1 − cosine, while they are near enough."""
    parts = [[i] for i in range(len(updates))]
    while len(parts) > 1:
        far, a, b = min(
            (float(np.mean([1 - cosine(updates[i], updates[j]) for i in one for j in two])), a, b)
            for a, one in enumerate(parts)
            for b, two in enumerate(parts)
            if a < b
        )
        if far > distance:
            break
        parts[a] += parts.pop(b)
    return [next(k for k, part in enumerate(parts) if i in part) for i in range(len(updates))]


def cosine(one: Any, two: Any) -> float:
    return float(one @ two / np.linalg.norm(one) / np.linalg.norm(two))


def head(client: nn.Module) -> Any:
    last = [part for part in client.modules() if isinstance(part, nn.Linear)][-1]
    return last.weight.detach().numpy().ravel().astype(np.float64)


def kmeans(clients: Modules, k: int, sizes: Any) -> list[int]:
    points = np.stack([head(client) for client in clients])
    found = KMeans(k, n_init=10, random_state=0).fit(points, sample_weight=sizes)
    return [int(label) for label in found.labels_]


def least_loss(centers: Modules, fed: Federation, i: int) -> int:
    x, y = torch.from_numpy(fed.x[fed.train[i]]), torch.from_numpy(fed.y[fed.train[i]])
    with torch.no_grad():
        return int(np.argmin([float(cross_entropy(center.eval()(x), y)) for center in centers]))


def average(center: nn.Module, models: Modules, weights: list[Any]) -> None:
    mean = {name: torch.zeros_like(tensor).float() for name, tensor in center.state_dict().items()}
    for model, weight in zip(models, weights, strict=True):
        for name, tensor in model.state_dict().items():
            mean[name] += tensor * (float(weight) / float(sum(weights)))
    center.load_state_dict(mean)
