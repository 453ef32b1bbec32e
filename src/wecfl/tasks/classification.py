"""Classification: a model has one logit for each class, and is trained by cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from wecfl.core.types import F64, Int
from wecfl.data.federation import Federation
from wecfl.data.targets import may_be_labels
from wecfl.errors import ConfigError
from wecfl.limits import check_not_negative
from wecfl.tasks import ranking
from wecfl.tasks import targets as forms

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ClassHeadline", "Classification", "class_weights"]

ClassHeadline = Literal["auto", "accuracy", "balanced_accuracy", "auc"]
"""The first score of a classification."""


@dataclass(frozen=True, slots=True)
class Classification:
    """Every sample belongs to one of C classes (a `wecfl.core.task.Task`).

    With p = softmax of the logits and the class y, the loss of a sample is

        (1 − p_y)^γ · [(1 − s)·w_y·(−log p_y) + s/C · Σ_c w_c·(−log p_c)]

    with the `weights` w, label smoothing s = `smoothing` and γ = `gamma` (focal loss). With the
    defaults it is cross-entropy. The loss of a batch is the mean over its samples; it is not
    divided by their weights.

    >>> task = Classification()
    >>> outputs, targets = np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 0])
    >>> task.losses(outputs, targets).round(3).tolist()
    [0.127, 1.313]
    >>> tally = task.tally(outputs, targets, owners=np.array([0, 0]), clients=1)
    >>> tally.tolist(), task.scores(tally)["accuracy"].tolist()
    ([[[1.0, 1.0], [0.0, 0.0]]], [0.5])
    """

    classes: int = 0
    """C; 0: the largest label + 1."""
    weights: tuple[float, ...] | Literal["balanced"] | None = None
    """w, one for each class; `balanced`: n / (C·n_c) for the n_c training samples of class c."""
    smoothing: float = 0.0
    """s, the share of the target that is spread over all classes."""
    gamma: float = 0.0
    """γ; the larger it is, the less do samples count that are already recognized."""
    ignore: int | None = None
    """A label that is not a class: samples with it are left out of training and of scores."""
    headline: ClassHeadline = "auto"
    """The first score; `auto` follows the balance of the classes (`wecfl.tasks.choice`). For `auc`,
    clients also send histograms of the probabilities of each class (`wecfl.tasks.ranking`)."""

    name: ClassVar[str] = "classification"

    def __post_init__(self) -> None:
        check_loss(self.smoothing, self.gamma)
        if self.classes < 0:
            raise ConfigError(f"classes must not be negative, got {self.classes}")
        if self.headline not in get_args(ClassHeadline):
            known = ", ".join(get_args(ClassHeadline))
            raise ConfigError(f"headline must be one of {known}, got {self.headline!r}")
        if isinstance(self.weights, tuple):
            if self.classes and len(self.weights) != self.classes:
                raise ConfigError(
                    f"weights must have one number for each of the {self.classes} classes, got "
                    f"{len(self.weights)}"
                )
            if not all(0 <= weight < np.inf for weight in self.weights):
                raise ConfigError(f"weights must be finite and not negative, got {self.weights}")
        elif self.weights not in (None, "balanced"):
            raise ConfigError(
                f"weights must be 'balanced' or a list of numbers, got {self.weights!r}"
            )

    @property
    def _plain(self) -> bool:
        return self.weights is None and not self.smoothing and not self.gamma

    @property
    def kernel(self) -> Mapping[str, Any] | None:
        """The loss, described for the native engine, which has no focal loss."""
        if self._plain:
            return {"loss": "cross-entropy"}
        if self.gamma or self.weights == "balanced":
            return None
        weights = self.weights or (1.0,) * self.classes
        return {
            "loss": "weighted cross-entropy", "weights": list(weights), "smoothing": self.smoothing
        }  # fmt: skip

    @property
    def outputs(self) -> int:
        """C, one logit for each class."""
        return self.classes

    def fit(self, federation: Federation) -> tuple[Classification, Federation]:
        """Find C and the weights; make labels 0 … C − 1, and leave out samples to ignore."""
        known = self.classes
        if not known and self.ignore is None and may_be_labels(federation.y):
            known = federation.classes
        held = forms.labels(federation, known or None, self.ignore)
        weights = class_weights(held) if self.weights == "balanced" else self.weights
        return replace(self, classes=held.classes, weights=weights), held

    def shape(self, outputs: int) -> tuple[int, ...]:
        """(C, C), counts by true and predicted class; with AUC, one row that ends in histograms."""
        if self.headline != "auc":
            return outputs, outputs
        return (outputs**2 + _questions(outputs) * 4 * ranking.BIN_COUNT,)

    def losses(self, outputs: F64, targets: Int) -> F64:
        """(n,), −log softmax of the right class, weighted, smoothed and focused."""
        top = outputs.max(axis=1, keepdims=True)
        own = np.arange(len(targets)), targets
        with np.errstate(invalid="ignore"):  # a model that diverges may give infinite outputs
            log_sum = np.log(np.exp(outputs - top).sum(axis=1)) + top[:, 0]
            loss: F64 = log_sum - outputs[own]
            if self._plain:
                return loss
            weights = np.array(self.weights or [1.0] * outputs.shape[1])
            every = ((log_sum[:, None] - outputs) * weights).mean(axis=1)
            whole = (1 - self.smoothing) * weights[targets] * loss + self.smoothing * every
            focus = np.maximum(-np.expm1(-loss), 0) ** self.gamma
        return np.asarray(focus * whole)

    def objective(
        self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """The mean or sum of the losses as a torch tensor, which can be differentiated."""
        from torch import finfo  # noqa: PLC0415
        from torch.nn.functional import cross_entropy  # noqa: PLC0415

        if self._plain:
            return cross_entropy(outputs, targets, reduction=reduction)
        weights = None if self.weights is None else outputs.new_tensor(self.weights)
        losses = cross_entropy(
            outputs, targets, weight=weights, label_smoothing=self.smoothing, reduction="none"
        )
        if self.gamma:
            missed = -cross_entropy(outputs, targets, reduction="none").neg().expm1()
            # At 0 the power has no derivative for γ < 1.
            losses = missed.clamp_min(finfo(missed.dtype).tiny) ** self.gamma * losses
        return losses.sum() if reduction == "sum" else losses.mean()

    def tally(self, outputs: F64, targets: Int, owners: Int, clients: int) -> F64:
        """(m, C, C), counts by true and predicted class; with AUC, one row for each client."""
        classes = outputs.shape[1]
        cells = (owners * classes + targets) * classes + outputs.argmax(axis=1)
        shape = (clients, classes, classes)
        counts = np.bincount(cells, minlength=prod(shape)).reshape(shape).astype(np.float64)
        if self.headline != "auc":
            return counts
        if classes == 2:
            logits, truth = outputs[:, 1:] - outputs[:, :1], (targets == 1)[:, None]
        else:  # log p / (1 − p), each class against all others
            others = np.stack([np.delete(outputs, c, axis=1) for c in range(classes)], axis=1)
            logits, truth = outputs - _log_sum(others), targets[:, None] == np.arange(classes)
        found = ranking.histograms(logits, truth.astype(np.float64), owners, clients)
        return np.concatenate([counts.reshape(clients, -1), found.reshape(clients, -1)], axis=1)

    def mixed(self, outputs: F64, mixture: F64) -> F64:
        """(n, C), the logarithms of the mixed probabilities.

        >>> logits = np.log([[[0.5, 0.5]], [[0.1, 0.9]]])
        >>> np.exp(Classification().mixed(logits, np.array([[0.75], [0.25]]))).round(3).tolist()
        [[0.4, 0.6]]
        """
        shares = outputs - _log_sum(outputs)[..., None]
        with np.errstate(divide="ignore"):
            return _log_sum(np.moveaxis(shares + np.log(mixture)[..., None], 0, -1))

    @property
    def lower(self) -> frozenset[str]:
        """The scores that measure errors of probabilities."""
        return frozenset({"brier", "ece"}) if self.headline == "auc" else frozenset()

    def complaint(self, tally: F64, most: int) -> str:
        """What is wrong with a tally that a client has sent; empty if nothing is wrong."""
        counts, found = self._parts(tally[None])
        problem = forms.wrong_counts(counts, most)
        if problem or found is None:
            return problem
        return ranking.wrong_histograms(found[0], most)

    def predictions(self, outputs: F64) -> Int:
        """(n,), the class with the largest output."""
        best: Int = outputs.argmax(axis=1).astype(np.int64)
        return best

    def probabilities(self, outputs: F64) -> F64:
        """(n, C), the softmax of the outputs."""
        shares: F64 = np.exp(outputs - _log_sum(outputs)[:, None])
        return shares

    def scores(self, tallies: F64) -> dict[str, Any]:
        """`accuracy` (m,) and `macro_f1` (m,), and others if the headline needs them.

        NaN for a client without a tally.
        """
        from wecfl import metrics  # noqa: PLC0415  (loads scikit-learn, which clients do not need)

        parts, found = self._parts(tallies)
        counts = parts.astype(np.int64)
        usual = {"accuracy": metrics.accuracy(counts), "macro_f1": metrics.macro_f1(counts)}
        if self.headline in ("auto", "accuracy"):
            return usual
        usual = {"balanced_accuracy": metrics.balanced_accuracy(counts)} | usual
        return usual if found is None else ranking.probability_scores(found) | usual

    def _parts(self, tallies: F64) -> tuple[F64, F64 | None]:
        """(m, C, C) and, if there are some, the histograms (m, c, 4, bins)."""
        if self.headline != "auc":
            return tallies, None
        m, classes = len(tallies), self.classes
        counts, found = np.split(tallies, [classes**2], axis=1)
        shape = (m, _questions(classes), 4, ranking.BIN_COUNT)
        return counts.reshape(m, classes, classes), found.reshape(shape)


def check_loss(smoothing: float, gamma: float) -> None:
    """Refuse a smoothing or a γ with which there is no loss."""
    if not 0 <= smoothing < 1:
        raise ConfigError(f"smoothing must lie in [0, 1), got {smoothing}")
    check_not_negative(gamma=gamma)


def class_weights(federation: Federation) -> tuple[float, ...]:
    """N / (C·n_c) for each class c, so that all classes count alike; 1 for a class without samples.

    >>> xs, ys = [np.zeros((10, 1))], [np.arange(10) // 8]
    >>> class_weights(Federation.from_arrays(xs, ys, test=(xs, ys)))
    (0.625, 2.5)
    """
    held = np.bincount(federation.y[np.concatenate(federation.train)], minlength=federation.classes)
    weights = held.sum() / (np.count_nonzero(held) * np.maximum(held, 1))
    return tuple(np.where(held > 0, weights, 1.0).tolist())


def _questions(classes: int) -> int:
    """The number of histograms; with two classes one is enough, since they are opposites."""
    return 1 if classes == 2 else classes


def _log_sum(logits: F64) -> F64:
    """Log Σ exp over the last axis."""
    top = logits.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        total: F64 = np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]
    return total
