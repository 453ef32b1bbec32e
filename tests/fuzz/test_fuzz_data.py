"""Data gone wrong: .npz files, folders of clients, IDX files, the CIFAR-10 archive; bombs."""

import gzip
import io
import os
import shutil
import socket
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from resource import RLIMIT_DATA, getrlimit, setrlimit
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import damage
from fuzzing import chances, contents, judge, tries
from helpers import Wecfl
from wecfl import Federation
from wecfl.config import Config
from wecfl.data.datasets import SOURCES, load
from wecfl.data.targets import may_be_labels
from wecfl.errors import DataError
from wecfl.experiment import run_config
from wecfl.experiment.loading import load as load_result

Y = np.arange(30) % 3
X = np.eye(3, dtype=np.float32)[Y]
RANDOM = np.random.default_rng(0)


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def idx(array: Any) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape) + bytes(
        array.tobytes()
    )


def pixels(*shape: int) -> Any:
    return RANDOM.integers(0, 256, shape, dtype=np.uint8)


FASHION = {
    "train-images-idx3-ubyte": idx(pixels(20, 28, 28)),
    "train-labels-idx1-ubyte": idx(np.arange(20, dtype=np.uint8) % 10),
    "t10k-images-idx3-ubyte": idx(pixels(10, 28, 28)),
    "t10k-labels-idx1-ubyte": idx(np.arange(10, dtype=np.uint8)),
}
RECORDS = (pixels(2, 3073) * np.r_[0, np.ones(3072)].astype(np.uint8)).tobytes()
BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def tar(change: Callable[[tarfile.TarInfo, bytes], bytes] = lambda _, body: body) -> bytes:
    """The archive with two records in each batch; `change` may alter a header and its content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in BATCHES:
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            body = RECORDS
            info.size = len(body)
            body = change(info, body)
            archive.addfile(info, io.BytesIO(body.ljust(info.size, b"\0")))
    return out.getvalue()


def refused_or_read(name: str | Path, folder: Path) -> None:
    """Arrays that can be used, or one line; in both cases nothing was written."""
    before = contents(folder)
    try:
        data = load(name, None if isinstance(name, Path) else folder, fetch=False)
    except DataError as error:
        assert "\n" not in str(error)
        assert str(folder) in str(error)
    else:
        assert np.isfinite(data.x).all() and len(data.x) == len(data.y) > data.n_train > 0
        assert np.isfinite(data.y).all()
        assert not may_be_labels(data.y) or data.y.max() < data.classes
    assert contents(folder) == before


@tries(100)
@given(rnd=chances)
def test_npz(tmp_path: Path, rnd: Random) -> None:
    tested = {"x_test": X[:9], "y_test": Y[:9]} if rnd.random() < 0.3 else {}
    file = tmp_path / "a.npz"
    file.write_bytes(damage.of_npz(npz(x=X, y=Y, **tested), rnd))
    refused_or_read(file, tmp_path)


@tries(10)
@given(rnd=chances)
def test_clients(wecfl: Wecfl, tmp_path: Path, rnd: Random) -> None:
    folder = tmp_path / "clients"
    folder.mkdir(exist_ok=True)
    good = npz(x=X, y=Y)
    for name in "abc":
        data = damage.of_npz(good, rnd) if name == "b" else good
        (folder / f"{name}.npz").write_bytes(data)
    before = contents(folder)
    judge(wecfl("partition", "--dataset", folder, "--out", tmp_path / "p.svg"))
    assert contents(folder) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on clients with such data."""
    path = tmp_path_factory.mktemp("runs")
    np.savez(path / "all.npz", x=np.tile(X, (4, 1)), y=np.tile(Y, 4))
    chosen = Config(
        dataset=str(path / "all.npz"), clients=4, groups=2, clusters=2, rounds=1, steps=1,
        model="logistic", workers=1,
    )  # fmt: skip
    run_config(chosen, out=path / "run")
    load_result(path / "run", workers=1).assigner  # noqa: B018  (which makes what newcomers are compared with
    return path / "run"


@tries(20)
@given(rnd=chances)
def test_newcomers(wecfl: Wecfl, finished: Path, tmp_path: Path, rnd: Random) -> None:
    file, before = tmp_path / "a.npz", contents(finished)
    file.write_bytes(damage.of_npz(npz(x=X, y=Y), rnd))
    by = rnd.choice(("update", "losses"))
    judge(wecfl("assign", finished, file, "--by", by, "--workers", "1"))
    assert contents(finished) == before


@tries(60)
@given(rnd=chances)
def test_fashion(tmp_path: Path, rnd: Random) -> None:
    spoilt, packed = rnd.choice(sorted(FASHION)), rnd.random() < 0.5
    inside = rnd.random() < 0.5
    for name, data in FASHION.items():
        for old in (tmp_path / name, tmp_path / f"{name}.gz"):
            old.unlink(missing_ok=True)
        written = damage.of_bytes(data, rnd) if name == spoilt and inside else data
        written = gzip.compress(written, 1, mtime=0) if packed else written
        written = damage.of_bytes(written, rnd) if name == spoilt and not inside else written
        (tmp_path / (f"{name}.gz" if packed else name)).write_bytes(written)
    refused_or_read("fashion-mnist", tmp_path)


@tries(60)
@given(rnd=chances)
def test_cifar(tmp_path: Path, rnd: Random) -> None:
    spoilt = rnd.choice(BATCHES)

    def change(info: tarfile.TarInfo, body: bytes) -> bytes:
        if not info.name.endswith(spoilt):
            return body
        match rnd.randrange(6):
            case 0:
                info.name = rnd.choice(("../" + info.name, "/etc/" + info.name, "x" * 300, "é\n"))
            case 1:
                info.type = rnd.choice((b"1", b"2", b"3", b"5", b"6", b"x", b"L", b"S", b"\0"))
            case 2:
                info.size = rnd.choice((0, 1, 3073, 3073 * 10001))
            case 3:
                info.linkname = "/etc/passwd"
                info.type = tarfile.SYMTYPE
            case 4:
                body = damage.of_bytes(body, rnd)
                info.size = len(body)
            case _:
                info.mtime, info.mode = -1, 0
        return body

    whole = tar(change) if rnd.random() < 0.6 else damage.of_bytes(tar(), rnd)
    data = gzip.compress(whole, 1, mtime=0)
    data = damage.of_bytes(data, rnd) if rnd.random() < 0.3 else data
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(data)
    refused_or_read("cifar-10", tmp_path)


# Small files that unpack to more than there is: nothing of the promised size is ever allocated


@pytest.fixture
def little_memory() -> Any:
    """Half a gigabyte more than now; a larger allocation is a MemoryError, not a slow machine."""
    used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) << 10
    soft, hard = getrlimit(RLIMIT_DATA)
    setrlimit(RLIMIT_DATA, (used + (1 << 29), hard))
    yield
    setrlimit(RLIMIT_DATA, (soft, hard))


def zeros(gigabytes: int) -> bytes:
    """That many zeros as gzip, one member a gigabyte."""
    return gzip.compress(bytes(1 << 24), 9) * (64 * gigabytes)


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return gzip.compress(info.tobuf(tarfile.GNU_FORMAT))


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", tarfile.REGTYPE])
def test_a_tar_with_gigabytes_where_a_name_belongs(
    tmp_path: Path, little_memory: None, kind: bytes
) -> None:
    file = tmp_path / "cifar-10-binary.tar.gz"
    file.write_bytes(header("cifar-10-batches-bin/x", 8 << 30, kind) + zeros(8))
    with pytest.raises(DataError, match="more than"):
        load("cifar-10", tmp_path)


def test_an_idx_file_with_gigabytes_behind_its_end(tmp_path: Path, little_memory: None) -> None:
    for name, data in FASHION.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(data) + zeros(8))
    with pytest.raises(DataError, match="got more"):
        load("fashion-mnist", tmp_path)


def test_an_npz_with_more_than_the_memory(tmp_path: Path, little_memory: None) -> None:
    """A terabyte as its header and the archive's directory promise it, in 200 bytes."""
    file, head = tmp_path / "a.npz", io.BytesIO()
    like = {"descr": "|u1", "fortran_order": False, "shape": (1 << 40, 1)}
    np.lib.format.write_array_header_1_0(head, like)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("y.npy", damage.npy(Y))
        archive.writestr("x.npy", head.getvalue())
        archive.getinfo("x.npy").file_size += 1 << 40
    with pytest.raises(DataError, match=r"this process may use|the header promises"):
        load(file)


def npz_of_zeros(file: Path, megabytes: int) -> None:
    """So many megabytes in a file of a thousandth of that."""
    x = np.zeros((megabytes, 1 << 20), np.uint8)
    np.savez_compressed(file, x=x, y=np.zeros(megabytes, np.int64))


def test_an_npz_whose_arrays_fit_alone_but_not_together(
    tmp_path: Path, little_memory: None, wecfl: Wecfl
) -> None:
    """120 MB, and 480 MB as float32: less than the machine has, more than the process may use."""
    npz_of_zeros(tmp_path / "a.npz", 120)
    assert (tmp_path / "a.npz").stat().st_size < 1 << 20
    outcome = wecfl("run", "--dataset", "a.npz", "--rounds", "1")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "this process may use" in outcome.err and "limit of its data" in outcome.err


def test_a_folder_whose_files_fit_alone_but_not_together(
    tmp_path: Path, little_memory: None
) -> None:
    npz_of_zeros(tmp_path / "c0.npz", 30)
    for client in range(1, 5):
        shutil.copy(tmp_path / "c0.npz", tmp_path / f"c{client}.npz")
    assert len(load(tmp_path / "c0.npz").x) == 30
    with pytest.raises(DataError, match="this process may use"):
        Federation.from_folder(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
def test_what_is_no_regular_file_is_not_waited_for(
    kind: str, tmp_path: Path, wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "c1.npz", x=np.zeros((4, 2)), y=np.arange(4))
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "pipe":
            os.mkfifo(tmp_path / "c0.npz")
        elif kind == "socket":
            monkeypatch.chdir(tmp_path)  # its name may be 108 bytes long
            listener.bind("c0.npz")
        else:
            (tmp_path / "c0.npz").symlink_to("/dev/zero")
        outcome = wecfl("run", "--dataset", tmp_path, "--rounds", "1")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "c0.npz" in outcome.err and f"a {kind}" in outcome.err


TRAP = b"cpytest\nfail\n(Vunpickled\ntR."
"""Whoever unpickles this calls `pytest.fail`."""


@pytest.mark.parametrize("descr", ["|O", [("a", "|O")]])
def test_objects_are_not_unpickled(tmp_path: Path, descr: Any) -> None:
    """As NumPy writes arrays of objects: a header that says so, then a pickle."""
    head = io.BytesIO()
    like = {"descr": descr, "fortran_order": False, "shape": (30,)}
    np.lib.format.write_array_header_1_0(head, like)
    archived(tmp_path / "a.npz", head.getvalue() + TRAP)
    with pytest.raises(DataError, match="never unpickled"):
        load(tmp_path / "a.npz")


def test_a_pickle_in_the_place_of_an_array_is_not_unpickled(tmp_path: Path) -> None:
    archived(tmp_path / "a.npz", TRAP)
    with pytest.raises(DataError, match="magic"):
        load(tmp_path / "a.npz")


def archived(file: Path, x: bytes) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", damage.npy(Y))


def test_everything_that_is_downloaded_has_a_checksum() -> None:
    for source in SOURCES.values():
        assert bool(source.files) == bool(source.urls or source.debian)
        assert all(len(sha256) == 64 for sha256 in source.files.values())
