"""Numbers that JSON can write, and the values inside nested tables and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

__all__ = ["json_number", "leaves"]


def json_number(
    value: float | None, *, significant: int | None = None, decimals: int | None = None
) -> float | None:
    """The number as JSON can write it: None for NaN and infinity, which JSON does not know.

    It is rounded to `significant` digits, or to `decimals` after the point, if one is given.

    >>> json_number(2 / 3, significant=2), json_number(200 / 3, decimals=2), json_number(1e999)
    (0.67, 66.67, None)
    """
    if value is None or not isfinite(value):
        return None
    if significant is not None:
        return float(f"{value:.{significant}g}")
    return float(value) if decimals is None else round(float(value), decimals)


def leaves(
    tree: object, *, between: str, item: str | None = "{}", name: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield each value inside nested tables and lists, with its full name.

    The full name consists of the names on the path to the value, with `between` between them.
    `item` is the name of the i-th value of a list; if it is None, lists are yielded whole.

    >>> list(leaves({"F": {"E": 0.5}, "sizes": [3, 2]}, between="/"))
    [('F/E', 0.5), ('sizes/0', 3), ('sizes/1', 2)]
    """
    inside: dict[str, Any] | None = None
    if isinstance(tree, Mapping):
        inside = {str(key): value for key, value in tree.items()}
    elif isinstance(tree, list | tuple) and item is not None:
        inside = {item.format(i): value for i, value in enumerate(tree)}
    if inside is None:
        yield name, tree
        return
    for key, value in inside.items():
        longer = f"{name}{between}{key}" if name else key
        yield from leaves(value, between=between, item=item, name=longer)
