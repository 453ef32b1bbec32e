"""Resolves a configuration from the defaults, a preset, a TOML file and flags."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wecfl.config import Config
from wecfl.config.keys import KEY_OF_OPTION, is_own
from wecfl.errors import ConfigError, unknown
from wecfl.validation import one_line

__all__ = ["PRESETS", "check_together", "resolve"]

MAX_FILE_BYTES = 1_000_000
"""The largest size of a configuration file, in bytes."""

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper": {
        "clients": 200,
        "groups": 10,
        "rounds": 100,
        "steps": 10,
        "batch": 32,
        "lr": 0.001,
        "momentum": 0.9,
        "keep_momentum": True,
        "weight_decay": 0.0,
        "mu": 0.95,
        "representation": "head",
        "importance": "method",
        "warm_start": True,
        "loss_batches": 3,
        "batchnorm": "batch",
        "test_order": "class",
    },
}
"""Presets by name: what differs from the defaults. `paper` is the experiment of the paper's tables.
"""

REQUIRED_KEYS = {
    "attackers": "attack", "attack_strength": "attack", "noise": "clip", "delta": "noise",
}  # fmt: skip
"""Choices that only have a meaning together with another choice."""


def resolve(
    file: Path | None = None, preset: str | None = None, flags: Mapping[str, Any] | None = None
) -> Config:
    """The configuration of defaults, preset, TOML file and flags; each overrides those before it.

    >>> resolve(preset="paper", flags={"rounds": 2}).model_dump(include={"clients", "rounds"})
    {'clients': 200, 'rounds': 2}
    >>> resolve(flags={"cluters": 3})
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: unknown key 'cluters'; did you mean 'clusters'?
    """
    written = _read(file) if file else {}
    where = f"{file}: " if file else ""
    if not isinstance(written.get("options", {}), dict):
        raise ConfigError(f"{where}options must be a table, got {written['options']!r}")
    if isinstance(written.get("method"), dict):
        written = _table(written, where)
    usual = written.pop("preset", "default")
    preset = usual if preset is None else preset
    if not isinstance(preset, str) or preset not in PRESETS:
        raise ConfigError(where + unknown("preset", str(preset), PRESETS))
    flags = flags or {}
    if flags.get("partition", written.get("partition")) != written.get("partition"):
        # The flags choose another partition, so the parameters in the file don't apply.
        written = {
            key: value for key, value in written.items() if key not in ("alpha", "classes_per")
        }
    values: dict[str, Any] = {}
    for layer in (PRESETS[preset], written, flags):
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if one in layer:  # the one that is given later replaces the other
                values.pop(other, None)
        values |= layer
    if "options" in written:
        same = flags.get("method", written.get("method")) == written.get("method")
        kept = {
            name: value
            for name, value in written["options"].items()
            if KEY_OF_OPTION.get(name) not in flags
        }
        values["options"] = {**(kept if same else {}), **flags.get("options", {})}
    for key in values:
        if key not in Config.model_fields:
            raise ConfigError(where + unknown("key", key, Config.model_fields))
    try:
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        config = Config.model_validate(values | lists, strict=True)
    except ValidationError as error:
        raise ConfigError(where + one_line(error, Config.model_fields)) from None
    check_together(where, **config.model_dump())
    return config.completed()


def check_together(where: str = "", **choices: Any) -> None:
    """Raise an error for a choice that has no meaning without another one.

    >>> check_together(attack=None, attackers=0.2)
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: attackers needs attack: choose both, or leave out attackers
    """
    for part, whole in REQUIRED_KEYS.items():
        if choices.get(part) is not None and choices[whole] is None:
            raise ConfigError(f"{where}{part} needs {whole}: choose both, or leave out {part}")
    for part in ("active", "memory"):
        fleet = choices.get("registered") is not None or is_own(choices.get("dataset", ""))
        if choices.get(part) is not None and not fleet:
            raise ConfigError(
                f"{where}{part} is for a fleet, and needs registered: choose both, or leave out "
                f"{part}"
            )
    if choices.get("ray_address") is not None and choices["engine"] != "ray":
        raise ConfigError(
            f"{where}ray_address needs engine ray: choose both, or leave out ray_address"
        )


def _table(written: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The choices of a file whose method is a table `[method]` with a name and options.

    >>> _table({"method": {"name": "cfl", "eps1": 0.1}}, "")
    {'method': 'cfl', 'eps1': 0.1, 'options': {'eps1': 0.1}}
    """
    options = dict(written["method"])
    if "name" not in options:
        raise ConfigError(f'{where}the table [method] must have a name, such as name = "wecfl"')
    name = options.pop("name")
    known = {
        KEY_OF_OPTION[option]: value for option, value in options.items() if option in KEY_OF_OPTION
    }
    if twice := sorted(known.keys() & written.keys()):
        raise ConfigError(
            f"{where}{twice[0]} is given twice, as a key and in [method]: leave out one"
        )
    return {
        **written,
        **known,
        "method": name,
        "options": {**written.get("options", {}), **options},
    }


def _read(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:  # it may be a device, which never ends
            raise ConfigError(
                f"{file}: expected a configuration of at most {MAX_FILE_BYTES} bytes, got more"
            )
        return tomllib.loads(text.decode())
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {file}: check the path") from None
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"can't read the configuration {file}: {reason}") from None
