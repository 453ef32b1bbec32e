"""Newcomers, clients that come after the training: which cluster fits them, and whether one does.

All members of a run made their first local update from the same initial model, which shows best how
similar they are. So a newcomer makes the same update from the same model, and is compared with the
mean g of each cluster's members after their first update (`Reference`, decision 15):

    cluster     k = argmin_k ‖g − G_k‖
    confidence  1 − ‖g − G_k‖ / ‖g − G_j‖, j the second-nearest: 0 is a tie, 1 is the center itself
    novel       ‖g − G_k‖ > limit; one in forty members is beyond the limit

Without training, the loss of each cluster's model on the newcomer's data can replace the distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.evaluation import losses, risk, tallies
from wecfl.bilevel.representation import Columns, last_layer
from wecfl.channel.privacy import Privacy
from wecfl.core.channel import Channel
from wecfl.core.engine import Engine
from wecfl.core.exchange import exchange
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.task import Task
from wecfl.core.types import F32, F64, Int
from wecfl.data.federation import Federation
from wecfl.data.fitting import with_newcomer
from wecfl.data.pipeline import Pipeline
from wecfl.engine import make_engine
from wecfl.errors import ConfigError, DataError, DivergedError
from wecfl.layout import Layout
from wecfl.models import Module, Vote, fill
from wecfl.runs.blueprint import Blueprint
from wecfl.tasks import Classification

__all__ = [
    "NO_WHOLE_MODELS",
    "OVER_BUDGET",
    "Assigner",
    "Assignment",
    "By",
    "NewcomerSetup",
    "Reference",
    "compared_columns",
]

By = Literal["update", "losses"]
"""What a newcomer is compared by: its model after one local update, or the clusters' losses."""

FALSE_ALARM_RATE = 0.025
"""The share of newcomers that are taken for novel although they are like the members."""
NO_WHOLE_MODELS = (
    "the clusters of {} have no whole models, since clients keep all or a part of their model to "
    "themselves, so there is none that a newcomer could use: choose another method"
)
"""The error for methods whose cluster models are not complete."""
OVER_BUDGET = (
    "newcomers need one more reply of every member. With clip, and with participation below 1 or "
    "several initial models, the privacy budget does not cover it: leave out newcomers"
)
"""The error for private runs that can't assign newcomers."""


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """The cluster of a newcomer, and how sure that is."""

    client: str
    samples: int
    """The number of samples that it was assigned by; the others are held out."""
    cluster: int
    confidence: float | None
    """1 − the nearest over the second-nearest distance; None if there is one cluster only."""
    distance: float
    """The distance from its cluster, or the loss of the cluster's model."""
    limit: float | None
    """The distance beyond which a client is novel; None if no cluster has two members."""
    scores: Mapping[str, float]
    """The task's scores of the cluster's model on the data that were held out."""
    by: By
    model: Module
    """The model of its cluster, ready to predict."""

    @property
    def accuracy(self) -> float:
        """The accuracy of a classification on the data that were held out."""
        return self.scores["accuracy"]

    @property
    def macro_f1(self) -> float:
        """The macro-F1 of a classification on the data that were held out."""
        return self.scores["macro_f1"]

    @property
    def novel(self) -> bool:
        """Whether no cluster fits: its distance is beyond that of nearly all members."""
        return self.limit is not None and self.distance > self.limit


@dataclass(frozen=True, slots=True, eq=False)
class NewcomerSetup:
    """How newcomers are trained: with one local update, as in the first round."""

    method: Method
    blueprint: Blueprint
    module: Module
    plan: LocalPlan
    seed: int
    engine: Literal["auto", "native", "torch"]
    options: Mapping[str, Any]
    """The options of the engine, but for the task."""
    task: Task = Classification()  # noqa: RUF009  (frozen)
    member: int = 0
    privacy: Privacy | None = None
    pipeline: Pipeline | None = None
    """How samples are made from tables or pixels, if they are."""

    def prepared(self, name: str, x: Any, y: Any, whole: Any) -> tuple[Any, Any]:
        """Samples and labels of a newcomer, of which `whole` are all samples."""
        if self.pipeline is None:
            return x, y
        own = with_newcomer(self.pipeline, name, whole)
        return own.transform(x, name, f"client {name}"), own.labels(y, f"client {name}")

    @contextmanager
    def of(self, federation: Federation, engine: Engine | None = None) -> Iterator[Setting]:
        """Yield the setting of these clients; on `engine`, if there is one already."""
        channel = Channel(privacy=self.privacy, keys=federation.keys, seed=self.seed)
        with ExitStack() as stack:
            runner: Engine = engine or stack.enter_context(
                make_engine(
                    self.engine,
                    federation,
                    self.module,
                    task=self.task,
                    needs=self.method.needs,
                    **self.options,
                )
            )
            yield Setting(self.method, runner, self.plan, self.seed, self.member, channel=channel)


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What newcomers are compared with: the mean of each cluster, and the distances of members."""

    clusters: Int
    """(n,), the clusters that have members."""
    centers: F32
    """(n, p), the mean g of their members after one local update from the initial model."""
    distances: F64
    """The distance of each member from the mean of the *other* members of its cluster, sorted."""
    losses: F64
    """The loss of the cluster's model on each member's test data, sorted."""
    lr: float
    """η of that local update."""

    @classmethod
    def of(cls, setting: Setting, state: State) -> Reference:
        """The reference of all members of a run, with their clusters in its last round.

        All members make the update, also those that were absent in the first round; those that took
        part repeat it exactly. Refused replies are left out. If data drift, they are the last ones.
        """
        setting.engine.move_to(max(state.round, 1))
        always = replace(setting.channel, participation=1.0, dropout=0.0)
        setting = replace(setting, channel=always)
        first, lr = _first_update(setting)
        heard = first.heard
        labels, points = state.labels[heard], _compared(setting, first)[heard]
        del first  # its models and momentum are large
        importance = np.asarray(setting.method.importance(setting.engine.sizes), np.float64)
        clusters, centers, distances = np.unique(labels), [], []
        for k in clusters:
            members, weight = points[labels == k], importance[heard][labels == k]
            centers.append(np.average(members, axis=0, weights=weight))
            if len(members) > 1:
                # Leaving out a member moves the mean away from it, by Λ / (Λ − λ_i) with Λ = Σλ.
                away = np.sqrt(squared_euclidean(members, centers[-1][None])[:, 0])
                distances.append(away * weight.sum() / (weight.sum() - weight))
        served = risk(setting.engine, state.own_centers, "test")
        return cls(
            clusters,
            np.array(centers, np.float32),
            np.sort(np.concatenate([*distances, np.empty(0)])),
            np.sort(served[np.isfinite(served)]),
            lr,
        )

    def limit(self, by: By) -> float | None:
        """The smallest value that all members but a share of `FALSE_ALARM_RATE` stay below.

        With α = `FALSE_ALARM_RATE` and n members it is the ⌈(1 − α)·(n + 1)⌉-th: a newcomer that is
        exchangeable with the members then lies beyond it with probability α at most (split
        conformal prediction). Where n is too small for that promise, it is the largest value.
        """
        known = self.distances if by == "update" else self.losses
        if not len(known):
            return None
        return float(known[min(ceil((1 - FALSE_ALARM_RATE) * (len(known) + 1)), len(known)) - 1])


@dataclass(frozen=True, slots=True, eq=False)
class Assigner:
    """Assigns newcomers to the clusters of a run."""

    setup: NewcomerSetup
    reference: Reference
    centers: F32
    """(J, K, P), the models of the clusters, for each run of a soft vote."""

    def assign(
        self,
        x: ArrayLike,
        y: ArrayLike,
        *,
        test: float | tuple[ArrayLike, ArrayLike],
        by: By = "update",
        name: str = "newcomer",
    ) -> Assignment:
        """Assign one newcomer by its samples (`wecfl.Result.assign`)."""
        kind, seed, whole = self.setup.blueprint, self.setup.seed, x
        x, y = self.setup.prepared(name, x, y, whole)
        if not isinstance(test, float | int):
            x_test, y_test = self.setup.prepared(name, *test, whole)
        newcomer = Federation.from_arrays(
            [x], [y], test=test if isinstance(test, float | int) else ([x_test], [y_test]),
            names=[name], seed=seed,
        )  # fmt: skip
        if newcomer.shape != kind.shape:
            raise DataError(
                f"client {name}: samples must have shape {kind.shape}, as those of the members, "
                f"got {newcomer.shape}"
            )
        return self.receive(newcomer, by)[0]

    def receive(
        self, newcomers: Federation, by: By = "update", engine: Engine | None = None
    ) -> list[Assignment]:
        """Assign each of these clients on its own, and test the model of its cluster on its data.

        `engine` trains the newcomers, if there is one already.
        """
        if by not in ("update", "losses"):
            raise ConfigError(f"by must be 'update' or 'losses', got '{by}'")
        with self.setup.of(newcomers, engine) as setting:
            far = self._updates(setting, newcomers) if by == "update" else self._losses(setting)
            nearest = self.reference.clusters[far.argmin(axis=1)]
            models = np.ascontiguousarray(self.centers[:, nearest])
            stack = models[0] if len(models) == 1 else np.moveaxis(models, 0, 1)
            table = tallies(setting.engine, stack, "test")
            scores = setting.engine.task.scores(table)
        return [
            Assignment(
                client=newcomers.names[i],
                samples=int(newcomers.sizes[i]),
                cluster=int(nearest[i]),
                confidence=_confidence(far[i]),
                distance=float(far[i].min()),
                limit=self.reference.limit(by),
                scores={name: float(each[i]) for name, each in scores.items()},
                by=by,
                model=self.model(int(nearest[i])),
            )
            for i in range(len(newcomers))
        ]

    def model(self, cluster: int) -> Module:
        """The model of a cluster, as a module."""
        members = [fill(self.setup.module, rows[cluster]) for rows in self.centers]
        return members[0] if len(members) == 1 else Vote(members).eval()

    def _updates(self, setting: Setting, newcomers: Federation) -> F64:
        """(m, n), ‖g_i − G_k‖ after one local update with the members' η."""
        plan = replace(setting.plan, lr=self.reference.lr)
        anything = replace(
            setting.channel, refuse_above=np.inf
        )  # newcomers are independent, so none is refused for being far from the others
        once = replace(setting, plan=plan, rate=None, channel=anything)
        try:
            state, _ = _first_update(once)
            finite = state.heard
        except DivergedError:
            finite = np.zeros(len(newcomers), np.bool_)
        if not finite.all():
            raise DataError(
                f"client {newcomers.names[int(np.argmin(finite))]}: its model is not finite after "
                "one local update; scale its data like those of the members"
            )
        return np.sqrt(squared_euclidean(_compared(setting, state), self.reference.centers))

    def _losses(self, setting: Setting) -> F64:
        """(m, n), L(Ω_k, D_i), for the first run of a soft vote."""
        return losses(setting.engine, self.centers[0][self.reference.clusters])


def _first_update(setting: Setting) -> tuple[State, float]:
    """The state after one local update of all clients from the initial model, and its η."""
    engine, m = setting.engine, len(setting.engine.sizes)
    start = engine.starts([setting.member], setting.seed)
    state = State(0, None, start, np.zeros(m, np.int64))
    if setting.rate:
        lr = setting.rate(np.zeros(m), state, engine, setting.plan, setting.seed)
        state = state.replace(known={"lr": lr})
    eta = float(np.max(setting.rates(state)))  # in the first round it is the same for all clients
    # Members and newcomers are compared by what they have learned, not by what is left of it.
    whole = replace(setting, channel=replace(setting.channel, shorten_above=np.inf))
    return exchange(state, whole), eta


def compared_columns(method: Method, layout: Layout) -> Columns:
    """The columns that clients are compared by: those of the clustering, or else the last layer."""
    chosen = method.representation
    return chosen if isinstance(chosen, Columns) else last_layer(layout)


def _compared(setting: Setting, state: State) -> F32:
    engine = setting.engine
    return compared_columns(setting.method, engine.layout).clients(state, engine, setting.seed)


def _confidence(far: F64) -> float | None:
    if len(far) < 2:
        return None
    nearest, second = np.partition(far, 1)[:2]
    return float(1 - nearest / second) if second > 0 else 0.0
