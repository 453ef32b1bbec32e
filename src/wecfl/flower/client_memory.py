"""The memory of a client on its own disk: momentum, a personal model, private columns.

There is a file for each exchange, and a reader sees a complete file or none. So the server may go
back to a checkpoint and ask again: the client then starts with the memory that it had then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from wecfl.errors import RunFolderError
from wecfl.folder.files import replace_tensors
from wecfl.folder.parsing import read_tensors

__all__ = ["ClientMemory"]


class ClientMemory:
    """The memory of one client in one run (in a soft vote: of one member) after each exchange.

    >>> import numpy as np
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     memory = ClientMemory(Path(place), run="a1", member="0")
    ...     for tick in (1, 2, 3):
    ...         memory.save(tick, {"momentum": np.full(2, tick, np.float32)}, keep=2)
    ...     [memory.load(tick) for tick in (1, 2, 7)]
    [{}, {'momentum': array([2., 2.], dtype=float32)}, {'momentum': array([3., 3.], dtype=float32)}]
    """

    def __init__(self, state_dir: Path, run: str, member: str) -> None:
        for name in (run, member):
            if not name.isalnum():
                raise RunFolderError(
                    f"the name of a run must have only letters and digits, got {name!r}"
                )
        self._folder = state_dir / run / member

    def load(self, tick: int) -> dict[str, NDArray[Any]]:
        """The memory after the last of the first `tick` exchanges that the client took part in.

        It is empty if there is no such file or if it can't be read.
        """
        before = [number for number in self._ticks() if number <= tick]
        try:
            return read_tensors(self._file(before[-1])) if before else {}
        except RunFolderError:
            return {}

    def save(self, tick: int, tensors: Mapping[str, NDArray[Any]], *, keep: int) -> None:
        """Write the memory after `tick` exchanges; keep the last `keep` files up to this one."""
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
