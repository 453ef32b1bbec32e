"""Makes clients differ: transforms of their samples and targets, and mixtures of their groups.

A world is a partition, which says which samples a client holds, and the changes of these samples
that are made here. The true groups of the clients stay known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wecfl.core.types import F32, Int
from wecfl.data.shares import spread
from wecfl.data.targets import Targets, may_be_labels
from wecfl.data.transforms import SampleKind, Transform
from wecfl.errors import ConfigError, PartitionError
from wecfl.rng import stream

if TYPE_CHECKING:
    from wecfl.data.federation import Federation

__all__ = ["Transformed", "swapped", "transformed"]


class Transformed(NamedTuple):
    """What transforms change in a federation."""

    x: F32
    y: Targets
    groups: Int | None


def transformed(
    clients: Federation, transforms: Sequence[Transform], *, groups: int, seed: int
) -> Transformed:
    """Apply the transforms one after the other, to the training and test samples of each client.

    A transform by group uses the groups of the clients; if they have none, it makes `groups` groups
    of nearly equal size. A transform that crosses them divides each group into `groups` parts.
    """
    names = [transform.name for transform in transforms]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ConfigError(f"the transform {twice[0]} is given twice; leave out one")
    x, y, truth = clients.x.copy(), clients.y.copy(), clients.groups
    classes = clients.classes if may_be_labels(y) and y.max() < clients.classes else 0
    kind = SampleKind(clients.shape, classes)
    holdings = [np.concatenate(pair) for pair in zip(clients.train, clients.test, strict=True)]
    for transform in transforms:
        purpose = f"transform {transform.name}"
        if transform.by == "client":
            keyed = [stream(seed, purpose, 0, int(key)) for key in clients.keys]
            settings = [transform.of_client(kind, rng) for rng in keyed]
        else:
            own = _groups(truth, clients.m, groups, crosses=transform.by == "cross")
            if truth is None:
                truth = own
            elif transform.by == "cross":
                truth = np.unique([truth, own], axis=1, return_inverse=True)[1].ravel()
            of_groups = transform.of_groups(int(own.max()) + 1, kind, stream(seed, purpose))
            settings = [of_groups[g] for g in own]
        for setting, rows, key in zip(settings, holdings, clients.keys, strict=True):
            rng = stream(seed, purpose, 1, int(key))
            x[rows], y[rows] = transform(setting, x[rows], y[rows], rng)
    return Transformed(x, y, truth)


def _groups(truth: Int | None, m: int, groups: int, *, crosses: bool) -> Int:
    """(m,), the groups that share a setting, numbered from 0."""
    if truth is None:
        return spread(m, groups)
    if not crosses:
        return np.unique(truth, return_inverse=True)[1]
    ranks = np.empty(m, np.int64)
    for group in np.unique(truth):
        members = np.flatnonzero(truth == group)
        ranks[members] = np.arange(len(members))
    if groups > ranks.max() + 1:
        raise PartitionError(
            f"{groups} groups that cross others need a group with at least {groups} clients, but "
            f"the largest one has {ranks.max() + 1}; ask for fewer groups"
        )
    return ranks % groups


def swapped(clients: Federation, share: float, seed: int) -> tuple[list[Int], list[Int]]:
    """The rows of each client after it has given a `share` of its samples to another client.

    Each client gives to one client and receives from one client, both of other groups, and all
    samples that it receives are of one group. So it belongs to two groups; if all clients have the
    same size, in the proportions 1 − share and share. Training and test samples are swapped in the
    same way.
    """
    if not 0 < share <= 0.5:
        raise ConfigError(f"mixture must be above 0 and at most 0.5, got {share!r}")
    if clients.groups is None:
        raise PartitionError(
            "a mixture needs clients with groups; use a cluster-wise partition or a transform by "
            "group"
        )
    rng = stream(seed, "mixture")
    sizes = np.bincount(np.unique(clients.groups, return_inverse=True)[1])
    if 2 * sizes.max() > clients.m:
        raise PartitionError(
            f"a mixture needs groups of at most half of the {clients.m} clients, but one has "
            f"{sizes.max()}; ask for more groups"
        )
    # The clients form a ring, group after group. A step by the size of the largest group always
    # leads from one group to another.
    shuffled = rng.permutation(clients.m)
    ring = shuffled[np.argsort(clients.groups[shuffled], kind="stable")]
    giver = np.empty(clients.m, np.int64)
    giver[ring] = np.roll(ring, sizes.max())
    both = []
    for sides in (clients.train, clients.test):
        parts = []
        for rows in sides:
            given = rng.permutation(len(rows))[: round(share * len(rows))]
            parts.append((np.delete(rows, given), rows[given]))
        both.append([np.sort(np.concatenate([parts[i][0], parts[giver[i]][1]]))
                     for i in range(clients.m)])  # fmt: skip
    return both[0], both[1]
