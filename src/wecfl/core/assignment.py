"""The E-step in parts: which clients the server can cluster, and the state that follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from wecfl.core.components import Clusters, Distance, View
from wecfl.core.program import Job, Program, Sent, private_columns
from wecfl.core.setting import Setting
from wecfl.core.state import Reply, State
from wecfl.core.types import F32, F64, Bool, Int, Real, without
from wecfl.errors import ConfigError

__all__ = ["KnownClients", "has_told", "mean_center", "nearest_inhabited"]

Step = Callable[[State, Setting], State]
"""A step of a round."""


def nearest_inhabited(points: Real, centers: Real, labels: Int, distance: Distance) -> Int:
    """(n,), for each point the nearest of the clusters that occur in `labels`.

    >>> from wecfl.bilevel.distance import squared_euclidean
    >>> points, centers = np.array([[0.0], [9.0]]), np.array([[1.0], [8.0], [9.0]])
    >>> nearest_inhabited(points, centers, np.array([0, 0, 1]), squared_euclidean)
    array([0, 1])
    """
    inhabited = np.unique(labels)
    nearest: Int = inhabited[distance(points, centers[inhabited]).argmin(axis=1)]
    return nearest


@dataclass(frozen=True, slots=True, eq=False)
class KnownClients:
    """The clients that the server can cluster, and those that it has just heard."""

    points: Real
    """(n, p), g_i of the known clients."""
    known: Bool
    """(m,), the clients whose representation g_i the server has."""
    heard: Bool
    """(m,), the clients that were just heard, and may change their cluster."""

    @classmethod
    def of(cls, state: State, setting: Setting) -> KnownClients:
        """The clients that are known and heard; it depends on where g comes from.

        If g follows from the models, the `known` clients are those that were heard in some earlier
        round, and the `heard` clients are those of this round; those that have just chosen their
        cluster are not `known` yet. If clients are asked for g, both are
        the clients that take part in the next local update and have answered. If clients tell g
        once, both are all clients that have told it.
        """
        representation, engine = setting.method.representation, setting.engine
        if representation.tells:
            told = has_told(state)
            return cls(representation.clients(state, engine, setting.seed, told), told, told)
        if representation.asks:
            known = setting.channel.present(len(state.labels), state.round)
            points = representation.clients(state, engine, setting.seed, known)
            answered = np.isfinite(points).all(axis=1)
            known[known] = answered
            return cls(points[answered], known, known)
        heard = state.heard
        met = np.full_like(heard, state.round > 1) if state.met is None else state.met
        # In the first round no client was heard before: the clients of this round are clustered.
        # A clustering that can ask clients sees all clients that were ever heard.
        known = met | heard if setting.method.judge else met if met.any() else heard
        if "chosen" in state.known:
            known = known & ~state.known["chosen"]
        return cls(representation.clients(state, engine, setting.seed, known), known, heard)

    def view(self, state: State, setting: Setting, maximization: Step) -> View:
        """What the clustering sees; `maximization` is the step that makes centers."""
        judge, program = None, setting.method.judge
        if program and state.replies:
            judge = partial(
                self._judged, state=state, setting=setting, program=program,
                maximization=maximization,
            )  # fmt: skip
        labels = state.labels[self.known]
        if setting.method.representation.tells:
            labels = np.where(_placed(state)[self.known], labels, -1)
        view = View(
            self.points,
            setting.method.representation.centers(state, setting.engine, setting.seed),
            setting.importance[self.known],
            labels,
            self.heard[self.known],
            state.round,
            state.notes,
            judge,
            state.known["candidate"][self.known] if "candidate" in state.known else None,
        )
        if judge is None:
            return view
        return replace(view, by_columns=partial(self._by_columns, view, state, setting))

    def _by_columns(self, view: View, state: State, setting: Setting, which: str) -> View:
        """The view with these columns of the models instead, but for those that clients keep."""
        layout = setting.engine.layout
        columns = np.arange(layout.width)[layout.columns(which)]
        private = private_columns(layout, setting.method.shared)
        if private is not None:
            columns = np.setdiff1d(columns, private)
        if not len(columns):
            raise ConfigError(
                f"clients share no column '{which}' of this model to choose K by: choose head, "
                f"parameters, or a pattern on tensor names"
            )
        first, stop = columns[0], columns[-1] + 1
        adjacent = len(columns) == stop - first  # then nothing is copied
        chosen = slice(first, stop) if adjacent else columns
        return replace(
            view, points=state.models[:, chosen][self.known], centers=state.centers[:, chosen]
        )

    def assigned(self, state: State, setting: Setting, found: Clusters) -> State:
        """The state with the clusters found. New clients join their choice, or the nearest."""
        method, engine, (known, heard) = setting.method, setting.engine, (self.known, self.heard)
        state = self._grown(state, found, setting)
        before = method.representation.centers(state, engine, setting.seed)
        labels, new = state.labels.copy(), heard & ~known
        labels[known & heard] = found.labels[heard[known]]
        if "chosen" in state.known:
            new &= ~state.known["chosen"]  # they have their label
        if new.any():
            points = method.representation.clients(state, engine, setting.seed, new)
            labels[new] = nearest_inhabited(points, before, found.labels, method.distance)
        met = known | heard
        if found.placed is not None:
            met[known] = found.placed | heard[known]
        each = {} if met.all() else {"met": met}
        if found.candidate is not None:
            each["candidate"] = np.full((len(labels), found.candidate.shape[1]), -1)
            each["candidate"][known] = found.candidate
        notes = {f"notes.{name}": values for name, values in found.notes.items()}
        kept = {name: a for name, a in state.whole.items() if not name.startswith("notes.")}
        kept = without(["validate"], kept) | ({"validate": np.ones(1)} if found.validate else {})
        if method.representation.tells:
            state = replace(state, cluster={**state.cluster, "told": found.centers})
        elif not method.representation.asks:
            enough = setting.enough(labels[heard], len(before))
            kept["moved"] = np.where(enough[:, None], found.centers, before)
        return state.replace(
            labels=labels,
            known=without(["met", "candidate", "chosen"], state.known) | each,
            whole=kept | notes,
        )

    def _judged(
        self,
        labels: Int | None,
        who: Bool,
        *,
        state: State,
        setting: Setting,
        program: Program,
        maximization: Step,
    ) -> F64:
        """(n,), what the clients in `who` (n,) reply to the models of a division (`Judge`)."""
        clients, asked = np.flatnonzero(self.known), who & self.heard[self.known]
        whom = clients[asked]
        if labels is not None:
            divided = np.zeros(len(state.labels), np.int64)
            divided[clients] = labels
            before = state.labels[clients]
            origins = [
                np.bincount(before[labels == k], minlength=1).argmax()
                for k in range(labels.max() + 1)
            ]
            trial = state.grown(np.array(origins, np.int64)).replace(labels=divided)
            rows = maximization(trial, setting).centers[labels[asked]]
        else:
            rows = state.models[whom]
        job = Job(
            program, seed=setting.seed, round=state.round, tick=state.tick,
            shared=setting.method.shared,
        )  # fmt: skip
        kept = {} if setting.method.shared == "all" else state.memory  # for private columns
        answers = setting.engine.ask(job, Sent({"model": rows}), whom, kept)
        (replied,) = answers.rows.values()
        found = np.full(len(clients), np.nan)
        found[asked] = np.where(answers.outcome == Reply.HEARD, replied, np.nan)
        return found

    def _grown(self, state: State, found: Clusters, setting: Setting) -> State:
        """The state with all clusters; a new one begins with the model that most members were sent.

        A new cluster of clients that had no cluster yet begins with the mean of all centers.
        """
        k, now = len(found.centers), len(state.centers)
        if k < now:
            raise ConfigError(f"a clustering must keep all {now} clusters, got {k}")
        if found.labels.min() < 0 or found.labels.max() >= k:
            raise ConfigError(
                f"a clustering must give labels from 0 to {k - 1}, got {found.labels}"
            )
        if k == now:
            return state
        before = state.labels[self.known]
        origins = [
            np.bincount(before[found.labels == new], minlength=1).argmax() for new in range(now, k)
        ]
        fresh = [not _placed(state)[self.known][found.labels == new].any() for new in range(now, k)]
        grown = state.grown(np.array([*range(now), *origins], np.int64))
        if (placed := _placed(state)).any():
            grown.centers[now:][fresh] = mean_center(state, setting, placed)
        return grown


def mean_center(state: State, setting: Setting, who: Bool) -> F32:
    """(P,), the λ-weighted mean of the centers of these clients, for clients without a center."""
    weight = np.bincount(state.labels[who], setting.importance[who], len(state.centers))
    return np.asarray((weight / weight.sum()) @ state.centers, np.float32)


def has_told(state: State) -> Bool:
    """(m,), the clients that have told something about their data (`Representation.tells`)."""
    if "told" not in state.known:
        return np.zeros(len(state.labels), np.bool_)
    return ~np.isnan(state.known["told"].reshape(len(state.labels), -1)[:, 0])


def _placed(state: State) -> Bool:
    """(m,), the clients that have a cluster, in a clustering by what clients tell."""
    if "told" not in state.cluster:
        return np.zeros(len(state.labels), np.bool_)
    return np.ones(len(state.labels), np.bool_) if state.met is None else state.met
