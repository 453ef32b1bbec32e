"""Naive twins of more methods that learn one model (the first are in `twins`)."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from personal_twins import features
from twins import Buffers, Inputs, Named, Outcome, copies, load, mean, replies, sgd, trainable


def fednova(inputs: Inputs) -> Outcome:
    """Wang et al. 2020: Ω ← Ω − (Σ p_i a_i)·Σ p_i d_i with d_i = (Ω − ω_i) / a_i.

    a_i is the sum of the weights that the gradients of the round have in ω_i: for each gradient,
    how often its momentum is still applied. Buffers start from zero.
    """
    assert not inputs.keep_momentum
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    for t in range(inputs.rounds):
        models = replies(inputs, t, center, buffers)
        if not models:
            continue
        efforts = {}
        for i in models:
            taken = len(inputs.batches(i, t))
            applied = [sum(inputs.momentum**j for j in range(taken - q)) for q in range(taken)]
            efforts[i] = sum(applied)
        sizes = {i: len(inputs.clients[i][1]) for i in models}
        share = {i: n / sum(sizes.values()) for i, n in sizes.items()}
        long = sum(share[i] * efforts[i] for i in models)
        found = mean(inputs, models)
        for name, w in trainable(center).items():
            gaps = [share[i] * (w - trainable(models[i])[name]) / efforts[i] for i in models]
            found[name] = (w - long * torch.stack(gaps).sum(dim=0)).detach()
        load(center, found)
    return Outcome(center, copies(center, inputs))


def feddyn(inputs: Inputs, *, alpha: float) -> Outcome:
    """Acar et al. 2021, algorithm 1, with h kept as a sum of its own, and λ as weights."""
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    zero = {name: torch.zeros_like(w) for name, w in trainable(center).items()}
    h, own = dict(zero), [dict(zero) for _ in inputs.clients]
    sizes = [len(y) for _, y in inputs.clients]
    for t in range(inputs.rounds):
        models = {i: deepcopy(center) for i in inputs.here(t)}
        received = {name: w.detach().clone() for name, w in trainable(center).items()}
        for i, model in models.items():
            offset = {name: -g for name, g in own[i].items()}
            sgd(
                model, buffers.of(i), inputs, i, inputs.batches(i, t), offset=offset, lam=alpha,
                anchor=received,
            )  # fmt: skip
            for name, w in trainable(model).items():
                gap = (w - received[name]).detach()
                own[i][name] = own[i][name] - alpha * gap
                h[name] = h[name] - alpha * sizes[i] / sum(sizes) * gap
        if models:
            found = mean(inputs, models)
            load(center, found | {name: found[name] - h[name] / alpha for name in h})
    return Outcome(center, copies(center, inputs))


def fedatt(inputs: Inputs, *, step: float) -> Outcome:
    """Ji et al. 2019: Ω ← Ω − step·Σ a_i (Ω − ω_i) with a = softmax(‖Ω − ω_i‖), per tensor."""
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    for t in range(inputs.rounds):
        if models := replies(inputs, t, center, buffers):
            found = mean(inputs, models)
            for name, w in trainable(center).items():
                gaps = torch.stack([w - trainable(model)[name] for model in models.values()])
                far = torch.softmax(gaps.flatten(1).norm(dim=1), dim=0)
                found[name] = (w - step * torch.einsum("i,i...->...", far, gaps)).detach()
            load(center, found)
    return Outcome(center, copies(center, inputs))


def whole_gradient(inputs: Inputs, model: nn.Module, i: int) -> Named:
    """∇L on all data of a client, with the running statistics of BatchNorm."""
    x, y = inputs.clients[i]
    own = deepcopy(model).eval()
    params = trainable(own)
    found = torch.autograd.grad(inputs.loss(own(x), y), list(params.values()))
    return dict(zip(params, found, strict=True))


def feddane(inputs: Inputs, first: Sequence[set[int]], *, mu: float) -> Outcome:
    """Li et al. 2019: the clients `first[t]` send gradients, those of round t train."""
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    for t in range(inputs.rounds):
        sizes = {i: len(inputs.clients[i][1]) for i in first[t]}
        g: dict[str, Tensor] = {}
        for i, n in sizes.items():
            for name, gradient in whole_gradient(inputs, center, i).items():
                g[name] = g.get(name, 0.0) + n / sum(sizes.values()) * gradient
        models = {i: deepcopy(center) for i in inputs.here(t)}
        received = {name: w.detach().clone() for name, w in trainable(center).items()}
        for i, model in models.items():
            offset = {
                name: g[name] - gradient
                for name, gradient in whole_gradient(inputs, center, i).items()
            }
            sgd(
                model, buffers.of(i), inputs, i, inputs.batches(i, t), offset=offset, lam=mu,
                anchor=received,
            )  # fmt: skip
        if models:
            load(center, mean(inputs, models))
    return Outcome(center, copies(center, inputs))


def moon(inputs: Inputs, *, mu: float, temperature: float) -> Outcome:
    """Li, He, Song 2021: features like those of the common model, unlike those of the last one.

    A client that is met for the first time has the model received for its last one.
    """
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    last: dict[int, nn.Module] = {}
    for t in range(inputs.rounds):
        models = {i: deepcopy(center) for i in inputs.here(t)}
        for i, own in models.items():
            x, y = inputs.clients[i]
            common, before = deepcopy(center).eval(), last.get(i, center).eval()

            def loss_of(
                model: nn.Module, rows: Tensor, x: Tensor = x, y: Tensor = y,
                others: tuple[nn.Module, nn.Module] = (common, before),
            ) -> Tensor:  # fmt: skip
                z = features(model, x[rows])
                assert isinstance(model, nn.Sequential)
                near, far = (
                    (cosine_similarity(z, features(other, x[rows]).detach()) / temperature).exp()
                    for other in others
                )
                return inputs.loss(model[-1](z), y[rows]) - mu * (near / (near + far)).log().mean()

            sgd(own, buffers.of(i), inputs, i, inputs.batches(i, t), loss_of=loss_of)
            last[i] = deepcopy(own)
        if models:
            load(center, mean(inputs, models))
    return Outcome(center, copies(center, inputs))
