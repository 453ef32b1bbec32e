"""Several models for each client: mixtures (FedEM, FedRC, FedSoft), and added models (CAM).

In a mixture, client i belongs to cluster k with the weight π_ik. A client is sent all centers, as
`models` (K, P), and keeps its π_i. The server uses what it learns of π_i to label clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from wecfl.bilevel.aggregation.mean import Mean
from wecfl.bilevel.local.common_model import BesideCommonModel
from wecfl.bilevel.local.training import (
    MODEL_REPLY,
    MOMENTUM_FIELD,
    PERSONAL_FIELD,
    kept,
    momentum_field,
)
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.serving import shares_of
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Aggregation
from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Field, FitsAny, ReplyAndMemory, Sent, Site
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Int, Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one, check_not_negative

__all__ = [
    "AddedSteps",
    "AllModels",
    "MixtureSteps",
    "SoftMean",
    "SoftSteps",
    "WithCommon",
    "all_centers",
    "centers_and_priors",
    "common_model",
]

MIN_SHARE = 1e-4
"""The smallest share that a cluster has in a client of FedSoft."""


# ── mixtures ─────────────────────────────────────────────────────────────────────────────────────


def all_centers(state: State, setting: Setting) -> Table:
    """What is sent to all clients: the models of all clusters.

    >>> state = State(0, None, np.zeros((2, 3), np.float32), np.zeros(4, int))
    >>> all_centers(state, None)["models"].shape
    (2, 3)
    """
    return {"models": state.centers}


def centers_and_priors(state: State, setting: Setting) -> Table:
    """What FedRC sends to all clients: the centers and P(y | k), at first a uniform one."""
    task, k = setting.engine.task, len(state.centers)
    if task.name != "classification":
        raise ConfigError(
            f"fedrc divides by the frequencies of classes, and the task {task.name} has no "
            f"classes: choose fedem"
        )
    uniform = np.full((k, task.outputs), 1 / task.outputs, np.float32)
    return {"models": state.centers, "priors": state.cluster.get("priors", uniform)}


@dataclass(frozen=True, slots=True)
class MixtureSteps(FitsAny):
    """FedEM: gives each sample a weight in each of K models, and trains all models with them.

    In the E-step q_sk ∝ π_ik exp(−loss of model k on sample s), and π_ik is the mean of q_sk. In
    the M-step, model k takes Q steps on (1/batch)·Σ q_sk loss_s (Marfoq et al., NeurIPS 2021). With
    `priors`, q_sk is divided by P(y_s | k), so that clusters differ by concepts and not by labels
    (FedRC: Guo et al., ICML 2024). Then clients also reply Σ q_sk of each class.

    >>> list(MixtureSteps(priors=True).replies)
    ['models', 'mixture', 'classes']
    """

    priors: bool = False
    name: ClassVar[str] = "mixture-steps"
    version: ClassVar[int] = 1

    @property
    def replies(self) -> Mapping[str, Field]:
        """The K models, and the client's π."""
        replied = {"models": Field(("K", "P")), "mixture": Field(("K",))}
        return {**replied, "classes": Field(("K", "C"), "float64")} if self.priors else replied

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The client's π, and a momentum buffer for each model."""
        kept = {"mixture": Field(("K",))}
        buffered = plan.keep_momentum and plan.buffered
        return {**kept, "momenta": Field(("K", *MOMENTUM_FIELD.shape))} if buffered else kept

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Weigh the samples, and train all models."""
        models, n = sent.common["models"], len(site.sizes)
        owner = np.repeat(np.arange(n), site.sizes)
        with np.errstate(divide="ignore", invalid="ignore"):
            odds = np.log(shares_of(memory["mixture"]))[owner] - site.sample_losses(models)
            if self.priors:
                _, targets = site.samples()
                odds -= np.log(sent.common["priors"].T[targets])
            odds = np.exp(odds - odds.max(axis=1, keepdims=True))
            weights = odds / odds.sum(axis=1, keepdims=True)
        firsts = np.cumsum([0, *site.sizes[:-1]])
        mixture = np.add.reduceat(weights, firsts, axis=0) / site.sizes[:, None]
        trained = np.empty((n, *models.shape), np.float32)
        momenta = memory.get("momenta")
        after = None if momenta is None else np.empty_like(momenta)
        for j, model in enumerate(models):
            trained[:, j], velocity = site.train(
                np.repeat(model[None], n, axis=0), plan,
                velocity=None if momenta is None else np.ascontiguousarray(momenta[:, j]),
                weights=weights[:, j].astype(np.float32),
            )  # fmt: skip
            if after is not None and velocity is not None:
                after[:, j] = velocity
        reply = {"models": trained, "mixture": mixture.astype(np.float32)}
        if self.priors:
            reply["classes"] = _of_classes(weights, targets, owner, sent.common["priors"].shape)
        return reply, kept(memory, mixture=reply["mixture"], momenta=after)


def _of_classes(weights: F64, targets: Int, owner: Int, shape: tuple[int, ...]) -> F64:
    """(n, K, C), Σ q_sk over the samples of each client and class."""
    sums = np.zeros((int(owner.max(initial=-1)) + 1, shape[1], shape[0]))
    np.add.at(sums, (owner, targets), weights)
    return np.ascontiguousarray(np.moveaxis(sums, 1, 2))


@dataclass(frozen=True, slots=True)
class AllModels:
    """Every center is the mean over all clients: Ω_k = Σ_i λ_i ω_ik / Σ_i λ_i (FedEM, FedRC).

    FedRC's P(y | k) follows from what clients reply, with one more sample counted in each class.

    >>> models = {"models": np.array([[[0.0], [1.0]], [[4.0], [3.0]]], np.float32)}
    >>> state = State(1, models, np.zeros((2, 1), np.float32), labels=np.array([0, 0]))
    >>> AllModels()(state, np.array([3.0, 1.0]), np.ones(2, int)).centers.tolist()
    [[1.0], [1.5]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers; without replies they stay."""
        if not state.replies or "models" not in state.replies or not len(importance):
            return state.replace(centers=state.centers.copy())
        flat = state.replies["models"].reshape(len(importance), -1)
        with one_thread():
            mean = (importance / importance.sum()).astype(np.float32) @ flat
        cluster = dict(state.cluster)
        if "classes" in state.replies:
            counts = state.replies["classes"].sum(axis=0) + 1.0
            cluster["priors"] = (counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)
        return state.replace(centers=mean.reshape(state.centers.shape), cluster=cluster)


@dataclass(frozen=True, slots=True)
class SoftSteps(FitsAny):
    """FedSoft: a client trains its own model on L(w, D_i) + mu/2·Σ_k u_ik ‖w − Ω_k‖².

    u_ik is the share of the client's samples for which center k has the smallest loss. It is at
    least `MIN_SHARE`, and the shares are divided by their sum. They are counted in every
    `interval`-th round (Ruan and Joe-Wong, AAAI 2022).

    >>> SoftSteps(mu=0.5).interval
    2
    """

    mu: float = 0.1
    interval: int = 2
    name: ClassVar[str] = "soft-steps"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {**MODEL_REPLY, "mixture": Field(("K",))}

    def __post_init__(self) -> None:
        check_not_negative(mu=self.mu)
        check_at_least_one(interval=self.interval)

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The client's model, its u, and its momentum buffer."""
        own = {"personal": PERSONAL_FIELD, "mixture": Field(("K",))}
        return {**own, **momentum_field(plan)}

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Count the samples if they are due, and train."""
        models, shares = sent.common["models"], memory["mixture"]
        due = (shares.sum(axis=1) == 0) | (site.round % self.interval == 0)
        if due.any():
            best = site.sample_losses(models).argmin(axis=1)
            counts = np.zeros((len(shares), len(models)))
            np.add.at(counts, (np.repeat(np.arange(len(shares)), site.sizes), best), 1)
            counts = np.maximum(counts / site.sizes[:, None], MIN_SHARE)
            found = (counts / counts.sum(axis=1, keepdims=True)).astype(np.float32)
            shares = np.where(due[:, None], found, shares)
        # Row by row, so that the bits do not depend on which clients are together.
        anchor = np.stack([share @ models for share in shares])
        rows, velocity = site.train(
            memory["personal"], plan, correction=Correction(self.mu, anchor=anchor),
            velocity=memory.get("momentum"),
        )  # fmt: skip
        after = kept(memory, personal=rows, mixture=shares, momentum=velocity)
        return {"model": rows, "mixture": shares}, after


@dataclass(frozen=True, slots=True)
class SoftMean:
    """Every center is a mean over all clients: Ω_k = Σ_i u_ik λ_i ω_i / Σ_i u_ik λ_i (FedSoft).

    >>> replies = {"model": np.array([[0.0], [4.0]], np.float32), "mixture": np.eye(2)}
    >>> state = State(1, replies, np.zeros((2, 1), np.float32), labels=np.array([0, 1]))
    >>> SoftMean()(state, np.ones(2), np.ones(2, int)).centers.tolist()
    [[0.0], [4.0]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers; without replies they stay."""
        if not state.replies or "mixture" not in state.replies or not len(importance):
            return state.replace(centers=state.centers.copy())
        weight = state.replies["mixture"].T * importance
        total = weight.sum(axis=1, keepdims=True)
        with one_thread():
            means = (weight / np.where(total > 0, total, 1)).astype(np.float32) @ state.models
        return state.replace(centers=np.where(total > 0, means, state.centers))


# ── models that are added ────────────────────────────────────────────────────────────────────────


def common_model(state: State, setting: Setting) -> Table:
    """(m, P), the model common to all clients, repeated for each; at first, the initial model."""
    common = state.whole.get("common")
    common = setting.engine.starts([0], setting.seed)[0] if common is None else common
    return {"common": np.broadcast_to(common, (len(state.labels), len(common)))}


@dataclass(frozen=True, slots=True)
class AddedSteps(BesideCommonModel):
    """CAM: the outputs of a common model and of the cluster's model are added.

    The common model takes Q steps while the cluster's model is fixed. The cluster's model takes Q
    steps, with a pull mu towards Ω_k, while the common model is fixed. The outputs of the fixed
    model, as it was received, are a bias in the loss of the other one (Ma et al., NeurIPS 2023).

    >>> list(AddedSteps().replies)
    ['model', 'common']
    """

    mu: float = 0.0
    name: ClassVar[str] = "added-steps"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_not_negative(mu=self.mu)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train both models on the same mini-batches, each with the other one as received."""
        rows, common = sent.own["model"], sent.own["common"]
        by_cluster, by_all = site.outputs(rows), site.outputs(common)
        common, drift = site.train(
            common, plan, velocity=memory.get("common_momentum"), bias=by_cluster
        )
        rows, velocity = site.train(
            rows, plan, correction=Correction(self.mu), velocity=memory.get("momentum"),
            bias=by_all, out=rows,
        )  # fmt: skip
        after = kept(memory, momentum=velocity, common_momentum=drift)
        return {"model": rows, "common": common}, after


@dataclass(frozen=True, slots=True)
class WithCommon:
    """Centers by another aggregation, and the λ-mean of all clients' common models (CAM).

    >>> replies = {"model": np.array([[0.0], [4.0]], np.float32), "common": np.array([[1.0], [3]])}
    >>> state = State(1, replies, np.zeros((2, 1), np.float32), labels=np.array([0, 1]))
    >>> after = WithCommon()(state, np.ones(2), np.ones(2, int))
    >>> after.centers.tolist(), after.whole["common"].tolist()
    ([[0.0], [4.0]], [2.0])
    """

    of: Aggregation = field(default_factory=Mean)

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers and the new common model."""
        after = self.of(state, importance, sizes, layout)
        if not state.replies or "common" not in state.replies or not len(importance):
            return after
        everyone = np.zeros(len(importance), np.int64)
        with one_thread():
            mean = cluster_means(state.replies["common"], everyone, importance)[0]
        return after.replace(whole={**after.whole, "common": mean.astype(np.float32)})
