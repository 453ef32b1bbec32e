"""Attacks: clients that lie about their data or about their models.

Attacks are simulated. The server does not know about them, and attackers know nothing about honest
clients except their number. A `DataAttack` changes once what the attackers train on. A
`ModelAttack` changes in every round what they send back.

Model attacks forge the trainable columns of a row. BatchNorm statistics and frozen parameters (the
columns after `trainable`) are sent as they were trained: a variance with a flipped sign would be
negative and give NaN, which any server notices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from math import ceil, isfinite
from typing import Protocol, runtime_checkable

import numpy as np

from wecfl import rng
from wecfl.core.channel import Updates
from wecfl.core.types import F32, Bool, Int
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError, DataError, unknown

__all__ = [
    "ATTACKS",
    "ALittleIsEnough",
    "Backdoor",
    "DataAttack",
    "LabelFlip",
    "ModelAttack",
    "Noise",
    "Scale",
    "SignFlip",
    "choose",
    "named",
]


def choose(keys: Int, share: float, seed: int, who: str = "attackers") -> Bool:
    """(m,), which of the clients with these keys are chosen: a `share` of them.

    They are round(share·m) clients, and at least one unless the share is 0. Every client draws a
    number, and those with the smallest numbers are chosen. So the order of the clients does not
    matter. `who` says for what they are chosen; other words give other random draws.

    >>> choose(np.arange(5), 0.4, seed=0).tolist()
    [False, True, True, False, False]
    >>> choose(np.array([4, 2, 1, 0, 3]), 0.4, seed=0).tolist()
    [False, True, True, False, False]
    """
    if not 0 <= share < 1:
        raise ConfigError(f"{who} must be a share in [0, 1), got {share}")
    count = max(round(share * len(keys)), 1) if share > 0 else 0
    if count >= len(keys):
        raise ConfigError(
            f"{who}: a share of {share} would be all {len(keys)} clients; lower the share"
        )
    draws = np.array([rng.stream(seed, who, 0, int(key)).random() for key in keys])
    chosen = np.zeros(len(keys), bool)
    chosen[np.lexsort((keys, draws))[:count]] = True
    return chosen


@runtime_checkable
class DataAttack(Protocol):
    """Changes what attackers train on.

    >>> isinstance(LabelFlip(), DataAttack), isinstance(Scale(), DataAttack)
    (True, False)
    """

    def poison(self, federation: Federation, attackers: Bool, seed: int) -> Federation:
        """The federation with the attackers' training samples changed, and no other sample."""


@runtime_checkable
class ModelAttack(Protocol):
    """Changes what attackers send back.

    >>> isinstance(LabelFlip(), ModelAttack), isinstance(Scale(), ModelAttack)
    (False, True)
    """

    def forge(self, replies: Updates) -> F32:
        """(m, P), what the server receives."""


@dataclass(frozen=True, slots=True)
class LabelFlip:
    """Trains on wrong labels, y → C − 1 − y (Fang et al., USENIX Security 2020).

    If the number of classes is odd, the middle class keeps its label.

    >>> xs, ys = [np.zeros((3, 1))] * 2, [[0, 1, 2]] * 2
    >>> fed = Federation.from_arrays(xs, ys, test=(xs, ys))
    >>> bad = LabelFlip().poison(fed, np.array([False, True]), seed=0)
    >>> [bad.y[rows].tolist() for rows in (*bad.train, *bad.test)]
    [[0, 1, 2], [2, 1, 0], [0, 1, 2], [0, 1, 2]]
    """

    def poison(self, federation: Federation, attackers: Bool, seed: int) -> Federation:
        """The federation with all training labels of attackers flipped."""
        every = {int(i): np.arange(len(federation.train[i])) for i in np.flatnonzero(attackers)}
        poisoned, rows = _with_copies(federation, every)
        poisoned.y[rows] = federation.classes - 1 - poisoned.y[rows]
        return poisoned


@dataclass(frozen=True, slots=True)
class Backdoor:
    """Teaches the model that samples with a trigger are of class `target`.

    See BadNets (Gu et al., 2017); for federated learning, Bagdasaryan et al. (AISTATS 2020).

    In a picture the trigger is a square in the lower right corner, in all channels. It is
    ⌈`size`·side⌉ pixels wide, which is 2 of 8, or 5 of 28 or 32 pixels. In flat samples it is the
    same part of the inputs: the first ⌈`size`²·p⌉ of p features. It has the largest value of the
    pool, which is white in pictures. A `share` of an attacker's training samples, at least one,
    gets the trigger together with the target label. The other samples stay as they are, so that the
    model also learns its task.

    >>> xs, ys = [np.zeros((2, 3)), np.eye(2, 3)], [[1, 2]] * 2
    >>> fed = Federation.from_arrays(xs, ys, test=(xs, ys))
    >>> bad = Backdoor().poison(fed, np.array([False, True]), seed=0)
    >>> [bad.y[rows].tolist() for rows in bad.train], bad.x[bad.train[1]].tolist()
    ([[1, 2], [1, 0]], [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    """

    share: float = 0.5
    target: int = 0
    size: float = 0.15

    def __post_init__(self) -> None:
        for name, value in (("share", self.share), ("size", self.size)):
            if not 0 < value <= 1:
                raise ConfigError(f"backdoor: {name} must lie in (0, 1], got {value}")

    def poison(self, federation: Federation, attackers: Bool, seed: int) -> Federation:
        """The federation, with triggers in a share of the attackers' training samples."""
        self._check(federation)
        chosen = {}
        for i in np.flatnonzero(attackers):
            n = len(federation.train[i])
            order = rng.stream(seed, "backdoor", 0, int(federation.keys[i])).permutation(n)
            chosen[int(i)] = np.sort(order[: max(round(self.share * n), 1)])
        poisoned, rows = _with_copies(federation, chosen)
        poisoned.x[rows] = self._stamped(federation, poisoned.x[rows])
        poisoned.y[rows] = self.target
        return poisoned

    def triggered(self, federation: Federation) -> Federation:
        """The test samples of other classes than the target, with the trigger and the target label.

        So the accuracy on them says how often the trigger works. Clients whose test samples are all
        of the target class are left out, since nothing can be measured there; `keys` says which
        clients remain. The training samples are unchanged.

        >>> xs, ys = [np.eye(3)] * 2, [[0, 0, 0], [0, 1, 2]]
        >>> hit = Backdoor().triggered(Federation.from_arrays(xs, ys, test=(xs, ys)))
        >>> hit.keys.tolist(), hit.x[hit.test[0]].tolist(), hit.y[hit.test[0]].tolist()
        ([1], [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]], [0, 0])
        """
        self._check(federation)
        others = [rows[federation.y[rows] != self.target] for rows in federation.test]
        clients = [i for i, rows in enumerate(others) if len(rows)]
        if not clients:
            raise DataError(
                f"backdoor: all test samples are of the target class {self.target}, so the success "
                "of the trigger can't be measured; choose another target"
            )
        rows = np.concatenate([others[i] for i in clients])
        ends = np.cumsum([len(others[i]) for i in clients])
        own = tuple(np.split(np.arange(len(rows)), ends[:-1]))
        return replace(
            federation.subset(clients),
            x=self._stamped(federation, federation.x[rows]),
            y=np.full(len(rows), self.target),
            train=own,
            test=own,
        )

    def _stamped(self, federation: Federation, samples: F32) -> F32:
        """The samples, which are a copy, with the trigger."""
        value = federation.x.max()
        if samples.ndim == 2:
            samples[:, : ceil(self.size**2 * samples.shape[1])] = value
        else:
            side = ceil(self.size * min(samples.shape[-2:]))
            samples[..., -side:, -side:] = value
        return samples

    def _check(self, federation: Federation) -> None:
        if not 0 <= self.target < federation.classes:
            raise ConfigError(
                f"backdoor: target must be a class from 0 to {federation.classes - 1}, "
                f"got {self.target}"
            )


@dataclass(frozen=True, slots=True)
class SignFlip:
    """Sends the opposite of its update, start − `strength`·(trained − start).

    This is the attack of Li et al. (AAAI 2019). With strength 1, it is the bit flipping of
    Karimireddy et al. (ICML 2021).

    >>> replies = Updates(np.zeros((2, 2), "f4"), np.ones((2, 2), "f4"), np.array([False, True]),
    ...                   np.array([0, 0]), np.array([0, 1]), trainable=1, seed=0, round=0)
    >>> SignFlip().forge(replies).tolist()
    [[1.0, 1.0], [-1.0, 1.0]]
    """

    strength: float = 1.0

    def __post_init__(self) -> None:
        _check_strength(self.strength)

    def forge(self, replies: Updates) -> F32:
        """(m, P), with the attackers' updates times −strength."""
        return replies.sent(-self.strength * replies.updates)


@dataclass(frozen=True, slots=True)
class Scale:
    """Scales its update up to outweigh the others, start + `strength`·(trained − start).

    The default strength is that of Bhagoji et al. (ICML 2019) for 10 clients. Replacing the mean of
    n equal clients needs a strength of n (Bagdasaryan et al., AISTATS 2020). The update that is
    scaled is honest, so the mean moves too far in an honest direction.

    >>> replies = Updates(np.zeros((2, 2), "f4"), np.ones((2, 2), "f4"), np.array([False, True]),
    ...                   np.array([0, 0]), np.array([0, 1]), trainable=1, seed=0, round=0)
    >>> Scale().forge(replies).tolist()
    [[1.0, 1.0], [10.0, 1.0]]
    """

    strength: float = 10.0

    def __post_init__(self) -> None:
        _check_strength(self.strength)

    def forge(self, replies: Updates) -> F32:
        """(m, P), with the attackers' updates times strength."""
        return replies.sent(self.strength * replies.updates)


@dataclass(frozen=True, slots=True)
class Noise:
    """Sends Gaussian noise in place of its update (Blanchard et al., NeurIPS 2017).

    Its standard deviation is `strength` times the root mean square of the update that the client
    would have sent. A published constant, such as 200, fits one model and one learning rate only.

    >>> replies = Updates(np.zeros((2, 2), "f4"), np.ones((2, 2), "f4"), np.array([False, True]),
    ...                   np.array([0, 0]), np.array([0, 1]), trainable=1, seed=0, round=0)
    >>> (Noise().forge(replies) != replies.trained).tolist()
    [[False, False], [True, False]]
    """

    strength: float = 10.0

    def __post_init__(self) -> None:
        _check_strength(self.strength)

    def forge(self, replies: Updates) -> F32:
        """(m, P), with noise that is drawn anew for each (round, client)."""
        updates = replies.updates
        spread = self.strength * np.sqrt(np.mean(updates**2, axis=1, dtype=np.float64))
        for update, key, std in zip(updates, replies.keys[replies.attackers], spread, strict=True):
            generator = rng.stream(replies.seed, "attack", replies.round, int(key))
            update[:] = std * generator.standard_normal(len(update))
        return replies.sent(updates)


@dataclass(frozen=True, slots=True)
class ALittleIsEnough:
    """Hides in the spread of honest updates: sends mean − z·std (Baruch et al., NeurIPS 2019).

    The attackers share their honest updates, and estimate the mean and the standard deviation of
    every column from them. All of them send the same update. Its distance from the mean is chosen
    so that the attackers, together with the honest clients that are even farther from the mean, are
    a majority. With n clients and a attackers, this needs s = ⌊n/2 + 1⌋ − a of the n − a honest
    clients, so Φ(z) = (n − a − s)/(n − a). `strength` sets z instead.

    >>> round(ALittleIsEnough().z(clients=50, attackers=24), 2)       # s = 2, Φ(z) = 24/26
    1.43

    The paper does not say what to do in clusters. Here, attackers that received the model of the
    same cluster estimate from their own updates. An attacker that is alone in its cluster estimates
    from the updates of all attackers. If there is only one attacker, it can't estimate a spread,
    and sends its honest update. z is computed for all clients, since attackers don't know which
    client is in which cluster. For few attackers the formula gives a small z: for two attackers of
    an even number of clients z = 0, and they send their plain mean.
    """

    strength: float | None = None

    def __post_init__(self) -> None:
        if self.strength is not None:
            _check_strength(self.strength)

    def z(self, clients: int, attackers: int) -> float:
        """The distance from the mean in standard deviations, for these numbers of clients."""
        if self.strength is not None:
            return self.strength
        honest, supporters = clients - attackers, clients // 2 + 1 - attackers
        if supporters <= 0:
            raise ConfigError(
                f"a-little-is-enough: {attackers} attackers of {clients} clients are a majority "
                "already, for which the paper defines no z; lower the share of attackers, or set "
                "the strength"
            )
        from scipy.special import ndtri  # noqa: PLC0415  (slow to load)

        return float(ndtri((honest - supporters) / honest))

    def forge(self, replies: Updates) -> F32:
        """(m, P), with one common update of all attackers of a cluster."""
        updates = replies.updates
        if len(updates) < 2:
            return replies.sent(updates)
        z = self.z(len(replies.attackers), len(updates))
        labels = replies.labels[replies.attackers]
        forged = np.empty_like(updates)
        for label in np.unique(labels):
            members = labels == label
            known = updates[members] if members.sum() > 1 else updates
            mean = known.mean(axis=0, dtype=np.float64)
            forged[members] = mean - z * known.std(axis=0, dtype=np.float64)
        return replies.sent(forged)


ATTACKS: dict[str, Callable[..., DataAttack | ModelAttack]] = {
    "label-flip": LabelFlip,
    "sign-flip": SignFlip,
    "noise": Noise,
    "scale": Scale,
    "a-little-is-enough": ALittleIsEnough,
    "backdoor": Backdoor,
}
"""The attacks by name. Each takes options of its own."""


def named(name: str, **options: float) -> DataAttack | ModelAttack:
    """The attack of that name.

    >>> named("scale", strength=3)
    Scale(strength=3)
    """
    if name not in ATTACKS:
        raise ConfigError(unknown("attack", name, ATTACKS))
    known = signature(ATTACKS[name]).parameters
    for option in options:
        if option not in known:
            raise ConfigError(f"the attack {name} has no option {option}: leave it out")
    return ATTACKS[name](**options)


def _with_copies(federation: Federation, chosen: Mapping[int, Int]) -> tuple[Federation, Int]:
    """The federation with copies of some clients' training samples, and the rows of the copies.

    The copies are at the end of the pool, since the original rows may also belong to other clients
    or to test samples.
    """
    train, copied, first = list(federation.train), [np.empty(0, np.int64)], len(federation.y)
    end = first
    for i, positions in chosen.items():
        start, end = end, end + len(positions)
        copied.append(train[i][positions])
        train[i] = train[i].copy()
        train[i][positions] = np.arange(start, end)
    old = np.concatenate(copied)
    poisoned = replace(
        federation,
        x=np.concatenate([federation.x, federation.x[old]]),
        y=np.concatenate([federation.y, federation.y[old]]),
        train=tuple(train),
    )
    return poisoned, np.arange(first, end)


def _check_strength(strength: float) -> None:
    if not (isfinite(strength) and strength > 0):
        raise ConfigError(f"the strength of an attack must be positive, got {strength}")
