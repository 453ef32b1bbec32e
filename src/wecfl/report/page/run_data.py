"""The contents of a run folder for the report page, whose files must belong together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from wecfl.core.types import F64, Int
from wecfl.errors import RunFolderError
from wecfl.folder.distance_trace import read_trace, traced_rounds
from wecfl.folder.readers import (
    read_assignments,
    read_classes,
    read_clients,
    read_metrics,
    read_pipeline,
    read_summary,
)
from wecfl.runs.record import Record

__all__ = ["RunData"]


@dataclass(frozen=True, slots=True)
class RunData:
    """The contents of a run folder."""

    folder: Path
    summary: dict[str, Any]
    config: dict[str, Any]
    records: list[Record]
    clients: pd.DataFrame
    labels: Int
    """(rounds, m), the cluster of each client after each round."""
    held: Int | None
    """(classes, m), training samples of each class; None in older folders."""
    traced: list[int]
    class_names: list[str]
    """The names of the classes; those without names are called by their numbers."""

    @classmethod
    def read(cls, folder: Path) -> RunData:
        """Read the folder; refuse files that do not belong together."""
        summary, records, labels = (
            read_summary(folder), read_metrics(folder), read_assignments(folder)
        )  # fmt: skip
        clients, config = read_clients(folder), summary.pop("config")
        held = read_classes(folder)
        counted = [
            ("rounds", "metrics.jsonl", len(records), "assignments.csv", len(labels)),
            ("rounds", "metrics.jsonl", len(records), "summary.json", summary["rounds"]),
            ("clients", "clients.csv", len(clients), "assignments.csv", labels.shape[1]),
            *(
                ("clients", "clients.csv", len(clients), "metrics.jsonl", len(scores))
                for record in records
                for scores in record["clients"].values()
                if scores is not None
            ),
        ]
        if held is not None:
            counted.append(("clients", "clients.csv", len(clients), "classes.csv", held.shape[1]))
        for what, file, count, other, found in counted:
            if count != found:
                raise RunFolderError(
                    f"{folder} holds {count} {what} in {file} and {found} in {other}: its files do "
                    "not belong together"
                )
        sizes = np.array([len(record["sizes"]) for record in records])
        if (labels >= sizes[:, None]).any() or (labels[-1:] != clients["cluster"].to_numpy()).any():
            raise RunFolderError(
                f"{folder} holds clusters in assignments.csv that are not those of metrics.jsonl "
                "and clients.csv: its files do not belong together"
            )
        traced = [t for t in traced_rounds(folder) if 1 <= t <= len(records)]
        pipeline, classes = read_pipeline(folder), 0 if held is None else len(held)
        names = [*map(str, (pipeline.classes if pipeline else None) or range(classes))]
        if held is not None and len(names) != classes:
            raise RunFolderError(
                f"{folder} holds {classes} classes in classes.csv and the names of {len(names)} in "
                "pipeline.json: its files do not belong together"
            )
        return cls(folder, summary, config, records, clients, labels, held, traced, names)

    def trace(self, round: int, of: Literal["clients", "centers"] = "clients") -> tuple[F64, F64]:
        """The distances and norms of the clients, or of their centers, in a round."""
        between, norms = read_trace(self.folder, round, of)
        least = len(self.clients) if of == "clients" else self.labels[round - 1].max() + 1
        if len(norms) < least or (of == "clients" and len(norms) > least):
            raise RunFolderError(
                f"the trace of round {round} in {self.folder} has {len(norms)} {of}, expected "
                f"{least}: it does not belong to this run"
            )
        return between, norms

    @property
    def groups(self) -> Int | None:
        """(m,), the hidden groups that generated the data; None if they are unknown."""
        found = self.clients["group"]
        return None if found.isna().any() else found.to_numpy(np.int64)

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|, the training samples of each client."""
        return self.clients["samples"].to_numpy(np.int64)

    @property
    def several(self) -> bool:
        """Whether clients were in different clusters at some time."""
        return bool(self.labels.max(initial=0) > 0)
