"""What a run knows of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wecfl.core.types import Int

__all__ = ["Clients"]


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
