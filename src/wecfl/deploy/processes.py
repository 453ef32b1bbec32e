"""Programs that are kept running, and found again by the mark they carry.

Every process of a federation has `WECFL_FEDERATION` (the folder it belongs to) and `WECFL_SERVICE`
(the program it is part of) in its environment, and hands both on to its children. So what belongs
to a federation can be told from everything else, also when its parent is dead, its session another
one or its number in use again: nothing is ever ended by its number alone.

This file is also the program that keeps another one running, one for each service. It is run by its
path and imports nothing of `wecfl`, so that it stays small.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event

import psutil

__all__ = ["Service", "end", "found", "keep", "pause", "services", "start"]

FEDERATION, SERVICE = "WECFL_FEDERATION", "WECFL_SERVICE"

STEADY = 30.0
"""Seconds after which a program counts as running well: its next failure is its first again."""

PATIENCE = 15.0
"""Seconds between asking a process to end and ending it."""

TICK = 0.2


@dataclass(frozen=True, slots=True)
class Service:
    """What was last written down about a program that is kept running."""

    name: str
    keeper: int
    pid: int | None = None
    """None while it waits to be started again."""
    created: float = 0.0
    """When the process began, by the system's clock: tells it from a later one of its number."""
    restarts: int = 0
    exit: int | None = None
    """How it last ended."""

    @property
    def process(self) -> psutil.Process | None:
        """The process itself; None if it is no longer there."""
        with suppress(psutil.Error):
            process = psutil.Process(self.pid) if self.pid else None
            if process and process.create_time() == self.created and _alive(process):
                return process
        return None


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row.

    For 60 seconds a SuperLink holds a SuperNode that was killed for online, and refuses it: with
    this it is back at most 10 seconds later.

    >>> [pause(failures) for failures in range(1, 7)]
    [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    """
    return min(2.0 ** (failures - 1), 10.0)


def start(
    folder: Path, name: str, command: Sequence[object], env: Mapping[str, str], place: Path
) -> None:
    """Run a program in `place`, and keep it running, until its keeper is asked to end."""
    marks = {FEDERATION: str(folder), SERVICE: name}
    for each in ("services", "logs"):
        (folder / each).mkdir(exist_ok=True)
    _file(folder, name).unlink(missing_ok=True)
    keeper = [sys.executable, "-P", __file__, str(folder), name, *map(str, command)]
    subprocess.run(keeper, env={**env, **marks}, cwd=place, check=True)


def services(folder: Path) -> dict[str, Service]:
    """What is kept running, or was when its keeper was killed, by name."""
    files = sorted((folder / "services").glob("*.json"))
    return {file.stem: Service(**json.loads(file.read_text("utf-8"))) for file in files}


def found(folder: Path, service: str | None = None) -> list[psutil.Process]:
    """The processes of a federation, or of one of its services, but for this one."""
    kept = [each.process for each in services(folder).values() if service in (None, each.name)]
    roots = [process for process in kept if process]  # nginx wipes its environment
    wanted = {FEDERATION: str(folder), **({SERVICE: service} if service else {})}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            env = process.environ()
            if all(env.get(key) == value for key, value in wanted.items()):
                roots.append(process)
    every = {process.pid: process for process in roots}
    for process in roots:
        with suppress(psutil.Error):
            every |= {child.pid: child for child in process.children(recursive=True)}
    every.pop(os.getpid(), None)
    return [process for process in every.values() if _alive(process)]


def end(processes: Iterable[psutil.Process], patience: float = PATIENCE) -> None:
    """Ask processes to end, wait, and end those that did not."""
    left = list(processes)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(left, patience)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, PATIENCE)


def keep(folder: Path, name: str, command: Sequence[str]) -> None:
    """Run a program again whenever it ends, until this process gets SIGTERM."""
    asked = Event()  # never waited for: that is no thing to do where a signal may set it
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    failures = restarts = 0
    last: int | None = None
    while not asked.is_set():
        child = subprocess.Popen(command, start_new_session=True)
        created = psutil.Process(child.pid).create_time()
        _write(folder, Service(name, os.getpid(), child.pid, created, restarts, last))
        began = time.monotonic()
        while not asked.is_set() and child.poll() is None:
            time.sleep(TICK)
        steady = time.monotonic() - began > STEADY
        _finish(folder, name, child)
        last = child.returncode
        failures = 1 if steady else failures + 1
        restarts += not asked.is_set()
        _write(folder, Service(name, os.getpid(), None, 0.0, restarts, last))
        if not asked.is_set():
            print(f"{name} ended ({last}); again in {pause(failures):g} s", flush=True)
        again = time.monotonic() + pause(failures)
        while not asked.is_set() and time.monotonic() < again:
            time.sleep(TICK)
    _file(folder, name).unlink(missing_ok=True)


def _finish(folder: Path, name: str, child: subprocess.Popen[bytes]) -> None:
    """End a program with all that came of it: what it left must not meet its successor."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(PATIENCE)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    end(found(folder, name), patience=1.0)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _file(folder: Path, name: str) -> Path:
    return folder / "services" / f"{name}.json"


def _write(folder: Path, service: Service) -> None:
    file = _file(folder, service.name)
    temporary = file.with_suffix(".part")
    temporary.write_text(json.dumps(asdict(service)), encoding="utf-8")
    temporary.replace(file)


def _main() -> None:
    """Leave the terminal, then keep running what the command line says."""
    folder, name, *command = sys.argv[1:]
    if os.fork():
        os._exit(0)
    os.setsid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(Path(folder) / "logs" / f"{name}.log", flags, 0o600)
    for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, stream)
    keep(Path(folder), name, command)


if __name__ == "__main__":
    _main()
