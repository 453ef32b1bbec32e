"""A model of the user's own from a file: FILE.py:NAME. The code of the file is run."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import extract_tb

from wecfl.errors import ModelError, unknown
from wecfl.models.zoo import Model

__all__ = ["is_own", "own_model"]


def is_own(name: str) -> bool:
    """Whether a name of a model is that of a file with code.

    >>> is_own("nets.py:Net"), is_own("mlp")
    (True, False)
    """
    return ".py:" in name


def own_model(place: str) -> Model:
    """The class, function or module called NAME in FILE.py, whose code is run for it.

    >>> own_model("nets.py:Net")
    Traceback (most recent call last):
    wecfl.errors.ModelError: there is no file nets.py with the model Net; check the path
    """
    text, _, name = place.rpartition(":")
    file = Path(text)
    if not is_own(place) or not name:
        raise ModelError(f"a model of your own is given as FILE.py:NAME, got {place!r}")
    if not file.is_file():
        raise ModelError(f"there is no file {file} with the model {name}; check the path")
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
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelError(f"{file}, line {line}: {said}") from error
    if not hasattr(module, name):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise ModelError(f"{file}: " + unknown("name", name, known))
    found: Model = getattr(module, name)
    return found
