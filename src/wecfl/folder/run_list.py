"""The list of the runs of one command, so that all of them can be resumed together.

`runs.toml` is written before the first run begins, to the folder that holds the run folders. It has
a table for each run, with the name of its folder and the content of its `config.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wecfl.config import Config
from wecfl.config.resolve import resolve
from wecfl.errors import RunFolderError
from wecfl.folder.files import replace_file
from wecfl.folder.parsing import folder_errors, read_toml
from wecfl.folder.schema import RunListSchema
from wecfl.folder.writer import toml

__all__ = ["RUN_LIST_FILE", "read_run_list", "write_run_list"]

RUN_LIST_FILE = "runs.toml"
"""The file in a folder of several runs that holds the choices of each, by its folder's name."""


def write_run_list(folder: Path, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Add runs to the list in a folder, each by the name of its folder with its configuration."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / RUN_LIST_FILE
        before = read_toml(file, RunListSchema) if file.exists() else {}
        replace_file(file, [toml({**before, **runs}).encode()])
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(f"can't write {folder / RUN_LIST_FILE}: {error.strerror}") from None


def read_run_list(folder: Path) -> dict[Path, Config]:
    """The run folders of a list, in its order, and their configurations."""
    file, found = folder / RUN_LIST_FILE, {}
    for name, choices in read_toml(file, RunListSchema).items():
        with folder_errors(file):
            if name in ("", "..") or Path(name).name != name:
                raise ValueError(f"expected the name of a folder beside it, got {name!r}")
            found[folder / name] = resolve(flags=choices)
    return found
