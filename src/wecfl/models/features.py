"""The features of a model: the inputs of its last linear layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

__all__ = ["with_features"]


def with_features(module: nn.Module, forward: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """The outputs of a forward pass of the module, and the features (n, D) of its n samples.

    >>> import torch
    >>> body, last = nn.Linear(4, 3), nn.Linear(3, 2)
    >>> x, model = torch.ones(5, 4), nn.Sequential(body, last)
    >>> outputs, features = with_features(model, lambda: model(x))
    >>> torch.equal(features, body(x)), torch.equal(outputs, last(features))
    (True, True)
    """
    *_, last = (part for part in module.modules() if isinstance(part, nn.Linear))
    seen: list[Tensor] = []

    def look(_: nn.Module, given: tuple[Any, ...]) -> None:
        seen.append(given[0])

    hook = last.register_forward_pre_hook(look)
    try:
        outputs = forward()
    finally:
        hook.remove()
    if len(seen) != 1 or seen[0].ndim != 2:
        raise ValueError(
            f"the last linear layer must be used once, with features of shape (n, D), got "
            f"{[tuple(features.shape) for features in seen]}"
        )
    return outputs, seen[0]
