"""Aggregations, the M-step: the centers from the models of their members."""

from wecfl.bilevel.aggregation.mean import Mean, Stay
from wecfl.bilevel.aggregation.robust_centers import (
    AGGREGATIONS,
    GeometricMedian,
    Krum,
    Median,
    NormClip,
    TrimmedMean,
    robust,
)

__all__ = [
    "AGGREGATIONS",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "NormClip",
    "Stay",
    "TrimmedMean",
    "robust",
]
