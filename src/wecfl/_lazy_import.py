"""Lazy imports: names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

__all__ = ["lazy_import"]


def lazy_import(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that imports some of its names lazily.

    `places` says for each name where it is defined, as `module:name`, or `module:` for a module.

    >>> find, names = lazy_import("wecfl", {"half": "fractions:Fraction"})
    >>> find("half")
    <class 'fractions.Fraction'>
    >>> find("third")
    Traceback (most recent call last):
    ...
    AttributeError: module 'wecfl' has no attribute 'third'
    """

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return resolve_name(places[name])

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return find, names
