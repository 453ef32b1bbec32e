"""What the pictures of a run need, as small numbers: t-SNE, cosines, F and R."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.linalg import orthogonal_procrustes
from sklearn.manifold import TSNE
from sklearn.metrics.pairwise import cosine_similarity

from wecfl import rng
from wecfl.base import F64, Int, Real, State
from wecfl.bilevel.threads import one_thread
from wecfl.config import Config
from wecfl.data.federation import Federation
from wecfl.models import layout_of, make
from wecfl.runs.record import Record

__all__ = ["Pictures"]

ROUNDS = 5
"""The paper shows the clients in the first five rounds."""
CLIENTS = 20
"""Clients of one cluster whose cosines the paper shows."""


class Pictures:
    """Watches the steps of a run; clients are seen after E, before the server aggregates them.

    At that point the rows of `models` are what the local updates made of them, and `labels` is
    the cluster each was assigned to.
    """

    def __init__(self, config: Config, federation: Federation) -> None:
        model = make(
            config.model, shape=federation.shape, classes=federation.classes, seed=config.seed
        )
        self._columns = layout_of(model).columns(config.representation)
        self._config = config
        self._groups = federation.groups
        self._embedding: F64 | None = None
        self._rounds: list[dict[str, Any]] = []
        self._cosine: dict[str, Any] = {}

    def step(self, step: str, state: State, seconds: float) -> None:
        """After each step (an `Observer` of `rounds.iterate`)."""
        if step != "E" or not state.round:
            return
        clients, centers = state.models[:, self._columns], state.centers[:, self._columns]
        if state.round <= ROUNDS:
            self._embedding = self._embed(clients, state.round)
            self._rounds.append(
                {
                    "round": state.round,
                    "cluster": state.labels.tolist(),
                    "x": self._embedding[:, 0].round(2).tolist(),
                    "y": self._embedding[:, 1].round(2).tolist(),
                }
            )
        if state.round == self._config.rounds:
            self._cosine = self._cosines(clients, centers, state.labels)

    def data(self, records: Sequence[Record]) -> dict[str, Any]:
        """What was seen, with the objectives of the rounds' records."""
        return {
            "group": None if self._groups is None else self._groups.tolist(),
            "rounds": self._rounds,
            "cosine": self._cosine,
            **{name: _by_step([record[name] for record in records]) for name in ("F", "R")},
        }

    def _embed(self, clients: Real, round: int) -> F64:
        """t-SNE in the plane; from the second round on it starts where the last one ended.

        It is turned (or mirrored) to lie on the last one, which leaves all distances as they are.
        """
        before = self._embedding
        tsne = TSNE(
            perplexity=min(30.0, (len(clients) - 1) / 3),
            # scikit-learn's own scale of a start
            init="pca" if before is None else before / before[:, 0].std() * 1e-4,
            random_state=rng.derive(self._config.seed, "tsne", round),
        )
        with one_thread():
            embedding: F64 = tsne.fit_transform(clients).astype(np.float64)
        embedding -= embedding.mean(axis=0)
        if before is not None:
            embedding = embedding @ orthogonal_procrustes(embedding, before)[0]
        return embedding

    def _cosines(self, clients: Real, centers: Real, labels: Int) -> dict[str, Any]:
        """Of all centers, and of some clients of the largest cluster."""
        used, sizes = np.unique(labels, return_counts=True)
        largest = used[sizes.argmax()]
        members = np.flatnonzero(labels == largest)[:CLIENTS]
        return {
            "clusters": used.tolist(),
            "centers": cosine_similarity(centers[used]).round(7).tolist(),
            "cluster": int(largest),
            "members": members.tolist(),
            "clients": cosine_similarity(clients[members]).round(7).tolist(),
        }


def _by_step(values: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    steps = values[0] if values else ()
    return {step: [float(f"{each[step]:.6g}") for each in values] for step in steps}
