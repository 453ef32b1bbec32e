"""Finds clients whose data have drifted, and says when clients are clustered again.

Each round begins with a question: how large is the loss of the model that a client is about to
train, on the data that it holds now? If the loss has risen more than it does by chance, the data
have drifted. Then the client is asked for the losses of all clusters' models, and goes to the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np

from wecfl.bilevel.evaluation import losses
from wecfl.bilevel.local import Risk
from wecfl.core.ask import Ask
from wecfl.core.components import Clustering, Clusters, Distance, View
from wecfl.core.method import Method
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Bool, Table
from wecfl.errors import ConfigError

__all__ = ["Recluster", "UntilSettled", "Watch", "has_settled", "rescheduled"]

Recluster = Literal["every", "settled", "drift"]
"""When clients are clustered: in every round; in every round until it has settled; or so, and then
those clients again whose data have drifted."""

PATIENCE = 3
"""The number of rounds without a change after which an assignment has settled."""
WATCHED_ROUNDS = 5
"""The number of rounds in which a client whose data have drifted chooses its cluster."""
HISTORY = 10
"""The number of rounds with which a rise of the loss is compared, or more of few clients."""
CAUTION = 2
"""By how much less than the asked rate of false alarms is aimed at: rounds without drift are not
quite alike, since losses fall (docs/drift.md)."""
LEAST_LOSS = 1e-6
"""Added to losses, so that a loss of 0 has a logarithm."""


@dataclass(frozen=True, slots=True)
class UntilSettled:
    """A clustering in every round, until no client has changed its cluster for `patience` rounds.

    From then on clients keep their clusters, and those that are heard for the first time join the
    nearest. If the clustering chooses K, this must have settled first. Its note `unchanged` is the
    number of rounds in a row without a change.

    >>> from wecfl.bilevel.clustering import KMeans
    >>> UntilSettled(KMeans()).patience
    3
    """

    clustering: Clustering
    patience: int = PATIENCE

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The clusters found, or those that there are."""
        if has_settled(view.notes, self.patience):
            return Clusters(view.labels, view.centers, view.notes)
        found = self.clustering(view, distance, rng)
        same = len(found.centers) == len(view.centers) and (found.labels == view.labels).all()
        chosen = found.notes.get("settled", np.ones(1))[0] > 0
        count = float(view.notes["unchanged"][0]) + 1 if "unchanged" in view.notes else 0.0
        unchanged = np.array([count if same and chosen and view.round > 1 else 0.0])
        return replace(found, notes={**found.notes, "unchanged": unchanged})


@dataclass(frozen=True, slots=True)
class Watch:
    """Finds drift: the client's loss has risen more than losses do in rounds without drift.

    The rise is r_i = log L_i(t) − log L_i(t−1), of the model that the client is about to train.
    What all clients have in common is taken away: e_i = (r_i − q₁) / (q₂ − q₁), where q₁ and q₂ are
    the first and second quartile of all r; so at most half of the clients may drift in a round.
    Drift is found if e_i is larger than all but a share `alarm` / 2 of those in earlier rounds. If
    rounds without drift were alike, this would be the rate of false alarms; so `alarm` is one.

    A client that is found, and every one that was in the last `patience` rounds, is asked for the
    losses of all clusters' models, and joins the cluster with the smallest. It is *new* if this
    takes back less than half of the rise, and if its loss is larger than that of every client that
    was not found. Two or more new clients make a cluster of their own, if K is "auto" and the
    assignment had settled, or all clients were in one cluster; then it has settled.

    It is what the server learns from an `Ask` for `Risk`. In `State.known` are `loss`, the last
    loss of each client; `usual`, the one before its drift; `rises` (m, rounds), the e of the last
    rounds; `drifted`, who was found in this round; and `watched`, for how many rounds more a client
    is asked.

    >>> Watch(alarm=0.05)
    Watch(alarm=0.05, patience=5)
    """

    alarm: float = 0.01
    patience: int = WATCHED_ROUNDS

    def __post_init__(self) -> None:
        if not 0.0001 <= self.alarm <= 0.5:
            raise ConfigError(
                f"alarm, the rate of false alarms, must be from 0.0001 to 0.5, got {self.alarm!r}"
            )

    def __call__(self, before: State, after: State, sent: Table, setting: Setting) -> State:
        """The state with what is known of drift, and clients that were found in other clusters."""
        state = replace(before, tick=after.tick, memory=after.memory)
        m, heard = len(state.labels), after.heard
        if after.replies is None or not heard.any():
            return state
        now = np.where(heard, after.replies["risk"] + LEAST_LOSS, np.nan)
        known = self._known(state, m)
        last, rises = known["loss"], known["rises"]
        compared = heard & np.isfinite(last)
        excess = np.full(m, np.nan)
        if compared.any():
            rise = np.log(now[compared]) - np.log(last[compared])
            low, median = np.quantile(rise, [0.25, 0.5])
            excess[compared] = (rise - low) / max(median - low, LEAST_LOSS)
        limit = _limit(rises[np.isfinite(rises)], self.alarm / CAUTION)
        found = excess > limit
        watched = np.where(found, self.patience, known["watched"])
        usual = np.where(found & (known["watched"] == 0), last, known["usual"])
        asked = np.flatnonzero(heard & (watched > 0))
        labels, loss = state.labels.copy(), np.where(heard, now, last)
        new = np.zeros(m, np.bool_)
        if len(asked):
            of_each = losses(
                setting.engine, state.centers, seed=setting.seed, round=state.round,
                who=asked,
            )  # fmt: skip
            answered = np.isfinite(of_each).all(axis=1)
            asked, of_each = asked[answered], of_each[answered]
            best = of_each.argmin(axis=1)
            least = of_each[np.arange(len(asked)), best] + LEAST_LOSS
            labels[asked], loss[asked] = best, least
            middle = np.sqrt(now[asked] * usual[asked])
            normal = now[heard & (watched == 0)]
            new[asked] = (least > middle) & (least > normal.max(initial=0.0))
            new &= known["watched"] == 0
        usual[new] = np.where(self._opens(new, state, setting), loss[new], usual[new])
        moved = labels != state.labels
        # A drift says nothing about rounds without one. Left out, the limit would sink.
        excess = np.where((moved | new) & found, limit, excess)
        kept = {
            "loss": loss, "usual": usual, "drifted": found,
            "watched": np.where(heard, np.maximum(watched - 1, 0), watched).astype(np.int64),
            "rises": np.concatenate([rises[:, 1:], excess[:, None]], axis=1),
        }  # fmt: skip
        state = replace(state, known={**state.known, **kept})
        if self._opens(new, state, setting):
            origin = np.bincount(labels[new]).argmax()
            k = len(state.centers)
            labels[new] = k
            whole = {**state.whole, "notes.unchanged": np.array([float(PATIENCE)])}
            state = replace(state.grown(np.array([*range(k), origin], np.int64)), whole=whole)
        return replace(state, labels=labels, replies=None)

    def _opens(self, new: Bool, state: State, setting: Setting) -> bool:
        """Whether the new clients make a cluster of their own."""
        grows = setting.method.k == "auto" and int(new.sum()) > 1
        return grows and (has_settled(state.notes) or len(state.centers) == 1)

    def _known(self, state: State, m: int) -> dict[str, Any]:
        """What is known of each client, or the start of it."""
        rounds = max(HISTORY, ceil(2 * CAUTION / (self.alarm * m)))
        start = {
            "loss": np.full(m, np.nan), "usual": np.full(m, np.nan),
            "rises": np.full((m, rounds), np.nan), "watched": np.zeros(m, np.int64),
        }  # fmt: skip
        return {name: state.known.get(name, empty) for name, empty in start.items()}


def rescheduled(method: Method, recluster: Recluster, alarm: float | None = None) -> Method:
    """The method with clients clustered at other times.

    `alarm` is the rate of false alarms of `drift`: the share of clients that are found in a round
    without drift; None: 1 %.

    >>> from wecfl import methods
    >>> [getattr(step, "letter", step) for step in methods.wecfl(2, recluster="drift").steps]
    ['risk', 'L', 'E', 'M', 'D']
    """
    if recluster not in ("every", "settled", "drift"):
        raise ConfigError(f"recluster must be every, settled or drift, got {recluster!r}")
    if recluster != "drift" and alarm is not None:
        raise ConfigError("alarm is the rate of false alarms of recluster drift: leave out alarm")
    if recluster == "every":
        return method
    changed = method.replace(clustering=UntilSettled(method.clustering))
    if recluster == "settled":
        return changed
    watch = Watch() if alarm is None else Watch(alarm)
    return changed.replace(steps=(Ask(Risk(), learn=watch), *method.steps))


def has_settled(notes: Mapping[str, F64], patience: int = PATIENCE) -> bool:
    """Whether the notes say that no client has changed its cluster for so many rounds.

    >>> has_settled({"unchanged": np.array([3.0])}), has_settled({})
    (True, False)
    """
    return "unchanged" in notes and float(notes["unchanged"][0]) >= patience


def _limit(reference: F64, alarm: float) -> float:
    """What a further value exceeds with probability `alarm` at most, if it is one of the same kind.

    If all n + 1 values are equally likely to be the largest, the second largest, and so on, it is
    the ⌊alarm (n + 1)⌋-th largest of the reference; infinite if there is none yet.
    """
    rank = int(alarm * (len(reference) + 1))
    return float(np.sort(reference)[-rank]) if rank else np.inf
