"""The federation: the clients, and which samples each of them holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from wecfl import rng
from wecfl.core.types import F32, Int
from wecfl.data.changes import Change, check_still, drifting
from wecfl.data.client_arrays import Arrays, PlainArrays, cut_clients, held_arrays, pooled_clients
from wecfl.data.client_rows import check_clients, class_counts, share_out
from wecfl.data.datasets import load
from wecfl.data.drift import Drift
from wecfl.data.hub import OWNER_COLUMN, arrays_of, held_by, table_of
from wecfl.data.partition import Partition
from wecfl.data.samples import holdout, pool, read_npz_files
from wecfl.data.source import Dataset
from wecfl.data.targets import Targets, alike, count_targets, may_be_labels
from wecfl.data.transforms import Transform
from wecfl.data.worlds import swapped, transformed
from wecfl.errors import DataError
from wecfl.limits import check_whole

if TYPE_CHECKING:
    import pandas as pd

    from wecfl.data.pipeline import Impute, Pipeline, Scale, ScaleBy

__all__ = ["Federation"]


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
    """(n,), their labels, from 0 to classes − 1; or their targets as numbers, (n,) or (n, d)."""
    train: tuple[Int, ...]
    """For each client the rows of its training samples D_i."""
    test: tuple[Int, ...]
    """For each client the rows of its test samples."""
    classes: int
    """C, the number of classes; if targets are numbers, the number of them for a sample."""
    keys: Int
    """(m,), a number for each client, by which its random draws are keyed. A `subset` keeps it."""
    names: tuple[str, ...]
    """The name of each client, by which tables, errors and `wecfl.Result` know it; unique."""
    groups: Int | None = None
    """(m,), the hidden groups that generated the data, if they are known."""
    pipeline: Pipeline | None = None
    """How the samples were made from tables or pixels; None: they are used as they were given."""
    changes: tuple[Change, ...] = ()
    """What clients hold in later rounds, if their data drift; the other fields are round 1."""

    def __post_init__(self) -> None:
        check_clients(self)

    def __len__(self) -> int:
        """The number of clients, m."""
        return len(self.train)

    def __repr__(self) -> str:
        """One line: clients, samples, classes."""
        tested = sum(map(len, self.test))
        samples = f"{self.sizes.sum()} training and {tested} test samples of shape {self.shape}"
        return f"Federation({self.m} clients, {samples}, {self.classes} classes)"

    def _repr_html_(self) -> str:
        """The clients as a table, for notebooks."""
        from wecfl.data.frames import table_html  # noqa: PLC0415  (with pandas)

        tested = [len(rows) for rows in self.test]
        return f"<p>{self}</p>{table_html(self.names, self.sizes, tested, self.groups)}"

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
        """A hash of all rows, all labels and some samples, which identifies the federation.

        >>> xs, ys = [np.zeros((4, 1))] * 3, [[0, 1, 0, 1]] * 3
        >>> federation = Federation.from_arrays(xs, ys)
        >>> federation.fingerprint == federation.subset([2, 0, 1]).fingerprint
        False
        """
        digest = sha256(repr((self.names, self.classes, self.x.shape)).encode())
        some = self.x[:: max(1, len(self.x) // 1000)]
        later = [rows for change in self.changes for rows in (*change.train, *change.test)]
        for array in (self.keys, self.y, *self.train, *self.test, some, *later):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def subset(self, order: Iterable[int]) -> Federation:
        """The clients at the positions `order`, in that order; each keeps its key and its name.

        >>> xs, ys = [np.zeros((4, 1))] * 3, [[0, 1, 0, 1]] * 3
        >>> Federation.from_arrays(xs, ys).subset([2, 0]).keys
        array([2, 0])
        """
        chosen = np.arange(self.m)[list(order)]
        now = Change(1, self.train, self.test, self.groups).subset(chosen)
        return replace(
            self, train=now.train, test=now.test, groups=now.groups, keys=self.keys[chosen],
            names=tuple(self.names[i] for i in chosen),
            changes=tuple(change.subset(chosen) for change in self.changes),
        )  # fmt: skip

    def at(self, round: int) -> Federation:
        """The clients with the data and the groups of one round, from 1; nothing is copied."""
        if not self.changes:
            return self
        now = [change for change in self.changes if change.round <= round][-1:]
        return replace(self, changes=(), **(now[0].held if now else {}))

    def drifting(self, drift: Drift, seed: int = 0) -> Federation:
        """The same clients, whose data change in later rounds (see `wecfl.data.drift`).

        >>> from wecfl.data.drift import Abrupt
        >>> fed = Federation.from_arrays([np.eye(4)] * 2, [np.arange(4)] * 2, groups=[0, 1])
        >>> fed.drifting(Abrupt(round=3)).at(3).groups
        array([1, 1])
        """
        check_whole(seed=(seed, 0))
        return replace(self, **drifting(self, drift, seed)._asdict())

    def validating(self, share: float, seed: int = 0) -> Federation:
        """The same clients, tested on a `share` of their training samples, held out from training.

        Use it to choose, for example, a learning rate without looking at the test samples. The
        share is stratified and drawn for `seed`.

        >>> fed = Federation.from_arrays([np.zeros((10, 1))], [np.arange(10) % 2])
        >>> choosing = fed.validating(0.25)
        >>> [len(rows) for rows in (*fed.train, *fed.test, *choosing.train, *choosing.test)]
        [8, 2, 6, 2]
        """
        check_still(self.changes, "hold out validation data")
        cuts = [
            holdout(self.y[rows], share, rng.stream(seed, "validation", 0, int(key)))
            for rows, key in zip(self.train, self.keys, strict=True)
        ]
        pairs = list(zip(self.train, cuts, strict=True))
        train, test = (tuple(rows[cut[side]] for rows, cut in pairs) for side in (0, 1))
        return replace(self, train=train, test=test)

    def transformed(self, *transforms: Transform, groups: int = 10, seed: int = 0) -> Federation:
        """The same clients, whose samples or targets are changed (see `wecfl.transforms`).

        Clients of the same group are changed in the same way, unless a transform says otherwise.
        If clients have no groups yet, this number of `groups` is made.

        >>> from wecfl.data.partition import Iid
        >>> from wecfl.data.transforms import Rotation
        >>> fed = Federation.from_dataset("digits", Iid(), clients=6)
        >>> fed.transformed(Rotation(step=120), groups=3).groups
        array([0, 0, 1, 1, 2, 2])
        """
        check_whole(groups=(groups, 1), seed=(seed, 0))
        check_still(self.changes, "be transformed")
        changed = transformed(self, transforms, groups=groups, seed=seed)
        return replace(self, x=changed.x, y=changed.y, groups=changed.groups)

    def mixed(self, share: float, seed: int = 0) -> Federation:
        """Each client swaps a `share` of its samples with clients of other groups.

        So it belongs to two groups. `groups` keeps the one from which most of its samples come.

        >>> from wecfl.data.partition import ClusterwisePermuted
        >>> fed = Federation.from_dataset("digits", ClusterwisePermuted(groups=2), clients=4)
        >>> mixed = fed.mixed(0.25)
        >>> [len(set(a) & set(b)) / len(a) for a, b in zip(fed.test, mixed.test)][0]
        0.75...
        """
        check_still(self.changes, "be mixed")
        train, test = map(tuple, swapped(self, share, seed))
        return replace(self, train=train, test=test)

    def scaled(self, scale: Scale, by: ScaleBy = "all") -> Federation:
        """The same clients with scaled samples, and with the pipeline that scales other samples.

        The statistics are of the training samples of `all` clients, each `client`, or its
        `cluster`. `pixels` are 0 … 255, or in [−1, 1] already, as those given as uint8.

        >>> fed = Federation.from_arrays([[[0.0], [2.0]], [[4.0], [6.0]]], [[0, 1]] * 2, test=0)
        >>> fed.scaled("minmax").x.ravel().tolist(), fed.scaled("minmax", "client").x[:, 0].tolist()
        ([0.0, 0.333..., 0.666..., 1.0], [0.0, 1.0, 0.0, 1.0])
        """
        from wecfl.data.fitting import scaled_samples  # noqa: PLC0415  (with scikit-learn)

        check_still(self.changes, "be scaled")
        if self.pipeline and (not self.pipeline.plain or len(self.pipeline.parts) > 1):
            raise DataError("these samples have a pipeline already: choose scale where it is made")
        held = dict(zip(self.names, zip(self.train, self.test, strict=True), strict=True))
        x, pipeline = scaled_samples(self.x, held, scale, by)
        classes = self.pipeline.classes if self.pipeline else None
        return replace(self, x=x, pipeline=replace(pipeline, classes=classes))

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
        several for a sample; the task of a run says how they are learned (`wecfl.tasks`). `test` is
        the share of each client's samples that is kept for testing (stratified, drawn for `seed`),
        or a pair (xs, ys) of test samples. A client with one sample trains and is not tested; with
        `test` = 0, no client is tested. uint8 samples are pixels and are scaled to [−1, 1]; other
        numbers are used as they are. `classes` defaults to the largest label + 1.

        >>> xs, ys = [np.zeros((5, 1)), np.full((5, 1), np.nan)], [[0] * 5, [1] * 5]
        >>> Federation.from_arrays(xs, ys)
        Traceback (most recent call last):
        wecfl.errors.DataError: client 1: x holds NaN or Inf in column 0 (sample 0); ...
        """
        check_whole(seed=(seed, 0))
        client_names = tuple(map(str, range(len(xs)) if names is None else names))
        plain = PlainArrays.of(client_names, xs, ys, test)
        parts, labels, trains, tests = pooled_clients(
            client_names, plain.xs, plain.ys, plain.test, classes=classes, seed=seed
        )
        y = alike([(where, each) for (where, _), each in zip(parts, labels, strict=True)])
        return cls(
            pool(parts), y, tuple(trains), tuple(tests),
            count_targets(y) if classes is None else classes, np.arange(len(client_names)),
            client_names, None if groups is None else np.asarray(groups, np.int64),
            plain.pipeline,
        )  # fmt: skip

    @classmethod
    def from_dict(
        cls, clients: Mapping[str, Any], *, test: float = 0.2, seed: int = 0
    ) -> Federation:
        """Your own clients by name: each is a pair (x, y), or a mapping as in a ``.npz``.

        >>> Federation.from_dict({"site 7": (np.zeros((5, 2)), [0, 1, 0, 1, 0])})
        Federation(1 clients, 4 training and 1 test samples of shape (2,), 2 classes)
        """
        xs, ys, tests = held_arrays(clients)
        return cls.from_arrays(
            xs, ys, test=test if tests is None else tests, names=list(clients), seed=seed
        )

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        client: str,
        target: str | Sequence[str],
        features: Sequence[str] | None = None,
        group: str | None = None,
        scale: Scale = "standard",
        scale_by: ScaleBy = "all",
        impute: Impute | None = None,
        test: float = 0.2,
        seed: int = 0,
    ) -> Federation:
        """A table: the column `client` names the client of each row, and `target` is predicted.

        Columns of numbers are scaled (`wecfl.data.pipeline`), and columns of text are encoded
        one-hot, by the merged statistics of the clients' training samples.

        Args:
            frame: One row per sample.
            client: The column with the names of the clients.
            target: The column to predict: texts, classes 0, 1, 2, … or numbers; or several columns
                of numbers or truth values.
            features: The columns to predict from; by default all others.
            group: A column with the hidden group of each client, if it is known.
            scale: `standard`, `minmax` or `none`.
            scale_by: Whose statistics scale a row: those of `all`, its `client`, or its `cluster`.
            impute: What replaces a missing number: `mean`, `median` or a constant. Another feature
                says where it was missing. Without `impute`, a missing value is an error.
            test: The share of each client's rows that is kept for testing.
            seed: The seed of the draw of these rows.

        >>> import pandas as pd
        >>> people = pd.DataFrame({"commune": ["a"] * 5 + ["b"] * 5, "age": range(10),
        ...                        "sex": ["f", "m"] * 5, "insured": ["no", "yes"] * 5})
        >>> Federation.from_frame(people, client="commune", target="insured").pipeline.features
        ['age', 'sex = f', 'sex = m']

        """
        from wecfl.data.frames import client_tables  # noqa: PLC0415  (with pandas)

        held = client_tables(frame, client, target, features, group)
        pipeline = held.fitted(cut_clients(held.labels, test, seed), scale, scale_by, impute)
        made = cls.from_arrays(
            held.transformed(pipeline), held.labels, test=test, names=held.names,
            groups=held.groups, classes=len(held.classes) if held.classes else None, seed=seed,
        )  # fmt: skip
        return replace(made, pipeline=pipeline)

    @classmethod
    def from_partitioner(
        cls,
        partitioner: Any,
        *,
        target: str,
        feature: str | None = None,
        test: float = 0.2,
        seed: int = 0,
        **table: Any,
    ) -> Federation:
        """The clients of a partitioner of flwr-datasets, to which its data set was given.

        `feature` names the column of pictures or arrays, which are the samples. Without it, all
        columns together are a table, and other arguments are those of `from_frame`.
        """
        held = held_by(partitioner)
        if feature is not None:
            clients = {name: arrays_of(name, rows, feature, target) for name, rows in held.items()}
            return cls.from_dict(clients, test=test, seed=seed)
        how: dict[str, Any] = {"target": target, "test": test, "seed": seed, **table}
        return cls.from_frame(table_of(held), client=OWNER_COLUMN, **how)

    @classmethod
    def from_folder(cls, path: str | Path, *, test: float = 0.2, seed: int = 0) -> Federation:
        """One client per ``.npz`` of a folder, in the order of the files' names: c0.npz is c0.

        Each file holds `x` and `y`. If all files also hold `x_test` and `y_test`, these are the
        test samples; otherwise they are drawn by `test` and `seed` (see `from_arrays`).
        """
        files = sorted(Path(path).glob("*.npz"))
        if not files:
            raise DataError(f"{path}: expected a .npz file for each client, found none")
        for file in files:
            if file.name.encode(errors="replace").decode() != file.name:
                raise DataError(f"{path}: the file name {file.name!r} is not UTF-8; rename it")
        named = {file.stem: held for file, held in zip(files, read_npz_files(files), strict=True)}
        return cls.from_dict(named, test=test, seed=seed)

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
        check_whole(clients=(clients, 1), seed=(seed, 0))
        data = dataset if isinstance(dataset, Dataset) else load(dataset, data_dir)
        y, held = share_out(data, partition, clients=clients, seed=seed)
        names = tuple(map(str, range(clients)))
        return cls(
            data.x, y, held.train, held.test, data.classes, np.arange(clients), names, held.groups
        )
