"""Ray itself: importing it, and connecting to a cluster or starting one."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from wecfl.errors import ConfigError, EngineError

__all__ = ["check_address", "connect", "first_line", "imported"]

CONNECT_TIMEOUT_SECONDS = 5.0
"""The time in which the head of a cluster must accept a connection."""
REAPER_FILE = Path(__file__).with_name("reaper.py")
QUIET_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no statistics are sent to others
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns of a change in a later version
}


LOOPBACK_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # also on Linux: listen on 127.0.0.1 only
    "RAY_AUTH_MODE": "token",  # because all users of the machine can reach loopback
}
"""The environment of a Ray that is started for one run. Ray reads it when it is imported."""


def imported(*, loopback: bool = False) -> Any:
    """The module `ray`, or a `ConfigError` that says how to install it.

    With `loopback` the instances that it starts listen on 127.0.0.1 only and ask for a token, if it
    has not been imported before.
    """
    wanted = LOOPBACK_ENVIRONMENT if loopback and "ray" not in sys.modules else {}
    for name, value in (QUIET_ENVIRONMENT | wanted).items():
        os.environ.setdefault(name, value)
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"the ray engine needs an extra: pip install 'wecfl[ray]' ({error})"
        ) from None


def check_address(address: str) -> None:
    """Refuse an address that is malformed, or where nothing listens: Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ConfigError(
            f"the address of a Ray cluster must be HOST:PORT or auto, got '{address}'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(
            f"there is no Ray cluster at {address} ({first_line(error)}): check the address"
        ) from None


def connect(address: str | None, cores: int) -> ExitStack:
    """Connect to Ray, or start it with this number of cores; closing the returned value ends it."""
    ray, ending = imported(loopback=address is None), ExitStack()
    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", connected):
            raise ConfigError(
                f"this process is already connected to the Ray cluster at {connected}: use that "
                f"address, or another process"
            )
        return ending
    options = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        if address is None:
            _guard_token()
        with _signals_kept(), _one_attempt(address):
            ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **options)
        if address is None:
            ending.enter_context(_reaped(ray))
    except Exception as error:  # Ray raises errors of any class, even of `Exception` itself
        ray.shutdown()
        if address is None:
            raise EngineError(f"Ray can't be started here: {first_line(error)}") from None
        raise ConfigError(
            f"can't connect to the Ray cluster at {address} ({first_line(error)}): make this "
            f"machine a node of it (ray start --address=…) with the same versions of Python and "
            f"Ray, and with its token if it asks for one (RAY_AUTH_MODE=token)"
        ) from None
    ending.callback(ray.shutdown)
    return ending


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0].strip().rstrip(".")


def _guard_token() -> None:
    """Make sure that no other user can read the token: Ray's own file for it is open to all."""
    if (
        os.environ.get("RAY_AUTH_MODE", "token").lower() != "token"
        or "RAY_AUTH_TOKEN" in os.environ
    ):
        return
    default = Path.home() / ".ray" / "auth_token"
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", default))
    if file.exists():
        file.chmod(0o600)
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(secrets.token_hex(32))


@contextmanager
def _reaped(ray: Any) -> Iterator[None]:
    """Make sure that the processes of a Ray that was started here end with this process."""
    psutil = import_module("psutil")  # Ray brings it along
    home = str(Path(ray.__file__).parent)
    lines: list[str] = []
    for parent in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if home in " ".join(parent.cmdline()):
                family = (parent, *parent.children(recursive=True))
                lines += [f"{member.pid} {member.create_time()!r}\n" for member in family]
    words = [sys.executable, "-P", str(REAPER_FILE)]
    env = {**os.environ, "PYTHONPATH": str(Path(psutil.__path__[0]).parent)}
    with subprocess.Popen(
        words, env=env, stdin=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        process.stdin.writelines(lines)
        process.stdin.flush()
        yield


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore wecfl's signal handlers, which wait for the round to end, after Ray's are set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _one_attempt(address: str | None) -> Iterator[None]:
    """Let Ray try only once: if another program answers, it would make twenty attempts of 40 s."""
    name = "RAY_gcs_server_port_wait_time_s"
    if address is None or name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
