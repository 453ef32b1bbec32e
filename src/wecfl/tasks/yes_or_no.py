"""Yes or no: one logit for a binary label, or one for each of several labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from wecfl.core.types import F32, F64, Int
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.tasks import ranking
from wecfl.tasks import targets as forms
from wecfl.tasks.classification import ClassHeadline, check_loss

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Binary", "MultiLabel"]


class _YesOrNo:
    """What the two tasks share: each of c logits is a probability, and is judged by itself."""

    __slots__ = ()

    @property
    def kernel(self) -> None:
        """None: the native engine has no such loss."""

    def mixed(self, outputs: F64, mixture: F64) -> F64:
        """(n, c), log p / (1 − p) of mixed probabilities: log Σ π σ(z) − log Σ π σ(−z)."""
        with np.errstate(divide="ignore"):
            shares = np.log(mixture)[..., None]
        yes = np.logaddexp.reduce(shares - np.logaddexp(0, -outputs), axis=0)
        return np.asarray(yes - np.logaddexp.reduce(shares - np.logaddexp(0, outputs), axis=0))

    @property
    def lower(self) -> frozenset[str]:
        """The scores that measure errors of probabilities."""
        return frozenset({"brier", "ece"})

    def complaint(self, tally: F64, most: int) -> str:
        """What is wrong with a tally that a client has sent; empty if nothing is wrong."""
        return ranking.wrong_histograms(tally, most)


@dataclass(frozen=True, slots=True)
class Binary(_YesOrNo):
    """Every sample is a yes (1) or a no (0); a model gives one logit (a `wecfl.core.task.Task`).

    With p = 1 / (1 + exp(−output)), p_y = p for a yes and 1 − p for a no, and the smoothed target
    t = (1 − s)·y + s/2, the loss is (1 − p_y)^γ · [−w·t·log p − (1 − t)·log(1 − p)].

    >>> task = Binary()
    >>> outputs, targets = np.array([[2.0], [1.0]]), np.array([1, 0])
    >>> task.losses(outputs, targets).round(3).tolist()
    [0.127, 1.313]
    >>> tally = task.tally(outputs, targets, owners=np.array([0, 0]), clients=1)
    >>> {name: task.scores(tally)[name].tolist() for name in ("accuracy", "auc")}
    {'accuracy': [0.5], 'auc': [1.0]}
    """

    weight: float | Literal["balanced"] = 1.0
    """w, the weight of a yes; `balanced`: the number of noes for each yes in the training data."""
    smoothing: float = 0.0
    """s, the share of the target that is spread over both answers."""
    gamma: float = 0.0
    """γ of the focal loss."""
    ignore: int | None = None
    """A label that is neither yes nor no: samples with it are left out of training and scores."""
    headline: ClassHeadline = "auto"
    """The first score; `auto` follows the balance of the answers (`wecfl.tasks.choice`)."""

    name: ClassVar[str] = "binary"

    def __post_init__(self) -> None:
        check_loss(self.smoothing, self.gamma)
        _check_headline(self.headline)
        if self.weight != "balanced" and not 0 < self.weight < np.inf:
            raise ConfigError(
                f"weight must be 'balanced' or a positive number, got {self.weight!r}"
            )

    @property
    def outputs(self) -> int:
        """One logit."""
        return 1

    def fit(self, federation: Federation) -> tuple[Binary, Federation]:
        """Find the weight, check that labels are 0 or 1, and leave out samples to ignore."""
        held = forms.labels(federation, 2, self.ignore)
        if self.weight != "balanced":
            return self, held
        yes = held.y[np.concatenate(held.train)]
        return replace(self, weight=float((yes == 0).sum() / max(yes.sum(), 1))), held

    def shape(self, outputs: int) -> tuple[int, ...]:
        """(1, 4, bins), a histogram of the logits (`wecfl.tasks.ranking`)."""
        return 1, 4, ranking.BIN_COUNT

    def losses(self, outputs: F64, targets: Int) -> F64:
        """(n,), the weighted, smoothed and focused cross-entropy."""
        return _losses(outputs, targets[:, None], self._weight, self.smoothing, self.gamma)

    def objective(
        self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """The mean or sum of the losses as a torch tensor, which can be differentiated."""
        truth = targets[:, None].to(outputs.dtype)
        each = _torch_losses(outputs, truth, self._weight, self.smoothing, self.gamma)
        return each.sum() if reduction == "sum" else each.mean()

    @property
    def _weight(self) -> float:
        return 1.0 if self.weight == "balanced" else self.weight

    def tally(self, outputs: F64, targets: Int, owners: Int, clients: int) -> F64:
        """(m, 1, 4, bins), the histograms of each client."""
        return ranking.histograms(outputs, targets[:, None].astype(np.float64), owners, clients)

    def predictions(self, outputs: F64) -> Int:
        """(n,), 1 for a probability of at least ½, otherwise 0."""
        return _answers(outputs)[:, 0]

    def probabilities(self, outputs: F64) -> F64:
        """(n, 2), the probability of a no and of a yes."""
        yes = _sigmoid(outputs)
        return np.concatenate([1 - yes, yes], axis=1)

    def scores(self, tallies: F64) -> dict[str, Any]:
        """(m,) each: accuracy, macro-F1, balanced accuracy, and those of the probabilities."""
        return _ordered(tallies, "accuracy" if self.headline == "auto" else self.headline)


@dataclass(frozen=True, slots=True)
class MultiLabel(_YesOrNo):
    """Every sample has a yes or a no for each of C labels; a model gives C logits.

    Targets are (n, C) of 0 and 1. The loss of a sample is the mean over its labels of the loss of
    `Binary`. Scores are means over the labels for which they are defined.
    """

    classes: int = 0
    """C; 0: it follows from the targets."""
    weights: tuple[float, ...] | Literal["balanced"] | None = None
    """w, the weight of a yes, for each label; `balanced`: the numbers of noes for each yes in the
    training data."""
    smoothing: float = 0.0
    """s, the share of the target that is spread over both answers."""
    gamma: float = 0.0
    """γ of the focal loss."""
    headline: ClassHeadline = "auc"
    """The first score."""

    name: ClassVar[str] = "multi-label"

    def __post_init__(self) -> None:
        check_loss(self.smoothing, self.gamma)
        _check_headline(self.headline)
        if self.classes < 0:
            raise ConfigError(f"classes must not be negative, got {self.classes}")
        if isinstance(self.weights, tuple):
            if self.classes and len(self.weights) != self.classes:
                raise ConfigError(
                    f"weights must have one number for each of the {self.classes} labels, got "
                    f"{len(self.weights)}"
                )
            if not all(0 < weight < np.inf for weight in self.weights):
                raise ConfigError(f"weights must be positive and finite, got {self.weights}")
        elif self.weights not in (None, "balanced"):
            raise ConfigError(
                f"weights must be 'balanced' or a list of numbers, got {self.weights!r}"
            )

    @property
    def outputs(self) -> int:
        """C, one logit for each label."""
        return self.classes

    def fit(self, federation: Federation) -> tuple[MultiLabel, Federation]:
        """Find C and the weights, and make float32 targets (n, C) of 0 and 1."""
        held = forms.yes_or_no(federation, self.classes or None)
        weights = self.weights
        if weights == "balanced":
            yes = held.y[np.concatenate(held.train)]
            weights = tuple(((yes == 0).sum(axis=0) / np.maximum(yes.sum(axis=0), 1)).tolist())
        return replace(self, classes=held.classes, weights=weights), held

    def shape(self, outputs: int) -> tuple[int, ...]:
        """(C, 4, bins), a histogram of each logit (`wecfl.tasks.ranking`)."""
        return outputs, 4, ranking.BIN_COUNT

    def losses(self, outputs: F64, targets: F32) -> F64:
        """(n,), the mean over the labels of a sample."""
        return _losses(outputs, targets, self._weights, self.smoothing, self.gamma)

    def objective(
        self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """The mean or sum of the losses as a torch tensor, which can be differentiated."""
        truth = targets.to(outputs.dtype)
        each = _torch_losses(outputs, truth, self._weights, self.smoothing, self.gamma)
        return each.sum() / outputs.shape[1] if reduction == "sum" else each.mean()

    @property
    def _weights(self) -> tuple[float, ...] | float:
        return self.weights if isinstance(self.weights, tuple) else 1.0

    def tally(self, outputs: F64, targets: F32, owners: Int, clients: int) -> F64:
        """(m, C, 4, bins), the histograms of each client."""
        return ranking.histograms(outputs, targets.astype(np.float64), owners, clients)

    def predictions(self, outputs: F64) -> Int:
        """(n, C), 1 for a probability of at least ½, otherwise 0."""
        return _answers(outputs)

    def probabilities(self, outputs: F64) -> F64:
        """(n, C), the probability of a yes for each label."""
        return _sigmoid(outputs)

    def scores(self, tallies: F64) -> dict[str, Any]:
        """(m,) each: those of the probabilities, and accuracy, F1 and balanced accuracy."""
        return _ordered(tallies, "auc" if self.headline == "auto" else self.headline)


def _answers(outputs: F64) -> Int:
    answers: Int = (outputs >= 0).astype(np.int64)
    return answers


def _sigmoid(outputs: F64) -> F64:
    shares: F64 = np.exp(-np.logaddexp(0, -outputs))  # which does not overflow
    return shares


def _check_headline(headline: str) -> None:
    if headline not in get_args(ClassHeadline):
        known = ", ".join(get_args(ClassHeadline))
        raise ConfigError(f"headline must be one of {known}, got {headline!r}")


def _losses(outputs: F64, truth: Any, weight: Any, smoothing: float, gamma: float) -> F64:
    """(n,), the mean over c answers of −w·t·log p − (1 − t)·log(1 − p), focused."""
    soft = (1 - smoothing) * truth + smoothing / 2
    # −log p = softplus(−z) and −log(1 − p) = softplus(z), which don't overflow.
    no, yes = np.logaddexp(0, outputs), np.logaddexp(0, -outputs)
    each = np.asarray(weight) * soft * yes + (1 - soft) * no
    if gamma:
        right = np.where(truth == 1, yes, no)
        each = np.maximum(-np.expm1(-right), 0) ** gamma * each
    mean: F64 = each.mean(axis=1)
    return mean


def _torch_losses(
    outputs: Tensor, truth: Tensor, weight: Any, smoothing: float, gamma: float
) -> Tensor:
    """(n, c), the same as a torch tensor, before the mean over the answers."""
    from torch import finfo  # noqa: PLC0415
    from torch.nn.functional import binary_cross_entropy_with_logits  # noqa: PLC0415

    soft = (1 - smoothing) * truth + smoothing / 2
    each = binary_cross_entropy_with_logits(
        outputs, soft, pos_weight=outputs.new_tensor(weight), reduction="none"
    )
    if gamma:
        right = binary_cross_entropy_with_logits(outputs, truth, reduction="none")
        missed = -right.neg().expm1()
        # At 0 the power has no derivative for γ < 1.
        each = missed.clamp_min(finfo(missed.dtype).tiny) ** gamma * each
    return each


def _ordered(tallies: F64, headline: str) -> dict[str, Any]:
    """(m,) each, all scores of histograms (m, c, 4, bins), the headline first."""
    from wecfl import metrics  # noqa: PLC0415  (with scikit-learn, which clients do without)

    m, questions = tallies.shape[:2]
    counts = ranking.answers(tallies).astype(np.int64).reshape(m * questions, 2, 2)
    each = {
        "accuracy": metrics.accuracy(counts),
        "balanced_accuracy": metrics.balanced_accuracy(counts),
        "macro_f1": metrics.macro_f1(counts),
    }
    found = {name: values.reshape(m, questions).mean(axis=1) for name, values in each.items()}
    found = ranking.probability_scores(tallies) | found
    return {headline: found.pop(headline)} | found
