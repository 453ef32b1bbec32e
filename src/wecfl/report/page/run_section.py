"""What the report page says about one run."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tomli_w

from wecfl.core.state import Int
from wecfl.folder.distance_trace import cosines
from wecfl.folder.readers import (
    read_clients,
    read_environment,
    read_newcomers,
    refused_of,
)
from wecfl.report.page.alluvial import Alluvial, alluvial, telling
from wecfl.report.page.client_map import client_map
from wecfl.report.page.line_charts import Spec
from wecfl.report.page.objective_charts import Chart, choice, objectives
from wecfl.report.page.run_data import RunData
from wecfl.report.sentences import client_words, partition_words, remarks
from wecfl.report.tables.newcomers import newcomer_cells
from wecfl.report.tsne import LEAST, planes

__all__ = ["RunSection", "TrackRounds", "run_section"]

TrackRounds = Callable[[Sequence[int], str], Iterable[int]]
"""Passes rounds on while it shows how far it got, under a title."""

MAPPED = 200
"""Clients in a heat map."""
PLACES = 50_000
"""Clients × rounds in a plane: 100 rounds of 500 clients, 0.7 MB."""


@dataclass(frozen=True, slots=True)
class ClientMotion:
    """The plane and, for each stop of its slider, the round and what to say about it."""

    spec: Spec
    rounds: list[int]
    notes: list[str]
    grouped: bool


@dataclass(frozen=True, slots=True)
class Heat:
    """A symmetric matrix of cosines in bytes, 0 = `low`, 255 = `high`."""

    title: str
    about: str
    names: list[str]
    edge: list[tuple[int, int]]
    """Along the edge: cluster, and how many cells it takes."""
    low: float
    high: float
    bytes: str


@dataclass(frozen=True, slots=True)
class ClusterCard:
    """One cluster: whom it serves and how well."""

    label: int
    clients: int
    samples: int
    groups: list[tuple[int, int, int]]
    """Generating group, its clients in here, its clients in all; empty if unknown."""
    classes: list[float]
    """Share of each class in the training samples; empty if unknown."""
    accuracy: list[float]
    """Of each client; empty if no round was completed."""
    members: list[Any]

    @property
    def median(self) -> float:
        """Of the members' accuracies."""
        return float(np.median(self.accuracy))


@dataclass(frozen=True, slots=True)
class RunSection:
    """All the page says about one run."""

    name: str
    lead: str
    facts: list[tuple[str, str]]
    remarks: list[str]
    motion: ClientMotion | None
    missing: str
    """Why there is no motion."""
    moves: Alluvial | None
    moved: str
    choice: list[Chart]
    """Why there are so many clusters."""
    cards: list[ClusterCard]
    newcomers: tuple[list[str], list[list[str]]] | None
    """Head and lines of a table; None if nobody was kept out."""
    charts: list[Chart]
    more: list[Chart]
    heats: list[Heat]
    command: str
    repeat: str
    config: str
    environment: list[tuple[str, str]]


def run_section(name: str, folder: Path, frames: int, track: TrackRounds) -> RunSection:
    """Everything about the run in a folder, with at most `frames` rounds in the plane."""
    run, env, late = RunData.read(folder), read_environment(folder), read_newcomers(folder)
    lead = client_words(run.sizes, run.groups) + " each"
    if "partition" in run.config:
        lead = f"{partition_words(run.config)}: {lead}"
    motion, missing = _motion(run, frames, lambda rounds: track(rounds, name))
    columns = telling(run.labels)
    picture = alluvial(run.labels[columns], run.groups, [str(t + 1) for t in columns])
    charts, more = objectives(run.records)
    machine = [key for key in ("started", "system", "machine", "cores", "python") if key in env]
    return RunSection(
        name=name,
        lead=lead,
        facts=_facts(run),
        remarks=remarks(run.summary, refused_of(read_clients(folder))),
        motion=motion,
        missing=missing,
        moves=picture if run.several else None,
        moved=_moved(run.labels, columns),
        choice=choice(run.records),
        cards=_cards(run),
        newcomers=None if late is None else newcomer_cells(late),
        charts=charts,
        more=more,
        heats=_heats(run),
        command=env.get("command", ""),
        # A run of Python values writes its components down, which is not enough to repeat it.
        repeat=""
        if "components" in run.config
        else shlex.join(["wecfl", "run", str(folder / "config.toml")]),
        config=tomli_w.dumps(run.config),
        environment=[
            ("engine", str(run.summary.get("engine", "unknown"))),
            *((key, str(env[key])) for key in machine),
            *env.get("packages", {}).items(),
        ],
    )


def _facts(run: RunData) -> list[tuple[str, str]]:
    """The figures a reader looks for first."""
    summary = run.summary
    facts = [
        ("accuracy", _percent(summary["accuracy"])),
        ("macro-F1", _percent(summary["macro_f1"])),
        ("groups found", str(summary["clusters"])),
    ]
    if summary["ari"] is not None:
        facts.append(("ARI", f"{summary['ari']:.2f}"))
    if run.several and "settled" in summary:
        facts.append(("settled in round", str(summary["settled"] or "not yet")))
    done, planned = summary["rounds"], run.config.get("rounds", summary["rounds"])
    facts.append(("rounds", f"{done}" if done == planned else f"{done} of {planned}"))
    facts.append(("seed", str(summary["seed"])))
    if summary["status"] != "finished":
        facts.append(("status", summary["status"]))
    return facts


def _moved(labels: Int, columns: Sequence[int]) -> str:
    moves = int((labels[1:] != labels[:-1]).sum())
    if not moves:
        return "Nobody changed cluster after the first round."
    words = f"{moves} move{'s' * (moves != 1)} from one cluster to another in {len(labels)} rounds."
    if len(columns) < len(labels):
        words += " Shown: the first round, the last, and those in which most clients moved."
    return words


def _motion(
    run: RunData, frames: int, track: Callable[[Sequence[int]], Iterable[int]]
) -> tuple[ClientMotion | None, str]:
    kept = run.traced
    if not kept:
        return None, "This run has no trace. Run it again with --trace to see its clients move."
    if len(run.clients) < LEAST:
        return None, f"{len(run.clients)} clients are too few for a map of neighbourhoods."
    frames = max(min(frames, PLACES // len(run.clients)), 2)
    if len(kept) > frames:  # clients move early on: keep the first rounds, thin out the others
        early = frames // 2
        late = np.linspace(len(kept) - 1, early, frames - early).round().astype(int)
        kept = [*kept[:early], *(kept[i] for i in np.unique(late))]
    distances = (run.trace(t)[0] for t in track(kept))
    at = np.array(kept) - 1
    spec = client_map(
        planes(distances, run.summary["seed"]),
        labels=run.labels[at],
        groups=run.groups,
        accuracy=np.array([run.records[t]["clients"]["accuracy"] for t in at], np.float64),
        names=run.clients["client"].tolist(),
        sizes=run.sizes,
    )
    return ClientMotion(spec, kept, [_note(run, t) for t in at], run.groups is not None), ""


def _note(run: RunData, t: int) -> str:
    record, labels = run.records[t], run.labels
    moved = int((labels[t] != labels[t - 1]).sum()) if t else 0
    found = record["clusters"]
    words = [f"accuracy {_percent(record['accuracy'])}"]
    words += [f"ARI {record['ari']:.2f}"] if record["ari"] is not None else []
    words += [f"{found} cluster{'s' * (found != 1)}"]
    return ", ".join(words + ([f"{moved} moved"] if moved else []))


def _cards(run: RunData) -> list[ClusterCard]:
    held, groups = run.held, run.groups
    cards = []
    for label in np.unique(run.clients["cluster"]):
        inside = np.flatnonzero(run.clients["cluster"] == label)
        own = run.clients.iloc[inside]
        counts = held[:, inside].sum(axis=1) if held is not None else np.zeros(0)
        here = [] if groups is None else [
            (int(g), int((groups[inside] == g).sum()), int((groups == g).sum()))
            for g in np.unique(groups[inside])
        ]  # fmt: skip
        cards.append(
            ClusterCard(
                label=int(label),
                clients=len(own),
                samples=int(own["samples"].sum()),
                groups=here,
                classes=(counts / max(counts.sum(), 1)).tolist(),
                accuracy=own["accuracy"].dropna().tolist() if "accuracy" in own else [],
                members=own.to_dict("records"),
            )
        )
    return cards


def _heats(run: RunData) -> list[Heat]:
    """Cosines between centers and between clients, in the last traced round."""
    if not run.traced:
        return []
    last = run.traced[-1]
    labels = run.labels[last - 1]
    used = np.unique(labels)
    names = [f"cluster {k}" for k in used]
    heats = []
    if len(used) > 1:
        heats.append(_heat(run, "centers", f"after round {last}", used, used, names))
    every = -(-len(labels) // MAPPED)
    within = np.zeros_like(labels) if run.groups is None else run.groups
    order = np.lexsort((within, labels))[::every]  # clusters, and groups inside of them
    about = f"after local update {last}, by cluster" + (f" (one in {every})" if every > 1 else "")
    names = [f"{run.clients['client'][i]} (cluster {labels[i]})" for i in order]
    heats.append(_heat(run, "clients", about, order, labels[order], names))
    return heats


def _heat(  # noqa: PLR0917
    run: RunData,
    of: Literal["clients", "centers"],
    about: str,
    order: Int,
    clusters: Int,
    names: list[str],
) -> Heat:
    matrix = cosines(*run.trace(run.traced[-1], of))[np.ix_(order, order)]
    matrix = np.clip(np.nan_to_num(matrix), -1, 1)
    low, high = float(matrix.min()), float(matrix.max())
    levels = np.round((matrix - low) / max(high - low, 1e-12) * 255).astype(np.uint8)
    kinds, counts = np.unique(clusters, return_counts=True)
    edge = list(zip(kinds.tolist(), counts.tolist(), strict=True))
    packed = b64encode(levels.tobytes()).decode()
    return Heat(of.capitalize(), about, names, edge, low, high, packed)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
