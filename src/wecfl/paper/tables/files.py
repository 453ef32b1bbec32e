"""Writes the tables as files beside the results, and into the pages that have marks for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pandas as pd

from wecfl.paper.definitions import Cell, Definition, TableLayout
from wecfl.paper.queue import machine_seconds
from wecfl.paper.result_store import ResultStore, StoredResult
from wecfl.paper.tables import (
    beside_paper,
    defences,
    drift,
    external,
    found_clusters,
    gallery,
    leaderboard,
    methods,
    newcomers,
    robustness,
)
from wecfl.paper.tables.text_table import TextTable, markdown_rows

__all__ = ["fill", "frame_of", "text_tables", "write"]

MakeFrame = Callable[[Sequence[Cell], ResultStore], pd.DataFrame]
"""Makes one row per cell from the stored results."""
MakeTables = Callable[[pd.DataFrame], Iterator[TextTable]]
"""Makes the tables to read from those rows."""

LAYOUTS: dict[TableLayout, tuple[MakeFrame, MakeTables]] = {
    "robustness": (robustness.frame, robustness.tables),
    "defences": (defences.frame, defences.tables),
    "defended": (defences.frame, defences.tables_with_means),
    "newcomers": (newcomers.frame, newcomers.tables),
    "found": (found_clusters.frame, found_clusters.tables),
    "gallery": (gallery.frame, gallery.tables),
    "external": (external.frame, external.tables),
    "leaderboard": (leaderboard.frame, leaderboard.tables),
    "methods": (methods.frame, methods.tables),
    "drift": (drift.frame, drift.tables),
}
"""Tables that are not compared with the paper's, by the name in their definition."""


def frame_of(
    definition: Definition, store: ResultStore, cells: Sequence[Cell] | None = None
) -> pd.DataFrame:
    """One row per cell, in percent; `n` is the number of stored seeds (0: not run)."""
    cells = definition.cells if cells is None else cells
    if definition.table:
        make_frame, _ = LAYOUTS[definition.table]
        return make_frame(cells, store)
    return beside_paper.frame(cells, store, definition.paper)


def text_tables(definition: Definition, frame: pd.DataFrame) -> Iterator[TextTable]:
    """The tables of texts that are made of the rows."""
    if definition.table:
        _, make_tables = LAYOUTS[definition.table]
        return make_tables(frame)
    return beside_paper.tables(frame)


def cost(store: ResultStore) -> str:
    """A Markdown table of what the results cost: runs and hours by data set, and the machine."""
    results = store.all()
    if not results:
        return "Nothing is stored yet.\n"
    rows = []
    by_dataset: dict[str, list[StoredResult]] = {}
    for stored in results:
        by_dataset.setdefault(stored["config"]["dataset"], []).append(stored)
    for dataset, results in by_dataset.items():
        hours = sum(map(machine_seconds, results)) / 3600
        engines = ", ".join(sorted({stored["engine"] for stored in results}))
        machines = {(stored["made_by"]["cpu"], stored["made_by"]["cores"]) for stored in results}
        machine = ", ".join(f"{cpu}, {cores} cores" for cpu, cores in sorted(machines))
        rows.append([dataset, str(len(results)), f"{hours:.1f}", engines, machine])
    return markdown_rows(["data set", "runs", "hours", "engine", "processor"], rows)


def write(definition: Definition, store: ResultStore) -> list[Path]:
    """Write the table as Markdown, CSV and LaTeX, and into the pages that ask for it.

    The files are in the folder of results. Pages are *.md and methods/*.md beside that folder. A
    page asks for a table with ``<!-- NAME -->`` and ``<!-- /NAME -->``, and the text between the
    two is replaced. NAME is the name of the definition, ``DEFINITION: TITLE`` for one of its
    tables, the name followed by a method (for the rows of that method) or by ``run`` (how many of
    its cells have been run), or ``cost``. If there is a ``RESULTS/note.md``, it is added to all
    tables that are compared with the paper's.
    """
    base, frame = store.folder / definition.name, frame_of(definition, store)
    note = store.folder / "note.md"
    remark = note.read_text("utf-8") if definition.paper and note.exists() else ""
    tables = list(text_tables(definition, frame))
    markdown = "\n".join(table.markdown() for table in tables)
    text = _joined(markdown, beside_paper.differing(frame), remark)
    made = f"Made by `wecfl reproduce {definition.name} --show` from the results beside it.\n"
    files = {
        ".md": f"# {definition.title}\n\n{made}\n{text}",
        ".csv": frame.round(6).to_csv(index=False),
        ".tex": "\n".join(table.latex(definition.title) for table in tables),
    }
    if definition.table == "leaderboard":
        # A name of its own, because the site makes NAME.html of NAME.md.
        files["-page.html"] = leaderboard.page(definition.title, frame)
    written = {base.with_name(base.name + ending): content for ending, content in files.items()}
    for path, content in written.items():
        path.write_text(content, encoding="utf-8")
    asked = {definition.name: text, "cost": cost(store)}
    for table in tables:
        asked[f"{definition.name}: {table.title}"] = markdown_rows(table.heads, table.rows)
    if definition.paper:
        asked[f"{definition.name} run"] = beside_paper.coverage(frame)
        for table in beside_paper.tables_by_method(frame):
            rows = markdown_rows(table.heads, table.rows)
            asked[f"{definition.name} {table.title}"] = _joined(rows, remark)
    beside = store.folder.absolute().parent
    for page in sorted([*beside.glob("*.md"), *beside.glob("methods/*.md")]):
        old = new = page.read_text(encoding="utf-8")
        for name, content in asked.items():
            new = fill(new, name, content)
        if new != old:
            page.write_text(new, encoding="utf-8")
    return list(written)


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def fill(page: str, name: str, text: str) -> str:
    r"""The page, with `text` between the marks of `name`.

    >>> fill("Before <!-- a -->old<!-- /a --> after", "a", "new")
    'Before <!-- a -->\n\nnew\n<!-- /a --> after'
    """
    marks = rf"<!-- {re.escape(name)} -->.*?<!-- /{re.escape(name)} -->"
    new = f"<!-- {name} -->\n\n{text}\n<!-- /{name} -->"
    return re.sub(marks, lambda _: new, page, flags=re.S)
