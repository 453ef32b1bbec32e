"""Programs of meta-learning: they train a model that is good after a client has adapted it.

A client's objective is not L(ω) but L(ω − a·∇L(ω)), the loss after a plain gradient step of length
a on its own data. Its gradient is

    (I − a·∇²L(ω; C)) · ∇L(θ; B)   with   θ = ω − a·∇L(ω; A),

where A, B and C are different mini-batches. The first-order variant leaves the Hessian out. The
other variant approximates the product of the Hessian with a vector by a difference of two
gradients, so that no engine needs second derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from wecfl.bilevel.local.training import MODEL_REPLY, kept, momentum_field
from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Field, KeepsNothing, ReplyAndMemory, Sent, Site
from wecfl.core.types import F32, Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one, check_positive

__all__ = ["MetaGradient", "MetaSteps", "batch_gradients", "hessian_products"]

DIFFERENCE_STEP = 1e-3
"""δ in the difference (∇L(ω + δv) − ∇L(ω − δv)) / 2δ, which takes the place of ∇²L(ω)·v."""


@dataclass(frozen=True, slots=True)
class MetaSteps:
    """Steps towards a model that is good after one plain step of length `inner_lr` (Per-FedAvg).

    Each step takes two of the round's mini-batches in turn, A and B, or with `hessian` three, A,
    C and B (Fallah et al., *Personalized Federated Learning with Theoretical Guarantees*, NeurIPS
    2020). The outer steps are those of the plan's optimizer.

    >>> MetaSteps(0.05).batches, MetaSteps(0.05, hessian=True).batches
    (2, 3)
    """

    inner_lr: float = 0.01
    hessian: bool = False
    name: ClassVar[str] = "meta-steps"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_positive(inner_lr=self.inner_lr)

    @property
    def batches(self) -> int:
        """The number of mini-batches that a step takes."""
        return 3 if self.hessian else 2

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The momentum buffer of the outer steps."""
        return momentum_field(plan)

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error if a round has not even the mini-batches of one step."""
        if plan.epochs is None and plan.steps < self.batches:
            raise ConfigError(
                f"a step of Per-FedAvg takes {self.batches} mini-batches, but a round has only "
                f"{plan.steps}: raise steps to at least {self.batches}"
            )

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Take as many steps as the round has mini-batches for."""
        rows, velocity = sent.own["model"], memory.get("momentum")
        trainable, inner = site.layout.trainable, plan.plain(self.inner_lr)
        longest = int(plan.steps_of(site.sizes).max())
        for first in range(0, longest - self.batches + 1, self.batches):
            adapted, _ = site.train(rows, inner, part=slice(first, first + 1))
            # The batch of the outer step comes last: a client that stops before it takes no step.
            outer = slice(first + self.batches - 1, first + self.batches)
            offset = None
            if self.hessian:
                direction = batch_gradients(site, adapted, plan, outer)
                middle = slice(first + 1, first + 2)
                offset = -self.inner_lr * hessian_products(site, rows, direction, plan, middle)
            after, velocity = site.train(
                adapted, plan, correction=Correction(offset=offset), velocity=velocity, part=outer
            )
            moved = np.any(after != adapted, axis=1)
            rows[:, :trainable] += after[:, :trainable] - adapted[:, :trainable]
            rows[moved, trainable:] = after[moved, trainable:]  # BatchNorm's statistics
        return {"model": rows}, kept(memory, momentum=velocity)


@dataclass(frozen=True, slots=True)
class MetaGradient(KeepsNothing):
    """One gradient of the loss after `inner_steps` steps of adaptation (FedMeta, with MAML).

    The first mini-batches of a round, the support set, are for the inner steps, which have the
    plan's η. The others, the query set, are for the gradient g, and the client replies ω − g (Chen
    et al., *Federated Meta-Learning with Fast Convergence and Efficient Communication*, 2018). With
    `hessian`, g is (I − η·∇²L(ω_0)) ⋯ (I − η·∇²L(ω_s−1)) · ∇L(ω_s); otherwise it is ∇L(ω_s).

    >>> MetaGradient(inner_steps=2)
    MetaGradient(inner_steps=2, hessian=True)
    """

    inner_steps: int = 1
    hessian: bool = True
    name: ClassVar[str] = "meta-gradient"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = MODEL_REPLY

    def __post_init__(self) -> None:
        check_at_least_one(inner_steps=self.inner_steps)

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error if steps are not plain, or no mini-batch is left for the query set."""
        if other := plan.not_plain("weight_decay", "max_gradient"):
            raise ConfigError(
                f"FedMeta takes plain steps: set optimizer to sgd and momentum to 0, got {other}"
            )
        if plan.epochs is None and plan.steps <= self.inner_steps:
            raise ConfigError(
                f"the inner steps take {self.inner_steps} of the {plan.steps} mini-batches of a "
                f"round, and none is left for the gradient: raise steps, or lower inner_steps"
            )

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Adapt the model, and reply it moved by the gradient."""
        rows, trail = sent.own["model"], [sent.own["model"]]
        rate = np.broadcast_to(np.asarray(plan.lr, np.float32), len(rows))[:, None]
        for number in range(self.inner_steps):
            trail.append(site.train(trail[-1], plan, part=slice(number, number + 1))[0])
        steps = plan.steps_of(site.sizes) if plan.done is None else plan.done
        gradient = np.zeros_like(rows)
        for number in range(self.inner_steps, int(np.max(steps, initial=0))):
            gradient += batch_gradients(site, trail[-1], plan, slice(number, number + 1))
        gradient /= np.maximum(steps - self.inner_steps, 1).astype(np.float32)[:, None]
        for number in reversed(range(self.inner_steps if self.hessian else 0)):
            part = slice(number, number + 1)
            gradient -= rate * hessian_products(site, trail[number], gradient, plan, part)
        replied = rows - gradient
        replied[:, site.layout.trainable :] = trail[-1][:, site.layout.trainable :]
        return {"model": replied}, {}


def batch_gradients(site: Site, rows: F32, plan: LocalPlan, part: slice) -> F32:
    """(n, P), the gradients at these models on a part of the round's batches.

    They are the gradients of training, with BatchNorm and Dropout in training mode and with weight
    decay in the loss. In columns that are not trained they are 0. They are computed as the change
    by a plain step of length 1, so they are exact up to the last digits of a model.
    """
    stepped, _ = site.train(rows, replace(plan.plain(1.0), max_gradient=None), part=part)
    gradients = rows - stepped
    gradients[:, site.layout.trainable :] = 0
    return gradients


def hessian_products(site: Site, rows: F32, vectors: F32, plan: LocalPlan, part: slice) -> F32:
    """(n, P), ∇²L(ω)·v by the difference of two gradients on a part of the round's batches."""
    step = np.float32(DIFFERENCE_STEP) * vectors
    ahead = batch_gradients(site, rows + step, plan, part)
    behind = batch_gradients(site, rows - step, plan, part)
    return (ahead - behind) / np.float32(2 * DIFFERENCE_STEP)
