"""Changes of the data that clients hold, from some round on: a drift, as rows of samples.

All versions of a client's data are rows of one pool. So nothing is copied when a client changes to
another group, and a client that changes back holds what it held before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from wecfl.core.types import F32, Int
from wecfl.data.drift import Drift, Phase, Sensor
from wecfl.data.targets import Targets
from wecfl.data.transforms import TRANSFORMS, SampleKind
from wecfl.errors import DataError, PartitionError
from wecfl.rng import stream

if TYPE_CHECKING:
    from wecfl.data.federation import Federation

__all__ = ["Change", "Drifting", "changed_clients", "changes_of", "check_still", "drifting"]

Side = Literal["train", "test"]
SIDES: tuple[Side, ...] = ("train", "test")


class Change(NamedTuple):
    """The data that clients hold from some round on.

    >>> Change(3, ([4], [5]), ([6], [7]), np.array([0, 1])).subset([1])
    Change(round=3, train=([5],), test=([7],), groups=array([1]), fresh=False)
    """

    round: int
    """The first round in which they hold it."""
    train: tuple[Int, ...]
    """For each client the rows of its training samples; their number never changes."""
    test: tuple[Int, ...]
    groups: Int | None
    """(m,), the groups to which their data belong."""
    fresh: bool = False
    """Whether all clients get new samples; then only clients whose group changes drift."""

    @property
    def held(self) -> dict[str, Any]:
        """The fields of a federation that change."""
        return {"train": self.train, "test": self.test, "groups": self.groups}

    def subset(self, chosen: Int) -> Change:
        """The change of these clients."""
        train, test = (tuple(side[i] for i in chosen) for side in (self.train, self.test))
        groups = None if self.groups is None else self.groups[chosen]
        return Change(self.round, train, test, groups, self.fresh)


class Drifting(NamedTuple):
    """A federation with a drift: the fields that differ from those without it.

    >>> Drifting._fields
    ('x', 'y', 'train', 'test', 'groups', 'changes')
    """

    x: F32
    y: Targets
    train: tuple[Int, ...]
    test: tuple[Int, ...]
    groups: Int | None
    changes: tuple[Change, ...]


def drifting(clients: Federation, drift: Drift, seed: int) -> Drifting:
    """The clients, and the data that they hold from each round of the drift on.

    >>> from wecfl.data.drift import Vanish
    >>> from wecfl.data.federation import Federation
    >>> fed = Federation.from_arrays([np.eye(4)] * 2, [np.arange(4)] * 2, groups=[0, 1])
    >>> [change.groups.tolist() for change in drifting(fed, Vanish(), seed=0).changes]
    [[0, 0]]
    """
    check_still(clients.changes, "drift again")
    truth = clients.groups
    if truth is None and not isinstance(drift, Sensor):
        raise PartitionError(
            f"the drift {drift.name} needs clients with groups; use a cluster-wise partition or a "
            "transform by group"
        )
    groups = np.zeros(clients.m, np.int64) if truth is None else truth
    phases = drift.phases(groups, stream(seed, "drift"))
    pool = _SamplePool(clients, seed)
    if isinstance(drift, Sensor):
        pool = _with_broken(clients, drift, phases[0].groups, seed)
    trains, tests = (
        pool.dealt(side, phases) if phases[0].fresh else [pool.held(side, p) for p in phases]
        for side in SIDES
    )
    changes = []
    for phase, train, test in zip(phases, trains, tests, strict=True):
        now = np.where((phase.groups >= 0) & (phase.share >= 0.5), phase.groups, groups)
        known = None if truth is None else now
        changes.append(Change(phase.round, train, test, known, phase.fresh))
    first = Change(1, clients.train, clients.test, truth)
    if changes[0].round == 1:
        first, *changes = changes
    return Drifting(
        pool.clients.x, pool.clients.y, first.train, first.test, first.groups, tuple(changes)
    )


def changed_clients(clients: Federation, round: int) -> Int:
    """The clients whose data changed at the beginning of a round, in ascending order.

    New samples of the same group are no change.

    >>> from wecfl.data.drift import Vanish
    >>> from wecfl.data.federation import Federation
    >>> fed = Federation.from_arrays([np.eye(4)] * 2, [np.arange(4)] * 2, groups=[0, 1])
    >>> changed_clients(fed.drifting(Vanish(round=5)), 5)
    array([1])
    """
    changes = [change for change in clients.changes if change.round == round]
    if not changes:
        return np.zeros(0, np.int64)
    before, after = clients.at(round - 1), clients.at(round)
    if changes[0].fresh:
        return np.flatnonzero(np.asarray(before.groups != after.groups))
    pairs = zip(before.train, after.train, strict=True)
    return np.flatnonzero([not np.array_equal(*pair) for pair in pairs])


def changes_of(clients: object) -> tuple[Change, ...]:
    """The changes of clients; none if their data are elsewhere.

    >>> changes_of(None)
    ()
    """
    found: tuple[Change, ...] = getattr(clients, "changes", ())
    return found


def check_still(changes: Sequence[Change], what: str) -> None:
    """Raise an error if there are changes, since the samples that they refer to must not change.

    >>> check_still((), "be scaled")
    """
    if changes:
        raise DataError(f"clients whose data drift can't {what}; call drifting last")


@dataclass(frozen=True, slots=True, eq=False)
class _SamplePool:
    """The samples that clients can get."""

    clients: Federation
    seed: int
    broken: Mapping[int, dict[Side, Int]] = field(default_factory=dict)
    """The rows of the samples of clients whose sensor breaks."""

    def held(self, side: Side, phase: Phase) -> tuple[Int, ...]:
        """For each client its rows in a phase."""
        return tuple(
            self._rows(side, client, int(group), phase.share)
            for client, group in enumerate(phase.groups)
        )

    def dealt(self, side: Side, phases: Sequence[Phase]) -> list[tuple[Int, ...]]:
        """For each phase and client, the next samples of its group, in an order drawn once.

        In each phase, a client holds an equal part of the number of samples that it held at the
        beginning. When all samples of a group have been used, they are used again.
        """
        clients, held = self.clients, getattr(self.clients, side)
        sizes = [len(rows) // len(phases) for rows in held]
        for name, rows, size in zip(clients.names, held, sizes, strict=True):
            if len(rows) and not size:
                raise PartitionError(
                    f"client {name} has only {len(rows)} {side} samples for {len(phases)} steps of "
                    "the drift; give each client more samples"
                )
        orders = {
            int(group): stream(self.seed, f"drift {side} {group}").permutation(
                np.unique(np.concatenate([held[i] for i in self._members(group)]))
            )
            for group in np.unique(np.concatenate([phase.groups for phase in phases]))
        }
        used = dict.fromkeys(orders, 0)
        dealt = []
        for phase in phases:
            rows = []
            for group, size in zip(map(int, phase.groups), sizes, strict=True):
                rows.append(orders[group].take(used[group] + np.arange(size), mode="wrap"))
                used[group] += size
            dealt.append(tuple(rows))
        return dealt

    def _members(self, group: int) -> Int:
        return np.flatnonzero(self.clients.groups == group)

    def _rows(self, side: Side, client: int, group: int, share: float) -> Int:
        """The rows of a client: a `share` of them from a group, or all from its broken sensor."""
        clients, held = self.clients, getattr(self.clients, side)
        own: Int = held[client]
        if group == -1:
            return self.broken[client][side]
        if clients.groups is None or group == clients.groups[client]:
            return own
        others = np.unique(np.concatenate([held[i] for i in self._members(group)]))
        if len(own) and not len(others):
            raise PartitionError(
                f"no client of group {group} has {side} samples, which client "
                f"{clients.names[client]} would get; hold out more samples"
            )
        rng = stream(self.seed, f"drift {side} {group}", 0, int(clients.keys[client]))
        drawn = np.resize(rng.permutation(others), len(own))
        replaced = rng.permutation(len(own))[: round(share * len(own))]
        rows = own.copy()
        rows[replaced] = drawn[replaced]
        return rows


def _with_broken(clients: Federation, drift: Sensor, groups: Int, seed: int) -> _SamplePool:
    """The pool that also has the samples of broken sensors."""
    fault = TRANSFORMS[drift.how]()
    setting = fault.of_groups(2, SampleKind(clients.shape, 0), stream(seed, "broken sensor"))[1]
    xs, ys, end = [clients.x], [clients.y], len(clients.x)
    broken: dict[int, dict[Side, Int]] = {}
    for i in map(int, np.flatnonzero(groups == -1)):
        own = np.concatenate([clients.train[i], clients.test[i]])
        rng = stream(seed, "broken sensor", 1, int(clients.keys[i]))
        x, y = fault(setting, clients.x[own], clients.y[own], rng)
        xs.append(x)
        ys.append(y)
        train, test = np.split(end + np.arange(len(own)), [len(clients.train[i])])
        broken[i] = {"train": train, "test": test}
        end += len(own)
    pool = replace(clients, x=np.concatenate(xs, dtype=np.float32), y=np.concatenate(ys))
    return _SamplePool(pool, seed, broken)
