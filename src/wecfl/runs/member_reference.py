"""What newcomers are compared with: members after their first local update (decisions 15 and 39).

All members made their first local update from the same initial model. This update shows best how
similar they are. The reference holds the mean of each cluster after it, and the usual values of
members, also of members with only a part of their samples.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from wecfl import rng
from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.evaluation import risk
from wecfl.bilevel.representation import Columns, last_layer
from wecfl.core.engine import Engine
from wecfl.core.exchange import exchange
from wecfl.core.method import Method
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int
from wecfl.data.federation import Federation
from wecfl.layout import Layout
from wecfl.runs.input_moments import InputMoments, moments
from wecfl.runs.novelty import LossVariance, MemberProbe, Usual, counting_samples

__all__ = ["Reference", "compared_columns", "compared_points", "first_update", "once"]

FEWEST_SAMPLES = 5
"""The smallest number of samples with which members are measured."""
SIZE_FACTOR = 3
"""The factor from one number of samples to the next."""
ENOUGH_PROBES = 100
"""The wanted number of measurements for each number of samples; few members are measured again."""
MAX_REPEATS = 10
"""The largest number of times that a member is measured with the same number of samples, each time
with other samples."""

Start = Callable[[Federation], AbstractContextManager[Engine]]
"""Opens an engine for some clients."""


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What newcomers are compared with: the means of clusters, and the usual values of members."""

    clusters: Int
    """(n,), the clusters that have members."""
    centers: F32
    """(n, p), the mean g of their members after one local update from the initial model."""
    lr: float
    """η of that local update."""
    usual: Usual | None = None
    """The usual values of members; None if no cluster has two members."""
    inputs: InputMoments | None = None
    """What newcomers without labels are compared with; None under privacy."""

    @classmethod
    def of(
        cls, setting: Setting, state: State, members: Federation | None, start: Start
    ) -> Reference:
        """The reference of all members of a run, with their clusters in its last round.

        All members make the update, including those that were absent in the first round; those that
        took part repeat it exactly. Refused replies are left out. `start` opens an engine for
        `members` with a part of their data. Without `members`, as under privacy, they are asked for
        this update only: then the usual values do not depend on the number of samples. If data
        drift, the members have their last data.
        """
        setting.engine.move_to(max(state.round, 1))
        always = replace(setting.channel, participation=1.0, dropout=0.0, joining=0.0)
        setting = replace(setting, channel=always)
        first, lr = first_update(setting)
        heard, points = first.heard, compared_points(setting, first)
        del first  # its models and momentum are large
        labels = state.labels
        importance = np.asarray(setting.method.importance(setting.engine.sizes), np.float64)
        clusters = np.unique(labels[heard])
        own = [heard & (labels == k) for k in clusters]
        centers = np.array(
            [np.average(points[who], axis=0, weights=importance[who]) for who in own]
        )
        alone = _MembersLeftOut(clusters, centers, points, labels, importance, heard)
        made = cls(clusters, centers.astype(np.float32), lr)
        if not alone.several.any():
            return made
        sizes, several = setting.engine.sizes, alone.several
        usually = int(np.median(sizes[several]))
        far, places = alone.distances(points), alone.places
        high = np.full(far.shape, np.nan)
        if members is not None:
            high = alone.losses(setting.engine, state.centers)
        all_of_them = MemberProbe(
            counting_samples(setting.plan, usually), far[several], high[several], places[several]
        )
        if members is None:
            return replace(made, usual=Usual.of([all_of_them]))
        tests = np.array([len(rows) for rows in members.test], np.float64)
        single, found = once(setting, lr), dict[int, list[tuple[F64, F64]]]()
        inputs = {usually: (_moments(members), several)}
        for size in _sizes(usually):
            enough = several & (sizes >= size)
            repeats = min(-(-ENOUGH_PROBES // int(enough.sum())), MAX_REPEATS)
            drawn = [_part(members, size, setting.seed, repeat) for repeat in range(repeats)]
            found[size] = [alone.probe(single, state, start(part)) for part in drawn]
            inputs[size] = _moments(drawn[0]), enough
        variance = LossVariance.of(
            alone.of_own(high), tests[several],
            [(alone.of_own(part), np.minimum(tests, size)[several])
             for size, probes in found.items() for _, part in probes],
        )  # fmt: skip
        probes = [replace(all_of_them, loss_spread=variance.spread(tests[several], sizes[several]))]
        for size, repeated in found.items():
            _, enough = inputs[size]
            far, high = (np.concatenate([probe[i][enough] for probe in repeated]) for i in range(2))
            at = np.tile(places[enough], len(repeated))
            probes.append(MemberProbe(
                counting_samples(setting.plan, size), far, high, at,
                variance.spread(np.minimum(tests, size)[enough], size),
            ))  # fmt: skip
        parts = {
            size: (rows[heard], enough[heard]) for size, (rows, enough) in sorted(inputs.items())
        }
        by_inputs = InputMoments.of(parts[usually][0], parts, labels[heard])
        return replace(made, usual=Usual.of(probes), inputs=by_inputs)


@dataclass(frozen=True, slots=True, eq=False)
class _MembersLeftOut:
    """Members compared with clusters, where a member is left out of the mean of its own cluster."""

    clusters: Int
    centers: F64
    points: F32
    """(m, p), g after the first update."""
    labels: Int
    importance: F64
    heard: Bool

    @property
    def several(self) -> Bool:
        """(m,), members that were heard and are not alone in their cluster."""
        counts = np.bincount(self.labels[self.heard], minlength=int(self.labels.max()) + 1)
        return self.heard & (counts[self.labels] > 1)

    @property
    def places(self) -> Int:
        """(m,), the position of each member's own cluster among the clusters with members."""
        return np.searchsorted(self.clusters, self.labels)

    def of_own(self, values: F64) -> F64:
        """The values (m, n) of members that are not alone, with their own cluster."""
        several = self.several
        chosen: F64 = values[several, self.places[several]]
        return chosen

    def distances(self, points: F32) -> F64:
        """(m, n), ‖g_i − G_k‖, where G_k is the mean of the *other* members of its own cluster."""
        found = np.sqrt(squared_euclidean(points, self.centers))
        several = self.several
        for place, k in enumerate(self.clusters):
            members = np.flatnonzero(several & (self.labels == k))
            weight = self.importance[members]
            total = self.importance[self.heard & (self.labels == k)].sum()
            for i, own in zip(members, weight, strict=True):
                others = (total * self.centers[place] - own * self.points[i]) / (total - own)
                found[i, place] = np.linalg.norm(points[i] - others)
        return found

    def probe(
        self, setting: Setting, state: State, opened: AbstractContextManager[Engine]
    ) -> tuple[F64, F64]:
        """(m, n) twice, distances and losses of members with a part of their data, on an engine."""
        with opened as engine:
            part = replace(setting, engine=engine)
            after, _ = first_update(part)
            far = self.distances(compared_points(part, after))
            return far, self.losses(engine, state.centers)

    def losses(self, engine: Engine, models: F32) -> F64:
        """(m, n), the loss of each cluster's model on each member's test samples.

        A member has helped to train the model of its own cluster. Without it, the mean of models
        would be farther from it by the factor Λ / (Λ − λ_i), with Λ = Σλ; so its loss is multiplied
        by this factor.
        """
        m = len(self.labels)
        columns = [risk(engine, np.tile(models[k], (m, 1)), "test") for k in self.clusters]
        found = np.stack(columns, axis=1)
        total = np.bincount(self.labels[self.heard], self.importance[self.heard], len(models))
        members, own = np.flatnonzero(self.several), total[self.labels[self.several]]
        others = own - self.importance[self.several]
        found[members, self.places[members]] *= own / others
        return found


def _sizes(usually: int) -> list[int]:
    """The numbers of samples with which members are measured, all below the usual number.

    >>> _sizes(200)
    [5, 15, 45, 135]
    """
    sizes, size = [], FEWEST_SAMPLES
    while size < usually:
        sizes.append(size)
        size *= SIZE_FACTOR
    return sizes


def _moments(members: Federation) -> F64:
    """(m, 2d), the moments of the inputs of each client's training samples."""
    return np.array([moments(members.x[rows]) for rows in members.train])


def _part(members: Federation, size: int, seed: int, repeat: int = 0) -> Federation:
    """The same clients with at most `size` of their training and of their test samples."""

    def drawn(rows: Int, key: int, purpose: str) -> Int:
        if len(rows) <= size:
            return rows
        chosen = rng.stream(seed, purpose, repeat, key).choice(len(rows), size, replace=False)
        return rows[np.sort(chosen)]

    pairs = list(zip(members.keys.tolist(), members.train, members.test, strict=True))
    return replace(
        members,
        train=tuple(drawn(train, key, f"probe {size}") for key, train, _ in pairs),
        test=tuple(drawn(test, key, f"probe test {size}") for key, _, test in pairs),
    )


def first_update(setting: Setting) -> tuple[State, float]:
    """The state after one local update of all clients from the initial model, and its η."""
    engine, m = setting.engine, len(setting.engine.sizes)
    start = engine.starts([setting.member], setting.seed)
    state = State(0, None, start, np.zeros(m, np.int64))
    if setting.rate:
        lr = setting.rate(np.zeros(m), state, engine, setting.plan, setting.seed)
        state = state.replace(known={"lr": lr})
    eta = float(np.max(setting.rates(state)))  # in the first round it is the same for all clients
    # Members and newcomers are compared by their whole updates, so none is shortened.
    whole = replace(setting, channel=replace(setting.channel, shorten_above=np.inf))
    return exchange(state, whole), eta


def once(setting: Setting, lr: float) -> Setting:
    """The setting of an update like the members' first one, in which each client is independent."""
    anything = replace(setting.channel, refuse_above=np.inf)  # a long update is not refused
    plan = replace(setting.plan, lr=lr)
    return replace(setting, plan=plan, rate=None, schedule=None, channel=anything)


def compared_columns(method: Method, layout: Layout) -> Columns:
    """The columns by which clients are compared: those of the clustering, or the last layer."""
    chosen = method.representation
    return chosen if isinstance(chosen, Columns) else last_layer(layout)


def compared_points(setting: Setting, state: State) -> F32:
    """(m, p), those columns of the clients' models."""
    engine = setting.engine
    return compared_columns(setting.method, engine.layout).clients(state, engine, setting.seed)
