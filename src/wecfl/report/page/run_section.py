"""The section of the report page about one run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from wecfl.core.types import Int
from wecfl.folder.readers import (
    read_clients,
    read_environment,
    read_newcomers,
    refused_of,
)
from wecfl.report.page.alluvial import Alluvial, alluvial, telling_rounds
from wecfl.report.page.client_map import MAP_SIZE, client_map, dot_diameter, last_places
from wecfl.report.page.cosine_maps import CosineMap, cosine_maps
from wecfl.report.page.line_charts import Spec
from wecfl.report.page.objective_charts import Chart, choice_charts, objective_charts
from wecfl.report.page.run_data import RunData
from wecfl.report.sentences import client_words, partition_words, remarks
from wecfl.report.tables.newcomers import newcomer_cells
from wecfl.report.tables.results import MAX_SHOWN_SCORES
from wecfl.report.tsne import MIN_MAPPED_CLIENTS, tsne_planes
from wecfl.runs.scores import ScoreKind, headline_of, kind_of, summary_scores

__all__ = ["ClusterCard", "Origin", "RunSection", "TrackRounds", "facts", "run_section"]

TrackRounds = Callable[[Sequence[int], str], Iterable[int]]
"""Yields the rounds while it shows, under a title, how many are done."""


@dataclass(frozen=True, slots=True)
class ClientMotion:
    """The map of the clients and, for each stop of its slider, the round and a note on it."""

    spec: Spec
    rounds: list[int]
    notes: list[str]
    grouped: bool

    @property
    def places(self) -> list[tuple[int, int, int]]:
        """Each client's last place on a map of `size`, and its cluster, for a small picture."""
        return last_places(self.spec)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the map."""
        return MAP_SIZE

    @property
    def dot(self) -> float:
        """The radius of a client in the small picture, which is larger than on the map."""
        return round(0.8 * dot_diameter(len(self.places)), 1)


@dataclass(frozen=True, slots=True)
class ClusterCard:
    """One cluster: its clients, their data, and how well they are served."""

    label: int
    clients: int
    samples: int
    groups: list[tuple[int, int, int]]
    """Hidden group, its clients in this cluster, all its clients; empty if groups are unknown."""
    classes: list[tuple[str, float]]
    """The name of each class and its share in the training samples; empty if it is unknown."""
    score: str
    """The name of the headline."""
    kind: ScoreKind
    scores: list[float]
    """The headline of each client; empty if no round was completed."""
    together: str
    """The headline of the cluster, from the tallies of its clients together; empty if unknown."""
    span: tuple[float, float]
    """The ends of the axis that the scores are drawn on, the same for all clusters."""
    members: list[Any]
    shown: str = "Members"
    """Which clients are listed, and have their score drawn."""

    @property
    def median(self) -> float:
        """The median of the members' scores."""
        return float(np.median(self.scores))

    @property
    def ends(self) -> tuple[str, str]:
        """The texts at the ends of the axis."""
        low, high = ("0 %", "100 %") if self.kind.percent else map(self.kind.text, self.span)
        return low, high

    def at(self, score: float) -> float:
        """Where a score lies on the axis, from 4 to 196."""
        low, high = self.span
        return 4 + 192 * ((score - low) / (high - low) if high > low else 0.5)


@dataclass(frozen=True, slots=True)
class Origin:
    """Which experiment was run, and where."""

    command: str
    repeat: str
    config: str
    environment: list[tuple[str, str]]

    @classmethod
    def read(cls, folder: Path, config: dict[str, Any], engine: str) -> Origin:
        """What the folder says of its origin."""
        env = read_environment(folder)
        machine = [key for key in ("started", "system", "machine", "cores", "python") if key in env]
        return cls(
            command=env.get("command", ""),
            # A run made from Python values: its folder describes them, but can't make them again.
            repeat=""
            if "components" in config
            else shlex.join(["wecfl", "run", str(folder / "config.toml")]),
            config=tomli_w.dumps(config),
            environment=[
                ("engine", engine),
                *((key, str(env[key])) for key in machine),
                *env.get("packages", {}).items(),
            ],
        )


@dataclass(frozen=True, slots=True)
class RunSection:
    """Everything that the page says about one run."""

    name: str
    lead: str
    facts: list[tuple[str, str]]
    remarks: list[str]
    motion: ClientMotion | None
    missing: str
    """Why there is no map of the clients; empty if there is one."""
    moves: Alluvial | None
    moved: str
    choice: list[Chart]
    """Charts that show why the server chose this number of clusters."""
    cards: list[ClusterCard]
    newcomers: tuple[list[str], list[list[str]]] | None
    """Heads and rows of a table; None if no client was kept out of the training."""
    charts: list[Chart]
    more: list[Chart]
    cosines: list[CosineMap]
    origin: Origin
    presence: list[Chart] = field(default_factory=list)
    """Of a fleet: how many clients were heard, and who took part."""
    service: list[Chart] = field(default_factory=list)
    """Of a fleet: the scores of those who took part."""
    costs: list[Chart] = field(default_factory=list)
    """Of a fleet: the time and memory of each round."""


def run_section(
    name: str, folder: Path, track: TrackRounds, *, frames: int, places: int
) -> RunSection:
    """Everything the page says about the run in a folder.

    Its map of clients shows at most `frames` rounds, and at most `places` clients × rounds.
    """
    run, newcomers = RunData.read(folder), read_newcomers(folder)
    lead = client_words(run.sizes, run.groups) + " each"
    if "partition" in run.config:
        lead = f"{partition_words(run.config)}: {lead}"
    frames = max(min(frames, places // max(len(run.clients), 1)), 2)
    motion, missing = _motion(run, frames, lambda rounds: track(rounds, name))
    columns = telling_rounds(run.labels)
    picture = alluvial(run.labels[columns], run.groups, [str(t + 1) for t in columns])
    charts, more = objective_charts(run.records)
    return RunSection(
        name=name,
        lead=lead,
        facts=facts(run.summary, run.config, several=run.several),
        remarks=remarks(run.summary, refused_of(read_clients(folder))),
        motion=motion,
        missing=missing,
        moves=picture if run.several else None,
        moved=_moved(run.labels, columns),
        choice=choice_charts(run.records),
        cards=_cards(run),
        newcomers=None if newcomers is None else newcomer_cells(newcomers),
        charts=charts,
        more=more,
        cosines=cosine_maps(run),
        origin=Origin.read(folder, run.config, str(run.summary.get("engine", "unknown"))),
    )


def facts(
    summary: dict[str, Any], config: dict[str, Any], *, several: bool
) -> list[tuple[str, str]]:
    """The numbers that a reader looks for first; with `several` clusters, when they settled."""
    facts = [
        (kind_of(name, better).label, kind_of(name, better).text(summary[name]))
        for name, better in list(summary_scores(summary).items())[:MAX_SHOWN_SCORES]
    ]
    if summary.get("worst_decile") is not None:
        kind = headline_of(summary)[1]
        facts.append((f"{kind.label} of the worst tenth", kind.text(summary["worst_decile"])))
    facts.append(("clusters used", str(summary["clusters"])))
    if summary["ari"] is not None:
        facts.append(("ARI", f"{summary['ari']:.2f}"))
    if several and "settled" in summary:
        facts.append(("settled in round", str(summary["settled"] or "not yet")))
    done, planned = summary["rounds"], config.get("rounds", summary["rounds"])
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
    if len(run.clients) < MIN_MAPPED_CLIENTS:
        return None, f"{len(run.clients)} clients are too few for a map of neighbourhoods."
    if len(kept) > frames:  # clients move early on: keep the first rounds, thin out the others
        early = frames // 2
        thinned = np.linspace(len(kept) - 1, early, frames - early).round().astype(int)
        kept = [*kept[:early], *(kept[i] for i in np.unique(thinned))]
    distances = (run.trace(t)[0] for t in track(kept))
    at = np.array(kept) - 1
    headline, kind = headline_of(run.summary)
    unknown = [None] * len(run.clients)  # in rounds of an earlier version, which had other scores
    spec = client_map(
        tsne_planes(distances, run.summary["seed"]),
        labels=run.labels[at],
        groups=run.groups,
        scores=np.array([run.records[t]["clients"].get(headline, unknown) for t in at], np.float64),
        kind=kind,
        names=run.clients["client"].tolist(),
        sizes=run.sizes,
    )
    return ClientMotion(spec, kept, [_note(run, t) for t in at], run.groups is not None), ""


def _note(run: RunData, t: int) -> str:
    record, labels = run.records[t], run.labels
    moved = int((labels[t] != labels[t - 1]).sum()) if t else 0
    found = record["clusters"]
    headline, kind = headline_of(run.summary)
    words = [f"{kind.label} {kind.text(record.get(headline))}"]
    words += [f"ARI {record['ari']:.2f}"] if record["ari"] is not None else []
    words += [f"{found} cluster{'s' * (found != 1)}"]
    return ", ".join(words + ([f"{moved} moved"] if moved else []))


def _cards(run: RunData) -> list[ClusterCard]:
    held, groups = run.held, run.groups
    score, kind = headline_of(run.summary)
    known = run.clients[score].dropna() if score in run.clients else pd.Series(dtype=float)
    pooled = run.records[-1].get("cluster_scores", []) if run.records else []
    cards = []
    for label in np.unique(run.clients["cluster"]):
        inside = np.flatnonzero(run.clients["cluster"] == label)
        own = run.clients.iloc[inside]
        counts = held[:, inside].sum(axis=1) if held is not None else np.zeros(0)
        groups_inside = [] if groups is None else [
            (int(g), int((groups[inside] == g).sum()), int((groups == g).sum()))
            for g in np.unique(groups[inside])
        ]  # fmt: skip
        cards.append(
            ClusterCard(
                label=int(label),
                clients=len(own),
                samples=int(own["samples"].sum()),
                groups=groups_inside,
                classes=[*zip(run.class_names, counts / max(counts.sum(), 1), strict=False)],
                score=score,
                kind=kind,
                scores=known.loc[known.index.intersection(own.index)].tolist(),
                together=kind.text(pooled[label]) if label < len(pooled) else "",
                span=(0.0, 1.0) if kind.percent or known.empty else (known.min(), known.max()),
                members=own.to_dict("records"),
            )
        )
    return cards
