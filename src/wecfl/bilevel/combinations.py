"""Which representations that clients tell go together with which distances and clusterings.

A histogram, a vector and a subspace are compared by different distances, and a clustering may need
one of them. `by_told` puts a representation into a method; `check_combination` refuses what does
not go together, before anything is computed. docs/methods/representations.md has the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wecfl.bilevel.clustering.auto import Auto
from wecfl.bilevel.clustering.farthest_centers import FarthestCenters, to_local_centers
from wecfl.bilevel.clustering.hierarchy import Agglomerative, Bipartition
from wecfl.bilevel.clustering.kmeans import AtLeast, KMeans, Nearest, Once
from wecfl.bilevel.clustering.losses import LossVectors
from wecfl.bilevel.clustering.served import Served
from wecfl.bilevel.clustering.updates import DecomposedCosines, Merging
from wecfl.bilevel.distance import (
    angle_sum,
    cosine,
    jensen_shannon,
    kullback_leibler,
    smallest_angle,
    squared_euclidean,
)
from wecfl.bilevel.representation.from_models import is_projected
from wecfl.bilevel.representation.telling import (
    Directions,
    InitialUpdate,
    Kind,
    Labels,
    Moments,
    Predictions,
    Telling,
)
from wecfl.bilevel.representation.told import Told
from wecfl.core.ask import Ask
from wecfl.core.components import Distance
from wecfl.core.method import Method
from wecfl.errors import ConfigError

__all__ = ["DISTANCES", "TOLD_REPRESENTATIONS", "by_told", "check_combination"]

TOLD_REPRESENTATIONS: dict[str, Telling] = {
    "labels": Labels(),
    "predictions": Predictions(),
    "moments": Moments(),
    "update": InitialUpdate(),
    "directions": Directions(),
}
"""What clients can be asked to tell, by the name of `--representation`."""

DISTANCES: dict[str, Distance] = {
    "squared-euclidean": squared_euclidean,
    "cosine": cosine,
    "jensen-shannon": jensen_shannon,
    "kullback-leibler": kullback_leibler,
    "smallest-angle": smallest_angle,
    "angle-sum": angle_sum,
}
"""Distances by the name of `--distance`."""

DISTANCES_OF_KIND: dict[Kind, tuple[Distance, ...]] = {
    "histogram": (jensen_shannon, kullback_leibler, squared_euclidean, cosine),
    "vector": (cosine, squared_euclidean),
    "subspaces": (smallest_angle, angle_sum),
    "centers": (to_local_centers,),
}
"""The distances by which each kind of representation can be compared; the first is the default."""

NEEDED_DISTANCES: dict[type, Distance] = {
    KMeans: squared_euclidean,
    Auto: squared_euclidean,
    Served: squared_euclidean,
    DecomposedCosines: cosine,
    Merging: cosine,
    FarthestCenters: to_local_centers,
}
"""The only distance with which a clustering works."""


def by_told(method: Method, tells: Telling, distance: Distance | None = None) -> Method:
    """The method, with clients compared by what they tell once.

    The default distance is the one that the clustering needs; if it needs none, the default of the
    representation.

    >>> from wecfl import methods
    >>> by_told(methods.wecfl(3), Labels()).steps
    ('L', 'M', 'E', 'D')
    """
    if method.k == 1:
        raise ConfigError(
            f"the representation {tells.name} is for clustering, and {method.name} does not "
            f"cluster clients: choose a method with clusters, such as wecfl"
        )
    if is_projected(method.representation):
        raise ConfigError(
            f"project is for columns of a model, and the representation {tells.name} has none: "
            f"leave out project"
        )
    clustering: Any = method.clustering
    if isinstance(clustering, Agglomerative):
        clustering = replace(clustering, metric="method")
    if any(isinstance(step, Ask) and step.learn for step in method.opening):
        raise ConfigError(
            f"{method.name} has a start of its own, which the representation {tells.name} can't "
            f"replace: choose wecfl, fesem, flhc or stocfl"
        )
    if distance is None:
        distance = NEEDED_DISTANCES.get(
            type(_innermost(clustering)), DISTANCES_OF_KIND[tells.kind][0]
        )
    begin = ("E", "D") if method.opening == ("E", "M", "D") else method.opening
    asks = tuple(step for step in method.steps if step not in ("E", "M", "D"))
    return method.replace(
        representation=Told(tells), distance=distance, clustering=clustering, opening=begin,
        steps=(*asks, "M", "E", "D"),
    )  # fmt: skip


def check_combination(method: Method) -> None:
    """Raise an error if representation, distance and clustering do not go together.

    >>> from wecfl import methods
    >>> check_combination(by_told(methods.wecfl(3), Labels(), jensen_shannon))
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: KMeans needs the distance squared-euclidean, got jensen-shannon: set
    this distance, or a clustering for any distance, such as Agglomerative(metric='method')
    """
    inner, name = _innermost(method.clustering), method.name
    if not isinstance(representation := method.representation, Told):
        _check_distance(inner, method.distance)
        return
    tells = representation.tells
    if isinstance(method.clustering, Auto | Served):
        raise ConfigError(
            f"{name} can choose the number of clusters by models only, not by '{tells.name}': give "
            f"a number, or choose flhc with a threshold"
        )
    if isinstance(inner, Bipartition | Nearest | LossVectors):
        raise ConfigError(
            f"{name} clusters by the models or losses of a round, not by '{tells.name}': choose "
            f"wecfl, fesem or flhc"
        )
    fitting = DISTANCES_OF_KIND[tells.kind]
    if method.distance not in fitting and method.distance in _NAME_OF:
        raise ConfigError(
            f"'{tells.name}' can't be compared by the distance {_NAME_OF[method.distance]}: "
            f"choose {' or '.join(_NAME_OF[each] for each in fitting if each in _NAME_OF)}"
        )
    if isinstance(inner, KMeans) and squared_euclidean not in fitting:
        raise ConfigError(
            f"K-means needs means of what clients tell, and '{tells.name}' has none: choose flhc "
            f"with a threshold"
        )
    _check_distance(inner, method.distance)


def _check_distance(clustering: Any, distance: Distance) -> None:
    """Raise an error if the clustering needs another distance."""
    if (needed := NEEDED_DISTANCES.get(type(clustering))) not in (None, distance):
        raise ConfigError(
            f"{type(clustering).__name__} needs the distance {_NAME_OF[needed]}, got "
            f"{_NAME_OF.get(distance) or getattr(distance, '__name__', 'another')}: set this "
            f"distance, or a clustering for any distance, such as Agglomerative(metric='method')"
        )


_NAME_OF = {distance: name for name, distance in DISTANCES.items()}


def _innermost(clustering: Any) -> Any:
    """The clustering inside those that run another one once, or merge its small clusters."""
    while isinstance(clustering, Once | AtLeast):
        clustering = clustering.clustering
    return clustering
