"""What a client keeps between rounds, on its own disk: momentum, and the columns it never sends.

A file for each round, written whole or not at all, so that the server may go back to a checkpoint
and ask for a round again: the client then starts from what it had before that round.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from wecfl.core.state import F32
from wecfl.errors import RunFolderError
from wecfl.folder.files import replace_tensors
from wecfl.folder.schema import read_tensors

__all__ = ["Store"]


class Store:
    """The state of one client in one run, by round.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     store = Store(Path(place), run="a1", seed=0)
    ...     for round in (1, 2, 3):
    ...         store.save(round, {"momentum": np.full(2, round, np.float32)}, keep=2)
    ...     [store.load(round, {"momentum": 2}) for round in (1, 2, 7)]
    [{}, {'momentum': array([2., 2.], dtype=float32)}, {'momentum': array([3., 3.], dtype=float32)}]
    """

    def __init__(self, place: Path, run: str, seed: int) -> None:
        if not run.isalnum():
            raise RunFolderError(f"a run is named by letters and digits, got {run!r}")
        self._folder = place / run / str(seed)

    def load(self, round: int, sizes: Mapping[str, int]) -> dict[str, F32]:
        """What was kept after the last of the first `round` rounds that the client took part in.

        Empty if there is nothing, or if it can't be read.
        """
        before = [number for number in self._rounds() if number <= round]
        if not before or not sizes:
            return {}
        try:
            kept = read_tensors(self._file(before[-1]))
        except RunFolderError:
            return {}
        if any(name not in kept or kept[name].shape != (size,) for name, size in sizes.items()):
            return {}
        return {name: np.asarray(kept[name], np.float32) for name in sizes}

    def save(self, round: int, tensors: Mapping[str, F32], *, keep: int) -> None:
        """After `round` rounds; of the rounds up to then the last `keep` stay, and none later."""
        if not tensors:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_tensors(self._file(round), dict(tensors))
        earlier = [number for number in self._rounds() if number <= round]
        for number in set(self._rounds()) - set(earlier[-keep:]):
            self._file(number).unlink(missing_ok=True)

    def _file(self, round: int) -> Path:
        return self._folder / f"{round}.safetensors"

    def _rounds(self) -> list[int]:
        return sorted(int(f.stem) for f in self._folder.glob("*.safetensors") if f.stem.isdigit())
