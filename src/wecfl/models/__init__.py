"""Models: the paper's two CNNs, an MLP, a logistic regression, and modules as rows.

>>> model = build("mlp", shape=(1, 8, 8), classes=10, seed=0)
>>> layout_of(model).width
4810
"""

from torch.nn import Module

from wecfl.models.rows import fill, layout_of, outputs_of, reinitialized, row_of
from wecfl.models.unpacking import unpacked_parts
from wecfl.models.zoo import MODELS, Model, Vote, auto, build, is_logistic, make

__all__ = [
    "MODELS",
    "Model",
    "Module",
    "Vote",
    "auto",
    "build",
    "fill",
    "is_logistic",
    "layout_of",
    "make",
    "outputs_of",
    "reinitialized",
    "row_of",
    "unpacked_parts",
]
