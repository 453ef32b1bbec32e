"""Data sets: where they lie, how to get them, how their bytes become arrays.

Three names are known: ``digits`` (comes with scikit-learn), ``fashion-mnist`` (IDX files) and
``cifar-10`` (the official binary archive); any other data set is the path of a ``.npz``. Files are
looked for in `data_dir` or ``$WECFL_DATA``, where Debian's package puts them, in the user's cache;
then they are fetched into the cache. Fetched files are checked, files that were there are trusted.

Pixels become (p/255 − 0.5)/0.5 ∈ [−1, 1].
"""

from __future__ import annotations

import gzip
import os
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, TypeAlias, cast

import numpy as np
import platformdirs

from wecfl import rng
from wecfl.core.state import F32, Int
from wecfl.data.downloads import DownloadProgress, download, has_apt, unpack_debian
from wecfl.data.samples import (
    Array,
    as_labels,
    count_classes,
    data_errors,
    fill_pixels,
    holdout,
    pool,
    read_npz,
)
from wecfl.errors import DataError, unknown

__all__ = [
    "SOURCES",
    "Dataset",
    "Package",
    "Source",
    "catalogue",
    "get",
    "load",
    "locate",
]

HELD_OUT_SHARE = 0.2
"""The share of a data set without an official test set that becomes its test set."""


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Labelled samples, the training set first.

    >>> digits = load("digits")
    >>> digits.x.shape, digits.n_train, digits.classes
    ((1797, 1, 8, 8), 1438, 10)
    """

    name: str
    x: F32
    """(n, …): the samples, rows [0, n_train) for training, the rest for testing."""
    y: Int
    """(n,): their labels in 0 … classes − 1."""
    n_train: int
    classes: int


class Package(NamedTuple):
    """A Debian package and the folder it installs the files in."""

    name: str
    folder: PurePosixPath


@dataclass(frozen=True, slots=True)
class Source:
    """A data set known by name: what it is, how to recognise and read it, where it comes from."""

    name: str
    shape: tuple[int, ...]
    """Of one sample: channels, height, width."""
    n_train: int
    n_test: int
    classes: int
    find: Callable[[Path], Path | None]
    """Folder ↦ what to give to `read`, or None if the folder does not hold the data set."""
    read: Callable[[Source, Path], Dataset]
    files: Mapping[str, str]
    """Official file name ↦ MD5 sum."""
    url: str = ""
    debian: Package | None = None


def load(
    name: str | Path,
    data_dir: Path | None = None,
    *,
    fetch: bool = True,
    progress: DownloadProgress | None = None,
    test: float = HELD_OUT_SHARE,
    seed: int = 0,
) -> Dataset:
    """The data set `name`, or the one in the ``.npz`` whose path is `name`.

    A ``.npz`` holds `x` (n, …) and `y` (n,), optionally `x_test` and `y_test`. Without them, the
    stratified share `test` of its samples, drawn for `seed`, is the test set. The digits have no
    official test set either: theirs is a fixed stratified fifth.

    >>> load("digit")
    Traceback (most recent call last):
    wecfl.errors.DataError: unknown dataset 'digit'; did you mean 'digits'?
    """
    if str(name) not in SOURCES and Path(name).suffix == ".npz":
        return _from_npz(Path(name), test, seed)
    source = _source(str(name))
    return source.read(source, get(source.name, data_dir, fetch=fetch, progress=progress))


def catalogue(data_dir: Path | None = None) -> list[tuple[Source, Path | None]]:
    """Every data set known by name and where it was found (None: it would have to be fetched).

    >>> [source.name for source, _ in catalogue()]
    ['digits', 'fashion-mnist', 'cifar-10']
    """
    return [(source, locate(name, data_dir)) for name, source in SOURCES.items()]


def locate(name: str, data_dir: Path | None = None) -> Path | None:
    """Where the data set lies on this machine: its archive or its folder; None if it does not.

    >>> locate("digits").name                                   # inside scikit-learn
    'datasets'
    """
    source = _source(name)
    folders = (f for place in _places(source, data_dir) for f in (place, place / name))
    return next((found for folder in folders if (found := source.find(folder))), None)


def get(
    name: str,
    data_dir: Path | None = None,
    *,
    fetch: bool = True,
    progress: DownloadProgress | None = None,
) -> Path:
    """Where the data set lies on this machine, fetched into the user's cache if it must be.

    >>> get("digits").name
    'datasets'
    """
    if (found := locate(name, data_dir)) is not None:
        return found
    source, target = _source(name), _cache() / name
    failures: list[str] = []
    for way in _ways(source) if fetch else ():
        try:
            way(source, target, progress)
        except DataError as error:
            failures.append(str(error))
        else:
            return cast(Path, source.find(target))
    places = ", ".join(map(str, _places(source, data_dir)))
    tried = f" and could not be fetched ({'; '.join(failures)})" if failures else ""
    install = f"`apt-get install {source.debian.name}`, or " if source.debian else ""
    raise DataError(
        f"{name}: not found in {places}{tried}; {install}put {', '.join(source.files)} into "
        f"{target}, or name the folder it is in (data_dir, WECFL_DATA)"
    )


# Where to look, and how to fetch


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise DataError(unknown("dataset", name, SOURCES))
    return SOURCES[name]


def _cache() -> Path:
    return platformdirs.user_cache_path("wecfl")


def _places(source: Source, data_dir: Path | None) -> list[Path]:
    asked = data_dir or os.environ.get("WECFL_DATA")
    if asked and not Path(asked).is_dir():
        said = "the data folder" if data_dir else "WECFL_DATA"
        raise DataError(f"{asked}: {said} is not an existing folder; create it or leave it out")
    folders = (asked, source.debian and source.debian.folder, _cache())
    return [Path(folder) for folder in folders if folder]


_Way: TypeAlias = Callable[[Source, Path, DownloadProgress | None], None]


def _ways(source: Source) -> Iterator[_Way]:
    if source.debian and has_apt():
        yield _from_debian
    if source.url:
        yield _from_url


def _from_debian(source: Source, target: Path, progress: DownloadProgress | None) -> None:
    assert source.debian
    package, folder = source.debian
    unpack_debian(package, folder, source.files, target, progress=progress)


def _from_url(source: Source, target: Path, progress: DownloadProgress | None) -> None:
    for file, md5 in source.files.items():
        if not (target / file).exists():
            download(source.url + file, target / file, md5, progress=progress)


# From bytes to arrays


def _held_out(
    where: str, x: Array, y: Int, classes: int, *, test: float = HELD_OUT_SHARE, seed: int = 0
) -> Dataset:
    """A data set without a test set: the held-out rows go to the end."""
    if len(y) < 2:
        raise DataError(f"{where}: {len(y)} samples, expected at least 2 to train and to test")
    train, held_out = holdout(y, test, rng.stream(seed, "holdout"))
    order = np.concatenate([train, held_out])
    return Dataset(Path(where).stem, pool([(where, x[order])]), y[order], len(train), classes)


def _from_npz(path: Path, test: float, seed: int) -> Dataset:
    arrays = read_npz(path)
    sides = [("x", "y"), ("x_test", "y_test")][: len(arrays) // 2]
    parts = [(f"{path} ({x})", np.atleast_1d(arrays[x])) for x, _ in sides]
    labels = [
        as_labels(f"{path} ({y})", arrays[y], len(part))
        for (_, y), (_, part) in zip(sides, parts, strict=True)
    ]
    if empty := [where for where, part in parts if not len(part)]:
        raise DataError(f"{empty[0]}: no samples")
    y = np.concatenate(labels)
    classes = count_classes(y, f"{path}: ")
    if len(parts) == 1:
        return _held_out(str(path), parts[0][1], y, classes, test=test, seed=seed)
    return Dataset(path.stem, pool(parts), y, len(labels[0]), classes)


# digits


def _find_digits(_: Path) -> Path:
    import sklearn.datasets  # noqa: PLC0415  (a second, and only digits needs it)

    return Path(sklearn.datasets.__file__).parent


def _read_digits(source: Source, _: Path) -> Dataset:
    from sklearn.datasets import load_digits  # noqa: PLC0415

    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, *source.shape).astype(np.float32) / 16 - 0.5) / 0.5
    return _held_out(source.name, x, y.astype(np.int64), source.classes)


# fashion-mnist: the IDX format, http://yann.lecun.com/exdb/mnist (big-endian header, then bytes)

_IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")  # fmt: skip


def _idx_file(folder: Path, stem: str) -> Path | None:
    return next((f for f in (folder / stem, folder / f"{stem}.gz") if f.is_file()), None)


def _find_fashion(folder: Path) -> Path | None:
    return folder if all(_idx_file(folder, stem) for stem in _IDX) else None


def _read_idx(path: Path, shape: tuple[int, ...], most: int) -> Array:
    """The items of an IDX file, (n, *shape) bytes with n ≤ `most`."""
    opener = gzip.open if path.suffix == ".gz" else open
    dims = 1 + len(shape)
    layout = struct.Struct(f">{1 + dims}I")
    with data_errors(path), cast(BinaryIO, opener(path, "rb")) as file:
        header = file.read(layout.size)
        if len(header) < layout.size:
            raise DataError(
                f"{path}: cut short: {len(header)} bytes, the header alone has {layout.size}; "
                "get it again"
            )
        magic, n, *got = layout.unpack(header)
        if magic != 0x0800 + dims:
            raise DataError(
                f"{path}: wrong magic number {magic:#010x}, expected {0x0800 + dims:#010x} "
                f"(IDX, bytes, {dims} dimensions); get it again"
            )
        if (*got,) != shape or not 0 < n <= most:  # before anything of that size is allocated
            raise DataError(
                f"{path}: the header promises {n} items of shape {(*got,)}, "
                f"expected 1 … {most} of shape {shape}; get it again"
            )
        data = file.read(n * prod(shape) + 1)
        if len(data) != n * prod(shape):
            size = f"{len(data)}" if len(data) < n * prod(shape) else "more"
            raise DataError(
                f"{path}: cut short or corrupt: the header promises {n * prod(shape)} bytes, "
                f"got {size}; get it again"
            )
    return np.frombuffer(data, np.uint8).reshape(n, *shape)


def _read_fashion(source: Source, folder: Path) -> Dataset:
    images, labels = [], []
    for stems, most in ((_IDX[:2], source.n_train), (_IDX[2:], source.n_test)):
        x_file, y_file = (cast(Path, _idx_file(folder, stem)) for stem in stems)
        x, y = _read_idx(x_file, source.shape[1:], most), _read_idx(y_file, (), most)
        if len(x) != len(y):
            raise DataError(f"{y_file}: {len(y)} labels for the {len(x)} images of {x_file.name}")
        images.append((str(x_file), x.reshape(-1, *source.shape)))
        labels.append(as_labels(str(y_file), y, len(x), source.classes))
    return Dataset(
        source.name, pool(images), np.concatenate(labels), len(labels[0]), source.classes
    )


# cifar-10: six batches of records of one label byte and 3 × 32 × 32 pixel bytes

_CIFAR_FOLDER, _CIFAR_ARCHIVE = "cifar-10-batches-bin", "cifar-10-binary.tar.gz"
_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def _find_cifar(folder: Path) -> Path | None:
    for unpacked in (folder, folder / _CIFAR_FOLDER):
        if all((unpacked / name).is_file() for name in _BATCHES):
            return unpacked
    return folder / _CIFAR_ARCHIVE if (folder / _CIFAR_ARCHIVE).is_file() else None


def _read_cifar(source: Source, path: Path) -> Dataset:
    batches = _batches(path, 1 + prod(source.shape), source.n_test)
    found: dict[str, int] = {}
    for name, records in batches:
        if not found:  # all batches are of one size, so the first tells how much to allocate
            n = len(records)
            x = np.empty((len(_BATCHES) * n, *source.shape), np.float32)
            y = np.empty(len(x), np.int64)
        found[name] = len(records)
        if found[name] != n:
            raise DataError(
                f"{path} ({name}): {found[name]} records, expected {n} as in "
                f"{next(iter(found))}; get it again"
            )
        start = _BATCHES.index(name) * n
        y[start : start + n] = as_labels(f"{path} ({name})", records[:, 0], n, source.classes)
        fill_pixels(x[start : start + n], records[:, 1:].reshape(n, *source.shape))
    if missing := [name for name in _BATCHES if name not in found]:
        raise DataError(f"{path}: cut short or corrupt: lacks {', '.join(missing)}; get it again")
    return Dataset(source.name, x, y, (len(_BATCHES) - 1) * n, source.classes)


def _batches(path: Path, record: int, most: int) -> Iterator[tuple[str, Array]]:
    """Each batch and its (n, record) bytes; those of an archive without unpacking it to disk."""
    if path.is_dir():
        for name in _BATCHES:
            with data_errors(path / name), (path / name).open("rb") as file:
                size = (path / name).stat().st_size
                yield name, _records(f"{path / name}", file, size, record, most)
        return
    with (
        data_errors(path),
        _Bounded(path, most * record * (len(_BATCHES) + 1)) as stream,
        tarfile.open(fileobj=cast(BinaryIO, stream), mode="r:") as tar,
    ):
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            if folder == _CIFAR_FOLDER and name in _BATCHES and member.isfile():
                body = cast(BinaryIO, tar.extractfile(member))
                yield name, _records(f"{path} ({name})", body, member.size, record, most)
        stream.read(1 << 20)  # gzip compares its checksum at the very end, beyond the tar's


class _Bounded(gzip.GzipFile):
    """Decompresses no more than `most` bytes, whatever a header inside asks for."""

    def __init__(self, path: Path, most: int) -> None:
        super().__init__(path, "rb")
        self._most = most

    def read(self, size: int | None = -1) -> bytes:
        left = self._most - self.tell()
        if size is None or size < 0 or size > left:
            raise DataError(f"{self.name}: more than {self._most} bytes inside; get it again")
        return super().read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 0 and offset > self._most:
            raise DataError(f"{self.name}: more than {self._most} bytes inside; get it again")
        return super().seek(offset, whence)


def _records(where: str, file: BinaryIO, size: int, record: int, most: int) -> Array:
    if size % record or not 0 < size <= most * record:
        raise DataError(
            f"{where}: {size} bytes, expected 1 … {most} records of {record}; get it again"
        )
    data = file.read(size)
    if len(data) != size:
        raise DataError(f"{where}: cut short: expected {size} bytes, got {len(data)}; get it again")
    return np.frombuffer(data, np.uint8).reshape(-1, record)


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            name="digits",
            shape=(1, 8, 8),
            n_train=1438,
            n_test=359,
            classes=10,
            find=_find_digits,
            read=_read_digits,
            files={},
        ),
        Source(
            name="fashion-mnist",
            shape=(1, 28, 28),
            n_train=60_000,
            n_test=10_000,
            classes=10,
            find=_find_fashion,
            read=_read_fashion,
            files={
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
            url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            debian=Package(
                "dataset-fashion-mnist", PurePosixPath("/usr/share/datasets/fashion-mnist")
            ),
        ),
        Source(
            name="cifar-10",
            shape=(3, 32, 32),
            n_train=50_000,
            n_test=10_000,
            classes=10,
            find=_find_cifar,
            read=_read_cifar,
            files={_CIFAR_ARCHIVE: "c32a1d4ab5d03f1284b67883e8d87530"},
            url="https://www.cs.toronto.edu/~kriz/",
        ),
    )
}
"""The data sets known by name."""
