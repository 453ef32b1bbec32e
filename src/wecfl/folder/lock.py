"""A lock, so that only one run at a time writes a run folder."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from wecfl.errors import RunFolderError

__all__ = ["LOCK_FILE", "Lock"]

LOCK_FILE = ".lock"
"""The file that a process keeps locked while it writes a run folder."""

_taken: dict[tuple[int, int], Lock] = {}
"""The locks of this process (and, after a fork, of its parent), by device and inode of the folder.
They are needed because the system does not refuse a second lock of the same process."""


class Lock:
    """A lock that is held from `take` to `drop`, or until the process ends in any way.

    It belongs to one run of one process: other threads are refused, and forked workers do not keep
    it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: int | None = None
        self._process = os.getpid()

    def take(self) -> None:
        """Take the lock; refuse a folder that another run is writing."""
        self._process, about = os.getpid(), self._folder.stat()
        self._key = about.st_dev, about.st_ino
        while (other := _taken.setdefault(self._key, self)) is not self:
            if other._process == os.getpid():
                raise RunFolderError(
                    f"{self._folder} is being written by another run of this process: wait for it "
                    f"to end"
                )
            _taken.pop(self._key, None)  # the parent's lock, which the system checks
        try:
            self._lock()
        except BaseException:
            del _taken[self._key]
            raise

    def _lock(self) -> None:
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

    def check(self) -> None:
        """Refuse to continue in a fork of the process that has the lock."""
        if self._process != os.getpid():
            raise RunFolderError(
                f"{self._folder} is being written by process {self._process}, of which this one is "
                f"a fork: start another run, in another folder"
            )

    def drop(self) -> None:
        """Release the lock, so that others can write the folder."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            if _taken.get(self._key) is self:
                del _taken[self._key]
