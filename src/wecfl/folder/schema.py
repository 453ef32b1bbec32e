"""What a reader of run folders and stored results may rely on, checked once: where it is read.

More keys than these may be there. A file that does not keep what is promised here is refused in one
line, so that nothing after the reader has to expect a text in the place of a number.
"""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from safetensors import SafetensorError
from safetensors.numpy import load_file

from wecfl.config import one_line
from wecfl.errors import RunFolderError

__all__ = [
    "Client",
    "Enrolled",
    "Environment",
    "Newcomer",
    "Outcome",
    "Round",
    "RunConfig",
    "Summary",
    "read_json",
    "read_json_lines",
    "read_table",
    "read_tensors",
    "read_toml",
    "reading",
]

ROUNDING = 1e-9
Score = Annotated[float, Field(ge=-ROUNDING, le=1 + ROUNDING)]
"""A mean of fractions, however it was rounded."""
Agreement = Annotated[float, Field(ge=-1 - ROUNDING, le=1 + ROUNDING)]
Count = Annotated[int, Field(ge=0, lt=2**53)]
Clusters = Count | Literal["auto"]
"""K as it was asked for."""
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[Number, Field(ge=0)]
Measured = float | bool | str | None
"""What a round may have been measured by; not finite where training diverged."""
Empty = BeforeValidator(lambda text: None if text == "" else text)
"""An empty cell of a table."""


class _Promise(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


Promise = TypeVar("Promise", bound=_Promise)


def _equally_long(promise: Promise, *lists: Sequence[object]) -> Promise:
    if len({len(each) for each in lists}) > 1:
        raise ValueError(f"lists of {', '.join(str(len(each)) for each in lists)} belong together")
    return promise


# The run folder


class _Components(_Promise):
    distance: str
    clustering: str
    importance: str
    aggregation: str
    shared: str
    members: str
    steps: str = ""
    order: str = ""
    """Of folders of format 1."""


class _Plan(_Promise):
    steps: Count
    momentum: Number
    weight_decay: Number


class RunConfig(_Promise):
    """`config.toml`, of a configuration or of Python values."""

    method: str = ""
    dataset: str = ""
    partition: str = ""
    model: str = ""
    alpha: list[Number] = []
    classes_per: list[Count] = []
    rounds: Count = 1
    components: _Components | None = None
    plan: _Plan | None = None

    @model_validator(mode="after")
    def _whole(self) -> RunConfig:
        if (self.components is None) != (self.plan is None):
            raise ValueError("components and plan belong together")
        return self


class _Budget(_Promise):
    epsilon: Seconds | None
    delta: Score
    replies: Count


class _Newcomers(_Promise):
    clients: Count
    novel: Count
    right: Score | None
    accuracy: Score | None
    members: Score | None
    recall: Score | None
    false_alarms: Score | None


class _Choice(_Promise):
    k: Count
    since: Count
    settled: Count | None
    best: Count
    silhouette: Agreement | None


class Summary(_Promise):
    """`summary.json`."""

    method: str
    k: Clusters
    rounds: Count
    accuracy: Score | None
    macro_f1: Score | None
    ari: Agreement | None
    clusters: Count | None
    seconds: Seconds
    seed: Annotated[int, Field(ge=0)]
    status: str
    engine: str = ""
    settled: Count | None = None
    choice: _Choice | None = None
    attack: dict[str, Score | None] = {}
    privacy: _Budget | None = None
    newcomers: _Newcomers | None = None

    @model_validator(mode="after")
    def _whole(self) -> Summary:
        if self.rounds and self.clusters is None:
            raise ValueError(f"scores are missing after {self.rounds} rounds")
        return self


class _Scores(_Promise):
    """Of each client; besides, what `diagnostics` measure."""

    __pydantic_extra__: dict[str, list[float | None] | None]
    accuracy: list[Score | None]
    macro_f1: list[Score | None]
    lr: list[float] | None = None
    lr_bound_1: list[float | None] | None = None
    lr_bound_2: list[float | None] | None = None

    @model_validator(mode="after")
    def _of_each_client(self) -> Self:
        for name, values in dict(self).items():
            if values is not None and len(values) != len(self.accuracy):
                raise ValueError(f"{name} is not of {len(self.accuracy)} clients")
        return self


Step = Literal["L", "E", "M", "D"]
Side = Literal["0", "Q"]
"""Before and after the local update."""


class _Theory(_Promise):
    """What a round was measured by with `diagnostics`."""

    U: float
    U_round: float
    sigma2: float
    beta: float
    curvature: float | None
    gradient: Annotated[dict[Side, float], Field(min_length=2)]
    lemma_4: float
    lemma_5: float
    convexity: float
    together: bool


class Round(_Promise):
    """A line of `metrics.jsonl` (`wecfl.runs.record.RECORD_KEYS`)."""

    __pydantic_extra__: dict[
        str, Measured | list[Measured] | dict[str, Measured | list[Measured] | dict[str, Measured]]
    ]
    round: Annotated[Count, Field(ge=1)]
    accuracy: Score | None
    macro_f1: Score | None
    network: dict[str, Any] = {}
    ari: Agreement | None
    clusters: Count
    sizes: list[Count]
    clients: _Scores
    F: dict[Step, float]
    R: dict[Step, float]
    B: Annotated[dict[Side, list[float | None]], Field(min_length=2)] | None = None
    theory: _Theory | None = None
    notes: dict[str, Number | list[Number | None] | None] = {}

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.F and set(self.F) != set("LEM"):
            raise ValueError("F is known after the steps L, E and M, or not at all")
        if self.R and set(self.R) != set("LD"):
            raise ValueError("R is known after the steps L and D, or not at all")
        if self.B and len({*map(len, self.B.values())}) > 1:
            raise ValueError("B has other clusters before the local update than after it")
        if self.theory and (self.B is None or self.clients.lr is None):
            raise ValueError("the theory speaks of B and of the clients' rates, which are missing")
        return self


class Environment(_Promise):
    """`env.json`."""

    command: str = ""
    packages: dict[str, str] = {}


class Client(_Promise):
    """A line of `clients.csv`, from text; without scores if no round was completed."""

    model_config = ConfigDict(strict=False)

    client: str
    samples: Count
    group: Annotated[Count | None, Empty]
    cluster: Count
    refused: Count = 0
    accuracy: Annotated[Score | None, Empty] = 0.0
    macro_f1: Annotated[Score | None, Empty] = 0.0


class _Place(_Promise):
    name: str
    node: Annotated[int, Field(ge=0)]
    key: Count
    samples: Annotated[Count, Field(ge=1)]


class Enrolled(_Promise):
    """`roster.json`, of a run over a network."""

    run: str
    clients: Annotated[Count, Field(ge=1)]
    places: list[_Place]


class Newcomer(_Promise):
    """A line of `newcomers.csv`, from text."""

    model_config = ConfigDict(strict=False)

    client: str
    samples: Count
    group: Annotated[Count | None, Empty]
    cluster: Count
    confidence: Annotated[Score | None, Empty]
    distance: Seconds
    limit: Annotated[Seconds | None, Empty]
    novel: bool
    accuracy: Score
    macro_f1: Score


# A result of the queue


class _Choices(_Promise):
    method: str
    dataset: str
    clusters: Clusters
    clients: Count
    rounds: Count
    steps: Count
    batch: Count


class _Curve(_Promise):
    round: list[Count]
    accuracy: list[Score | None]
    macro_f1: list[Score | None]
    clusters: list[Count] = []

    @model_validator(mode="after")
    def _whole(self) -> _Curve:
        return _equally_long(self, self.round, self.accuracy, self.macro_f1)


class _Plane(_Promise):
    round: Count
    cluster: list[Count]
    x: list[Number]
    y: list[Number]

    @model_validator(mode="after")
    def _whole(self) -> _Plane:
        return _equally_long(self, self.cluster, self.x, self.y)


class _Cosines(_Promise):
    clusters: Annotated[list[Count], Field(min_length=1)]
    centers: list[list[Number]]
    cluster: Count
    members: Annotated[list[Count], Field(min_length=1)]
    clients: list[list[Number]]

    @model_validator(mode="after")
    def _whole(self) -> _Cosines:
        _equally_long(self, self.clusters, self.centers, *self.centers)
        return _equally_long(self, self.members, self.clients, *self.clients)


Steps = dict[Literal["L", "E", "M", "D"], list[float]]


class _Pictures(_Promise):
    group: list[Count] | None
    rounds: Annotated[list[_Plane], Field(min_length=1)]
    cosine: _Cosines
    F: Steps
    R: Steps

    @model_validator(mode="after")
    def _whole(self) -> _Pictures:
        known = [] if self.group is None else [self.group]
        return _equally_long(self, *known, *(plane.x for plane in self.rounds))


class _Attack(_Promise):
    isolated: Score | None
    exposed: Score | None
    success: Score | None = None


class _Machine(_Promise):
    cpu: str
    cores: Count | None
    workers: Count | None = None


class Outcome(_Promise):
    """A finished run; besides `error` if training diverged, `attack` if clients lied, `newcomers`
    if some were kept out, `trace` for pictures.
    """

    config: _Choices
    config_hash: str
    seed: Annotated[int, Field(ge=0)]
    member: Count
    votes: Count
    engine: str
    seconds: Seconds
    accuracy: Score | None
    macro_f1: Score | None
    ari: Agreement | None
    curve: _Curve
    made_by: _Machine
    error: str = ""
    attack: _Attack = Field(default=None, validate_default=False)  # type: ignore[assignment]
    newcomers: _Newcomers = Field(default=None, validate_default=False)  # type: ignore[assignment]
    trace: _Pictures = Field(default=None, validate_default=False)  # type: ignore[assignment]


# Reading


@contextmanager
def reading(what: str | Path, remedy: str = "") -> Iterator[None]:
    """Say in one line that a file can't be read or does not hold what it should.

    >>> with reading("env.json"): Environment.model_validate({"command": 3})
    Traceback (most recent call last):
    wecfl.errors.RunFolderError: can't read env.json: command: input should be a valid string, got 3
    """
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, MemoryError,
            csv.Error, SafetensorError) as error:  # fmt: skip
        if isinstance(error, RunFolderError):
            raise
        strerror = error.strerror if isinstance(error, OSError) else None
        known = one_line(error, None) if isinstance(error, ValidationError) else strerror
        why = " ".join(str(known or error).split()) or type(error).__name__
        raise RunFolderError(f"can't read {what}: {why[:200]}{remedy and '; '}{remedy}") from None


def read_json(file: Path, promise: type[_Promise], remedy: str = "") -> dict[str, Any]:
    """The object that a file holds."""
    with reading(file, remedy):
        return _kept(_parse(file.read_bytes()), promise)


def read_json_lines(
    file: Path, promise: type[_Promise], most: int | None = None
) -> list[dict[str, Any]]:
    """The object in each line of a file, or in its first ones."""
    found = []
    with reading(file):
        lines = file.read_bytes().splitlines()[:most]
    for number, line in enumerate(lines, 1):
        with reading(f"{file}, line {number}"):
            found.append(_kept(_parse(line), promise))
    return found


def read_toml(file: Path, promise: type[_Promise]) -> dict[str, Any]:
    """The tables of a file."""
    with reading(file):
        return _kept(tomllib.loads(file.read_text(encoding="utf-8")), promise)


def read_table(file: Path) -> list[list[str]]:
    """The head and at least one line of a CSV file, all equally long."""
    with reading(file), file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, strict=True))
        for number, row in enumerate(rows, 1):
            if len(row) != len(rows[0]):
                raise ValueError(f"line {number} has {len(row)} cells, expected {len(rows[0])}")
        if len(rows) < 1:
            raise ValueError("it is empty")
        return rows


def read_tensors(file: Path, **dimensions: int) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file; those named are there, as numbers in so many dimensions."""
    with reading(file):
        arrays = load_file(file)
        for name, ndim in dimensions.items():
            if name not in arrays:
                raise ValueError(f"it has no {name}")
            if arrays[name].ndim != ndim or not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} must be finite numbers in {ndim} dimensions")
        return arrays


def _parse(data: bytes) -> Any:
    return json.loads(data, parse_int=_whole)


def _whole(digits: str) -> int:
    """A whole number that is also a float, so that it can be drawn and compared."""
    if len(digits) > 300:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _kept(value: Any, promise: type[_Promise]) -> dict[str, Any]:
    promise.model_validate(value)
    return dict(value)
