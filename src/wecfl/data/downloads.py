"""Bring files from elsewhere: over HTTP with a checksum, or out of a Debian package without root.

Whatever fails, a target is either absent or complete: everything is written beside it and renamed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeAlias
from urllib.error import HTTPError
from urllib.request import urlopen

from wecfl.errors import DataError

__all__ = ["DownloadProgress", "download", "has_apt", "unpack_debian"]

DownloadProgress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with (file name, bytes so far, bytes in all or None if nobody knows)."""

_BLOCK = 1 << 18
_APT_SECONDS = 600
_WORTH_ANOTHER_TRY = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


def download(
    url: str,
    target: Path,
    md5: str,
    *,
    progress: DownloadProgress | None = None,
    attempts: int = 3,
    timeout: float = 20.0,
    pause: float = 1.0,
) -> Path:
    """Fetch `url` to `target`, which appears only once its MD5 sum has been verified.

    A broken or refused connection, a body cut short and a busy server are tried again, `attempts`
    times in all, after `pause`, 2·`pause`, … seconds. A wrong checksum is not: it would come again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source = Path(folder, "source")
    ...     _ = source.write_bytes(b"hello")
    ...     md5 = "5d41402abc4b2a76b9719d911017c592"
    ...     download(source.as_uri(), Path(folder, "cache", "copy"), md5).read_bytes()
    b'hello'
    """
    with _staging(target.parent) as folder:
        part = Path(folder, target.name)
        for attempt in range(attempts):
            if attempt:
                time.sleep(pause * 2 ** (attempt - 1))
            try:
                with part.open("wb") as file:
                    found = _copy(url, file, target.name, timeout, progress)
                break
            except (OSError, HTTPException) as error:
                if isinstance(error, HTTPError):
                    error.close()  # such an error is also the open reply
                if attempt + 1 == attempts or not _temporary(error):
                    raise DataError(f"{url}: {_line(error)}") from error
        if found != md5:
            raise DataError(f"{url}: expected a file with MD5 {md5}, got {found}")
        part.replace(target)
    return target


def has_apt() -> bool:
    """Whether this machine can download and unpack Debian packages."""
    return all(map(shutil.which, ("apt-get", "dpkg-deb")))


def unpack_debian(
    package: str,
    inside: PurePosixPath,
    names: Iterable[str],
    target: Path,
    *,
    progress: DownloadProgress | None = None,
) -> None:
    """Move the files `names` that `package` would install in the folder `inside` to `target`.

    Needs no root: `apt-get download`, which checks the archive's signatures, and `dpkg-deb -x`.
    """
    with _staging(target) as folder:
        if progress:
            progress(package, 0, None)
        _command("apt-get", "download", package, folder=folder)
        archives = list(Path(folder).glob("*.deb"))
        if len(archives) != 1:
            raise DataError(f"apt-get download {package}: expected one .deb, got {len(archives)}")
        if progress:
            size = archives[0].stat().st_size
            progress(package, size, size)
        _command("dpkg-deb", "-x", archives[0].name, "root", folder=folder)
        unpacked = Path(folder, "root", inside.relative_to("/"))
        for name in names:
            if not (unpacked / name).is_file():
                raise DataError(f"Debian package {package}: holds no {inside / name}")
            (unpacked / name).replace(target / name)


def _staging(target: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder on the file system of `target`, so that a rename out of it is atomic."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=target, prefix=".fetch-")
    except OSError as error:
        raise DataError(f"{target}: can't be written ({_line(error)})") from error


def _copy(
    url: str, file: BinaryIO, name: str, timeout: float, progress: DownloadProgress | None
) -> str:
    """Write the body of `url` to `file`, safe on disk, and return its MD5 sum."""
    digest, done = hashlib.md5(usedforsecurity=False), 0
    with urlopen(url, timeout=timeout) as reply:
        length = reply.headers.get("Content-Length")
        total = int(length) if length and length.isdigit() else None
        while block := reply.read(_BLOCK):
            digest.update(block)
            file.write(block)
            done += len(block)
            if progress:
                progress(name, done, total)
    if total not in (None, done):
        raise ConnectionError(f"cut short: expected {total} bytes, got {done}")
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _temporary(error: Exception) -> bool:
    return not isinstance(error, HTTPError) or error.code >= 500 or error.code in _WORTH_ANOTHER_TRY


def _command(*words: str, folder: str) -> None:
    try:
        subprocess.run(
            words, cwd=folder, check=True, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=_APT_SECONDS,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise DataError(f"{' '.join(words[:3])}: {said[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"{' '.join(words[:3])}: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
