"""Finds clients whose data have drifted, and says when clients are clustered again.

Each round begins with a question: how large is the loss of the model that a client is about to
train, on the data that it holds now? If the loss has risen more than it does by chance, the data
have drifted. Then the client is asked for the losses of all clusters' models, and goes to the best.
Instead of the loss, the length of the client's local update can be watched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal, get_args

import numpy as np

from wecfl.bilevel.clustering.watched import (
    LEAST_LOSS,
    ByDistance,
    ByLoss,
    Choice,
    Seen,
    Watched,
)
from wecfl.core.ask import Ask, Steps
from wecfl.core.components import Clustering, Clusters, Distance, View
from wecfl.core.method import Method
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Bool, Table
from wecfl.errors import ConfigError

__all__ = ["Recluster", "UntilSettled", "Watch", "WatchedBy", "has_settled", "rescheduled"]

Recluster = Literal["every", "settled", "drift"]
"""When clients are clustered: in every round; in every round until the assignment has settled; or
until it has settled, and after that again the clients whose data have drifted."""

WatchedBy = Literal["loss", "distance"]
"""The quantity that shows whether a client's data have drifted."""

PATIENCE = 3
"""The number of rounds without a change after which an assignment has settled."""
WATCHED_ROUNDS = 5
"""The number of rounds in which a client whose data have drifted chooses its cluster."""
HISTORY_ROUNDS = 10
"""The number of earlier rounds with which a rise of the loss is compared; more if clients are few.
"""
CAUTION_FACTOR = 2
"""The limit aims at the asked rate of false alarms divided by this number, since rounds without
drift are not quite alike: losses fall (docs/drift.md)."""
WAYS_TO_WATCH: Mapping[WatchedBy, Watched] = {"loss": ByLoss(), "distance": ByDistance()}
"""The ways to watch a client, by name."""


@dataclass(frozen=True, slots=True)
class UntilSettled:
    """A clustering in every round, until no client has changed its cluster for `patience` rounds.

    From then on, clients keep their clusters, and a client that is heard for the first time joins
    the nearest one. If the clustering chooses K, K must have settled first. The note `unchanged` is
    the number of rounds in a row without a change.

    >>> from wecfl.bilevel.clustering import KMeans
    >>> UntilSettled(KMeans()).patience
    3
    """

    clustering: Clustering
    patience: int = PATIENCE

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The clusters found; once the assignment has settled, the clusters as they are."""
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
    """Finds drift: what is watched of a client has risen more than it does in rounds without drift.

    What is watched is called L_i. By `loss`, it is the loss of the model that the client is about
    to train, for which the client is asked (`Ask` for `Risk`). By `distance`, it is ‖g_i − G_k‖,
    the length of its local update in the representation, which the server has anyway; so drift is
    found after the update.

    The rise is r_i = log L_i(t) − log L_i(t−1). What all clients have in common is taken away:
    e_i = (r_i − q₁) / (q₂ − q₁), where q₁ and q₂ are the first and second quartile of all r. So at
    most half of the clients may drift in a round. Drift is found if e_i is larger than all but a
    share `alarm` / 2 of the e in earlier rounds. If rounds without drift were alike, the rate of
    false alarms would be `alarm` / 2. They are not quite alike, hence the factor 2
    (`CAUTION_FACTOR`).

    A client whose data are found to have drifted, now or in the last `patience` rounds, is asked
    for the losses of all clusters' models, and joins the cluster with the smallest loss. If it
    changes its cluster, the update that it made before is dropped. A client is *new* if its
    smallest loss is larger than that of every client without drift and, by `loss`, undoes less
    than half of the rise. Two or more new clients make a cluster of their own, if K is "auto" and
    the assignment had settled, or all clients were in one cluster. Then the assignment counts as
    settled.

    `State.known` holds `loss`, the last L_i of each client; `usual`, its L_i before the drift;
    `rises` (m, rounds), the e of the last rounds; `drifted`, whether drift was found in this round;
    and `watched`, for how many more rounds the client is asked.

    >>> Watch(alarm=0.05)
    Watch(alarm=0.05, patience=5, by='loss')
    """

    alarm: float = 0.01
    patience: int = WATCHED_ROUNDS
    by: WatchedBy = "loss"

    def __post_init__(self) -> None:
        if not 0.0001 <= self.alarm <= 0.5:
            raise ConfigError(
                f"alarm, the rate of false alarms, must be from 0.0001 to 0.5, got {self.alarm!r}"
            )
        if self.by not in get_args(WatchedBy):
            raise ConfigError(f"watch must be loss or distance, got {self.by!r}")

    def step(self, local: str | Ask) -> Steps:
        """The local update `local`, and what the server asks before it or learns from it."""
        return WAYS_TO_WATCH[self.by].step(local, self)

    def __call__(self, before: State, after: State, sent: Table, setting: Setting) -> State:
        """The state with what is known of drift; clients whose data have drifted may have moved."""
        way = WAYS_TO_WATCH[self.by]
        state = way.begun(before, after)
        m, heard = len(state.labels), after.heard
        if after.replies is None or not heard.any():
            return state
        known = self._known(state, m)
        now = np.where(heard, way.values(before, after, setting) + LEAST_LOSS, np.nan)
        excess = _excess(now, known["loss"])
        limit = _limit(known["rises"][np.isfinite(known["rises"])], self.alarm / CAUTION_FACTOR)
        found, first = excess > limit, known["watched"] == 0
        watched = np.where(found, self.patience, known["watched"])
        usual = np.where(found & first, known["loss"], known["usual"])
        last = np.where(heard, now, known["loss"])
        choice = Choice(state.labels, np.zeros(m, np.bool_), last)
        if (asked := heard & (watched > 0)).any():
            seen = Seen(state.labels, heard, asked, first, now, usual, last)
            choice = way.choose(seen, before, setting)
        labels, new = choice.labels.copy(), choice.new
        # A rise by drift says nothing about rounds without drift, so the limit stands in its place.
        # If it were left out, the limit would sink.
        excess = np.where(((labels != state.labels) | new) & found, limit, excess)
        opens = self._opens(new, state, setting)
        if opens:  # in a new cluster, the usual value is the one it begins with, if that is known
            usual = np.where(new & np.isfinite(choice.last), choice.last, usual)
        kept = {
            "loss": choice.last, "usual": usual, "drifted": found,
            "watched": np.where(heard, np.maximum(watched - 1, 0), watched).astype(np.int64),
            "rises": np.concatenate([known["rises"][:, 1:], excess[:, None]], axis=1),
        }  # fmt: skip
        state = replace(state, known={**state.known, **kept})
        if opens:
            state = _with_one_more(state, np.bincount(labels[new]).argmax())
            labels[new] = len(state.centers) - 1
        return way.ended(state, before, labels)

    def _opens(self, new: Bool, state: State, setting: Setting) -> bool:
        """Whether the new clients make a cluster of their own."""
        grows = setting.method.k == "auto" and int(new.sum()) > 1
        return grows and (has_settled(state.notes) or len(state.centers) == 1)

    def _known(self, state: State, m: int) -> dict[str, Any]:
        """What is known of each client; in the first round, nothing is."""
        rounds = max(HISTORY_ROUNDS, ceil(2 * CAUTION_FACTOR / (self.alarm * m)))
        start = {
            "loss": np.full(m, np.nan), "usual": np.full(m, np.nan),
            "rises": np.full((m, rounds), np.nan), "watched": np.zeros(m, np.int64),
        }  # fmt: skip
        return {name: state.known.get(name, empty) for name, empty in start.items()}


def rescheduled(
    method: Method,
    recluster: Recluster,
    alarm: float | None = None,
    watch: WatchedBy | None = None,
) -> Method:
    """The method with clients clustered at other times.

    `alarm` is the rate of false alarms of `drift`: the share of clients for which drift is found in
    a round without drift; None: 1 %. `watch` says by what drift is found; None: by the loss.

    >>> from wecfl import methods
    >>> [getattr(step, "letter", step) for step in methods.wecfl(2, recluster="drift").steps]
    ['risk', 'L', 'E', 'M', 'D']
    """
    if recluster not in ("every", "settled", "drift"):
        raise ConfigError(f"recluster must be every, settled or drift, got {recluster!r}")
    given = {"alarm": alarm, "watch": watch}
    asked = {name: value for name, value in given.items() if value is not None}
    if recluster != "drift" and asked:
        name = next(iter(asked))
        raise ConfigError(
            f"{name} is for recluster drift, got recluster {recluster}: set recluster to drift, or "
            f"leave out {name}"
        )
    if recluster == "every":
        return method
    changed = method.replace(clustering=UntilSettled(method.clustering))
    if recluster == "settled":
        return changed
    watching = Watch(0.01 if alarm is None else alarm, by=watch or "loss")
    local, *others = method.steps
    return changed.replace(steps=(*watching.step(local), *others))


def has_settled(notes: Mapping[str, F64], patience: int = PATIENCE) -> bool:
    """Whether the notes say that no client has changed its cluster for `patience` rounds.

    >>> has_settled({"unchanged": np.array([3.0])}), has_settled({})
    (True, False)
    """
    return "unchanged" in notes and float(notes["unchanged"][0]) >= patience


def _with_one_more(state: State, origin: np.intp) -> State:
    """The settled state with one more cluster, which begins as a copy of `origin`."""
    origins = np.array([*range(len(state.centers)), origin], np.int64)
    whole = {**state.whole, "notes.unchanged": np.array([float(PATIENCE)])}
    return replace(state.grown(origins), whole=whole)


def _excess(now: F64, last: F64) -> F64:
    """(m,), by how much more each client's value has risen than the others'; NaN if unknown."""
    rise = np.log(now) - np.log(last)
    if np.isnan(rise).all():
        return rise
    low, median = np.nanquantile(rise, [0.25, 0.5])
    return np.asarray((rise - low) / max(median - low, LEAST_LOSS))


def _limit(reference: F64, alarm: float) -> float:
    """The limit that one more value of the same kind exceeds with probability `alarm` at most.

    All n + 1 values are equally likely to be the largest, the second largest, and so on. So it is
    the ⌊alarm (n + 1)⌋-th largest value of the reference; infinite if that is the 0-th.
    """
    rank = int(alarm * (len(reference) + 1))
    return float(np.sort(reference)[-rank]) if rank else np.inf
