"""`Served`: the server chooses K, the number of clusters, by how well clusters serve the clients.

Geometry proposes, held-out data decide. Ward's hierarchy divides the clients into K = 1, 2, …
clusters. Each client then says how large the loss of its cluster's model is on its validation
samples, which it has left out of its last local update. What is found in one round must serve in
the next one too. What was measured about this rule and about others is in
`docs/evidence/auto-k.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from wecfl.bilevel.clustering.kmeans import DistinctClients, KMeans, isometric
from wecfl.bilevel.clustering.look import Gains, Look, client_silhouettes
from wecfl.bilevel.clustering.ward import MAX_JUDGED_CLIENTS, weighted_ward
from wecfl.bilevel.distance import check_squared_euclidean, distances, squared_euclidean
from wecfl.bilevel.means import cluster_means
from wecfl.bilevel.representation.projection import folded
from wecfl.bilevel.threads import one_thread
from wecfl.core.assignment import nearest_inhabited
from wecfl.core.components import Clusters, Distance, Judge, View
from wecfl.core.types import F64, Bool, Int
from wecfl.errors import ConfigError

__all__ = ["Served"]

MIN_CLIENTS = 4
"""The smallest number of clients that K is chosen from."""
MAX_COLUMNS = 2048
"""The largest number of columns that clients are compared by in a look. If there are more, they are
folded to so many, since K is chosen in a fraction of the time of the local update."""
AGREEING_LOOKS = 2
"""The number of looks in a row that must find the same K."""
KEPT_NOTES = ("k", "settled", "found", "same", "grouped", "next")
"""The notes that stay until the next look."""
GEOMETRY_NOTES = ("silhouette", "chance", "uncertain")
"""The notes about a look that do not depend on what clients reply."""
CHANCE_DRAWS = 3
"""The number of random references that say what silhouette is found where there are no groups."""


@dataclass(frozen=True, slots=True)
class Served:
    """K-means with a K whose clusters serve the clients best.

    All clients start in one cluster. A look (`Look.best`) is taken in each round until K has
    settled. If it finds K > 1, K-means makes clusters from Ward's, clients between two of them say
    which one serves them better, and the result is a candidate. In the next round the candidate is
    judged again (`Look.confirmed`): if it serves the clients then too, they are divided so.
    Otherwise another look is taken. If it finds the same K, or is the one after `patience` − 1
    looks in a row that found some K > 1, the clients are divided as it says. After `patience` looks
    in a row that found K = 1, the next looks are taken `pause` rounds later. Clients are looked at
    if they were heard in this round.

    Until K has settled, clients are compared by `columns` of their models. Groups of
    images, for example, differ in the first layer, and in the last one only by what follows from
    it. From then on clients follow their centers in the representation of the method.

    Its notes are `k`; `settled` (0 or 1); `found`, the K of the last look; `same` and `grouped`,
    the number of looks in a row that found this K, and a K > 1; and `next`, the round of the next
    look. After a look there are also the curves `silhouette` and `loss`, and of the K that is
    `proposed`: `chance`, the silhouette where there are no groups, `alone`, the loss of the
    clients' own models, `gain` and `error` (how much better than one model, and its standard
    error), `better`, the share of clients that are served better, `uncertain`, the number of
    clients nearer to another cluster, and `clients`, how many were looked at. When a candidate has
    been judged, `silhouette`, `chance` and `uncertain` are those of the look that found it.

    >>> Served().patience
    3
    """

    clustering: KMeans = field(default_factory=KMeans)
    most: int = 50
    """The largest K that is tried."""
    patience: int = 3
    pause: int = 10
    columns: str = "linear"
    """The columns of models that are compared in a look, a selection of `Layout.columns`; or
    "representation": those that the method clusters clients by."""

    def __post_init__(self) -> None:
        if self.most < 2 or self.patience < 1 or self.pause < 1:
            raise ConfigError(
                f"Served needs most ≥ 2, patience ≥ 1 and pause ≥ 1, "
                f"got {self.most}, {self.patience} and {self.pause}"
            )

    def __call__(self, view: View, distance: Distance, rng: np.random.Generator) -> Clusters:
        """Clusters, which continue the previous ones under their numbers."""
        check_squared_euclidean(distance, "choosing K")
        heard = np.ones(len(view.points), np.bool_) if view.heard is None else view.heard
        notes = {name: view.notes[name] for name in KEPT_NOTES if name in view.notes}
        with one_thread():
            if self._looks(view, heard, notes):
                seen = self.seen(view, rng)
                found = self._confirmed(view, seen, heard, notes) or self._looked(
                    view, seen, heard, notes, rng
                )
            else:
                found = replace(self._continued(view, heard, None, rng), notes=notes)
        done, due = _number(found.notes, "settled"), _number(found.notes, "next")
        return replace(found, validate=not done and view.round + 1 >= due)

    def _looks(self, view: View, heard: Bool, notes: Mapping[str, F64]) -> bool:
        """Whether a look is taken in this round."""
        due = view.round >= _number(notes, "next") and not _number(notes, "settled")
        return due and view.judge is not None and int(heard.sum()) >= MIN_CLIENTS

    def seen(self, view: View, rng: np.random.Generator) -> View:
        """The view with clients as a look compares them."""
        if self.columns == "representation" or view.by_columns is None:
            return view
        seen = view.by_columns(self.columns)
        if seen.points.shape[1] <= MAX_COLUMNS:
            return seen
        seed = int(rng.integers(2**63))
        points, centers = (
            folded(rows, MAX_COLUMNS, np.random.default_rng(seed))
            for rows in (seen.points, seen.centers)
        )
        return replace(seen, points=points, centers=centers)

    def _confirmed(
        self, view: View, seen: View, heard: Bool, notes: Mapping[str, F64]
    ) -> Clusters | None:
        """The clusters found in the last look, if they serve the clients by both rounds together.

        Clusters that were found by chance, or by the noise of few validation samples, don't: the
        models are others now. Clients that were not heard then join the nearest cluster.
        """
        if view.candidate is None or view.judge is None:
            return None
        again = heard & (view.candidate[:, 0] >= 0)
        nodes, k = view.candidate[again].T, view.candidate.shape[1]
        if again.sum() < MIN_CLIENTS or len(np.unique(nodes[-1])) < k:
            return None
        weight = view.importance[again]
        judge = _judge_of(view, np.flatnonzero(again))
        look = Look.judged(nodes, view.notes["silhouette"][:k], weight / weight.sum(), judge)
        one, alone, gain, error = (
            view.notes[name][0] for name in ("loss", "alone", "gain", "error")
        )
        if (k := look.confirmed(Gains(gain, error, one - alone))) == 1:
            return None
        geometry = {name: view.notes[name] for name in GEOMETRY_NOTES}
        notes = self._after(k, True, notes, view.round) | geometry | _service(look, k)
        means = cluster_means(seen.points[again], look.labels[k - 1], weight)
        labels = view.labels.copy()
        labels[heard] = squared_euclidean(seen.points[heard], means).argmin(axis=1)
        labels[again] = look.labels[k - 1]
        found = _better_placed(seen, _numbered(seen, heard, labels), heard)
        return _divided(view, found.labels, heard, notes)

    def _looked(
        self,
        view: View,
        seen: View,
        heard: Bool,
        notes: Mapping[str, F64],
        rng: np.random.Generator,
    ) -> Clusters:
        """One cluster, or the clusters found if so many were found before.

        Otherwise those that were found are a candidate, to be confirmed in the next round.
        """
        looked = _drawn(heard, rng)
        points, weight = seen.points[looked].astype(np.float64), view.importance[looked]
        look = Look.of(points, weight, _judge_of(view, looked), self.most)
        k = look.best
        notes = self._after(k, False, notes, view.round) | _told(look, points, weight, rng)
        one = replace(self._continued(view, heard, None, rng), notes=notes)
        if k == 1:
            return one
        start = cluster_means(points, look.labels[k - 1], weight)
        found = _better_placed(seen, self._continued(seen, heard, start, rng), heard)
        if notes["settled"][0]:
            return _divided(view, found.labels, heard, notes)
        return replace(one, candidate=_hierarchy(seen, heard, found.labels))

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
            labels = view.labels.copy()
            labels[heard] = nearest_inhabited(
                seen.points, view.centers, view.labels, squared_euclidean
            )
            return Clusters(labels, view.centers)
        clients = DistinctClients.of(seen)
        start = view.centers[inhabited] if division is None else division
        points, centers = isometric(clients.points, start)
        kmeans = self.clustering if division is not None else KMeans(fresh=0)
        found = clients.clusters(kmeans.lloyd(points, centers, clients.weight, rng), inhabited)
        labels = view.labels.copy()
        labels[heard] = found.labels
        return Clusters(labels, found.centers)

    def _after(
        self, k: int, confirmed: bool, notes: Mapping[str, F64], round: int
    ) -> dict[str, F64]:
        """The notes after a look: what was found, whether it has settled, and the next look."""
        same = 1 + (_number(notes, "same") if k == _number(notes, "found") else 0)
        grouped = 1 + _number(notes, "grouped") if k > 1 else 0
        settled = confirmed or (k > 1 and (same >= AGREEING_LOOKS or grouped >= self.patience))
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


def _divided(view: View, labels: Int, heard: Bool, notes: Mapping[str, F64]) -> Clusters:
    """These clusters with their centers in the representation of the view, where K has settled."""
    own, k = labels[heard], max(len(view.centers), int(labels.max()) + 1)
    centers, inhabited = np.resize(view.centers, (k, view.centers.shape[1])), np.unique(own)
    centers[inhabited] = cluster_means(view.points[heard], own, view.importance[heard])[inhabited]
    return Clusters(labels, centers, notes, placed=None if heard.all() else heard)


def _hierarchy(view: View, heard: Bool, labels: Int) -> Int:
    """(n, K), Ward's hierarchy of these K clusters of the clients heard; −1 for the others."""
    own, weight = np.unique(labels[heard], return_inverse=True)[1], view.importance[heard]
    means = cluster_means(view.points[heard].astype(np.float64), own, weight)
    counted = np.bincount(own, weight).astype(np.float64)
    nodes = weighted_ward(distances(means), counted, len(means))
    each = np.full((len(heard), len(means)), -1)
    each[heard] = nodes[:, own].T
    return each


def _numbered(view: View, heard: Bool, labels: Int) -> Clusters:
    """These clusters of the clients heard, under the numbers that there are and then new ones."""
    k, before = int(labels[heard].max()) + 1, view.centers
    numbers = np.concatenate([np.unique(view.labels), len(before) + np.arange(k)])[:k]
    centers = np.resize(before, (max(len(before), numbers.max() + 1), before.shape[1]))
    own = labels[heard]
    centers[numbers] = cluster_means(view.points[heard], own, view.importance[heard])
    labels = np.where(heard, numbers[np.where(heard, labels, 0)], view.labels)
    return Clusters(labels, centers)


def _number(notes: Mapping[str, F64], name: str) -> float:
    """A note, or 0 before the first look."""
    return float(notes[name][0]) if name in notes else 0.0


def _drawn(heard: Bool, rng: np.random.Generator) -> Int:
    """The clients that are looked at, in ascending order."""
    clients = np.flatnonzero(heard)
    if len(clients) > MAX_JUDGED_CLIENTS:
        clients = np.sort(rng.choice(clients, MAX_JUDGED_CLIENTS, replace=False))
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


def _told(look: Look, points: F64, weight: F64, rng: np.random.Generator) -> dict[str, F64]:
    """The notes about a look for the reader of the record."""
    far, k = distances(points), look.proposed
    if k == 1:
        k = int(np.nan_to_num(look.silhouette, nan=-1.0).argmax()) + 1
    chance, uncertain = 0.0, 0.0
    if k > 1:
        each = client_silhouettes(far, look.labels[k - 1], weight)
        uncertain, chance = float((each < 0).sum()), _chance(far, weight, k, rng)
    geometry = {"chance": np.array([chance]), "uncertain": np.array([uncertain])}
    return {"silhouette": look.silhouette} | geometry | _service(look, k)


def _service(look: Look, k: int) -> dict[str, F64]:
    """The notes about how well k clusters serve the clients."""
    served, one, gains = look.losses[:, k - 1], look.losses[:, 0], look.gains(k)
    numbers: dict[str, float] = {
        "proposed": k, "alone": float(look.weight @ look.alone), "gain": gains.clusters,
        "error": gains.error, "better": float(look.weight @ (served < one)), "clients": len(served),
    }  # fmt: skip
    return {"loss": look.loss} | {
        name: np.array([float(number)]) for name, number in numbers.items()
    }


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
        found.append(np.average(client_silhouettes(apart, labels, share), weights=share))
    return float(np.mean(found))
