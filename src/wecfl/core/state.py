"""The state of a run: everything that one step passes to the next.

Clients are the rows of one matrix, and clusters are the rows of another.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from wecfl import memory
from wecfl.core.types import F32, F64, Bool, Int, Int8, Table, under

__all__ = ["Reply", "State"]


class Reply(IntEnum):
    """The outcome of a client's local update."""

    HEARD = 0
    """The reply reached the server, and is used."""
    ABSENT = 1
    """The client did not take part in the round."""
    LOST = 2
    """The client trained, but its reply did not arrive."""
    NOT_FINITE = 3
    """The server refused the reply: it holds NaN or infinity."""
    TOO_LARGE = 4
    """The server refused the reply: it is far longer than those of the others."""
    MALFORMED = 5
    """The server refused the reply: it does not have the shape or type that was asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything that is kept after a step, sorted by owner. A checkpoint holds exactly this.

    There are four tables of named arrays: what the server keeps with each cluster (`cluster`), what
    it knows about each client (`known`), what it keeps once for the whole run (`whole`), and what
    each client keeps for itself (`memory`). Over a network, `memory` is at the clients instead.

    >>> centers = np.array([[1, 2], [3, 4]], np.float32)
    >>> State(0, None, centers, labels=np.array([0, 1, 1])).own_centers.tolist()
    [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    """

    round: int
    """t, the number of local updates done so far."""
    replies: Table | None
    """(m, …), what clients replied to the last local update. `model` is ω_i; for a client that was
    not heard, it is the model that the client was sent. None: ω_i = Ω_k, as after the distribution,
    which drops the replies."""
    centers: F32
    """(K, P), the models Ω_k of the clusters."""
    labels: Int
    """(m,), the cluster of each client: r_ik = [labels_i = k]."""
    memory: Table = field(default_factory=dict)
    """(m, …), what clients keep for themselves, such as `momentum`, a personal model or private
    columns. A client keeps it while it is absent, and when it changes its cluster. Empty if the
    clients are on other machines."""
    cluster: Table = field(default_factory=dict)
    """(K, …), what the server keeps with each center, such as the moments of an optimizer."""
    known: Table = field(default_factory=dict)
    """(m, …), what the server knows about each client: `outcome`, the outcome of its last local
    update (`Reply`; missing if all were heard); `met`, whether it was ever heard (missing if all
    were); `chosen`, whether it is new in this round and has chosen its cluster (`Joining`); `lr`,
    the learning rate that it was sent, if that is computed in every round; `control`,
    its control variate; `candidate`, its place in clusters that are not made yet
    (`Clusters.candidate`)."""
    whole: Table = field(default_factory=dict)
    """What belongs to no single client or cluster: `notes.NAME`, the clustering's notes for the
    next round and for the record; `stranger`, the model for clients without a cluster; `moved`, the
    centers G after the expectation step; `validate`, present if the next local update leaves
    validation samples out."""
    tick: int = 0
    """The number of exchanges that kept memory so far, which is the version of `memory`."""

    def __post_init__(self) -> None:
        if not ((self.labels >= 0) & (self.labels < len(self.centers))).all():
            raise ValueError(
                f"labels must be clusters 0 to {len(self.centers) - 1}, got {self.labels}"
            )

    @property
    def outcome(self) -> Int8 | None:
        """(m,), the outcome of each client's last local update; None: all clients were heard."""
        return self.known.get("outcome")

    @property
    def met(self) -> Bool | None:
        """(m,), the clients that the server has heard in some round so far; None: all clients."""
        return self.known.get("met")

    @property
    def strangers(self) -> Bool | None:
        """(m,), the clients that are sent `stranger`, since they have no cluster yet; or None."""
        if self.met is None or "stranger" not in self.whole:
            return None
        chosen = self.known.get("chosen")
        return ~self.met if chosen is None else ~self.met & ~chosen

    @property
    def notes(self) -> dict[str, F64]:
        """The notes of the clustering."""
        return under("notes.", self.whole)

    @property
    def validates(self) -> bool:
        """Whether clients leave their validation samples out of the next local update."""
        return "validate" in self.whole

    @property
    def heard(self) -> Bool:
        """(m,), the clients whose last local update reached the server and was accepted."""
        if self.outcome is None:
            return np.ones(len(self.labels), dtype=np.bool_)
        heard: Bool = self.outcome == Reply.HEARD
        return heard

    @property
    def models(self) -> F32:
        """(m, P), the clients' models ω_i as the server has them."""
        trained = self.trained
        return self.sent if trained is None else trained

    @property
    def trained(self) -> F32 | None:
        """(m, P), the clients' models after the last local update; None: as they were sent."""
        return None if self.replies is None else self.replies.get("model")

    def fresh(self, who: Int) -> F32:
        """(n, P), the models of some clients, in a new matrix that may be overwritten."""
        if self.trained is not None:
            return self.trained[who]
        if len(who) == len(self.labels):
            return self.sent
        return np.stack([self.sent_to(i) for i in who]) if len(who) else self.centers[:0]

    @property
    def own_centers(self) -> F32:
        """(m, P), the center of each client's own cluster, Ω_{labels_i}."""
        rows = memory.empty((len(self.labels), self.centers.shape[1]))
        # The default mode "raise" would make a second matrix; labels are known to be valid.
        return np.take(self.centers, self.labels, axis=0, out=rows, mode="clip")

    @property
    def sent(self) -> F32:
        """(m, P), what each client is sent: its center, or `stranger` if it has no cluster yet.

        Each call makes a new matrix.
        """
        rows, strangers = self.own_centers, self.strangers
        if strangers is not None:
            rows[strangers] = self.whole["stranger"]
        return rows

    def model(self, client: int) -> F32:
        """(P,), ω_i of one client as the server has it."""
        trained = self.trained
        return self.sent_to(client) if trained is None else np.asarray(trained[client])

    def sent_to(self, client: int) -> F32:
        """(P,), the model that one client is sent."""
        strangers = self.strangers
        if strangers is not None and strangers[client]:
            return np.asarray(self.whole["stranger"])
        return np.asarray(self.centers[self.labels[client]])

    def replace(self, **changes: Any) -> State:
        """A copy with some fields changed. If centers or labels change, ω_i does not."""
        moved = "labels" in changes or "centers" in changes
        if self.trained is None and moved and "replies" not in changes:
            changes["replies"] = {**(self.replies or {}), "model": self.sent}
        return dataclasses.replace(self, **changes)

    def take(self, who: Bool | slice) -> State:
        """The state of these clients only."""
        return dataclasses.replace(
            self,
            replies={name: rows[who] for name, rows in (self.replies or {}).items()} or None,
            labels=self.labels[who],
            memory={name: rows[who] for name, rows in self.memory.items()},
            known={name: rows[who] for name, rows in self.known.items()},
        )

    def grown(self, origin: Int) -> State:
        """The state with clusters that are copies: new cluster j is a copy of `origin[j]`."""
        return self.replace(
            centers=self.centers[origin],
            cluster={name: rows[origin] for name, rows in self.cluster.items()},
        )
