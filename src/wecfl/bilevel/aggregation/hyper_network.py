"""pFedHN: a hyper-network on the server makes the model of each client from a learned embedding.

The server keeps a vector v_i for each client, and a network h with parameters φ. Client i is sent
θ_i = h(v_i; φ), trains, and replies θ̃_i. The server then takes a gradient step on φ and v_i,

    (φ, v) ← SGD along ∇ ½‖h(v_i; φ) − θ̃_i‖² = J_iᵀ (h(v_i; φ) − θ̃_i),

where J_i is the Jacobian of h(v_i; φ) (Shamsian et al., *Personalized Federated Learning using
Hypernetworks*, ICML 2021). In the paper one client replies at a time, so that h(v_i; φ) is still
the θ_i that was sent. Here the clients of a round take their steps one after the other, in random
order, and each step counts what the steps before it have already done.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from wecfl import rng
from wecfl.bilevel.threads import one_thread
from wecfl.core.ask import Ask
from wecfl.core.components import Clusters, Distance, View
from wecfl.core.plan import LocalPlan
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, Table
from wecfl.errors import ConfigError
from wecfl.inputs import check_room
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one, check_positive

__all__ = ["Apart", "FitsInMemory", "HyperNetwork", "Parameters", "hyper_update"]

HIDDEN_LAYERS = 4
"""The number of linear layers before the last one."""
MOMENTUM, DECAY, MAX_GRADIENT = 0.9, 1e-3, 50.0
"""The momentum and the weight decay of the server's SGD, and the largest length of its gradient: a
longer one is shortened to it. The values are those of the authors' code."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A clustering in which every client is a cluster of its own.

    >>> view = View(np.zeros((3, 1)), np.zeros((1, 1)), np.ones(3), labels=np.zeros(3, int))
    >>> Apart()(view, lambda points, centers: points, np.random.default_rng(0)).labels.tolist()
    [0, 1, 2]
    """

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """As many clusters as clients, in their order."""
        return Clusters(np.arange(len(view.points)), np.array(view.points))


@dataclass(frozen=True, slots=True)
class HyperNetwork:
    """What the server learns from a local update: new φ and v_i, and the models of all clients.

    h is a perceptron: `embedding` inputs (None: 1 + m/4), four layers of `hidden` units, with a
    ReLU between two, and a last layer that makes the trainable columns of a model. A layer is a
    matrix whose last row is the bias. At the start h gives the initial model for every client: the
    last layer has this model as its bias, and weights of zero. BatchNorm's statistics are those
    that the client replied.

    φ is in `state.whole`, as `hyper.0` to `hyper.4`, and v_i in `state.known["embedding"]`; the
    momentum of both is beside them.

    >>> HyperNetwork(hidden=50)
    HyperNetwork(embedding=None, hidden=50, lr=0.01)
    """

    embedding: int | None = None
    hidden: int = 100
    lr: float = 0.01

    def __post_init__(self) -> None:
        check_at_least_one(embedding=self.embedding, hidden=self.hidden)
        check_positive(server_lr=self.lr)

    def __call__(self, before: State, after: State, sent: Table, setting: Setting) -> State:
        """The state with the models that the hyper-network makes after a step for each reply."""
        labels, m, n = after.labels, len(after.labels), setting.engine.layout.trainable
        if len(np.unique(labels)) < m:
            raise ConfigError(
                "a hyper-network makes a model for each client, but some clients share a cluster: "
                "leave out min_cluster, or set clustering to Apart() and leave E out of the steps"
            )
        heard = after.heard
        heard &= setting.enough(labels[heard], len(after.centers))[labels]
        now, speed = self._begun(before, setting)
        turns = np.argsort(setting.channel.draws("hyper-order", m, before.round), kind="stable")
        with one_thread():
            for i in turns[heard[turns]]:
                _step(now, speed, int(i), after.models[i, :n], self.lr)
            centers = after.centers.copy()
            centers[labels, :n] = _values(now, slice(None))[-1]
        centers[labels[heard], n:] = after.models[heard, n:]
        layers = {f"hyper.{j}": layer for j, layer in enumerate(now.layers)}
        moving = {f"hyper.momentum.{j}": layer for j, layer in enumerate(speed.layers)}
        vectors = {"embedding": now.vectors, "embedding.momentum": speed.vectors}
        return after.replace(
            centers=centers,
            known={**after.known, **vectors},
            whole={**after.whole, **layers, **moving},
        )

    def _begun(self, state: State, setting: Setting) -> tuple[Parameters, Parameters]:
        """Copies of the parameters and of their momentum; in the first round, their start."""
        if "embedding" in state.known:
            return _copied(state, "hyper.", "embedding"), _copied(
                state, "hyper.momentum.", "embedding.momentum"
            )
        m, seed, member = len(state.labels), setting.seed, setting.member
        keys = range(m) if setting.channel.keys is None else setting.channel.keys
        width = 1 + m // 4 if self.embedding is None else self.embedding
        draws = [rng.stream(seed, "embedding", member, int(key)) for key in keys]
        vectors = np.array([draw.normal(size=width) for draw in draws], np.float32)
        layers = []
        for j, fan_in in enumerate([width] + [self.hidden] * (HIDDEN_LAYERS - 1)):
            draw, bound = rng.stream(seed, "hyper-network", member, j), 1 / sqrt(fan_in)
            layer = draw.uniform(-bound, bound, (fan_in + 1, self.hidden))
            layers.append(layer.astype(np.float32))
        last = np.zeros((self.hidden + 1, setting.engine.layout.trainable), np.float32)
        last[-1] = state.centers[state.labels[0], : last.shape[1]]
        start = Parameters([*layers, last], vectors)
        return start, Parameters([np.zeros_like(a) for a in start.layers], np.zeros_like(vectors))


@dataclass(frozen=True, slots=True)
class FitsInMemory:
    """Checks that the last layer, its momentum and a copy of both fit into memory.

    >>> FitsInMemory(hidden=3)(LocalPlan(), Layout.of([("w", (2, 3), [])]))
    """

    hidden: int

    def __call__(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error if they do not."""
        units, parameters = self.hidden, layout.trainable
        check_room(
            f"a hyper-network with {units} hidden units for a model of {parameters} parameters",
            4 * 4 * (units + 1) * parameters,
            "choose a smaller model, or fewer units (hidden)",
        )


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """The numbers that the server learns, or their momentum; a step overwrites them.

    >>> len(Parameters([np.zeros((2, 1))], np.zeros((3, 1))).arrays)
    2
    """

    layers: list[F32]
    """φ, each layer as a matrix (inputs + 1, outputs), whose last row is the bias."""
    vectors: F32
    """(m, e), v_i."""

    @property
    def arrays(self) -> list[F32]:
        """The layers, and then the vectors."""
        return [*self.layers, self.vectors]


def _copied(state: State, prefix: str, vectors: str) -> Parameters:
    layers = [state.whole[f"{prefix}{j}"].copy() for j in range(HIDDEN_LAYERS + 1)]
    return Parameters(layers, state.known[vectors].copy())


def _values(network: Parameters, clients: slice) -> list[F32]:
    """The inputs (n, inputs) of each layer for these clients, and last their models (n, P)."""
    values = [network.vectors[clients]]
    for j, layer in enumerate(network.layers):
        if 0 < j < HIDDEN_LAYERS:
            values[j] = np.maximum(values[j], 0)
        values.append(values[j] @ layer[:-1] + layer[-1])
    return values


def _step(now: Parameters, speed: Parameters, client: int, target: F32, lr: float) -> None:
    """One step of SGD with momentum and weight decay, towards the model of one client."""
    *values, made = _values(now, slice(client, client + 1))
    back = made - target
    factors: list[
        tuple[F32, F32]
    ] = []  # the gradient of a layer is the outer product of two vectors
    for j in reversed(range(HIDDEN_LAYERS + 1)):
        factors.insert(0, (np.append(values[j], np.float32(1)), back[0]))
        back = back @ now.layers[j][:-1].T
        if 0 < j < HIDDEN_LAYERS:
            back *= values[j] > 0
    squares = [float(a @ a) * float(b @ b) for a, b in factors] + [float(back[0] @ back[0])]
    short = np.float32(min(1, MAX_GRADIENT / (sqrt(sum(squares)) + 1e-6)))
    for moving, array in zip(speed.arrays, now.arrays, strict=True):
        moving[...] *= np.float32(MOMENTUM)
        moving[...] += np.float32(DECAY) * array
    for moving, (a, b) in zip(speed.layers, factors, strict=True):
        moving[...] += np.outer(short * a, b)
    speed.vectors[client] += short * back[0]
    for moving, array in zip(speed.arrays, now.arrays, strict=True):
        array[...] -= np.float32(lr) * moving


def hyper_update(network: HyperNetwork) -> Ask:
    """A local update after which the server trains its hyper-network; it takes the place of "L".

    >>> str(hyper_update(HyperNetwork()))
    'L(HyperNetwork(embedding=None, hidden=100, lr=0.01))'
    """
    return Ask(learn=network, check=FitsInMemory(network.hidden))
