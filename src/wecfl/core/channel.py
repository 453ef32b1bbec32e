"""The channel between clients and server: absence, lost replies, attacks, noise and refusals.

It acts in every exchange (`core/exchange.py`). It decides which clients take part, how many steps
each of them completes, and what reaches the server. Every random draw is keyed by (seed, purpose,
round, client).
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
from wecfl.limits import check_at_least_one, check_whole

__all__ = ["Channel", "Forging", "Protection", "Updates"]


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """The updates of one round: what clients received, and what they would send back honestly.

    >>> updates = Updates(start=np.zeros((2, 3), "f4"), trained=np.ones((2, 3), "f4"),
    ...                   attackers=np.array([False, True]), labels=np.array([0, 0]),
    ...                   keys=np.array([0, 1]), trainable=2, seed=0, round=0)
    >>> updates.updates.tolist()
    [[1.0, 1.0]]
    >>> updates.sent(np.array([[5, 6]])).tolist()
    [[1.0, 1.0, 1.0], [5.0, 6.0, 1.0]]
    """

    start: F32
    """(m, P), the models that clients received."""
    trained: F32
    """(m, P), the models after training."""
    attackers: Bool
    """(m,), the clients that lie."""
    labels: Int
    """(m,), the cluster whose model each client received."""
    keys: Int
    """(m,), a number for each client, by which its random draws are keyed."""
    trainable: int
    """The number of leading columns that are parameters, as in `Layout`."""
    seed: int
    round: int

    @property
    def updates(self) -> F32:
        """(a, trainable), the honest updates of the a attackers."""
        columns = slice(self.trainable)
        updates: F32 = self.trained[self.attackers, columns] - self.start[self.attackers, columns]
        return updates

    def sent(self, updates: Real) -> F32:
        """(m, P), `trained`, where these updates (a, trainable) replace those of the attackers."""
        rows = memory.empty(self.trained.shape)
        rows[...] = self.trained
        columns = slice(self.trainable)
        rows[self.attackers, columns] = self.start[self.attackers, columns] + updates
        return rows


class Forging(Protocol):
    """What attackers do to the updates that they send (`wecfl.channel.attacks`)."""

    def forge(self, updates: Updates) -> F32:
        """(m, P), what the server receives instead of `updates.trained`."""


class Protection(Protocol):
    """What honest clients do to their update before they send it (`wecfl.channel.privacy`)."""

    def __call__(
        self, start: F32, trained: F32, clients: Bool, keys: Int, *, round: int, seed: int
    ) -> F32:
        """(m, P), the rows of these clients as they are sent; the other rows are unchanged."""


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """What happens to clients and replies on the way; by default, nothing.

    >>> Channel(participation=0.5).present(4, round=0).tolist()
    [False, False, True, True]
    """

    participation: float = 1.0
    """The share of clients that take part in a round, at least one of them."""
    dropout: float = 0.0
    """The probability that a client trains but its reply is lost."""
    stragglers: float = 0.0
    """The probability that a client completes fewer than Q steps; each smaller number is equally
    likely."""
    attack: Forging | None = None
    """What attackers send instead of their models."""
    attackers: Bool | None = None
    """(m,), the clients that lie."""
    privacy: Protection | None = None
    """What honest clients do to their update before they send it."""
    refuse_above: float = 100.0
    """An update that is longer than this many times the median length of the round is refused. If
    clients have different learning rates, lengths are divided by them."""
    shorten_above: float = np.inf
    """An update that is longer than this many times the median length of the round is shortened to
    that length, and keeps its direction; infinite: no update is shortened."""
    min_cluster: int = 1
    """The smallest number of models of which a new center is made; with fewer, the old one stays.
    """
    joining: float = 0.0
    """The share of clients that join later."""
    joining_round: int = 2
    """The first round in which the clients that join later take part."""
    keys: Int | None = None
    """(m,), a number for each client, by which its random draws are keyed; None: its position."""
    away: Bool | None = None
    """(m,), the clients that never take part; None: none of them."""
    seed: int = 0
    """The seed of absence, loss and stragglers; all runs of a soft vote share it."""

    def __post_init__(self) -> None:
        if not 0 < self.participation <= 1:
            raise ConfigError(f"participation must lie in (0, 1], got {self.participation}")
        for name in ("dropout", "stragglers"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        if not self.refuse_above > 1:
            raise ConfigError(f"refuse_above must be greater than 1, got {self.refuse_above}")
        if not self.shorten_above > 0:
            raise ConfigError(f"shorten_above must be positive, got {self.shorten_above}")
        if not 0 <= self.joining < 1:
            raise ConfigError(f"joining must be a share in [0, 1), got {self.joining}")
        check_whole(joining_round=(self.joining_round, 2))
        check_at_least_one(min_cluster=self.min_cluster)

    def check(self, plan: LocalPlan, m: int) -> None:
        """Raise an error if the plan or the number m of clients does not allow this."""
        if self.stragglers and plan.epochs is None and plan.steps < 2:
            raise ConfigError(f"stragglers need at least 2 steps, got {plan.steps}: raise steps")
        if self.min_cluster > m:
            raise ConfigError(
                f"min_cluster is {self.min_cluster}, but there are only {m} clients: lower "
                f"min_cluster"
            )

    def joined(self, m: int, round: int) -> Bool:
        """(m,), which clients have joined before the exchange after `round` rounds.

        The clients that join later are drawn once for the whole run. Until they join, they count as
        clients that were never heard.

        >>> Channel(joining=0.5, joining_round=3).joined(4, round=1).tolist()
        [True, False, True, False]
        >>> Channel(joining=0.5, joining_round=3).joined(4, round=2).all()
        np.True_
        """
        joined = np.ones(m, dtype=np.bool_)
        if self.joining and round + 1 < self.joining_round:
            count = max(1, m - int(np.round(self.joining * m)))
            joined[np.argsort(self.draws("joining", m, 0), kind="stable")[count:]] = False
        return joined

    def present(self, m: int, round: int, purpose: str = "participation") -> Bool:
        """(m,), which clients take part in the exchange after `round` rounds.

        Every client that has joined draws a number, and those with the smallest numbers take part.
        So the order of the clients does not matter.
        """
        present = self.joined(m, round)
        if self.participation < 1:
            count = max(1, int(np.round(self.participation * present.sum())))
            draws = np.where(present, self.draws(purpose, m, round), np.inf)
            present[np.argsort(draws, kind="stable")[count:]] = False
        return present if self.away is None else present & ~self.away

    def steps(self, plan: LocalPlan, sizes: Int, round: int) -> Int | None:
        """(m,), the numbers of steps that clients of these sizes complete; None: all steps."""
        if not self.stragglers:
            return None
        draws, steps = self.draws("stragglers", len(sizes), round), plan.steps_of(sizes)
        # A draw below `stragglers` is uniform, so it also says how many steps are completed.
        few = 1 + np.floor(draws / self.stragglers * (steps - 1)).astype(np.int64)
        return np.where(draws < self.stragglers, few, steps)

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
        """What the server has after an exchange: replies (m, …), and the outcome of each client.

        `sent` is the state with the models that clients received, `rows` (n, …) is what the clients
        in `who` replied, and `outcome` (m,) is the outcome as far as it is known. For a client
        without a usable reply, the model is the one that was sent, and every other array is zero.
        The outcome that is returned is None if all clients were heard.
        """
        m, replied, outcome = len(outcome), outcome == Reply.HEARD, outcome.copy()
        declared = job.program.replies
        replies = {name: _spread(array, who, m) for name, array in rows.items() if name != "model"}
        if self.dropout:
            lost = replied & (self.draws("reply", m, sent.round) < self.dropout)
            outcome[lost] = Reply.LOST
        if "model" in declared and declared["model"].update:
            trained = rows["model"]
            if len(who) < m:
                trained = sent.fresh(np.arange(m))
                trained[who] = rows["model"]
            trained = self._forged(sent, trained, replied, layout.trainable, job)
            length = _lengths(trained, sent)
            if isinstance(job.plan.lr, np.ndarray):
                # Updates of clients with different learning rates are compared per rate.
                length[who] = _per_rate(length[who], job.plan.lr)
            median = self._judge(length, outcome, sent.round)
            heard = outcome == Reply.HEARD
            longest = self.shorten_above * median if median > 0 else np.inf
            trained = _shortened(trained, sent, length, longest, heard)
            replies["model"] = (
                trained if heard.all() else np.where(heard[:, None], trained, sent.models)
            )
        for name in {*replies} - {"model"}:
            flat = replies[name].reshape(m, -1)
            finite = np.isfinite(flat).all(axis=1)
            outcome[(outcome == Reply.HEARD) & ~finite] = Reply.NOT_FINITE
            flat[outcome != Reply.HEARD] = 0
        return replies, None if (outcome == Reply.HEARD).all() else outcome

    def _forged(self, sent: State, trained: F32, replied: Bool, trainable: int, job: Job) -> F32:
        """(m, P), the models as honest clients and attackers send them."""
        keys = np.arange(len(replied)) if self.keys is None else self.keys
        liars = np.zeros_like(replied) if self.attackers is None else replied & self.attackers
        if self.privacy:
            trained = self.privacy(
                sent.models, trained, replied & ~liars, keys, round=sent.round, seed=job.seed
            )
        if self.attack and liars.any():
            trained = self.attack.forge(
                Updates(
                    sent.models, trained, liars, sent.labels, keys, trainable, job.seed, sent.round
                )
            )
        return trained

    def _judge(self, length: F64, outcome: Int8, round: int) -> float:
        """Mark in `outcome` the updates that are not finite, or far longer than the others.

        Returns the median length of those that are finite.
        """
        arrived, finite = outcome == Reply.HEARD, np.isfinite(length)
        if arrived.any() and not finite[arrived].any():
            raise DivergedError(
                f"training diverged: none of the {arrived.sum()} models of round {round + 1} is "
                f"finite: lower lr"
            )
        known = np.sort(length[arrived & finite])
        # Of two middle lengths the smaller one counts, so that one liar of two does not set it.
        median = float(known[(len(known) - 1) // 2]) if len(known) else 0.0
        outcome[arrived & ~finite] = Reply.NOT_FINITE
        if median > 0:
            outcome[arrived & finite & (length > self.refuse_above * median)] = Reply.TOO_LARGE
        return median

    def draws(self, purpose: str, m: int, round: int) -> F64:
        """(m,), a random number in [0, 1) for each client; it does not depend on their order."""
        keys = range(m) if self.keys is None else self.keys
        return np.array([rng.stream(self.seed, purpose, round, int(key)).random() for key in keys])


def _lengths(trained: F32, sent: State) -> F64:
    """(m,), the length of each update; NaN or infinite if the model is not finite."""
    squares = np.empty(len(trained))
    with np.errstate(over="ignore", invalid="ignore"):
        for i, after in enumerate(trained):
            update = after - sent.model(i)  # one row at a time stays in the cache
            squares[i] = np.einsum("p,p->", update, update)
            if not np.isfinite(squares[i]):  # a square may overflow although the row is finite
                squares[i] = np.einsum("p,p->", update, update, dtype=np.float64)
    return np.sqrt(squares)


def _per_rate(length: F64, rates: F32) -> F64:
    """(n,), the lengths of updates divided by the clients' rates.

    >>> _per_rate(np.array([0.2, 0.0, np.nan]), np.array([0.1, 0.0, 0.1], np.float32)).round(6)
    array([ 2.,  0., inf])
    """
    unmoved = np.where(length == 0, 0.0, np.inf)  # with the rate 0 a model can't move
    return np.divide(length, rates, out=unmoved, where=(rates > 0) & np.isfinite(length))


def _shortened(trained: F32, sent: State, length: F64, longest: float, heard: Bool) -> F32:
    """(m, P), `trained`, with updates that are longer than `longest` shortened to this length."""
    long = np.flatnonzero(heard & (length > longest))
    if not len(long):
        return trained
    rows = memory.empty(trained.shape)
    rows[...] = trained
    for i in long.tolist():
        start = sent.model(i)
        rows[i] = start + np.float32(longest / length[i]) * (rows[i] - start)
    return rows


def _spread(rows: NDArray[Any], who: Int, m: int) -> NDArray[Any]:
    """(m, …), the rows (n, …) of the clients in `who`, and zeros for the others."""
    spread = np.zeros((m, *rows.shape[1:]), rows.dtype)
    spread[who] = rows
    return spread
