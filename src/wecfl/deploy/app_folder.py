"""Makes the folder of a Flower app from a template, reads it, and checks it before it is packed."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from keyword import iskeyword
from pathlib import Path
from typing import Any

from wecfl.errors import ConfigError

__all__ = ["app_settings", "check_ignored", "deploy_command", "new_app"]

PACKAGE_PLACEHOLDER, APP_PLACEHOLDER = "PACKAGE", "APP-NAME"
"""In the template they stand for the names of the Python package and of the app."""

MAX_APP_NAME_LETTERS = 32
"""Flower accepts no longer name of an app."""

IGNORED_PATHS = (".federation/", "runs/")
"""Flower must not pack these into the app, because the app is sent to every client."""


def new_app(folder: Path) -> list[Path]:
    """Write an app into a new folder and name it after the folder; return the files.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     made = new_app(Path(place) / "my-hospitals")
    ...     sorted(file.relative_to(place).as_posix() for file in made)[:3]
    ['my-hospitals/.gitignore', 'my-hospitals/README.md', 'my-hospitals/my_hospitals/__init__.py']
    """
    folder_name = folder.absolute().name
    name = re.sub(r"[\W_]+", "_", folder_name.lower(), flags=re.ASCII).strip("_")
    if not name.isidentifier() or iskeyword(name) or len(name) > MAX_APP_NAME_LETTERS:
        raise ConfigError(
            f"an app is named after its folder: the name must begin with a letter and have at most "
            f"{MAX_APP_NAME_LETTERS} letters, got {folder_name!r}"
        )
    if name == "wecfl":
        raise ConfigError("an app can't have the library's name, wecfl: choose another folder")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose a new folder")
        return list(_copy(files("wecfl.deploy") / "app", folder, name))
    except OSError as error:
        raise ConfigError(f"can't write the app {folder}: {error.strerror or error}") from None


def app_settings(app: Path) -> dict[str, Any]:
    """The settings of an app, from `[tool.flwr.app.config]` in its `pyproject.toml`."""
    file = app / "pyproject.toml"
    try:
        settings = tomllib.loads(file.read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    except FileNotFoundError:
        raise ConfigError(
            f"{app} is not an app, since it has no pyproject.toml: make one with "
            f"{deploy_command('new', app)}"
        ) from None
    except (KeyError, TypeError):
        raise ConfigError(
            f"{file} is not that of an app, since it has no [tool.flwr.app.config]: choose another "
            f"folder, or make an app with wecfl deploy new"
        ) from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"can't read {file}: {error}") from None
    return dict(settings)


def check_ignored(app: Path) -> None:
    """Refuse an app whose `.gitignore` would let Flower send keys or results to the clients."""
    file = app / ".gitignore"
    lines = file.read_text("utf-8").split() if file.exists() else []
    for path in IGNORED_PATHS:
        if not {path, path.rstrip("/"), f"/{path}"} & set(lines):
            raise ConfigError(
                f"{file} must have a line '{path}': Flower sends all other files to the clients"
            )


def deploy_command(name: str, app: Path, *others: str) -> str:
    """The command that a user types to do something with an app.

    >>> deploy_command("status", Path("my wards"), "--watch")
    "wecfl deploy status 'my wards' --watch"
    """
    return shlex.join(["wecfl", "deploy", name, str(app), *others])


def _copy(source: Traversable, target: Path, name: str) -> list[Path]:
    if source.is_file():
        text = source.read_text(encoding="utf-8").replace(PACKAGE_PLACEHOLDER, name)
        file = target.with_suffix("")  # without .tpl
        file.write_text(text.replace(APP_PLACEHOLDER, name.replace("_", "-")), encoding="utf-8")
        return [file]
    target.mkdir(parents=True, exist_ok=True)
    return [
        file
        for entry in source.iterdir()
        for file in _copy(entry, target / entry.name.replace(PACKAGE_PLACEHOLDER, name), name)
    ]
