"""Representations g_i and G_k: what stands for clients and clusters when they are compared."""

from wecfl.bilevel.representation.from_models import (
    Columns,
    FromModels,
    Losses,
    Weights,
    last_layer,
)

__all__ = ["Columns", "FromModels", "Losses", "Weights", "last_layer"]
