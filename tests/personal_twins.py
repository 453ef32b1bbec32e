"""Naive twins of more methods that give each client a model of its own (the first are in `twins`).

The same loops over deep-copied modules. What a library approximates is exact here: products with a
Hessian are by torch's second derivatives.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

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
from wecfl import rng
from wecfl.core.plan import LocalPlan, validation_part


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


def fedbabu(inputs: Inputs, serving: Callable[[int], Batches], head: set[str]) -> Outcome:
    """Oh et al. 2022: only the body is trained and averaged; then all tensors are fine-tuned."""
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    body = set(tensors(center)) - head
    for t in range(inputs.rounds):
        models = {i: deepcopy(center) for i in inputs.here(t)}
        for i, model in models.items():
            sgd(model, buffers.of(i), inputs, i, inputs.batches(i, t), only=body)
        if models:
            found = mean(inputs, models)
            load(center, {name: found[name] for name in body})
    models = dict(enumerate(copies(center, inputs)))
    for i, model in models.items():
        sgd(model, {}, inputs, i, serving(i))
    return Outcome(center, list(models.values()))


def features(model: nn.Module, x: Tensor) -> Tensor:
    """What the last layer is given; the model is a sequence."""
    assert isinstance(model, nn.Sequential)
    found: Tensor = model[:-1](x)
    return found


class Protos(NamedTuple):
    """What there is after the last round of FedProto."""

    models: list[nn.Module]
    common: dict[int, Tensor]
    """The prototype of each class that some client has told about."""


def fedproto(inputs: Inputs, *, lam: float) -> Protos:
    """Tan et al. 2022: a model for each client, and mean features of classes that all share.

    The loss is the usual one + lam·mean ‖z − C_y‖² over the batch, where class y has a prototype.
    """
    models, buffers = copies(inputs.module, inputs), Buffers(inputs)
    common: dict[int, Tensor] = {}
    for t in range(inputs.rounds):
        told: dict[int, list[tuple[Tensor, int]]] = {}
        for i in inputs.here(t):
            x, y = inputs.clients[i]

            def loss_of(model: nn.Module, rows: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
                z = features(model, x[rows])
                assert isinstance(model, nn.Sequential)
                total = inputs.loss(model[-1](z), y[rows])
                for each, label in zip(z, y[rows].tolist(), strict=True):
                    if label in common:
                        total = total + lam * ((each - common[label]) ** 2).sum() / len(z)
                return total

            sgd(models[i], buffers.of(i), inputs, i, inputs.batches(i, t), loss_of=loss_of)
            z = features(models[i].eval(), x).detach()
            for label in sorted({*y.tolist()}):
                own = z[y == label]
                told.setdefault(label, []).append((own.mean(dim=0), len(own)))
        for label, means in told.items():
            weight = sum(n for _, n in means)
            common[label] = torch.stack([n / weight * mean for mean, n in means]).sum(dim=0)
    return Protos(models, common)


def nearest(found: Protos, i: int, x: Tensor) -> list[int]:
    """The class whose prototype is nearest, for each sample of client i."""
    labels = sorted(found.common)
    z = features(found.models[i].eval(), x).detach()
    far = torch.stack([((z - found.common[label]) ** 2).sum(dim=1) for label in labels])
    return [labels[int(k)] for k in far.argmin(dim=0)]


def pruned(
    inputs: Inputs, *, above: float, rate: float, target: float, channels: bool = False
) -> Outcome:
    """LotteryFL (Li et al. 2020), or with `channels` Hermes (Li et al. 2021).

    Every tensor has a mask of zeros and ones. A client whose model is accurate on its validation
    samples prunes its smallest weights and rewinds, before it trains; or its smallest channels,
    after it. Each entry of the server's tensors is the mean over those who have it.
    """
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    names, m = list(tensors(center)), len(inputs.clients)
    masks = [{name: torch.ones_like(w) for name, w in tensors(center).items()} for _ in range(m)]
    first: dict[int, nn.Module] = {}
    layers = [name for name, w in trainable(center).items() if w.ndim > 1]
    layers = layers[:-1] if channels else layers
    plan = LocalPlan(steps=inputs.steps, batch=inputs.batch, leave_validation=True)
    for t in range(inputs.rounds):
        models = {i: deepcopy(center) for i in inputs.here(t)}
        for i, model in models.items():
            first.setdefault(i, deepcopy(center))
            mask, (x, y) = masks[i], inputs.clients[i]
            load(model, {name: w * mask[name] for name, w in tensors(model).items()})
            _, held_out = validation_part(len(y), inputs.seed, inputs.keys[i])
            apart = x[torch.from_numpy(held_out)], y[torch.from_numpy(held_out)]
            if not channels and accurate(model, apart, mask, layers, above, target):
                drop_weights(model, mask, layers, rate)
                load(model, tensors(first[i]))
                buffers.kept[i].clear()
                load(model, {name: w * mask[name] for name, w in tensors(model).items()})
            every = plan.batches(len(y), inputs.seed, t, inputs.keys[i])
            for chosen in every if inputs.done is None else every[: inputs.done[i][t]]:
                sgd(model, buffers.of(i), inputs, i, [chosen])
                load(model, {name: w * mask[name] for name, w in tensors(model).items()})
            if channels and accurate(model, apart, mask, layers, above, target):
                drop_channels(model, mask, layers, rate)
                load(model, {name: w * mask[name] for name, w in tensors(model).items()})
        if models:
            sizes = {i: len(inputs.clients[i][1]) for i in models}
            found = {}
            for name in names:
                weight = torch.stack([sizes[i] * masks[i][name] for i in models]).sum(dim=0)
                parts = [sizes[i] * tensors(models[i])[name].detach() for i in models]
                total = torch.stack(parts).sum(dim=0)
                old = tensors(center)[name].detach()
                found[name] = torch.where(weight > 0, total / weight.clamp(min=1), old)
            load(center, found)
    served = copies(center, inputs)
    for model, mask in zip(served, masks, strict=True):
        load(model, {name: w * mask[name] for name, w in tensors(model).items()})
    return Outcome(center, served)


def accurate(  # noqa: PLR0917
    model: nn.Module, apart: tuple[Tensor, Tensor], mask: Named, layers: list[str], above: float,
    target: float,
) -> bool:  # fmt: skip
    """Whether a client prunes: its accuracy is high enough, and not too much is pruned yet."""
    right = model.eval()(apart[0]).argmax(dim=1) == apart[1]
    gone = sum(float((mask[name] == 0).sum()) for name in layers)
    share = gone / sum(mask[name].numel() for name in layers)
    return float(right.double().mean()) > above and share < target


def drop_weights(model: nn.Module, mask: Named, layers: list[str], rate: float) -> None:
    """Of all weights that are left, mask the smallest."""
    sizes = [
        (abs(float(w)), name, j)
        for name in layers
        for j, w in enumerate(tensors(model)[name].detach().flatten())
        if mask[name].flatten()[j] > 0
    ]
    for _, name, j in sorted(sizes)[: max(1, int(rate * len(sizes)))]:
        mask[name].view(-1)[j] = 0


def drop_channels(model: nn.Module, mask: Named, layers: list[str], rate: float) -> None:
    """In each layer, mask the channels with the smallest norms, and their biases."""
    for name in layers:
        left = [j for j, each in enumerate(mask[name]) if each.sum() > 0]
        lengths = sorted((float(tensors(model)[name][j].detach().norm()), j) for j in left)
        for _, j in lengths[: max(1, int(rate * len(left)))]:
            mask[name][j] = 0
            mask[name.replace("weight", "bias")][j] = 0


def mixture(model: nn.Module, other: nn.Module, share: float) -> Named:
    mixed = {name: share * w for name, w in tensors(model).items()}
    return {name: (w + (1 - share) * tensors(other)[name]).detach() for name, w in mixed.items()}


def apfl(inputs: Inputs, *, mixing: float, adaptive: bool = True) -> Outcome:
    """Deng et al. 2020: v̄ = a·v + (1 − a)·w; w, v and a take a step on each mini-batch.

    Momentum is that of the gradients at w, and at v̄. A client that was never met has the center.
    """
    center, own = deepcopy(inputs.module), copies(inputs.module, inputs)
    models, shares = copies(inputs.module, inputs), [mixing for _ in inputs.clients]
    common, personal = Buffers(inputs), Buffers(inputs)
    met: set[int] = set()
    for t in range(inputs.rounds):
        trained = {i: deepcopy(center) for i in inputs.here(t)}
        for i, w in trained.items():
            if i not in met:
                load(own[i], tensors(center))
                met.add(i)
            velocity, drift = common.of(i), personal.of(i)
            for chosen in inputs.batches(i, t):
                mixed, v = deepcopy(w), own[i]
                load(mixed, mixture(v, w, shares[i]))
                after = deepcopy(mixed)
                sgd(after, drift, inputs, i, [chosen])
                way = {
                    name: (end - trainable(mixed)[name]).detach()
                    for name, end in trainable(after).items()
                }
                slope = sum(
                    float((way[name] * (trainable(v)[name] - trainable(w)[name]).detach()).sum())
                    for name in way
                )
                sgd(w, velocity, inputs, i, [chosen])
                found = dict(tensors(after))
                for name, value in trainable(v).items():
                    found[name] = (value + shares[i] * way[name]).detach()
                load(v, found)
                if adaptive:
                    shares[i] = min(1.0, max(0.0, shares[i] + slope))
            load(models[i], mixture(own[i], w, shares[i]))
        if trained:
            load(center, mean(inputs, trained))
    return Outcome(center, [own if i in met else deepcopy(center) for i, own in enumerate(models)])


def fedmeta(
    inputs: Inputs,
    serving: Callable[[int], Batches],
    *,
    inner_steps: int,
    hessian: bool,
    eta: float,
    tau: float = 1e-3,
) -> Outcome:
    """Chen et al. 2018: MAML's gradient of the query loss, and an Adam step of the server.

    As in `twins.fedadam`, without bias correction, with β = (0.9, 0.99).
    """
    center = deepcopy(inputs.module)
    m: Named = {}
    v: Named = {}
    for t in range(inputs.rounds):
        replied: dict[int, nn.Module] = {}
        for i in inputs.here(t):
            batches = inputs.batches(i, t)
            trail = [center]
            for chosen in batches[:inner_steps]:
                trail.append(adapted(inputs, trail[-1], i, [chosen], inputs.lr))
            g = {name: torch.zeros_like(w) for name, w in trainable(center).items()}
            query = batches[inner_steps:]
            for chosen in query:
                for name, each in gradient(inputs, trail[-1], i, [chosen]).items():
                    g[name] = g[name] + each / len(query)
            for chosen, before in reversed(list(zip(batches[:inner_steps], trail, strict=False))):
                if hessian:
                    bent = hessian_product(inputs, before, i, [chosen], g)
                    g = {name: each - inputs.lr * bent[name] for name, each in g.items()}
            replied[i] = deepcopy(trail[-1])
            load(
                replied[i], {name: (w - g[name]).detach() for name, w in trainable(center).items()}
            )
        if replied:
            found = mean(inputs, replied)
            for name, w in trainable(center).items():
                delta = found[name] - w.detach()
                m[name] = 0.9 * m.get(name, torch.zeros_like(delta)) + 0.1 * delta
                v[name] = 0.99 * v.get(name, torch.full_like(delta, tau**2)) + 0.01 * delta**2
                found[name] = w.detach() + eta * m[name] / (v[name].sqrt() + tau)
            load(center, found)
    return tuned(inputs, center, serving, inputs.lr)


class Hyper(nn.Module):
    """The authors' network: an embedding, a perceptron, and a linear head for each tensor."""

    def __init__(self, inputs: Inputs, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(inputs.clients), embedding)
        widths = [embedding, *[hidden] * 4]
        body = [nn.Linear(a, b) for a, b in pairwise(widths)]
        target = trainable(inputs.module)
        self.shapes = [w.shape for w in target.values()]
        heads = [nn.Linear(hidden, w.numel()) for w in target.values()]
        self.body, self.heads = nn.ModuleList(body), nn.ModuleList(heads)
        with torch.no_grad():
            for i, key in enumerate(inputs.keys):
                drawn = rng.stream(inputs.seed, "embedding", 0, key).normal(size=embedding)
                self.embedding.weight[i] = torch.from_numpy(drawn)
            for j, fan_in in enumerate(widths[:-1]):
                draws = rng.stream(inputs.seed, "hyper-network", 0, j)
                bound = 1 / np.sqrt(fan_in)
                layer = torch.from_numpy(draws.uniform(-bound, bound, (fan_in + 1, hidden)))
                body[j].weight.copy_(layer[:-1].T)
                body[j].bias.copy_(layer[-1])
            for head, w in zip(heads, target.values(), strict=True):
                head.weight.zero_()
                head.bias.copy_(w.reshape(-1))

    def forward(self, i: int) -> list[Tensor]:
        values = self.embedding(torch.tensor(i))
        for j, layer in enumerate(self.body):
            values = layer(values.relu() if j else values)
        pairs = zip(self.heads, self.shapes, strict=True)
        return [head(values).reshape(shape) for head, shape in pairs]


def pfedhn(inputs: Inputs, *, embedding: int, hidden: int, lr: float) -> Outcome:
    """Shamsian et al. 2021: autograd and torch's SGD on the server, one client after the other."""
    net = Hyper(inputs, embedding, hidden).to(next(inputs.module.parameters()).dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, weight_decay=1e-3)
    models, buffers = copies(inputs.module, inputs), Buffers(inputs)
    for t in range(inputs.rounds):
        here = inputs.here(t)
        for i in here:
            sgd(models[i], buffers.of(i), inputs, i, inputs.batches(i, t))
        turn = {i: rng.stream(inputs.seed, "hyper-order", t, inputs.keys[i]).random() for i in here}
        for i in sorted(here, key=turn.__getitem__):
            made = net(i)
            delta = [w - end for w, end in zip(made, trainable(models[i]).values(), strict=True)]
            found = torch.autograd.grad(
                made, list(net.parameters()), grad_outputs=[w.detach() for w in delta]
            )
            for parameter, gradient in zip(net.parameters(), found, strict=True):
                parameter.grad = gradient
            nn.utils.clip_grad_norm_(net.parameters(), 50)
            optimizer.step()
        for i, model in enumerate(models):
            load(model, dict(zip(trainable(model), net(i), strict=True)))
    return Outcome(inputs.module, models)
