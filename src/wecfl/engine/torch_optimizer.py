"""The steps of the torch engine: the optimizers of `torch.optim`, on flat rows of parameters."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from wecfl.core.plan import LocalPlan
from wecfl.layout import Layout

__all__ = ["Descent"]

CLIP_EPS = 1e-6
"""The number that torch adds to the norm when it clips a gradient."""


@final
class Descent:
    """Takes the steps of one or several clients in a round; the last axis is that of the columns.

    `buffer` holds what the optimizer keeps from step to step (`LocalPlan.buffer`), and is changed
    in place. Columns that are not `free` keep their parameters and moments; None: all are free.
    For several clients, the rates `lr` are a column of numbers.
    """

    def __init__(
        self, plan: LocalPlan, layout: Layout, lr: float | Tensor, buffer: Tensor,
        free: Tensor | None,
    ) -> None:  # fmt: skip
        self._plan, self._lr = plan, lr
        n = layout.trainable
        self._first, self._second = buffer[..., :n], buffer[..., n : 2 * n]
        self._still = None if free is None else ~free
        if plan.adaptive:
            stops = layout.trained_stops
            lengths = torch.diff(torch.tensor([0, *stops]))
            self._lengths = lengths.to(buffer.device)
            self._counts = buffer[..., 2 * n : 2 * n + len(stops)]
            moving = torch.ones(len(stops))
            if free is not None:
                parts = torch.split(free.cpu(), lengths.tolist())
                moving = torch.tensor([float(part.any()) for part in parts])
            self._moving = moving.to(buffer.device)
            # MPS has no float64.
            self._exact = torch.float32 if buffer.device.type == "mps" else torch.float64

    def prepare(self, w: Tensor, g: Tensor) -> None:
        """Clip the gradient of the loss, and add the weight decay."""
        plan = self._plan
        if plan.max_gradient:
            if self._still is not None:
                g[..., self._still] = 0
            norm = g.norm(dim=-1, keepdim=True)
            g.mul_((plan.max_gradient / (norm + CLIP_EPS)).clamp(max=1.0))
        if plan.weight_decay and plan.optimizer != "adamw":
            g.add_(w, alpha=plan.weight_decay)

    def step(self, w: Tensor, g: Tensor) -> None:
        """Change the parameters along the gradient, which may be overwritten."""
        still, v = self._still, self._first
        if still is not None:
            kept = [part for part in (w, v, self._second) if part.shape == w.shape]
            before = [part[..., still] for part in kept]
        if self._plan.adaptive:
            self._adaptive(w, g)
        elif self._plan.optimizer == "nesterov":
            v.mul_(self._plan.momentum).add_(g)
            self._descend(w, g.add_(v, alpha=self._plan.momentum))
        else:
            momentum = self._plan.momentum
            self._descend(w, v.mul_(momentum).add_(g) if momentum else g)
        if still is not None:
            for part, values in zip(kept, before, strict=True):
                part[..., still] = values

    def _descend(self, w: Tensor, along: Tensor) -> None:
        if isinstance(self._lr, float):
            w.add_(along, alpha=-self._lr)
        else:
            w.sub_(self._lr * along)

    def _adaptive(self, w: Tensor, g: Tensor) -> None:
        """W ← w − η·m̂ / (√v̂ + ε), with moments m and v corrected for their start at 0."""
        plan, first, second = self._plan, self._first, self._second
        if plan.optimizer == "adamw":
            w.mul_(1 - self._lr * plan.weight_decay)
        self._counts.add_(self._moving)
        counts = torch.repeat_interleave(self._counts.to(self._exact), self._lengths, dim=-1)
        first.lerp_(g, 1 - plan.momentum)
        second.mul_(plan.adam_beta2).addcmul_(g, g, value=1 - plan.adam_beta2)
        length = (self._lr / (1 - plan.momentum**counts)).float()
        scale = (1 / (1 - plan.adam_beta2**counts)).sqrt().float()
        w.sub_(length * first / (second.sqrt().mul_(scale).add_(plan.adam_eps)))
