"""The tables, made from stored results: those of the paper beside the published figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from wecfl.paper import found_clusters as found
from wecfl.paper import robustness
from wecfl.paper.definitions import SHIPPED, Cell, Definition
from wecfl.paper.queue import Store, Stored, machine_seconds
from wecfl.paper.rows import NOT_RUN, Block, row_of
from wecfl.report import newcomers
from wecfl.report.tables import score

__all__ = ["fill", "frame_of", "published", "rich_tables", "write"]

SCORES = {"accuracy": "accuracy %", "macro_f1": "macro-F1 %"}
LAYOUTS = {"robustness": robustness, "newcomers": newcomers, "found": found}
"""Tables that are not beside the paper's, by the name in their definition."""
BOLD = re.compile(r"\*\*(.+?)\*\*")


def published(table: str) -> pd.DataFrame:
    """A table of the paper, in percent, indexed by data set, partition, k and method.

    >>> published("table1").loc[("cifar-10", "clusterwise-dirichlet", 10, "wecfl"), "accuracy"]
    np.float64(70.95)
    """
    rows = pd.DataFrame(json.loads((SHIPPED / "paper.json").read_text(encoding="utf-8"))["rows"])
    return (
        rows[rows["table"] == table]
        .drop(columns="table")
        .set_index(["dataset", "partition", "k", "method"])
    )


def frame_of(
    definition: Definition, store: Store, cells: Sequence[Cell] | None = None
) -> pd.DataFrame:
    """One row per cell, in percent: mean and std over the stored seeds, the paper's, the gap.

    `accuracy_gap` and `macro_f1_gap` are differences in units of the paper's ±; `n` the number of
    stored seeds (0: not run).
    """
    cells = definition.cells if cells is None else cells
    if definition.table:
        laid_out: pd.DataFrame = LAYOUTS[definition.table].frame(cells, store)
        return laid_out
    frame = pd.DataFrame([row_of(cell, store)[0] for cell in cells])
    if definition.paper:
        key = ["dataset", "partition", "k", "method"]
        paper = published(definition.paper).add_prefix("paper_")
        order = {cell: place for place, cell in enumerate(paper.index)}
        frame = frame.join(paper, on=key)
        frame["place"] = [order.get(tuple(row), len(order)) for row in frame[key].to_numpy()]
        frame = frame.sort_values("place", kind="stable").drop(columns="place")
        for name in SCORES:
            gap = frame[name] - frame[f"paper_{name}"]
            frame[f"{name}_gap"] = gap / frame[f"paper_{name}_std"].astype(float)
    return frame.reset_index(drop=True)


def _blocks(definition: Definition, frame: pd.DataFrame) -> Iterator[Block]:
    layout = definition.table
    blocks: Iterator[Block] = LAYOUTS[layout].blocks(frame) if layout else _beside_the_paper(frame)
    return blocks


def _beside_the_paper(frame: pd.DataFrame) -> Iterator[Block]:
    """One block for each data set and partition."""
    for (dataset, partition), rows in frame.groupby(["dataset", "partition"], sort=False):
        yield _block(f"{dataset}, {partition}", rows, {"method": "method", "k": "K"})


def _by_method(frame: pd.DataFrame) -> Iterator[Block]:
    """One block for each method, for its own page: narrow, so that only words are broken."""
    named = frame.assign(data=frame["dataset"] + ", " + frame["partition"])
    if frame["label"].any():  # these rows are beside each other, not beside the paper's
        named = named.drop(columns=[name for name in map(str, named) if name.startswith("paper_")])
    whole = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
    for method, rows in named.groupby("method", sort=False):
        title, heads, texts = _block(str(method), rows, {"data": "data", "k": "K"})
        yield title, heads, [[text.replace(" ± ", whole) for text in row] for row in texts]


def _block(title: str, rows: pd.DataFrame, names: Mapping[str, str]) -> Block:
    """The scores of some rows, beside the paper's if there are any; `names` say which is which."""
    paper = "paper_accuracy" in rows
    names = {**names, **({"label": "what"} if rows["label"].any() else {})}
    found = bool(rows["ari"].notna().any())
    heads = [*names.values()]
    for head in SCORES.values():
        heads += [head, "paper", "Δ/±"] if paper else [head]
    heads += ["ARI", "n"] if found else ["n"]
    return title, heads, [
        [
            *(str(row[name]) for name in names),
            *(text for name in SCORES for text in _texts(row, name, paper)),
            *([score(row["ari"], row["ari_std"], 1)] if found else []),
            str(row["n"]),
        ]
        for row in rows.to_dict("records")
    ]  # fmt: skip


def _texts(row: dict[Any, Any], name: str, paper: bool) -> list[str]:
    ours = score(row[name], row[f"{name}_std"]) if row["n"] else NOT_RUN
    ours = "diverged" if row["n"] and isnan(row[name]) else ours
    if not paper:
        return [ours]
    gap = row[f"{name}_gap"]
    theirs = score(row[f"paper_{name}"], row[f"paper_{name}_std"])
    return [ours, theirs, "–" if isnan(gap) else f"{gap:+.1f}"]


def rich_tables(definition: Definition, frame: pd.DataFrame) -> Iterator[Table]:
    """For the terminal, one table for each block."""
    for title, heads, rows in _blocks(definition, frame):
        table = Table(
            title=f"{definition.title}: {title}",
            title_justify="left",
            header_style="bold",
            pad_edge=False,
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for head in heads:
            text = head in ("method", "what", "attack", "unseen group")
            table.add_column(head, justify="left" if text else "right", no_wrap=True)
        for row in rows:
            style = "dim" if NOT_RUN in row else None
            texts = (BOLD.sub(r"[bold]\1[/bold]", escape(text)) for text in row)
            table.add_row(*texts, style=style)
        yield table


def markdown(definition: Definition, frame: pd.DataFrame) -> str:
    """Blocks of Markdown."""
    return "\n".join(
        f"**{title}**\n\n{_rows(heads, rows)}" for title, heads, rows in _blocks(definition, frame)
    )


def _rows(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(definition: Definition, frame: pd.DataFrame) -> str:
    """Tables for LaTeX, with booktabs."""
    parts = []
    for title, heads, rows in _blocks(definition, frame):
        body = " \\\\\n".join(" & ".join(map(_tex, row)) for row in rows)
        parts.append(
            f"\\begin{{table}}\n\\caption{{{_tex(f'{definition.title}: {title}')}}}\n"
            f"\\begin{{tabular}}{{{'l' + 'r' * (len(heads) - 1)}}}\n\\toprule\n"
            f"{' & '.join(map(_tex, heads))} \\\\\n\\midrule\n{body} \\\\\n\\bottomrule\n"
            "\\end{tabular}\n\\end{table}\n"
        )
    return "\n".join(parts)


def _tex(text: str) -> str:
    for plain, tex in (("%", r"\%"), ("±", r"$\pm$"), ("Δ", r"$\Delta$"), ("–", "--")):
        text = text.replace(plain, tex)
    return BOLD.sub(r"\\textbf{\1}", text)


def differing(frame: pd.DataFrame, limit: float = 2.0) -> str:
    """The cells further than `limit` of the paper's ± from its figure, in a sentence.

    Nothing for rows that are no longer the paper's experiment (ablations, tuned ones).
    """
    if "accuracy_gap" not in frame or frame["label"].any():
        return ""
    far = [
        f"{row['dataset']} {row['partition']} {row['method']} K = {row['k']} "
        f"({name.replace('_f1', '-F1')} {gap:+.1f})"
        for row in frame.to_dict("records")
        for name in SCORES
        if abs(gap := row[f"{name}_gap"]) > limit
    ]
    known = int(frame["accuracy_gap"].notna().sum())
    told = "; ".join(far) if far else "none"
    return (
        f"More than {limit:g} of the paper's ± away, of {known} cells run and given a ±: {told}.\n"
    )


def cost(store: Store) -> str:
    """What the stored results took, as Markdown: runs and hours by data set, and the machine."""
    results = store.all()
    if not results:
        return "Nothing is stored yet.\n"
    lines = ["| data set | runs | hours | engine | processor |", "| --- | --- | --- | --- | --- |"]
    by_dataset: dict[str, list[Stored]] = {}
    for stored in results:
        by_dataset.setdefault(stored["config"]["dataset"], []).append(stored)
    for dataset, each in by_dataset.items():
        hours = sum(map(machine_seconds, each)) / 3600
        engines = ", ".join(sorted({stored["engine"] for stored in each}))
        machines = {(stored["made_by"]["cpu"], stored["made_by"]["cores"]) for stored in each}
        machine = ", ".join(f"{cpu}, {cores} cores" for cpu, cores in sorted(machines))
        lines.append(f"| {dataset} | {len(each)} | {hours:.1f} | {engines} | {machine} |")
    return "\n".join(lines) + "\n"


def write(definition: Definition, store: Store) -> list[Path]:
    """The table as Markdown, CSV and LaTeX beside the results, and in the pages that ask for it.

    These are RESULTS.md, NAME.md and methods/*.md beside the folder of results. They ask with
    the lines ``<!-- NAME -->`` and ``<!-- /NAME -->``: what stands between them is replaced (NAME:
    that of the definition; with a method behind it, the rows of that method; or ``cost``).
    ``RESULTS/note.md``, if there, is what must be said of all tables beside the paper's.
    """
    base, frame = store.folder / definition.name, frame_of(definition, store)
    note = store.folder / "note.md"
    said = note.read_text("utf-8") if definition.paper and note.exists() else ""
    text = _joined(markdown(definition, frame), differing(frame), said)
    made = f"Made by `wecfl reproduce {definition.name} --show` from the results beside it.\n"
    files = {
        ".md": f"# {definition.title}\n\n{made}\n{text}",
        ".csv": frame.round(6).to_csv(index=False),
        ".tex": latex(definition, frame),
    }
    for suffix, content in files.items():
        base.with_suffix(suffix).write_text(content, encoding="utf-8")
    asked = {definition.name: text, "cost": cost(store)}
    if definition.paper:
        for method, heads, rows in _by_method(frame):
            asked[f"{definition.name} {method}"] = _joined(_rows(heads, rows), said)
    own = store.folder.with_name(f"{definition.name}.md")
    methods = sorted(store.folder.with_name("methods").glob("*.md"))
    for page in (store.folder.with_suffix(".md"), own, *methods):
        old = page.read_text(encoding="utf-8") if page.exists() else ""
        new = old
        for name, content in asked.items():
            new = fill(new, name, content)
        if new != old:
            page.write_text(new, encoding="utf-8")
    return [base.with_suffix(suffix) for suffix in files]


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def fill(page: str, name: str, text: str) -> str:
    r"""The page with `text` between its marks.

    >>> fill("Before <!-- a -->old<!-- /a --> after", "a", "new")
    'Before <!-- a -->\n\nnew\n<!-- /a --> after'
    """
    marks = rf"<!-- {re.escape(name)} -->.*?<!-- /{re.escape(name)} -->"
    new = f"<!-- {name} -->\n\n{text}\n<!-- /{name} -->"
    return re.sub(marks, lambda _: new, page, flags=re.S)
