"""What clients do: the local update (the L-step), and the evaluation of models."""

from wecfl.bilevel.local.evaluating import ClusterLosses, Gradients, Risk, Score
from wecfl.bilevel.local.training import Alone, Ditto, Only, Parts, Train

__all__ = [
    "Alone",
    "ClusterLosses",
    "Ditto",
    "Gradients",
    "Only",
    "Parts",
    "Risk",
    "Score",
    "Train",
]
