"""Sketches: what the server keeps of an absent client, to place it when its cluster is divided.

If the server chooses K, it does so once it has seen enough clients. A client that was heard before
would stay in the cluster that was divided until it takes part again, which may be 1,000 rounds
later. So the server keeps a sketch of its last update: the change of g_i in its local update, less
the mean change of the clients that were sent the same model, in `width` random directions. Clients
of one group change in the same way in every round. So a sketch points in the same direction as the
updates of its group, also in later rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from wecfl import rng
from wecfl.bilevel.means import cluster_means, unit
from wecfl.bilevel.representation.projection import in_random_directions
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Int

__all__ = ["Sketches"]


@final
@dataclass(frozen=True, slots=True)
class Sketches:
    """Makes sketches of `width` numbers, and compares them by the angle between them.

    >>> groups = np.array([0, 1, 0, 1, 1, 0])
    >>> sketches = np.array([[1.0, 0.1], [-1, 0.3]])[groups] * np.arange(1, 7)[:, None]
    >>> Sketches().placed(sketches[:2], np.array([0, 0]), sketches[2:], groups[2:], known=1)
    array([0, 1])
    """

    width: int = 64

    def of(self, state: State, method: Method, engine: Engine, seed: int) -> F32:
        """(n, width), the sketches of the clients that were heard; `state` is the one after L."""
        shown, heard = method.representation, state.heard
        sent = np.asarray(shown.centers(state, engine, seed), np.float64)[state.labels]
        strangers = state.strangers
        never = np.zeros(len(heard), np.bool_) if strangers is None else strangers
        if never.any():
            alone = replace(state, centers=state.whole["stranger"][None], labels=state.labels * 0)
            sent[never] = shown.centers(alone, engine, seed)
        change = (shown.clients(state, engine, seed) - sent)[heard]
        if change.shape[1] > self.width:
            change = in_random_directions(change, self.width, rng.stream(seed, "sketches"))
        alike = np.unique(np.where(never, -1, state.labels)[heard], return_inverse=True)[1]
        means = cluster_means(change, alike, np.ones(len(change)))
        return (change - means[alike]).astype(np.float32)

    def placed(self, sketches: F32, labels: Int, heard: F32, found: Int, known: int) -> Int:
        """(n,), the clusters of absent clients, after new ones were found in a round.

        `sketches` and `labels` are those of the absent clients; `heard` and `found` are the
        sketches and labels of the clients of the round. An absent client stays, or joins a cluster
        that is not among the first `known` ones.
        """
        k = max(int(labels.max()), int(found.max())) + 1
        filled = np.bincount(found, minlength=k) > 0
        means = cluster_means(heard.astype(np.float64), found, np.ones(len(heard)), k)
        near: F64 = np.where(filled & (np.arange(k) >= known), sketches @ unit(means).T, -np.inf)
        own = np.einsum("ij,ij->i", sketches, unit(means)[labels])
        # A cluster without a client in this round can't be compared: its clients stay.
        near[np.arange(len(labels)), labels] = np.where(filled[labels], own, np.inf)
        return np.asarray(near.argmax(axis=1))
