"""The errors of the library. Each says what was expected, what came, where, and what to do.

::

    WecflError
    ├── ConfigError       a flag, a key of a TOML file or an argument is wrong
    ├── DataError         a data set, file or array can't be used
    │   └── PartitionError    the clients can't be drawn as asked
    ├── ModelError        the module can't be laid out as a row, or does not fit the data
    ├── EngineError       local training failed: a worker died or a client raised
    │   └── DivergedError     a model is no longer finite
    ├── RunFolderError    a run folder can't be written or read
    ├── DeployError       a federation of processes can't be started, reached or stopped
    └── TrackError        a tracker is not installed or can't be written

The command line turns each of them into one line and exit code 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from wecfl.printing import printable

__all__ = [
    "ConfigError",
    "DataError",
    "DeployError",
    "DivergedError",
    "EngineError",
    "ModelError",
    "PartitionError",
    "RunFolderError",
    "TrackError",
    "WecflError",
    "unknown",
]


class WecflError(Exception):
    """The base class. Who catches it, catches every error that `wecfl` raises on purpose."""

    def __str__(self) -> str:
        """One line that is safe to print, whatever names and texts it contains."""
        return printable(super().__str__())


class ConfigError(WecflError, ValueError):
    """A flag, a key of a TOML file or an argument is wrong."""


class DataError(WecflError, ValueError):
    """A data set, a file or an array can't be used as it is."""


class PartitionError(DataError):
    """The clients can't be drawn as asked."""


class ModelError(WecflError, ValueError):
    """The module can't be laid out as a row, or does not fit the data."""


class EngineError(WecflError, RuntimeError):
    """Local training failed: a worker died or a client's computation raised."""


class DivergedError(EngineError):
    """Training diverged: a model is no longer finite."""


class RunFolderError(WecflError, OSError):
    """A run folder can't be written or read."""


class DeployError(WecflError, RuntimeError):
    """A federation of processes can't be started, reached or stopped."""


class TrackError(WecflError, RuntimeError):
    """A tracker is not installed, or can't be written."""


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """A one-line message about an unknown name, with the most similar known name.

    >>> unknown("key", "cluters", ["clusters", "rounds"])
    "unknown key 'cluters'; did you mean 'clusters'?"
    >>> unknown("dataset", "nope", ["digits", "cifar-10"])
    "unknown dataset 'nope'; known: cifar-10, digits"
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return f"unknown {kind} '{name}'; {hint}"
