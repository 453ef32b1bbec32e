"""The task: what is learned, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol, Self

from wecfl.core.types import F64, Int

__all__ = ["Task"]


class Task(Protocol):
    """A loss for each sample, a tally for each client, and scores that follow from the tallies.

    The shape of a tally does not depend on the client's data. The tally is all that a client
    reveals about its predictions, and tallies can be added: the tally of two sets of samples is the
    sum of theirs.
    """

    name: ClassVar[str]

    @property
    def kernel(self) -> Mapping[str, Any] | None:
        """The loss, described for the native engine; None: only torch can compute it."""

    @property
    def outputs(self) -> int:
        """The number of outputs of a model for a sample; 0 if it is not known before `fit`."""

    def fit(self, federation: Any) -> tuple[Self, Any]:
        """The task with everything that follows from the data, and the data in the form it needs.

        A `DataError` says which target does not suit the task. A second call changes nothing.
        """

    def shape(self, outputs: int) -> tuple[int, ...]:
        """The shape of a tally, for a model with this number of outputs."""

    def losses(self, outputs: F64, targets: Any) -> F64:
        """(n,), the loss of each sample."""

    def objective(
        self, outputs: Any, targets: Any, reduction: Literal["mean", "sum"] = "mean"
    ) -> Any:
        """The mean or the sum of the losses, as a torch tensor that can be differentiated."""

    def tally(self, outputs: F64, targets: Any, owners: Int, clients: int) -> F64:
        """(m, …), the tally of each client; `owners` says which client each sample belongs to."""

    def mixed(self, outputs: F64, mixture: F64) -> F64:
        """(n, C), the outputs of a model that would predict like a mixture of J models.

        `outputs` are (J, n, C), and `mixture` (J, n) are the weights, which sum to 1.
        """

    def complaint(self, tally: F64, most: int) -> str:
        """What is wrong with a tally that a client has sent; empty if nothing is wrong.

        No client can hold more than `most` samples.
        """

    def predictions(self, outputs: F64) -> Any:
        """(n, …), what the outputs of a model predict: classes, answers of 0 or 1, or numbers."""

    def probabilities(self, outputs: F64) -> F64 | None:
        """(n, C), the probability of each class or label; None if the task has none."""

    def scores(self, tallies: F64) -> dict[str, F64]:
        """Scores (m,) by name, the headline first; NaN for a client without a tally."""

    @property
    def lower(self) -> frozenset[str]:
        """The names of the scores for which lower is better."""
