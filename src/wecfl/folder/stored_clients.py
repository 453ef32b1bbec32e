"""The clients of a run, read from its folder: names, counts and groups, but no samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wecfl.core.types import Int
from wecfl.errors import RunFolderError
from wecfl.folder.parsing import read_table
from wecfl.folder.readers import read_classes, read_clients

__all__ = ["StoredClients"]


@dataclass(frozen=True, slots=True, eq=False)
class StoredClients:
    """The clients of a run, as far as its folder describes them (`wecfl.core.clients.Clients`)."""

    names: Sequence[str]
    sizes: Int
    groups: Int | None
    held: Int | None
    shape: tuple[int, ...]
    classes: int
    fingerprint: str
    """The fingerprint of the federation; empty if the folder has no checkpoint."""

    @classmethod
    def read(
        cls, path: Path, shape: tuple[int, ...], classes: int, fingerprint: str | None
    ) -> StoredClients:
        """Read the clients of a run. A run that was killed has no `clients.csv`."""
        held = read_classes(path)
        groups = None
        if (path / "clients.csv").exists():
            table = read_clients(path)
            names, sizes = table["client"].tolist(), table["samples"].to_numpy(np.int64)
            if table["group"].notna().all():
                groups = table["group"].to_numpy(np.int64)
        elif held is not None:
            [_, *names], sizes = read_table(path / "assignments.csv")[0], held.sum(axis=0)
        else:
            raise RunFolderError(
                f"{path} does not say how many samples its clients have: let the run end first"
            )
        return cls(names, sizes, groups, held, shape, classes, fingerprint or "")

    def __len__(self) -> int:
        """m, the number of clients."""
        return len(self.names)

    @property
    def keys(self) -> Int:
        """(m,), the positions of the clients, since their keys are not in the folder."""
        return np.arange(len(self))
