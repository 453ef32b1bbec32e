"""Naive twins of the methods with one model for all, or one for each client.

Plain loops over clients and deep-copied modules, as in `twin.py`. They share with the library only
the order of the mini-batches. In all of them λ_i = |D_i|, and absent clients do nothing. The
precision is that of the given module and samples. Modules with dropout are not supported.
"""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from wecfl.core.plan import LocalPlan

Batches = Sequence[NDArray[np.int64]]
Named = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What every method is given."""

    clients: Sequence[tuple[Tensor, Tensor]]
    """The training samples (x, y) of each client."""
    keys: Sequence[int]
    """Who each client is, for the order of its mini-batches."""
    module: nn.Module
    """The common start, which no method changes."""
    rounds: int
    seed: int = 0
    steps: int = 10
    """Q, mini-batches in a round."""
    batch: int = 32
    lr: float = 0.001
    momentum: float = 0.9
    keep_momentum: bool = True
    """A client's momentum buffer survives the round, also while the client is absent."""
    weight_decay: float = 0.0
    present: Sequence[set[int]] | None = None
    """Who takes part in each round, and is heard; None: everybody."""
    done: Sequence[Sequence[int]] | None = None
    """done[i][t] ≥ 1 is how many of its Q steps client i takes in round t; None: all of them."""
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def here(self, t: int) -> list[int]:
        """The clients that take part in round t."""
        return sorted(range(len(self.clients)) if self.present is None else self.present[t])

    def batches(self, i: int, t: int) -> Batches:
        """The mini-batches that client i takes in round t."""
        plan, size = LocalPlan(steps=self.steps, batch=self.batch), len(self.clients[i][1])
        every = plan.batches(size, self.seed, round=t, client=self.keys[i])
        return every if self.done is None else every[: self.done[i][t]]

    def double(self) -> "Inputs":
        """The same in float64."""
        clients = [(x.double(), y) for x, y in self.clients]
        return replace(self, clients=clients, module=deepcopy(self.module).double())


class Outcome(NamedTuple):
    """What there is after the last round."""

    center: nn.Module
    """The server's model. Tensors that clients never send are still those of the common start."""
    models: list[nn.Module]
    """The model of each client; where a method has no personal models, a copy of the center."""


# ── modules ──────────────────────────────────────────────────────────────────────────────────────


def trainable(model: nn.Module) -> Named:
    return {name: w for name, w in model.named_parameters() if w.requires_grad}


def tensors(model: nn.Module) -> Named:
    """All that a model is: parameters and BatchNorm's statistics, but not its batch counter."""
    buffers = {name: b for name, b in model.named_buffers() if b.is_floating_point()}
    return {**dict(model.named_parameters()), **buffers}


def load(model: nn.Module, named: Named) -> None:
    with torch.no_grad():
        for name, tensor in named.items():
            tensors(model)[name].copy_(tensor)


def row(model: nn.Module) -> NDArray[Any]:
    """The model in the order of `wecfl.models.row_of`: first what is trained, then the rest."""
    order = {**trainable(model), **tensors(model)}
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in order.values()])


def mean(inputs: Inputs, models: dict[int, nn.Module]) -> Named:
    """Σ λ_i ω_i / Σ λ_i over the clients that were heard."""
    sizes = {i: len(inputs.clients[i][1]) for i in models}
    total = {name: torch.zeros_like(tensor) for name, tensor in tensors(inputs.module).items()}
    for i, model in models.items():
        for name, tensor in tensors(model).items():
            total[name] += tensor.detach() * (sizes[i] / sum(sizes.values()))
    return total


def copies(model: nn.Module, inputs: Inputs) -> list[nn.Module]:
    return [deepcopy(model) for _ in inputs.clients]


# ── a client's work ──────────────────────────────────────────────────────────────────────────────


class Buffers:
    """The momentum buffers of all clients: empty is zero."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.kept: list[Named] = [{} for _ in inputs.clients]

    def of(self, i: int) -> Named:
        """What client i has at the start of a round."""
        return self.kept[i] if self.inputs.keep_momentum else {}


def sgd(
    model: nn.Module,
    velocity: Named,
    inputs: Inputs,
    i: int,
    batches: Batches,
    *,
    momentum: float | None = None,
    only: Iterable[str] | None = None,
    offset: Named | None = None,
    lam: float = 0.0,
    anchor: Named | None = None,
    loss_of: Callable[[nn.Module, Tensor], Tensor] | None = None,
) -> None:
    """One step for each mini-batch: v ← momentum·v + g and w ← w − lr·v.

    Here g is the gradient of the loss + weight_decay·w + offset + lam·(w − anchor). Of what is not
    in `only` neither tensors nor momentum buffers change; BatchNorm uses the batch all the same.
    `loss_of` the model and the batch's samples takes the place of the loss.
    """
    x, y = inputs.clients[i]
    beta = inputs.momentum if momentum is None else momentum
    moving = set(tensors(model) if only is None else only)
    still = {name: w.detach().clone() for name, w in tensors(model).items() if name not in moving}
    model.train()
    for chosen in batches:
        rows, params = torch.from_numpy(chosen), trainable(model)
        loss = loss_of(model, rows) if loss_of else inputs.loss(model(x[rows]), y[rows])
        gradients = torch.autograd.grad(loss, list(params.values()))
        with torch.no_grad():
            for (name, w), gradient in zip(params.items(), gradients, strict=True):
                if name in moving:
                    g = gradient + inputs.weight_decay * w
                    if offset is not None:
                        g = g + offset[name]
                    if anchor is not None:
                        g = g + lam * (w - anchor[name])
                    velocity[name] = beta * velocity.get(name, 0.0) + g
                    w.sub_(inputs.lr * velocity[name])
        load(model, still)  # BatchNorm's statistics, which the forward pass has moved


def replies(inputs: Inputs, t: int, center: nn.Module, buffers: Buffers) -> dict[int, nn.Module]:
    """What the clients of round t make of the server's model."""
    models = {i: deepcopy(center) for i in inputs.here(t)}
    for i, model in models.items():
        sgd(model, buffers.of(i), inputs, i, inputs.batches(i, t))
    return models


# ── one model ────────────────────────────────────────────────────────────────────────────────────


def fedavg(inputs: Inputs) -> Outcome:
    """McMahan et al. 2017."""
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    for t in range(inputs.rounds):
        if models := replies(inputs, t, center, buffers):
            load(center, mean(inputs, models))
    return Outcome(center, copies(center, inputs))


def fedopt(inputs: Inputs, step: Callable[[str, Tensor], Tensor]) -> Outcome:
    """Ω ← Ω + step(Δ) with Δ = Σ λ_i ω_i / Σ λ_i − Ω (Reddi et al. 2021).

    BatchNorm's statistics are averaged. In a round without replies the server takes no step.
    """
    center, buffers = deepcopy(inputs.module), Buffers(inputs)
    for t in range(inputs.rounds):
        if models := replies(inputs, t, center, buffers):
            new = mean(inputs, models)
            for name, w in trainable(center).items():
                new[name] = w.detach() + step(name, new[name] - w.detach())
            load(center, new)
    return Outcome(center, copies(center, inputs))


def fedavgm(inputs: Inputs, *, eta: float = 1.0, beta: float = 0.9) -> Outcome:
    """m ← β·m + Δ and Ω ← Ω + η·m."""
    m: Named = {}

    def step(name: str, delta: Tensor) -> Tensor:
        m[name] = beta * m.get(name, 0.0) + delta
        return eta * m[name]

    return fedopt(inputs, step)


def adaptive(
    inputs: Inputs,
    second: Callable[[Tensor, Tensor], Tensor],
    *,
    eta: float,
    beta1: float,
    tau: float,
) -> Outcome:
    """m ← β1·m + (1 − β1)·Δ, v ← second(v, Δ²) and Ω ← Ω + η·m / (√v + τ); v is τ² at first."""
    m: Named = {}
    v: Named = {}

    def step(name: str, delta: Tensor) -> Tensor:
        m[name] = beta1 * m.get(name, 0.0) + (1 - beta1) * delta
        v[name] = second(v.get(name, torch.full_like(delta, tau**2)), delta**2)
        return eta * m[name] / (v[name].sqrt() + tau)

    return fedopt(inputs, step)


def fedadagrad(inputs: Inputs, *, eta: float, beta1: float = 0.0, tau: float = 1e-3) -> Outcome:
    """v ← v + Δ²."""
    return adaptive(inputs, lambda v, square: v + square, eta=eta, beta1=beta1, tau=tau)


def fedadam(
    inputs: Inputs, *, eta: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Outcome:
    """v ← β2·v + (1 − β2)·Δ²."""

    def second(v: Tensor, square: Tensor) -> Tensor:
        return beta2 * v + (1 - beta2) * square

    return adaptive(inputs, second, eta=eta, beta1=beta1, tau=tau)


def fedyogi(
    inputs: Inputs, *, eta: float, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Outcome:
    """v ← v − (1 − β2)·Δ²·sign(v − Δ²)."""

    def second(v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - beta2) * square * torch.sign(v - square)

    return adaptive(inputs, second, eta=eta, beta1=beta1, tau=tau)


def scaffold(inputs: Inputs, *, server_lr: float = 1.0) -> Outcome:
    """Karimireddy et al. 2020 with option II: y ← y − lr·(g − c_i + c), without momentum.

    After its K_i steps from x to y, a client sets c_i ← c_i − c + (x − y) / (K_i·lr). The server
    sets x ← x + server_lr·Σ λ_i (y_i − x) / Σ λ_i, and c to Σ λ_i c_i / Σ λ_i over all N clients.
    """
    center = deepcopy(inputs.module)
    zero = {name: torch.zeros_like(w) for name, w in trainable(center).items()}
    c, own = zero, [zero for _ in inputs.clients]
    for t in range(inputs.rounds):
        models = {i: deepcopy(center) for i in inputs.here(t)}
        for i, model in models.items():
            offset = {name: c[name] - own[i][name] for name in c}
            batches = inputs.batches(i, t)
            sgd(model, {}, inputs, i, batches, momentum=0, offset=offset)
            x, y, scale = trainable(center), trainable(model), len(batches) * inputs.lr
            own[i] = {k: own[i][k] - c[k] + (x[k] - y[k]).detach() / scale for k in c}
        sizes = [len(y) for _, y in inputs.clients]
        c = {
            name: torch.stack([n * each[name] for n, each in zip(sizes, own, strict=True)]).sum(
                dim=0
            )
            / sum(sizes)
            for name in c
        }
        if models:
            found = mean(inputs, models)
            for name, w in trainable(center).items():
                found[name] = w.detach() + server_lr * (found[name] - w.detach())
            load(center, found)
    return Outcome(center, copies(center, inputs))


# ── one model for each client ────────────────────────────────────────────────────────────────────


def local(inputs: Inputs) -> Outcome:
    """Nobody sends anything: each client goes on from its own model."""
    models, buffers = copies(inputs.module, inputs), Buffers(inputs)
    for t in range(inputs.rounds):
        for i in inputs.here(t):
            sgd(models[i], buffers.of(i), inputs, i, inputs.batches(i, t))
    return Outcome(deepcopy(inputs.module), models)


def fedavg_ft(
    inputs: Inputs, ft_batches: Callable[[int], Batches], *, ft_steps: int | None = None
) -> Outcome:
    """FedAvg; then every client, also one never present, fine-tunes the server's model.

    It takes `ft_steps` steps (Q by default) on the first mini-batches of `ft_batches(client)`, with
    a momentum buffer that starts at zero.
    """
    steps = inputs.steps if ft_steps is None else ft_steps
    center, models = fedavg(inputs)
    for i, model in enumerate(models):
        batches = ft_batches(i)[:steps]
        assert len(batches) == steps
        sgd(model, {}, inputs, i, batches)
    return Outcome(center, models)


def ditto(inputs: Inputs, *, lam: float = 1.0) -> Outcome:
    """FedAvg, and personal models that minimize the loss + lam/2·‖v − Ω‖² (Li et al. 2021).

    Ω is the model that the client receives in the round. A personal model starts as the first
    model that its client receives. Both models train on the same mini-batches, each with a momentum
    buffer of its own.
    """
    center, models = deepcopy(inputs.module), copies(inputs.module, inputs)
    buffers, personal = Buffers(inputs), Buffers(inputs)
    met: set[int] = set()
    for t in range(inputs.rounds):
        received = {name: w.detach().clone() for name, w in tensors(center).items()}
        for i in inputs.here(t):
            if i not in met:
                load(models[i], received)
                met.add(i)
            batches = inputs.batches(i, t)
            sgd(models[i], personal.of(i), inputs, i, batches, lam=lam, anchor=received)
        if trained := replies(inputs, t, center, buffers):
            load(center, mean(inputs, trained))
    return Outcome(center, models)


# ── a model of which clients keep a part ─────────────────────────────────────────────────────────

Phases = Callable[[Batches], list[tuple[set[str], Batches]]]
"""Splits the mini-batches of a round: which tensors are trained on which of them."""


def private_columns(inputs: Inputs, private: set[str], phases: Phases | None = None) -> Outcome:
    """The tensors named `private` stay with each client; the others are averaged and sent to all.

    Absent clients receive the shared tensors, too.
    """
    everything = set(tensors(inputs.module))
    assert private <= everything
    center, models = deepcopy(inputs.module), copies(inputs.module, inputs)
    buffers = Buffers(inputs)
    for t in range(inputs.rounds):
        here = inputs.here(t)
        for i in here:
            velocity, batches = buffers.of(i), inputs.batches(i, t)
            for moving, some in [(everything, batches)] if phases is None else phases(batches):
                sgd(models[i], velocity, inputs, i, some, only=moving)
        if here:
            found = mean(inputs, {i: models[i] for i in here})
            load(center, {name: found[name] for name in everything - private})
        for model in models:
            load(model, {name: tensors(center)[name] for name in everything - private})
    return Outcome(center, models)


def fedper(inputs: Inputs, head: set[str]) -> Outcome:
    """The head is private; both parts are trained together (Arivazhagan et al. 2019)."""
    return private_columns(inputs, head)


def lg_fedavg(inputs: Inputs, head: set[str]) -> Outcome:
    """The head is shared, the rest is private (Liang et al. 2020), from the common start."""
    return private_columns(inputs, set(tensors(inputs.module)) - head)


def fedrep(inputs: Inputs, head: set[str], *, head_steps: int) -> Outcome:
    """The head is private and trained first, then the rest (Collins et al. 2021).

    Tensors that are not being trained are frozen, with their statistics and momentum buffers.
    """
    body = set(tensors(inputs.module)) - head
    return private_columns(
        inputs, head, lambda walk: [(head, walk[:head_steps]), (body, walk[head_steps:])]
    )
