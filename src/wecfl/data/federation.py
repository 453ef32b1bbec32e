"""The federation: the clients, and which samples each of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from wecfl import rng
from wecfl.config import check_whole
from wecfl.core.types import F32, Int
from wecfl.data.client_rows import class_counts, split_samples
from wecfl.data.datasets import load
from wecfl.data.partition import Iid, Partition, QuantitySkew
from wecfl.data.samples import NamedArray, holdout, pool, read_npz_files
from wecfl.data.source import Dataset
from wecfl.data.targets import Targets, alike, as_targets, count_targets, encoded, may_be_labels
from wecfl.data.transforms import Transform
from wecfl.data.worlds import swapped, transformed
from wecfl.errors import ConfigError, DataError, PartitionError

__all__ = ["Federation"]

Arrays: TypeAlias = Sequence[ArrayLike]
"""One array per client."""


@dataclass(frozen=True, slots=True, eq=False)
class Federation:
    """m clients and their data D_i: one pool of samples, and the rows that each client holds.

    >>> xs = [np.zeros((10, 2)), np.ones((5, 2))]
    >>> ys = [np.arange(10) % 2, np.arange(5) % 2]
    >>> federation = Federation.from_arrays(xs, ys)
    >>> len(federation), federation.sizes, federation.shape, federation.classes
    (2, array([8, 4]), (2,), 2)
    """

    x: F32
    """(n, …), the pool of all clients' samples."""
    y: Targets
    """(n,), their labels, from 0 to classes − 1; or numbers, (n,) or (n, d)."""
    train: tuple[Int, ...]
    """For each client the rows of its training samples D_i."""
    test: tuple[Int, ...]
    """For each client the rows of its test samples."""
    classes: int
    """C, the number of classes; of targets that are numbers, how many a sample has."""
    keys: Int
    """(m,), a number for each client, by which its random draws are keyed. A `subset` keeps it."""
    names: tuple[str, ...]
    """The name of each client, for tables and errors."""
    groups: Int | None = None
    """(m,), the hidden groups that generated the data, where they are known."""

    def __post_init__(self) -> None:
        if not self.train:
            raise DataError("there are no clients; give at least one")
        for field in ("test", "keys", "names", "groups"):
            value = getattr(self, field)
            if value is not None and len(value) != self.m:
                raise DataError(
                    f"{field}: expected one value for each of {self.m} clients, got {len(value)}"
                )
        for name, train, test in zip(self.names, self.train, self.test, strict=True):
            if not (len(train) and len(test)):
                raise DataError(
                    f"client {name}: {len(train)} training and {len(test)} test samples, expected "
                    "at least one of each; leave the client out or give it more data"
                )

    def __len__(self) -> int:
        """The number of clients, m."""
        return len(self.train)

    @property
    def m(self) -> int:
        """The number of clients."""
        return len(self)

    @property
    def sizes(self) -> Int:
        """(m,), |D_i|, the number of training samples of each client."""
        return np.array([len(rows) for rows in self.train], np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.x.shape[1:]

    @property
    def held(self) -> Int | None:
        """(classes, m), the training samples of each class; None if there are no classes."""
        if not (may_be_labels(self.y) and self.y.max() < self.classes):
            return None
        return class_counts(self.y, self.train, self.classes)

    @property
    def fingerprint(self) -> str:
        """A hash that identifies the federation, of all rows, all labels and some samples.

        >>> xs, ys = [np.zeros((4, 1))] * 3, [[0, 1, 0, 1]] * 3
        >>> federation = Federation.from_arrays(xs, ys)
        >>> federation.fingerprint == federation.subset([2, 0, 1]).fingerprint
        False
        """
        digest = sha256(repr((self.names, self.classes, self.x.shape)).encode())
        some = self.x[:: max(1, len(self.x) // 1000)]
        for array in (self.keys, self.y, *self.train, *self.test, some):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def subset(self, order: Iterable[int]) -> Federation:
        """The clients at the positions `order`, in that order; each keeps its key and its name.

        >>> xs, ys = [np.zeros((4, 1))] * 3, [[0, 1, 0, 1]] * 3
        >>> Federation.from_arrays(xs, ys).subset([2, 0]).keys
        array([2, 0])
        """
        chosen = np.arange(self.m)[list(order)]
        return Federation(
            self.x,
            self.y,
            tuple(self.train[i] for i in chosen),
            tuple(self.test[i] for i in chosen),
            self.classes,
            self.keys[chosen],
            tuple(self.names[i] for i in chosen),
            None if self.groups is None else self.groups[chosen],
        )

    def validating(self, share: float, seed: int = 0) -> Federation:
        """The same clients, tested on a `share` of their training samples, held out from training.

        Use it to choose, say, a learning rate without looking at the test samples. The share is
        stratified and drawn for `seed`.

        >>> xs, ys = [np.zeros((10, 1))], [np.arange(10) % 2]
        >>> fed = Federation.from_arrays(xs, ys)
        >>> choosing = fed.validating(0.25)
        >>> [len(rows) for rows in (*fed.train, *fed.test, *choosing.train, *choosing.test)]
        [8, 2, 6, 2]
        >>> set(choosing.test[0]) <= set(fed.train[0])
        True
        """
        cuts = [
            holdout(self.y[rows], share, rng.stream(seed, "validation", 0, int(key)))
            for rows, key in zip(self.train, self.keys, strict=True)
        ]
        pairs = list(zip(self.train, cuts, strict=True))
        return replace(
            self,
            train=tuple(rows[kept] for rows, (kept, _) in pairs),
            test=tuple(rows[held] for rows, (_, held) in pairs),
        )

    def transformed(self, *transforms: Transform, groups: int = 10, seed: int = 0) -> Federation:
        """The same clients, whose samples or targets are changed (see `wecfl.transforms`).

        Clients of the same group are changed in the same way, if a transform does not say
        otherwise. If they have no groups yet, `groups` are made.

        >>> from wecfl.data.partition import Iid
        >>> from wecfl.data.transforms import Rotation
        >>> fed = Federation.from_dataset("digits", Iid(), clients=6)
        >>> fed.transformed(Rotation(step=120), groups=3).groups
        array([0, 0, 1, 1, 2, 2])
        """
        check_whole(groups=(groups, 1), seed=(seed, 0))
        changed = transformed(self, transforms, groups=groups, seed=seed)
        return replace(self, x=changed.x, y=changed.y, groups=changed.groups)

    def mixed(self, share: float, seed: int = 0) -> Federation:
        """Each client swaps a `share` of its samples with clients of other groups.

        So it belongs to two groups; `groups` keeps the one that most of its samples come from.

        >>> from wecfl.data.partition import ClusterwisePermuted
        >>> fed = Federation.from_dataset("digits", ClusterwisePermuted(groups=2), clients=4)
        >>> mixed = fed.mixed(0.25)
        >>> [len(set(a) & set(b)) / len(a) for a, b in zip(fed.test, mixed.test)][0]
        0.75...
        """
        train, test = swapped(self, share, seed)
        return replace(self, train=tuple(train), test=tuple(test))

    @classmethod
    def from_arrays(
        cls,
        xs: Arrays,
        ys: Arrays,
        *,
        test: float | tuple[Arrays, Arrays] = 0.2,
        groups: ArrayLike | None = None,
        names: Sequence[str] | None = None,
        classes: int | None = None,
        seed: int = 0,
    ) -> Federation:
        """Your own clients: client i holds the samples `xs[i]` (n_i, …) with the targets `ys[i]`.

        Targets are labels (whole numbers from 0, truth values or texts) or numbers (floats), one or
        several for a sample; the task of a run says what is made of them (`wecfl.tasks`). `test` is
        the share of each client's samples that is kept for testing (stratified, drawn for `seed`),
        or a pair (xs, ys) of test samples. uint8 samples are pixels and are scaled to [−1, 1],
        other numbers are used as they are. `classes` defaults to the largest label + 1.

        >>> xs, ys = [np.zeros((5, 1)), np.full((5, 1), np.nan)], [[0] * 5, [1] * 5]
        >>> Federation.from_arrays(xs, ys)
        Traceback (most recent call last):
        wecfl.errors.DataError: client 1: x holds NaN or Inf (sample 0); clean or drop it
        """
        check_whole(seed=(seed, 0))
        client_names = tuple(map(str, range(len(xs)))) if names is None else tuple(names)
        if isinstance(test, float | int):
            if not 0 < test < 1:
                raise ConfigError(f"test: expected a share between 0 and 1, got {test}")
            parts, labels = _checked(client_names, xs, encoded(ys), classes, min_samples=2)
            cuts = [
                holdout(y, test, rng.stream(seed, "holdout", 0, i)) for i, y in enumerate(labels)
            ]
            rows = _rows(labels)
            trains = [own[cut] for own, (cut, _) in zip(rows, cuts, strict=True)]
            tests = [own[cut] for own, (_, cut) in zip(rows, cuts, strict=True)]
        else:
            numbers = encoded([*ys, *test[1]])
            parts, labels = _checked(client_names, xs, numbers[: len(ys)], classes)
            more_parts, more_labels = _checked(
                client_names, test[0], numbers[len(ys) :], classes, side=" (test)"
            )
            parts, labels = parts + more_parts, labels + more_labels
            rows = _rows(labels)
            trains, tests = rows[: len(client_names)], rows[len(client_names) :]
        y = alike([(where, each) for (where, _), each in zip(parts, labels, strict=True)])
        return cls(
            x=pool(parts),
            y=y,
            train=tuple(trains),
            test=tuple(tests),
            classes=count_targets(y) if classes is None else classes,
            keys=np.arange(len(client_names)),
            names=client_names,
            groups=None if groups is None else np.asarray(groups, np.int64),
        )

    @classmethod
    def from_folder(cls, path: str | Path, *, test: float = 0.2, seed: int = 0) -> Federation:
        """One client per ``.npz`` of a folder, in the order of the files' names.

        Each file holds `x` and `y`; `x_test` and `y_test`, if all files have them, are the test
        samples, otherwise `test` and `seed` say how to draw them (see `from_arrays`).
        """
        files = sorted(Path(path).glob("*.npz"))
        if not files:
            raise DataError(f"{path}: it has no .npz files; expected one file per client")
        for file in files:
            if file.name.encode(errors="replace").decode() != file.name:
                raise DataError(f"{path}: the file name {file.name!r} is not UTF-8; rename it")
        clients = read_npz_files(files)
        tested = ["x_test" in client for client in clients]
        if any(tested) and not all(tested):
            raise DataError(
                f"{files[tested.index(False)]}: lacks x_test and y_test, which "
                f"{files[tested.index(True)].name} has; give them to all clients or to none"
            )

        def column(key: str) -> Arrays:
            return [client[key] for client in clients]

        return cls.from_arrays(
            column("x"),
            column("y"),
            test=(column("x_test"), column("y_test")) if all(tested) else test,
            names=[file.name for file in files],
            seed=seed,
        )

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset | str | Path,
        partition: Partition,
        *,
        clients: int = 50,
        seed: int = 0,
        data_dir: Path | None = None,
    ) -> Federation:
        """A data set (a value, a name or the path of a ``.npz``), divided among clients.

        >>> from wecfl.data.partition import Iid
        >>> Federation.from_dataset("digits", Iid(), clients=50).sizes.sum()
        np.int64(1438)
        """
        if not hasattr(partition, "shares"):
            raise PartitionError(
                f"the partition must be a value such as wecfl.partitions.Iid(), got {partition!r}"
            )
        check_whole(clients=(clients, 1), seed=(seed, 0))
        data = dataset if isinstance(dataset, Dataset) else load(dataset, data_dir)
        n, labels, classes = data.n_train, data.y, data.classes
        if not may_be_labels(labels):
            if not isinstance(partition, Iid | QuantitySkew):
                raise PartitionError(
                    f"{partition.name} shares out classes, but the targets are numbers: use the "
                    f"partition iid or quantity-skew, or a folder with one file per client"
                )
            labels, classes = np.zeros(len(data.y), np.int64), 1
        held = split_samples(
            partition, labels[:n], labels[n:], classes=classes, clients=clients, seed=seed
        )
        test, y = tuple(rows + n for rows in held.test), data.y
        if held.names is not None:
            y = y.copy()  # every sample has one holder, so its label can be changed in place
            for names, rows in zip(held.names, zip(held.train, test, strict=True), strict=True):
                for own in rows:
                    y[own] = names[y[own]]
        return cls(
            x=data.x,
            y=y,
            train=held.train,
            test=test,
            classes=data.classes,
            keys=np.arange(clients),
            names=tuple(map(str, range(clients))),
            groups=held.groups,
        )


def _checked(
    names: Sequence[str],
    xs: Arrays,
    ys: Arrays,
    classes: int | None,
    *,
    min_samples: int = 1,
    side: str = "",
) -> tuple[list[NamedArray], list[Targets]]:
    """Each client's samples and targets; a client needs at least `min_samples`."""
    if not names:
        raise DataError("there are no clients; give at least one array of samples")
    if not len(names) == len(xs) == len(ys):
        raise DataError(
            f"expected samples, labels and a name for each client, "
            f"got {len(xs)} arrays x, {len(ys)} arrays y, {len(names)} names"
        )
    parts = [(f"client {name}{side}", np.atleast_1d(x)) for name, x in zip(names, xs, strict=True)]
    for where, x in parts:
        if len(x) < min_samples:
            raise DataError(
                f"{where}: {len(x)} samples, expected at least {min_samples}; "
                "leave the client out or give it more data"
            )
    pairs = zip(parts, ys, strict=True)
    return parts, [as_targets(where, y, len(x), classes) for (where, x), y in pairs]


def _rows(labels: Sequence[Targets]) -> list[Int]:
    """The rows of each part in the pool of all parts."""
    ends = np.cumsum([len(y) for y in labels])
    return np.split(np.arange(ends[-1]), ends[:-1])
