"""Checks samples and labels that come from users and files, and brings them into one form.

uint8 arrays are pixels and become (p/255 − 0.5)/0.5 ∈ [−1, 1]; other numbers are used as they are.
Labels are whole numbers from 0. An error is one line that says which array is wrong.
"""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from lzma import LZMAError
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import ArrayLike, NDArray

from wecfl.core.types import F32, Bool, Int
from wecfl.errors import DataError
from wecfl.inputs import RefusedFileError, check_fits, check_regular

__all__ = [
    "Array",
    "NamedArray",
    "as_labels",
    "as_samples",
    "data_errors",
    "fill_pixels",
    "holdout",
    "pool",
    "read_npz",
    "read_npz_files",
    "refuse_masked",
]

Array: TypeAlias = NDArray[Any]
"""Samples or labels, before they are checked."""
NamedArray: TypeAlias = tuple[str, Array]
"""An array, and its name in error messages."""


MAX_NAMED_COLUMNS = 10
"""The largest number of columns that an error names."""
FILE_ERRORS = (OSError, EOFError, ValueError, OverflowError, zlib.error, tarfile.TarError)
"""The errors that gzip, tarfile and the reading of bytes raise for a damaged file."""
NPZ_ERRORS = (KeyError, SyntaxError, MemoryError, RuntimeError, LZMAError, TokenError,
              zipfile.BadZipFile)  # fmt: skip
"""The errors that numpy and zipfile raise in addition for a damaged ``.npz``."""
NPZ_NAMES = ("x", "y", "x_test", "y_test")
"""The arrays of a ``.npz``; the last two are optional."""


@contextmanager
def data_errors(
    path: Path, remedy: str = "get it again", errors: tuple[type[Exception], ...] = FILE_ERRORS
) -> Iterator[None]:
    """Turn an error that a library raises when it reads `path` into a `DataError` of one line.

    >>> with data_errors(Path("data.bin")): raise EOFError
    Traceback (most recent call last):
    wecfl.errors.DataError: data.bin: cut short, corrupt or unreadable (EOFError); get it again
    """
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; check the path") from error
    except RefusedFileError as error:
        raise DataError(f"{path}: {error}") from error
    except errors as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: cut short, corrupt or unreadable ({reason}); {remedy}") from error


def pool(parts: Sequence[NamedArray]) -> F32:
    """The samples of all parts in one float32 array, part after part.

    uint8 arrays are pixels and are scaled to [−1, 1]; any other numbers are used as they are.

    >>> pool([("a", np.uint8([[0, 255]])), ("b", np.uint8([[255, 255]]))])
    array([[-1.,  1.], [ 1.,  1.]], dtype=float32)
    """
    first, expected = parts[0]
    for where, part in parts:
        if part.dtype.kind not in "uifb":
            raise DataError(f"{where}: x holds {part.dtype}, expected numbers")
        if part.ndim < 2:
            raise DataError(f"{where}: x has shape {part.shape}, expected (samples, features …)")
        if 0 in part.shape[1:]:
            raise DataError(
                f"{where}: x has shape {part.shape}, expected samples with at least one number"
            )
        if part.shape[1:] != expected.shape[1:]:
            raise DataError(
                f"{where}: samples have shape {part.shape[1:]}, but those of {first} have "
                f"{expected.shape[1:]}; give all samples the same shape"
            )
        if (part.dtype == np.uint8) != (expected.dtype == np.uint8):
            raise DataError(
                f"{where}: x holds {part.dtype}, but x of {first} holds {expected.dtype}; only "
                "uint8 is scaled as pixels, so use one type for all"
            )
    out = np.empty((sum(len(part) for _, part in parts), *expected.shape[1:]), np.float32)
    end = 0
    for where, part in parts:
        start, end = end, end + len(part)
        fill_pixels(out[start:end], part)
        if part.dtype.kind == "f" and not np.isfinite(out[start:end]).all():
            raise DataError(_not_finite(where, np.isfinite(out[start:end])))
    return out


def refuse_masked(where: str, values: Any) -> None:
    """Raise an error for a masked array, since NumPy would use its masked values like others.

    >>> refuse_masked("x", np.ma.masked_equal([1, 999], 999))
    Traceback (most recent call last):
    wecfl.errors.DataError: x: expected a plain array, got a masked one; replace its masked ...
    """
    if isinstance(values, np.ma.MaskedArray):
        raise DataError(
            f"{where}: expected a plain array, got a masked one; replace its masked values (with "
            "filled), or drop these samples"
        )


def _not_finite(where: str, finite: Bool) -> str:
    """A message: where samples hold NaN or Inf, and what to do."""
    row = int(np.argmin(finite.reshape(len(finite), -1).all(axis=1)))
    columns = ""
    if finite.ndim == 2:
        found = np.flatnonzero(~finite.all(axis=0))
        shown = ", ".join(map(str, found[:MAX_NAMED_COLUMNS]))
        more = f" and {len(found) - MAX_NAMED_COLUMNS} more" * (len(found) > MAX_NAMED_COLUMNS)
        columns = f" in column{'s' * (len(found) > 1)} {shown}{more}"
    return (
        f"{where}: x holds NaN or Inf{columns} (sample {row}); drop such samples, or fill them in, "
        "as Federation.from_frame(…, impute='median') does"
    )


def as_samples(where: str, x: ArrayLike, shape: tuple[int, ...]) -> F32:
    """(n, *shape), samples to predict, as `pool` makes them; or a `DataError` of one line.

    If the shape is empty, it is not known, and not checked.

    >>> as_samples("predict", [[1, 2], [3, 4]], (3,))
    Traceback (most recent call last):
    wecfl.errors.DataError: predict: x has shape (2, 2), expected (samples, 3)
    """
    refuse_masked(where, x)
    try:
        given = np.asarray(x)
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{where}: x is not an array of numbers: {error}") from None
    if (shape and given.shape[1:] != shape) or not given.ndim:
        expected = ", ".join(map(str, ("samples", *shape)))
        raise DataError(f"{where}: x has shape {given.shape}, expected ({expected})")
    return pool([(where, given)]) if len(given) else np.empty((0, *shape), np.float32)


def fill_pixels(out: F32, samples: Array) -> None:
    """Write the samples to `out`; uint8 is scaled as pixels.

    >>> out = np.empty(2, np.float32)
    >>> fill_pixels(out, np.uint8([0, 255]))
    >>> out.tolist()
    [-1.0, 1.0]
    """
    if samples.dtype != np.uint8:
        with np.errstate(over="ignore", invalid="ignore"):  # `pool` reports what overflows
            out[...] = samples
        return
    for i in range(0, len(out), 128):  # a block stays in the cache over the three passes
        block = out[i : i + 128]
        block[...] = samples[i : i + 128]
        block /= 255
        block -= 0.5
        block /= 0.5


def as_labels(where: str, y: ArrayLike, n: int, classes: int | None = None) -> Int:
    """The labels of `n` samples as int64: whole numbers in 0 … classes − 1, or a `DataError`.

    >>> as_labels("client 0", [2.0, 1.0], 2)
    array([2, 1])
    >>> as_labels("client 0", [2, 3], 2, classes=3)
    Traceback (most recent call last):
    wecfl.errors.DataError: client 0: label 3 of sample 1 is out of range, expected 0 … 2
    """
    given = np.asarray(y)
    if given.dtype.kind not in "uifb":
        raise DataError(f"{where}: y holds {given.dtype}, expected labels 0, 1, 2, …")
    if given.shape != (n,):
        raise DataError(
            f"{where}: y has shape {given.shape}, expected one label per sample: ({n},)"
        )
    with np.errstate(invalid="ignore"):
        labels = given.astype(np.int64)
    wrong = (labels != given) | (labels < 0) | (labels >= (np.inf if classes is None else classes))
    if wrong.any():
        row = int(np.argmax(wrong))
        expected = f"0 … {classes - 1}" if classes is not None else "whole numbers from 0"
        raise DataError(
            f"{where}: label {given[row]} of sample {row} is out of range, expected {expected}"
        )
    return labels


def holdout(y: Array, share: float, generator: np.random.Generator) -> tuple[Int, Int]:
    """Rows for training, and a stratified `share` of all rows for testing; each gets at least one.

    If there is a single row, or the share is 0, all rows are for training.

    The shuffled rows are sorted by label, and every 1/share-th row is taken. So a class gets its
    share, up to one sample. Targets that are numbers are sorted by size; if there are several for a
    sample, by the first.

    >>> train, test = holdout(np.repeat([0, 1], 10), 0.2, np.random.default_rng(0))
    >>> len(train), (test < 10).sum(), (test >= 10).sum()
    (16, np.int64(2), np.int64(2))
    """
    n = len(y)
    if n < 2 or not share:
        return np.arange(n), np.arange(0)
    count = min(max(round(share * n), 1), n - 1)
    order = generator.permutation(n)
    order = order[np.argsort((y if y.ndim == 1 else y[:, 0])[order], kind="stable")]
    taken = order[(np.arange(count) * n + generator.integers(n)) // count]
    mask = np.zeros(n, bool)
    mask[taken] = True
    return np.flatnonzero(~mask), np.flatnonzero(mask)


def read_npz(path: Path, *, labels: bool = True) -> dict[str, Array]:
    """The arrays x and y of a ``.npz``, and x_test and y_test if it has them; never a pickle.

    If no `labels` are needed, the file may hold only x.

    >>> read_npz(Path("nothing.npz"))
    Traceback (most recent call last):
    wecfl.errors.DataError: nothing.npz: ...
    """
    # Holding samples out needs a copy of them, in another order.
    return read_npz_files([path], copies=2, labels=labels)[0]


def read_npz_files(
    paths: Sequence[Path], copies: int = 1, *, labels: bool = True
) -> list[dict[str, Array]]:
    """The arrays of each file, if `copies` copies of all files together fit into the memory.

    A file of a few kilobytes can unpack to any number of gigabytes, and so can many small files
    together. So the sizes of all arrays are added up before anything is read.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     file = Path(place) / "a.npz"
    ...     np.savez(file, x=np.zeros((3, 2)), y=[0, 1, 0])
    ...     [held["x"].shape for held in read_npz_files([file, file])]
    [(3, 2), (3, 2)]
    """
    needed = 0
    for path in paths:
        with _opened(path, labels) as archive:
            for name in _held(archive):
                stored, samples = _bytes(f"{path} ({name})", archive.zip, name)
                needed += copies * stored + samples
            check_fits(needed)
    found = []
    for path in paths:
        with _opened(path, labels) as archive:
            found.append({name: np.asarray(archive[name]) for name in _held(archive)})
    return found


@contextmanager
def _opened(path: Path, labels: bool) -> Iterator[NpzFile]:
    """A ``.npz`` that holds the expected arrays; any error about it is one line."""
    with data_errors(path, "write numbers to it with numpy.savez", (*FILE_ERRORS, *NPZ_ERRORS)):
        check_regular(path)
        with path.open("rb") as file:
            if file.read(2) != b"PK":
                raise DataError(f"{path}: not a .npz (a zip of arrays); write it with numpy.savez")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                held = _held(archive)
                expected = NPZ_NAMES[: 4 if len(held) > 2 else 2]
                if not labels and len(held) == 1:
                    expected = NPZ_NAMES[:1]
                if missing := [name for name in expected if name not in held]:
                    raise DataError(
                        f"{path}: holds {', '.join(archive) or 'nothing'}, but lacks "
                        f"{', '.join(missing)}; name the arrays x and y (and x_test and y_test)"
                    )
                yield archive


def _held(archive: NpzFile) -> list[str]:
    return [name for name in NPZ_NAMES if name in archive]


def _bytes(where: str, archive: Any, name: str) -> tuple[int, int]:
    """The bytes of an array as it is stored and, if it holds samples, as float32.

    An array that is not as large as its header says is refused.
    """
    member = name if name in archive.namelist() else f"{name}.npy"
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        header = "read_array_header_1_0" if version == (1, 0) else "read_array_header_2_0"
        shape, _, dtype = getattr(np.lib.format, header)(file)
        if dtype.hasobject:
            raise DataError(
                f"{where}: expected numbers, got Python objects, which are never unpickled; store "
                "numbers instead"
            )
        promised, held = prod(shape) * dtype.itemsize, archive.getinfo(member).file_size
        if promised != held - file.tell():
            raise DataError(
                f"{where}: the header promises {promised} bytes, got {held - file.tell()}; "
                "write it again with numpy.savez"
            )
    return promised, 4 * prod(shape) if name.startswith("x") else 0
