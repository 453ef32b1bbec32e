"""What clients tell about their data, once, so that they can be clustered by it.

The paper's first challenge asks for other representations than models. Each program here replies
one array, `told`, which is g_i (`wecfl.bilevel.representation.told`). It is not an update of a
model, so no noise protects it, and under privacy it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from wecfl.bilevel.threads import one_thread
from wecfl.core.engine import Engine
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Field, FitsAny, KeepsNothing, Program, ReplyAndMemory, Sent, Site
from wecfl.core.types import F64, Int, Table
from wecfl.errors import ConfigError
from wecfl.limits import check_at_least_one

__all__ = [
    "Directions",
    "InitialUpdate",
    "Kind",
    "Labels",
    "LocalCenters",
    "Moments",
    "Predictions",
    "Telling",
]

Kind = Literal["vector", "histogram", "subspaces", "centers"]
"""The form of g_i; the distances by which clients can be compared depend on it."""


class Telling(Program, Protocol):
    """A program by which a client tells what it is like."""

    kind: ClassVar[Kind]

    reads_model: ClassVar[bool]
    """Whether it needs the initial model of the run."""

    def sized(self, engine: Engine) -> Self:
        """The same program, with the sizes of samples and outputs filled in."""


class _TellingProgram(FitsAny, KeepsNothing):
    """A program that replies `told`, and keeps nothing."""

    __slots__ = ()
    version: ClassVar[int] = 1
    reads_model: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Directions(_TellingProgram):
    """The first left singular vectors of the raw samples of each class (PACFL).

    With the samples of a class as the columns of X (D, n), they are the `vectors` directions in
    which X is longest. Missing directions are written as zeros: those of a class without samples,
    and those beyond the number of samples. These directions of raw data leave the client.

    >>> Directions(3, classes=10, inputs=64).replies["told"].shape
    (30, 64)
    """

    vectors: int = 3
    classes: int = 0
    inputs: int = 0
    name: ClassVar[str] = "directions"
    kind: ClassVar[Kind] = "subspaces"

    def __post_init__(self) -> None:
        check_at_least_one(vectors=self.vectors)

    @property
    def replies(self) -> Mapping[str, Field]:
        """The directions of all classes."""
        return {"told": Field((self.classes * self.vectors, self.inputs))}

    def sized(self, engine: Engine) -> Directions:
        """The program for these classes and samples."""
        return replace(
            self, classes=classes_of(engine, self.name), inputs=inputs_of(engine, self.name)
        )

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The directions (n, classes · vectors, D)."""
        told = np.zeros((len(site.sizes), self.classes, self.vectors, self.inputs), np.float32)
        for i, x, y in _each(site):
            for c in np.unique(y):
                own = x[y == c].reshape(-1, self.inputs).astype(np.float64)
                with one_thread():
                    _, lengths, found = np.linalg.svd(own, full_matrices=False)
                found = found[lengths > 0][: self.vectors]
                told[i, c, : len(found)] = found
        return {"told": told.reshape(len(told), -1, self.inputs)}, {}


@dataclass(frozen=True, slots=True)
class InitialUpdate(_TellingProgram):
    """How `steps` steps of SGD change the initial model of the run (FedGroup, StoCFL).

    Momentum starts from zero, and the client keeps nothing of these steps.

    >>> InitialUpdate(50).replies["told"].shape
    ('trainable',)
    """

    steps: int = 50
    name: ClassVar[str] = "update"
    kind: ClassVar[Kind] = "vector"
    reads_model: ClassVar[bool] = True
    replies: ClassVar[Mapping[str, Field]] = {"told": Field(("trainable",))}

    def __post_init__(self) -> None:
        check_at_least_one(start_steps=self.steps)

    def sized(self, engine: Engine) -> InitialUpdate:
        """The same program."""
        return self

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The updates (n, trainable)."""
        start, taken = sent.own["model"], replace(plan, steps=self.steps, epochs=None, done=None)
        rows, _ = site.train(start, taken)
        columns = slice(site.layout.trainable)
        return {"told": rows[:, columns] - start[:, columns]}, {}


@dataclass(frozen=True, slots=True)
class Labels(_TellingProgram):
    """The share of each class among the client's training samples: a histogram.

    >>> Labels(classes=10).replies["told"].shape
    (10,)
    """

    classes: int = 0
    name: ClassVar[str] = "labels"
    kind: ClassVar[Kind] = "histogram"

    @property
    def replies(self) -> Mapping[str, Field]:
        """The shares."""
        return {"told": Field((self.classes,))}

    def sized(self, engine: Engine) -> Labels:
        """The program for these classes."""
        return replace(self, classes=classes_of(engine, self.name))

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The shares (n, C)."""
        told = [np.bincount(y, minlength=self.classes) / len(y) for _, _, y in _each(site)]
        return {"told": np.array(told, np.float32)}, {}


@dataclass(frozen=True, slots=True)
class Predictions(_TellingProgram):
    """The mean of the probabilities that the initial model gives the client's samples.

    It shows how inputs differ, and no labels leave the client.

    >>> Predictions(classes=10).replies["told"].shape
    (10,)
    """

    classes: int = 0
    name: ClassVar[str] = "predictions"
    kind: ClassVar[Kind] = "histogram"
    reads_model: ClassVar[bool] = True

    @property
    def replies(self) -> Mapping[str, Field]:
        """The mean probabilities."""
        return {"told": Field((self.classes,))}

    def sized(self, engine: Engine) -> Predictions:
        """The program for these classes."""
        return replace(self, classes=classes_of(engine, self.name))

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The mean probabilities (n, C)."""
        outputs = site.outputs(sent.own["model"]).astype(np.float64)
        odds = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares = odds / odds.sum(axis=1, keepdims=True)
        return {"told": np.array([own.mean(axis=0) for own in _parts(site, shares)], "f4")}, {}


@dataclass(frozen=True, slots=True)
class Moments(_TellingProgram):
    """Mean and covariance of an embedding of the samples: the outputs of the initial model.

    Before any training, the outputs are a random projection of the inputs of the last layer, which
    is the same at all clients. Of the covariance, the upper triangle is sent.

    >>> Moments(outputs=10).replies["told"].shape
    (65,)
    """

    outputs: int = 0
    name: ClassVar[str] = "moments"
    kind: ClassVar[Kind] = "vector"
    reads_model: ClassVar[bool] = True

    @property
    def replies(self) -> Mapping[str, Field]:
        """The mean, and then the covariance."""
        return {"told": Field((self.outputs + self.outputs * (self.outputs + 1) // 2,))}

    def sized(self, engine: Engine) -> Moments:
        """The program for this number of outputs."""
        return replace(self, outputs=engine.outputs)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The moments (n, …)."""
        upper, told = np.triu_indices(self.outputs), []
        for outputs in _parts(site, site.outputs(sent.own["model"]).astype(np.float64)):
            mean = outputs.mean(axis=0)
            with one_thread():
                covariance = (outputs - mean).T @ (outputs - mean) / len(outputs)
            told.append(np.concatenate([mean, covariance[upper]]))
        return {"told": np.array(told, np.float32)}, {}


@dataclass(frozen=True, slots=True)
class LocalCenters(_TellingProgram):
    """The centers of `count` clusters of the client's own samples, and their shares (k-FED).

    The samples are projected on their first `count` singular vectors and clustered. Lloyd's
    iterations in all dimensions start from the means of those samples that are three times as near
    to their center as to any other (Awasthi and Sheffet). A row of the reply is a center, followed
    by the share of the samples that belong to it.

    >>> LocalCenters(2, inputs=64).replies["told"].shape
    (2, 65)
    """

    count: int = 1
    inputs: int = 0
    name: ClassVar[str] = "local-centers"
    kind: ClassVar[Kind] = "centers"

    def __post_init__(self) -> None:
        check_at_least_one(local_clusters=self.count)

    @property
    def replies(self) -> Mapping[str, Field]:
        """The centers, each with its share."""
        return {"told": Field((self.count, self.inputs + 1))}

    def sized(self, engine: Engine) -> LocalCenters:
        """The program for these samples."""
        return replace(self, inputs=inputs_of(engine, self.name))

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The centers and shares (n, count, D + 1); if samples are few, each is a center."""
        told = np.zeros((len(site.sizes), self.count, self.inputs + 1), np.float32)
        for i, x, _ in _each(site):
            centers, labels = local_clusters(x.reshape(len(x), -1).astype(np.float64), self.count)
            told[i, : len(centers), :-1] = centers
            told[i, : len(centers), -1] = np.bincount(labels, minlength=len(centers)) / len(x)
        return {"told": told}, {}


def local_clusters(points: F64, k: int) -> tuple[F64, Int]:
    """K-means of one client's points by Awasthi and Sheffet: centers (k, D), and labels.

    >>> centers, labels = local_clusters(np.array([[0.0], [1.0], [9.0], [10.0]]), 2)
    >>> sorted(centers[:, 0].tolist())
    [0.5, 9.5]
    """
    from sklearn.cluster import KMeans  # noqa: PLC0415  (slow to load)

    centers, labels = np.unique(points, axis=0, return_inverse=True)
    if len(centers) <= k:
        return centers, labels.reshape(-1)
    if k == 1:
        return points.mean(axis=0, keepdims=True), np.zeros(len(points), np.int64)
    with one_thread():
        _, _, directions = np.linalg.svd(points, full_matrices=False)
        low = points @ directions[:k].T
        rough = KMeans(k, n_init=10, random_state=0).fit(low).transform(low)
        nearest = rough.argmin(axis=1)
        clear = 3 * rough.min(axis=1) <= np.partition(rough, 1, axis=1)[:, 1]
        start = []
        for r in range(k):
            inside = points[clear & (nearest == r)]
            start.append((inside if len(inside) else points[nearest == r]).mean(axis=0))
        found = KMeans(k, init=np.array(start), n_init=1).fit(points)
    return found.cluster_centers_, found.labels_.astype(np.int64)


def classes_of(engine: Engine, name: str) -> int:
    """The number of classes; an error for a task that has none."""
    task = engine.task
    if task.name != "classification":
        raise ConfigError(
            f"the representation {name} is told class by class, but the task {task.name} has no "
            f"classes: choose another representation or method"
        )
    return task.outputs


def inputs_of(engine: Engine, name: str) -> int:
    """The number of numbers in a sample; an error if the server does not know it."""
    if not engine.shape:
        raise ConfigError(
            f"the representation {name} needs to know how large samples are, but no client has "
            f"said it: begin a new run, or choose another representation or method"
        )
    return prod(engine.shape)


def _each(site: Site) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """The number, the inputs and the targets of each client."""
    x, y = site.samples()
    stops = np.cumsum(site.sizes)
    for i, (start, stop) in enumerate(zip(stops - site.sizes, stops, strict=True)):
        yield i, x[start:stop], y[start:stop]


def _parts(site: Site, rows: F64) -> list[F64]:
    """The rows (N, …) of each client, client by client."""
    return np.split(rows, np.cumsum(site.sizes)[:-1])
