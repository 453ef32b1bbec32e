"""Keeps programs running, and finds them again by two variables in their environment.

Every process of a federation has `WECFL_FEDERATION` (the folder it belongs to) and `WECFL_SERVICE`
(the program it is part of) in its environment, and its children inherit both. These tell the
processes of a federation from all others, even if their parent is dead, they changed their session,
or a process number was used again. So no process is ever stopped by its number alone.

This file is also a program, the keeper: it keeps one other program running, and each service has
its own keeper. The keeper starts the program again when it ends, and also when it is ill: when it
runs but does not answer, or when a program that it needs is gone (`Probe`). It is run by its path
and imports nothing of `wecfl`, so that it stays small.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event

import psutil

__all__ = [
    "Probe",
    "Service",
    "find",
    "keep_running",
    "read_services",
    "restart_delay",
    "start",
    "stop",
]

FEDERATION_VARIABLE, SERVICE_VARIABLE = "WECFL_FEDERATION", "WECFL_SERVICE"

STEADY_SECONDS = 30.0
"""A program that ran for longer than this counts as healthy: its next failure is its first."""

TERMINATE_SECONDS = 15.0
"""A process that was asked to end has this long before it is killed."""

POLL_SECONDS = 0.2
"""A keeper looks at its program this often."""


@dataclass(frozen=True, slots=True)
class Service:
    """The last record of a keeper about the program that it keeps running."""

    name: str
    keeper: int
    pid: int | None = None
    """None while the program waits to be started again."""
    created: float = 0.0
    """When the process began, by the system's clock; a later process of the same number differs."""
    restarts: int = 0
    exit: int | None = None
    """The exit code with which the program last ended."""
    ill: str = ""
    """What the keeper last found wrong with the program; empty if nothing."""

    @property
    def process(self) -> psutil.Process | None:
        """The process itself, or None if it no longer exists."""
        with suppress(psutil.Error):
            process = psutil.Process(self.pid) if self.pid else None
            if process and process.create_time() == self.created and _alive(process):
                return process
        return None


@dataclass(frozen=True, slots=True)
class Probe:
    """How a keeper checks that its program works; a program can run and not work."""

    url: str = ""
    """The address at which it must answer; any answer will do, except an error of the server."""
    ca: str = ""
    """The file with the certificate of the authority that signed its own."""
    child: str = ""
    """The name of a program that must be among its processes."""
    every: float = 10.0
    """Seconds between two checks."""
    patience: float = 60.0
    """Seconds after which a program that was well, and is ill since then, is started again."""
    start: float = 240.0
    """Seconds after which a program that was never well since its start is started again."""

    def complaint(self, folder: Path, name: str) -> str:
        """What is wrong with the service `name`; an empty text if nothing is."""
        if self.child:
            running = " ".join(word for each in find(folder, name) for word in _command(each))
            if self.child not in running:
                return f"{self.child} is not running"
        if not self.url:
            return ""
        trust = ssl.create_default_context(cafile=self.ca) if self.ca else None
        try:
            with urllib.request.urlopen(self.url, timeout=self.every / 2, context=trust):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return "" if error.code < 500 else f"{self.url} says {error.code}"
        except (OSError, ValueError) as error:
            return f"{self.url} does not answer: {getattr(error, 'reason', error)}"


def restart_delay(failures: int) -> float:
    """Seconds to wait before the next start, after this many failures in a row.

    For 60 seconds the SuperLink believes that a killed SuperNode is still online, and refuses it.
    With these delays the node is back at most 10 seconds after that.

    >>> [restart_delay(failures) for failures in range(1, 7)]
    [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    """
    return min(2.0 ** (failures - 1), 10.0)


def start(
    folder: Path,
    name: str,
    command: Sequence[object],
    env: Mapping[str, str],
    place: Path,
    *,
    probe: Probe = Probe(),
) -> None:
    """Run a program in the folder `place`, and keep it running until its keeper is stopped."""
    marks = {FEDERATION_VARIABLE: str(folder), SERVICE_VARIABLE: name}
    for subfolder in ("services", "logs"):
        (folder / subfolder).mkdir(exist_ok=True)
    _file(folder, name).unlink(missing_ok=True)
    settings = json.dumps(asdict(probe))
    keeper = [sys.executable, "-P", __file__, str(folder), name, settings, *map(str, command)]
    subprocess.run(keeper, env={**env, **marks}, cwd=place, check=True)


def read_services(folder: Path) -> dict[str, Service]:
    """The programs with a keeper by name, even if the keeper was killed in the meantime."""
    files = sorted((folder / "services").glob("*.json"))
    return {file.stem: Service(**json.loads(file.read_text("utf-8"))) for file in files}


def find(folder: Path, service: str | None = None) -> list[psutil.Process]:
    """The processes of a federation, or of one of its services, without the calling process."""
    known = [each for each in read_services(folder).values() if service in (None, each.name)]
    # nginx clears its environment, so it is found by the record of its keeper.
    roots = [process for each in known if (process := each.process)]
    wanted = {FEDERATION_VARIABLE: str(folder), **({SERVICE_VARIABLE: service} if service else {})}
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


def stop(processes: Iterable[psutil.Process], patience: float = TERMINATE_SECONDS) -> None:
    """Ask processes to end, wait `patience` seconds, and kill those that are still there."""
    left = list(processes)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, left = psutil.wait_procs(left, patience)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, TERMINATE_SECONDS)


def keep_running(folder: Path, name: str, probe: Probe, command: Sequence[str]) -> None:
    """Start a program again whenever it ends or is ill, until this process gets SIGTERM."""
    stop_asked = Event()  # only polled: waiting for an event that a signal handler sets can hang
    signal.signal(signal.SIGTERM, lambda *_: stop_asked.set())
    failures = restarts = 0
    last: int | None = None
    while not stop_asked.is_set():
        child = subprocess.Popen(command, start_new_session=True)
        created = psutil.Process(child.pid).create_time()
        service = Service(name, os.getpid(), child.pid, created, restarts, last)
        _write(folder, service)
        began = time.monotonic()
        ill = _watch(folder, service, probe, child, stop_asked)
        steady = time.monotonic() - began > STEADY_SECONDS and not ill
        _finish(folder, name, child)
        last = child.returncode
        failures = 1 if steady else failures + 1
        restarts += not stop_asked.is_set()
        _write(folder, Service(name, os.getpid(), None, 0.0, restarts, last, ill))
        if not stop_asked.is_set():
            why = f"ended ({last})" if not ill else f"was ill and is stopped: {ill}"
            print(f"{name} {why}; again in {restart_delay(failures):g} s", flush=True)
        restart_at = time.monotonic() + restart_delay(failures)
        while not stop_asked.is_set() and time.monotonic() < restart_at:
            time.sleep(POLL_SECONDS)
    _file(folder, name).unlink(missing_ok=True)


def _watch(
    folder: Path, service: Service, probe: Probe, child: subprocess.Popen[bytes], stop_asked: Event
) -> str:
    """Wait until a program ends, or must be ended because it is ill; return what is wrong."""
    looked = well_at = time.monotonic()
    patience = probe.start
    while not stop_asked.is_set() and child.poll() is None:
        time.sleep(POLL_SECONDS)
        if not (probe.url or probe.child) or time.monotonic() - looked < probe.every:
            continue
        ill = probe.complaint(folder, service.name)
        looked = time.monotonic()
        if ill != service.ill and (patience == probe.patience or not ill):
            service = replace(service, ill=ill)
            _write(folder, service)
        if not ill:
            well_at, patience = looked, probe.patience
        elif looked - well_at > patience:
            return ill
    return ""


def _finish(folder: Path, name: str, child: subprocess.Popen[bytes]) -> None:
    """Stop a program and all its children: they must be gone before it is started again."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(TERMINATE_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    stop(find(folder, name), patience=1.0)


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


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
    """Detach from the terminal, then keep the program of the command line running."""
    folder, name, probe, *command = sys.argv[1:]
    if os.fork():
        os._exit(0)
    os.setsid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    log = os.open(Path(folder) / "logs" / f"{name}.log", flags, 0o600)
    for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(file, stream)
    keep_running(Path(folder), name, Probe(**json.loads(probe)), command)


if __name__ == "__main__":
    _main()
