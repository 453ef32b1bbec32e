"""What clients tell about their data, once, so that they can be clustered by it.

The paper's first challenge asks for other representations than models. Each program here replies
one array, `told`, which is g_i (`wecfl.bilevel.told`). It is not an update of a model, so no noise
protects it, and under privacy it is refused.
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
from wecfl.core.program import Field, Program, ReplyAndMemory, Sent, Site
from wecfl.core.types import Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout

__all__ = ["Directions", "InitialUpdate", "Kind", "Telling"]

Kind = Literal["vector", "histogram", "subspaces"]
"""What g_i is, on which depends how it can be compared."""


class Telling(Program, Protocol):
    """A program by which a client tells what it is like."""

    kind: ClassVar[Kind]

    reads_model: ClassVar[bool]
    """Whether it needs the initial model of the run."""

    def sized(self, engine: Engine) -> Self:
        """The same program, which knows how large samples and outputs are."""


class _Told:
    """A program that replies `told`, and keeps nothing."""

    __slots__ = ()
    version: ClassVar[int] = 1
    reads_model: ClassVar[bool] = False

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """Nothing."""
        return {}

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Every plan and every model fits."""


@dataclass(frozen=True, slots=True)
class Directions(_Told):
    """The first left singular vectors of the raw samples of each class (PACFL).

    With the samples of a class as the columns of X (D, n), they are the `vectors` directions in
    which X is longest. A class without samples has none, which is written as zeros; so are those
    beyond the number of samples. These directions of raw data leave the client.

    >>> Directions(3, classes=10, inputs=64).replies["told"].shape
    (30, 64)
    """

    vectors: int = 3
    classes: int = 0
    inputs: int = 0
    name: ClassVar[str] = "directions"
    kind: ClassVar[Kind] = "subspaces"

    def __post_init__(self) -> None:
        if self.vectors < 1:
            raise ConfigError(f"vectors must be at least 1, got {self.vectors}")

    @property
    def replies(self) -> Mapping[str, Field]:
        """The directions of all classes."""
        return {"told": Field((self.classes * self.vectors, self.inputs))}

    def sized(self, engine: Engine) -> Directions:
        """The program for these classes and samples."""
        return replace(self, classes=classes_of(engine, self.name), inputs=prod(engine.shape))

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
class InitialUpdate(_Told):
    """How `steps` steps of SGD change the initial model of the run (FedGroup, StoCFL).

    Momentum starts from zero, and nothing is kept of the steps.

    >>> InitialUpdate(50).replies["told"].shape
    ('trainable',)
    """

    steps: int = 50
    name: ClassVar[str] = "update"
    kind: ClassVar[Kind] = "vector"
    reads_model: ClassVar[bool] = True
    replies: ClassVar[Mapping[str, Field]] = {"told": Field(("trainable",))}

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"start_steps must be at least 1, got {self.steps}")

    def sized(self, engine: Engine) -> InitialUpdate:
        """The same program."""
        return self

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The updates (n, trainable)."""
        start, taken = sent.own["model"], replace(plan, steps=self.steps, epochs=None, done=None)
        rows, _ = site.train(start, taken)
        columns = slice(site.layout.trainable)
        return {"told": rows[:, columns] - start[:, columns]}, {}


def classes_of(engine: Engine, name: str) -> int:
    """The number of classes; an error for a task that has none."""
    task = engine.task
    if task.name != "classification":
        raise ConfigError(
            f"clients would tell their {name}, class by class, but the task {task.name} has no "
            f"classes: choose another representation or method"
        )
    return task.outputs


def _each(site: Site) -> Iterator[tuple[int, NDArray[Any], NDArray[Any]]]:
    """The number, the inputs and the targets of each client."""
    x, y = site.samples()
    stops = np.cumsum(site.sizes)
    for i, (start, stop) in enumerate(zip(stops - site.sizes, stops, strict=True)):
        yield i, x[start:stop], y[start:stop]
