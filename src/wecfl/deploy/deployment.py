"""A whole federation on this machine, to try an app before it goes to real hosts.

::

    DIR/.federation/        only its owner may read it, and Flower must not pack it into the app
      ca.crt, server.crt    the authority and the server's certificate, with their keys
      federation.json       the first port, and the number of clients
      enrolled.toml         the name, the node and the largest size of each client (`enrolment`)
      flwr/config.toml      tells `flwr` where the SuperLink is
      superlink/            the database of the SuperLink
      clients/              for each client its key and what it keeps between rounds
      services/, logs/      which programs run, and what they print

The SuperLink and the nodes listen on loopback and answer this user only
(`wecfl_main.loopback_guard`); nodes reach the SuperLink through nginx (`templates/proxy.conf`). The
programs are Flower's own, and each has a keeper that looks after it (`wecfl.deploy.processes`).
"""

from __future__ import annotations

import json
import socket
import ssl
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from wecfl.deploy import processes
from wecfl.deploy.app_folder import app_settings, check_ignored, deploy_command
from wecfl.deploy.certificates import key_fingerprint, node_key, server_certificate
from wecfl.deploy.enrol import add_to_list
from wecfl.deploy.flower_programs import (
    CONNECTION_NAME,
    call_flwr,
    flower_environment,
    flower_program,
    flwr_config,
    guarded_server,
)
from wecfl.deploy.follow import ShowLine, follow_run
from wecfl.deploy.processes import Probe, Service
from wecfl.deploy.proxy import nginx, nginx_config
from wecfl.enrolment import (
    DEFAULT_MAX_REPLY,
    DEFAULT_MAX_SAMPLES,
    ENROLMENT_FILE,
    Enrolled,
    Enrolment,
)
from wecfl.errors import ConfigError, DeployError, unknown
from wecfl.folder.files import replace_file
from wecfl.folder.lock import Lock

__all__ = ["Deployment", "Node"]

START_TIMEOUT_SECONDS = 90.0
"""A server must listen on its port within this time."""

JOIN_TIMEOUT_SECONDS = 240.0
"""All nodes must be online within this time; a node that was killed can't join for 60 seconds."""


@dataclass(frozen=True, slots=True)
class Node:
    """A SuperNode: the name of its client, its number at the SuperLink, its own port."""

    client: str
    number: int
    port: int


class Deployment:
    """The federation of an app on this machine. Its keys, nodes and database stay after `down`."""

    def __init__(self, app: Path) -> None:
        self.app = app.absolute()
        self.folder = self.app / ".federation"
        if not self.folder.is_dir():  # a federation that is up can be stopped even without its app
            app_settings(app)

    # What there is

    @property
    def port(self) -> int:
        """The port of the proxy; the SuperLink has the next one, the nodes those after it."""
        return int(self._written["port"])

    @property
    def nodes(self) -> list[Node]:
        """The nodes that `up` started last."""
        written = self._written
        names = [f"client-{i}" for i in range(written["nodes"])]
        return [
            Node(name, written["numbers"][name], self.port + 2 + i)
            for i, name in enumerate(names)
            if name in written["numbers"]
        ]

    @property
    def services(self) -> dict[str, Service]:
        """The programs that are kept running: SuperLink, proxy, nodes. Empty after `down`."""
        services = processes.read_services(self.folder)
        pids = {process.pid for process in processes.find(self.folder)}
        order = ["superlink", "proxy", *(node.client for node in self.nodes)]
        return {
            name: services[name]
            for name in order
            if name in services and {services[name].keeper, services[name].pid} & pids
        }

    @property
    def last_run(self) -> Path | None:
        """The folder of the run that `begin` started last."""
        file = self.folder / "run.toml"
        return Path(tomllib.loads(file.read_text("utf-8"))["out"]) if file.exists() else None

    def online(self) -> dict[str, str]:
        """The state of each node, as the SuperLink knows it: online, offline or registered."""
        listed = self.flwr("supernode", "list")["nodes"]
        by_number = {int(node["node-id"]): node["status"] for node in listed}
        return {node.client: by_number.get(node.number, "unknown") for node in self.nodes}

    # What can be done

    def up(
        self,
        nodes: int,
        port: int,
        show: ShowLine,
        *,
        max_reply: int = DEFAULT_MAX_REPLY,
        max_samples: int = DEFAULT_MAX_SAMPLES,
    ) -> None:
        """Start everything and wait until all nodes are online; on failure stop everything.

        A reply may have at most `max_reply` bytes, and no client may say that it has more than
        `max_samples` samples.
        """
        app_settings(self.app)
        check_ignored(self.app)
        for program in ("flwr", "flower-superlink", "flower-supernode"):
            flower_program(program)
        nginx()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.folder.chmod(0o700)
        lock = Lock(self.folder)
        lock.take()
        try:
            left = processes.find(self.folder)
            keepers = {service.keeper for service in self.services.values()}
            if keepers & {process.pid for process in left}:
                raise DeployError(
                    f"{self.app} is up already: see it with {deploy_command('status', self.app)}, "
                    f"or stop it with {deploy_command('down', self.app)}"
                )
            if left:
                show(f"stopping {len(left)} processes that an earlier federation left behind")
                self.down()
            _check_ports(port, nodes)
            try:
                self._start(nodes, port, show, max_reply, max_samples)
            except BaseException:
                show("stopping")
                self.down()
                raise
        finally:
            lock.drop()

    def begin(self, settings: Mapping[str, Any], out: Path | None) -> tuple[str, Path]:
        """Begin to train; return the number of the run and its folder.

        If the folder holds an unfinished run, that run continues from its last checkpoint.
        """
        known = app_settings(self.app)
        check_ignored(self.app)
        for name in settings:
            if name not in known:
                where = f"{self.app / 'pyproject.toml'}, under [tool.flwr.app.config]"
                raise ConfigError(
                    f"{unknown('setting', name, known)}; add a new setting to {where}"
                )
        if not self.services:
            command = deploy_command("up", self.app)
            raise DeployError(f"{self.app} is not up: start it with {command}")
        folder = out.absolute() if out else self.app / "runs" / f"{datetime.now():%Y%m%d-%H%M%S}"
        all_nodes = {"clients": len(self.nodes)} if "clients" in known else {}
        chosen = {**all_nodes, **settings, "out": str(folder)}
        file = self.folder / "run.toml"
        replace_file(file, [tomli_w.dumps(chosen).encode()])
        return self.flwr("run", self.app, run_config=file)["run-id"], folder

    def follow(self, number: str, show: ShowLine) -> str:
        """Show what the server of a run prints until it ends; return its status in Flower's words.

        If the SuperLink died, the status is "lost with the SuperLink".
        """
        command = [str(flower_program("flwr")), "log", number, CONNECTION_NAME]
        env = {**self.environment, "PYTHONUNBUFFERED": "1"}
        return follow_run(command, env, lambda: self._news(number), show)

    def down(self) -> list[str]:
        """Stop everything that `up` started and nothing else; return the names of what ran."""
        running = self.services
        nodes = [name for name in running if name not in ("superlink", "proxy")]
        for names in (nodes, ["proxy"], ["superlink"]):  # so that the nodes can sign off
            keepers = {running[name].keeper for name in names if name in running}
            found = [process for process in processes.find(self.folder) if process.pid in keepers]
            processes.stop(found, patience=2 * processes.TERMINATE_SECONDS)
        for _ in range(3):
            if not (left := processes.find(self.folder)):
                break
            processes.stop(left)
        else:
            if left := processes.find(self.folder):
                numbers = ", ".join(str(process.pid) for process in left)
                raise DeployError(f"can't stop the processes {numbers}: stop them yourself")
        for file in (self.folder / "services").glob("*.json"):
            file.unlink(missing_ok=True)
        return list(running)

    # How it is done

    def flwr(self, *words: str | Path, run_config: Path | None = None) -> dict[str, Any]:
        """Call Flower's command line on this federation, and return its answer."""
        flags = [] if run_config is None else ["--run-config", str(run_config)]
        return call_flwr(self.folder / "flwr", [*words, CONNECTION_NAME, *flags])

    @property
    def environment(self) -> dict[str, str]:
        """With this environment `flwr` talks to this federation and to nothing else."""
        return flower_environment(self.folder / "flwr")

    def wait_until_listening(self, service: str, port: int) -> None:
        """Wait until a program answers on its port, with the certificate of this federation."""
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        began, before = time.monotonic(), self._restarts(service)
        while True:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
                trust.wrap_socket(plain, server_hostname="localhost"),
            ):
                return
            overdue = time.monotonic() - began > START_TIMEOUT_SECONDS
            if overdue or self._restarts(service) > before:
                raise DeployError(f"{service} does not start: {self._last_words(service)}")
            time.sleep(0.2)

    @property
    def _written(self) -> dict[str, Any]:
        file = self.folder / "federation.json"
        nothing = {"port": 0, "nodes": 0, "numbers": {}}
        return json.loads(file.read_text("utf-8")) if file.exists() else nothing

    def _news(self, number: str) -> tuple[str, str]:
        """The status of a run in Flower's words, and the problems of the programs."""
        ill = [f"{name} is ill ({each.ill})" for name, each in self.services.items() if each.ill]
        return str(self.flwr("list", "--run-id", number)["runs"][0]["status"]), "; ".join(ill)

    def _start(
        self, nodes: int, port: int, show: ShowLine, max_reply: int, max_samples: int
    ) -> None:
        folder, superlink = self.folder, port + 1
        numbers = self._written["numbers"] if (folder / "superlink" / "state.db").exists() else {}
        certificate, key = server_certificate(folder, ["localhost", "127.0.0.1", "::1"])
        for name in ("superlink", "clients", "flwr", "nginx", "logs"):
            (folder / name).mkdir(exist_ok=True)
        ca, listed = str(folder / "ca.crt"), folder / ENROLMENT_FILE
        flwr_config(folder / "flwr", superlink, ca)
        proxy = nginx_config(folder, port, superlink, max_reply)
        (folder / "nginx.conf").write_text(proxy, encoding="utf-8")
        before = Enrolment.read(listed) if listed.exists() else Enrolment()
        replace_file(listed, [before.model_copy(update={"max_reply": max_reply}).text.encode()])

        show("starting the SuperLink")
        command = [
            *guarded_server("flower-superlink"), "--host", "127.0.0.1", "--port", superlink,
            "--ssl-ca-certfile", ca, "--ssl-certfile", certificate,
            "--ssl-keyfile", key, "--database", folder / "superlink" / "state.db",
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        well = Probe(f"https://127.0.0.1:{superlink}/health", ca, "flower-superexec")
        self._keep("superlink", command, folder / "superlink", well, WECFL_ENROLLED=str(listed))
        self.wait_until_listening("superlink", superlink)
        show("starting the proxy")
        log = folder / "logs" / "nginx.log"
        command = [nginx(), "-e", log, "-c", folder / "nginx.conf"]
        self._keep("proxy", command, folder / "nginx", Probe(f"https://127.0.0.1:{port}/", ca))
        self.wait_until_listening("proxy", port)
        self._enrol(nodes, port, numbers, show, max_samples)
        for i, node in enumerate(self.nodes):
            home = folder / "clients" / node.client
            about = {
                "client-id": node.client, "partition-id": i, "num-partitions": nodes,
                "state-dir": str(home / "state"),
            }  # fmt: skip
            (home / "node.toml").write_text(tomli_w.dumps(about), encoding="utf-8")
            command = [
                *guarded_server("flower-supernode"), "--superlink", f"127.0.0.1:{port}",
                "--root-certificates", folder / "ca.crt",
                "--auth-supernode-private-key", home / "key",
                "--host", "127.0.0.1", "--port", node.port, "--node-config", home / "node.toml",
            ]  # fmt: skip
            well = Probe(f"http://127.0.0.1:{node.port}/health", child="flower-superexec")
            self._keep(node.client, command, home, well)
        self._wait_until_online(nodes, show)

    def _wait_until_online(self, nodes: int, show: ShowLine) -> None:
        began = time.monotonic()
        while (count := list(self.online().values()).count("online")) < nodes:
            show(f"waiting for the nodes: {count} of {nodes} online")
            if time.monotonic() - began > JOIN_TIMEOUT_SECONDS:
                missing = [client for client, state in self.online().items() if state != "online"]
                raise DeployError(
                    f"{missing[0]} did not come online: {self._last_words(missing[0])}"
                )
            time.sleep(1)

    def _enrol(
        self, nodes: int, port: int, numbers: dict[str, int], show: ShowLine, max_samples: int
    ) -> None:
        """Put each client on the list; a node without a number at the SuperLink gets a new key."""
        for i in range(nodes):
            home = self.folder / "clients" / (client := f"client-{i}")
            if client not in numbers:
                show(f"enrolling {client}")
                home.mkdir(exist_ok=True)
                # A key that exists may be registered already, under a number that we do not know.
                (home / "key").unlink(missing_ok=True)
                public = node_key(home / "key")
                numbers[client] = int(self.flwr("supernode", "register", public)["node-id"])
            key = key_fingerprint(home / "key.pub")
            node = numbers[client]
            entry = Enrolled(name=client, node=node, key=key, samples=max_samples, number=i)
            add_to_list(self.folder, entry)
            written = {"port": port, "nodes": nodes, "numbers": numbers}
            replace_file(self.folder / "federation.json", [json.dumps(written, indent=2).encode()])

    def _keep(
        self, name: str, command: Sequence[object], home: Path, probe: Probe, **more: str
    ) -> None:
        # Flower takes an app that was killed while it was unpacked for whole: unpack it again.
        unpack_again = ["/bin/sh", "-c", 'rm -rf "$FLWR_HOME/apps" && exec "$@"', name]
        env = flower_environment(home) | more
        processes.start(self.folder, name, [*unpack_again, *command], env, self.app, probe=probe)

    def _restarts(self, service: str) -> int:
        known = processes.read_services(self.folder).get(service)
        return known.restarts if known else 0

    def _last_words(self, service: str) -> str:
        """The last line of a program's log, and the file of the log."""
        file = self.folder / "logs" / f"{service}.log"
        lines = file.read_text("utf-8", "replace").split("\n") if file.exists() else []
        own = [line for line in lines if line.strip() and not line.startswith(f"{service} ended")]
        return f"{own[-1].strip() if own else 'it printed nothing'} ({file})"


def _check_ports(port: int, nodes: int) -> None:
    """Refuse to begin if a port that is needed is taken."""
    last = port + 1 + nodes
    if port < 1024 or last > 65535:
        raise ConfigError(f"--port must be within 1024 … {65535 - 1 - nodes}, got {port}")
    for number in range(port, last + 1):
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                plain.bind(("127.0.0.1", number))
            except OSError as error:
                raise DeployError(
                    f"port {number} can't be used ({error.strerror}); ports {port} … {last} are "
                    f"needed: choose others with --port"
                ) from None
