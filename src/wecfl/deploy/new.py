"""A new Flower app, ready to run: `wecfl deploy new`."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from importlib.resources.abc import Traversable
from keyword import iskeyword
from pathlib import Path

from wecfl.errors import ConfigError

__all__ = ["command_words", "new_app"]

PACKAGE, APP = "PACKAGE", "APP-NAME"
"""What stands for the names of the Python package and of the app in the template."""

LONGEST = 32
"""Letters in the name of a Flower app."""


def new_app(folder: Path) -> list[Path]:
    """Write an app into a new folder, named after it: the files it made.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     made = new_app(Path(place) / "my-hospitals")
    ...     sorted(file.relative_to(place).as_posix() for file in made)[:3]
    ['my-hospitals/.gitignore', 'my-hospitals/README.md', 'my-hospitals/my_hospitals/__init__.py']
    """
    said = folder.absolute().name
    name = re.sub(r"[\W_]+", "_", said.lower(), flags=re.ASCII).strip("_")
    if not name.isidentifier() or iskeyword(name) or len(name) > LONGEST:
        raise ConfigError(
            f"an app is named after its folder, which must begin with a letter and have at most "
            f"{LONGEST}, got {said!r}"
        )
    if name == "wecfl":
        raise ConfigError("an app can't be called wecfl like the library: choose another folder")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose a new folder")
        return list(_copy(files("wecfl.deploy") / "app", folder, name))
    except OSError as error:
        raise ConfigError(f"can't write the app {folder}: {error.strerror or error}") from None


def command_words(name: str, app: Path, *others: str) -> str:
    """What to type to do something with an app.

    >>> command_words("status", Path("my wards"), "--watch")
    "wecfl deploy status 'my wards' --watch"
    """
    return shlex.join(["wecfl", "deploy", name, str(app), *others])


def _copy(source: Traversable, target: Path, name: str) -> list[Path]:
    if source.is_file():
        text = source.read_text(encoding="utf-8").replace(PACKAGE, name)
        file = target.with_suffix("")  # the template's own
        file.write_text(text.replace(APP, name.replace("_", "-")), encoding="utf-8")
        return [file]
    target.mkdir(parents=True, exist_ok=True)
    return [
        file
        for each in source.iterdir()
        for file in _copy(each, target / each.name.replace(PACKAGE, name), name)
    ]
