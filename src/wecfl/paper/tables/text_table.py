"""A table of texts, and how it looks in Markdown, in LaTeX and in the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

__all__ = ["NOT_RUN_TEXT", "TextTable", "markdown_rows"]

NOT_RUN_TEXT = "not run"
"""The text in place of a score that was not computed."""

BOLD = re.compile(r"\*\*(.+?)\*\*")
LATEX = str.maketrans({"%": r"\%", "±": r"$\pm$", "Δ": r"$\Delta$", "–": "--"})
"""Characters of our tables that LaTeX writes differently."""
LEFT_ALIGNED_HEADS = ("method", "what", "attack", "unseen group")
"""The heads of columns that hold words."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """Title, column heads and rows of text. Text between ** is printed bold."""

    title: str
    heads: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in Markdown, with its title in bold above it."""
        return f"**{self.title}**\n\n{markdown_rows(self.heads, self.rows)}"

    def latex(self, definition: str) -> str:
        """The table in LaTeX, with booktabs; its caption names the definition and the title."""
        text = pd.DataFrame(self.rows, columns=self.heads).to_latex(
            index=False,
            escape=False,
            caption=f"{definition}: {self.title}",
            column_format="l" + "r" * (len(self.heads) - 1),
        )
        return BOLD.sub(r"\\textbf{\1}", text.translate(LATEX))

    def rich(self, definition: str) -> Table:
        """The table for the terminal; rows that were not run are dim."""
        table = Table(
            title=f"{definition}: {self.title}",
            title_justify="left",
            header_style="bold",
            pad_edge=False,
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for head in self.heads:
            justify: Literal["left", "right"] = "left" if head in LEFT_ALIGNED_HEADS else "right"
            table.add_column(head, justify=justify, no_wrap=True)
        for row in self.rows:
            texts = (BOLD.sub(r"[bold]\1[/bold]", escape(text)) for text in row)
            table.add_row(*texts, style="dim" if NOT_RUN_TEXT in row else None)
        return table


def markdown_rows(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""The lines of a Markdown table. (pandas would need one more package for them.)

    >>> markdown_rows(["a", "b"], [["1", "2"]])
    '| a | b |\n| --- | --- |\n| 1 | 2 |\n'
    """
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
