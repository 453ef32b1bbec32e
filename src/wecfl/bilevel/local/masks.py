"""Pruned models: LotteryFL and Hermes. A client keeps and sends only a part of the columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from wecfl.bilevel.local.training import MODEL_REPLY, PERSONAL_FIELD, kept, momentum_field
from wecfl.bilevel.threads import one_thread
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Field, ReplyAndMemory, Sent, Site
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int, Int8, Table
from wecfl.errors import ConfigError, ModelError
from wecfl.layout import Entry, Layout

__all__ = ["HolderMean", "PrunedSteps", "known_masks", "learn_masks"]


def known_masks(state: State, setting: Setting) -> Table:
    """(m, P), 1 in the columns that each client still has, as far as the server knows."""
    if (task := setting.engine.task).name != "classification":
        raise ConfigError(
            f"clients prune a model when its accuracy is high, and the task {task.name} has no "
            f"accuracy: choose another method, such as ditto"
        )
    everything = np.ones((len(state.labels), state.centers.shape[1]), np.int8)
    return {"mask": state.known.get("mask", everything)}


def learn_masks(before: State, after: State, sent: Table, setting: Setting) -> State:
    """The state in which the server knows the masks of the clients that it has heard."""
    replied = (after.replies or {})["mask"]
    mask = np.where(after.heard[:, None], replied, sent["mask"])
    return after.replace(known={**after.known, "mask": mask})


@dataclass(frozen=True, slots=True)
class PrunedSteps:
    """Train the columns that the client still has, and prune some when the model is accurate.

    A client tests its model on validation samples, on which it does not train. If the accuracy is
    greater than `above`, and less than the share `target` of the weights is pruned, it prunes the
    share `rate` of those that are left, at least one. LotteryFL (Li et al., 2020) does so with the
    model received, before the client trains: it prunes the smallest weights, and the others start
    again from the values that the client first received. With `channels`, a client prunes after it
    has trained: the smallest channels of each layer but the last one (Hermes: Li et al., MobiCom
    2021).

    >>> list(PrunedSteps().keeps(LocalPlan(momentum=0.0)))
    ['pruned', 'initial']
    """

    above: float = 0.5
    rate: float = 0.2
    target: float = 0.5
    channels: bool = False
    name: ClassVar[str] = "pruned-steps"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {**MODEL_REPLY, "mask": Field(("P",), "int8")}

    def __post_init__(self) -> None:
        if not 0 <= self.above < 1:
            raise ConfigError(f"prune_above must lie in [0, 1), got {self.above}")
        for name in ("rate", "target"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(f"prune_{name} must lie in (0, 1), got {getattr(self, name)}")

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """Which columns are pruned, the values to start again from, and the momentum buffer."""
        initial = {} if self.channels else {"initial": PERSONAL_FIELD}
        return {"pruned": Field(("P",), "int8"), **initial, **momentum_field(plan)}

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error if there is nothing to prune, or if the plan shortens gradients."""
        if not self._weights(layout):
            raise ModelError(
                "channels are pruned in all layers but the last one, and this model has only one: "
                "choose a model with more layers"
            )
        if plan.max_gradient is not None:
            raise ConfigError(
                "max_gradient limits the norm of a whole gradient, in which pruned columns would "
                "count: leave out max_gradient"
            )

    def _weights(self, layout: Layout) -> list[Entry]:
        """The tensors that are pruned."""
        trained = [entry for entry in layout.entries if entry.stop <= layout.trainable]
        weights = [entry for entry in trained if len(entry.shape) > 1]
        return [e for e in weights if not (self.channels and "classifier" in e.tags)]

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train what is left, step by step; before that (with `channels`: after), prune if due."""
        rows, velocity = sent.own["model"], memory.get("momentum")
        velocity = None if velocity is None else velocity.copy()
        pruned = np.array(memory["pruned"], np.bool_)
        if "mask" in sent.own:  # columns outside of the mask were not sent
            pruned |= sent.own["mask"] == 0
        rows[pruned] = 0
        if not self.channels:
            due = self._prune_if_due(site, rows, pruned)
            rows[due] = np.where(pruned[due], 0, memory["initial"][due])
            if velocity is not None:
                velocity[due] = 0
        apart = replace(plan, leave_validation=True)
        for number in range(int(plan.steps_of(site.sizes).max())):
            part = slice(number, number + 1)
            rows, velocity = site.train(rows, apart, velocity=velocity, part=part, out=rows)
            rows[pruned] = 0
        if self.channels:
            self._prune_if_due(site, rows, pruned)
            rows[pruned] = 0
        gone: Int8 = pruned.astype(np.int8)
        after = kept(memory, pruned=gone, initial=memory.get("initial"), momentum=velocity)
        return {"model": rows, "mask": 1 - gone}, after

    def _prune_if_due(self, site: Site, rows: F32, pruned: Bool) -> Int:
        """The clients that prune now; the columns that they prune are marked in `pruned`."""
        tally = site.tally(rows, "validation")
        right, all_ = np.einsum("icc->i", tally), tally.sum(axis=(1, 2))
        of = [pruned[:, entry.start : entry.stop] for entry in self._weights(site.layout)]
        share = np.concatenate(of, axis=1).mean(axis=1)
        due = np.flatnonzero((right > self.above * all_) & (share < self.target))
        for i in due.tolist():
            self._prune(rows[i], pruned[i], site.layout)
        return due

    def _count(self, left: int) -> int:
        """How many of the remaining ones are pruned: at least one, but never the last one."""
        return min(max(int(self.rate * left), 1), left - 1)

    def _prune(self, row: F32, pruned: Bool, layout: Layout) -> None:
        """Mark further columns of one client as pruned."""
        weights = self._weights(layout)
        if not self.channels:
            columns = np.concatenate([np.arange(entry.start, entry.stop) for entry in weights])
            left = columns[~pruned[columns]]
            order = np.argsort(np.abs(row[left]), kind="stable")
            pruned[left[order[: self._count(len(left))]]] = True
            return
        for entry in weights:
            gone = pruned[entry.start : entry.stop].reshape(entry.shape[0], -1)
            values = row[entry.start : entry.stop].reshape(entry.shape[0], -1)
            left = np.flatnonzero(~gone.all(axis=1))
            order = np.argsort(np.linalg.norm(values[left], axis=1), kind="stable")
            chosen = left[order[: self._count(len(left))]]
            gone[chosen] = True
            bias = entry.name.rpartition(".")[0] + ".bias"
            for other in layout.entries:
                if other.name.lstrip(".") == bias.lstrip(".") and other.shape == entry.shape[:1]:
                    pruned[other.start + chosen] = True


@dataclass(frozen=True, slots=True)
class HolderMean:
    """Each column is the λ-mean over the clients that still have it: Σ λ_i m_i ω_i / Σ λ_i m_i.

    A column stays as it is if no client of the cluster still has it, or none that has it was heard.

    >>> replies = {"model": np.array([[1.0, 0], [3.0, 4.0]], np.float32),
    ...            "mask": np.array([[True, False], [True, True]])}
    >>> state = State(1, replies, np.zeros((1, 2), np.float32), labels=np.array([0, 0]))
    >>> HolderMean()(state, np.ones(2), np.ones(2, int)).centers.tolist()
    [[2.0, 4.0]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers."""
        centers = state.centers.copy()
        if state.replies and "mask" in state.replies:
            for k in np.unique(state.labels).tolist():
                members = state.labels == k
                mask, weight = state.replies["mask"][members] > 0, importance[members]
                with one_thread():
                    total = weight @ mask
                    sums = weight @ np.where(mask, state.models[members], 0)
                held = total > 0
                centers[k, held] = (sums[held] / total[held]).astype(np.float32)
        return state.replace(centers=centers)
