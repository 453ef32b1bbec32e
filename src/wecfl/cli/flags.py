"""The flags that commands share, and what they come to."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from wecfl.config import METHOD_OPTIONS, PARTITION_KEYS, PRESETS, Config
from wecfl.errors import ConfigError, unknown
from wecfl.from_config import holds_clients
from wecfl.methods import METHODS, options
from wecfl.report.figures.files import format_of
from wecfl.resolve import resolve

__all__ = [
    "ConfigFlags",
    "DataDirFlag",
    "ExperimentFlags",
    "MethodOptionFlag",
    "PresetFlag",
    "check_figure",
    "check_place",
    "config_from_flags",
    "config_per_method",
    "flag_of",
]


class ConfigFlags(Config):
    """The choices of an experiment as flags: further options of a method are flags of their own."""

    options: Annotated[tuple[tuple[str, Any], ...], Parameter(parse=False)] = ()


ExperimentFlags = Annotated[
    ConfigFlags, Parameter(name="*", negative_iterable=(), consume_multiple=True)
]
"""The choices of an experiment."""
MethodOptionFlag = Annotated[
    str, Parameter(help="Any further option of the method, as `wecfl methods` lists them.")
]
"""Options that only the method's own signature knows."""
PresetFlag = Annotated[
    str | None, Parameter(help=f"Start from named choices: {', '.join(PRESETS)}.")
]
"""Named choices to start from."""
DataDirFlag = Annotated[Path | None, Parameter(help="Where to look for data sets first.")]
"""A folder of data sets."""


def config_from_flags(file: Path | None, preset: str | None, flags: Config) -> Config:
    """What file, preset and flags come to; flags that can't apply are refused, not ignored."""
    said = {name: getattr(flags, name) for name in flags.model_fields_set}
    chosen = resolve(file, preset, said)
    idle = [name for name in PARTITION_KEYS if name in said]
    if idle and holds_clients(chosen):
        raise ConfigError(
            f"{chosen.dataset} holds one file per client, so there is nothing to share out: "
            f"leave out --{idle[0].replace('_', '-')}"
        )
    return chosen


def config_per_method(chosen: Config, flags: Config, further: Mapping[str, str]) -> list[Config]:
    """A configuration for each method asked for, with the options that it has.

    An option that none of them has is refused.
    """
    names = [name.strip() for name in chosen.method.split(",")]
    has = [options(name) for name in names]
    told = {flag.replace("-", "_"): _value(text) for flag, text in further.items()}
    said = [METHOD_OPTIONS[key] for key in METHOD_OPTIONS if key in flags.model_fields_set]
    for option in (*said, *told):
        if not any(option in known for known in has):
            raise ConfigError(_refusal(option, names))
    return [
        chosen.model_copy(
            update={
                "method": name,
                "options": (*chosen.options, *((o, v) for o, v in told.items() if o in known)),
            }
        )
        for name, known in zip(names, has, strict=True)
    ]


def flag_of(option: str) -> str:
    """The flag for an option of a method.

    >>> flag_of("k"), flag_of("eps1")
    ('--clusters', '--eps1')
    """
    keys = {option: key for key, option in METHOD_OPTIONS.items()}
    return "--" + keys.get(option, option).replace("_", "-")


def _refusal(option: str, names: Sequence[str]) -> str:
    """Why an option is not taken: it is another method's, or nobody's."""
    flag, others = flag_of(option), [name for name in METHODS if option in options(name)]
    if others:
        return f"{' and '.join(names)} can't use {flag}: it is an option of {', '.join(others)}"
    every = {flag_of(each) for name in METHODS for each in options(name)}
    return unknown("option", flag, every | {flag_of(key) for key in Config.model_fields})


def _value(text: str) -> Any:
    """As TOML has it, or else a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def check_figure(path: Path | None) -> None:
    """Refuse a place where no figure can be written, before the work that ends in it."""
    if path:
        format_of(path)
        check_place(path, "figure")


def check_place(path: Path, what: str) -> None:
    """Refuse a file that can't be written, since what is above it is a file."""
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise ConfigError(f"can't write the {what} {path}: {above} is no folder")
