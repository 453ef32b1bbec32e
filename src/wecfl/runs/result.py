"""The result of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from wecfl.channel.privacy import Privacy
from wecfl.core.clients import Clients
from wecfl.core.method import Method
from wecfl.core.state import Reply, State
from wecfl.core.task import Task
from wecfl.core.types import F32, F64, Int
from wecfl.data.packing import pack, parts_of
from wecfl.data.pipeline import Pipeline
from wecfl.data.samples import as_samples
from wecfl.errors import ConfigError, unknown
from wecfl.models import Module, Vote, fill, layout_of, outputs_of
from wecfl.models.unpacking import unpacking
from wecfl.runs.choice import choice_words, last_choice
from wecfl.runs.drift_summary import last_drift
from wecfl.runs.json_values import json_number
from wecfl.runs.member_reference import Reference
from wecfl.runs.newcomers import Assigner, Assignment, By, NewcomerSetup
from wecfl.runs.record import Record, groups_at, served
from wecfl.runs.scores import Better, headline_of
from wecfl.runs.simulated_newcomers import newcomer_summary
from wecfl.runs.summary import last_parts, last_rounds, replies, settled

__all__ = ["Result", "Status"]

MODELS_KEPT = 64
"""The number of models that a result keeps to predict with; `model` always builds a new one."""
Status = Literal["finished", "interrupted", "failed"]
"""How a run ended: after its last round or by a rule, by Ctrl-C, or by an error."""


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run: the clusters, a model for each, and the scores of each client.

    >>> from wecfl import Config, run_config
    >>> result = run_config(Config(clients=6, groups=2, clusters=2, rounds=2, objectives=False))
    >>> list(result.history.columns[:6])
    ['round', 'accuracy', 'macro_f1', 'ari', 'nmi', 'clusters']
    >>> result.clients.columns.tolist()
    ['client', 'samples', 'group', 'cluster', 'accuracy', 'macro_f1']
    >>> type(result.model(client="3")).__name__
    'Sequential'
    >>> result
    Result(wecfl: 6 clients in 2 clusters after 2 rounds, accuracy ... %, finished)
    """

    method: Method
    federation: Clients
    records: list[Record]
    """One record for each round, as in `metrics.jsonl` (`wecfl.runs.record.RECORD_KEYS`)."""
    states: tuple[State, ...]
    """The final state; one for each run of a soft vote."""
    architecture: Module
    engine: str
    """The engine that trained the clients; the last bits of the result depend on it."""
    seconds: float
    seed: int
    newcomer_setup: NewcomerSetup
    """How newcomers are trained."""
    refer: Callable[[State], Reference]
    """A function that makes the reference for newcomers, by one local update of all members."""
    status: Status = "finished"
    folder: Path | None = None
    privacy: Privacy | None = None
    reference: Reference | None = None
    """What newcomers are compared with; None: it is not made yet."""
    newcomers: pd.DataFrame | None = None
    """A row for each client that was kept out of the training: its data, cluster and scores."""
    unseen: int | None = None
    """The hidden group that was kept out of the training as a whole."""
    stopped: str | None = None
    """Why the run ended before its last round; None: it did not."""

    @property
    def choice(self) -> str:
        """Why there is this number of clusters, if the server chose K; otherwise empty."""
        chosen = last_choice(self.records)
        return choice_words(chosen["choice"]) if chosen else ""

    @property
    def labels(self) -> Int:
        """(m,), the cluster of each client, r_ik = [labels_i = k] (of the first soft-voted run)."""
        return self.states[0].labels

    @property
    def centers(self) -> F32:
        """(K, P), the clusters' models Ω_k as rows (of the first soft-voted run)."""
        return self.states[0].centers

    def __repr__(self) -> str:
        """One line: what was trained, and the result."""
        name, kind = headline_of(summary := self.summary)
        scored = f", {kind.label} {kind.text(summary[name])}" if summary[name] is not None else ""
        return (
            f"Result({self.method.name}: {len(self.labels)} clients in "
            f"{len(np.unique(self.labels))} clusters after {len(self.records)} rounds{scored}, "
            f"{self.status}{f'; {self.choice}' if self.choice else ''})"
        )

    def _repr_html_(self) -> str:
        """The clients as a table, for notebooks."""
        return f"<p>{self}</p>{self.clients.to_html(index=False, max_rows=20)}"

    def model(self, *, client: int | str | None = None, cluster: int | None = None) -> Module:
        """The model of a client, by its name or its number, or the model of a cluster."""
        return self._built(*self._which(client, cluster))

    def _which(
        self, client: int | str | None, cluster: int | None
    ) -> tuple[Literal["client", "cluster"], int]:
        """A client or a cluster, and its number."""
        if (client is None) == (cluster is None):
            raise ConfigError(
                'give either client or cluster: model(client="site 7") or model(cluster=3)'
            )
        if cluster is None and not self.method.serve.center_alone:
            raise ConfigError(
                f"several models predict together for a client of {self.method.name}, so there is "
                f"no single one: ask for the models of the clusters, model(cluster=…)"
            )
        kind: Literal["client", "cluster"] = "client" if cluster is None else "cluster"
        number = self._number(client) if isinstance(client, str) else client
        number = number if cluster is None else cluster
        count = len(self.labels if cluster is None else self.centers)
        if not isinstance(number, int | np.integer) or not 0 <= number < count:
            raise ConfigError(f"{kind} must be a number from 0 to {count - 1}, got {number!r}")
        return kind, int(number)

    def _built(self, kind: Literal["client", "cluster"], number: int) -> Module:
        rows = [
            self._served(state)[number] if kind == "client" else state.centers[number]
            for state in self.states
        ]
        members = [fill(self.architecture, row) for row in rows]
        return members[0] if len(members) == 1 else Vote(members).eval()

    def _number(self, client: str) -> int:
        """The position of the client with this name."""
        names = list(self.federation.names)
        if client not in names:
            raise ConfigError(unknown("client", client, names))
        return names.index(client)

    def predict(
        self, x: ArrayLike, *, client: int | str | None = None, cluster: int | None = None
    ) -> NDArray[Any]:
        """(n,), the class or the number that the model of a client or a cluster predicts.

        (n, d) if there are several labels or numbers for each sample. Samples have the form that
        they had in the training: rows of the same table (a DataFrame, or lists of values), or
        arrays. Classes are given by their names, if they have names.

        >>> from wecfl import Config, run_config
        >>> from wecfl.from_config import federation_of
        >>> config = Config(clients=6, groups=2, clusters=2, rounds=2, objectives=False)
        >>> result, fed = run_config(config), federation_of(config)
        >>> mine = fed.test[3]
        >>> right = (result.predict(fed.x[mine], client="3") == fed.y[mine]).mean()
        >>> bool(abs(right - result.clients["accuracy"][3]) < 1e-6)
        True
        """
        return self.predictions(x, client=client, cluster=cluster)[0]

    def predict_proba(
        self, x: ArrayLike, *, client: int | str | None = None, cluster: int | None = None
    ) -> F32:
        """(n, C), the probability of each class, or of a yes for each of several labels."""
        _, shares = self.predictions(x, client=client, cluster=cluster)
        if shares is None:
            raise ConfigError(f"the task {self.task.name} has no probabilities: use predict")
        return shares

    def predictions(
        self, x: ArrayLike, *, client: int | str | None = None, cluster: int | None = None
    ) -> tuple[NDArray[Any], F32 | None]:
        """The values of `predict` and `predict_proba`, by one pass; None without probabilities."""
        outputs = self._outputs(x, client, cluster)
        found, shares = self.task.predictions(outputs), self.task.probabilities(outputs)
        if (names := self.class_names) is not None:
            found = np.array(names)[found]
        return found, None if shares is None else shares.astype(np.float32)

    def _outputs(self, x: ArrayLike, client: int | str | None, cluster: int | None) -> F64:
        kind, number = self._which(client, cluster)
        shape, module = self.newcomer_setup.blueprint.shape, self._predicting(kind, number)
        if self.pipeline:
            whose = self.federation.names[number] if kind == "client" else number
            x = self.pipeline.transform(x, whose)
        elif not shape and (parts := parts_of([x])):  # over a network clients pack their samples
            x, module = pack("predict", x, parts), unpacking(module, parts, None)
        return outputs_of(module, as_samples("predict", x, shape)).astype(np.float64)

    @cached_property
    def _predicting(self) -> Callable[[Literal["client", "cluster"], int], Module]:
        """Builds the models that predict, and keeps those that were last used."""
        return lru_cache(MODELS_KEPT)(self._built)

    @property
    def task(self) -> Task:
        """What was learned."""
        return self.newcomer_setup.task

    @property
    def class_names(self) -> list[str] | None:
        """The names of the classes 0, 1, 2, …; None: they have no names."""
        names = self.pipeline.classes if self.pipeline else None
        return None if names is None else list(names)

    @property
    def target_names(self) -> list[str] | None:
        """The names of the predicted columns, if there are several; otherwise None."""
        return list(self.pipeline.targets) or None if self.pipeline else None

    @property
    def pipeline(self) -> Pipeline | None:
        """How samples are made from tables or pixels; None: they are used as they are given."""
        return self.newcomer_setup.pipeline

    def _served(self, state: State) -> F32:
        """(m, P), the models that predict for clients, as far as the server has them."""
        if self.method.serve.needs_memory and "personal" in state.memory:
            begun = state.memory["begun"]
            return np.where(begun[:, None], state.memory["personal"], state.sent)
        layout = layout_of(self.architecture)
        rows = served([state], layout, self.method.shared)
        complete = getattr(self.method.serve, "completed", None)
        return complete(rows, state, layout) if complete else rows

    def assign(
        self,
        x: ArrayLike,
        y: ArrayLike | None = None,
        *,
        test: float | tuple[ArrayLike, ArrayLike] = 0.2,
        by: By | None = None,
    ) -> Assignment:
        """The cluster and the model for a client that took no part in the training.

        Args:
            x: The samples of the client, in the same form as those of the members.
            y: The labels of these samples; None if there are none. Then the client is compared by
                its inputs, if they distinguish the clusters (otherwise it is a `ConfigError`).
            test: The share of the samples that is held out to test the model; or samples and labels
                for the test.
            by: `update` (the default with labels), to compare clients by one local update from the
                initial model of all members; `losses`, to compare the losses of the clusters'
                models, without training; or `inputs` (the default without labels).

        >>> from wecfl import Config, run_config
        >>> from wecfl.from_config import federation_of
        >>> config = Config(clients=12, groups=2, clusters=2, rounds=4, objectives=False)
        >>> result, fed = run_config(config), federation_of(config)
        >>> mine = fed.train[5]                                   # as if it were a newcomer's
        >>> found = result.assign(fed.x[mine], fed.y[mine])
        >>> found.cluster == result.labels[5], found.novel, found.confidence > 0.5
        (np.True_, False, True)

        """
        return self.assigner.assign(x, y, test=test, by=by)

    @cached_property
    def assigner(self) -> Assigner:
        """Assigns newcomers. At the first call, all members make one local update for it."""
        reference = self.reference or self.refer(self.states[0])
        return Assigner(
            self.newcomer_setup, reference, np.stack([state.centers for state in self.states])
        )

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
        """Means of the last three rounds, clusters, time and status, as in `summary.json`."""
        return {
            "method": self.method.name,
            "engine": self.engine,
            "k": self.method.members if self.method.members > 1 else self.method.k,
            "rounds": len(self.records),
            "scores": self.better,
            **dict.fromkeys((*self.better, "ari", "worst_decile")),
            **last_rounds(self.records),
            "clusters": self.records[-1]["clusters"] if self.records else None,
            "settled": settled(self.records),
            **self._extras,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
            "status": self.status,
        }

    @property
    def better(self) -> dict[str, Better]:
        """The scores of the task, the headline first, and whether higher or lower is better."""
        task = self.task
        names = task.scores(np.zeros((0, *task.shape(self.newcomer_setup.blueprint.classes))))
        return {name: "lower" if name in task.lower else "higher" for name in names}

    @property
    def _extras(self) -> dict[str, Any]:
        """More entries of the summary: the choice of K, drift, attacks, privacy and newcomers."""
        extras: dict[str, Any] = {**last_choice(self.records), **last_drift(self.records)}
        if traffic := [record["traffic"] for record in self.records if "traffic" in record]:
            extras["traffic"] = {name: sum(part[name] for part in traffic) for name in traffic[0]}
        if self.stopped:
            extras["stopped"] = self.stopped
        for name in ("before", "attack"):
            extras |= last_parts(self.records, name)
        spent = [
            record["network"]["privacy"]
            for record in self.records
            if "privacy" in record.get("network", {})
        ]
        if self.privacy and spent:  # what the clients' own ledgers say
            epsilons = [total["epsilon"] for total in spent]
            extras["privacy"] = {
                "epsilon": None if None in epsilons else max(epsilons),
                "delta": self.privacy.delta,
                "replies": max(total["replies"] for total in spent),
            }
        elif self.privacy:
            took_part = replies(self.records, len(self.federation)) != Reply.ABSENT
            # A client sends a model for each run of a soft vote.
            replied = int(took_part.sum(axis=0).max(initial=0)) * len(self.states)
            epsilon = self.privacy.epsilon(replied)
            extras["privacy"] = {
                "epsilon": json_number(epsilon),
                "delta": self.privacy.delta,
                "replies": replied,
            }
        if self.newcomers is not None:
            extras["newcomers"] = newcomer_summary(
                self.newcomers, self.clients, self.unseen, score=next(iter(self.better))
            )
        return extras

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
        columns = {
            "client": fed.names,
            "samples": fed.sizes,
            "group": groups_at(fed, len(self.records)),
        }
        refused = (replies(self.records, len(fed)) >= Reply.NOT_FINITE).sum(axis=0)
        if refused.any():
            columns["refused"] = refused
        of_one_round = {"reply", "bytes_up", "bytes_down"}
        shown = {name: values for name, values in last.items() if name not in of_one_round}
        return pd.DataFrame(columns | {"cluster": self.labels} | shown)

    def table(self) -> pd.DataFrame:
        """The summary as a table with one row."""
        return pd.DataFrame([self.summary]).set_index("method")
