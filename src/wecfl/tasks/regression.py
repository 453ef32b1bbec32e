"""Regression: a model gives one number, or several, for each sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np

from wecfl.core.types import F32, F64, Int
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.limits import check_positive
from wecfl.tasks import targets as forms

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Regression", "RegressionLoss"]

RegressionLoss = Literal["mse", "mae", "huber", "quantile"]
"""The losses of a regression."""

LARGEST_SUM = 1e100
"""No honest sum of squares of float32 numbers is nearly as large, and its own square is finite."""


@dataclass(frozen=True, slots=True)
class Regression:
    """Every sample has one number to predict, or d of them (a `wecfl.core.task.Task`).

    With e = output − target, the loss of a sample is the mean over its outputs of

    - `mse`: e²;
    - `mae`: |e|;
    - `huber`: e²/2 for |e| ≤ δ, else δ·(|e| − δ/2), with δ = `delta`;
    - `quantile`: max(−q·e, (1 − q)·e), with q = `quantile`, whose minimum is the q-quantile.

    Scores are `rmse`, `r2` and `mae`. For `quantile` the headline is `pinball`, which is the same
    loss, and `coverage` is the share of targets that are not above the output.

    >>> task = Regression()
    >>> outputs, targets = np.array([[1.0], [3.0]]), np.array([[0.0], [4.0]])
    >>> task.losses(outputs, targets).tolist()
    [1.0, 1.0]
    >>> tally = task.tally(outputs, targets, owners=np.array([0, 0]), clients=1)
    >>> {name: score.tolist() for name, score in task.scores(tally).items()}
    {'rmse': [1.0], 'r2': [0.75], 'mae': [1.0]}
    """

    loss: RegressionLoss = "mse"
    delta: float = 1.0
    """The |e| at which the Huber loss changes from a square to a line."""
    quantile: float = 0.5
    outputs: int = 0
    """d; 0: it follows from the targets."""

    name: ClassVar[str] = "regression"

    def __post_init__(self) -> None:
        if self.loss not in get_args(RegressionLoss):
            known = ", ".join(get_args(RegressionLoss))
            raise ConfigError(f"the loss of a regression must be one of {known}, got {self.loss!r}")
        check_positive(delta=self.delta)
        if not 0 < self.quantile < 1:
            raise ConfigError(f"quantile must lie in (0, 1), got {self.quantile}")
        if self.outputs < 0:
            raise ConfigError(f"outputs must not be negative, got {self.outputs}")

    @property
    def kernel(self) -> Mapping[str, Any] | None:
        """The loss, described for the native engine, which has only `mse`."""
        return {"loss": "squares"} if self.loss == "mse" else None

    def fit(self, federation: Federation) -> tuple[Regression, Federation]:
        """Find d, and make float32 targets (n, d)."""
        held = forms.numbers(federation, self.outputs or None)
        return replace(self, outputs=held.classes), held

    def shape(self, outputs: int) -> tuple[int, ...]:
        """(d, 5): n, Σe², Σ|e|, Σy, Σy² of each output; for quantiles also Σloss and Σ[y ≤ ŷ]."""
        return outputs, 7 if self.loss == "quantile" else 5

    def losses(self, outputs: F64, targets: F32) -> F64:
        """(n,), the mean over the outputs of a sample."""
        error = outputs - targets
        far = np.abs(error)
        if self.loss == "mse":
            of_outputs = error**2
        elif self.loss == "mae":
            of_outputs = far
        elif self.loss == "huber":
            line = self.delta * (far - self.delta / 2)
            of_outputs = np.where(far <= self.delta, error**2 / 2, line)
        else:
            of_outputs = self._pinball(error)
        mean: F64 = of_outputs.mean(axis=1)
        return mean

    def _pinball(self, error: F64) -> F64:
        return np.maximum(-self.quantile * error, (1 - self.quantile) * error)

    def objective(
        self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Tensor:
        """The mean or sum of the losses as a torch tensor, which can be differentiated."""
        from torch import maximum  # noqa: PLC0415
        from torch.nn import functional  # noqa: PLC0415

        targets = targets.to(outputs.dtype)
        if self.loss == "quantile":
            error = outputs - targets
            of_outputs = maximum(-self.quantile * error, (1 - self.quantile) * error)
            whole = of_outputs.sum() if reduction == "sum" else of_outputs.mean()
        else:
            options: dict[str, Any] = {"delta": self.delta} if self.loss == "huber" else {}
            named = {"mse": "mse_loss", "mae": "l1_loss", "huber": "huber_loss"}[self.loss]
            whole = getattr(functional, named)(outputs, targets, reduction=reduction, **options)
        return whole / outputs.shape[1] if reduction == "sum" else whole

    def mixed(self, outputs: F64, mixture: F64) -> F64:
        """(n, d), the mean of the models' predictions."""
        return np.asarray(np.einsum("jnc,jn->nc", outputs, mixture))

    def tally(self, outputs: F64, targets: F32, owners: Int, clients: int) -> F64:
        """(m, d, 5 or 7), sums over each client's samples."""
        y = targets.astype(np.float64)
        error = outputs - y
        parts = [np.ones_like(error), error**2, np.abs(error), y, y**2]
        if self.loss == "quantile":
            parts += [self._pinball(error), (y <= outputs).astype(np.float64)]
        sums = np.zeros((clients, *self.shape(outputs.shape[1])))
        np.add.at(sums, owners, np.stack(parts, axis=2))
        return sums

    @property
    def lower(self) -> frozenset[str]:
        """The scores that measure errors."""
        return frozenset({"rmse", "mae", "pinball"})

    def complaint(self, tally: F64, most: int) -> str:
        """What is wrong with a tally that a client has sent; empty if nothing is wrong."""
        count, squares, sizes, total, square_total = np.moveaxis(tally[..., :5], -1, 0)
        if (np.abs(tally) > LARGEST_SUM).any():
            return f"sums must stay below {LARGEST_SUM:g}"
        if problem := forms.wrong_counts(count[:1], most):
            return problem
        if (count != count[0]).any():
            return "the number of samples must be the same for all outputs"
        if (np.delete(tally, 3, axis=-1) < 0).any():
            return "sums of squares and sizes must not be negative"
        slack = 1 + 1e-9  # rounding; by Cauchy and Schwarz, (Σ|e|)² ≤ n·Σe² and (Σy)² ≤ n·Σy²
        if (sizes**2 > slack * count * squares).any():
            return "its errors contradict each other"
        if (total**2 > slack * count * square_total).any():
            return "its targets contradict each other"
        if self.loss == "quantile" and (
            (tally[:, 5] > slack * sizes).any() or (tally[:, 6] > count).any()
        ):
            return "its quantiles contradict its errors"
        return ""

    def predictions(self, outputs: F64) -> F64:
        """(n,), the outputs themselves; (n, d) if there are several."""
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def probabilities(self, outputs: F64) -> None:
        """None: a regression has no probabilities."""

    def scores(self, tallies: F64) -> dict[str, F64]:
        """The scores, (m,) each. R² is the mean over the outputs; NaN if a target does not vary."""
        count = tallies[:, 0, 0]

        def mean(column: int) -> F64:
            found: F64 = _over(tallies[:, :, column].mean(axis=1), count)
            return found

        squares, total, square_total = (tallies[:, :, column] for column in (1, 3, 4))
        spread = square_total - _over(total**2, count[:, None])
        # A smaller spread is only the rounding error of its terms.
        varies = spread > 1e-12 * square_total
        r2 = np.where(varies, 1 - _over(squares, np.where(varies, spread, 0)), np.nan)
        found = {"rmse": np.sqrt(mean(1)), "r2": r2.mean(axis=1), "mae": mean(2)}
        if self.loss == "quantile":
            found = {"pinball": mean(5), "coverage": mean(6)} | found
        return found


def _over(part: F64, whole: F64) -> F64:
    """Part / whole; NaN where the whole is 0."""
    whole = np.broadcast_to(whole, part.shape)
    share: F64 = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)
    return share
