"""What a run works on: clients as rows of a matrix, clusters as rows of another, and a `State`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from wecfl import memory

__all__ = [
    "F32",
    "F64",
    "Bool",
    "Clients",
    "Int",
    "Int8",
    "Real",
    "Reply",
    "Split",
    "State",
]

F32 = NDArray[np.float32]
"""Models, as rows."""
F64 = NDArray[np.float64]
"""What is summed: distances, losses, importance."""
Int = NDArray[np.int64]
"""Labels, counts, positions."""
Int8 = NDArray[np.int8]
"""Codes."""
Bool = NDArray[np.bool_]
"""Who."""
Real = NDArray[np.floating]
"""Representations, in whatever precision they come."""
Split = Literal["train", "test"]


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
    """All that survives a round; a checkpoint is exactly this.

    >>> centers = np.array([[1, 2], [3, 4]], np.float32)
    >>> State(0, np.zeros((3, 2), np.float32), centers, labels=np.array([0, 1, 1])).own.tolist()
    [[1.0, 2.0], [3.0, 4.0], [3.0, 4.0]]
    """

    round: int
    """t, the number of local updates done so far."""
    trained: F32 | None
    """(m, P), the clients' models ω_i where they have their own; None: ω_i = Ω_k, as after the
    distribution, which therefore makes no matrix."""
    centers: F32
    """(K, P), the clusters' models Ω_k."""
    labels: Int
    """(m,), r_ik = [labels_i = k]."""
    memory: Mapping[str, F32] = field(default_factory=dict)
    """What clients keep between rounds, one row each: `momentum` (m, trainable); `lr` (m,), the
    rate they were sent with the model, where it follows the run."""
    replies: Int8 | None = None
    """(m,), what came of each client's last local update (`Reply`); None: the server has them
    all."""
    met: Bool | None = None
    """(m,), whom the server has heard in some round so far; None: everyone."""
    notes: Mapping[str, F64] = field(default_factory=dict)
    """What the clustering has written down for the next round, and for the reader."""

    def __post_init__(self) -> None:
        if not ((self.labels >= 0) & (self.labels < len(self.centers))).all():
            raise ValueError(
                f"labels must be clusters 0 to {len(self.centers) - 1}, got {self.labels}"
            )

    @property
    def heard(self) -> Bool:
        """(m,), whose last local update reached the server and was accepted."""
        if self.replies is None:
            return np.ones(len(self.labels), dtype=np.bool_)
        heard: Bool = self.replies == Reply.HEARD
        return heard

    @property
    def models(self) -> F32:
        """(m, P), the clients' models ω_i; a matrix of its own, made anew, where ω_i = Ω_k."""
        return self.own if self.trained is None else self.trained

    def fresh(self) -> F32:
        """(m, P), the clients' models in a matrix that may be written to."""
        if self.trained is None:
            return self.own
        rows = memory.empty(self.trained.shape)
        rows[:] = self.trained
        return rows

    def model(self, client: int) -> F32:
        """(P,), ω_i of one client."""
        if self.trained is None:
            return np.asarray(self.centers[self.labels[client]])
        return np.asarray(self.trained[client])

    @property
    def own(self) -> F32:
        """(m, P), the center of each client's own cluster, Ω_{labels_i}."""
        rows = memory.empty((len(self.labels), self.centers.shape[1]))
        # Any mode but "raise", which would go through a second matrix.
        return np.take(self.centers, self.labels, axis=0, out=rows, mode="clip")

    def replace(self, **changes: Any) -> State:
        """A copy with some fields changed; when clusters move, clients keep what they were sent."""
        moved = "labels" in changes or "centers" in changes
        if self.trained is None and moved and "trained" not in changes:
            changes["trained"] = self.models
        return dataclasses.replace(self, **changes)


class Clients(Protocol):
    """What a run knows of its clients, whether it holds their data (`Federation`) or not."""

    def __len__(self) -> int:
        """m, the number of clients."""

    @property
    def names(self) -> Sequence[str]:
        """What to call each client."""

    @property
    def keys(self) -> Int:
        """(m,), who each client is, for keyed randomness."""

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|."""

    @property
    def groups(self) -> Int | None:
        """(m,), the hidden groups that generated the data, where they are known."""

    @property
    def held(self) -> Int | None:
        """(classes, m), the training samples of each class, where they are known."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""

    @property
    def classes(self) -> int:
        """C, how many there are."""

    @property
    def fingerprint(self) -> str:
        """Tells the clients of one run from those of another."""
