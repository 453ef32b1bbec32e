"""Describes a method: what it is made of, in words and as values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from wecfl.bilevel.representation import Columns
from wecfl.core.method import Method
from wecfl.methods.one_model import fedavg

__all__ = ["component_words", "components", "differences", "structure"]


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
    steps = {name: " ".join(map(str, getattr(method, name))) for name in ("opening", "steps")}
    return words | steps


def differences(method: Method) -> dict[str, str]:
    """The components in which the method differs from FedAvg, in words.

    >>> from wecfl.methods import fedprox
    >>> differences(fedprox(0.1))
    {'local': 'Train(mu=0.1)'}
    """
    usual = components(fedavg)
    return {part: word for part, word in components(method).items() if word != usual[part]}


def structure(method: Method) -> dict[str, Any]:
    """The components of the method as plain values: names of functions and classes, and options.

    >>> from wecfl.methods import wecfl
    >>> structure(wecfl(3))["clustering"]
    {'is': 'KMeans', 'fresh': 10, 'warm': True}
    """
    return {field: _plain(getattr(method, field)) for field in components(method)}


def _plain(value: object) -> Any:
    """A component as a plain value."""
    if isinstance(value, bool | int | float | str):
        return value
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
