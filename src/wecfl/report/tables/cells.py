"""Cells of the tables in the terminal."""

from __future__ import annotations

from rich.markup import escape

from wecfl.printing import printable

__all__ = ["cell"]


def cell(text: str) -> str:
    r"""A text as it is, and not as markup or as control characters.

    >>> cell("[bold] \x1b[31m")
    '\\[bold] \\x1b[31m'
    """
    return escape(printable(text))
