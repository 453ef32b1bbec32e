"""Clusterings of the clients' updates of one fixed model: FedGroup's and StoCFL's.

Each client tells its update once (`wecfl.bilevel.representation.telling.InitialUpdate`). So the
updates of clients that come at different times can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from wecfl.bilevel.aggregation.mean import Mean
from wecfl.bilevel.clustering.kmeans import DistinctClients, KMeans, joined
from wecfl.bilevel.local.common_model import BesideCommonModel
from wecfl.bilevel.local.training import kept
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Aggregation, Clusters, Distance, View
from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import ReplyAndMemory, Sent, Site
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64, Int, Table
from wecfl.errors import ConfigError
from wecfl.layout import Layout
from wecfl.limits import check_at_least_one, check_not_negative

__all__ = ["BetweenGroups", "DecomposedCosines", "Merging", "PulledSteps", "keep_updates"]


# ── FedGroup ─────────────────────────────────────────────────────────────────────────────────────


def keep_updates(before: State, after: State, sent: Table, setting: Setting) -> State:
    """Learns what clients would tell: how a trial has changed the model that they were sent.

    >>> before = State(0, None, np.ones((1, 2), np.float32), np.zeros(2, int))
    >>> after = before.replace(replies={"model": np.array([[1, 3], [2, 1]], np.float32)})
    >>> from types import SimpleNamespace
    >>> setting = SimpleNamespace(engine=SimpleNamespace(layout=Layout.of([("w", (2,), [])])))
    >>> keep_updates(before, after, {}, setting).known["told"].tolist()
    [[0.0, 2.0], [1.0, 0.0]]
    """
    columns = slice(setting.engine.layout.trainable)
    updates = (after.models - before.models)[:, columns]
    updates[~after.heard] = np.nan
    return after.replace(known={**after.known, "told": updates})


@dataclass(frozen=True, slots=True)
class DecomposedCosines:
    """FedGroup: K-means of each update's cosines to the K main directions of all updates (EDC).

    The directions are the first K singular vectors of the updates of `per_group`·K clients, which
    are drawn at random. The other clients join the group whose mean update is nearest by the
    method's distance; so do clients that come later.

    >>> points = np.array([[1.0, 0.1], [1.0, -0.1], [-0.1, 1.0], [0.1, 1.0]])
    >>> view = View(points, np.zeros((2, 2)), np.ones(4), np.full(4, -1))
    >>> DecomposedCosines()(view, None, np.random.default_rng(0)).labels.tolist()
    [0, 0, 1, 1]
    """

    per_group: int = 20

    def __post_init__(self) -> None:
        check_at_least_one(per_group=self.per_group)

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The groups; after the first clustering, only new clients are placed."""
        if (view.labels >= 0).any():
            return Clusters(joined(view, distance), view.centers)
        clients, k = DistinctClients.of(view), len(view.centers)
        n = len(clients.points)
        drawn = np.sort(rng.permutation(n)[: self.per_group * k])
        points, weight = np.asarray(clients.points[drawn], np.float64), clients.weight[drawn]
        with one_thread():
            cosines = _cosines_to_directions(points, k)
            found = KMeans(warm=False).lloyd(cosines, np.zeros((k, cosines.shape[1])), weight, rng)
            means = cluster_means(points, found, weight)
        every = np.empty(n, np.int64)
        every[drawn] = found
        if len(drawn) < n:
            others = np.setdiff1d(np.arange(n), drawn)
            every[others] = distance(clients.points[others], means).argmin(axis=1)
        return clients.clusters(every)


def _cosines_to_directions(updates: F64, k: int) -> F64:
    """(n, k), cos(Δ_i, v_j) with the first k right singular vectors v_j of the updates (n, P)."""
    values, vectors = np.linalg.eigh(updates @ updates.T)
    along = vectors[:, ::-1][:, :k] * np.sqrt(np.maximum(values[::-1][:k], 0))
    norms = np.linalg.norm(updates, axis=1, keepdims=True)
    cosines: F64 = np.divide(along, norms, out=np.zeros_like(along), where=norms > 0)
    return cosines


@dataclass(frozen=True, slots=True)
class BetweenGroups:
    """FedGroup: after its own mean, a group takes a step along the models of the other groups.

    Ω_k ← Ω_k + `rate` · Σ_{j≠k} Ω_j / ‖Ω_j‖, over the groups that were heard.

    >>> models = {"model": np.array([[3.0, 4.0], [0.0, 2.0]], np.float32)}
    >>> state = State(1, models, np.zeros((2, 2), np.float32), labels=np.array([0, 1]))
    >>> BetweenGroups(1.0)(state, np.ones(2), np.ones(2, int)).centers.round(1)
    array([[3. , 5. ],
           [0.6, 2.8]], dtype=float32)
    """

    rate: float = 0.0
    of: Aggregation = field(default_factory=Mean)

    def __post_init__(self) -> None:
        check_not_negative(between_rate=self.rate)

    def __call__(
        self, state: State, importance: F64, sizes: Int, layout: Layout | None = None
    ) -> State:
        """The state with the new centers; before the first round, they are the means."""
        after = self.of(state, importance, sizes, layout)
        if state.round == 0:
            return after
        heard = np.unique(state.labels)
        columns = slice(layout.trainable if layout else None)
        means = after.centers[heard, columns].astype(np.float64)
        norms = np.linalg.norm(means, axis=1, keepdims=True)
        units = np.divide(means, norms, out=np.zeros_like(means), where=norms > 0)
        centers = after.centers.copy()
        centers[heard, columns] = means + self.rate * (units.sum(axis=0) - units)
        return after.replace(centers=centers)


# ── StoCFL ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Merging:
    """StoCFL: clusters are merged while the cosine of their mean updates is at least `tau`.

    A new client begins as a cluster of its own. The two clusters with the largest cosine are merged
    first. The union keeps the number of the old cluster that has most λ in it. No cluster is ever
    split.

    >>> points = np.array([[1.0, 0.1], [1.0, -0.1], [-0.1, 1.0]])
    >>> view = View(points, np.zeros((1, 2)), np.ones(3), np.full(3, -1))
    >>> Merging(0.5)(view, None, np.random.default_rng(0)).labels.tolist()
    [0, 0, 1]
    """

    tau: float = 0.5

    def __post_init__(self) -> None:
        if not -1 < self.tau <= 1:
            raise ConfigError(f"tau is a cosine and must lie in (-1, 1], got {self.tau}")

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """The clusters after all merges."""
        points, weight = np.asarray(view.points, np.float64), view.importance
        new = np.flatnonzero(view.labels < 0)
        before = view.labels.copy()
        before[new] = len(view.centers) + np.arange(len(new))
        _, start = np.unique(before, return_inverse=True)
        with one_thread():
            sums = cluster_means(points, start, weight) * np.bincount(start, weight)[:, None]
            part = _merged(sums @ sums.T, self.tau)[start]
        labels = self._numbered(part, view)
        k = max(len(view.centers), labels.max() + 1)
        with one_thread():
            means = cluster_means(points, labels, weight, k)
        empty = np.bincount(labels, minlength=k) == 0
        empty[len(view.centers) :] = False
        means[empty] = view.centers[empty[: len(view.centers)]]
        return Clusters(labels, means)

    def _numbered(self, part: Int, view: View) -> Int:
        """(n,), labels: the number of the old cluster with most λ in a part, or else a new one."""
        labels, first = np.empty_like(part), len(view.centers) * bool((view.labels >= 0).any())
        order = sorted(
            np.unique(part), key=lambda p: (-view.importance[part == p].sum(), np.argmax(part == p))
        )
        for p in order:
            inside = part == p
            old = inside & (view.labels >= 0)
            if old.any():
                labels[inside] = np.bincount(view.labels[old], view.importance[old]).argmax()
            else:
                labels[inside], first = first, first + 1
        return labels


def _merged(products: F64, tau: float) -> Int:
    """(c,), for each of c clusters the one that it is merged into.

    `products` (c, c) are the inner products of the clusters' sums of updates. The cosine between
    two means is that between the two sums; and if clusters are merged, their products are added.
    """
    into = np.arange(len(products))
    alive = np.ones(len(products), np.bool_)
    products = products.copy()
    while alive.sum() > 1:
        norms = np.sqrt(np.maximum(np.diag(products), 0))
        scale = np.outer(norms, norms)
        cosines = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
        cosines[~alive], cosines[:, ~alive] = -2, -2
        np.fill_diagonal(cosines, -2)
        a, b = sorted(np.unravel_index(cosines.argmax(), cosines.shape))
        if cosines[a, b] < tau:
            break
        products[a] += products[b]
        products[:, a] += products[:, b]
        alive[b] = False
        into[into == b] = a
    return into


@dataclass(frozen=True, slots=True)
class PulledSteps(BesideCommonModel):
    """StoCFL: trains a common model, and the cluster's model with a pull mu towards the common one.

    The common model ω takes Q steps on L(ω, D_i), and the cluster's model θ takes Q steps on
    L(θ, D_i) + mu/2·‖θ − Ω‖², where Ω is the common model as it was received. All clients begin
    with the same Ω, and the server averages their ω.

    >>> list(PulledSteps().replies)
    ['model', 'common']
    """

    mu: float = 0.05
    name: ClassVar[str] = "pulled-steps"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_not_negative(mu=self.mu)

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        """Train both models on the same mini-batches."""
        rows = sent.own["model"]
        # A newcomer is sent the initial model only, which is also the first common model.
        received = sent.own["common"] if "common" in sent.own else rows.copy()
        common, drift = site.train(received, plan, velocity=memory.get("common_momentum"))
        rows, velocity = site.train(
            rows, plan, correction=Correction(self.mu, anchor=received),
            velocity=memory.get("momentum"), out=rows,
        )  # fmt: skip
        after = kept(memory, momentum=velocity, common_momentum=drift)
        return {"model": rows, "common": common}, after
