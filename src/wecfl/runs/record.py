"""What is written down about each round: one dictionary, the line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from wecfl import metrics
from wecfl.bilevel.criteria import F, R
from wecfl.bilevel.queries import served_tallies, tallies
from wecfl.bilevel.representation import Columns
from wecfl.core.engine import Engine
from wecfl.core.program import hidden
from wecfl.core.setting import Setting
from wecfl.core.state import F32, F64, Int, Int8, Real, Reply, State
from wecfl.layout import Layout
from wecfl.runs.assault import Assault
from wecfl.runs.diagnostics import Diagnostics
from wecfl.runs.json_values import json_number

__all__ = [
    "CLUSTERING_KEYS",
    "CONDITION_KEYS",
    "DIAGNOSTIC_KEYS",
    "KEYS",
    "Record",
    "Recorder",
    "last_choice",
    "last_parts",
    "last_rounds",
    "replies",
    "served",
    "settled",
]

Record = dict[str, Any]
"""What is known about a round, under the names of `KEYS`."""

KEYS = {
    "round": "t, from 1",
    "accuracy": "fraction of right predictions of a client on its test data; |D_i|-weighted mean",
    "macro_f1": "mean F1 of a client over classes in truth or prediction; |D_i|-weighted mean",
    "ari": "adjusted Rand index of the assignment against the generating groups; null if unknown",
    "nmi": "normalized mutual information of the same",
    "clusters": "groups found: clusters with at least one client",
    "sizes": "clients in each of the K clusters",
    "churn": "fraction of clients that changed cluster since the round before, labels matched",
    "cosine": "mean similarity of the models before D: intra (pairs in a cluster), inter (centers)",
    "F": "the clustering objective after the steps L, E and M",
    "R": "the learning objective after the steps L and D, on all training data (if measured)",
    "seconds": "wall time of the steps L, E, M, D, of the scores and of the objectives F and R",
    "clients": "accuracy and macro_f1 of each client",
}
"""The keys of a record, documented."""

CONDITION_KEYS = {
    "before": "accuracy and macro_f1 before local adaptation, where a method adapts models to test",
    "replies": "how many local updates were heard, absent, lost, refused, if some were not heard",
    "network": "over a network: who joined, what was refused and why, how many replies came late",
    "attack": "shares of attackers isolated, of honest clients exposed, and a backdoor's success",
}
"""The further keys of a record where something is between clients and server; `clients` then also
holds `reply`, what came of each local update (`wecfl.core.state.Reply`). Under attack, the
scores are the honest clients'."""

CLUSTERING_KEYS = {
    "notes": "what the clustering wrote down: why there are so many clusters",
}
"""The further key of a record where the clustering says how many clusters there are."""

DIAGNOSTIC_KEYS = {
    "silhouette": "of the clients' models before D, null if undefined",
    "B": "clusterability of each cluster at the clients' models before (0) and after (Q) L",
    "theory": "U, sigma2, beta, and what the lemmas allow in this round",
}
"""The further keys of a record with `diagnostics`; `clients` also holds rates and their bounds."""


class Recorder:
    """Watches the steps of a round and makes its record.

    Clients are tested every `score_every` rounds, and in the last of `rounds`; in between their
    scores are unknown.

    Under an `assault` scores are those of honest clients; `trap` is an engine for its bait.
    """

    def __init__(
        self,
        setting: Setting,
        groups: Int | None,
        *,
        objectives: bool = True,
        score_every: int = 1,
        rounds: int = 0,
        assault: Assault | None = None,
        trap: Engine | None = None,
    ) -> None:
        self._setting, self._method, self._engine = setting, setting.method, setting.engine
        self._groups = groups
        self._objectives = objectives
        self._every, self._last = score_every, rounds
        self._assault, self._trap = assault, trap
        self._honest = 1 if assault is None else ~assault.attackers
        self._before: Int | None = None
        self._diagnostics: Diagnostics | None = None
        self._previous: State | None = None
        self._clear()

    def begin(self, labels: Int, diagnostics: Diagnostics | None = None) -> None:
        """Before the first round to be watched: the assignment, and what else measures."""
        self._before, self._diagnostics = labels, diagnostics

    def _clear(self) -> None:
        self._values: dict[str, dict[str, list[float]]] = {"F": {}, "R": {}}
        self._seconds: dict[str, float] = {}
        self._apart: tuple[Real, Real] | None = None

    def step(self, step: str, state: State, seconds: float) -> None:
        """After each step (an `Observer` of `rounds.iterate`)."""
        self._add_seconds(step, seconds)
        if step == "D" and self._previous and self._apart is None:
            self._apart = self._compared(self._previous)  # of the first soft-voted run
        self._previous = state  # before R, so that the matrix of models is not held twice
        began = perf_counter()
        if step in "LEM" and (self._objectives or not self._method.representation.asks):
            self._note("F", step, F(state, self._method, self._engine))
        if step in "LD" and self._objectives:
            self._note("R", step, R(state, self._method, self._engine))
        self._add_seconds("objectives", perf_counter() - began)

    def round(self, states: Sequence[State]) -> Record:
        """After the last step: the record of the round, soft-voted over `states`."""
        began = perf_counter()
        state, before = states[0], self._before
        task = self._engine.task
        tables = self._scores(states) if self._scored(state.round) else {}
        nothing = np.zeros((len(state.labels), *task.shape(self._engine.outputs)))
        scores = task.scores(tables.pop("after", nothing))
        accuracy, macro_f1 = scores["accuracy"], scores["macro_f1"]
        counted = self._engine.sizes * self._honest
        sizes = np.bincount(state.labels, minlength=len(state.centers))
        compared = self._apart
        record: Record = {
            "round": state.round,
            "accuracy": metrics.weighted(accuracy, counted),
            "macro_f1": metrics.weighted(macro_f1, counted),
            **metrics.agreement(state.labels, self._groups),
            "clusters": int((sizes > 0).sum()),
            "sizes": sizes.tolist(),
            "churn": None if before is None else metrics.churn(state.labels, before),
            "cosine": compared and metrics.cosine(*compared, state.labels),
            **{
                name: {step: float(np.mean(values)) for step, values in steps.items()}
                for name, steps in self._values.items()
            },
            "seconds": {},
            "clients": {
                "accuracy": _known(accuracy),
                "macro_f1": _known(macro_f1),
            },
        }
        for moment, table in tables.items():
            record[moment] = {
                name: metrics.weighted(each, counted) for name, each in task.scores(table).items()
            }
        if state.outcome is not None:
            counts = np.bincount(state.outcome, minlength=len(Reply))
            record["replies"] = {each.name.lower(): int(counts[each]) for each in Reply}
            record["clients"]["reply"] = state.outcome.tolist()
        if state.notes:
            record["notes"] = {name: _plain(values) for name, values in state.notes.items()}
        if notes := self._engine.notes():
            record["network"] = notes
        if self._assault:
            stack = served(states, self._engine.layout, self._method.shared)
            record["attack"] = self._assault.measured(state.labels, stack, self._trap)
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

    def _scored(self, round: int) -> bool:
        """Every so many rounds, and in the last one."""
        return round % self._every == 0 or round == self._last

    def _scores(self, states: Sequence[State]) -> dict[str, F64]:
        """(m, …), tallies at each moment; a soft vote is one of models sent."""
        if len(states) > 1:
            stack = served(states, self._engine.layout, self._method.shared)
            return {"after": tallies(self._engine, np.moveaxis(stack, 0, 1), "test")}
        plan = replace(self._setting.plan, lr=self._setting.rates(states[0]))
        return served_tallies(self._engine, self._method, states[0], plan, self._setting.seed)

    def _compared(self, state: State) -> tuple[Real, Real] | None:
        """(m, p) and (K, p), clients and centers, copied: the models are large.

        By the representation; where only the clients could tell it (IFCA's losses), by all
        parameters, which is costly and left to `diagnostics`.
        """
        chosen = self._method.representation
        if chosen.asks and not self._diagnostics:
            return None
        which = Columns("parameters") if chosen.asks else chosen
        return which.clients(state, self._engine, 0).copy(), which.centers(state, self._engine)

    def _note(self, name: str, step: str, value: float) -> None:
        self._values[name].setdefault(step, []).append(value)

    def _add_seconds(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds


def served(states: Sequence[State], layout: Layout, shared: str) -> F32:
    """(m, P), the models sent, with the columns that clients keep; (J, m, P) of a soft vote."""
    private, rows = hidden(layout, shared), [state.sent for state in states]
    for state, models in zip(states, rows, strict=True):
        if private is not None and "private" in state.memory:
            begun = state.memory["begun"]
            models[np.ix_(begun, private)] = state.memory["private"][begun]
    return rows[0] if len(rows) == 1 else np.stack(rows)


def _known(scores: F64) -> list[float | None]:
    """Scores in six digits; None where a client did not tell."""
    return [json_number(score, decimals=6) for score in scores]


def _plain(values: F64) -> float | list[float | None] | None:
    """A number, or several; JSON knows no NaN."""
    several = [json_number(value, significant=6) for value in values]
    return several if len(several) > 1 else several[0]


def replies(records: Sequence[Record], m: int) -> Int8:
    """(rounds, m), what came of each client's local update in each round (`Reply`).

    >>> replies([{"clients": {}}, {"clients": {"reply": [0, 1]}}], 2).tolist()
    [[0, 0], [0, 1]]
    """
    heard = [int(Reply.HEARD)] * m
    told = [record["clients"].get("reply", heard) for record in records]
    return np.array(told, np.int8).reshape(len(records), m)


def last_rounds(records: Sequence[Record], count: int = 3) -> dict[str, float | None]:
    """Means over the last rounds, as the paper's tables take them.

    >>> last_rounds([{"accuracy": a, "macro_f1": a, "ari": None} for a in (0.0, 0.5, 0.6, 0.7)])
    {'accuracy': 0.6, 'macro_f1': 0.6, 'ari': None}
    """
    means: dict[str, float | None] = {}
    for key in ("accuracy", "macro_f1", "ari"):
        values = [record[key] for record in records[-count:] if record[key] is not None]
        means[key] = round(float(np.mean(values)), 12) if values else None
    return means


def last_parts(
    records: Sequence[Record], name: str, count: int = 3
) -> dict[str, dict[str, float | None]]:
    """What a part of the records came to, as means over the last rounds; nothing without it.

    >>> attacks = [{"attack": {"isolated": share, "exposed": None}} for share in (0.5, 1.0)]
    >>> last_parts(attacks, "attack")
    {'attack': {'isolated': 0.75, 'exposed': None}}
    >>> last_parts([{}], "before")
    {}
    """
    told = [record[name] for record in records[-count:] if name in record]
    if not told:
        return {}
    values = {key: [each[key] for each in told if each[key] is not None] for key in told[0]}
    return {
        name: {
            key: round(float(np.mean(each)), 6) if each else None for key, each in values.items()
        }
    }


def last_choice(records: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    """What became of the choice of K, where the clustering made it; nothing elsewhere.

    `k` is kept since the round `since` and settled in the round `settled`. `best` is the K with the
    largest `silhouette`, when it was last looked for.

    >>> looked = {"k": 1, "settled": 0, "silhouette": [None, 0.1, 0.3]}
    >>> last_choice([{"round": 1, "notes": looked}, {"round": 2, "notes": looked}])
    {'choice': {'k': 1, 'since': 1, 'settled': None, 'best': 3, 'silhouette': 0.3}}
    >>> last_choice([{"round": 1}])
    {}
    """
    told = [(each["round"], each["notes"]) for each in records if "k" in each.get("notes", {})]
    if not told:
        return {}
    looked = [(t, notes) for t, notes in told if "silhouette" in notes]
    k = int(told[-1][1]["k"])
    others = [t for t, notes in told if notes["k"] != k]
    curve = looked[-1][1]["silhouette"] if looked else None
    scores = [-1.0 if score is None else score for score in (curve or [])]
    best = int(np.argmax(scores)) if scores else 0
    return {
        "choice": {
            "k": k,
            "since": max(others, default=told[0][0] - 1) + 1,
            "settled": min((t for t, notes in told if notes["settled"]), default=None),
            "best": best + 1,
            "silhouette": scores[best] if best else None,
        }
    }


def settled(records: Sequence[Record]) -> int | None:
    """The round whose assignment was kept to the end; None while clients still move.

    >>> settled([{"round": t, "churn": churn} for t, churn in enumerate((0.8, 0.1, 0, 0), start=1)])
    2
    >>> settled([{"round": 1, "churn": 0.8}])
    """
    moved = [record["round"] for record in records if record["churn"]]
    last = max(moved, default=1)
    return last if records and (not moved or last < records[-1]["round"]) else None
