"""The plan of a local update, and the correction of its gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from wecfl import rng
from wecfl.core.types import F32, Int
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_not_negative, check_positive, check_whole

__all__ = ["Correction", "FeatureTerm", "LocalPlan", "OptimizerName", "validation_part"]

OptimizerName = Literal["sgd", "nesterov", "adam", "adamw"]
"""How a step follows from a gradient."""

VALIDATION_SHARE = 0.2
"""The share of a client's training samples that are its validation samples."""
MAX_VALIDATION_SAMPLES = 10
"""The largest number of validation samples of a client; many clients need few samples each."""
MAX_REMEMBERED_PARTS = 10_000
"""The number of clients whose validation samples are remembered, so as not to draw them again."""


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """How clients train in one round: Q steps on mini-batches, with every value known.

    A user chooses a `wecfl.Plan`, from which `wecfl.Plan.complete` makes this.

    Client i goes through its shuffled data from round to round, and shuffles again after each pass.
    So the batches of round t depend on (seed, t, i) alone.
    """

    steps: int = 10
    """Q, the number of mini-batches in a round."""
    batch: int = 32
    """The number of samples in a mini-batch."""
    lr: float | F32 = 0.001
    """η, the learning rate: one for all clients, or one for each (n,)."""
    momentum: float = 0.9
    """The factor of the momentum buffer in a step; β1 of Adam."""
    keep_momentum: bool = True
    """Whether the optimizer's buffer is kept after the round, as in the paper's experiment."""
    weight_decay: float = 0.0
    """This number times the parameters is added to the gradient; AdamW shrinks the parameters
    instead."""
    optimizer: OptimizerName = "sgd"
    """How a step follows from a gradient, with the formulas of `torch.optim`."""
    adam_beta2: float = 0.999
    """β2 of Adam and AdamW."""
    adam_eps: float = 1e-8
    """ε of Adam and AdamW."""
    max_gradient: float | None = None
    """The largest norm of a mini-batch gradient of the loss; longer ones are shortened to it."""
    epochs: int | None = None
    """The number of passes over its data that a client makes in a round, in place of `steps`."""
    done: Int | None = None
    """(n,), the number of steps that each client completes; None: all steps."""
    leave_validation: bool = False
    """Whether clients leave their validation samples out of the mini-batches."""

    def __post_init__(self) -> None:
        counts = {"steps": self.steps, "batch": self.batch, "epochs": self.epochs}
        check_whole(**{name: (count, 1) for name, count in counts.items() if count is not None})
        if not np.all(np.isfinite(self.lr)) or np.any(np.asarray(self.lr) < 0):
            raise ConfigError(f"lr must be finite and not negative, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum must lie in [0, 1), got {self.momentum}")
        if not isinstance(self.keep_momentum, bool | np.bool_):
            raise ConfigError(f"keep_momentum must be True or False, got {self.keep_momentum!r}")
        check_not_negative(weight_decay=self.weight_decay)
        if self.optimizer not in (known := get_args(OptimizerName)):
            raise ConfigError(f"optimizer must be one of {', '.join(known)}, got {self.optimizer}")
        if self.optimizer == "nesterov" and not self.momentum:
            raise ConfigError(
                "optimizer nesterov needs momentum: set momentum above 0, or optimizer to sgd"
            )
        if not 0 <= self.adam_beta2 < 1:
            raise ConfigError(f"adam_beta2 must lie in [0, 1), got {self.adam_beta2}")
        check_positive(adam_eps=self.adam_eps)
        if self.max_gradient is not None:
            check_positive(max_gradient=self.max_gradient)

    @property
    def adaptive(self) -> bool:
        """Whether the optimizer also keeps second moments."""
        return self.optimizer in ("adam", "adamw")

    @property
    def buffered(self) -> bool:
        """Whether the optimizer keeps something from step to step."""
        return self.adaptive or self.momentum > 0

    def buffer(self, layout: Layout) -> int:
        """The number of numbers that the optimizer keeps from step to step.

        With momentum there is one for each trainable column. Adam keeps first moments, then second
        moments, and then the number of steps that each tensor has taken.

        >>> layout = Layout.of([("w", (2, 3), []), ("b", (2,), [])])
        >>> LocalPlan(momentum=0).buffer(layout), LocalPlan().buffer(layout)
        (0, 8)
        >>> LocalPlan(optimizer="adam").buffer(layout)
        18
        """
        if self.adaptive:
            return 2 * layout.trainable + len(layout.trained_stops)
        return layout.trainable if self.buffered else 0

    def plain(self, lr: float) -> LocalPlan:
        """The same plan with steps w ← w − lr·∇L.

        >>> LocalPlan(optimizer="adam").plain(0.5).not_plain()
        ''
        """
        return replace(self, lr=lr, optimizer="sgd", momentum=0.0)

    def not_plain(self, *allowed: str) -> str:
        """What makes a step differ from w ← w − η·∇L, in words; empty if nothing does.

        >>> LocalPlan(optimizer="adam").not_plain(), LocalPlan(momentum=0).not_plain()
        ('optimizer adam', '')
        """
        if self.optimizer != "sgd":
            return f"optimizer {self.optimizer}"
        for name in ("momentum", "weight_decay", "max_gradient"):
            if name not in allowed and getattr(self, name):
                return f"{name} {getattr(self, name):g}"
        return ""

    def of(self, who: Int | slice) -> LocalPlan:
        """The plan of some of the clients."""
        lr = self.lr[who] if isinstance(self.lr, np.ndarray) else self.lr
        return replace(self, lr=lr, done=None if self.done is None else self.done[who])

    def steps_of(self, sizes: Int) -> Int:
        """(n,), the numbers of steps of clients with these numbers of samples.

        >>> LocalPlan(batch=32, epochs=2).steps_of(np.array([10, 64, 65]))
        array([2, 4, 6])
        """
        if self.epochs is None:
            return np.full(np.shape(sizes), self.steps)
        return self.epochs * -(-sizes // self.batch)

    def batches(self, size: int, seed: int, round: int, client: int) -> list[Int]:
        """The positions of the samples in the mini-batches that a client uses after `round` rounds.

        The client has `size` samples.

        >>> [b.tolist() for b in LocalPlan(steps=4, batch=2).batches(3, seed=0, round=0, client=0)]
        [[2, 1], [0], [2, 0], [1]]
        """
        own = np.arange(size)
        if self.leave_validation:
            own, _ = validation_part(size, seed, client)
            size = len(own)
        per_pass, steps = -(-size // self.batch), int(self.steps_of(np.array(size)))
        chosen: list[Int] = []
        for step in range(round * steps, (round + 1) * steps):
            number, position = divmod(step, per_pass)
            if position == 0 or not chosen:
                shuffled = own[rng.stream(seed, "shuffle", number, client).permutation(size)]
            chosen.append(shuffled[position * self.batch : (position + 1) * self.batch])
        return chosen


@lru_cache(maxsize=MAX_REMEMBERED_PARTS)
def validation_part(size: int, seed: int, client: int) -> tuple[Int, Int]:
    """The positions of the samples that a client trains on, and of its validation samples.

    The validation samples are a fifth of the training samples, at most 10, drawn for (seed,
    client). If a client has a single sample, it is in both parts.

    >>> [part.tolist() for part in validation_part(6, seed=0, client=0)]
    [[0, 2, 3, 4, 5], [1]]
    """
    if size == 1:
        return np.zeros(1, np.int64), np.zeros(1, np.int64)
    count = min(max(round(VALIDATION_SHARE * size), 1), MAX_VALIDATION_SAMPLES)
    order = rng.stream(seed, "validation", 0, client).permutation(size)
    return np.sort(order[count:]), np.sort(order[:count])


@dataclass(frozen=True, slots=True, eq=False)
class Correction:
    """The affine correction of a local gradient: g + mu·(w − anchor) + offset.

    FedProx and Ditto pull towards an anchor, and SCAFFOLD adds an offset. Every engine can do both.
    `mu` is one number, or one for each trainable column. `anchor` and `offset` are (n, P) or None.
    Without an anchor, the models that clients start from take its place.

    >>> Correction(mu=0.95)                                     # FedProx
    Correction(mu=0.95, anchor=None, offset=None)
    """

    mu: float | F32 = 0.0
    anchor: F32 | None = None
    offset: F32 | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FeatureTerm:
    """A term of the loss on features: the mean over a mini-batch of factor_s · l(z_s, point_s).

    The features z_s of a sample are the inputs of the model's last linear layer. l is ``squared``,
    ‖z − point‖²; or ``contrast``, log(1 + exp(⟨z/‖z‖, point⟩)). Only engines that offer features
    can compute it.

    >>> FeatureTerm("squared", np.zeros((3, 2), np.float32), np.ones(3, np.float32)).kind
    'squared'
    """

    kind: Literal["squared", "contrast"]
    points: F32
    """(N, D), one for each training sample, in the order of `Site.samples`."""
    factors: F32
    """(N,)."""
