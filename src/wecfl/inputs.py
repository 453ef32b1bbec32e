"""Checks before a file is read: whether it is a regular file, and whether it fits into the memory.

Both checks raise a `RefusedFileError`, which readers turn into an error of their own.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, RLIMIT_DATA, getrlimit

from wecfl.errors import ConfigError

__all__ = ["RefusedFileError", "check_fits", "check_regular", "check_room", "usable_memory"]

FILE_KINDS = {
    stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder",
}  # fmt: skip
"""What a path can be if it is not a regular file."""


class RefusedFileError(ValueError):
    """A file is not read, because of its kind or its size."""


def check_regular(path: Path) -> None:
    """Refuse what is not a regular file: opening a pipe or a device may wait forever.

    >>> check_regular(Path("/dev/zero"))
    Traceback (most recent call last):
    wecfl.inputs.RefusedFileError: it is a device, expected a regular file
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        what = FILE_KINDS.get(kind, "something else")
        raise RefusedFileError(f"it is {what}, expected a regular file")


def check_fits(needed: int) -> None:
    """Refuse what needs more bytes than this process may use.

    >>> check_fits(10**18)
    Traceback (most recent call last):
    wecfl.inputs.RefusedFileError: it needs 1000000000000000000 bytes of memory, but this process...
    """
    usable, bound = min(usable_memory())
    if needed > usable:
        raise RefusedFileError(
            f"it needs {needed} bytes of memory, but this process may use {usable} ({bound})"
        )


def check_room(what: str, needed: int, remedy: str) -> None:
    """Raise an error for a choice that needs more bytes than this process may use.

    >>> check_room("a table", 10**18, "choose a smaller one")
    Traceback (most recent call last):
    wecfl.errors.ConfigError: a table needs 1000000000.0 GB, but this process may use ...
    """
    usable, bound = min(usable_memory())
    if needed > usable:
        raise ConfigError(
            f"{what} needs {needed / 1e9:.1f} GB, but this process may use {usable / 1e9:.1f} GB "
            f"({bound}): {remedy}"
        )


def usable_memory(root: Path = Path("/")) -> list[tuple[int, str]]:
    """For each bound on the memory of this process, the bytes that it may still use, and a name.

    Bounds are the machine, the control groups of a container (versions 1 and 2) and the limits of
    the process (`ulimit -v`, `ulimit -d`). `root` is the folder that holds /proc and /sys.

    >>> all(usable >= 0 for usable, _ in usable_memory())
    True
    """
    return [(max(left, 0), bound) for left, bound in _bounds(root)]


def _bounds(root: Path) -> Iterator[tuple[int, str]]:
    page = os.sysconf("SC_PAGE_SIZE")
    free = _numbers(root / "proc/meminfo")
    if "MemAvailable:" in free:
        yield free["MemAvailable:"] * 1024, "free memory of the machine"
    else:
        yield page * os.sysconf("SC_PHYS_PAGES"), "memory of the machine"
    yield from _control_groups(root)
    held = _text(root / "proc/self/statm").split()  # in pages: all, resident, shared, code, 0, data
    for kind, column, name in (
        (RLIMIT_AS, 0, "limit of its address space"), (RLIMIT_DATA, 5, "limit of its data"),
    ):  # fmt: skip
        limit, _ = getrlimit(kind)
        if limit != RLIM_INFINITY and held:
            yield limit - int(held[column]) * page, name


def _control_groups(root: Path) -> Iterator[tuple[int, str]]:
    """What the control groups of this process leave; cache that can be freed counts as free."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if "memory" in kinds.split(","):
            base, limit, usage, cache = (
                "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                "total_inactive_file",
            )  # fmt: skip
        elif not kinds:
            base, limit, usage, cache = (
                "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
            )  # fmt: skip
        else:
            continue
        # In a container the path may be that of the host, and the group is then the root's.
        group = Path(path.lstrip("/"))
        for folder in {root / base / path for path in (group, *group.parents)}:
            most, used = _text(folder / limit).strip(), _text(folder / usage).strip()
            if most.isdigit() and used.isdigit():
                back = _numbers(folder / "memory.stat").get(cache, 0)
                yield int(most) - int(used) + back, "control group"


def _numbers(file: Path) -> dict[str, int]:
    """The first number of each line, by the word before it."""
    lines = (line.split() for line in _text(file).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _text(file: Path) -> str:
    """The content of a file of the system; empty if there is no such file."""
    try:
        return file.read_text()
    except OSError:
        return ""
