"""Classification: a model has one logit for each class, and is trained by cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from wecfl.core.types import F64, Int

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Classification"]


@dataclass(frozen=True, slots=True)
class Classification:
    """Every sample belongs to one of C classes (a `wecfl.core.task.Task`).

    >>> task = Classification()
    >>> outputs, targets = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
    >>> task.losses(outputs, targets).round(3).tolist()
    [0.127, 1.313]
    >>> tally = task.tally(outputs, targets, owners=np.array([0, 0]), clients=1)
    >>> tally.tolist(), task.scores(tally)["accuracy"].tolist()
    ([[[1.0, 1.0], [0.0, 0.0]]], [0.5])
    """

    name: ClassVar[str] = "classification"
    kernel: ClassVar[str | None] = "cross-entropy"

    def shape(self, outputs: int) -> tuple[int, ...]:
        """(C, C), counts by true and predicted class."""
        return outputs, outputs

    def losses(self, outputs: F64, targets: Int) -> F64:
        """(n,), −log softmax of the right class."""
        top = outputs.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # a model that diverges may give infinite outputs
            log_sum = np.log(np.exp(outputs - top).sum(axis=1)) + top[:, 0]
            loss: F64 = log_sum - outputs[np.arange(len(targets)), targets]
        return loss

    def objective(
        self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """The mean or sum of the losses as a torch tensor, which can be differentiated."""
        from torch.nn.functional import cross_entropy  # noqa: PLC0415

        return cross_entropy(outputs, targets, reduction=reduction)

    def tally(self, outputs: F64, targets: Int, owners: Int, clients: int) -> F64:
        """(m, C, C), how often each class was predicted as each class."""
        classes = outputs.shape[1]
        cells = (owners * classes + targets) * classes + outputs.argmax(axis=1)
        shape = (clients, classes, classes)
        return np.bincount(cells, minlength=prod(shape)).reshape(shape).astype(np.float64)

    @property
    def lower(self) -> frozenset[str]:
        """None: high scores are good."""
        return frozenset()

    def complaint(self, tally: F64) -> str:
        """What is wrong with a tally that a client has sent; empty if nothing is wrong."""
        if (tally < 0).any() or (tally != np.floor(tally)).any():
            return "counts must be whole numbers and not negative"
        return ""

    def scores(self, tallies: F64) -> dict[str, Any]:
        """`accuracy` (m,) and `macro_f1` (m,); NaN for a client without a tally."""
        from wecfl import metrics  # noqa: PLC0415  (with scikit-learn, which clients do without)

        counts = tallies.astype(np.int64)
        return {"accuracy": metrics.accuracy(counts), "macro_f1": metrics.macro_f1(counts)}
