"""The paper's seven methods and two that need no K, each one value of `Method`.

>>> from wecfl import methods
>>> methods.wecfl(k=10).clustering
KMeans(fresh=10, warm=True)
>>> mine = methods.fedavg.replace(name="mine", local=Train(mu=0.1))          # a new method
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Literal

from wecfl.bilevel.aggregation import Mean
from wecfl.bilevel.auto import Auto
from wecfl.bilevel.clustering import KMeans, Nearest
from wecfl.bilevel.control import CONTROLLED
from wecfl.bilevel.distance import component, squared_euclidean
from wecfl.bilevel.hierarchy import Agglomerative, Bipartition
from wecfl.bilevel.importance import data_size, uniform
from wecfl.bilevel.local import Alone, Ditto, Parts, Train
from wecfl.bilevel.optimizer import Adaptive, Momentum, adagrad, adam, yogi
from wecfl.bilevel.representation import Columns, Losses
from wecfl.bilevel.serving import Center, Personal, Tuned
from wecfl.core.method import Method
from wecfl.errors import ConfigError, unknown

__all__ = [
    "METHODS",
    "cfl",
    "components",
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedavg",
    "fedavg_ft",
    "fedavg_plus",
    "fedavgm",
    "fedper",
    "fedprox",
    "fedprox_plus",
    "fedrep",
    "fedyogi",
    "fesem",
    "flhc",
    "ifca",
    "lg_fedavg",
    "local",
    "named",
    "scaffold",
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
    aggregation=Mean(),
    local=Train(),
    serve=Center(),
)
"""FedAvg: one cluster, λ_i = |D_i| (McMahan et al., AISTATS 2017)."""


def fedprox(mu: float = MU) -> Method:
    """FedProx: FedAvg whose clients stay near the model they received (Li et al., MLSys 2020).

    >>> fedprox(0.1).local
    Train(mu=0.1)
    """
    return fedavg.replace(name="fedprox", local=Train(mu))


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

    >>> ifca(k=10).steps
    ('L', 'M', 'E', 'D')
    """
    return fedavg.replace(
        name="ifca", k=k, representation=Losses(), distance=component, start="each",
        opening=("E", "D"), steps=("L", "M", "E", "D"),
    )  # fmt: skip


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


def fedavgm(server_lr: float = 1.0, beta: float = 0.9) -> Method:
    """FedAvgM: the server steps with momentum (Hsu et al., 2019).

    >>> fedavgm().aggregation.beta
    0.9
    """
    return fedavg.replace(name="fedavgm", aggregation=Momentum(server_lr, beta))


def fedadagrad(server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3) -> Method:
    """FedAdagrad: the server steps by Adagrad (Reddi et al., ICLR 2021).

    >>> fedadagrad().aggregation.second.__name__
    'adagrad'
    """
    return fedavg.replace(
        name="fedadagrad", aggregation=Adaptive(adagrad, server_lr, beta1, tau=tau)
    )


def fedadam(
    server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedAdam: the server steps by Adam (Reddi et al., ICLR 2021).

    >>> fedadam(tau=0.1).aggregation.tau
    0.1
    """
    return fedavg.replace(name="fedadam", aggregation=Adaptive(adam, server_lr, beta1, beta2, tau))


def fedyogi(
    server_lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3
) -> Method:
    """FedYogi: the server steps by Yogi (Reddi et al., ICLR 2021).

    >>> fedyogi().aggregation.second.__name__
    'yogi'
    """
    return fedavg.replace(name="fedyogi", aggregation=Adaptive(yogi, server_lr, beta1, beta2, tau))


def scaffold() -> Method:
    """SCAFFOLD: control variates against client drift (Karimireddy et al., ICML 2020).

    Clients take plain gradient steps: it sets momentum to 0 where nothing else is said.

    >>> scaffold().plan
    {'momentum': 0.0}
    """
    return fedavg.replace(
        name="scaffold", steps=(CONTROLLED, "E", "M", "D"), plan={"momentum": 0.0}
    )


def local() -> Method:
    """Local training only: every client goes on from its own model, and nothing is averaged.

    >>> local().serve
    Personal()
    """
    return fedavg.replace(
        name="local", local=Alone(), serve=Personal(), opening=("E", "D"), steps=("L", "E", "D")
    )


def fedavg_ft(tuning_steps: int | None = None) -> Method:
    """FedAvg whose model is fine-tuned by each client before it serves; told before and after.

    >>> fedavg_ft(5).serve
    Tuned(steps=5)
    """
    return fedavg.replace(name="fedavg-ft", serve=Tuned(tuning_steps))


def ditto(lam: float = 1.0) -> Method:
    """Ditto: a personal model tethered to the common one (Li et al., ICML 2021).

    >>> ditto(0.5).local
    Ditto(lam=0.5)
    """
    return fedavg.replace(name="ditto", local=Ditto(lam), serve=Personal())


def fedper() -> Method:
    """FedPer: the last layer stays with its client (Arivazhagan et al., 2019).

    >>> fedper().shared
    '~classifier'
    """
    return fedavg.replace(
        name="fedper", shared="~classifier", representation=Columns("~classifier")
    )


def lg_fedavg() -> Method:
    """LG-FedAvg: only the last layer is shared (Liang et al., 2020).

    >>> lg_fedavg().shared
    'classifier'
    """
    return fedavg.replace(name="lg-fedavg", shared="classifier")


def fedrep(head_steps: int | None = None) -> Method:
    """FedRep: as FedPer, but head and body are trained one after the other (Collins, ICML 2021).

    >>> fedrep(3).local
    Parts(first='classifier', steps=3)
    """
    return fedper().replace(name="fedrep", local=Parts("classifier", head_steps))


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
    "fedavgm": lambda k, mu: fedavgm(),
    "fedadagrad": lambda k, mu: fedadagrad(),
    "fedadam": lambda k, mu: fedadam(),
    "fedyogi": lambda k, mu: fedyogi(),
    "scaffold": lambda k, mu: scaffold(),
    "local": lambda k, mu: local(),
    "fedavg-ft": lambda k, mu: fedavg_ft(),
    "ditto": lambda k, mu: ditto(),
    "fedper": lambda k, mu: fedper(),
    "lg-fedavg": lambda k, mu: lg_fedavg(),
    "fedrep": lambda k, mu: fedrep(),
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
    said = {
        field: _word(getattr(method, field))
        for field in (
            "representation", "distance", "clustering", "importance", "aggregation", "local", "serve",
            "shared", "start", "members",
        )
    }  # fmt: skip
    steps = {name: " ".join(map(str, getattr(method, name))) for name in ("opening", "steps")}
    return said | steps


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
