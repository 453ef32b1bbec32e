"""The methods by name: the seven that the paper compares, and many more. Each is a `Method`.

There are three families: a method learns one model for all clients (`one_model`), a model for each
cluster (`per_cluster`), or a model for each client (`per_client`).

>>> from wecfl import methods
>>> methods.wecfl(k=10).clustering
KMeans(fresh=10, warm=True)
>>> from wecfl.bilevel.local import Train
>>> mine = methods.fedavg.replace(name="mine", local=Train(mu=0.1))          # a new method
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

from pydantic import TypeAdapter, ValidationError

from wecfl.core.method import Method
from wecfl.errors import ConfigError, unknown
from wecfl.methods.description import (
    component_words,
    components,
    differences,
    from_structure,
    structure,
)
from wecfl.methods.one_model import (
    fedadagrad,
    fedadam,
    fedatt,
    fedavg,
    fedavg_plus,
    fedavgm,
    feddane,
    feddyn,
    fednova,
    fedp2p,
    fedprox,
    fedprox_plus,
    fedyogi,
    moon,
    scaffold,
)
from wecfl.methods.per_client import (
    apfl,
    ditto,
    fedavg_ft,
    fedbabu,
    fedmeta,
    fedper,
    fedproto,
    fedrep,
    hermes,
    lg_fedavg,
    local,
    lotteryfl,
    per_fedavg,
    pfedhn,
    pfedme,
)
from wecfl.methods.per_cluster import (
    NumberOfClusters,
    cam,
    cfl,
    clove,
    fedem,
    fedgroup,
    fedrc,
    fedsoft,
    fesem,
    flhc,
    ifca,
    ifca_one_shot,
    ifca_plus,
    k_fed,
    pacfl,
    stocfl,
    wecfl,
)

__all__ = [
    "FAMILIES",
    "METHODS",
    "apfl",
    "cam",
    "cfl",
    "clove",
    "component_words",
    "components",
    "differences",
    "ditto",
    "fedadagrad",
    "fedadam",
    "fedatt",
    "fedavg",
    "fedavg_ft",
    "fedavg_plus",
    "fedavgm",
    "fedbabu",
    "feddane",
    "feddyn",
    "fedem",
    "fedgroup",
    "fedmeta",
    "fednova",
    "fedp2p",
    "fedper",
    "fedproto",
    "fedprox",
    "fedprox_plus",
    "fedrc",
    "fedrep",
    "fedsoft",
    "fedyogi",
    "fesem",
    "flhc",
    "hermes",
    "ifca",
    "ifca_one_shot",
    "ifca_plus",
    "k_fed",
    "lg_fedavg",
    "local",
    "lotteryfl",
    "moon",
    "named",
    "options",
    "pacfl",
    "per_fedavg",
    "pfedhn",
    "pfedme",
    "rebuilt",
    "scaffold",
    "stocfl",
    "structure",
    "wecfl",
]

FAMILIES: dict[str, dict[str, Callable[..., Method]]] = {
    "one model": {
        "fedavg": lambda: fedavg,
        "fedprox": fedprox,
        "fedavg+": fedavg_plus,
        "fedprox+": fedprox_plus,
        "fedavgm": fedavgm,
        "fedadagrad": fedadagrad,
        "fedadam": fedadam,
        "fedyogi": fedyogi,
        "scaffold": scaffold,
        "fednova": fednova,
        "feddyn": feddyn,
        "feddane": feddane,
        "fedatt": fedatt,
        "fedp2p": fedp2p,
        "moon": moon,
    },
    "a model per cluster": {
        "ifca": ifca,
        "fesem": fesem,
        "wecfl": wecfl,
        "cfl": cfl,
        "flhc": flhc,
        "ifca+": ifca_plus,
        "ifca-one-shot": ifca_one_shot,
        "clove": clove,
        "pacfl": pacfl,
        "fedgroup": fedgroup,
        "k-fed": k_fed,
        "stocfl": stocfl,
        "cam": cam,
        "fedem": fedem,
        "fedrc": fedrc,
        "fedsoft": fedsoft,
    },
    "a model per client": {
        "local": local,
        "fedavg-ft": fedavg_ft,
        "ditto": ditto,
        "fedper": fedper,
        "lg-fedavg": lg_fedavg,
        "fedrep": fedrep,
        "per-fedavg": per_fedavg,
        "pfedme": pfedme,
        "fedbabu": fedbabu,
        "apfl": apfl,
        "fedmeta": fedmeta,
        "fedproto": fedproto,
        "lotteryfl": lotteryfl,
        "hermes": hermes,
        "pfedhn": pfedhn,
    },
}
"""The functions that make the methods, by family and name."""

METHODS: dict[str, Callable[..., Method]] = {
    name: make for family in FAMILIES.values() for name, make in family.items()
}
"""The functions that make the methods, by name. Their parameters are the methods' options."""


def options(name: str) -> Mapping[str, Parameter]:
    """The options of a method, as parameters of the function that makes it.

    >>> {name: option.default for name, option in options("cfl").items()}
    {'eps1': 0.4, 'eps2': 1.0, 'relative': False, 'project': None}
    """
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS))
    return signature(METHODS[name], eval_str=True).parameters


def named(name: str, **chosen: Any) -> Method:
    """The method of that name, with these options; an error for an option that it does not have.

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
            raise ConfigError(f"{name} has no options, got '{option}': leave it out")
        if option not in known:
            raise ConfigError(unknown(f"option of {name}", option, known))
    if missing := [
        option
        for option, parameter in known.items()
        if parameter.default is parameter.empty and option not in chosen
    ]:
        raise ConfigError(f"{name} needs its option '{missing[0]}', which has no default: give it")
    fitting = {option: _fitting(name, known[option], value) for option, value in chosen.items()}
    try:
        return METHODS[name](**fitting)
    except ConfigError as error:
        refused = _refused(name, fitting)
        if refused is None or refused in str(error):
            raise
        raise ConfigError(f"{refused} of {name}: {error}") from None


def rebuilt(name: str, k: NumberOfClusters, plain: Mapping[str, Any]) -> Method:
    """The method of this name that has this structure.

    >>> rebuilt("fedprox", 1, structure(fedprox(0.3))).local
    Train(mu=0.3)
    """
    base = fedavg
    if name in METHODS:
        base = named(name, **({"k": k} if "k" in options(name) else {}))
    return from_structure(base, plain, name=name, k=k)


def _fitting(name: str, option: Parameter, value: Any) -> Any:
    """The value of an option, in the type that the method asks for."""
    if option.annotation is option.empty:  # the user's own method, without types
        return value
    try:
        return TypeAdapter(option.annotation).validate_python(value)
    except ValidationError as error:
        if value == "auto":
            choosing = [method for method in METHODS if _takes_auto(method)]
            raise ConfigError(
                f"{name} needs a number of clusters, got 'auto', which is for "
                f"{' and '.join(choosing)}: give a number"
            ) from None
        problem = error.errors()[0]["msg"].replace("Input", "it", 1)
        raise ConfigError(f"{option.name} of {name}: {problem}, got {value!r}") from None


def _refused(name: str, chosen: Mapping[str, Any]) -> str | None:
    """The option whose value is refused: without it, the method can be made. None: there is none.

    The component that refuses a value may have another name for it: a `pull` is the μ of `Train`.

    >>> _refused("wecfl", {"k": 2, "pull": -1.0}), _refused("fedavg+", {"k": 0})
    ('pull', 'k')
    """
    for option in chosen:
        others = {key: value for key, value in chosen.items() if key != option}
        if options(name)[option].default is Parameter.empty:
            others[option] = 1
        try:
            METHODS[name](**others)
        except ConfigError:
            continue
        return option
    return None


def _takes_auto(name: str) -> bool:
    """Whether the method can choose K itself."""
    known = options(name)
    return "k" in known and known["k"].annotation == NumberOfClusters
