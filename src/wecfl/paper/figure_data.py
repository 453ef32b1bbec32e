"""The numbers of a run that the paper's figures need: t-SNE, cosines, F, R, B and ‖∇L‖²."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.metrics.pairwise import cosine_similarity

from wecfl.bilevel.distance import distances
from wecfl.config import Config
from wecfl.core.state import State
from wecfl.core.types import F64, Int, Real
from wecfl.data.federation import Federation
from wecfl.models import layout_of, make
from wecfl.report.tsne import tsne_planes
from wecfl.runs.record import Record
from wecfl.theory.rate import mean_gradients

__all__ = ["FigureData"]

FIRST_ROUNDS = 5
"""The number of rounds in the paper's t-SNE figure."""
COMPARED_CLIENTS = 20
"""The number of clients of one cluster whose cosines the paper shows."""


class FigureData:
    """Watches the steps of a run, and keeps what figures need after E, before aggregation.

    At that point the rows of `models` come from the local updates, and `labels` are the clusters
    that the clients were assigned to.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        model = make(
            config.model, shape=federation.shape, classes=federation.classes, seed=config.seed
        )
        self._columns = layout_of(model).columns(config.representation)
        self._config = config
        self._groups = federation.groups
        self._distances: list[F64] = []
        self._labels: list[Int] = []
        self._cosine: dict[str, Any] = {}

    def step(self, step: str, state: State, seconds: float) -> None:
        """Called after each step (an `Observer` of `rounds.iterate`)."""
        if step != "E" or not state.round:
            return
        clients, centers = state.models[:, self._columns], state.whole.get("moved")
        centers = state.centers[:, self._columns] if centers is None else centers
        if state.round <= FIRST_ROUNDS:
            self._distances.append(distances(clients))
            self._labels.append(state.labels)
        if state.round == self._config.rounds:
            self._cosine = self._cosines(clients, centers, state.labels)

    def data(self, records: Sequence[Record]) -> dict[str, Any]:
        """The kept numbers, with the objectives from the records of the rounds."""
        placed = tsne_planes(self._distances, self._config.seed)
        return {
            "group": None if self._groups is None else self._groups.tolist(),
            "rounds": [
                {
                    "round": t,
                    "cluster": labels.tolist(),
                    "x": plane[:, 0].round(2).tolist(),
                    "y": plane[:, 1].round(2).tolist(),
                }
                for t, (labels, plane) in enumerate(zip(self._labels, placed, strict=True), 1)
            ],
            "cosine": self._cosine,
            **{name: _by_step([record[name] for record in records]) for name in ("F", "R")},
            **(self._diagnosed(records) if records and "B" in records[0] else {}),
        }

    def _diagnosed(self, records: Sequence[Record]) -> dict[str, Any]:
        """The clusterability B, and the mean ‖∇L‖² beside what Theorem 3 promises."""
        found = mean_gradients(records, self._config.steps)
        means = [
            {"measured": mean, **({"promised": promised} if np.isfinite(promised) else {})}
            for mean, promised in found
        ]
        return {
            "B": _by_step([_largest(each["B"]) for each in records]),
            "gradient": _by_step(means),
        }

    def _cosines(self, clients: Real, centers: Real, labels: Int) -> dict[str, Any]:
        """The cosines between all centers, and between some clients of the largest cluster."""
        used, sizes = np.unique(labels, return_counts=True)
        largest = used[sizes.argmax()]
        members = np.flatnonzero(labels == largest)[:COMPARED_CLIENTS]
        return {
            "clusters": used.tolist(),
            "centers": cosine_similarity(centers[used]).round(7).tolist(),
            "cluster": int(largest),
            "members": members.tolist(),
            "clients": cosine_similarity(clients[members]).round(7).tolist(),
        }


def _largest(sides: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    """The largest B over the clusters that have clients."""
    return {side: max(b for b in values if b is not None) for side, values in sides.items()}


def _by_step(values: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    steps = values[0] if values else ()
    return {step: [float(f"{by_step[step]:.6g}") for by_step in values] for step in steps}
