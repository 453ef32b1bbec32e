"""The models that come with the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from wecfl.data.packing import Part
from wecfl.errors import ModelError, unknown
from wecfl.models.rows import keyed
from wecfl.models.unpacking import unpacking

__all__ = ["MODELS", "Model", "Vote", "auto", "build", "is_logistic", "make"]

Shape = Sequence[int]

MIN_SIDE = 16
"""The smallest height and width of an image of which two convolutions leave at least a pixel."""

Model = nn.Module | Callable[[], nn.Module] | str
"""The forms of a model: a module, a function that makes one, or a name."""


def _check_shape(shape: Shape, name: str, expected: tuple[int, int, int]) -> None:
    if tuple(shape) != expected:
        raise ModelError(
            f"the model {name} expects samples of shape {expected}, got {tuple(shape)}: "
            f"use mlp or a module of your own"
        )


def cnn_fashion(shape: Shape, classes: int) -> nn.Sequential:
    """The paper's CNN for Fashion-MNIST (its appendix; 29,034 parameters, 96 statistics).

    The appendix prints BatchNorm2d(16) after the second convolution; that layer has 32 channels,
    so 16 is a misprint.
    """
    _check_shape(shape, "cnn-fashion", (1, 28, 28))
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2, 2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2, 2),
        nn.Flatten(), nn.Linear(7 * 7 * 32, classes),
    )  # fmt: skip


def cnn_cifar(shape: Shape, classes: int) -> nn.Sequential:
    """The paper's CNN for CIFAR-10 (its appendix; 62,006 parameters)."""
    _check_shape(shape, "cnn-cifar", (3, 32, 32))
    return lenet(shape, classes)


def lenet(shape: Shape, classes: int) -> nn.Sequential:
    """Two convolutions, of 6 and 16 channels, and layers of 120 and 84 units (NIID-Bench's CNN)."""
    convolutions, pixels = _two_convolutions(shape, "lenet", 6, 16)
    return nn.Sequential(
        *convolutions, nn.Linear(pixels, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, classes),
    )  # fmt: skip


def cnn_small(shape: Shape, classes: int) -> nn.Sequential:
    """Two convolutions, of 6 and 16 channels, and no hidden layer (the CNN of CFL and CLoVE)."""
    convolutions, pixels = _two_convolutions(shape, "cnn-small", 6, 16)
    return nn.Sequential(*convolutions, nn.Linear(pixels, classes))


def cnn_wide(shape: Shape, classes: int) -> nn.Sequential:
    """Two convolutions, of 32 and 64 channels, and a layer of 512 units (PFLlib's CNN)."""
    convolutions, pixels = _two_convolutions(shape, "cnn-wide", 32, 64)
    return nn.Sequential(*convolutions, nn.Linear(pixels, 512), nn.ReLU(), nn.Linear(512, classes))


def _two_convolutions(
    shape: Shape, name: str, first: int, second: int
) -> tuple[list[nn.Module], int]:
    """Two convolutions of width 5, each with a pooling by 2, and the number of their outputs."""
    if len(shape) != 3 or min(shape[1:]) < MIN_SIDE:
        raise ModelError(
            f"the model {name} expects images of at least {MIN_SIDE} × {MIN_SIDE} pixels, got "
            f"samples of shape {tuple(shape)}: use mlp or a module of your own"
        )
    layers = [
        nn.Conv2d(shape[0], first, 5), nn.ReLU(), nn.MaxPool2d(2, 2),
        nn.Conv2d(first, second, 5), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
    ]  # fmt: skip
    return layers, second * prod(((side - 4) // 2 - 4) // 2 for side in shape[1:])


def mlp(shape: Shape, classes: int, hidden: int = 64) -> nn.Sequential:
    """One hidden layer, of 64 units."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def mlp_200(shape: Shape, classes: int) -> nn.Sequential:
    """One hidden layer, of 200 units (IFCA's model for MNIST)."""
    return mlp(shape, classes, 200)


def logistic(shape: Shape, classes: int) -> nn.Sequential:
    """Multinomial logistic regression, the convex case of the paper's theorems."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def is_logistic(model: nn.Module) -> bool:
    """Whether a module is multinomial logistic regression: one linear layer and nothing else.

    >>> is_logistic(logistic((4,), 2)), is_logistic(nn.Linear(4, 2)), is_logistic(mlp((4,), 2))
    (True, True, False)
    """
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    kinds = [type(layer) for layer in layers if type(layer) is not nn.Flatten]
    return kinds == [nn.Linear]


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cnn-fashion": cnn_fashion,
    "cnn-cifar": cnn_cifar,
    "cnn-small": cnn_small,
    "cnn-wide": cnn_wide,
    "lenet": lenet,
    "mlp": mlp,
    "mlp-200": mlp_200,
    "logistic": logistic,
}
"""The models by name: functions of the shape of a sample and the number of classes."""


def auto(shape: Shape) -> str:
    """The model for samples of this shape: the paper's CNN if it fits, otherwise the MLP.

    >>> auto((1, 28, 28)), auto((3, 32, 32)), auto((1, 8, 8))
    ('cnn-fashion', 'cnn-cifar', 'mlp')
    """
    known: dict[tuple[int, ...], str] = {(1, 28, 28): "cnn-fashion", (3, 32, 32): "cnn-cifar"}
    return known.get(tuple(shape), "mlp")


def build(name: str, *, shape: Shape, classes: int, seed: int = 0) -> nn.Module:
    """The model of that name, with torch's default initialization, drawn for this seed.

    >>> a, b = (build("logistic", shape=(4,), classes=2, seed=7) for _ in range(2))
    >>> torch.equal(a[1].weight, b[1].weight)
    True
    """
    if name == "auto":
        name = auto(shape)
    if name not in MODELS:
        raise ModelError(unknown("model", name, [*MODELS, "auto"]))
    with keyed(seed):
        return MODELS[name](shape, classes)


def make(
    model: Model, *, shape: Shape, classes: int, seed: int, parts: Sequence[Part] = ()
) -> nn.Module:
    """The module: given, made by a function with keyed randomness, or one of the library by name.

    `parts` are the arrays of which a sample consists, if it is more than one array of numbers.

    >>> make(lambda: nn.Linear(2, 3), shape=(2,), classes=3, seed=0)
    Linear(in_features=2, out_features=3, bias=True)
    """
    if isinstance(model, str):
        return unpacking(build(model, shape=shape, classes=classes, seed=seed), parts, model)
    if isinstance(model, nn.Module):
        return unpacking(model, parts, None)
    if not callable(model):
        raise ModelError(f"the model must be a module, a function or a name, got {model!r}")
    with keyed(seed):
        made = model()
    if not isinstance(made, nn.Module):
        raise ModelError(f"the model function must return an nn.Module, got {type(made).__name__}")
    return unpacking(made, parts, None)


class Vote(nn.Module):
    """The soft vote of several models: the mean of their logits (FedAvg+, FedProx+).

    >>> Vote([nn.Identity(), nn.Identity()])(torch.ones(1, 2)).tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of the members' logits."""
        return torch.stack([member(x) for member in self.members]).mean(dim=0)
