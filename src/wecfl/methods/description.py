"""What a method is made of, in words and as values."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

from wecfl.bilevel.representation import Columns
from wecfl.core.method import Method
from wecfl.methods.one_model import fedavg

__all__ = ["components", "differences", "structure"]


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
