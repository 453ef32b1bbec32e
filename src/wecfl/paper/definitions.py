"""Definitions of tables and figures: `paper/*.toml` as an ordered list of runs.

A definition holds sets. A key of a set is a choice of `wecfl.config.Config`. A list stands for each
of its values, and a set for all their combinations. `[base]` holds what the sets share. A set
also has these keys::

    priority   sets run by rising priority, over all definitions that were asked for
    seeds      seeds 0 … N−1 (0: nothing is run, as for a picture of the partitions)
    label      a name for the cells of the set, if the method does not tell them apart
    tune       learning rates to choose from: the best one with seed 0, on a fifth of the training
               data that is held out for the choice; it is then used with all the data
    trace      keep what figures need: F, R, B, t-SNE of the first rounds, cosines of the last

`[[each]]` are tables of such choices, too: every set is made once with each of them.

A definition itself has a `title`. `paper`, `table` and `figure` say how it is shown
(`wecfl.paper.tables`, `wecfl.paper.figures`). With `together`, the results of many short runs are
lines of one file instead of files of their own.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wecfl.config import Config
from wecfl.errors import ConfigError, unknown
from wecfl.from_config import INCIDENTAL_KEYS, method_of
from wecfl.paper import SHIPPED
from wecfl.resolve import resolve
from wecfl.validation import one_line

__all__ = ["Cell", "Definition", "PlannedRun", "ordered", "read_definitions", "select"]

TableLayout = Literal["robustness", "defences", "defended", "newcomers", "found", "gallery"]
"""The layout of a table that is not shown beside one of the paper."""

LIST_KEYS = ("alpha", "classes_per", "transform")
"""Keys whose values are lists: such a list is one value, not several."""

MAX_CELLS = 1000
"""The largest number of cells in a set."""

MAX_SEEDS = 1000
"""The largest number of seeds of a cell."""

VALIDATION_SHARE = 0.2
"""The share of the training data on which a learning rate is chosen."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of the queue: a configuration with its seed, or one member of a soft vote.

    >>> vote = PlannedRun(Config(method="fedavg+", clusters=2))
    >>> [(part.config.method, part.config.clusters, part.member) for part in vote.parts]
    [('fedavg', 1, 0), ('fedavg', 1, 1)]
    >>> vote.parts[0] == PlannedRun(Config(method="fedavg", clusters=1))  # shared with that row
    True
    """

    config: Config
    member: int = 0
    """The number of the member in a soft vote; 0 is also the plain run."""
    trace: bool = False
    """Whether the result also keeps what figures need."""
    label: str = field(default="", compare=False)
    """The label of the cell that asked for it. Several cells may share a run."""
    pool: str = field(default="", compare=False)
    """The file of results in which it is a line; empty if it has a file of its own."""

    @property
    def parts(self) -> tuple[PlannedRun, ...]:
        """The members of a soft vote, each a run of its own; empty for any other method."""
        members = method_of(self.config).members
        if members == 1:
            return ()
        # FedAvg+ is a vote of FedAvg runs, whatever K is: K = 5 and K = 10 share their members.
        plain = {"method": self.config.method.removesuffix("+"), "clusters": 1}
        config = self.config.model_copy(update=plain)
        return tuple(PlannedRun(config, j, pool=self.pool) for j in range(members))

    @property
    def hash(self) -> str:
        """A hash of the choices that decide the result, without the seed.

        Only choices that differ from their default count, so that results stay valid when a new
        choice is added to `Config`.

        >>> usual, faster = PlannedRun(Config()), PlannedRun(Config(lr=0.1))
        >>> PlannedRun(Config(seed=3, workers=2)).hash == usual.hash != faster.hash
        True
        """
        choices = self.config.completed().model_dump(
            mode="json", exclude=set(INCIDENTAL_KEYS), exclude_defaults=True
        )
        return hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def stem(self) -> str:
        """The name of its files.

        >>> PlannedRun(Config(method="fedavg", clusters=1, seed=2), member=3).stem
        'digits_clusterwise-dirichlet_fedavg_k1_seed2_m3_bdd1138e18ee'
        """
        config = self.config
        parts = [Path(config.dataset).stem, config.partition, config.method, f"k{config.clusters}"]
        parts += [f"seed{config.seed}"]
        parts += [f"m{self.member}"] if self.member else []
        parts += ["trace"] if self.trace else []
        return "_".join([*parts, self.hash])

    def __str__(self) -> str:
        config = self.config
        words = [config.dataset, config.partition, config.method, f"k={config.clusters}"]
        words += [config.attack] if config.attack else []
        words += [config.aggregation] if config.aggregation != "mean" else []
        words += _unseen(config)
        words += [f"seed {config.seed}"]
        words += [f"member {self.member}"] if self.member else []
        words += [f"({self.label})"] if self.label else []
        words += [f"(choosing lr: {config.lr:g})"] if config.validation else []
        return " ".join(words)


def _unseen(config: Config) -> list[str]:
    return [] if config.unseen is None else [f"unseen={config.unseen}"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of a table: a configuration, with any seed."""

    config: Config
    label: str = ""
    tune: tuple[float, ...] = ()
    trace: bool = False
    pool: str = ""

    @property
    def words(self) -> list[str]:
        """The words by which `--cells` can select it.

        >>> Cell(Config(clusters=5, attack="noise", aggregation="krum")).words
        ['digits', 'clusterwise-dirichlet', 'wecfl', 'k=5', 'krum', 'noise']
        """
        config = self.config
        named = [config.dataset, config.partition, config.method, f"k={config.clusters}"]
        attack = [config.attack] if config.attack else []
        return [*named, config.aggregation, *attack, *_unseen(config), *self.label.split()]

    def run(self, seed: int, **changes: Any) -> PlannedRun:
        """The run of a seed."""
        config = self.config.model_copy(update={"seed": seed, **changes})
        return PlannedRun(config, trace=self.trace, label=self.label, pool=self.pool)

    @property
    def candidates(self) -> list[PlannedRun]:
        """The runs by which the learning rate is chosen, without the test data.

        >>> [run.config.lr for run in Cell(Config(), tune=(0.001, 0.01)).candidates]
        [0.001, 0.01]
        """
        return [self.run(0, lr=lr, validation=VALIDATION_SHARE) for lr in self.tune]


@dataclass(frozen=True, slots=True)
class Definition:
    """A table or figure: its cells, and the order of their runs."""

    name: str
    title: str
    paper: str | None
    """The table of the paper that it is compared with."""
    table: TableLayout | None
    """Its layout, if it is not compared with the paper's (`wecfl.paper.tables.files`)."""
    figure: str | None
    """How it is drawn (`wecfl.paper.figures`); without `table` it is a figure alone."""
    sets: tuple[tuple[int, int, tuple[Cell, ...]], ...]
    """Priority, number of seeds and cells of each set."""

    @property
    def cells(self) -> list[Cell]:
        """All its cells, each once."""
        return list(dict.fromkeys(cell for _, _, cells in self.sets for cell in cells))


def read_definitions(folder: Path = SHIPPED) -> dict[str, Definition]:
    """The definitions of a folder by name.

    >>> len(read_definitions()["table1"].cells)
    48
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise ConfigError(f"there are no definitions (*.toml) in {folder}: choose another folder")
    return {file.stem: _definition(file) for file in files}


def ordered(definitions: Iterable[Definition], seeds: int | None = None) -> list[tuple[Cell, int]]:
    """Cells and seeds by priority, each once; `seeds` replaces the number that each set gives."""
    sets = sorted(
        (entry for definition in definitions for entry in definition.sets), key=lambda s: s[0]
    )
    pairs: dict[tuple[Cell, int], None] = {}
    for priority in dict.fromkeys(entry[0] for entry in sets):
        level = [(asked and (seeds or asked), cells) for p, asked, cells in sets if p == priority]
        for seed in range(max(count for count, _ in level)):
            for count, cells in level:
                pairs |= dict.fromkeys((cell, seed) for cell in cells if seed < count)
    return list(pairs)


def select(cells: Sequence[Cell], wanted: Sequence[str]) -> list[Cell]:
    """The cells that have all words of at least one text in `wanted`; all cells if it is empty.

    >>> cells = [Cell(Config(clusters=k)) for k in (1, 10)]
    >>> [cell.config.clusters for cell in select(cells, ["wecfl k=10"])]
    [10]
    """
    known = {word for cell in cells for word in cell.words}
    for word in (word for text in wanted for word in text.split()):
        if word not in known:
            raise ConfigError(unknown("word in --cells", word, known))
    chosen = [
        cell
        for cell in cells
        if not wanted or any(set(text.split()) <= set(cell.words) for text in wanted)
    ]
    if not chosen:
        raise ConfigError(f"no cell has all the words of --cells {' or '.join(map(repr, wanted))}")
    return chosen


class _Written(BaseModel):
    """A definition as it stands in its file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    title: str
    paper: str | None = None
    table: TableLayout | None = None
    figure: str | None = None
    together: bool = False
    base: dict[str, Any] = {}
    each: list[dict[str, Any]] = [{}]
    sets: list[dict[str, Any]]


class _Set(BaseModel):
    """The keys of a set besides the choices of its cells."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    priority: int
    seeds: Annotated[int, Field(ge=0, le=MAX_SEEDS)]
    preset: str | None = None
    label: str = ""
    tune: list[Annotated[float, Field(ge=0)]] = []
    trace: bool = False


def _definition(file: Path) -> Definition:
    try:
        written = _Written.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        sets = [
            _Set.model_validate({**written.base, **keys, **each})
            for each in written.each
            for keys in written.sets
        ]
        pool = file.stem if written.together else ""
        entries = tuple((cells.priority, cells.seeds, _cells(cells, pool)) for cells in sets)
    except ValidationError as error:
        raise ConfigError(f"can't read the definition {file}: {one_line(error, None)}") from None
    except (ConfigError, OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"can't read the definition {file}: {error}") from None
    return Definition(
        file.stem, written.title, written.paper, written.table, written.figure, entries
    )


def _cells(written: _Set, pool: str) -> tuple[Cell, ...]:
    choices = written.model_extra or {}
    lists = [
        value if isinstance(value, list) and key not in LIST_KEYS else [value]
        for key, value in choices.items()
    ]
    if prod(map(len, lists)) > MAX_CELLS:
        raise ConfigError(f"a set has {prod(map(len, lists))} cells, expected at most {MAX_CELLS}")
    return tuple(
        Cell(
            resolve(preset=written.preset, flags=dict(zip(choices, values, strict=True))),
            written.label, tuple(written.tune), written.trace, pool,
        )
        for values in product(*lists)
    )  # fmt: skip
