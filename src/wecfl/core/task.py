"""What is learned, and how it is judged."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol

from wecfl.core.types import F64, Int

__all__ = ["Task"]


class Task(Protocol):
    """A loss per sample, a tally per client, and scores that follow from tallies alone.

    A tally has a fixed shape, whatever the client's data: it is all that a client tells of its
    predictions.
    """

    name: ClassVar[str]
    kernel: ClassVar[str | None]
    """The loss by the name the native engine knows it by; None: only torch computes it."""

    def shape(self, outputs: int) -> tuple[int, ...]:
        """Of a tally, for a model with so many outputs."""

    def losses(self, outputs: F64, targets: Int) -> F64:
        """(n,), the loss of each sample."""

    def objective(
        self, outputs: Any, targets: Any, reduction: Literal["mean", "sum"] = "mean"
    ) -> Any:
        """Their mean or sum as a torch tensor, to be differentiated."""

    def tally(self, outputs: F64, targets: Int, owners: Int, clients: int) -> F64:
        """(m, …), for each client what its samples (those it owns) came to."""

    def complaint(self, tally: F64) -> str:
        """What is wrong with a tally that a client sent; empty if nothing is."""

    def scores(self, tallies: F64) -> dict[str, F64]:
        """(m,) each, by name; the first is the headline. NaN of a client that told nothing."""
