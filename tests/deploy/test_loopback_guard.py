"""Whose a connection to a port of loopback is, and who may use a SuperLink that listens on one."""

import asyncio
import os
import pwd
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from helpers import as_nobody
from wecfl.deploy.certificates import server_certificate
from wecfl.deploy.flower_programs import call_flwr, flower_environment, guarded_server
from wecfl_main.loopback_guard import LoopbackGuard, connection_owner, trusted_users

OWN = frozenset({os.getuid()})


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection on loopback: the client's end and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        server, _ = listening.accept()
        with client, server:
            yield client, server


def answer(users: frozenset[int], scope: dict[str, Any]) -> list[dict[str, Any]]:
    """What is sent to a caller; what the guarded application sends is "passed"."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "passed"})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(LoopbackGuard(app, users)(scope, None, send))
    return sent


def http(path: str, client: Any = None, server: Any = None) -> dict[str, Any]:
    return {"type": "http", "path": path, "client": client, "server": server}


def test_only_the_user_of_a_connection_may_use_it() -> None:
    with connected() as (client, server):
        scope = http("/v1/control/start-run", client.getsockname(), server.getsockname())
        assert answer(OWN, scope) == [{"type": "passed"}]
        head, _ = answer(frozenset({os.getuid() + 1}), scope)
        assert head["status"] == 403
        assert answer(frozenset({os.getuid() + 1}), {**scope, "type": "websocket"}) == [
            {"type": "websocket.close", "code": 1008}
        ]


def test_a_connection_that_was_closed_is_not_roots() -> None:
    """The kernel lists it with user 0 until the other side has closed it, too."""
    with connected() as (client, server):
        ends = client.getsockname(), server.getsockname()
        assert connection_owner(*ends) == os.getuid()
        client.close()
        assert connection_owner(*ends) is None


@pytest.mark.parametrize(
    "ends",
    [(None, None), (("127.0.0.1", 0), ("127.0.0.1", 1)), (("::1", 5), ("::1", 6)),
     (("fl.example.org", 5), ("127.0.0.1", 6))],
)  # fmt: skip
def test_who_can_not_be_told_is_refused(ends: Any) -> None:
    head, _ = answer(OWN, http("/v1/runtime/acquire-task", *ends))
    assert head["status"] == 403


@pytest.mark.parametrize(
    ("path", "passed"),
    [
        ("/v1/fleet/pull-messages", True), ("/v1/fleet/send-node-heartbeat", True),
        ("/v1/fleet/register-node", False), ("/v1/fleet/unregister-node", False),
        ("/v1/fleet/../control/list-runs", False), ("/v1/fleet/", False), ("/docs", False),
        ("/v1/control/start-run", False), ("/v1/fleet/pull-messages\n", False),
    ],
)  # fmt: skip
def test_calls_of_nodes_pass_for_everybody(path: str, passed: bool) -> None:
    sent = answer(frozenset(), http(path))
    assert (sent == [{"type": "passed"}]) == passed


def test_operators_are_named() -> None:
    name = pwd.getpwuid(os.getuid()).pw_name
    assert trusted_users(f" {name}, root,") == {0, os.geteuid()}
    with pytest.raises(SystemExit, match="no-such-user"):
        trusted_users("root,no-such-user")


# A real SuperLink


@dataclass(frozen=True, slots=True)
class SuperLink:
    """A SuperLink that runs. Everybody who has the certificate of its authority can call it."""

    folder: Path
    port: int
    trust: ssl.SSLContext


@pytest.fixture(scope="module")
def superlink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    folder = tmp_path_factory.mktemp("superlink")
    certificate, key = server_certificate(folder, ["localhost", "127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *guarded_server("flower-superlink"), "--host", "127.0.0.1", "--port", port,
        "--ssl-ca-certfile", folder / "ca.crt", "--ssl-certfile", certificate,
        "--ssl-keyfile", key, "--database", folder / "state.db",
        "--enable-supernode-auth", "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            list(map(str, command)), env=flower_environment(folder), stdout=log, stderr=log
        )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(0.2)
        connection = {"address": f"127.0.0.1:{port}", "root-certificates": str(folder / "ca.crt")}
        written = tomli_w.dumps({"superlink": {"default": "it", "it": connection}})
        (folder / "config.toml").write_text(written)
        yield SuperLink(folder, port, ssl.create_default_context(cafile=folder / "ca.crt"))
    finally:
        process.terminate()
        process.wait(30)


def status(superlink: SuperLink, path: str, *headers: str) -> int:
    """What the SuperLink says to a call on a new connection of the user that we are now."""
    plain = socket.create_connection(("127.0.0.1", superlink.port), 30)
    head = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", "Content-Length: 0",
            "Content-Type: application/x-protobuf", *headers]  # fmt: skip
    with plain, superlink.trust.wrap_socket(plain, server_hostname="localhost") as secure:
        secure.sendall("\r\n".join([*head, "", ""]).encode())
        with secure.makefile("rb") as reply:
            return int(reply.readline().split()[1])


@pytest.mark.deploy
def test_its_own_user_may_use_it(superlink: SuperLink) -> None:
    assert call_flwr(superlink.folder, ["list", "it"])["runs"] == []


@pytest.mark.deploy
@pytest.mark.parametrize("path", ["/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs"])
def test_another_user_of_the_machine_is_refused(superlink: SuperLink, path: str) -> None:
    assert status(superlink, path) != 403
    with as_nobody():
        assert status(superlink, path) == 403
        assert status(superlink, path, f"X-Forwarded-For: 127.0.0.1:{superlink.port}") == 403
        assert status(superlink, "/v1/fleet/register-node") == 403
        assert status(superlink, "/v1/fleet/pull-messages") in (401, 415, 422)


def test_a_system_without_the_table_of_connections_is_told(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, wecfl_main.loopback_guard as guard\n"
        "guard.CONNECTION_TABLE = pathlib.Path(sys.argv.pop())\nguard.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "flower-superlink", str(tmp_path / "none")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "on Linux" in done.stderr and done.stderr.count("\n") == 1
