"""The paper's seven methods and two that need no K, each one value of `Method`.

>>> from wecfl import methods
>>> methods.wecfl(k=10).clustering
KMeans(fresh=10, warm=True)
>>> mine = methods.fedavg.replace(name="mine", objective=Proximal(mu=0.1))   # a new method
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from wecfl.bilevel.aggregation import Mean
from wecfl.bilevel.auto import Auto
from wecfl.bilevel.clustering import KMeans, Nearest
from wecfl.bilevel.distance import component, squared_euclidean
from wecfl.bilevel.hierarchy import Agglomerative, Bipartition
from wecfl.bilevel.importance import data_size, uniform
from wecfl.bilevel.objective import Proximal, empirical
from wecfl.bilevel.representation import Columns, Losses
from wecfl.core.method import Method
from wecfl.errors import ConfigError, unknown

__all__ = [
    "METHODS",
    "cfl",
    "components",
    "fedavg",
    "fedavg_plus",
    "fedprox",
    "fedprox_plus",
    "fesem",
    "flhc",
    "ifca",
    "named",
    "wecfl",
]

K = int | Literal["auto"]
"""A number of clusters, or that the server chooses it."""

MU = 0.95
"""The paper's FedProx coefficient (its text calls it λ)."""

fedavg = Method(
    name="fedavg",
    representation=Columns("head"),
    distance=squared_euclidean,
    clustering=Nearest(),
    importance=data_size,
    objective=empirical,
    aggregation=Mean(),
)
"""FedAvg: one cluster, λ_i = |D_i| (McMahan et al., AISTATS 2017)."""


def fedprox(mu: float = MU) -> Method:
    """FedProx: FedAvg whose clients stay near the model they received (Li et al., MLSys 2020).

    >>> fedprox(0.1).objective
    Proximal(mu=0.1)
    """
    return fedavg.replace(name="fedprox", objective=Proximal(mu))


def wecfl(k: K) -> Method:
    """WeCFL, Algorithm 1: weighted K-means of the clients' models, λ_i = |D_i| (the paper).

    >>> wecfl(k=10).representation
    Columns('head')
    >>> wecfl(k="auto").clustering.criterion
    'both'
    """
    return fedavg.replace(name="wecfl", k=k, clustering=Auto() if k == "auto" else KMeans())


def fesem(k: K) -> Method:
    """FeSEM: clusters with λ_i = 1, aggregates by data size (Xie et al.; the authors' code).

    >>> fesem(k=10).importance.__name__
    'uniform'
    """
    return wecfl(k).replace(name="fesem", importance=uniform, aggregation=Mean(data_size))


def ifca(k: int) -> Method:
    """IFCA (= HypCluster): a client takes the cluster model with the least training loss.

    Starts from K different models; aggregates under the labels the clients trained with, then
    reassigns (Ghosh et al., NeurIPS 2020; Mansour et al., 2020).

    >>> ifca(k=10).order
    'EDLM'
    """
    return fedavg.replace(
        name="ifca", k=k, representation=Losses(), distance=component, start="each", order="EDLM"
    )


def cfl(**options: float) -> Method:
    """CFL: clusters are parted in two where clients pull apart (Sattler et al., TNNLS 2020).

    `options` are those of `wecfl.bilevel.hierarchy.Bipartition`.

    >>> cfl(eps1=0.1).clustering.eps1
    0.1
    """
    return fedavg.replace(name="cfl", k="auto", clustering=Bipartition(**options))


def flhc(**options: Any) -> Method:
    """FL+HC: clients are clustered once, by their updates in one round (Briggs et al., IJCNN 2020).

    `options` are those of `wecfl.bilevel.hierarchy.Agglomerative`.

    >>> flhc(round=3).clustering.round
    3
    """
    return fedavg.replace(name="flhc", k="auto", clustering=Agglomerative(**options))


def fedavg_plus(k: int) -> Method:
    """FedAvg+: k independent FedAvg runs, their logits averaged (the paper's soft voting).

    >>> fedavg_plus(5).members
    5
    """
    return fedavg.replace(name="fedavg+", members=k)


def fedprox_plus(k: int, mu: float = MU) -> Method:
    """FedProx+: k independent FedProx runs, their logits averaged.

    >>> fedprox_plus(5).name
    'fedprox+'
    """
    return fedprox(mu).replace(name="fedprox+", members=k)


METHODS: dict[str, Callable[[Any, float], Method]] = {
    "fedavg": lambda k, mu: fedavg,
    "fedprox": lambda k, mu: fedprox(mu),
    "fedavg+": lambda k, mu: fedavg_plus(k),
    "fedprox+": fedprox_plus,
    "ifca": lambda k, mu: ifca(k),
    "fesem": lambda k, mu: fesem(k),
    "wecfl": lambda k, mu: wecfl(k),
    "cfl": lambda k, mu: cfl(),
    "flhc": lambda k, mu: flhc(),
}
"""By name, from the two numbers a user may set: clusters k and FedProx's mu."""


def named(name: str, k: K = 10, mu: float = MU) -> Method:
    """The method of that name.

    >>> named("wecfl", k=3).k
    3
    """
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    if k == "auto" and name in ("ifca", "fedavg+", "fedprox+"):
        raise ConfigError(f"{name} needs a number of clusters: only wecfl and fesem choose it")
    return METHODS[name](k, mu)


def components(method: Method) -> dict[str, str]:
    """What the method is made of, in words, for `wecfl methods`.

    >>> components(fesem(3))["aggregation"]
    'Mean(data_size)'
    """
    return {
        field: _word(getattr(method, field))
        for field in (
            "representation", "distance", "clustering", "importance", "objective", "aggregation",
            "shared", "start", "order", "members",
        )
    }  # fmt: skip


def _word(component: object) -> str:
    """A function by its name; a value by its class and its options, λ by its own name."""
    if not (is_dataclass(component) and hasattr(component, "importance")):
        return getattr(component, "__name__", None) or str(component)
    options = {field.name: getattr(component, field.name) for field in fields(component)}
    importance = options.pop("importance")
    words = [f"{name}={value}" for name, value in options.items()]
    return (
        f"{type(component).__name__}({', '.join(words + [_word(importance)] * bool(importance))})"
    )
