"""Tables and figures as ordered lists of runs: cells, and the runs that they ask for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from wecfl.config import Config
from wecfl.config.keys import KEY_OF_OPTION
from wecfl.errors import ConfigError, unknown
from wecfl.from_config import INCIDENTAL_KEYS
from wecfl.method_from_config import method_of

__all__ = [
    "Cell",
    "Choice",
    "Definition",
    "PlannedRun",
    "Published",
    "ordered",
    "select",
]

TableLayout = Literal[
    "robustness", "defences", "defended", "newcomers", "found", "gallery", "external",
    "leaderboard", "methods", "drift",
]  # fmt: skip
"""The layout of a table that is not shown beside one of the paper."""

TUNING_SHARE = 0.2
"""The share of the training data on which a learning rate is chosen."""

Choice = tuple[tuple[str, Any], ...]
"""What is tried to tune a cell: keys of `Config` or options of the method, with their values."""


@dataclass(frozen=True, slots=True)
class Published:
    """What others report for a cell, in percent, and how they got it.

    >>> Published(99.09, 0.05, "their README").score
    99.09
    """

    score: float
    std: float | None
    source: str
    settings: str = ""
    rounds: int | None = None
    which: Literal["best", "last"] = "last"
    """Whether the score is of the best round, or of the last ones."""


@cache
def _members(method: str, clusters: int | str) -> int:
    """The number of runs in a soft vote. A queue asks for it thousands of times."""
    return method_of(Config(method=method, clusters=clusters)).members


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
        members = _members(self.config.method, self.config.clusters)
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
        further = "".join(f", {name}: {value}" for name, value in config.options)
        words += [f"(choosing lr: {config.lr:g}{further})"] if config.validation else []
        return " ".join(words)


def _unseen(config: Config) -> list[str]:
    return [] if config.unseen is None else [f"unseen={config.unseen}"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of a table: a configuration, with any seed."""

    config: Config
    label: str = ""
    tune: tuple[Choice, ...] = ()
    trace: bool = False
    pool: str = ""
    tune_seed: int = 0
    first_seed: int = 0
    theirs: Published | None = None

    @property
    def words(self) -> list[str]:
        """The words with which `--cells` can select it.

        >>> Cell(Config(clusters=5, attack="noise", aggregation="krum")).words
        ['digits', 'clusterwise-dirichlet', 'wecfl', 'k=5', 'krum', 'noise']
        """
        config = self.config
        named = [config.dataset, config.partition, config.method, f"k={config.clusters}"]
        attack = [config.attack] if config.attack else []
        return [*named, config.aggregation, *attack, *_unseen(config), *self.label.split()]

    def run(self, seed: int, **changes: Any) -> PlannedRun:
        """The run of a seed; `changes` are choices, and options of the method."""
        keys = {KEY_OF_OPTION.get(name, name): value for name, value in changes.items()}
        further = {name: keys.pop(name) for name in [*keys] if name not in Config.model_fields}
        if further:
            keys["options"] = tuple(sorted({**dict(self.config.options), **further}.items()))
        config = self.config.model_copy(update={"seed": seed, **keys})
        return PlannedRun(config, trace=self.trace, label=self.label, pool=self.pool)

    @property
    def candidates(self) -> list[PlannedRun]:
        """The runs that decide the tuned choices, without the test data and without adaptation.

        >>> cell = Cell(Config(method="ditto"), tune=((("lr", 0.1), ("lam", 0.5)),))
        >>> [(run.config.lr, run.config.options) for run in cell.candidates]
        [(0.1, (('lam', 0.5),))]
        """
        usual: dict[str, Any] = {"validation": TUNING_SHARE, "adapt_steps": None}
        return [self.run(self.tune_seed, **usual, **dict(choice)) for choice in self.tune]


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
                pairs |= dict.fromkeys(
                    (cell, cell.first_seed + seed) for cell in cells if seed < count
                )
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
        words = " or ".join(map(repr, wanted))
        raise ConfigError(f"no cell has all the words of --cells {words}: give fewer words")
    return chosen
