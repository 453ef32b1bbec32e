"""The flags that commands share, and how they become configurations."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from wecfl.config import Config
from wecfl.config.keys import METHOD_OPTIONS
from wecfl.config.resolve import PRESETS, resolve
from wecfl.errors import ConfigError, unknown

__all__ = [
    "ConfigFlags",
    "DataDirFlag",
    "ExperimentFlags",
    "MethodOptionFlag",
    "OwnModelFlag",
    "PresetFlag",
    "check_figure",
    "check_place",
    "config_from_flags",
    "config_per_method",
    "flag_of",
]


class ConfigFlags(Config):
    """The choices of an experiment as flags. Other options of a method are flags of their own."""

    options: Annotated[tuple[tuple[str, Any], ...], Parameter(parse=False)] = ()


ExperimentFlags = Annotated[
    ConfigFlags, Parameter(name="*", negative_iterable=(), consume_multiple=True)
]
"""All choices of an experiment, one flag each."""
MethodOptionFlag = Annotated[
    str, Parameter(help="Any other option of the method; `wecfl methods` lists them.")
]
"""An option that is only in the signature of the method."""
PresetFlag = Annotated[
    str | None, Parameter(help=f"Start from a named set of choices: {', '.join(PRESETS)}.")
]
"""A named set of choices to start from."""
DataDirFlag = Annotated[
    Path | None, Parameter(help="The folder in which to look for data sets first.")
]
"""A folder with data sets."""


OwnModelFlag = Annotated[
    str | None,
    Parameter(help="Your own model, FILE.py:NAME. This runs the code of that file."),
]
"""A model of the user's own, in a file that is run."""


def config_from_flags(file: Path | None, preset: str | None, flags: Config) -> Config:
    """The configuration from file, preset and flags. Flags that have no effect are refused."""
    given = {name: getattr(flags, name) for name in flags.model_fields_set}
    chosen = resolve(file, preset, given)
    from wecfl.from_config import idle_keys

    if idle := [name for name in idle_keys(chosen) if name in given]:
        raise ConfigError(
            f"{chosen.dataset} says what each client holds, so there is nothing to partition: "
            f"leave out --{idle[0].replace('_', '-')}"
        )
    return chosen


def config_per_method(chosen: Config, flags: Config, further: Mapping[str, str]) -> list[Config]:
    """A configuration for each method asked for, with the options that it has.

    An option that none of them has is refused.
    """
    from wecfl.methods import options

    names = [name.strip() for name in chosen.method.split(",")]
    options_of_each = [options(name) for name in names]
    extra = {flag.replace("-", "_"): _value(text) for flag, text in further.items()}
    given = [METHOD_OPTIONS[key] for key in METHOD_OPTIONS if key in flags.model_fields_set]
    for option in (*given, *extra):
        if not any(option in known for known in options_of_each):
            raise ConfigError(_refusal(option, names))
    return [
        chosen.model_copy(
            update={
                "method": name,
                "options": (*chosen.options, *((o, v) for o, v in extra.items() if o in known)),
            }
        )
        for name, known in zip(names, options_of_each, strict=True)
    ]


def flag_of(option: str) -> str:
    """The flag for an option of a method.

    >>> flag_of("k"), flag_of("eps1")
    ('--clusters', '--eps1')
    """
    keys = {option: key for key, option in METHOD_OPTIONS.items()}
    return "--" + keys.get(option, option).replace("_", "-")


def _refusal(option: str, names: Sequence[str]) -> str:
    """Why an option is refused: it belongs to other methods, or does not exist."""
    from wecfl.methods import METHODS, options

    flag, others = flag_of(option), [name for name in METHODS if option in options(name)]
    if others:
        return f"{' and '.join(names)} can't use {flag}: it is an option of {', '.join(others)}"
    flags = {flag_of(known) for name in METHODS for known in options(name)}
    return unknown("option", flag, flags | {flag_of(key) for key in Config.model_fields})


def _value(text: str) -> Any:
    """The value that the text has in TOML, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML, or an integer of more digits than Python converts
        return text


def check_figure(path: Path | None) -> None:
    """Refuse a path to which no figure can be written, before the work for it begins."""
    if path:
        from wecfl.report.figures.files import format_of

        format_of(path)
        check_place(path, "figure")


def check_place(path: Path, what: str) -> None:
    """Refuse a path that can't be written because a file is where a folder must be."""
    above = next(place for place in path.absolute().parents if place.exists())
    if not above.is_dir():
        raise ConfigError(f"can't write the {what} {path}: {above} is not a folder")
