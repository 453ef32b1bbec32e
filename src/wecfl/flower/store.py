"""What a client keeps between exchanges, on its own disk: momentum, a personal model, own columns.

A file for each exchange, written whole or not at all, so that the server may go back to a
checkpoint and ask again: the client then starts from what it had before that exchange.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from wecfl.errors import RunFolderError
from wecfl.folder.files import replace_tensors
from wecfl.folder.parsing import read_tensors

__all__ = ["Store"]


class Store:
    """What one client keeps in one run (of a soft vote, for one member), by tick.

    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     store = Store(Path(place), run="a1", member="0")
    ...     for tick in (1, 2, 3):
    ...         store.save(tick, {"momentum": np.full(2, tick, np.float32)}, keep=2)
    ...     [store.load(tick) for tick in (1, 2, 7)]
    [{}, {'momentum': array([2., 2.], dtype=float32)}, {'momentum': array([3., 3.], dtype=float32)}]
    """

    def __init__(self, place: Path, run: str, member: str) -> None:
        for name in (run, member):
            if not name.isalnum():
                raise RunFolderError(f"a run is named by letters and digits, got {name!r}")
        self._folder = place / run / member

    def load(self, tick: int) -> dict[str, NDArray[Any]]:
        """What was kept by the last of the first `tick` exchanges that the client took part in.

        Empty if there is nothing, or if it can't be read.
        """
        before = [number for number in self._ticks() if number <= tick]
        try:
            return read_tensors(self._file(before[-1])) if before else {}
        except RunFolderError:
            return {}

    def save(self, tick: int, tensors: Mapping[str, NDArray[Any]], *, keep: int) -> None:
        """After `tick` exchanges; of those up to then the last `keep` stay, and none later."""
        if not tensors:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_tensors(self._file(tick), dict(tensors))
        earlier = [number for number in self._ticks() if number <= tick]
        for number in set(self._ticks()) - set(earlier[-keep:]):
            self._file(number).unlink(missing_ok=True)

    def _file(self, tick: int) -> Path:
        return self._folder / f"{tick}.safetensors"

    def _ticks(self) -> list[int]:
        return sorted(int(f.stem) for f in self._folder.glob("*.safetensors") if f.stem.isdigit())
