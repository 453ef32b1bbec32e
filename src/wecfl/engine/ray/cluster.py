"""Ray itself: importing it, and connecting to a cluster or starting one."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from wecfl.errors import ConfigError, EngineError

__all__ = ["check_address", "connect", "first_line", "imported"]

CONNECT_TIMEOUT_SECONDS = 5.0
"""How long the head of a cluster may take to accept a connection."""
QUIET_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no statistics are sent to others
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray warns of a change in a later version
}


def imported() -> Any:
    """The module `ray`, or a `ConfigError` that says how to install it."""
    for name, value in QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        return import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"the ray engine needs an extra: pip install 'wecfl[ray]' ({error})"
        ) from None


def check_address(address: str) -> None:
    """Refuse what is not an address, or where nobody listens; Ray would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise ConfigError(f"the address of a Ray cluster is HOST:PORT or auto, got '{address}'")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"no Ray cluster at {address}: {first_line(error)}") from None


def connect(address: str | None, cores: int) -> bool:
    """Connect to Ray, or start it with these cores; return whether `close` has to end it."""
    ray = imported()
    if ray.is_initialized():
        connected = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", connected):
            raise ConfigError(
                f"this process is already connected to the Ray cluster at {connected}: use that "
                f"address, or another process"
            )
        return False
    options = {} if address else {"num_cpus": cores, "include_dashboard": False}
    try:
        with _signals_kept(), _one_attempt(address):
            ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **options)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if address is None:
            raise EngineError(f"Ray can't be started here: {first_line(error)}") from None
        raise ConfigError(
            f"can't connect to the Ray cluster at {address}: {first_line(error)}; this machine "
            f"must be a node of it (ray start --address=…) with the same versions of Python and "
            f"Ray, and have its token if it asks for one (RAY_AUTH_MODE=token)"
        ) from None
    return True


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0].strip().rstrip(".")


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore our signal handlers, which Ray replaces; ours wait for the end of a round."""
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
    """Let Ray try once. If another program answers, it would make twenty attempts of 40 s."""
    name = "RAY_gcs_server_port_wait_time_s"
    if address is None or name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]
