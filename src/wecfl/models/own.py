"""Loads a model or a fleet of the user's own from a file, FILE.py:NAME, and runs its code."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb
from typing import Any

from wecfl.config.keys import is_own
from wecfl.errors import ModelError, WecflError, unknown
from wecfl.models.zoo import Model

__all__ = ["own_model", "own_value"]


def own_model(place: str) -> Model:
    """The class, function or module called NAME in FILE.py. The code of the file is run.

    >>> own_model("nets.py:Net")
    Traceback (most recent call last):
    wecfl.errors.ModelError: there is no file nets.py with the model Net; check the path
    """
    found: Model = own_value(place, "model", ModelError)
    return found


def own_value(place: str, what: str, error_of: type[WecflError]) -> Any:
    """The value called NAME in FILE.py. Errors name `what` was asked for, such as a model."""
    text, _, name = place.rpartition(":")
    file = Path(text)
    if not is_own(place) or not name:
        raise error_of(f"a {what} of your own must be given as FILE.py:NAME, got {place!r}")
    if not file.is_file():
        raise error_of(f"there is no file {file} with the {what} {name}; check the path")
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        where = [
            frame.lineno
            for frame in extract_tb(error.__traceback__)
            if frame.filename == spec.origin
        ]
        line = where[-1] if where else getattr(error, "lineno", None)
        problem = " ".join(f"{type(error).__name__}: {error}".split())
        raise error_of(f"{file}, line {line}: {problem}") from error
    if not hasattr(module, name):
        known = [known_name for known_name in vars(module) if not known_name.startswith("_")]
        raise error_of(f"{file}: " + unknown("name", name, known))
    return getattr(module, name)
