"""Run a server of Flower so that other users of the machine can't use it.

Flower's SuperLink and SuperNode listen on a port of 127.0.0.1 without asking for a password, and
any user of the machine can connect to it. A secret would not help: Flower hands the tokens of its
apps over on command lines, which everybody can read. But the kernel knows who owns a connection. So
this program runs Flower's with one change: a request is answered only if its connection belongs to
the user who runs the server, to root, or to one of `WECFL_OPERATORS` (names of users, with commas).
Everybody else gets 403. The calls of nodes are let through, because Flower itself asks for the
signature of an enrolled key, and the proxy makes them as a user of its own.

::

    python -P -m wecfl_main.loopback_guard flower-superlink --host 127.0.0.1 --port 9444 …

It is outside the package `wecfl`, whose imports take a second.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

__all__ = ["LoopbackGuard", "connection_owner", "main", "trusted_users"]

Scope = MutableMapping[str, Any]
"""What ASGI says about a request: its type, its path, the two ends of its connection."""

App = Callable[[Scope, Any, Any], Awaitable[None]]
"""An application of ASGI: it gets a scope, a way to receive and a way to send."""

CONNECTION_TABLE = Path("/proc/net/tcp")
"""Where Linux tells the connections of IPv4, and the user of each."""

NODE_CALL = re.compile(r"/v1/fleet/(?!(un)?register-node$)[a-z-]+")
"""The paths of calls for which Flower asks for a node's signature, as in `proxy.conf`."""

GRPC_VARIABLES = ("FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API")
"""With these variables Flower would open other ports, which are not guarded."""


def connection_owner(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user whose socket at `client` is connected to `server`; None if there is no such socket.

    A socket that its process has closed is still listed for a while, with root as its user and
    without an inode: it counts as nobody's.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     with socket.create_connection(server.getsockname()) as client:
    ...         connection_owner(client.getsockname(), server.getsockname()) == os.getuid()
    True
    >>> connection_owner(("127.0.0.1", 1), ("127.0.0.1", 2))
    """
    try:
        wanted = [_as_listed(*client), _as_listed(*server)]
    except OSError:  # not an address of IPv4
        return None
    for line in CONNECTION_TABLE.read_text("ascii").splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return int(fields[7]) if fields[9] != "0" else None
    return None


def trusted_users(operators: str) -> frozenset[int]:
    """The user of this process, root, and the users that are named, with commas between them.

    >>> sorted(trusted_users("root")) == sorted({0, os.geteuid()})
    True
    """
    names = [name.strip() for name in operators.split(",") if name.strip()]
    try:
        return frozenset({0, os.geteuid(), *(pwd.getpwnam(name).pw_uid for name in names)})
    except KeyError as error:
        raise SystemExit(
            f"wecfl: WECFL_OPERATORS must name users of this machine: {error.args[0]}"
        ) from None


@dataclass(frozen=True, slots=True)
class LoopbackGuard:
    """An application of ASGI in front of another one, for the requests of some users only."""

    app: App
    users: frozenset[int]

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Pass on what comes from a trusted user or is a node's call, and refuse the rest."""
        if scope["type"] == "lifespan" or self._allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            head = {"type": "http.response.start", "status": 403, "headers": []}
            await send(head)
            await send({"type": "http.response.body", "body": b"not for this user of the machine"})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _allowed(self, scope: Scope) -> bool:
        if scope["type"] == "http" and NODE_CALL.fullmatch(scope["path"]):
            return True
        if not scope.get("client") or not scope.get("server"):
            return False
        owner = connection_owner(tuple(scope["client"]), tuple(scope["server"]))
        return owner in self.users


def main() -> None:
    """Run the program of Flower that the first argument names, with the rest of the arguments."""
    import uvicorn  # noqa: PLC0415  (with it, the tests of the functions above would be slow)

    if not CONNECTION_TABLE.exists():
        raise SystemExit(
            "wecfl: this system does not say who owns a connection (it has no /proc/net/tcp), so "
            "any user of it could use the federation: run wecfl deploy on Linux"
        )
    sys.argv = sys.argv[1:]
    programs = entry_points(group="console_scripts", name=sys.argv[0])
    if not programs:
        raise SystemExit(f"wecfl: {sys.argv[0]} is not installed: pip install 'wecfl[flower]'")
    users, load = trusted_users(os.environ.get("WECFL_OPERATORS", "")), uvicorn.Config.load
    for name in GRPC_VARIABLES:
        os.environ.pop(name, None)

    def load_guarded(self: uvicorn.Config) -> None:
        load(self)
        # Outermost: uvicorn's own layers believe what a request says about its origin.
        self.loaded_app = LoopbackGuard(self.loaded_app, users)

    uvicorn.Config.load = load_guarded  # type: ignore[method-assign]
    sys.exit(programs[sys.argv[0]].load()())


def _as_listed(host: str, port: int) -> str:
    """An address as it stands in the table of connections."""
    number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    return f"{number:08X}:{port:04X}"


if __name__ == "__main__":
    main()
