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

from wecfl import Federation, Plan

Modules = list[nn.Module]


def twin(
    name: str, fed: Federation, inits: Modules, plan: Plan, *, rounds: int, seed: int, mu: float
) -> tuple[list[int], Modules]:
    """Run the named method with K = len(inits) clusters; the labels and the clients' models."""
    m, ifca = len(fed), name == "ifca"
    centers = [deepcopy(inits[j if ifca else 0]) for j in range(len(inits))]
    labels = [least_loss(centers, fed, i) if ifca else 0 for i in range(m)]
    clients = [deepcopy(centers[labels[i]]) for i in range(m)]
    sgd = partial(torch.optim.SGD, lr=float(plan.lr), momentum=plan.momentum)
    optimizers = [sgd(client.parameters()) for client in clients]
    for t in range(rounds):
        for i in range(m):
            batches = plan.batches(len(fed.train[i]), seed, t, i)
            local_update(clients[i], optimizers[i], fed, [fed.train[i][b] for b in batches], mu)
        if name in ("wecfl", "fesem"):
            labels = kmeans(clients, len(centers), fed.sizes if name == "wecfl" else None)
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
    client: nn.Module, optimizer: Any, fed: Federation, batches: Any, mu: float
) -> None:
    received = deepcopy(client)
    client.train()
    for rows in batches:
        loss = cross_entropy(client(torch.from_numpy(fed.x[rows])), torch.from_numpy(fed.y[rows]))
        for w, anchor in zip(client.parameters(), received.parameters(), strict=True):
            loss = loss + mu / 2 * ((w - anchor.detach()) ** 2).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def kmeans(clients: Modules, k: int, sizes: Any) -> list[int]:
    heads = [[part for part in c.modules() if isinstance(part, nn.Linear)][-1] for c in clients]
    points = np.stack([head.weight.detach().numpy().ravel() for head in heads])
    found = KMeans(k, n_init=10, random_state=0).fit(points.astype(np.float64), sample_weight=sizes)
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
