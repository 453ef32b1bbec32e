"""What a run works on: clients as rows of a matrix, clusters as rows of another, and a `State`."""

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
    """What came of a client's local update."""

    HEARD = 0
    """It reached the server, which uses it."""
    ABSENT = 1
    """The client did not take part in the round."""
    LOST = 2
    """The client trained, but its reply did not arrive."""
    NOT_FINITE = 3
    """Refused: it holds NaN or infinity."""
    TOO_LARGE = 4
    """Refused: it is far longer than those of the others."""
    MALFORMED = 5
    """Refused: it is not what was asked for."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All that survives a step, by owner; a checkpoint is exactly this.

    Four owners keep arrays by name: each cluster, the server about each client, the server as a
    whole, and each client for itself. Over a network the last part is not here but at the clients.

    >>> centers = np.array([[1, 2], [3, 4]], np.float32)
    >>> State(0, None, centers, labels=np.array([0, 1, 1])).own_centers.tolist()
    [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    """

    round: int
    """t, the number of local updates done so far."""
    replies: Table | None
    """(m, …), what clients replied to the last local update: `model` is ω_i, and who was not heard
    has the model it was sent. None: ω_i = Ω_k, as after the distribution, which drops replies."""
    centers: F32
    """(K, P), the clusters' models Ω_k."""
    labels: Int
    """(m,), r_ik = [labels_i = k]."""
    memory: Table = field(default_factory=dict)
    """(m, …), what clients keep for themselves: `momentum`, a personal model, private columns. It
    survives absence and a change of cluster. Empty where clients are elsewhere."""
    cluster: Table = field(default_factory=dict)
    """(K, …), what the server keeps with each center: the moments of an optimizer."""
    known: Table = field(default_factory=dict)
    """(m, …), what the server knows of each client: `outcome` of its last local update (`Reply`;
    absent: all were heard), `met`, whether it was ever heard (absent: all were), `lr`, the rate it
    was sent where that follows the run, a control variate."""
    whole: Table = field(default_factory=dict)
    """What belongs to nobody: `notes.NAME`, what the clustering has written down for the next round
    and for the reader; `stranger`, the model for clients never heard; `moved`, G after E."""
    tick: int = 0
    """How many exchanges kept memory so far: the version of what clients keep."""

    def __post_init__(self) -> None:
        if not ((self.labels >= 0) & (self.labels < len(self.centers))).all():
            raise ValueError(
                f"labels must be clusters 0 to {len(self.centers) - 1}, got {self.labels}"
            )

    @property
    def outcome(self) -> Int8 | None:
        """(m,), what came of each client's last local update; None: the server heard them all."""
        return self.known.get("outcome")

    @property
    def met(self) -> Bool | None:
        """(m,), whom the server has heard in some round so far; None: everyone."""
        return self.known.get("met")

    @property
    def notes(self) -> dict[str, F64]:
        """What the clustering has written down."""
        return under("notes.", self.whole)

    @property
    def heard(self) -> Bool:
        """(m,), whose last local update reached the server and was accepted."""
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
        """(m, P), the clients' models since the last local update; None: as they were sent."""
        return None if self.replies is None else self.replies.get("model")

    def fresh(self, who: Int) -> F32:
        """(n, P), the models of some clients, in a matrix that may be written to."""
        if self.trained is not None:
            return self.trained[who]
        if len(who) == len(self.labels):
            return self.sent
        return np.stack([self.sent_to(i) for i in who]) if len(who) else self.centers[:0]

    @property
    def own_centers(self) -> F32:
        """(m, P), the center of each client's own cluster, Ω_{labels_i}."""
        rows = memory.empty((len(self.labels), self.centers.shape[1]))
        # Any mode but "raise", which would go through a second matrix.
        return np.take(self.centers, self.labels, axis=0, out=rows, mode="clip")

    @property
    def sent(self) -> F32:
        """(m, P), what each client is sent: its center; who was never heard, the stranger's model.

        A matrix of its own, made anew.
        """
        rows = self.own_centers
        if self.met is not None and "stranger" in self.whole:
            rows[~self.met] = self.whole["stranger"]
        return rows

    def model(self, client: int) -> F32:
        """(P,), ω_i of one client as the server has it."""
        trained = self.trained
        return self.sent_to(client) if trained is None else np.asarray(trained[client])

    def sent_to(self, client: int) -> F32:
        """(P,), what one client is sent."""
        if self.met is not None and not self.met[client] and "stranger" in self.whole:
            return np.asarray(self.whole["stranger"])
        return np.asarray(self.centers[self.labels[client]])

    def replace(self, **changes: Any) -> State:
        """A copy with some fields changed; when clusters move, clients keep what they were sent."""
        moved = "labels" in changes or "centers" in changes
        if self.trained is None and moved and "replies" not in changes:
            changes["replies"] = {**(self.replies or {}), "model": self.sent}
        return dataclasses.replace(self, **changes)

    def take(self, who: Bool) -> State:
        """The same of these clients alone."""
        return dataclasses.replace(
            self,
            replies={name: rows[who] for name, rows in (self.replies or {}).items()} or None,
            labels=self.labels[who],
            memory={name: rows[who] for name, rows in self.memory.items()},
            known={name: rows[who] for name, rows in self.known.items()},
        )

    def grown(self, origin: Int) -> State:
        """With a cluster for each entry of `origin`: the cluster that it comes from."""
        return self.replace(
            centers=self.centers[origin],
            cluster={name: rows[origin] for name, rows in self.cluster.items()},
        )
