"""The section of the report page about a run on a fleet.

Each round knows only the clients that took part in it. So there is no map of the clients, and no
picture of their ways from cluster to cluster; curves are of the clients of each round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wecfl.core.state import Reply
from wecfl.core.types import Int
from wecfl.errors import RunFolderError
from wecfl.folder.fleet_schema import FleetRoundSchema, FleetSchema
from wecfl.folder.parsing import folder_errors
from wecfl.folder.readers import read_clients, read_metrics, read_summary
from wecfl.report.page.line_charts import COLOR_COUNT, Series, area_chart, stroke
from wecfl.report.page.objective_charts import Chart, choice_charts, drawn, objective_charts
from wecfl.report.page.run_section import ClusterCard, Origin, RunSection, facts
from wecfl.report.sentences import client_words, partition_words, remarks
from wecfl.runs.record import Record
from wecfl.runs.scores import ScoreKind, headline_of

__all__ = ["FleetData", "fleet_section"]

MAX_MEMBERS = 100
"""The largest number of clients of a cluster that are listed, and have their score drawn."""
QUANTILES = {"best tenth from": 0.9, "median": 0.5, "worst tenth up to": 0.1}


@dataclass(frozen=True, slots=True)
class FleetData:
    """The contents of the run folder of a fleet."""

    folder: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    records: list[Record]
    clients: pd.DataFrame
    """The clients that were heard."""

    @classmethod
    def read(cls, folder: Path) -> FleetData:
        """Read the folder; refuse files that do not belong together."""
        summary, records = read_summary(folder), read_metrics(folder)
        clients, config = read_clients(folder), summary.pop("config")
        with folder_errors(folder / "summary.json"):
            about = FleetSchema.model_validate(summary.get("fleet"))
        for line, record in enumerate(records, 1):
            with folder_errors(f"{folder / 'metrics.jsonl'}, line {line}"):
                held = FleetRoundSchema.model_validate(record).clients
                bounds = ((held.number, about.registered), (held.cluster, len(record["sizes"])))
                if any(max(found, default=-1) >= bound for found, bound in bounds):
                    raise ValueError("a client is not registered, or is in an unknown cluster")
        heard = records[-1]["heard"] if records else 0
        for what, file, count, other, found in (
            ("rounds", "metrics.jsonl", len(records), "summary.json", summary["rounds"]),
            ("clients", "clients.csv", len(clients), "summary.json", about.heard),
            ("clients", "clients.csv", len(clients), "metrics.jsonl", heard),
        ):
            if count != found:
                raise RunFolderError(
                    f"{folder} holds {count} {what} in {file} and {found} in {other}: its files do "
                    "not belong together"
                )
        if "number" not in clients:
            raise RunFolderError(f"{folder / 'clients.csv'} has no column 'number'")
        return cls(folder, summary, config, records, clients)

    @property
    def groups(self) -> Int | None:
        """The hidden groups of the clients that were heard; None if they are unknown."""
        found = self.clients["group"]
        return None if found.isna().any() else found.to_numpy(np.int64)

    @property
    def rounds(self) -> list[int]:
        """The numbers of the rounds."""
        return [record["round"] for record in self.records]

    def heard(self, record: Record) -> set[int]:
        """The numbers of the clients that were heard in a round."""
        numbers, outcomes = record["clients"]["number"], record["clients"].get("reply")
        if outcomes is None:
            return set(numbers)
        both = zip(numbers, outcomes, strict=True)
        return {number for number, outcome in both if outcome == Reply.HEARD}

    def refused(self) -> dict[str, int]:
        """The number of refused replies of each client that was ever heard."""
        refusals = [
            number
            for record in self.records
            for number, outcome in zip(
                record["clients"]["number"], record["clients"].get("reply") or (), strict=False
            )
            if outcome > Reply.LOST
        ]
        counts = pd.Series(refusals, dtype=float).value_counts()
        names = self.clients.set_index("number")["client"]
        return {
            str(names.get(number, f"number {number:.0f}")): int(count)
            for number, count in counts.items()
        }


def fleet_section(name: str, folder: Path) -> RunSection:
    """Everything the page says about the run of a fleet."""
    fleet = FleetData.read(folder)
    summary, config, records = fleet.summary, fleet.config, fleet.records
    charts, more = objective_charts(records)
    return RunSection(
        name=name,
        lead=_lead(fleet),
        facts=_facts(fleet),
        remarks=remarks(summary, fleet.refused()),
        motion=None,
        missing="",
        moves=None,
        moved="",
        choice=choice_charts(records),
        cards=_cards(fleet),
        newcomers=None,
        charts=charts,
        more=more,
        cosines=[],
        origin=Origin.read(folder, config, str(summary.get("engine", "unknown"))),
        presence=[*_sizes(fleet), *_turns(fleet)],
        service=_service(fleet),
        costs=_costs(fleet),
    )


def _lead(fleet: FleetData) -> str:
    config, registered = fleet.config, fleet.summary["fleet"]["registered"]
    words = f"{registered:,} registered clients"
    if "partition" in config:
        words = f"{partition_words(config)}: {words}"
    if active := config.get("active"):
        words += f", {active:,} active in each round"
    if len(fleet.clients):
        sizes = fleet.clients["samples"].to_numpy(np.int64)
        words += f". Heard so far: {client_words(sizes, fleet.groups)} each"
    return words


def _facts(fleet: FleetData) -> list[tuple[str, str]]:
    """The facts of any run, and who was heard; scores are of the clients that took part."""
    about = fleet.summary["fleet"]
    several = any(len(record["sizes"]) > 1 for record in fleet.records)
    found = facts(fleet.summary, fleet.config, several=several)
    if about.get("ari") is not None:
        found.append(("ARI of all heard", f"{about['ari']:.2f}"))
    found.append(("heard", f"{about['heard']:,} of {about['registered']:,}"))
    peaks = [record["memory"]["peak"] for record in fleet.records if "memory" in record]
    if peaks:
        found.append(("memory at the peak", f"{max(peaks) / 1e9:.2f} GB"))
    return found


def _sizes(fleet: FleetData) -> list[Chart]:
    """How many of the clients heard so far are in each cluster."""
    k = max(len(record["sizes"]) for record in fleet.records)
    padded = np.array(
        [[*record["sizes"], *[0] * (k - len(record["sizes"]))] for record in fleet.records]
    )
    series = {f"cluster {label}": padded[:, label].tolist() for label in range(k)}
    legend = [(name, (stroke(i)[0], (1, 0))) for i, name in enumerate(series)]
    about = "clients heard so far, in each cluster"
    spec = area_chart(series, fleet.rounds)
    return [Chart("Clusters", spec, legend if k <= COLOR_COUNT else (), about)]


def _turns(fleet: FleetData) -> list[Chart]:
    """How many clients of each round were heard for the first time, heard again, or not heard."""
    seen = set[int]()
    lines: dict[str, list[float | None]] = {"first time": [], "again": [], "not heard": []}
    for record in fleet.records:
        numbers = fleet.heard(record)
        again = len(numbers & seen)
        counts = (len(numbers) - again, again, len(record["clients"]["number"]) - len(numbers))
        for line, count in zip(lines.values(), counts, strict=True):
            line.append(count)
        seen |= numbers
    shown = {name: values for name, values in lines.items() if any(values)}
    return drawn("Clients of the round", shown, fleet.rounds, "")


def _service(fleet: FleetData) -> list[Chart]:
    """How the headline spreads over the clients of a round, and over the clusters."""
    name, kind = headline_of(fleet.summary)
    found = [
        np.array([v for v in record["clients"].get(name) or () if v is not None])
        for record in fleet.records
    ]
    spread = {
        title: [float(np.quantile(scores, part)) if len(scores) else None for scores in found]
        for title, part in QUANTILES.items()
    }
    pooled = [record.get("cluster_scores", []) for record in fleet.records]
    clusters = _by_cluster(pooled)
    about = "the clients of each cluster in the round, taken together"
    if len(clusters) > COLOR_COUNT:
        spans = {"best": max, "worst": min}
        if kind.better == "lower":
            spans = {"best": min, "worst": max}
        known = [[value for value in values if value is not None] for values in pooled]
        clusters = {
            title: [float(span(values)) if values else None for values in known]
            for title, span in spans.items()
        }
        about = f"the best and the worst of the clusters in the round, {about}"
    percent = kind.percent
    charts = drawn(
        f"{kind.title} of the clients", spread, fleet.rounds, "of those who took part",
        percent=percent,
    )  # fmt: skip
    if len(clusters) > 1:
        title = f"{kind.title} of the clusters"
        charts += drawn(title, clusters, fleet.rounds, about, percent=percent)
    return charts


def _by_cluster(values: Sequence[Sequence[float | None]]) -> Series:
    """A line for each cluster; None in rounds in which it was not there or has no value."""
    k = max(map(len, values), default=0)
    return {
        f"cluster {label}": [each[label] if label < len(each) else None for each in values]
        for label in range(k)
    }


def _costs(fleet: FleetData) -> list[Chart]:
    """The seconds of each round, divided by what they were spent on, and the memory."""
    records, rounds = fleet.records, fleet.rounds
    shown = {"load": "data", "start": "engine", "L": "local update", "E": "clustering",
             "score": "scores"}  # fmt: skip
    spent: list[dict[str, float]] = [record["seconds"] for record in records]
    series: dict[str, list[float | None]] = {
        "all": [sum(each.values()) for each in spent],
        **{title: [each.get(key) for each in spent] for key, title in shown.items()},
    }
    memory = {
        "the process at its peak": [_gigabytes(record, "peak") for record in records],
        "rows of what clients keep": [_gigabytes(record, "kept") for record in records],
    }
    return [
        *drawn("Seconds of each round", series, rounds, "loading data, starting the engine, steps"),
        *drawn("Gigabytes", memory, rounds, ""),
    ]


def _gigabytes(record: Record, key: str) -> float | None:
    found = record.get("memory", {}).get(key)
    return None if found is None else found / 1e9


def _cards(fleet: FleetData) -> list[ClusterCard]:
    """The clusters, with all clients that were heard, and those of the last round by name."""
    if not fleet.records:
        return []
    score, kind = headline_of(fleet.summary)
    last, groups = fleet.records[-1], fleet.groups
    clusters = fleet.clients["cluster"].to_numpy(np.int64)
    clients = _last_round(fleet, last, score)
    pooled = last.get("cluster_scores", [])
    known = clients[score].dropna()
    totals = (
        {} if groups is None else dict(zip(*np.unique(groups, return_counts=True), strict=True))
    )
    cards = []
    for label in np.unique(clusters):
        inside = clusters == label
        own = clients[clients["cluster"] == label]
        counted = [] if groups is None else [
            (group, count, totals[group]) for group, count in _counts(groups[inside]).items()
        ]  # fmt: skip
        members = own.head(MAX_MEMBERS).to_dict("records")
        cards.append(
            ClusterCard(
                label=int(label),
                clients=int(inside.sum()),
                samples=int(fleet.clients["samples"].to_numpy()[inside].sum()),
                groups=counted,
                classes=[],
                score=score,
                kind=kind,
                scores=own[score].dropna().head(MAX_MEMBERS).tolist(),
                together=_text(kind, pooled[label]) if label < len(pooled) else "",
                span=_span(known, kind),
                members=members,
                shown=_shown(len(members), len(own)),
            )
        )
    return cards


def _counts(values: Int) -> dict[int, int]:
    """Each value, with the number of times it occurs."""
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def _last_round(fleet: FleetData, last: Record, score: str) -> pd.DataFrame:
    """The clients of the last round that were ever heard, with their scores."""
    held = last["clients"]
    scores = held.get(score) or [None] * len(held["number"])
    found = pd.DataFrame({"number": held["number"], score: scores}).astype({score: float})
    known = fleet.clients[["client", "samples", "group", "cluster", "number"]]
    return known.astype({"number": float}).merge(found.astype({"number": float}), on="number")


def _text(kind: ScoreKind, value: float | None) -> str:
    return "" if value is None else kind.text(value)


def _span(known: pd.Series[float], kind: ScoreKind) -> tuple[float, float]:
    return (0.0, 1.0) if kind.percent or known.empty else (known.min(), known.max())


def _shown(listed: int, all_of_them: int) -> str:
    few = f"{listed} of the {all_of_them}" if listed < all_of_them else f"The {listed}"
    return f"{few} clients of the last round"
