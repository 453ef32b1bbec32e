"""A method, made of components (`core/components.py`).

The paper's bi-level problem (its equation "method") reads

    minimize  R = 1/Σλ · Σ_k Σ_i r_ik λ_i L(Ω_k, D_i)
    subject to  r, Ω = argmin  F = 1/Σλ · Σ_k Σ_i r_ik λ_i d(g_i, G_k).

Clients are the rows of the matrix `models` (m × P), cluster centers are the rows of `centers`
(K × P), and the assignment r is the vector `labels`. A `Method` chooses g, d, λ, the clustering,
the aggregation and what clients do. The four steps of Algorithm 1 (`rounds.py`) are the same for
all methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from wecfl.core.ask import Ask, Steps
from wecfl.core.components import (
    Aggregation,
    Clustering,
    Distance,
    Importance,
    Representation,
    Serving,
)
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Program, needs_of, private_columns
from wecfl.errors import ConfigError, ModelError, unknown
from wecfl.layout import Layout

__all__ = ["Method"]


@dataclass(frozen=True, slots=True)
class Method:
    """A point of the paper's design space. A new method is a new value, not new control flow.

    >>> from wecfl import methods
    >>> methods.fedavg.replace(name="mine", k=3).k
    3
    """

    name: str
    representation: Representation
    """What represents clients and clusters: g_i and G_k."""
    distance: Distance
    """How far a client is from a cluster: d(g_i, G_k)."""
    clustering: Clustering
    """How the labels r are found (E-step)."""
    importance: Importance
    """How much each client counts: λ_i."""
    aggregation: Aggregation
    """How the centers Ω are found (M-step)."""
    local: Program
    """What a client does with the model it receives (L-step)."""
    serve: Serving
    """Which model predicts for a client."""
    k: int | Literal["auto"] = 1
    """K, the number of clusters; "auto": all clients start in one cluster, and the clustering
    chooses K."""
    shared: str = "all"
    """The columns that are exchanged, as in `Layout.columns`; the others stay at the client."""
    start: Literal["one", "each"] = "one"
    """One initial model for all clusters, or a different one for each."""
    opening: Steps = ("E", "M", "D")
    """The steps that are done once, before the first round."""
    steps: Steps = ("L", "E", "M", "D")
    """The steps of a round. IFCA aggregates before it assigns: L, M, E, D."""
    members: int = 1
    """The number of independent runs whose predictions are averaged (FedAvg+, FedProx+)."""
    judge: Program | None = None
    """The program that clients run when the clustering tries how well a division would serve them.
    It replies one number, and smaller is better. None: the clustering sees only what clients send
    anyway."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of `wecfl.Plan` for this method: SCAFFOLD sets momentum to 0."""

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"k": self.at_start, "members": self.members}
        for name, value in checked.items():
            if not isinstance(value, int | np.integer) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("distance", "clustering", "importance", "aggregation", "local", "serve"):
            if not callable(getattr(self, name)):
                raise ConfigError(f"{name} must be callable, got {getattr(self, name)!r}")
        for name in ("opening", "steps"):
            for step in getattr(self, name):
                if not isinstance(step, Ask) and step not in ("E", "M", "D", "L"):
                    raise ConfigError(
                        f"each step in {name} must be E, M, D, L or an Ask, got {step!r}"
                    )
        if not any(step == "L" or (isinstance(step, Ask) and not step.program)
                   for step in self.steps):  # fmt: skip
            raise ConfigError(f"steps must contain a local update (L), got {self.steps}")
        if self.start not in ("one", "each"):
            raise ConfigError(f"start must be 'one' or 'each', got '{self.start}'")

    def check(self, m: int, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error if the method can't run with m clients, this plan or this model."""
        if self.at_start > m:  # at least one cluster would always be empty
            raise ConfigError(
                f"{self.name} can't form {self.k} clusters of {m} clients: "
                f"ask for at most {m} clusters"
            )
        body = [entry.name for entry in layout.entries if "classifier" not in entry.tags]
        if "classifier" in self.shared and not body:
            raise ModelError(
                f"{self.name} separates the last layer from the others, but this model has only "
                f"one layer: choose a model with more layers"
            )
        if self.shared != "all" and private_columns(layout, self.shared) is None:
            raise ModelError(
                f"{self.name} shares the columns '{self.shared}', which are the whole model, so "
                f"clients would keep nothing private: share fewer columns, or set shared to 'all'"
            )
        self.representation.check(self.shared, layout)
        if self.representation.tells:
            self.representation.tells.check(plan, layout)
        self.local.check(plan, layout)
        for step in (*self.opening, *self.steps):
            if isinstance(step, Ask) and step.check:
                step.check(plan, layout)
        if self.members > 1 and self.serve.needs_memory:
            raise ConfigError(
                f"{self.name} serves clients by personal models, and these can't vote: set members "
                f"to 1"
            )

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs that clients may be asked to run, except the library's own evaluations."""
        asks = [step for step in (*self.opening, *self.steps) if isinstance(step, Ask)]
        others = (self.judge, self.representation.tells, *(step.program for step in asks))
        return (self.local, *(program for program in others if program))

    @property
    def needs(self) -> frozenset[str]:
        """What an engine must offer to run the method, such as `features`."""
        return frozenset().union(*map(needs_of, self.programs))

    @property
    def whole_centers(self) -> bool:
        """Whether a cluster's model predicts alone: without other models or private columns."""
        exchanged = self.shared == "all" and "model" in self.local.replies
        return exchanged and self.serve.center_alone

    @property
    def sends_all_models(self) -> bool:
        """Whether clients need more for their local update than the model of one cluster."""
        asks = [step for step in self.steps if isinstance(step, Ask) and not step.program]
        return any(ask.common for ask in asks)

    @property
    def at_start(self) -> int:
        """K at the start of a run."""
        return 1 if self.k == "auto" else self.k

    def replace(self, **changes: Any) -> Method:
        """A copy of the method with these components changed."""
        known = [field.name for field in dataclasses.fields(self)]
        for key in changes:
            if key not in known:
                raise ConfigError(unknown("component of a method", key, known))
        return dataclasses.replace(self, **changes)
