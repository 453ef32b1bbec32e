"""A task with a loss or metrics of your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from wecfl.core.task import Task
from wecfl.core.types import F64, Int
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.tasks import targets as forms

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Custom", "Loss", "Metric"]

Loss = Callable[[Any, Any], Any]
"""A function of the outputs (n, d) and the targets of n samples, as torch tensors; it returns n
losses."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A score of your own: a function of the outputs (n, d) and the targets of a client's samples.

    Both are NumPy arrays. The client sends only the number that the function returns, and n. The
    score of a cluster is the mean over its clients, weighted by n.
    """

    name: str
    function: Callable[[Any, Any], float]
    better: Literal["higher", "lower"] = "higher"

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigError(f"the name of a metric must be one word, got {self.name!r}")
        if self.better not in ("higher", "lower"):
            raise ConfigError(f"better must be 'higher' or 'lower', got {self.better!r}")


@dataclass(frozen=True, slots=True)
class Custom:
    """Another task with your own `loss`, with `metrics` before its scores, or with both.

    The task `of` defines the form of the targets and the number of outputs of a model. Your loss is
    computed by torch; without one, the loss is that of `of`, on any engine. Code is never sent over
    a network: there the task must be registered under a name at both ends (`wecfl.tasks.register`).

    >>> from wecfl.tasks import Regression
    >>> def within_one(outputs, targets): return np.mean(abs(outputs - targets) < 1)
    >>> task = Custom(Regression(outputs=1), metrics=(Metric("within_one", within_one),))
    >>> tally = task.tally(np.array([[0.5], [4.0]]), np.zeros((2, 1)), np.zeros(2, int), clients=1)
    >>> {name: score.round(2).tolist() for name, score in task.scores(tally).items()}
    {'within_one': [0.5], 'rmse': [2.85], 'r2': [nan], 'mae': [2.25]}
    """

    of: Task
    loss: Loss | None = None
    metrics: tuple[Metric, ...] = ()
    label: str = ""
    """The name under which it was registered."""

    name: ClassVar[str] = "custom"

    def __post_init__(self) -> None:
        if self.loss is None and not self.metrics:
            raise ConfigError("a custom task needs a loss or metrics: give at least one of them")
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"the names of metrics must differ, got {', '.join(names)}: rename one"
            )

    @property
    def kernel(self) -> Mapping[str, Any] | None:
        """The description of the other task's loss; None if the loss is your own."""
        return self.of.kernel if self.loss is None else None

    @property
    def outputs(self) -> int:
        """The number of outputs of the other task."""
        return self.of.outputs

    def fit(self, federation: Federation) -> tuple[Custom, Federation]:
        """Fit the other task."""
        of, held = self.of.fit(federation)
        return replace(self, of=of), held

    def shape(self, outputs: int) -> tuple[int, ...]:
        """One row: the tally of the other task, and n·value and n for each metric."""
        return (prod(self.of.shape(outputs)) + 2 * len(self.metrics),)

    def losses(self, outputs: F64, targets: Any) -> F64:
        """(n,), by torch in double precision if the loss is your own."""
        if self.loss is None:
            return self.of.losses(outputs, targets)
        from torch import from_numpy, no_grad  # noqa: PLC0415

        with no_grad():
            found: F64 = self._own_losses(from_numpy(outputs), from_numpy(targets)).double().numpy()
        return found

    def _own_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        assert self.loss is not None
        losses: Tensor = self.loss(outputs, targets)
        if getattr(losses, "shape", None) != (len(outputs),):
            raise ConfigError(
                f"a loss must return one number per sample, ({len(outputs)},), got "
                f"{tuple(getattr(losses, 'shape', ())) or losses!r}"
            )
        return losses

    def objective(
        self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum"] = "mean"
    ) -> Any:
        """The mean or sum of the losses as a torch tensor, which can be differentiated."""
        if self.loss is None:
            return self.of.objective(outputs, targets, reduction)
        losses = self._own_losses(outputs, targets)
        return losses.sum() if reduction == "sum" else losses.mean()

    def mixed(self, outputs: F64, mixture: F64) -> F64:
        """(n, C), as the other task mixes them."""
        return self.of.mixed(outputs, mixture)

    def tally(self, outputs: F64, targets: Any, owners: Int, clients: int) -> F64:
        """(m, …), one row for each client."""
        tallies = self.of.tally(outputs, targets, owners, clients).reshape(clients, -1)
        own = np.zeros((clients, 2 * len(self.metrics)))
        for client in np.unique(owners):
            mine = owners == client
            for j, metric in enumerate(self.metrics):
                value = float(metric.function(outputs[mine], targets[mine]))
                if np.isfinite(value):  # a metric that is undefined for this client has no weight
                    own[client, 2 * j : 2 * j + 2] = value * mine.sum(), mine.sum()
        return np.concatenate([tallies, own], axis=1)

    @property
    def lower(self) -> frozenset[str]:
        """The names of the other task, and of your own metrics for which lower is better."""
        own = {metric.name for metric in self.metrics if metric.better == "lower"}
        return (self.of.lower - {metric.name for metric in self.metrics}) | own

    def complaint(self, tally: F64, most: int) -> str:
        """What is wrong with a tally that a client has sent; empty if nothing is wrong."""
        first, own = self._parts(tally[None])
        return self.of.complaint(first[0], most) or forms.wrong_counts(own[0, :, 1].max(
            initial=0, keepdims=True
        ), most)  # fmt: skip

    def predictions(self, outputs: F64) -> Any:
        """The predictions of the other task."""
        return self.of.predictions(outputs)

    def probabilities(self, outputs: F64) -> F64 | None:
        """The probabilities of the other task."""
        return self.of.probabilities(outputs)

    def scores(self, tallies: F64) -> dict[str, F64]:
        """Your metrics (m,), and the scores of the other task."""
        first, own = self._parts(tallies)
        count = own[:, :, 1]
        values = np.divide(own[:, :, 0], count, out=np.full(count.shape, np.nan), where=count > 0)
        mine = {metric.name: values[:, j] for j, metric in enumerate(self.metrics)}
        others = self.of.scores(first)
        return mine | {name: score for name, score in others.items() if name not in mine}

    def _parts(self, tallies: F64) -> tuple[F64, F64]:
        """The tallies of the other task, and (m, metrics, 2)."""
        shape = self.of.shape(self.outputs)
        first, own = np.split(tallies, [prod(shape)], axis=1)
        return first.reshape(len(tallies), *shape), own.reshape(len(tallies), len(self.metrics), 2)
