"""What is watched of a client to find that its data have drifted, and what the server does then.

A client can be watched by the loss of the model that it is about to train (`ByLoss`), or by the
length of its local update (`ByDistance`). `wecfl.bilevel.clustering.drift.Watch` says when the
value has risen more than by chance. In both ways, clients whose data have drifted choose their
cluster by the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from wecfl.bilevel.evaluation import losses
from wecfl.bilevel.local import Risk
from wecfl.core.ask import Ask, Learn, Steps
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Bool, Int
from wecfl.errors import ConfigError

__all__ = ["LEAST_LOSS", "ByDistance", "ByLoss", "Choice", "Seen", "Watched"]

LEAST_LOSS = 1e-6
"""Added to losses, so that a loss of 0 has a logarithm."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What was seen of the clients in a round, and which of them are asked for their losses."""

    labels: Int
    """(m,), the cluster of each client."""
    heard: Bool
    asked: Bool
    """(m,), clients whose data have drifted, now or in one of the last rounds."""
    first: Bool
    """(m,), clients that were not asked in the round before."""
    value: F64
    """(m,), what is watched, L_i; NaN if the client was not heard."""
    usual: F64
    """(m,), for a client that is asked, its L_i before the drift."""
    last: F64
    """(m,), L_i when the client was last heard."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Which clusters the clients choose, and which clients no cluster suits."""

    labels: Int
    new: Bool
    """(m,), clients whose data belong to a group that has no cluster yet."""
    last: F64
    """(m,), the L_i with which the next one will be compared; NaN if unknown."""


class Watched(Protocol):
    """A way to watch clients."""

    def step(self, local: str | Ask, learn: Learn) -> Steps:
        """The local update `local`, and what the server asks before it or learns from it."""

    def begun(self, before: State, after: State) -> State:
        """The state from which the round continues."""

    def values(self, before: State, after: State, setting: Setting) -> F64:
        """(m,), L_i of the clients that were heard."""

    def choose(self, seen: Seen, before: State, setting: Setting) -> Choice:
        """The clusters of the clients that are asked; there is at least one such client."""

    def ended(self, state: State, before: State, labels: Int) -> State:
        """The state with these clusters, without the replies that do not count."""


@dataclass(frozen=True, slots=True)
class ByLoss:
    """L_i is the loss of the model that a client is about to train; the client is asked for it.

    No cluster suits a client if the best one undoes less than half of the rise of log L_i.

    >>> [getattr(step, "letter", step) for step in ByLoss().step("L", lambda *_: None)]
    ['risk', 'L']
    """

    def step(self, local: str | Ask, learn: Learn) -> Steps:
        """The question comes before the local update."""
        return Ask(Risk(), learn=learn), local

    def begun(self, before: State, after: State) -> State:
        """The state before the question, but with the clients' memory as the question left it."""
        return replace(before, tick=after.tick, memory=after.memory)

    def values(self, before: State, after: State, setting: Setting) -> F64:
        """The losses that the clients replied."""
        assert after.replies is not None
        return np.asarray(after.replies["risk"])

    def choose(self, seen: Seen, before: State, setting: Setting) -> Choice:
        """The cluster with the smallest loss; the next loss is compared with this one."""
        labels, least = _best(seen, _losses(seen.asked, before, setting))
        new = _unsuited(seen, least, seen.value) & (least > np.sqrt(seen.value * seen.usual))
        return Choice(labels, new, np.where(np.isfinite(least), least, seen.last))

    def ended(self, state: State, before: State, labels: Int) -> State:
        """The local update is still to come."""
        return replace(state, labels=labels, replies=None)


@dataclass(frozen=True, slots=True)
class ByDistance:
    """L_i = ‖g_i − G_k‖, the length of a client's local update in the representation.

    The server has it anyway, and finds drift after the update. If a client then changes its
    cluster, its update is dropped.

    >>> [step.letter for step in ByDistance().step("L", lambda *_: None)]
    ['L']
    """

    def step(self, local: str | Ask, learn: Learn) -> Steps:
        """The server learns from the local update."""
        return (replace(local if isinstance(local, Ask) else Ask(), learn=learn),)

    def begun(self, before: State, after: State) -> State:
        """The state after the local updates."""
        return after

    def values(self, before: State, after: State, setting: Setting) -> F64:
        """How far each client's local update has moved its representation."""
        chosen, engine = setting.method.representation, setting.engine
        if chosen.asks or chosen.tells:
            raise ConfigError(
                "watch distance needs clients that are compared by their models: set "
                "representation to head, or watch to loss"
            )
        start, end = (chosen.clients(state, engine, setting.seed) for state in (before, after))
        return np.asarray(np.sqrt(((end.astype(np.float64) - start) ** 2).sum(axis=1)))

    def choose(self, seen: Seen, before: State, setting: Setting) -> Choice:
        """The cluster with the smallest loss; the losses of other clients tell whether it suits."""
        who = seen.heard if setting.method.k == "auto" else seen.asked
        of_each = _losses(who, before, setting)
        labels, least = _best(seen, of_each)
        own = of_each[np.arange(len(labels)), seen.labels] + LEAST_LOSS
        new = _unsuited(seen, least, own)
        # How long the next update from another model will be is not known.
        return Choice(labels, new, np.where((labels != seen.labels) | new, np.nan, seen.last))

    def ended(self, state: State, before: State, labels: Int) -> State:
        """The state in which a client that has moved replies its new cluster's model, unchanged."""
        assert state.replies is not None
        models = state.models.copy()
        moved = (labels != before.labels) & (labels < len(before.centers))
        models[moved] = before.centers[labels[moved]]
        return replace(state, labels=labels, replies={**state.replies, "model": models})


def _losses(who: Bool, state: State, setting: Setting) -> F64:
    """(m, K), the losses of all clusters' models on the data of clients `who`; else NaN."""
    chosen = np.flatnonzero(who)
    found = losses(setting.engine, state.centers, seed=setting.seed, round=state.round, who=chosen)
    of_each = np.full((len(who), found.shape[1]), np.nan)
    of_each[chosen] = found
    return of_each


def _best(seen: Seen, of_each: F64) -> tuple[Int, F64]:
    """The clusters (m,) after the asked clients have chosen, and their losses (m,), or else ∞."""
    answered = seen.asked & np.isfinite(of_each).all(axis=1)
    labels = seen.labels.copy()
    labels[answered] = of_each[answered].argmin(axis=1)
    least = of_each.min(axis=1, initial=np.inf, where=answered[:, None]) + LEAST_LOSS
    return labels, np.asarray(least)


def _unsuited(seen: Seen, least: F64, own: F64) -> Bool:
    """(m,), newly asked clients whose least loss exceeds the loss of all clients not asked."""
    calm = own[seen.heard & ~seen.asked & np.isfinite(own)]
    return np.asarray(np.isfinite(least) & seen.first & (least > calm.max(initial=0.0)))
