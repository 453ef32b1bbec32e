"""The record of a round: one dictionary, which is a line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from wecfl import metrics
from wecfl.bilevel.evaluation import served_tallies, tallies
from wecfl.bilevel.objectives import F, R
from wecfl.bilevel.representation import Columns
from wecfl.core.clients import Clients
from wecfl.core.engine import Engine
from wecfl.core.program import private_columns
from wecfl.core.setting import Setting
from wecfl.core.state import Reply, State
from wecfl.core.traffic import Metered
from wecfl.core.types import F32, F64, Int, Real
from wecfl.data.changes import changed_clients
from wecfl.data.federation import Federation
from wecfl.layout import Layout
from wecfl.runs.diagnostics import Diagnostics
from wecfl.runs.json_values import json_number
from wecfl.runs.scores import kind_of
from wecfl.runs.simulated_attack import SimulatedAttack

__all__ = [
    "CLUSTERING_KEYS",
    "CONDITION_KEYS",
    "DIAGNOSTIC_KEYS",
    "DRIFT_KEYS",
    "FLEET_KEYS",
    "RECORD_KEYS",
    "SCHEDULE_KEYS",
    "Record",
    "Recorder",
    "Recording",
    "groups_at",
    "served",
]

Record = dict[str, Any]
"""Everything that is recorded about a round, by the keys in `RECORD_KEYS`."""

RECORD_KEYS = {
    "round": "t, from 1",
    "accuracy": "fraction of right predictions of a client on its test data; |D_i|-weighted mean",
    "macro_f1": "mean F1 of a client over classes in truth or prediction; |D_i|-weighted mean",
    "ari": "adjusted Rand index of the assignment against the generating groups; null if unknown",
    "nmi": "normalized mutual information of assignment and groups; null if unknown",
    "clusters": "clusters with at least one client",
    "sizes": "clients in each of the K clusters",
    "churn": "fraction of clients that changed cluster since the last round, after matching labels",
    "cosine": "mean similarity of the models before D: intra (pairs in a cluster), inter (centers)",
    "F": "the clustering objective after the steps L, E and M",
    "R": "the learning objective after the steps L and D, on all training data (if measured)",
    "R_estimate": "R after L and D, on one mini-batch of each client, where not on all data",
    "seconds": "wall time of the steps L, E, M, D, of the scores and of the objectives F and R",
    "worst_decile": "mean of the first score over the tenth of the clients that fares worst",
    "cluster_scores": "the first score of each cluster, from the tallies of its clients together",
    "clients": "accuracy and macro_f1 of each client, and the bytes it sent and received",
    "traffic": "bytes of arrays that clients sent (up) and received (down), and messages",
}
"""The keys of a record, and what they mean. `accuracy` and `macro_f1` are the scores of a
classification; another task has its own in their place (`wecfl.tasks`)."""

CONDITION_KEYS = {
    "before": "the scores before local adaptation, if the method adapts models",
    "replies": "how many local updates were heard, absent, lost, refused, if some were not heard",
    "network": "over a network: who joined, what was refused and why, how many replies came late, "
    "and the privacy budget that was spent",
    "attack": "shares of attackers isolated, of honest clients exposed, and a backdoor's success",
}
"""More keys of a record, if replies can be missing or forged. `clients` then also holds `reply`,
the outcome of each local update (`wecfl.core.state.Reply`). Under attack, the scores are those of
the honest clients."""

CLUSTERING_KEYS = {
    "notes": "what the clustering wrote down about the number of clusters",
}
"""One more key of a record, if the clustering decides how many clusters there are."""

DRIFT_KEYS = {
    "drift": "changed: the clients whose data changed at the beginning of the round, and groups: "
    "the true groups from then on; found: the clients that were found to have drifted, and moved: "
    "those of them that were given another cluster",
}
"""One more key of a record, if the clients' data drift or the method looks for drift. Clients are
given by their numbers, from 0."""

SCHEDULE_KEYS = {
    "lr": "η of the round, if a schedule sets it",
}
"""One more key of a record, if the learning rate changes from round to round."""

FLEET_KEYS = {
    "heard": "how many clients of a fleet were heard so far; `sizes` counts all of them",
    "memory": "bytes: rows of what clients keep (kept), and the most that the process held (peak)",
}
"""More keys of a record of a fleet. The scores, F and agreement are those of the clients that took
part in the round, and `clients` also holds the `number` of each of these clients, and its
`cluster`."""

DIAGNOSTIC_KEYS = {
    "silhouette": "of the clients' models before D, null if undefined",
    "B": "clusterability of each cluster at the clients' models before (0) and after (Q) L",
    "theory": "U, sigma2, beta, and what the lemmas allow in this round",
}
"""More keys of a record with `diagnostics`. `clients` then also holds learning rates and bounds."""


class Recording(Protocol):
    """Makes the records of a run."""

    def begin(self, labels: Int, diagnostics: Diagnostics | None = None) -> None:
        """Called before the first round, with the assignment and the diagnostics, if any."""

    def round(self, states: Sequence[State]) -> Record:
        """The record of the round, after its last step; `states` are those of a soft vote."""

    def may_end(self, round: int) -> bool:
        """Whether the run may end after this round."""


class Recorder:
    """Watches the steps of a round, and makes its record.

    `objectives` says whether R is measured: in every `exact_every`-th round on all training data,
    and in the other rounds by an estimate. F is measured in all rounds; but if clients must be
    asked for it, only together with R on all training data.

    Clients are tested in every `score_every`-th round, and in the last of `rounds`. In other rounds
    their scores are unknown. If `score_every` is None, clients are never tested, since their scores
    would leave them unprotected.

    Under an `attack` the scores are those of the honest clients. `trigger_engine` tests the models
    on samples with the trigger of a backdoor. `metered` counts what was sent since the last record,
    including what was sent before the first round.
    """

    def __init__(
        self,
        setting: Setting,
        clients: Federation | Clients,
        metered: Metered | None = None,
        *,
        objectives: bool = True,
        exact_every: int | None = 1,
        score_every: int | None = 1,
        rounds: int = 0,
        attack: SimulatedAttack | None = None,
        trigger_engine: Engine | None = None,
    ) -> None:
        self._setting, self._method, self._engine = setting, setting.method, setting.engine
        self._clients, self._metered = clients, metered
        self._objectives, self._exact_every = objectives, exact_every
        self._every, self._last = score_every, rounds
        self._attack, self._trigger_engine = attack, trigger_engine
        self._honest = 1 if attack is None else ~attack.attackers
        self._before: Int | None = None
        self._diagnostics: Diagnostics | None = None
        self._previous: State | None = None
        self._clear()

    def scores(self, round: int) -> bool:
        """Whether clients are tested in this round."""
        return self._every is not None and (round % self._every == 0 or round == self._last)

    def exact(self, round: int) -> bool:
        """Whether the objectives are measured on all training data in this round."""
        every = self._exact_every if self._objectives else None
        return every is not None and round % every == 0

    def may_end(self, round: int) -> bool:
        """Whether the run may end after this round: the last round must have scores, if any has."""
        return self._every is None or self.scores(round)

    def begin(self, labels: Int, diagnostics: Diagnostics | None = None) -> None:
        """Called before the first round, with the assignment and the diagnostics, if any."""
        self._before, self._diagnostics = labels, diagnostics

    def _clear(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {"F": {}, "R": {}, "R_estimate": {}}
        self._seconds: dict[str, float] = {}
        self._apart: tuple[Real, Real] | None = None

    def step(self, step: str, state: State, seconds: float) -> None:
        """Called after each step (an `Observer` of `rounds.iterate`)."""
        self._add_seconds(step, seconds)
        if step == "D" and self._previous and self._apart is None:
            self._apart = self._compared(self._previous)  # of the first soft-voted run
        self._previous = state  # before R, so that the matrix of models is not held twice
        began = perf_counter()
        setting, exact = self._setting, self.exact(state.round)
        clusters = "E" in self._method.steps and "M" in self._method.steps
        if step in "LEM" and clusters and (exact or not self._method.representation.asks):
            self._note("F", step, F(state, self._method, self._engine, setting.seed))
        if step in "LD" and self._objectives:
            name, batches = ("R", None) if exact else ("R_estimate", 1)
            value = R(state, self._method, self._engine, batches=batches, seed=setting.seed)
            self._note(name, step, value)
        self._add_seconds("objectives", perf_counter() - began)

    def round(self, states: Sequence[State]) -> Record:
        """The record of the round, after its last step; `states` are those of a soft vote."""
        began = perf_counter()
        state, before = states[0], self._before
        task = self._engine.task
        tables = self._scores(states) if self.scores(state.round) else {}
        for table in tables.values():  # a client that has not joined is not tested
            table[~self._setting.channel.joined(len(state.labels), state.round - 1)] = 0
        nothing = np.zeros((len(state.labels), *task.shape(self._engine.outputs)))
        tally = tables.pop("after", nothing)
        scores = task.scores(tally)
        headline = next(iter(scores))
        counted = self._engine.sizes * self._honest
        sizes = np.bincount(state.labels, minlength=len(state.centers))
        compared = self._apart
        record: Record = {
            "round": state.round,
            **{name: _mean(each, counted) for name, each in scores.items()},
            **metrics.agreement(state.labels, groups_at(self._clients, state.round)),
            "clusters": int((sizes > 0).sum()),
            "sizes": sizes.tolist(),
            "churn": None if before is None else metrics.churn(state.labels, before),
            "cosine": compared and metrics.cosine(*compared, state.labels),
            **{
                name: {step: float(np.mean(values)) for step, values in steps.items()}
                for name, steps in self._values.items()
                if steps or name != "R_estimate"
            },
            "seconds": {},
            "worst_decile": json_number(
                metrics.worst_decile(scores[headline][counted > 0], lower=headline in task.lower)
            ),
            "cluster_scores": _known(
                headline, task.scores(_pooled(tally, state.labels, len(sizes)))[headline]
            ),
            "clients": {name: _known(name, each) for name, each in scores.items()},
        }
        for moment, table in tables.items():
            record[moment] = {
                name: _mean(values, counted) for name, values in task.scores(table).items()
            }
        further, of_clients = self._further(states)
        record |= further
        record["clients"] |= of_clients
        self._add_seconds("score", perf_counter() - began)
        if self._diagnostics:
            record["silhouette"] = compared and metrics.silhouette(compared[0], state.labels)
            measured, clients, seconds = self._diagnostics.round()
            record |= measured
            record["clients"] |= clients
            self._add_seconds("diagnostics", seconds)
        record["seconds"] = {name: round(value, 6) for name, value in self._seconds.items()}
        self._before = state.labels
        self._clear()
        return record

    def _further(self, states: Sequence[State]) -> tuple[Record, Record]:
        """Keys that only some runs have: replies, notes, drift, η, the network, attacks, traffic.

        First the keys of the round, and then the keys of `clients`.
        """
        state = states[0]
        found: Record = {}
        of_clients: Record = {}
        if state.outcome is not None:
            counts = np.bincount(state.outcome, minlength=len(Reply))
            found["replies"] = {outcome.name.lower(): int(counts[outcome]) for outcome in Reply}
            of_clients["reply"] = state.outcome.tolist()
        if state.notes:
            found["notes"] = {name: _plain(values) for name, values in state.notes.items()}
        if drift := self._drift(state):
            found["drift"] = drift
        if self._setting.schedule:
            found["lr"] = self._setting.scheduled(state.round - 1)
        if report := self._engine.network_report():
            found["network"] = report
        if self._attack:
            stack = served(states, self._engine.layout, self._method.shared)
            found["attack"] = self._attack.measured(state.labels, stack, self._trigger_engine)
        if self._metered:
            counted_bytes = {"up": self._metered.up, "down": self._metered.down}
            found["traffic"] = {
                **{way: int(n.sum()) for way, n in counted_bytes.items()},
                "messages": self._metered.messages,
            }
            of_clients |= {f"bytes_{way}": _sharing(n) for way, n in counted_bytes.items()}
            self._metered.clear()
        return found, of_clients

    def _drift(self, state: State) -> dict[str, list[int]]:
        """What is recorded about drift in a round (`DRIFT_KEYS`)."""
        found: dict[str, list[int]] = {}
        if isinstance(self._clients, Federation):
            changed = changed_clients(self._clients, state.round)
            groups = groups_at(self._clients, state.round)
            if len(changed):
                found["changed"] = changed.tolist()
                found |= {} if groups is None else {"groups": groups.tolist()}
        if (drifted := state.known.get("drifted")) is not None:
            moved = drifted & (state.labels != self._before)
            found |= {
                name: np.flatnonzero(who).tolist()
                for name, who in (("found", drifted), ("moved", moved))
            }
        return found

    def _scores(self, states: Sequence[State]) -> dict[str, F64]:
        """(m, …), the tallies at each moment; a soft vote is between the models that were sent."""
        if len(states) > 1:
            stack = served(states, self._engine.layout, self._method.shared)
            return {"after": tallies(self._engine, np.moveaxis(stack, 0, 1), "test")}
        setting, state = self._setting, states[0]
        # With a schedule, models are adapted with the η of this round: the next η may be 0.
        lr = setting.rates(state) if setting.rate else setting.scheduled(state.round - 1)
        plan = replace(setting.plan, lr=lr)
        return served_tallies(self._engine, self._method, state, plan, setting.seed)

    def _compared(self, state: State) -> tuple[Real, Real] | None:
        """(m, p) and (K, p), the representations of clients and centers, as copies.

        They are those of the method. If these are not a part of a model (IFCA's losses), they are
        all parameters. Since all parameters are large, this is done only with `diagnostics`.
        """
        chosen = self._method.representation
        elsewhere = chosen.asks or chosen.tells
        if elsewhere and not self._diagnostics:
            return None
        which = Columns("parameters") if elsewhere else chosen
        clients = which.clients(state, self._engine, self._setting.seed)
        return clients.copy(), which.centers(state, self._engine, self._setting.seed)

    def _note(self, name: str, step: str, value: float) -> None:
        self._values[name].setdefault(step, []).append(value)

    def _add_seconds(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds


def groups_at(clients: Federation | Clients, round: int) -> Int | None:
    """(m,), the hidden groups of the clients in a round; None: they are unknown.

    >>> groups_at(Federation.from_arrays([np.eye(4)], [np.arange(4)], groups=[0]), 3)
    array([0])
    """
    return clients.at(round).groups if isinstance(clients, Federation) else clients.groups


def served(states: Sequence[State], layout: Layout, shared: str) -> F32:
    """(m, P), the models sent, with the clients' private columns; (J, m, P) for a soft vote."""
    private, rows = private_columns(layout, shared), [state.sent for state in states]
    for state, models in zip(states, rows, strict=True):
        if private is not None and "private" in state.memory:
            begun = state.memory["begun"]
            models[np.ix_(begun, private)] = state.memory["private"][begun]
    return rows[0] if len(rows) == 1 else np.stack(rows)


def _mean(scores: F64, sizes: Int) -> float | None:
    """The weighted mean; None if no client has a score, or one of them is infinite."""
    return json_number(metrics.weighted(scores, sizes))


def _pooled(tallies: F64, labels: Int, k: int) -> F64:
    """(K, …), the tallies of each cluster's clients, added up."""
    pooled = np.zeros((k, *tallies.shape[1:]))
    np.add.at(pooled, labels, tallies)
    return pooled


def _sharing(numbers: Int) -> list[int]:
    """The numbers, equal ones as one object: records of all rounds stay in memory."""
    distinct, which = np.unique(numbers, return_inverse=True)
    objects = distinct.tolist()
    return [objects[place] for place in which]


def _known(name: str, scores: F64) -> list[float | None]:
    """Scores with six digits, for shares after the point; None for a score that is unknown."""
    digits = {"decimals": 6} if kind_of(name).percent else {"significant": 6}
    return [json_number(score, **digits) for score in scores]


def _plain(values: F64) -> float | list[float | None] | None:
    """A number, or a list of several; None for NaN, which JSON does not have."""
    several = [json_number(value, significant=6) for value in values]
    return several if len(several) > 1 else several[0]
