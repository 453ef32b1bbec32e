"""What a table or figure of the paper is made of: `paper/*.toml` as an ordered list of runs.

A definition holds sets. A key of a set is a choice of `wecfl.config.Config`; a list stands for each
of its values, and a set for all their combinations. `[base]` holds what the sets share. Besides::

    priority   sets run by rising priority, over all definitions that were asked for
    seeds      seeds 0 … N−1 (0: nothing is run, as for a picture of the partitions)
    label      what sets the cells apart, in words, where that is not the method
    tune       learning rates: the one that does best, seed 0, on a fifth of the training data, held
               out from training, is used with all of it
    trace      keep what pictures need: F, R, B, t-SNE of the first rounds, cosines of the last

A definition itself says its `title`; `paper`, `table` and `figure`, how it is shown
(`wecfl.paper.tables`, `wecfl.paper.figures`); and, of many short runs, `together`: their
results are lines of one file, not files of their own.
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

from wecfl.config import INCIDENTAL_KEYS, Config, one_line
from wecfl.errors import ConfigError, unknown
from wecfl.from_config import method_of
from wecfl.resolve import resolve

__all__ = ["SHIPPED", "Cell", "Definition", "PlannedRun", "ordered", "read_definitions", "select"]

SHIPPED = Path(__file__).parent
"""The definitions that come with the package."""

TableLayout = Literal["robustness", "newcomers", "found"]
"""Of a table that is not beside the paper's."""

LIST_KEYS = ("alpha", "classes_per")
"""Keys that are lists themselves, so that a list of them is one value."""

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
    """Which of the independent runs that a soft vote is made of; 0 is the plain run itself."""
    trace: bool = False
    """Keep also what pictures need."""
    label: str = field(default="", compare=False)
    """Of the cell it was asked for by; cells may share a run."""
    pool: str = field(default="", compare=False)
    """The file of results it belongs to, if not one of its own."""

    @property
    def parts(self) -> tuple[PlannedRun, ...]:
        """The members of a soft vote, each a run of its own; none for any other method."""
        members = method_of(self.config).members
        if members == 1:
            return ()
        # FedAvg+ is a vote of FedAvg: the same for any K, so K = 5 and K = 10 share their members.
        plain = {"method": self.config.method.removesuffix("+"), "clusters": 1}
        config = self.config.model_copy(update=plain)
        return tuple(PlannedRun(config, j, pool=self.pool) for j in range(members))

    @property
    def hash(self) -> str:
        """Of the choices that make the result, but for the seed.

        Only those that are not the default count, so that a new choice leaves the old results
        valid.

        >>> usual, faster = PlannedRun(Config()), PlannedRun(Config(lr=0.1))
        >>> PlannedRun(Config(seed=3, workers=2)).hash == usual.hash != faster.hash
        True
        """
        said = self.config.completed().model_dump(
            mode="json", exclude=set(INCIDENTAL_KEYS), exclude_defaults=True
        )
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]

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
    """One row of a table: a configuration, whatever the seed."""

    config: Config
    label: str = ""
    tune: tuple[float, ...] = ()
    trace: bool = False
    pool: str = ""

    @property
    def words(self) -> list[str]:
        """What `--cells` may ask for.

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
        """The runs by which the learning rate is chosen: test data have no part in it.

        >>> [run.config.lr for run in Cell(Config(), tune=(0.001, 0.01)).candidates]
        [0.001, 0.01]
        """
        return [self.run(0, lr=lr, validation=VALIDATION_SHARE) for lr in self.tune]


@dataclass(frozen=True, slots=True)
class Definition:
    """A table or figure: its cells, and the order in which their runs are worth having."""

    name: str
    title: str
    paper: str | None
    """The table of the paper beside which it is shown."""
    table: TableLayout | None
    """How it is laid out, if not a row for each cell, beside the paper's (`wecfl.paper.tables`)."""
    figure: str | None
    """How it is drawn (`wecfl.paper.figures`); without `table` it is no table."""
    sets: tuple[tuple[int, int, tuple[Cell, ...]], ...]
    """(priority, seeds, cells)."""

    @property
    def cells(self) -> list[Cell]:
        """Every cell once."""
        return list(dict.fromkeys(cell for _, _, cells in self.sets for cell in cells))


def read_definitions(folder: Path = SHIPPED) -> dict[str, Definition]:
    """The definitions of a folder by name.

    >>> len(read_definitions()["table1"].cells)
    48
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise ConfigError(f"no definitions (*.toml) in {folder}")
    return {file.stem: _definition(file) for file in files}


def ordered(definitions: Iterable[Definition], seeds: int | None = None) -> list[tuple[Cell, int]]:
    """Cells and seeds by priority, each once; `seeds` overrides how many each set asks for."""
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
    """The cells that hold all words of at least one of `wanted`; all for none.

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
    """A definition as its file says it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    title: str
    paper: str | None = None
    table: TableLayout | None = None
    figure: str | None = None
    together: bool = False
    base: dict[str, Any] = {}
    sets: list[dict[str, Any]]


class _Set(BaseModel):
    """What a set says besides the choices of its cells."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    priority: int
    seeds: Annotated[int, Field(ge=0, le=MAX_SEEDS)]
    preset: str | None = None
    label: str = ""
    tune: list[Annotated[float, Field(ge=0)]] = []
    trace: bool = False


def _definition(file: Path) -> Definition:
    try:
        said = _Written.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        sets = [_Set.model_validate({**said.base, **each}) for each in said.sets]
        pool = file.stem if said.together else ""
        entries = tuple((each.priority, each.seeds, _cells(each, pool)) for each in sets)
    except ValidationError as error:
        raise ConfigError(f"can't read the definition {file}: {one_line(error, None)}") from None
    except (ConfigError, OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"can't read the definition {file}: {error}") from None
    return Definition(file.stem, said.title, said.paper, said.table, said.figure, entries)


def _cells(said: _Set, pool: str) -> tuple[Cell, ...]:
    choices = said.model_extra or {}
    lists = [
        value if isinstance(value, list) and key not in LIST_KEYS else [value]
        for key, value in choices.items()
    ]
    if prod(map(len, lists)) > MAX_CELLS:
        raise ConfigError(f"a set has {prod(map(len, lists))} cells, at most {MAX_CELLS} are run")
    return tuple(
        Cell(
            resolve(preset=said.preset, flags=dict(zip(choices, each, strict=True))),
            said.label, tuple(said.tune), said.trace, pool,
        )
        for each in product(*lists)
    )  # fmt: skip
