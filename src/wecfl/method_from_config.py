"""Makes the method of an experiment from a configuration."""

from __future__ import annotations

from dataclasses import replace

from wecfl.bilevel.aggregation import Stay, robust
from wecfl.bilevel.aggregation.optimizer import Adaptive, Momentum
from wecfl.bilevel.clustering.drift import UntilSettled
from wecfl.bilevel.clustering.served import Served
from wecfl.bilevel.combinations import DISTANCES, TOLD_REPRESENTATIONS, by_told, check_combination
from wecfl.bilevel.importance import Batches, data_size, uniform
from wecfl.bilevel.representation import Columns
from wecfl.bilevel.representation.told import Told
from wecfl.bilevel.serving import Center, Tuned
from wecfl.config import Config
from wecfl.config.keys import METHOD_OPTIONS
from wecfl.core.components import Aggregation, Clustering
from wecfl.core.method import Method
from wecfl.errors import ConfigError, unknown
from wecfl.methods import named, options

__all__ = ["method_of"]


def method_of(config: Config) -> Method:
    """The method of a configuration, with the choices that apply to it.

    >>> method_of(Config(method="ifca", clusters=3, loss_batches=3)).representation
    Losses(batches=3)
    """
    has = options(config.method)
    fitting = {
        option: getattr(config, key) for key, option in METHOD_OPTIONS.items() if option in has
    }
    method = named(config.method, **{**fitting, **dict(config.options)})
    if config.representation in TOLD_REPRESENTATIONS or config.distance != "method":
        method = _by_told(config, method)
    elif isinstance(method.representation, Columns) and method.shared == "all":
        method = method.replace(
            representation=replace(method.representation, which=config.representation)
        )
        if config.representation != "head":
            method = method.replace(clustering=_by_representation(method.clustering))
    if config.aggregation != "mean":
        method = method.replace(aggregation=_robust(config, method.aggregation))
    if config.adapt_steps:
        if method.serve != Center():
            raise ConfigError(
                f"adapt_steps is for methods that serve clients by the models of clusters, and "
                f"{config.method} does not: leave out adapt_steps"
            )
        method = method.replace(serve=Tuned(config.adapt_steps))
    if config.importance != "method":
        chosen = {"data-size": data_size, "uniform": uniform, "batches": Batches(config.batch)}
        method = method.replace(importance=chosen[config.importance])
    return method


def _by_representation(clustering: Clustering) -> Clustering:
    """The clustering, which compares clients by their chosen representation also to choose K."""
    if isinstance(clustering, UntilSettled):
        return replace(clustering, clustering=_by_representation(clustering.clustering))
    if isinstance(clustering, Served):
        return replace(clustering, columns="representation")
    return clustering


def _by_told(config: Config, method: Method) -> Method:
    """The method with clients compared by what they tell, and by this distance."""
    name, distance = config.representation, None
    if name not in TOLD_REPRESENTATIONS:
        raise ConfigError(
            f"distance compares what clients tell the server, but the representation {name} is a "
            f"part of their models: choose one of {', '.join(TOLD_REPRESENTATIONS)}, "
            "or leave out distance"
        )
    if not isinstance(method.representation, Columns | Told):
        raise ConfigError(
            f"{method.name} has a representation of its own: leave out the representation {name}"
        )
    if config.distance != "method":
        if config.distance not in DISTANCES:
            raise ConfigError(unknown("distance", config.distance, DISTANCES))
        distance = DISTANCES[config.distance]
    made = by_told(method, TOLD_REPRESENTATIONS[name], distance)
    check_combination(made)
    return made


def _robust(config: Config, usual: Aggregation) -> Aggregation:
    """The aggregation of a configuration, with the method's importance of clients.

    A server optimizer steps towards its result instead of the mean.
    """
    if isinstance(usual, Stay):
        raise ConfigError(
            f"{config.method} does not aggregate models: leave out aggregation {config.aggregation}"
        )
    if isinstance(usual, Momentum | Adaptive):
        return replace(usual, of=_robust(config, usual.of))
    known = {"trimmed-mean": "share", "krum": "attackers", "multi-krum": "attackers"}
    if config.tolerated is None:
        return robust(config.aggregation, usual)
    if config.aggregation not in known:
        raise ConfigError(
            f"tolerated is for aggregation {', '.join(known)}, got {config.aggregation}: leave out "
            f"tolerated"
        )
    return robust(config.aggregation, usual, **{known[config.aggregation]: config.tolerated})
