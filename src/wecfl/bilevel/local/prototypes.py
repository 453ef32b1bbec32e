"""FedProto: clients exchange the mean features of each class, and no models.

The features of a sample are the inputs of the last linear layer of a model. The prototype of a
class is the mean of the features of its samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wecfl.bilevel.local.training import MODEL_REPLY, kept, momentum_field
from wecfl.bilevel.representation.from_models import FromModels, to_own_center
from wecfl.core.components import Distance
from wecfl.core.engine import Engine
from wecfl.core.plan import FeatureTerm, LocalPlan
from wecfl.core.program import Field, ReplyAndMemory, Sent, Site
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int, Table
from wecfl.errors import ConfigError, ModelError
from wecfl.layout import Layout
from wecfl.limits import check_not_negative

__all__ = ["PrototypeMeans", "PrototypeSteps", "Prototypes", "own_prototypes"]


def own_prototypes(state: State, setting: Setting) -> Table:
    """What clients are sent: the prototypes (m, C, D) of their cluster, and their counts (m, C).

    A class whose count is 0 has no prototype yet.
    """
    if (task := setting.engine.task).name != "classification":
        raise ConfigError(
            f"prototypes are means of classes, and the task {task.name} has no classes: choose "
            f"another method, such as ditto"
        )
    tables = _tables(state, setting.engine.layout)
    return {name: rows[state.labels] for name, rows in tables.items()}


def _tables(state: State, layout: Layout) -> Table:
    """The prototypes (K, C, D) of all clusters and their counts (K, C); zeros at first."""
    k, (c, d) = len(state.centers), layout.head
    return {
        "prototypes": state.cluster.get("prototypes", np.zeros((k, c, d), np.float32)),
        "counts": state.cluster.get("counts", np.zeros((k, c))),
    }


@dataclass(frozen=True, slots=True)
class PrototypeSteps:
    """Train the client's own model, whose features are pulled towards the common prototypes.

    The term lam·‖z − C_y‖² is added to the loss of a sample with features z and class y, where C_y
    is the prototype received (Tan et al., *FedProto: Federated Prototype Learning across
    Heterogeneous Clients*, AAAI 2022). Then the client replies its own prototypes, and the number
    of samples in the mean of each class. It also replies the columns that are shared.

    >>> list(PrototypeSteps(lam=0.1).replies)
    ['model', 'prototypes', 'counts']
    """

    lam: float = 0.02
    name: ClassVar[str] = "prototype-steps"
    version: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset({"features"})
    replies: ClassVar[Mapping[str, Field]] = {
        **MODEL_REPLY, "prototypes": Field(("C", "D")), "counts": Field(("C",), "float64")
    }  # fmt: skip

    def __post_init__(self) -> None:
        check_not_negative(lam=self.lam)

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        """The momentum buffer."""
        return momentum_field(plan)

    def check(self, plan: LocalPlan, layout: Layout) -> None:
        """Raise an error unless the model has features, and a last layer with a bias."""
        classifier = [entry for entry in layout.entries if "classifier" in entry.tags]
        if len(classifier) != 2 or len(classifier) == len(layout.entries):
            raise ModelError(
                "prototypes are means of features, the inputs of a last linear layer with a bias, "
                "after other layers, and this model has none: choose such a model"
            )

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train, and compute the mean features of each class."""
        rows, points, counts = sent.own["model"], sent.own["prototypes"], sent.own["counts"]
        (_, targets), n = site.samples(), len(site.sizes)
        of = np.repeat(np.arange(n), site.sizes), targets
        factors = self.lam * (counts[of] > 0).astype(np.float32)
        rows, velocity = site.train(
            rows, plan, velocity=memory.get("momentum"),
            term=FeatureTerm("squared", points[of], factors), out=rows,
        )  # fmt: skip
        sums, held = np.zeros(points.shape), np.zeros(counts.shape)
        np.add.at(sums, of, site.features(rows))
        np.add.at(held, of, 1)
        means = sums / np.maximum(held, 1)[:, :, None]
        prototypes: F32 = means.astype(np.float32)
        reply: Table = {"model": rows, "prototypes": prototypes, "counts": held}
        return dict(reply), kept(memory, momentum=velocity)


@dataclass(frozen=True, slots=True)
class PrototypeMeans:
    """The prototype of each class and cluster: the mean over clients, weighted by their counts.

    If no client of this round has a sample of a class, the class keeps its prototype. Models stay
    with the clients.

    >>> replies = {"prototypes": np.array([[[0.0]], [[4.0]]]), "counts": np.array([[3.0], [1.0]])}
    >>> state = State(1, replies, np.zeros((1, 1), np.float32), labels=np.array([0, 0]))
    >>> PrototypeMeans()(state, np.ones(2), np.ones(2, int)).cluster["prototypes"].tolist()
    [[[1.0]]]
    """

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new prototypes and their counts."""
        stayed = state.replace(centers=state.centers.copy())
        if not state.replies or "prototypes" not in state.replies or not len(importance):
            return stayed
        means, counts = state.replies["prototypes"], state.replies["counts"]
        sums = np.zeros((len(state.centers), *means.shape[1:]))
        held = np.zeros((len(state.centers), *counts.shape[1:]))
        np.add.at(sums, state.labels, counts[:, :, None] * means)
        np.add.at(held, state.labels, counts)
        new = (sums / np.maximum(held, 1)[:, :, None]).astype(np.float32)
        if "prototypes" in state.cluster:
            heard = held > 0
            new = np.where(heard[:, :, None], new, state.cluster["prototypes"])
            held = np.where(heard, held, state.cluster["counts"])
        return stayed.replace(cluster={**state.cluster, "prototypes": new, "counts": held})


@dataclass(frozen=True, slots=True)
class Prototypes(FromModels):
    """A client is represented by its prototypes, and a cluster by those of its clients.

    If a client has no samples of a class, its cluster's prototype takes the place of its own.

    >>> Prototypes().asks
    False
    """

    asks: ClassVar[bool] = False

    def check(self, shared: str, layout: Layout) -> None:
        """Accept everything: prototypes are not columns of a model."""

    def clients(self, state: State, engine: Engine, seed: int, who: Bool | None = None) -> F32:
        """(m, C·D), the prototypes."""
        points = _tables(state, engine.layout)["prototypes"][state.labels]
        if state.replies and "prototypes" in state.replies:
            held = state.replies["counts"] > 0
            points = np.where(held[:, :, None], state.replies["prototypes"], points)
        flat: F32 = points.reshape(len(points), -1)
        return flat if who is None else flat[who]

    def centers(self, state: State, engine: Engine, seed: int) -> F32:
        """(K, C·D), the prototypes of the clusters."""
        prototypes = _tables(state, engine.layout)["prototypes"]
        flat: F32 = prototypes.reshape(len(prototypes), -1)
        return flat

    def own_distances(self, state: State, engine: Engine, distance: Distance, seed: int) -> F64:
        """(m,), how far a client's prototypes are from those of its cluster."""
        points, centers = self.clients(state, engine, seed), state.whole.get("moved")
        centers = self.centers(state, engine, seed) if centers is None else centers
        return to_own_center(points, centers, state.labels, distance)
