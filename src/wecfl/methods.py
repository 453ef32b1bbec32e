"""The methods, each one value of `Method`: the paper's seven, and those it names.

>>> from wecfl import methods
>>> methods.wecfl(k=10).clustering
KMeans(fresh=10, warm=True)
>>> mine = methods.fedavg.replace(name="mine", local=Train(mu=0.1))          # a new method
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from wecfl.bilevel.aggregation import Mean, Stay
from wecfl.bilevel.auto import Auto, Criterion
from wecfl.bilevel.clustering import KMeans, Nearest
from wecfl.bilevel.control import CONTROLLED
from wecfl.bilevel.distance import component, squared_euclidean
from wecfl.bilevel.hierarchy import Agglomerative, Bipartition, Linkage, Metric
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
    "differences",
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
    "options",
    "scaffold",
    "structure",
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


def wecfl(k: K, warm: bool = True, criterion: Criterion = "both") -> Method:
    """WeCFL, Algorithm 1: weighted K-means of the clients' models, λ_i = |D_i| (the paper).

    With `warm`, K-means also starts from the previous centers, so that F never rises; K = "auto"
    is chosen by `criterion`.

    >>> wecfl(k=10).representation
    Columns('head')
    >>> wecfl(k="auto").clustering.criterion
    'both'
    """
    kmeans = KMeans(warm=warm)
    clustering = Auto(kmeans, criterion) if k == "auto" else kmeans
    return fedavg.replace(name="wecfl", k=k, clustering=clustering)


def fesem(k: K, warm: bool = True, criterion: Criterion = "both") -> Method:
    """FeSEM: clusters with λ_i = 1, aggregates by data size (Xie et al.; the authors' code).

    >>> fesem(k=10).importance.__name__
    'uniform'
    """
    like = wecfl(k, warm, criterion)
    return like.replace(name="fesem", importance=uniform, aggregation=Mean(data_size))


def ifca(k: int, batches: int | None = None) -> Method:
    """IFCA (= HypCluster): a client takes the cluster model with the least training loss.

    Starts from K different models; aggregates under the labels the clients trained with, then
    reassigns (Ghosh et al., NeurIPS 2020; Mansour et al., 2020). The loss is estimated on so many
    `batches`, or on all data.

    >>> ifca(k=10).steps
    ('L', 'M', 'E', 'D')
    """
    return fedavg.replace(
        name="ifca", k=k, representation=Losses(batches), distance=component, start="each",
        opening=("E", "D"), steps=("L", "M", "E", "D"),
    )  # fmt: skip


def cfl(eps1: float = 0.4, eps2: float = 1.0) -> Method:
    """CFL: clusters are parted in two where clients pull apart (Sattler et al., TNNLS 2020).

    The options are those of `wecfl.bilevel.hierarchy.Bipartition`.

    >>> cfl(eps1=0.1).clustering.eps1
    0.1
    """
    return fedavg.replace(name="cfl", k="auto", clustering=Bipartition(eps1, eps2))


def flhc(
    round: int = 1,
    threshold: float = 0.5,
    linkage: Linkage = "average",
    metric: Metric = "cosine",
) -> Method:
    """FL+HC: clients are clustered once, by their updates in one round (Briggs et al., IJCNN 2020).

    The options are those of `wecfl.bilevel.hierarchy.Agglomerative`.

    >>> flhc(round=3).clustering.round
    3
    """
    clustering = Agglomerative(round, threshold, linkage, metric)
    return fedavg.replace(name="flhc", k="auto", clustering=clustering)


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
    return fedavg.replace(name="local", local=Alone(), serve=Personal(), aggregation=Stay())


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


METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": lambda: fedavg,
    "fedprox": fedprox,
    "fedavg+": fedavg_plus,
    "fedprox+": fedprox_plus,
    "ifca": ifca,
    "fesem": fesem,
    "wecfl": wecfl,
    "cfl": cfl,
    "flhc": flhc,
    "fedavgm": fedavgm,
    "fedadagrad": fedadagrad,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "scaffold": scaffold,
    "local": local,
    "fedavg-ft": fedavg_ft,
    "ditto": ditto,
    "fedper": fedper,
    "lg-fedavg": lg_fedavg,
    "fedrep": fedrep,
}
"""By name, what makes the method: its signature says which options there are."""


def options(name: str) -> Mapping[str, Parameter]:
    """The options of the method of that name, as its signature has them.

    >>> {option: each.default for option, each in options("cfl").items()}
    {'eps1': 0.4, 'eps2': 1.0}
    """
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return signature(METHODS[name], eval_str=True).parameters


def named(name: str, **chosen: Any) -> Method:
    """The method of that name, with options of its own; one that it does not have is refused.

    >>> named("wecfl", k=3).k
    3
    >>> named("cfl", eps=0.1)
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown option of cfl 'eps'; did you mean 'eps2'?
    """
    known = options(name)
    for option in chosen:
        if not known:
            raise ConfigError(f"{name} has no option '{option}': it takes none")
        if option not in known:
            raise ConfigError(unknown(f"option of {name}", option, known))
    if missing := [
        each for each, of in known.items() if of.default is of.empty and each not in chosen
    ]:
        raise ConfigError(f"{name} needs its option '{missing[0]}'")
    return METHODS[name](**{each: _fitting(name, known[each], chosen[each]) for each in chosen})


def _fitting(name: str, option: Parameter, value: Any) -> Any:
    """The value of an option in the type that the method asks for."""
    if option.annotation is option.empty:  # of a factory that a user has added
        return value
    try:
        return TypeAdapter(option.annotation).validate_python(value)
    except ValidationError as error:
        if value == "auto":
            choosing = [each for each in METHODS if _takes_auto(each)]
            raise ConfigError(
                f"{name} needs a number of clusters: only {' and '.join(choosing)} choose it"
            ) from None
        said = error.errors()[0]["msg"].replace("Input", "it", 1)
        raise ConfigError(f"{option.name} of {name}: {said}, got {value!r}") from None


def _takes_auto(name: str) -> bool:
    known = options(name)
    return "k" in known and known["k"].annotation == K


def components(method: Method) -> dict[str, str]:
    """What the method is made of, in words, for `wecfl methods`.

    >>> components(fesem(3))["aggregation"]
    'Mean(data_size)'
    """
    said = {
        field: _word(getattr(method, field))
        for field in (
            "representation", "distance", "clustering", "importance", "aggregation", "local",
            "serve", "shared", "start", "members",
        )
    }  # fmt: skip
    steps = {name: " ".join(map(str, getattr(method, name))) for name in ("opening", "steps")}
    return said | steps


def differences(method: Method) -> dict[str, str]:
    """What sets the method apart from FedAvg, in words.

    >>> differences(fedprox(0.1))
    {'local': 'Train(mu=0.1)'}
    """
    usual, own = components(fedavg), components(method)
    return {part: word for part, word in own.items() if word != usual[part]}


def structure(method: Method) -> dict[str, Any]:
    """The same as values: functions and classes by name, with the options of each.

    >>> structure(wecfl(3))["clustering"]
    {'is': 'KMeans', 'fresh': 10, 'warm': True}
    """
    return {field: _plain(getattr(method, field)) for field in components(method)}


def _plain(value: object) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    if not is_dataclass(value):
        return getattr(value, "__name__", None) or repr(value)
    inside = {field.name: getattr(value, field.name) for field in fields(value)}
    told = {name: _plain(each) for name, each in inside.items() if each is not None}
    return {"is": type(value).__name__, **told}


def _word(component: object) -> str:
    """A function by its name; a value by its class and its options, λ by its own name."""
    if not is_dataclass(component) or isinstance(component, Columns):
        return getattr(component, "__name__", None) or str(component)
    options = {field.name: getattr(component, field.name) for field in fields(component)}
    importance = options.pop("importance", None)
    words = [f"{name}={_word(value)}" for name, value in options.items()]
    return (
        f"{type(component).__name__}({', '.join(words + [_word(importance)] * bool(importance))})"
    )
