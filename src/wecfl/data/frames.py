"""Tables: which rows of a table each client holds, and the files that hold tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wecfl.core.types import F32, Int
from wecfl.data.fitting import fit_pipeline
from wecfl.data.pipeline import Impute, Pipeline, Scale, ScaleBy
from wecfl.data.samples import data_errors
from wecfl.errors import DataError, unknown

__all__ = ["ClientTables", "client_tables", "read_frame", "several_targets", "table_html"]

MAX_ROWS_SHOWN = 20
"""The largest number of clients that a table in a notebook shows."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientTables:
    """The rows of each client: its name, its features and its labels."""

    names: tuple[str, ...]
    tables: list[pd.DataFrame]
    labels: list[Any]
    classes: tuple[str, ...] | None
    """The names of the classes, if the target holds texts."""
    targets: tuple[str, ...] = ()
    """The columns to predict, if there are several."""
    groups: list[Any] | None = None

    def fitted(
        self, cuts: Sequence[tuple[Int, Int]], scale: Scale, by: ScaleBy, impute: Impute | None
    ) -> Pipeline:
        """The pipeline of the training rows, the first of each pair of `cuts`."""
        parts = zip(self.names, self.tables, cuts, strict=True)
        return fit_pipeline(
            {name: table.iloc[cut] for name, table, (cut, _) in parts},
            scale=scale, by=by, impute=impute, classes=self.classes, targets=self.targets,
        )  # fmt: skip

    def transformed(self, pipeline: Pipeline) -> list[F32]:
        """The samples of each client."""
        pairs = zip(self.names, self.tables, strict=True)
        return [pipeline.transform(table, name, f"client {name}") for name, table in pairs]


def client_tables(
    frame: pd.DataFrame,
    client: str,
    target: str | Sequence[str],
    features: Sequence[str] | None = None,
    group: str | None = None,
) -> ClientTables:
    """Divide a table by its column `client`; clients are in the order of their values.

    >>> frame = pd.DataFrame({"town": ["b", "a", "b"], "age": [1, 2, 3], "sick": ["n", "y", "n"]})
    >>> held = client_tables(frame, "town", "sick")
    >>> held.names, [len(table) for table in held.tables], held.labels, held.classes
    (('a', 'b'), [1, 2], [array([1]), array([0, 0])], ('n', 'y'))
    """
    frame = _pandas(frame)
    targets = [target] if isinstance(target, str) else list(target)
    if not targets or len({client, *targets}) <= len(targets):
        raise DataError(
            f"expected different columns for the client and for each target, got {client!r} and "
            f"{', '.join(map(repr, targets))}"
        )
    special = [("client", client), *(("target", name) for name in targets)]
    special += [("group", group)] if group else []
    used = _feature_columns(frame, special, features)
    labels, classes = (
        (several_targets(frame, targets), None) if len(targets) > 1 else _classes(frame[targets[0]])
    )
    owners, values = pd.factorize(frame[client], sort=True)
    names = tuple(str(value) for value in values)
    rows = [np.flatnonzero(owners == i) for i in range(len(names))]
    groups = _groups(frame[group], names, rows) if group else None
    chosen = _with_numbers(frame[used])
    several = tuple(targets) if len(targets) > 1 else ()
    return ClientTables(
        names, [chosen.iloc[own] for own in rows], [labels[own] for own in rows], classes, several,
        groups,
    )  # fmt: skip


def _pandas(given: Any) -> pd.DataFrame:
    """A table as pandas has it, with texts for the names of its columns."""
    if not isinstance(given, pd.DataFrame) and hasattr(given, "to_pandas"):
        given = given.to_pandas()  # a data set of Hugging Face, or a table of Arrow
    if not isinstance(given, pd.DataFrame):
        raise DataError(f"expected a pandas DataFrame, got {type(given).__name__}; convert it")
    frame = given.rename(columns=str)
    _check_names(frame.columns)
    return frame


def _feature_columns(
    frame: pd.DataFrame, special: Sequence[tuple[str, str]], features: Sequence[str] | None
) -> list[str]:
    """The columns to predict from: those that are asked for, or all that are not `special`.

    `special` are the other columns, each with its role; they must have no missing values.
    """
    for what, name in special:
        if name not in frame:
            raise DataError(f"{what}: " + unknown("column", str(name), frame.columns))
        if frame[name].isna().any():
            raise DataError(
                f"{frame[name].isna().sum()} values are missing in the column {name}, the {what}; "
                "drop these rows"
            )
    used = [name for name in frame.columns if name not in {name for _, name in special}]
    if features is not None:
        if strange := [name for name in features if name not in used]:
            raise DataError("features: " + unknown("column", strange[0], used))
        used = list(features)
    if not used or not len(frame):
        raise DataError("the table has no features or no rows; expected at least one of each")
    return used


def _with_numbers(features: pd.DataFrame) -> pd.DataFrame:
    """The features; columns of Python objects that are all numbers become columns of numbers.

    >>> _with_numbers(pd.DataFrame({"a": [1, None], "b": ["1", "2"]}, dtype=object)).dtypes.tolist()
    [dtype('float64'), dtype('O')]
    """
    kinds = {"integer", "floating", "mixed-integer-float", "decimal"}
    objects = [str(name) for name in features if features[name].dtype == object]
    held = [name for name in objects if pd.api.types.infer_dtype(features[name]) in kinds]
    try:
        return features.astype(dict.fromkeys(held, np.float64))
    except OverflowError as error:
        raise DataError(f"the columns {', '.join(held)} must hold numbers: {error}") from None


def _groups(column: pd.Series[Any], names: Sequence[str], rows: Sequence[Int]) -> list[int]:
    """The hidden group of each client, from the column that names it in each of its rows."""
    numbers, _ = pd.factorize(column, sort=True)
    for name, own in zip(names, rows, strict=True):
        if len(set(numbers[own])) > 1:
            raise DataError(
                f"client {name}: its rows name several groups, expected one; correct the column"
            )
    return [int(numbers[own[0]]) for own in rows]


def several_targets(frame: pd.DataFrame, targets: Sequence[str]) -> Any:
    """(n, d), several columns to predict: numbers, or truth values as 0 and 1.

    >>> several_targets(pd.DataFrame({"ill": [True, False], "age": [3.5, 4]}), ["ill", "age"])
    array([[1. , 3.5],
           [0. , 4. ]])
    """
    for name in targets:
        if not pd.api.types.is_numeric_dtype(frame[name].dtype):  # which truth values are, too
            raise DataError(
                f"the column {name}, one of several targets, holds {frame[name].dtype}, expected "
                "numbers or truth values; write its texts as 0 and 1, or predict it alone"
            )
    truths = [name for name in targets if pd.api.types.is_bool_dtype(frame[name].dtype)]
    return frame[list(targets)].astype(dict.fromkeys(truths, np.int64)).to_numpy()


def _classes(target: pd.Series[Any]) -> tuple[Any, tuple[str, ...] | None]:
    """The labels, and the names of the classes if they are texts; numbers stay as they are."""
    if pd.api.types.is_bool_dtype(target.dtype):
        return target.to_numpy(np.int64), None
    if pd.api.types.is_numeric_dtype(target.dtype):
        return target.to_numpy(), None
    numbers, names = pd.factorize(target.astype(str), sort=True)
    return numbers.astype(np.int64), tuple(map(str, names))


def table_html(names: Any, samples: Any, tested: Any, groups: Any = None) -> str:
    """Clients as a table for notebooks.

    >>> table_html(["a"], [3], [1]).count("<th>")
    3
    """
    columns = {"client": names, "training samples": samples, "test samples": tested}
    known = columns if groups is None else {**columns, "group": groups}
    return str(pd.DataFrame(known).to_html(index=False, max_rows=MAX_ROWS_SHOWN))


def _check_names(columns: pd.Index[Any], place: str = "") -> None:
    if not columns.is_unique:
        twice = columns[columns.duplicated()][0]
        raise DataError(f"{place}the table has two columns of the name {twice!r}; rename one")


def read_frame(path: Path) -> pd.DataFrame:
    """The table in a CSV or a Parquet file.

    >>> read_frame(Path("people.csv"))
    Traceback (most recent call last):
    wecfl.errors.DataError: people.csv: there is no such file; check the path
    """
    remedy = "write it with pandas, or check its encoding (UTF-8) and its separators (,)"
    errors = (OSError, ValueError, OverflowError, MemoryError)  # ParserError is a ValueError
    with data_errors(path, remedy, errors):
        if path.suffix == ".csv":
            frame = pd.read_csv(path)
            # If two columns have the same name, pandas would rename one without saying so.
            head = pd.read_csv(path, header=None, nrows=1, dtype=str)
            _check_names(pd.Index(head.iloc[0].dropna()), f"{path}: ")
            return frame
        try:
            return pd.read_parquet(path)
        except ImportError:
            raise DataError(f"{path}: Parquet needs pyarrow: pip install 'wecfl[tables]'") from None
