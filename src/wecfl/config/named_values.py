"""Values as a configuration writes them: ``NAME`` or ``NAME(OPTION=VALUE, …)``.

Tasks and transforms of the data are such values: frozen dataclasses, whose fields are the options.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from wecfl.errors import ConfigError, unknown

__all__ = ["check_options", "read_known", "read_value", "write_value"]


Value = TypeVar("Value")


def read_value(text: str, kind: str) -> tuple[str, dict[str, Any]]:
    """The name and the options in a text; `kind` is the word for such a value in errors.

    >>> read_value("regression(loss=quantile, quantile=0.9)", "task")
    ('regression', {'loss': 'quantile', 'quantile': 0.9})
    >>> read_value("rotation(90)", "transform")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: a transform is written as NAME or NAME(OPTION=VALUE, …), got ...
    """
    name, bracket, inside = text.strip().partition("(")
    options: dict[str, Any] = {}
    if bracket:
        try:
            call = ast.parse(f"{kind}({inside}", mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError("an option without a name")
            options = {str(option.arg): _read_option(option.value) for option in call.keywords}
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ConfigError(
                f"a {kind} is written as NAME or NAME(OPTION=VALUE, …), got {text!r}"
            ) from None
    return name.strip(), options


def check_options(kind: str, of: type[Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that the value does not have.

    >>> from wecfl.tasks import Regression
    >>> check_options("task", Regression, {"los": "huber"})
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown option of the task regression 'los'; did you mean 'loss'?
    """
    known = [field.name for field in fields(of)]
    for option in options:
        if option not in known:
            raise ConfigError(unknown(f"option of the {kind} {of.name}", option, known))


def read_known(text: str, kind: str, known: Mapping[str, type[Value]]) -> Value:
    """The value that a text names; `known` are the possible classes by name.

    >>> from wecfl.data.transforms import TRANSFORMS
    >>> read_known("rotation(step=30)", "transform", TRANSFORMS)
    Rotation(step=30, by='group')
    """
    name, options = read_value(text, kind)
    if name not in known:
        raise ConfigError(unknown(kind, name, known))
    check_options(kind, known[name], options)
    return known[name](**options)


def write_value(value: Any) -> str:
    """The text that names a value: `read_value` reads it. Options with default values are left out.

    >>> from wecfl.tasks import Regression
    >>> write_value(Regression(loss="huber", delta=2.0)), write_value(Regression())
    ('regression(loss=huber, delta=2.0)', 'regression')
    """
    options = {
        field.name: option
        for field in fields(value)
        if field.init and (option := getattr(value, field.name)) != field.default
    }
    written = ", ".join(f"{name}={_write_option(option)}" for name, option in options.items())
    return f"{value.name}({written})" if written else str(value.name)


def _read_option(node: ast.expr) -> Any:
    """A number, a text with or without quotes, or a list of them."""
    if isinstance(node, ast.Name):
        return node.id
    value = ast.literal_eval(node)
    return tuple(value) if isinstance(value, list) else value


def _write_option(option: object) -> str:
    if isinstance(option, tuple):
        return f"[{', '.join(map(_write_option, option))}]"
    return option if isinstance(option, str) and option.isidentifier() else repr(option)
