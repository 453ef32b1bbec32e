"""The representation of a client by what it has told the server about its data (`telling.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import numpy as np

from wecfl.bilevel.representation.telling import Telling
from wecfl.core.assignment import has_told
from wecfl.core.components import Distance
from wecfl.core.engine import Engine
from wecfl.core.program import Job, Sent, private_columns
from wecfl.core.setting import Setting
from wecfl.core.state import Reply, State
from wecfl.core.types import F64, Bool, Real
from wecfl.errors import ConfigError
from wecfl.inputs import check_room
from wecfl.layout import Layout

__all__ = ["Told"]


@dataclass(frozen=True, slots=True)
class Told:
    """g_i is what client i has told before its first local update; the clustering makes G_k.

    Each client tells it once. In the opening, the clients of the first round are asked. A client
    that comes later, or whose answer was lost, is asked just before it trains for the first time,
    and then joins a cluster.

    >>> from wecfl.bilevel.representation.telling import Directions
    >>> Told(Directions(3)).asks
    False
    """

    tells: Telling
    asks: ClassVar[bool] = False

    def check(self, shared: str, layout: Layout) -> None:
        """Raise an error if it needs whole models, but clients keep private columns."""
        if self.tells.reads_model and private_columns(layout, shared) is not None:
            raise ConfigError(
                f"the representation {self.tells.name} needs whole models, but clients share only "
                f"the columns '{shared}': set shared to 'all'"
            )

    def told(self, state: State, setting: Setting) -> State:
        """Ask those clients of the next local update that have not told anything yet."""
        m, engine = len(state.labels), setting.engine
        who = np.flatnonzero(setting.channel.present(m, state.round) & ~has_told(state))
        if not len(who):
            return state
        # With round 0 and the plan's η, what a client tells does not depend on when it is asked.
        job = Job(self.tells.sized(engine), setting.plan, setting.seed, 0, state.tick)
        own = {}
        if self.tells.reads_model:
            start = engine.starts([setting.member], setting.seed)
            own = {"model": np.repeat(start, len(who), axis=0)}
        row = job.program.replies["told"].sized(job.sizes(engine.layout))
        check_room(
            f"what {m} clients tell ('{self.tells.name}')",
            3 * 4 * m * prod(row),
            "choose another representation or method",
        )
        answers = engine.ask(job, Sent(own), who)
        rows = answers.rows["told"]
        finite = np.isfinite(rows.reshape(len(who), -1)).all(axis=1)
        heard = (answers.outcome == Reply.HEARD) & finite
        missing = np.full((m, *rows.shape[1:]), np.nan, rows.dtype)
        known = state.known.get("told", missing).copy()
        known[who[heard]] = rows[heard]
        return replace(state, known={**state.known, "told": known})

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> Real:
        """(m, …), g_i; NaN for a client that has not told anything yet."""
        found: Real = state.known["told"]
        return found if who is None else found[who]

    def centers(self, state: State, engine: Engine, seed: int) -> Real:
        """(K, …), G_k; zeros before the first clustering."""
        shape = (len(state.centers), *state.known["told"].shape[1:])
        return np.asarray(state.cluster.get("told", np.zeros(shape)))

    def own_distances(self, state: State, engine: Engine, distance: Distance, seed: int) -> F64:
        """(m,), d(g_i, G_{labels_i}); 0 for a client that has not told anything yet."""
        result, told = np.zeros(len(state.labels)), has_told(state)
        for k in np.unique(state.labels[told]):
            members = told & (state.labels == k)
            center = self.centers(state, engine, seed)[k : k + 1]
            result[members] = distance(self.clients(state, engine, seed, members), center)[:, 0]
        return result
