"""`Served`: the server chooses K, the number of clusters, by how well clusters serve the clients.

Geometry proposes, held-out data decide. Ward's hierarchy divides the clients into K = 1, 2, …
clusters. Each client then says how large the loss of its cluster's model is on its validation
samples, which it has left out of its last local update. What was measured about this rule and about
others is in `docs/evidence/auto-k.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from wecfl.bilevel.clustering.kmeans import DistinctClients, KMeans, isometric
from wecfl.bilevel.clustering.ward import silhouettes, weighted_ward
from wecfl.bilevel.distance import distances, squared_euclidean
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.threads import one_thread
from wecfl.core.components import Clusters, Distance, Judge, View
from wecfl.core.types import F64, Bool, Int
from wecfl.errors import ConfigError

__all__ = ["LEAST_SHARE", "STANDARD_ERRORS", "Look", "Served"]

STANDARD_ERRORS = 2.0
"""Clusters are accepted if they lower the loss of one model by more standard errors than this."""
LEAST_SHARE = 0.9
"""Clusters are accepted if they lower the loss by at least this share of what a model of its own
for each client would. Their own models also fit what only one client has: without groups they gain
far more."""
MIN_CLIENTS = 4
"""The smallest number of clients that K is chosen from."""
MAX_CLIENTS = 2000
"""The largest number of clients that K is chosen from. If there are more, this many are drawn at
random, since the number of distances grows with m²."""
AGREEING_LOOKS = 2
"""The number of looks in a row that must find the same K."""
KEPT_NOTES = ("k", "settled", "found", "same", "grouped", "next")
"""The notes that stay until the next look."""
CHANCE_DRAWS = 3
"""The number of random references that say what silhouette is found where there are no groups."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What is known about K = 1, 2, … after a look at n clients.

    >>> points = np.array([[0.0], [0.1], [0.2], [9.0], [9.1], [9.2]])
    >>> def judge(labels, who):                 # the squared distance to the mean of its cluster
    ...     labels = np.arange(6) if labels is None else labels
    ...     mean = cluster_means(points, labels, np.ones(6))[labels]
    ...     return (points - mean)[:, 0] ** 2 + 0.1 / np.bincount(labels)[labels]
    >>> look = Look.of(points, np.ones(6), judge, most=3)
    >>> look.loss.round(2).tolist(), look.best
    ([20.27, 0.04, 0.05], 2)
    """

    labels: Int
    """(levels, n), the cluster of each client for each K."""
    silhouette: F64
    """(levels,), the λ-weighted silhouette for each K; NaN for K = 1."""
    losses: F64
    """(n, levels), the validation loss of each client with the model of its cluster, for each K."""
    alone: F64
    """(n,), the validation loss of each client with its own model."""
    weight: F64
    """(n,), how much each client counts; they sum to 1, and are 0 for a client without losses."""

    @classmethod
    def of(cls, points: F64, importance: F64, judge: Judge, most: int) -> Self:
        """Propose divisions into at most `most` clusters, and half the number of clients."""
        n, weight = len(points), importance / importance.sum()
        far = distances(points)
        nodes = weighted_ward(far, weight, max(min(most, n // 2), 1))
        labels = np.stack([np.unique(level, return_inverse=True)[1] for level in nodes])
        silhouette = np.full(len(labels), np.nan)
        for level in range(1, len(labels)):
            each = _client_silhouettes(far, labels[level], weight)
            silhouette[level] = np.average(each, weights=weight)
        losses = _path_losses(nodes, judge)
        alone = judge(None, np.ones(n, np.bool_))
        answered = np.isfinite(losses).all(axis=1) & np.isfinite(alone)
        counted = np.where(answered, weight, 0.0)
        if not answered.any():
            return cls(labels[:1], silhouette[:1], np.zeros((n, 1)), np.zeros(n), weight)
        return cls(
            labels, silhouette, np.where(answered[:, None], losses, 0.0),
            np.where(answered, alone, 0.0), counted / counted.sum(),
        )  # fmt: skip

    @property
    def loss(self) -> F64:
        """(levels,), the λ-mean of the losses for each K."""
        mean: F64 = self.weight @ self.losses
        return mean

    def gain(self, of: F64, over: F64) -> tuple[float, float]:
        """By how much losses (n,) are lower than others on average, and its standard error."""
        difference = over - of
        mean = float(self.weight @ difference)
        clients = max(int((self.weight > 0).sum()), 2)
        spread = float((self.weight**2 * (difference - mean) ** 2).sum())
        return mean, float(np.sqrt(spread * clients / (clients - 1)))

    @property
    def clearest(self) -> int:
        """The K with the largest product of silhouette and gain over one model; 1 if none gains.

        The gain alone goes on rising if clusters are divided further where labels are skewed, and
        the silhouette alone merges clusters that lie close together.
        """
        gain = np.maximum(self.loss[0] - self.loss, 0)
        return int((np.maximum(np.nan_to_num(self.silhouette), 0) * gain).argmax()) + 1

    @property
    def proposed(self) -> int:
        """The smallest K that serves the clients as well as the clearest K, to a standard error."""
        clearest = self.losses[:, self.clearest - 1]
        paired = [self.gain(clearest, self.losses[:, level]) for level in range(self.clearest)]
        return next(k for k, (more, error) in enumerate(paired, 1) if more <= error)

    @property
    def best(self) -> int:
        """`proposed`, or 1 if its clusters don't serve better than one model and than none.

        Clients that each serve themselves far better than their cluster does have no groups.
        """
        k, one = self.proposed, self.losses[:, 0]
        mean, error = self.gain(self.losses[:, k - 1], one)
        alone, _ = self.gain(self.alone, one)
        return k if mean > STANDARD_ERRORS * error and mean >= LEAST_SHARE * alone else 1


@dataclass(frozen=True, slots=True)
class Served:
    """K-means with a K whose clusters serve the clients best.

    All clients start in one cluster. A look (`Look.best`) is taken in each round until the same
    K > 1 was found in two looks in a row, or some K > 1 in `patience` looks in a row. Then the
    clients are divided, those between two clusters say which of them serves them better, and K has
    settled. After `patience` looks in a row that found K = 1, the
    next looks are taken `pause` rounds later. Clients are looked at if they were heard in this
    round.

    Its notes are `k`; `settled` (0 or 1); `found`, the K of the last look; `same` and `grouped`,
    the number of looks in a row that found this K, and a K > 1; and `next`, the round of the next
    look. After a look there are also the curves `silhouette` and `loss`, and of the K that is
    `proposed`: `chance`, the silhouette where there are no groups, `alone`, the loss of the
    clients' own models, `gain` and `error` (how much better than one model, and its standard
    error), `better`, the share of clients that are served better, `uncertain`, the number of
    clients nearer to another cluster, and `clients`, how many were looked at.

    >>> Served().patience
    3
    """

    clustering: KMeans = field(default_factory=KMeans)
    most: int = 50
    """The largest K that is tried."""
    patience: int = 3
    pause: int = 10

    def __post_init__(self) -> None:
        if self.most < 2 or self.patience < 1 or self.pause < 1:
            raise ConfigError(
                f"Served needs most ≥ 2, patience ≥ 1 and pause ≥ 1, "
                f"got {self.most}, {self.patience} and {self.pause}"
            )

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Clusters, which continue the previous ones under their numbers."""
        if distance is not squared_euclidean:
            raise ConfigError(
                "K is chosen by squared Euclidean distances: set distance to squared_euclidean"
            )
        heard = np.ones(len(view.points), np.bool_) if view.heard is None else view.heard
        notes = {name: view.notes[name] for name in KEPT_NOTES if name in view.notes}
        division = None
        with one_thread():
            if self._looks(view, heard, notes):
                looked = _drawn(heard, rng)
                points, weight = view.points[looked].astype(np.float64), view.importance[looked]
                judge = _judge_of(view, looked)
                look = Look.of(points, weight, judge, self.most)
                notes = self._after(look, notes, view.round) | _told(look, points, weight, rng)
                if notes["settled"][0]:
                    division = cluster_means(points, look.labels[look.best - 1], weight)
            found = self._continued(view, heard, division, rng)
            if division is not None:
                found = _better_placed(view, found, heard)
        validate = not _number(notes, "settled") and view.round + 1 >= _number(notes, "next")
        placed = None if division is None or heard.all() else heard
        return Clusters(found.labels, found.centers, notes, validate, placed)

    def _looks(self, view: View, heard: Bool, notes: Mapping[str, F64]) -> bool:
        """Whether a look is taken in this round."""
        due = view.round >= _number(notes, "next") and not _number(notes, "settled")
        return due and view.judge is not None and int(heard.sum()) >= MIN_CLIENTS

    def _continued(
        self, view: View, heard: Bool, division: F64 | None, rng: np.random.Generator
    ) -> Clusters:
        """The clusters of the clients heard, from these new centers (K, p) or from the old ones.

        Once divided, they only follow their centers: a fresh start may find a lower F that serves
        them worse, and nobody would judge it. The others stay where they are. If some are missing,
        clients go to the nearest center, since K-means would divide other clusters in place of
        those that nobody is heard of.
        """
        inhabited = np.unique(view.labels)
        seen = replace(
            view, points=view.points[heard], importance=view.importance[heard],
            labels=view.labels[heard], heard=None,
        )  # fmt: skip
        if division is None and not heard.all():
            near = squared_euclidean(seen.points, view.centers[inhabited]).argmin(axis=1)
            labels = view.labels.copy()
            labels[heard] = inhabited[near]
            return Clusters(labels, view.centers)
        clients = DistinctClients.of(seen)
        start = view.centers[inhabited] if division is None else division
        points, centers = isometric(clients.points, start)
        kmeans = self.clustering if division is not None else KMeans(fresh=0)
        found = clients.clusters(kmeans.lloyd(points, centers, clients.weight, rng), inhabited)
        labels = view.labels.copy()
        labels[heard] = found.labels
        return Clusters(labels, found.centers)

    def _after(self, look: Look, notes: Mapping[str, F64], round: int) -> dict[str, F64]:
        """The notes after a look: what was found, whether it has settled, and the next look."""
        k = look.best
        same = 1 + (_number(notes, "same") if k == _number(notes, "found") else 0)
        grouped = 1 + _number(notes, "grouped") if k > 1 else 0
        settled = k > 1 and (same >= AGREEING_LOOKS or grouped >= self.patience)
        pauses = k == 1 and same >= self.patience
        numbers = {
            "k": k if settled else 1, "settled": settled, "found": k, "same": same,
            "grouped": grouped, "next": round + (self.pause if pauses else 1),
        }  # fmt: skip
        return {name: np.array([float(number)]) for name, number in numbers.items()}


def _better_placed(view: View, found: Clusters, heard: Bool) -> Clusters:
    """The clusters, after clients between two of them were asked which one serves them better.

    A client is between two clusters if the center of another cluster is nearer to it than that of
    its own would be without it, ‖g_i − G_l‖² < ‖g_i − G_k‖² / (1 − λ_i / Σ_{j∈k} λ_j)². All of them
    try the other cluster at the same time. A cluster that all its clients would leave is kept.
    """
    who, centers = np.flatnonzero(heard), found.centers.copy()
    points, weight, own = view.points[who], view.importance[who], found.labels[who]
    rest, inhabited = 1 - weight / np.bincount(own, weight)[own], np.unique(own)
    far = np.full((len(who), len(centers)), np.inf)
    far[:, inhabited] = squared_euclidean(points, centers[inhabited])
    without = np.take_along_axis(far, own[:, None], axis=1)[:, 0]
    without = np.divide(without, rest**2, out=np.zeros(len(who)), where=rest > 0)
    np.put_along_axis(far, own[:, None], np.inf, axis=1)
    between = heard.copy()
    between[who] = far.min(axis=1) < without
    if not between.any():
        return found
    assert view.judge
    tried = found.labels.copy()
    tried[between] = far.argmin(axis=1)[between[who]]
    better = view.judge(tried, between) < view.judge(found.labels, between)
    labels = np.where(better, tried, found.labels)
    labels = np.where(np.isin(found.labels, labels[who]), labels, found.labels)
    centers[inhabited] = cluster_means(points, labels[who], weight)[inhabited]
    return Clusters(labels, centers)


def _number(notes: Mapping[str, F64], name: str) -> float:
    """A note, or 0 before the first look."""
    return float(notes[name][0]) if name in notes else 0.0


def _drawn(heard: Bool, rng: np.random.Generator) -> Int:
    """The clients that are looked at, in ascending order."""
    clients = np.flatnonzero(heard)
    if len(clients) > MAX_CLIENTS:
        clients = np.sort(rng.choice(clients, MAX_CLIENTS, replace=False))
    return clients


def _judge_of(view: View, looked: Int) -> Judge:
    """Asks only clients that are looked at. The others are in no cluster that is tried."""
    n, judge = len(view.points), view.judge
    assert judge

    def asked(labels: Int | None, who: Bool) -> F64:
        chosen = np.zeros(n, np.bool_)
        chosen[looked] = who
        if labels is None:
            return judge(None, chosen)[looked]
        divided = np.full(n, labels.max() + 1)
        divided[looked] = labels
        return judge(divided, chosen)[looked]

    return asked


def _path_losses(nodes: Int, judge: Judge) -> F64:
    """(n, levels), the loss of each client with the model of its node, for each level.

    From one level to the next only the clients of one node get another model. So the nodes are
    tried by generations: first that of all clients, then for each client the first smaller node
    that it belongs to, and so on. Clients without a further node are not asked again.
    """
    levels, n = nodes.shape
    depth = np.zeros((levels, n), np.int64)
    depth[1:] = np.cumsum(nodes[1:] != nodes[:-1], axis=0)
    path = np.zeros((depth[-1].max() + 1, n), np.int64)
    for level in range(levels):
        path[depth[level], np.arange(n)] = nodes[level]
    losses = np.full(path.shape, np.nan)
    for generation in range(len(path)):
        who = depth[-1] >= generation
        at = np.where(who, path[generation], -1)  # no mean includes clients that are not asked
        losses[generation] = judge(np.unique(at, return_inverse=True)[1], who)
    return np.asarray(losses[depth, np.arange(n)].T)


def _client_silhouettes(far: F64, labels: Int, weight: F64) -> F64:
    """(n,), the silhouette of each client, from the distances (n, n) of the clients."""
    members = np.zeros((len(labels), int(labels.max()) + 1))
    members[np.arange(len(labels)), labels] = weight
    return silhouettes(far @ members, labels, weight)


def _told(look: Look, points: F64, weight: F64, rng: np.random.Generator) -> dict[str, F64]:
    """The notes about a look for the reader of the record."""
    far = distances(points)
    k = look.proposed
    if k == 1:
        k = int(np.nan_to_num(look.silhouette, nan=-1.0).argmax()) + 1
    served, one = look.losses[:, k - 1], look.losses[:, 0]
    gain, error = look.gain(served, one)
    chance, uncertain = 0.0, 0.0
    if k > 1:
        each = _client_silhouettes(far, look.labels[k - 1], weight)
        uncertain, chance = float((each < 0).sum()), _chance(far, weight, k, rng)
    numbers: dict[str, float] = {
        "proposed": k, "chance": chance, "alone": float(look.weight @ look.alone), "gain": gain,
        "error": error, "better": float(look.weight @ (served < one)), "uncertain": uncertain,
        "clients": len(far),
    }  # fmt: skip
    return {
        **{name: np.array([float(number)]) for name, number in numbers.items()},
        "silhouette": look.silhouette, "loss": look.loss,
    }  # fmt: skip


def _chance(far: F64, weight: F64, k: int, rng: np.random.Generator) -> float:
    """The mean silhouette of k clusters among as many random points that have no groups.

    The points are normal, with the variances of the clients along their principal axes.
    """
    share, squared = weight / weight.sum(), far**2
    mean = squared @ share
    gram = (mean[:, None] + mean - squared - share @ mean) / 2
    gram *= np.sqrt(share[:, None] * share)
    spread = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0))
    found = []
    for _ in range(CHANCE_DRAWS):
        apart = distances(rng.standard_normal((len(far), len(far))) * spread)
        node = weighted_ward(apart, share, k)[-1]
        labels = np.unique(node, return_inverse=True)[1]
        found.append(np.average(_client_silhouettes(apart, labels, share), weights=share))
    return float(np.mean(found))
