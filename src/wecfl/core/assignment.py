"""What the E-step is made of: whom the server sees, and what follows from the clusters it found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.core.components import Clusters, View
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import Bool, Real, without
from wecfl.errors import ConfigError

__all__ = ["KnownClients"]


@dataclass(frozen=True, slots=True, eq=False)
class KnownClients:
    """Whom the server can cluster, and whom it has just heard of."""

    points: Real
    """(n, p), g_i of the known."""
    known: Bool
    """(m,), of whom it has a representation."""
    told: Bool
    """(m,), who was just heard of, and may change its cluster."""

    @classmethod
    def of(cls, state: State, setting: Setting) -> KnownClients:
        """Where g follows from the models: those heard in some round before, and in this one.

        Where clients are asked for it, both are those that take part in the coming local update;
        who does not answer is not known.
        """
        representation, engine = setting.method.representation, setting.engine
        if representation.asks:
            known = setting.channel.present(len(state.labels), state.round)
            points = representation.clients(state, engine, setting.seed, known)
            answered = np.isfinite(points).all(axis=1)
            known[known] = answered
            return cls(points[answered], known, known)
        heard = state.heard
        met = np.full_like(heard, state.round > 1) if state.met is None else state.met
        # Whoever is heard first is clustered at once: all start alike.
        known = met if met.any() else heard
        return cls(representation.clients(state, engine, setting.seed, known), known, heard)

    def view(self, state: State, setting: Setting) -> View:
        """What the clustering gets to see."""
        return View(
            self.points,
            setting.method.representation.centers(state, setting.engine),
            setting.importance[self.known],
            state.labels[self.known],
            self.told[self.known],
            state.round,
            state.notes,
        )

    def assigned(self, state: State, setting: Setting, found: Clusters) -> State:
        """The state with the clusters found; who is new joins the nearest of them."""
        method, engine, (known, told) = setting.method, setting.engine, (self.known, self.told)
        state = self._grown(state, found)
        before = method.representation.centers(state, engine)
        labels, new = state.labels.copy(), told & ~known
        labels[known & told] = found.labels[told[known]]
        if new.any():
            inhabited = np.unique(found.labels)
            points = method.representation.clients(state, engine, setting.seed, new)
            labels[new] = inhabited[method.distance(points, before[inhabited]).argmin(axis=1)]
        met = known | told
        notes = {f"notes.{name}": values for name, values in found.notes.items()}
        kept = {name: a for name, a in state.whole.items() if not name.startswith("notes.")}
        if not method.representation.asks:
            enough = setting.enough(labels[told], len(before))
            kept["moved"] = np.where(enough[:, None], found.centers, before)
        return state.replace(
            labels=labels,
            known=without(["met"], state.known) | ({} if met.all() else {"met": met}),
            whole=kept | notes,
        )

    def _grown(self, state: State, found: Clusters) -> State:
        """With as many clusters; a new one begins with the model that most of it were sent."""
        k, now = len(found.centers), len(state.centers)
        if k < now:
            raise ConfigError(f"a clustering must keep all {now} clusters, got {k}")
        if found.labels.min() < 0 or found.labels.max() >= k:
            raise ConfigError(f"a clustering must give labels of its {k} clusters: {found.labels}")
        if k == now:
            return state
        before = state.labels[self.known]
        origins = [
            np.bincount(before[found.labels == each], minlength=1).argmax()
            for each in range(now, k)
        ]
        return state.grown(np.array([*range(now), *origins], np.int64))
