"""Naive twins of more methods that give each client a model of its own (the first are in `twins`).

The same loops over deep-copied modules. What a library approximates is exact here: products with a
Hessian are by torch's second derivatives.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import torch
from torch import nn

from twins import (
    Batches,
    Buffers,
    Inputs,
    Named,
    Outcome,
    copies,
    load,
    mean,
    sgd,
    tensors,
    trainable,
)


def adapted(inputs: Inputs, model: nn.Module, i: int, batches: Batches, rate: float) -> nn.Module:
    """A copy of the model after a plain step of this length on each batch."""
    own = deepcopy(model)
    sgd(own, {}, replace(inputs, lr=rate), i, batches, momentum=0)
    return own


def hessian_product(
    inputs: Inputs, model: nn.Module, i: int, batches: Batches, vector: Named
) -> Named:
    """∇²L·v on one batch; the weight decay is part of L."""
    x, y = inputs.clients[i]
    rows, own = torch.from_numpy(batches[0]), deepcopy(model).train()
    params = trainable(own)
    loss = inputs.loss(own(x[rows]), y[rows])
    loss = loss + inputs.weight_decay / 2 * sum((w**2).sum() for w in params.values())
    gradients = torch.autograd.grad(loss, list(params.values()), create_graph=True)
    along = [vector[name] for name in params]
    found = torch.autograd.grad(gradients, list(params.values()), grad_outputs=along)
    return {name: h.detach() for name, h in zip(params, found, strict=True)}


def gradient(inputs: Inputs, model: nn.Module, i: int, batches: Batches) -> Named:
    """∇L on one batch; the weight decay is part of L."""
    after = adapted(inputs, model, i, batches, 1.0)
    return {name: (w - trainable(after)[name]).detach() for name, w in trainable(model).items()}


def moved(model: nn.Module, start: nn.Module, end: nn.Module) -> None:
    """Move a model by the way from one to another, and give it the latter's statistics."""
    found = dict(tensors(end))
    for name, w in trainable(model).items():
        found[name] = (w + trainable(end)[name] - trainable(start)[name]).detach()
    load(model, found)


def tuned(
    inputs: Inputs, center: nn.Module, batches: Callable[[int], Batches], rate: float
) -> Outcome:
    """Every client adapts the server's model by plain steps of this length."""
    own = range(len(inputs.clients))
    return Outcome(center, [adapted(inputs, center, i, batches(i), rate) for i in own])


def per_fedavg(
    inputs: Inputs,
    serving: Callable[[int], Batches],
    *,
    inner_lr: float = 0.01,
    hessian: bool = False,
) -> Outcome:
    """Fallah et al. 2020: w ← w − lr·(I − a·∇²L(w; C))·∇L(w − a·∇L(w; A); B).

    A step takes the batches A, B, or A, C, B; one that is not complete is not taken. In the end
    every client adapts the server's model by a step of length a on the batch `serving(i)`.
    """
    center, buffers, taken = deepcopy(inputs.module), Buffers(inputs), 3 if hessian else 2
    for t in range(inputs.rounds):
        models = {i: deepcopy(center) for i in inputs.here(t)}
        for i, model in models.items():
            batches, velocity = inputs.batches(i, t), buffers.of(i)
            for q in range(0, len(batches) - taken + 1, taken):
                own = adapted(inputs, model, i, batches[q : q + 1], inner_lr)
                last = batches[q + taken - 1 : q + taken]
                offset = None
                if hessian:
                    ahead = gradient(inputs, own, i, last)
                    bent = hessian_product(inputs, model, i, batches[q + 1 : q + 2], ahead)
                    offset = {name: -inner_lr * h for name, h in bent.items()}
                after = deepcopy(own)
                sgd(after, velocity, inputs, i, last, offset=offset)
                moved(model, own, after)
        if models:
            load(center, mean(inputs, models))
    return tuned(inputs, center, serving, inner_lr)


def pfedme(
    inputs: Inputs, *, lam: float, inner_steps: int, inner_lr: float, beta: float = 1.0
) -> Outcome:
    """Dinh et al. 2020: θ ≈ argmin L(θ; batch) + lam/2·‖θ − w‖², w ← w − lr·lam·(w − θ).

    θ starts as the model received, and goes on from batch to batch. The server takes
    Ω ← (1 − beta)·Ω + beta·mean; BatchNorm's statistics are averaged.
    """
    center, models = deepcopy(inputs.module), copies(inputs.module, inputs)
    met: set[int] = set()
    for t in range(inputs.rounds):
        trained: dict[int, nn.Module] = {}
        for i in inputs.here(t):
            w, theta = deepcopy(center), deepcopy(center)
            for chosen in inputs.batches(i, t):
                anchor = {name: tensor.detach().clone() for name, tensor in tensors(w).items()}
                repeated = [chosen] * inner_steps
                how = replace(inputs, lr=inner_lr)
                sgd(theta, {}, how, i, repeated, momentum=0, lam=lam, anchor=anchor)
                found = dict(tensors(theta))
                for name, value in trainable(w).items():
                    gap = value - trainable(theta)[name]
                    found[name] = (value - inputs.lr * lam * gap).detach()
                load(w, found)
            trained[i], models[i] = w, theta
            met.add(i)
        if trained:
            found = mean(inputs, trained)
            for name, value in trainable(center).items():
                found[name] = ((1 - beta) * value + beta * found[name]).detach()
            load(center, found)
    return Outcome(
        center, [models[i] if i in met else deepcopy(center) for i in range(len(models))]
    )
