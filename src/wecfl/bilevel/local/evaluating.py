"""Programs in which clients evaluate the models that they are sent. Clients keep nothing of them.

`wecfl.bilevel.evaluation` asks clients to run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from wecfl.bilevel.local.training import Train
from wecfl.bilevel.serving import Center
from wecfl.core.components import Serving
from wecfl.core.plan import LocalPlan
from wecfl.core.program import (
    Field,
    FitsAny,
    KeepsNothing,
    Program,
    ReplyAndMemory,
    Sent,
    Site,
    needs_of,
)
from wecfl.core.types import Split, Table

__all__ = ["ClusterLosses", "Gradients", "Risk", "Score"]


@dataclass(frozen=True, slots=True)
class ClusterLosses(FitsAny, KeepsNothing):
    """The mean training loss of each of the K models that were sent, L(Ω_k, D_i)."""

    batches: int | None = None
    """The number of mini-batches on which it is estimated; None: all data."""
    name: ClassVar[str] = "losses"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {"losses": Field(("K",), "float64")}

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The losses (n, K)."""
        return {"losses": site.losses(sent.common["models"], self.batches)}, {}


@dataclass(frozen=True, slots=True)
class Risk(FitsAny, KeepsNothing):
    """The mean loss L(ω_i, D_i) of the model that was sent."""

    split: Split = "train"
    batches: int | None = None
    """The number of mini-batches of the training data on which it is estimated; None: all data."""
    name: ClassVar[str] = "risk"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {"risk": Field((), "float64")}

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The losses (n,)."""
        return {"risk": site.risk(sent.own["model"], self.split, self.batches)}, {}


@dataclass(frozen=True, slots=True)
class Gradients(FitsAny, KeepsNothing):
    """The gradient ∇L(ω_i, D_i) at the model that was sent."""

    batches: int | None = None
    """The number of mini-batches on which it is estimated; None: all data."""
    name: ClassVar[str] = "gradients"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {"gradient": Field(("trainable",))}

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """The gradients (n, trainable)."""
        return {"gradient": site.gradients(sent.own["model"], self.batches)}, {}


@dataclass(frozen=True, slots=True)
class Score(FitsAny):
    """The task's tally of the models that predict for a client, at each moment (`Serving`)."""

    serve: Serving = Center()  # noqa: RUF009  (frozen)
    split: Split = "test"
    of: Program = Train()  # noqa: RUF009  (frozen)
    """The program by which the clients' memory was made."""
    name: ClassVar[str] = "score"
    version: ClassVar[int] = 1

    @property
    def needs(self) -> frozenset[str]:
        """What the local update needs, so that the same engine can do both."""
        return needs_of(self.of)

    @property
    def replies(self) -> Mapping[str, Field]:
        """A tally for each moment."""
        return dict.fromkeys(self.serve.moments, Field(("tally",), "float64"))

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """What the local update keeps; it is read, and never changed."""
        return self.of.keeps(plan)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """A tally (n, …) for each moment."""
        served = self.serve(site, sent, memory, plan)
        tables = [site.tally(rows, self.split) for rows in served]
        return dict(zip(self.serve.moments, tables, strict=True)), {}
