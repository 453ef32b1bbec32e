"""Describes a method: what it is made of, in words and as values."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

from wecfl import bilevel
from wecfl.bilevel.representation import Columns
from wecfl.core.ask import Ask
from wecfl.core.method import Method
from wecfl.errors import ConfigError
from wecfl.methods.one_model import fedavg

__all__ = ["component_words", "components", "differences", "from_structure", "structure"]


def components(method: Method) -> dict[str, str]:
    """The components of the method in words, for `wecfl methods`.

    >>> from wecfl.methods import fesem
    >>> components(fesem(3))["aggregation"]
    'Mean(data_size)'
    """
    words = {
        field: component_words(getattr(method, field))
        for field in (
            "representation", "distance", "clustering", "importance", "aggregation", "local",
            "serve", "shared", "start", "members",
        )
    }  # fmt: skip
    if method.judge:
        words["judge"] = component_words(method.judge)
    steps = {name: " ".join(map(str, getattr(method, name))) for name in ("opening", "steps")}
    return words | steps


def differences(method: Method) -> dict[str, str]:
    """The components in which the method differs from FedAvg, in words.

    >>> from wecfl.methods import fedprox
    >>> differences(fedprox(0.1))
    {'local': 'Train(mu=0.1)'}
    """
    usual = components(fedavg)
    return {part: word for part, word in components(method).items() if word != usual.get(part)}


def structure(method: Method) -> dict[str, Any]:
    """The components of the method as plain values: names of functions and classes, and options.

    >>> from wecfl.methods import scaffold, wecfl
    >>> structure(wecfl(3))["clustering"]
    {'is': 'KMeans', 'fresh': 10, 'warm': True}
    >>> structure(scaffold())["steps"]
    "(Ask(L(offset, learn)), 'E', 'M', 'D')"
    """
    return {field: _plain(getattr(method, field)) for field in components(method)}


def from_structure(base: Method, plain: Mapping[str, Any], **more: Any) -> Method:
    """The method that has the structure `plain`; steps with an `Ask` are taken from `base`.

    >>> from wecfl.methods import fedprox
    >>> from_structure(fedavg, structure(fedprox(0.3)), name="mine").local
    Train(mu=0.3)
    """
    parts = {name: _component(name, value) for name, value in plain.items()}
    return base.replace(**{name: part for name, part in parts.items() if part is not None}, **more)


def _component(part: str, plain: Any) -> Any:
    """A component from its plain value; None for steps that must be taken from `base`."""
    if part in ("opening", "steps"):
        return None if "Ask(" in plain else literal_eval(plain)
    if part in ("shared", "start", "members"):
        _check_type(part, plain, "int" if part == "members" else "str")
        return plain
    if not isinstance(plain, dict | str):
        return plain
    name = plain if isinstance(plain, str) else plain["is"]
    known = _found(name)
    if isinstance(plain, str):
        return plain if known is None and part == "option" else _known(part, name, known)
    found = _known(part, name, known)
    options = {key: _component("option", value) for key, value in plain.items() if key != "is"}
    for field in fields(found):
        _check_type(f"{field.name} of {name}", options.get(field.name), field.type)
    return found(**options)


def _found(name: str) -> Any:
    """The component of this name, in any module of `wecfl.bilevel`; None if there is none."""
    modules = (import_module(it.name) for it in walk_packages(bilevel.__path__, "wecfl.bilevel."))
    return next((getattr(module, name) for module in modules if name in module.__all__), None)


def _check_type(what: str, value: Any, kind: Any) -> None:
    """Raise a `TypeError` for an option that is not of the simple type that its field has."""
    simple: dict[Any, tuple[type, ...]] = {
        "str": (str,), "int": (int,), "bool": (bool,), "float": (int, float)
    }  # fmt: skip
    if value is not None and not isinstance(value, simple.get(kind, (object,))):
        raise TypeError(f"{what} must be {kind}, got {value!r}")


def _known(part: str, name: str, found: Any) -> Any:
    if found is None:
        raise ConfigError(
            f"the {part} {name} of the method is not one of the library's, so it can't be rebuilt: "
            "give the method, load(…, method=…)"
        )
    return found


def _plain(value: object) -> Any:
    """A component as a plain value."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and any(isinstance(step, Ask) for step in value):
        # As words, since the address of a function differs from process to process.
        steps = (f"Ask({step})" if isinstance(step, Ask) else repr(step) for step in value)
        return f"({', '.join(steps)})"
    if not is_dataclass(value):
        return getattr(value, "__name__", None) or repr(value)
    options = {field.name: getattr(value, field.name) for field in fields(value)}
    plain = {name: _plain(option) for name, option in options.items() if option is not None}
    return {"is": type(value).__name__, **plain}


def component_words(component: object) -> str:
    """A component in words: a function by its name, a value by its class and options.

    >>> from wecfl.core.schedule import StepDecay, Warmup
    >>> component_words(Warmup(5, StepDecay(10)))
    'Warmup(rounds=5, then=StepDecay(rounds=10, factor=0.1))'
    """
    if not is_dataclass(component) or isinstance(component, Columns):
        return getattr(component, "__name__", None) or str(component)
    options = {field.name: getattr(component, field.name) for field in fields(component)}
    importance = options.pop("importance", None)
    words = [f"{name}={component_words(value)}" for name, value in options.items()]
    words += [component_words(importance)] if importance else []
    return f"{type(component).__name__}({', '.join(words)})"
