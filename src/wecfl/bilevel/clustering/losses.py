"""Clusters by losses: K-means of loss vectors (CLoVE), and a start of IFCA that is spread out.

A client's loss vector is (L(Ω_1, D_i), …, L(Ω_K, D_i)) (`wecfl.bilevel.representation.Losses`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wecfl.bilevel.clustering.kmeans import DistinctClients, KMeans
from wecfl.bilevel.evaluation import losses
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Clusters, Distance, View
from wecfl.core.plan import LocalPlan
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one

__all__ = ["LossSpread", "LossVectors", "needs_body"]


@dataclass(frozen=True, slots=True)
class LossVectors:
    """CLoVE: K-means of the loss vectors; then each cluster gets the model that suits it best.

    Clusters c and models k are matched one to one, so that Σ_c Σ_{i∈c} λ_i L(Ω_{k(c)}, D_i) is as
    small as possible (an assignment problem, solved by the Hungarian method). So a model that is
    the best for all clients does not get all of them, as it does if each client chooses for itself
    (IFCA). K-means makes `fresh` starts.

    >>> points = np.array([[0.1, 0.5], [0.2, 0.5], [0.4, 0.9], [0.5, 0.9]])    # model 0 is best
    >>> view = View(points, np.eye(2), np.ones(4), np.zeros(4, int))
    >>> LossVectors()(view, None, np.random.default_rng(0)).labels.tolist()
    [1, 1, 0, 0]
    """

    fresh: int = 10

    def __post_init__(self) -> None:
        if self.fresh < 1:
            raise ConfigError(f"K-means of losses needs fresh ≥ 1, got {self.fresh}")

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The model of each client; models without a cluster stay as they are."""
        from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  (slow to load)

        clients = DistinctClients.of(view)
        points, start = (np.asarray(a, np.float64) for a in (clients.points, view.centers))
        with one_thread():
            found = KMeans(self.fresh, warm=False).lloyd(points, start, clients.weight, rng)
            share = np.zeros((found.max() + 1, len(points)))
            share[found, np.arange(len(points))] = clients.weight
            _, models = linear_sum_assignment(share @ points)
        return Clusters(models[found][clients.which].astype(np.int64), view.centers)


@dataclass(frozen=True, slots=True)
class LossSpread:
    """Finds K models to start from: k-means++, with losses in the place of squared distances.

    Before, each client has trained the initial model on its own data. The first of the K models is
    that of a client drawn with probability proportional to λ_i. Each further one is that of a
    client drawn with probability proportional to λ_i times the smallest loss on D_i of the models
    chosen before. So clients that no model suits are likely to be drawn (as in FedJAX's
    HypCluster). Of `restarts` such draws, the one with the smallest Σ_i λ_i min_k L(Ω_k, D_i) is
    taken.

    The columns `common` are the same in all K models: the λ-mean of all clients' columns.

    >>> LossSpread(restarts=3).common
    ''
    """

    restarts: int = 1
    common: str = ""
    batches: int | None = None

    def __post_init__(self) -> None:
        check_at_least_one(restarts=self.restarts)

    def __call__(self, before: State, after: State, sent: Table, setting: Setting) -> State:
        """The state with these models as centers; if clients are fewer than K, the others stay."""
        heard = np.flatnonzero(after.heard)
        weight, models = setting.importance[heard], after.models[heard]
        if self.common and len(heard):
            columns = setting.engine.layout.columns(self.common)
            everyone = np.zeros(len(heard), np.int64)
            with one_thread():
                models[:, columns] = cluster_means(models[:, columns], everyone, weight)
        k = min(len(before.centers), len(heard))
        near = np.full((self.restarts, len(heard)), np.inf)
        chosen = np.zeros((self.restarts, k), np.int64)
        for j in range(k):
            for r in range(self.restarts):
                odds = weight * (near[r] if j else 1.0)
                odds[chosen[r, :j]] = 0.0
                draws = setting.channel.draws(f"spread {r} {j}", len(after.labels), before.round)
                chosen[r, j] = _drawn(odds, draws[heard])
            found = losses(
                setting.engine, models[chosen[:, j]], batches=self.batches, seed=setting.seed,
                round=before.round, who=heard,
            )  # fmt: skip
            near = np.fmin(near, found.T)  # of a client that does not answer, the old loss stays
        centers = before.centers.copy()
        if k:
            best = np.where(np.isfinite(near), near, 0.0) @ weight
            centers[:k] = models[chosen[best.argmin()]]
        if self.common and len(heard):
            centers[k:, columns] = models[0, columns]
        return after.replace(centers=centers, replies=None)


def needs_body(plan: LocalPlan, layout: Layout) -> None:
    """Raise an error for a model without a body, that is with a last layer only.

    >>> needs_body(LocalPlan(), Layout.of([("a", (2,), []), ("b", (1,), ["classifier"])]))
    """
    layout.columns("~classifier")


def _drawn(odds: F64, draws: F64) -> int:
    """One of the clients, drawn by these odds; the draw does not depend on their order.

    Each client gets an exponential waiting time with its odds as rate. The shortest one wins.
    """
    with np.errstate(divide="ignore"):
        times = np.where(odds > 0, -np.log1p(-draws) / odds, np.inf)
    return int(times.argmin())
