"""Losses of features, by name (`wecfl.core.plan.FeatureTerm`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn.functional import normalize, softplus

__all__ = ["FEATURE_LOSSES"]


def squared(features: Tensor, points: Tensor) -> Tensor:
    """‖z − point‖²."""
    return (features - points).square().sum(dim=-1)


def contrast(features: Tensor, points: Tensor) -> Tensor:
    """The logarithm of 1 + exp(⟨z/‖z‖, point⟩)."""
    return softplus((normalize(features, dim=-1) * points).sum(dim=-1))


FEATURE_LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squared": squared, "contrast": contrast
}  # fmt: skip
"""(…, n), the loss of each sample, from features and points (…, n, D)."""
