"""A lock, so that only one process writes a run folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from wecfl.errors import RunFolderError

__all__ = ["LOCK_FILE", "Lock"]

LOCK_FILE = ".lock"
"""The file that the process which writes a run folder keeps locked."""


class Lock:
    """The lock is held from `take` to `drop`, or until the process ends in any way.

    It belongs to the process alone: workers that it forks don't keep it alive.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None

    def take(self) -> None:
        """Take the lock; refuse a folder that another process is writing."""
        file = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.pread(file, 20, 0).decode(errors="replace").strip()
            os.close(file)
            raise RunFolderError(
                f"{self._folder} is being written by process {owner or 'of another user'}: "
                f"wait for it to end, or stop it"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def drop(self) -> None:
        """Release the lock, so that others can write the folder."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
