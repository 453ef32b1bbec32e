"""Clusterings, the lower level of the problem: which clients form a cluster."""

from wecfl.bilevel.clustering.kmeans import AtLeast, Held, KMeans, Nearest, Once, isometric

__all__ = ["AtLeast", "Held", "KMeans", "Nearest", "Once", "isometric"]
