"""Makes texts that others wrote safe to show on a terminal or a page: no control characters."""

from __future__ import annotations

import logging
import re

__all__ = ["log", "printable", "printable_lines"]

BREAK = re.compile(r"\s*[^\S ]\s*")
"""White space that is more than spaces: line breaks, tabs."""


def printable(text: str) -> str:
    r"""One line of a text, with control characters as escapes, so that no terminal obeys them.

    Control characters are those of a terminal (ESC, C1), and those of Unicode that are invisible or
    change the direction or the order of letters.

    >>> printable("red:\x1b[31m and\n more"), printable("\u202egpj.exe")
    ('red:\\x1b[31m and more', '\\u202egpj.exe')
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in BREAK.sub(" ", text)
    )


def printable_lines(text: str) -> str:
    r"""A text with control characters as escapes, except line breaks, which stay.

    >>> printable_lines("a\x1b\n b")
    'a\\x1b\n b'
    """
    return "\n".join(map(printable, text.split("\n")))


def _show(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), None
    return True


log = logging.getLogger("wecfl")
"""The logger of the library, for messages that are not errors. All its messages are printable."""
log.addFilter(_show)
