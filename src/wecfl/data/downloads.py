"""Fetches files: over HTTP with a checksum (by pooch), or from a Debian package without root.

A target file appears only when it is complete: it is written under another name and then renamed.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from wecfl.errors import DataError

__all__ = ["DownloadProgress", "download", "has_apt", "unpack_debian"]

DownloadProgress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the name of the file, the bytes so far, and all its bytes (None if unknown)."""

DOWNLOAD_CHUNK_BYTES = 1 << 18
APT_TIMEOUT_SECONDS = 600


def download(
    urls: Sequence[str],
    target: Path,
    sha256: str,
    *,
    progress: DownloadProgress | None = None,
    attempts: int = 3,
    timeout_seconds: float = 20.0,
) -> Path:
    """Download `target` from the first of `urls` that has it, and check its SHA-256 sum.

    Each address is tried `attempts` times, with pauses of 1, 2, … seconds. A target that exists and
    has the right sum is not downloaded again.

    >>> from tempfile import TemporaryDirectory
    >>> sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "hello.txt").write_bytes(b"hello")
    ...     download(["https://example.org/hello.txt"], Path(folder, "hello.txt"), sha256).name
    'hello.txt'
    """
    import pooch  # noqa: PLC0415  (only downloads need it)

    pooch.get_logger().setLevel("WARNING")
    failures = []
    for url in urls:
        bar = progress and _ProgressBar(target.name, progress)
        # Without this header, requests would unpack files that some servers mark as compressed.
        loader = pooch.HTTPDownloader(
            bar or False, DOWNLOAD_CHUNK_BYTES, timeout=timeout_seconds,
            headers={"Accept-Encoding": "identity"},
        )  # fmt: skip
        registry = pooch.create(
            target.parent, base_url="", registry={target.name: f"sha256:{sha256}"},
            urls={target.name: url}, retry_if_failed=attempts - 1,
        )  # fmt: skip
        try:
            registry.fetch(target.name, downloader=loader)
        except (OSError, ValueError) as error:  # from requests; a wrong checksum is a ValueError
            if isinstance(error, PermissionError) or getattr(error, "errno", None):  # from the disk
                raise DataError(f"{target}: can't be written ({_one_line(error)})") from error
            failures.append(f"{url}: {_reason(error)}")
        else:
            return target
    raise DataError("; ".join(failures))


class _ProgressBar:
    """A progress bar as pooch expects it, which calls a `DownloadProgress`."""

    def __init__(self, name: str, progress: DownloadProgress) -> None:
        self.total = 0
        self._name, self._progress, self._done = name, progress, 0

    def update(self, size: int) -> None:
        """Called with the size of each chunk, and at the end with the total size again."""
        self._done = min(self._done + size, self.total) if self.total else self._done + size
        self._progress(self._name, self._done, self.total or None)

    def reset(self) -> None:
        """Called before the final update."""

    def close(self) -> None:
        """Called at the end."""


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
    """Get the files `names`, which a package would install in the folder `inside`, into `target`.

    This does not need root: it uses `apt-get download`, which checks signatures, and `dpkg-deb -x`.
    """
    with _temporary_folder(target) as folder:
        if progress:
            progress(package, 0, None)
        _run_command("apt-get", "download", package, folder=folder)
        archives = list(Path(folder).glob("*.deb"))
        if len(archives) != 1:
            raise DataError(f"apt-get download {package}: expected one .deb, got {len(archives)}")
        if progress:
            size = archives[0].stat().st_size
            progress(package, size, size)
        _run_command("dpkg-deb", "-x", archives[0].name, "root", folder=folder)
        unpacked = Path(folder, "root", inside.relative_to("/"))
        for name in names:
            if not (unpacked / name).is_file():
                raise DataError(f"the Debian package {package} has no file {inside / name}")
            (unpacked / name).replace(target / name)


def _temporary_folder(target: Path) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder on the file system of `target`, so that a rename out of it is atomic."""
    try:
        target.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=target, prefix=".fetch-")
    except OSError as error:
        raise DataError(f"{target}: can't be written ({_one_line(error)})") from error


def _run_command(*words: str, folder: str) -> None:
    try:
        subprocess.run(
            words, cwd=folder, check=True, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=APT_TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise DataError(f"{' '.join(words[:3])}: {lines[-1]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"{' '.join(words[:3])}: {_one_line(error)}") from error


def _reason(error: Exception) -> str:
    """Why a download failed: the error that requests and urllib3 have wrapped in others."""
    response = getattr(error, "response", None)
    if response is not None:
        response.close()
        return f"the server answered {response.status_code} {response.reason}"
    inner: object = error
    while isinstance(inner, Exception):
        error = inner
        causes = [getattr(error, "reason", None), *reversed(error.args)]
        inner = next((cause for cause in causes if isinstance(cause, Exception)), None)
    return _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
