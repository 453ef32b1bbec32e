"""The steps of the torch engine: the optimizers of `torch.optim`, on one flat row of parameters."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from wecfl.core.plan import LocalPlan
from wecfl.core.types import F32
from wecfl.layout import Layout

__all__ = ["Descent"]

CLIP_EPS = 1e-6
"""What torch adds to the norm when it clips a gradient."""


@final
class Descent:
    """Takes the steps of one client in a round.

    `buffer` holds what the optimizer keeps from step to step (`LocalPlan.buffer`), and is changed
    in place. Columns that are not `free` keep their parameters and moments; None: all are free.
    """

    def __init__(
        self, plan: LocalPlan, layout: Layout, lr: float, buffer: F32, free: Tensor | None
    ) -> None:
        self._plan, self._lr = plan, lr
        n = layout.trainable
        held = torch.from_numpy(buffer)
        self._first, self._second = held[:n], held[n : 2 * n]
        self._still = None if free is None else ~free
        if plan.adaptive:
            stops = layout.trained_stops
            self._lengths = torch.diff(torch.tensor([0, *stops]))
            self._counts = held[2 * n : 2 * n + len(stops)]
            self._moving = torch.ones(len(stops))
            if free is not None:
                parts = torch.split(free, self._lengths.tolist())
                self._moving = torch.tensor([float(part.any()) for part in parts])

    def prepare(self, w: Tensor, g: Tensor) -> None:
        """Clip the gradient of the loss, and add the weight decay."""
        plan = self._plan
        if plan.max_gradient:
            if self._still is not None:
                g[self._still] = 0
            g.mul_((plan.max_gradient / (g.norm() + CLIP_EPS)).clamp(max=1.0))
        if plan.weight_decay and plan.optimizer != "adamw":
            g.add_(w, alpha=plan.weight_decay)

    def step(self, w: Tensor, g: Tensor) -> None:
        """Change the parameters along the gradient, which may be overwritten."""
        still, v = self._still, self._first
        if still is not None:
            before = w[still], v[still], self._second[still]
        if self._plan.adaptive:
            self._adaptive(w, g)
        elif self._plan.optimizer == "nesterov":
            v.mul_(self._plan.momentum).add_(g)
            w.add_(g.add_(v, alpha=self._plan.momentum), alpha=-self._lr)
        else:
            momentum = self._plan.momentum
            w.add_(v.mul_(momentum).add_(g) if momentum else g, alpha=-self._lr)
        if still is not None:
            w[still], v[still], self._second[still] = before

    def _adaptive(self, w: Tensor, g: Tensor) -> None:
        """W ← w − η·m̂ / (√v̂ + ε), with moments m and v that are corrected for their start at 0."""
        plan, first, second = self._plan, self._first, self._second
        if plan.optimizer == "adamw":
            w.mul_(1 - self._lr * plan.weight_decay)
        self._counts.add_(self._moving)
        counts = torch.repeat_interleave(self._counts.double(), self._lengths)
        first.lerp_(g, 1 - plan.momentum)
        second.mul_(plan.adam_beta2).addcmul_(g, g, value=1 - plan.adam_beta2)
        length = (self._lr / (1 - plan.momentum**counts)).float()
        scale = (1 / (1 - plan.adam_beta2**counts)).sqrt().float()
        w.sub_(length * first / (second.sqrt().mul_(scale).add_(plan.adam_eps)))
