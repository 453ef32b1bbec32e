"""Newcomers, clients that come after the training: which cluster fits them, and whether one does.

A newcomer makes the first local update of the members, from the same initial model, and is compared
with the mean g of each cluster's members after it (`wecfl.runs.member_reference`):

    cluster     k = argmin_k ‖g − G_k‖
    confidence  1 − ‖g − G_k‖ / ‖g − G_j‖, j the second-nearest: 0 is a tie, 1 is the center itself
    novel       its distance and its loss are unusual for so many samples (`wecfl.runs.novelty`)

Without training, the loss of each cluster's model on the newcomer's data can take the place of the
distance. Without labels, the moments of its inputs can (`wecfl.runs.input_moments`), if they
distinguish the clusters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.evaluation import losses, tallies
from wecfl.channel.privacy import Privacy
from wecfl.core.channel import Channel
from wecfl.core.engine import Engine
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.setting import Setting
from wecfl.core.task import Task
from wecfl.core.types import F32, F64
from wecfl.data.federation import Federation
from wecfl.data.fitting import with_newcomer
from wecfl.data.pipeline import Pipeline
from wecfl.data.samples import as_samples
from wecfl.engine import BaseEngine, make_engine
from wecfl.errors import ConfigError, DataError, DivergedError
from wecfl.models import Module, Vote, fill
from wecfl.runs.blueprint import Blueprint
from wecfl.runs.input_moments import MIN_FOUND_SHARE, InputMoments
from wecfl.runs.member_reference import Reference, compared_points, first_update, once
from wecfl.runs.novelty import counting_samples
from wecfl.tasks import Classification

__all__ = [
    "NO_SINGLE_START",
    "NO_WHOLE_MODELS",
    "OVER_BUDGET",
    "Assigner",
    "Assignment",
    "By",
    "NewcomerSetup",
]

By = Literal["update", "losses", "inputs"]
"""What is compared: a newcomer's model after one local update, the losses of the clusters' models,
or the newcomer's inputs."""

NO_WHOLE_MODELS = (
    "the clusters of {} have no whole models, since clients keep all or a part of their models for "
    "themselves, so there is no model for a newcomer or a file: choose another method"
)
"""The error for methods whose cluster models are not complete."""
NO_SINGLE_START = (
    "the clients of {} train with the models of all clusters, but newcomers are compared after a "
    "local update from a single model: choose another method"
)
"""The error for methods whose local update can't be made from one model."""
OVER_BUDGET = (
    "newcomers need one more reply of every member, which the privacy budget does not cover if "
    "participation is below 1, if clients join later, or with several initial models: leave out "
    "newcomers"
)
"""The error for private runs that can't assign newcomers."""


@dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """The cluster of a newcomer, and how sure that is."""

    client: str
    samples: int
    """The number of samples by which it was assigned; the others are held out."""
    cluster: int
    confidence: float | None
    """1 − nearest distance / second-nearest distance; None if there is only one cluster."""
    distance: float | None
    """The distance from its cluster; None if it was assigned by losses."""
    loss: float | None
    """The loss of its cluster's model on its samples; None without labels."""
    novelty: float | None
    """How unusual it is compared with members with as many samples (`wecfl.runs.novelty`); None if
    no cluster has two members."""
    limit: float | None
    """The novelty above which no cluster fits; None if there is nothing to compare with."""
    scores: Mapping[str, float]
    """The task's scores of the cluster's model on the data that were held out; none without
    labels."""
    by: By
    model: Module
    """The model of its cluster, ready to predict."""
    found: float | None = None
    """By inputs: the share of members that are put into their own cluster in this way."""

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
        """Whether no cluster fits, since it is more unusual than nearly all members."""
        return self.novelty is not None and self.limit is not None and self.novelty > self.limit


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
    """The options of the engine, without the task."""
    task: Task = Classification()  # noqa: RUF009  (frozen)
    member: int = 0
    privacy: Privacy | None = None
    pipeline: Pipeline | None = None
    """How samples are made from tables or pixels; None: they are used as they are."""

    def prepared(self, name: str, x: Any, y: Any, whole: Any) -> tuple[Any, Any]:
        """Samples and labels of a newcomer, made by the pipeline; `whole` are all its samples."""
        if self.pipeline is None:
            return x, y
        own = with_newcomer(self.pipeline, name, whole)
        return own.transform(x, name, f"client {name}"), own.labels(y, f"client {name}")

    def engine_for(self, federation: Federation) -> BaseEngine:
        """An engine for these clients."""
        return make_engine(
            self.engine, federation, self.module, task=self.task, needs=self.method.needs,
            **self.options,
        )  # fmt: skip

    @contextmanager
    def of(self, federation: Federation, engine: Engine | None = None) -> Iterator[Setting]:
        """Yield the setting of these clients; on `engine`, if there is one already."""
        channel = Channel(privacy=self.privacy, keys=federation.keys, seed=self.seed)
        with ExitStack() as stack:
            runner: Engine = engine or stack.enter_context(self.engine_for(federation))
            yield Setting(self.method, runner, self.plan, self.seed, self.member, channel=channel)


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
        y: ArrayLike | None = None,
        *,
        test: float | tuple[ArrayLike, ArrayLike],
        by: By | None = None,
        name: str = "newcomer",
    ) -> Assignment:
        """Assign one newcomer by its samples (`wecfl.Result.assign`)."""
        if y is None:
            return self._unlabelled(x, test, by, name)
        seed, whole = self.setup.seed, x
        x, y = self.setup.prepared(name, x, y, whole)
        if not isinstance(test, float | int):
            x_test, y_test = self.setup.prepared(name, *test, whole)
        newcomer = Federation.from_arrays(
            [x], [y], test=test if isinstance(test, float | int) else ([x_test], [y_test]),
            names=[name], seed=seed,
        )  # fmt: skip
        if newcomer.shape != (expected := self.setup.blueprint.shape):
            raise DataError(
                f"client {name}: samples must have the shape {expected} of the members' samples, "
                f"got {newcomer.shape}"
            )
        return self.receive(newcomer, by or "update")[0]

    def receive(
        self, newcomers: Federation, by: By = "update", engine: Engine | None = None
    ) -> list[Assignment]:
        """Assign each of these clients on its own, and test the model of its cluster on its data.

        `engine` trains the newcomers, if there is one already.
        """
        if by not in (known := get_args(By)):
            raise ConfigError(f"by must be one of {', '.join(known)}, got '{by}'")
        reference, sizes = self.reference, newcomers.sizes
        with self.setup.of(newcomers, engine) as setting:
            losses = self._losses(setting)
            if by == "update":
                far = self._updates(setting, newcomers)
            elif by == "inputs":
                far = np.array([
                    self._inputs(len(rows)).distances(newcomers.x[rows]) for rows in newcomers.train
                ])  # fmt: skip
            else:
                far = losses
            place = far.argmin(axis=1)
            nearest = reference.clusters[place]
            models = np.ascontiguousarray(self.centers[:, nearest])
            stack = models[0] if len(models) == 1 else np.moveaxis(models, 0, 1)
            table = tallies(setting.engine, stack, "test")
            scores = setting.engine.task.scores(table)
        assigned = []
        for i, k in enumerate(place):
            size, loss = int(sizes[i]), float(losses[i, k])
            distance = None if by == "losses" else float(far[i, k])
            found = self._inputs(size).found_with(size) if by == "inputs" else None
            novelty, limit = self._novelty(by, size, far[i], losses[i])
            own = {name: float(values[i]) for name, values in scores.items()}
            cluster = int(nearest[i])
            assignment = Assignment(
                newcomers.names[i], size, cluster, _confidence(far[i]), distance, loss, novelty,
                limit, own, by, self.model(cluster), found,
            )  # fmt: skip
            assigned.append(assignment)
        return assigned

    def _unlabelled(self, x: ArrayLike, test: object, by: By | None, name: str) -> Assignment:
        """Assign a newcomer without labels, by its inputs."""
        if by not in (None, "inputs"):
            raise ConfigError(f"by {by} needs labels: give y, or leave out by")
        if not isinstance(test, float | int):
            raise ConfigError(
                "test samples with labels were given, but no labels y of the other samples: give y"
            )
        if (pipeline := self.setup.pipeline) is not None:
            own = with_newcomer(pipeline, name, x)
            x = own.transform(x, name, f"client {name}")
        samples = as_samples(f"client {name}", x, self.setup.blueprint.shape)
        if not (n := len(samples)):
            raise DataError(f"client {name}: no samples, expected at least 1")
        inputs = self._inputs(n)
        far = inputs.distances(samples)
        place = int(far.argmin())
        cluster = int(self.reference.clusters[place])
        novelty, limit = inputs.usual.novelty(n, float(far[place]))
        return Assignment(
            name, n, cluster, _confidence(far), float(far[place]), None, novelty, limit, {},
            "inputs", self.model(cluster), inputs.found_with(n),
        )  # fmt: skip

    def _inputs(self, samples: int) -> InputMoments:
        """The moments with which inputs are compared; an error if they do not find the cluster."""
        known = self.reference.inputs
        if known is None:
            raise ConfigError(
                "there are no statistics of the members' inputs, since the run was private or no "
                "cluster has two members: give labels"
            )
        if (found := known.found_with(samples)) < MIN_FOUND_SHARE:
            raise ConfigError(
                f"these clusters can't be told apart by {samples} inputs alone: only "
                f"{100 * found:.0f} % of the members would be put into their own cluster, and "
                f"{100 * MIN_FOUND_SHARE:.0f} % are needed; give labels"
            )
        return known

    def _novelty(
        self, by: By, samples: int, far: F64, losses: F64
    ) -> tuple[float | None, float | None]:
        """The novelty of a client, and its limit; None if there are no members to compare with."""
        if by == "inputs":
            return self._inputs(samples).usual.novelty(samples, float(far.min()))
        if (usual := self.reference.usual) is None:
            return None, None
        counting = counting_samples(self.setup.plan, samples)
        return usual.novelty(counting, None if by == "losses" else far, losses)

    def model(self, cluster: int) -> Module:
        """The model of a cluster, as a module."""
        members = [fill(self.setup.module, rows[cluster]) for rows in self.centers]
        return members[0] if len(members) == 1 else Vote(members).eval()

    def _updates(self, setting: Setting, newcomers: Federation) -> F64:
        """(m, n), ‖g_i − G_k‖ after one local update with the members' η."""
        try:
            state, _ = first_update(once(setting, self.reference.lr))
            finite = state.heard
        except DivergedError:
            finite = np.zeros(len(newcomers), np.bool_)
        if not finite.all():
            raise DataError(
                f"client {newcomers.names[int(np.argmin(finite))]}: its model is not finite after "
                "one local update; scale its data like those of the members"
            )
        return np.sqrt(squared_euclidean(compared_points(setting, state), self.reference.centers))

    def _losses(self, setting: Setting) -> F64:
        """(m, n), L(Ω_k, D_i), for the first run of a soft vote."""
        return losses(setting.engine, self.centers[0][self.reference.clusters])


def _confidence(far: F64) -> float | None:
    if len(far) < 2:
        return None
    nearest, second = np.partition(far, 1)[:2]
    return float(1 - nearest / second) if second > 0 else 0.0
