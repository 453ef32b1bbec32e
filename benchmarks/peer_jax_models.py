"""The models of `peer_workloads.py` for FedJAX: the same layers, in Haiku, as its own models are.

Images have their channels last, as in all of FedJAX and as XLA likes them. BatchNorm normalizes by
the batch and keeps no statistics, for which a model of FedJAX has no place. A GRU of Haiku has one
bias for each gate, where torch has two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import torch
from fedjax import Model, create_model_from_haiku, metrics

Array = Any


def made(model: str) -> Model:
    """The model of that name in `peer_workloads.MODELS`, with cross-entropy as its loss."""
    forward, sample = MODELS[model]
    return create_model_from_haiku(
        transformed_forward_pass=hk.transform(lambda batch: forward(batch["x"])),
        sample_batch={"x": sample, "y": np.zeros(1, np.int32)},
        train_loss=lambda batch, out: metrics.unreduced_cross_entropy_loss(batch["y"], out),
    )


def examples(x: torch.Tensor, y: torch.Tensor) -> Mapping[str, np.ndarray]:
    """A client's samples as FedJAX takes them."""
    inputs = x.movedim(1, -1) if x.ndim == 4 else x.to(torch.int32)
    return {"x": np.ascontiguousarray(inputs.numpy()), "y": y.numpy().astype(np.int32)}


def _conv(
    x: Array, channels: int, width: int, stride: int = 1, border: int = 0, *, bias: bool = True
) -> Array:
    sides = [(border, border)] * 2
    return hk.Conv2D(channels, width, stride, padding=sides, with_bias=bias)(x)


def _pooled(x: Array) -> Array:
    return hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


class BatchNorm(hk.Module):
    """By the statistics of the batch."""

    def __call__(self, x: Array) -> Array:
        """Normalize each channel."""
        scale = hk.get_parameter("scale", x.shape[-1:], init=jnp.ones)
        offset = hk.get_parameter("offset", x.shape[-1:], init=jnp.zeros)
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + offset


def _cnn_cifar(x: Array) -> Array:
    for channels in (6, 16):
        x = _pooled(jax.nn.relu(_conv(x, channels, 5)))
    x = hk.Flatten()(x)
    for units in (120, 84):
        x = jax.nn.relu(hk.Linear(units)(x))
    return hk.Linear(10)(x)


def _cnn_fashion(x: Array) -> Array:
    for channels in (16, 32):
        x = _pooled(jax.nn.relu(BatchNorm()(_conv(x, channels, 5, border=2))))
    return hk.Linear(10)(hk.Flatten()(x))


def _resnet8(x: Array) -> Array:
    def normed(x: Array, channels: int, width: int, stride: int = 1) -> Array:
        return hk.GroupNorm(8)(_conv(x, channels, width, stride, width // 2, bias=False))

    x = jax.nn.relu(normed(x, 16, 3))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        inner = normed(jax.nn.relu(normed(x, channels, 3, stride)), channels, 3)
        x = jax.nn.relu(inner + (x if stride == 1 else normed(x, channels, 1, stride)))
    return hk.Linear(10)(x.mean((1, 2)))


def _gru(characters: Array) -> Array:
    embedded = hk.Embed(80, 8)(characters.T)  # (80, n, 8): steps come first
    cell = hk.GRU(128)
    steps, _ = hk.dynamic_unroll(cell, embedded, cell.initial_state(len(characters)))
    return hk.Linear(80)(steps[-1])


MODELS: dict[str, tuple[Callable[[Array], Array], np.ndarray]] = {
    "cnn-cifar": (_cnn_cifar, np.zeros((1, 32, 32, 3), np.float32)),
    "cnn-fashion": (_cnn_fashion, np.zeros((1, 28, 28, 1), np.float32)),
    "resnet-8": (_resnet8, np.zeros((1, 32, 32, 3), np.float32)),
    "gru": (_gru, np.zeros((1, 80), np.int32)),
}
"""Name ↦ forward pass, a sample."""
