"""What a run knows of its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wecfl.core.types import Int

__all__ = ["Clients"]


class Clients(Protocol):
    """What a run knows about its clients, with their data (`Federation`) or without."""

    def __len__(self) -> int:
        """m, the number of clients."""

    @property
    def names(self) -> Sequence[str]:
        """The name of each client."""

    @property
    def keys(self) -> Int:
        """(m,), a number for each client, by which its random draws are keyed."""

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|."""

    @property
    def groups(self) -> Int | None:
        """(m,), the hidden groups that generated the data, where they are known."""

    @property
    def held(self) -> Int | None:
        """(classes, m), the number of training samples of each class, where they are known."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""

    @property
    def classes(self) -> int:
        """C, the number of classes."""

    @property
    def fingerprint(self) -> str:
        """A digest that differs between the clients of one run and those of another."""
