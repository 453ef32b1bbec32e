"""Definitions of tables and figures: `paper/*.toml` as an ordered list of runs.

A definition holds sets. A key of a set is a choice of `wecfl.config.Config`. A list stands for each
of its values, and a set for all their combinations. `[base]` holds what the sets share, and
`[bases.NAME]` what those share that are `like` it. A set also has these keys::

    priority   sets run by rising priority, over all definitions that were asked for
    seeds      seeds 0 … N−1 (0: nothing is run, as for a picture of the partitions)
    first_seed the first of these seeds, in place of 0
    label      a name for the cells of the set, if the method does not tell them apart
    tune       learning rates to choose from, or lists of choices and of the method's options, all
               of whose combinations are tried; the best one on a fifth of the training data that
               is held out for the choice. It is then used with all the data
    tune_seed  the seed with which it is chosen; one that no row reports draws other clients
    but        choices of single methods, by name, in place of those of the set
    adapt      `adapt_steps` of cells whose method serves each client the model of its cluster
    trace      keep what figures need: F, R, B, t-SNE of the first rounds, cosines of the last

`[[each]]` are tables of such choices, too: every set is made once with each of them. Their key
`theirs` holds what others published for these cells, by method: the score and its ± in percent.
`source` and `settings` say where it is from and how it was obtained, `their_rounds` in how many
rounds, and `score` whether the best or the last round counts. The method `rest` stands for all
methods that no other set names.

A definition itself has a `title`. `paper`, `table` and `figure` say how it is shown
(`wecfl.paper.tables`, `wecfl.paper.figures`). With `together`, the results of many short runs are
lines of one file instead of files of their own.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wecfl.bilevel.serving import Center
from wecfl.config import Config
from wecfl.config.resolve import resolve
from wecfl.errors import ConfigError, unknown
from wecfl.method_from_config import method_of
from wecfl.methods import METHODS
from wecfl.paper import SHIPPED_FOLDER
from wecfl.paper.definitions import Cell, Choice, Definition, Published, TableLayout
from wecfl.validation import one_line

__all__ = ["REST_OF_METHODS", "read_definitions"]

LIST_KEYS = ("alpha", "classes_per", "transform")
"""Keys whose values are lists: such a list is one value, not several."""

MAX_CELLS = 1000
"""The largest number of cells in a set."""

MAX_SEEDS = 1000
"""The largest number of seeds of a cell."""

REST_OF_METHODS = "rest"
"""As a method of a set: all that no other set of the definition names."""


def read_definitions(folder: Path = SHIPPED_FOLDER) -> dict[str, Definition]:
    """The definitions of a folder by name.

    >>> len(read_definitions()["table1"].cells)
    48
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise ConfigError(f"there are no definitions (*.toml) in {folder}: choose another folder")
    return {file.stem: _definition(file) for file in files}


class _Written(BaseModel):
    """A definition as it is written in its file."""

    model_config = ConfigDict(strict=True, extra="forbid")

    title: str
    paper: str | None = None
    table: TableLayout | None = None
    figure: str | None = None
    together: bool = False
    base: dict[str, Any] = {}
    bases: dict[str, dict[str, Any]] = {}
    each: list[dict[str, Any]] = [{}]
    sets: list[dict[str, Any]] = [{}]


class _Set(BaseModel):
    """The keys of a set that are not choices of its cells."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    priority: int = 0
    seeds: Annotated[int, Field(ge=0, le=MAX_SEEDS)] = 1
    preset: str | None = None
    like: str | None = None
    label: str = ""
    tune: list[Annotated[float, Field(ge=0)]] | dict[str, list[Any]] = []
    tune_seed: Annotated[int, Field(ge=0)] = 0
    first_seed: Annotated[int, Field(ge=0)] = 0
    trace: bool = False
    theirs: dict[str, Annotated[list[float], Field(min_length=1, max_length=2)]] = {}
    adapt: Annotated[int, Field(ge=1)] | None = None
    but: dict[str, dict[str, Any]] = {}
    source: str = ""
    settings: str = ""
    their_rounds: Annotated[int, Field(ge=1)] | None = None
    score: Literal["best", "last"] = "last"


def _definition(file: Path) -> Definition:
    try:
        written = _Written.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        rest = _rest(written.sets)
        sets = [
            _Set.model_validate(
                {**written.base, **_base(written, keys), **keys, **rest(keys), **each}
            )
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


def _base(written: _Written, keys: dict[str, Any]) -> dict[str, Any]:
    """The choices of the base that a set is `like`."""
    name = keys.get("like")
    if name is not None and name not in written.bases:
        raise ConfigError(unknown("base", name, written.bases))
    return {} if name is None else written.bases[name]


def _rest(sets: Sequence[dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Gives, for a set of the rest, the methods that no other set names."""
    named = [keys.get("method") for keys in sets]
    taken = [name for each in named for name in (each if isinstance(each, list) else [each])]
    left = [name for name in METHODS if name not in taken]
    return lambda keys: {"method": left} if keys.get("method") == REST_OF_METHODS else {}


def _cells(written: _Set, pool: str) -> tuple[Cell, ...]:
    choices = written.model_extra or {}
    lists = [
        value if isinstance(value, list) and key not in LIST_KEYS else [value]
        for key, value in choices.items()
    ]
    if prod(map(len, lists)) > MAX_CELLS:
        raise ConfigError(f"a set has {prod(map(len, lists))} cells, expected at most {MAX_CELLS}")
    tried = {"lr": written.tune} if isinstance(written.tune, list) else written.tune
    tune: tuple[Choice, ...] = tuple(
        tuple(zip(tried, values, strict=True)) for values in product(*tried.values())
    )
    cells = [dict(zip(choices, values, strict=True)) for values in product(*lists)]
    configs = [
        resolve(
            preset=written.preset, flags={**cell, **written.but.get(str(cell.get("method")), {})}
        )
        for cell in cells
    ]
    methods = {config.method for config in configs}
    for name in (*written.theirs, *written.but):
        if name not in methods:
            raise ConfigError(unknown("method of a set", name, methods))
    if written.adapt:
        configs = [_adapting(config, written.adapt) for config in configs]
    return tuple(
        Cell(config, written.label, tune, written.trace, pool, written.tune_seed,
             written.first_seed, _published(written, config.method))
        for config in configs
    )  # fmt: skip


def _adapting(config: Config, steps: int) -> Config:
    """The configuration, with so many steps of adaptation if its method has none of its own."""
    if (method := method_of(config)).serve != Center() or method.members > 1:
        return config
    return config.model_copy(update={"adapt_steps": steps})


def _published(written: _Set, method: str) -> Published | None:
    """The published score that the set has for this method."""
    if method not in written.theirs:
        return None
    score, *std = written.theirs[method]
    return Published(
        score, std[0] if std else None, written.source, written.settings, written.their_rounds,
        written.score,
    )  # fmt: skip
