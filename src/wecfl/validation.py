"""Turns pydantic's report about a wrong value into one line."""

from __future__ import annotations

from collections.abc import Container

from pydantic import ValidationError

__all__ = ["one_line"]


def one_line(error: ValidationError, known: Container[str] | None) -> str:
    """The first problem of pydantic's report, in one line; only keys in `known` are named.

    >>> from wecfl.config import Config
    >>> try: Config(rounds=0)
    ... except ValidationError as error: one_line(error, Config.model_fields)
    'rounds: input should be greater than or equal to 1, got 0'
    """
    first = error.errors()[0]
    # For a union, such as that of lr, pydantic also names the member that failed.
    key = ".".join(
        str(p) for p in first["loc"] if known is None or p in known or isinstance(p, int)
    )
    if first["type"] == "missing":
        return f"it has no '{key}'"
    problem = first["msg"].replace("Input", "input", 1).replace("tuple", "list")
    # Further problems are about a word that may take the place of a number, such as auto or theory.
    for other in error.errors()[1:]:
        same = other["loc"][:1] == first["loc"][:1] and isinstance(first["input"], str)
        if same and other["type"] == "literal_error":
            problem += f" or {other['ctx']['expected']}"
    got = repr(first["input"])
    return f"{key and key + ': '}{problem}, got {got if len(got) <= 40 else got[:40] + '…'}"
