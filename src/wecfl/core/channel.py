"""What is between a client and the server: absence, loss, lies, noise, and what a server refuses.

All of it happens in an exchange (`core/exchange.py`): who takes part, how many steps each
gets to, and what reaches the server. Every draw is keyed by (seed, purpose, round, client).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wecfl import memory, rng
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Job
from wecfl.core.state import Reply, State
from wecfl.core.types import F32, F64, Bool, Int, Int8, Real
from wecfl.errors import ConfigError, DivergedError
from wecfl.layout import Layout

__all__ = ["Channel", "Forging", "Protection", "Updates"]


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """One round of training: what clients received and what they would honestly send back.

    >>> updates = Updates(start=np.zeros((2, 3), "f4"), trained=np.ones((2, 3), "f4"),
    ...                   attackers=np.array([False, True]), labels=np.array([0, 0]),
    ...                   keys=np.array([0, 1]), trainable=2, seed=0, round=0)
    >>> updates.updates.tolist()
    [[1.0, 1.0]]
    >>> updates.sent(np.array([[5, 6]])).tolist()
    [[1.0, 1.0, 1.0], [5.0, 6.0, 1.0]]
    """

    start: F32
    """(m, P), the models clients received."""
    trained: F32
    """(m, P), what became of them."""
    attackers: Bool
    """(m,)."""
    labels: Int
    """(m,), the clusters whose models clients received."""
    keys: Int
    """(m,), who clients are, for keyed randomness."""
    trainable: int
    """How many leading columns are parameters, as in `Layout`."""
    seed: int
    round: int

    @property
    def updates(self) -> F32:
        """(a, trainable), the honest updates of the a attackers."""
        columns = slice(self.trainable)
        updates: F32 = self.trained[self.attackers, columns] - self.start[self.attackers, columns]
        return updates

    def sent(self, updates: Real) -> F32:
        """(m, P), `trained` with these updates (a, trainable) in place of the attackers' own."""
        rows = memory.empty(self.trained.shape)
        rows[...] = self.trained
        columns = slice(self.trainable)
        rows[self.attackers, columns] = self.start[self.attackers, columns] + updates
        return rows


class Forging(Protocol):
    """What attackers do to the updates they send (`wecfl.channel.attacks`)."""

    def forge(self, updates: Updates) -> F32:
        """(m, P), what the server gets in place of `updates.trained`."""


class Protection(Protocol):
    """What honest clients do to the update they send (`wecfl.channel.privacy`)."""

    def __call__(
        self, start: F32, trained: F32, clients: Bool, keys: Int, *, round: int, seed: int
    ) -> F32:
        """(m, P), the rows of these clients as they leave them; the others as they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """What a round meets on its way; the default is that nothing is in it.

    >>> Channel(participation=0.5).present(4, round=0).tolist()
    [False, False, True, True]
    """

    participation: float = 1.0
    """The share of clients that take part in a round, at least one of them."""
    dropout: float = 0.0
    """The probability that a client trains but its reply is lost."""
    stragglers: float = 0.0
    """The probability that a client gets to fewer than Q steps, any number of them."""
    attack: Forging | None = None
    """What attackers send instead of their models."""
    attackers: Bool | None = None
    """(m,), who they are."""
    privacy: Protection | None = None
    """What honest clients do to their update before they send it."""
    refuse_above: float = 100.0
    """An update this many times longer than the round's median is refused."""
    min_cluster: int = 1
    """A center is made of at least so many models, or it stays."""
    keys: Int | None = None
    """(m,), who clients are, for keyed randomness; None: their positions."""
    seed: int = 0
    """Of who takes part, is lost or late: the same for all soft-voted runs."""

    def __post_init__(self) -> None:
        if not 0 < self.participation <= 1:
            raise ConfigError(f"participation must lie in (0, 1], got {self.participation}")
        for name in ("dropout", "stragglers"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if not self.refuse_above > 1:
            raise ConfigError(f"refuse_above must be greater than 1, got {self.refuse_above}")
        if self.min_cluster < 1:
            raise ConfigError(f"min_cluster must be at least 1, got {self.min_cluster}")

    def check(self, plan: LocalPlan, m: int) -> None:
        """Refuse what can't be with this plan and m clients."""
        if self.stragglers and plan.steps < 2:
            raise ConfigError("stragglers take fewer steps than the others: ask for at least 2")
        if self.min_cluster > m:
            raise ConfigError(f"{m} clients can't form a cluster of {self.min_cluster}")

    def present(self, m: int, round: int, purpose: str = "participation") -> Bool:
        """(m,), who takes part in the local update after `round` rounds.

        Every client draws a number and the least take part, so the order of clients does not
        matter.
        """
        here = np.ones(m, dtype=np.bool_)
        if self.participation < 1:
            count = max(1, int(np.round(self.participation * m)))
            draws = self._draws(purpose, m, round)
            here[np.argsort(draws, kind="stable")[count:]] = False
        return here

    def steps(self, plan: LocalPlan, m: int, round: int) -> Int | None:
        """(m,), how many of the Q steps each client gets to; None: all."""
        if not self.stragglers:
            return None
        late = self._draws("stragglers", m, round)
        # Given that it is late, the draw is as good as a new one.
        few = 1 + np.floor(late / self.stragglers * (plan.steps - 1)).astype(np.int64)
        return np.where(late < self.stragglers, few, plan.steps)

    def received(
        self,
        sent: State,
        rows: Mapping[str, NDArray[Any]],
        who: Int,
        outcome: Int8,
        *,
        job: Job,
        layout: Layout,
    ) -> tuple[dict[str, NDArray[Any]], Int8 | None]:
        """What the server has after an exchange: replies (m, …), and what came of each client.

        `sent` is the state with the models that clients received, `rows` (n, …) what those asked
        made of them, `outcome` (m,) what is known of each so far. Where nothing came that can be
        used, a model stays as it was sent, and anything else is zero.
        """
        m, here, outcome = len(outcome), outcome == Reply.HEARD, outcome.copy()
        declared = job.program.replies
        replies = {name: _spread(array, who, m) for name, array in rows.items() if name != "model"}
        if self.dropout:
            lost = here & (self._draws("reply", m, sent.round) < self.dropout)
            outcome[lost] = Reply.LOST
        if "model" in declared and declared["model"].update:
            trained = rows["model"]
            if len(who) < m:
                trained = sent.fresh(np.arange(m))
                trained[who] = rows["model"]
            trained = self._forged(sent, trained, here, layout.trainable, job)
            self._judge(_lengths(trained, sent), outcome, sent.round)
            heard = outcome == Reply.HEARD
            replies["model"] = (
                trained if heard.all() else np.where(heard[:, None], trained, sent.models)
            )
        for name in {*replies} - {"model"}:
            flat = replies[name].reshape(m, -1)
            finite = np.isfinite(flat).all(axis=1)
            outcome[(outcome == Reply.HEARD) & ~finite] = Reply.NOT_FINITE
            flat[outcome != Reply.HEARD] = 0
        return replies, None if (outcome == Reply.HEARD).all() else outcome

    def _forged(self, sent: State, trained: F32, here: Bool, trainable: int, job: Job) -> F32:
        """(m, P), as updates leave honest clients and liars."""
        keys = np.arange(len(here)) if self.keys is None else self.keys
        liars = here & self.attackers if self.attackers is not None else np.zeros_like(here)
        if self.privacy:
            trained = self.privacy(
                sent.models, trained, here & ~liars, keys, round=sent.round, seed=job.seed
            )
        if self.attack and liars.any():
            trained = self.attack.forge(
                Updates(
                    sent.models, trained, liars, sent.labels, keys, trainable, job.seed, sent.round
                )
            )
        return trained

    def _judge(self, length: F64, outcome: Int8, round: int) -> None:
        """Refuse, in place, updates that are not finite or far longer than the others."""
        arrived, finite = outcome == Reply.HEARD, np.isfinite(length)
        if arrived.any() and not finite[arrived].any():
            raise DivergedError(
                f"none of the {arrived.sum()} models that came back from the local update of round "
                f"{round + 1} is finite: training diverged, lower lr"
            )
        usual = np.median(length[arrived & finite]) if arrived.any() else 0.0
        outcome[arrived & ~finite] = Reply.NOT_FINITE
        if usual > 0:
            outcome[arrived & finite & (length > self.refuse_above * usual)] = Reply.TOO_LARGE

    def _draws(self, purpose: str, m: int, round: int) -> F64:
        """(m,), one number in [0, 1) for each client."""
        keys = range(m) if self.keys is None else self.keys
        return np.array([rng.stream(self.seed, purpose, round, int(key)).random() for key in keys])


def _lengths(trained: F32, sent: State) -> F64:
    """(m,), ‖ω_i − what it received‖: NaN or infinite where ω_i is."""
    squares = np.empty(len(trained))
    with np.errstate(over="ignore", invalid="ignore"):
        for i, after in enumerate(trained):
            update = after - sent.model(i)  # a row at a time stays in the cache
            squares[i] = np.einsum("p,p->", update, update)
            if not np.isfinite(squares[i]):  # squares may overflow where the row does not
                squares[i] = np.einsum("p,p->", update, update, dtype=np.float64)
    return np.sqrt(squares)


def _spread(rows: NDArray[Any], who: Int, m: int) -> NDArray[Any]:
    """(m, …), rows (n, …) where their clients are, zeros elsewhere."""
    spread = np.zeros((m, *rows.shape[1:]), rows.dtype)
    spread[who] = rows
    return spread
