"""What a run found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from wecfl.channel.privacy import Privacy
from wecfl.core.method import Method
from wecfl.core.state import F32, Clients, Int, Reply, State
from wecfl.errors import ConfigError
from wecfl.models import Module, Vote, fill, layout_of
from wecfl.runs.json_values import json_number
from wecfl.runs.kept_out import outcome
from wecfl.runs.newcomers import (
    Assignment,
    By,
    Reception,
    Reference,
    Visit,
)
from wecfl.runs.record import (
    Record,
    last_choice,
    last_parts,
    last_rounds,
    replies,
    served,
    settled,
)

__all__ = ["Result", "Status"]

Status = Literal["finished", "interrupted", "failed"]
"""How a run ended: all rounds were done, Ctrl-C, or an error."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found: the groups, a model for each, and how well each client is served.

    >>> from wecfl import Config, run_config
    >>> result = run_config(Config(clients=6, groups=2, clusters=2, rounds=2, objectives=False))
    >>> list(result.history.columns[:6])
    ['round', 'accuracy', 'macro_f1', 'ari', 'nmi', 'clusters']
    >>> result.clients.columns.tolist()
    ['client', 'samples', 'group', 'cluster', 'accuracy', 'macro_f1']
    >>> type(result.model(client=3)).__name__
    'Sequential'
    """

    method: Method
    federation: Clients
    records: list[Record]
    """One per round, as in `metrics.jsonl` (`wecfl.runs.record.KEYS`)."""
    states: tuple[State, ...]
    """The final state; several for a soft vote."""
    architecture: Module
    engine: str
    """What trained the clients, as part of the reproducibility key."""
    seconds: float
    seed: int
    visit: Visit
    """How a newcomer is trained."""
    refer: Callable[[State], Reference]
    """Asks all members for what newcomers are compared with."""
    status: Status = "finished"
    folder: Path | None = None
    privacy: Privacy | None = None
    reference: Reference | None = None
    """What newcomers are compared with; None: nobody has asked for it yet."""
    newcomers: pd.DataFrame | None = None
    """One row per client that was kept out of the training: its data, cluster and scores."""
    unseen: int | None = None
    """The generating group that was kept out as a whole."""

    @property
    def labels(self) -> Int:
        """(m,), the cluster of each client, r_ik = [labels_i = k] (of the first soft-voted run)."""
        return self.states[0].labels

    @property
    def centers(self) -> F32:
        """(K, P), the clusters' models Ω_k as rows (of the first soft-voted run)."""
        return self.states[0].centers

    def model(self, *, client: int | None = None, cluster: int | None = None) -> Module:
        """The model that serves a client, or that of a cluster, ready to predict."""
        if (client is None) == (cluster is None):
            raise ConfigError("name one: model(client=17) or model(cluster=3)")
        kind, number = ("client", client) if cluster is None else ("cluster", cluster)
        count = len(self.labels if cluster is None else self.centers)
        if number is None or not 0 <= number < count:
            raise ConfigError(f"no {kind} {number}: they are numbered 0 to {count - 1}")
        rows = [
            self._served(state)[number] if cluster is None else state.centers[number]
            for state in self.states
        ]
        members = [fill(self.architecture, row) for row in rows]
        return members[0] if len(members) == 1 else Vote(members).eval()

    def _served(self, state: State) -> F32:
        """(m, P), the rows that answer for clients, where the server knows them."""
        if self.method.serve.needs_memory and "personal" in state.memory:
            begun = state.memory["begun"]
            return np.where(begun[:, None], state.memory["personal"], state.sent)
        return served([state], layout_of(self.architecture), self.method.shared)

    def assign(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        test: float | tuple[ArrayLike, ArrayLike] = 0.2,
        by: By = "update",
    ) -> Assignment:
        """Where a client belongs that took no part, and the model it should use.

        Args:
            x: its samples, in the form in which those of the members were given.
            y: their labels.
            test: the share of them that is held out to tell how good the model is for it; or
                samples and labels for that.
            by: `update`, by one local update from the start that all members began with; or
                `losses`, by how well each cluster's model does on its data, without training.

        >>> from wecfl import Config, run_config
        >>> from wecfl.from_config import federation_of
        >>> config = Config(clients=12, groups=2, clusters=2, rounds=4, objectives=False)
        >>> result, fed = run_config(config), federation_of(config)
        >>> mine = fed.train[5]                                   # as if it were a newcomer's
        >>> found = result.assign(fed.x[mine], fed.y[mine])
        >>> found.cluster == result.labels[5], found.novel, found.confidence > 0.5
        (np.True_, False, True)

        """
        return self.reception.assign(x, y, test=test, by=by)

    @cached_property
    def reception(self) -> Reception:
        """All it takes to receive newcomers; if need be, all members are asked for one update."""
        reference = self.reference or self.refer(self.states[0])
        return Reception(self.visit, reference, np.stack([state.centers for state in self.states]))

    @property
    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """The clusters' models by name, `cluster.K.NAME`, as in `models.safetensors`."""
        layout, several = layout_of(self.architecture), len(self.states) > 1
        return {
            f"{f'member.{j}.' if several else ''}cluster.{k}.{name}": np.ascontiguousarray(tensor)
            for j, state in enumerate(self.states)
            for k, center in enumerate(state.centers)
            for name, tensor in layout.tensors(center).items()
        }

    @property
    def summary(self) -> dict[str, Any]:
        """Means of the last three rounds, groups found, time and status, as in `summary.json`."""
        return {
            "method": self.method.name,
            "engine": self.engine,
            "k": self.method.members if self.method.members > 1 else self.method.k,
            "rounds": len(self.records),
            **last_rounds(self.records),
            "clusters": self.records[-1]["clusters"] if self.records else None,
            "settled": settled(self.records),
            **self._told,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "status": self.status,
        }

    @property
    def _told(self) -> dict[str, Any]:
        """What a run that chose K, or one with attackers or privacy, has to tell besides."""
        told: dict[str, Any] = last_choice(self.records)
        for name in ("before", "attack"):
            told |= last_parts(self.records, name)
        if self.privacy:
            took_part = replies(self.records, len(self.federation)) != Reply.ABSENT
            # Of each soft-voted run a client sends a model.
            most = int(took_part.sum(axis=0).max(initial=0)) * len(self.states)
            epsilon = self.privacy.epsilon(most)
            told["privacy"] = {
                "epsilon": json_number(epsilon),
                "delta": self.privacy.delta,
                "replies": most,
            }
        if self.newcomers is not None:
            told["newcomers"] = outcome(self.newcomers, self.clients, self.unseen)
        return told

    @property
    def history(self) -> pd.DataFrame:
        """The records as a table, one row per round."""
        flat = [{k: v for k, v in record.items() if k != "clients"} for record in self.records]
        return pd.json_normalize(flat)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client: its data, its cluster and its scores in the last round."""
        fed = self.federation
        last = self.records[-1]["clients"] if self.records else {}
        columns = {"client": fed.names, "samples": fed.sizes, "group": fed.groups}
        refused = (replies(self.records, len(fed)) >= Reply.NOT_FINITE).sum(axis=0)
        if refused.any():
            columns["refused"] = refused
        shown = {name: values for name, values in last.items() if name != "reply"}
        return pd.DataFrame(columns | {"cluster": self.labels} | shown)

    def table(self) -> pd.DataFrame:
        """The result in one line: accuracy, macro-F1, groups found, ARI, seconds."""
        return pd.DataFrame([self.summary]).set_index("method")
