"""Tables for the terminal: in which rounds the statements held."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from wecfl.theory.verdicts import Check, Inequality

__all__ = ["rich_check", "rich_rounds"]


def rich_check(check: Check) -> Group:
    """The statements, the assumptions and what was refuted."""
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", style="bold", no_wrap=True)
    table.add_column("inequality")
    table.add_column("held", justify="right", no_wrap=True)
    table.add_column("under its condition", justify="right", width=9)
    table.add_column("least margin", justify="right", no_wrap=True)
    table.add_column("not met", min_width=16)
    for statement in check.statements:
        unmet = [
            a.name + ("" if a.met is False else " ?") for a in statement.assumptions if not a.met
        ]
        if statement.missing:
            table.add_row(
                statement.name, statement.says, "–", "–", "–", statement.missing, style="dim"
            )
            continue
        worst = min(statement.rounds, key=lambda i: i.margin)
        met = [i for i in statement.rounds if i.condition]
        conditional = "never met" if not met else _share(met)
        all_held = all(i.held for i in statement.rounds)
        table.add_row(
            statement.name,
            statement.says,
            _share(statement.rounds),
            conditional if statement.condition else "",
            f"{worst.margin:+.2e} (round {worst.round})",
            ", ".join(unmet) or "–",
            style="red" if statement.refuted else "" if all_held else "yellow",
        )
    lines: list[Any] = [Text(check.title), table]
    failed = [
        f"{statement.name} failed in round "
        f"{_spans([i.round for i in statement.rounds if not i.held])}"
        for statement in check.statements
        if not all(i.held for i in statement.rounds)
    ]
    worded: dict[str, list[str]] = {}
    for statement in check.statements:
        worded.setdefault(statement.condition, []).append(statement.name)
    conditions = [f"{', '.join(names)} if {text}" for text, names in worded.items() if text]
    seen = {a.name: a for statement in check.statements for a in statement.assumptions}
    signs = {True: "✓", False: "✗", None: "?"}
    facts = [f"{signs[a.met]} {a.name}: {a.why}" for a in seen.values()]
    for part in (facts, conditions, failed, check.notes):
        lines += [Text(line) for line in part] + ([Text("")] if part else [])
    if check.refuted:
        refuted = f"refuted although all assumptions are met: {', '.join(check.refuted)}"
        lines.append(Text(refuted, style="red"))
    return Group(*lines)


def rich_rounds(check: Check) -> Table:
    """The margin of every inequality in every round; dim where its condition was not met."""
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("round", justify="right")
    judged = [statement for statement in check.statements if statement.rounds]
    for statement in judged:
        table.add_column(statement.name, justify="right", no_wrap=True)
    by_round = [{i.round: i for i in statement.rounds} for statement in judged]
    for number in sorted({i.round for statement in judged for i in statement.rounds}):
        table.add_row(str(number), *(_cell(rounds.get(number)) for rounds in by_round))
    return table


def _cell(found: Inequality | None) -> Text:
    if found is None:
        return Text("")
    style = "dim" if not found.condition else "" if found.held else "red"
    return Text(f"{found.margin:+.1e}" + ("" if found.held else " ✗"), style=style)


def _share(rounds: Sequence[Inequality]) -> str:
    return f"{sum(i.held for i in rounds)} of {len(rounds)}"


def _spans(numbers: Sequence[int]) -> str:
    """Ascending numbers in short form.

    >>> _spans([1, 3, 4, 5])
    '1, 3–5'
    """
    runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    spans = [[number for _, number in group] for _, group in runs]
    return ", ".join(f"{s[0]}–{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans)
