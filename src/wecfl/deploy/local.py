"""A whole federation on this machine, for trying an app before it goes to real hosts.

::

    DIR/.federation/        nobody else may read it, and Flower must not pack it into the app
      ca.crt, server.crt    the authority and the server's certificate, with their keys
      federation.json       the first port, and the number of each client's node
      flwr/config.toml      where `flwr` finds the SuperLink
      superlink/            its database
      clients/              a key for each client, and what it keeps between rounds
      services/, logs/      what runs, and what it says

The SuperLink listens on loopback; nodes reach it through nginx alone (`templates/proxy.conf`). The
programs are Flower's own, under a keeper each (`wecfl.deploy.processes`).
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import tomli_w

from wecfl.deploy import processes
from wecfl.deploy.certificates import node_key, server_certificate
from wecfl.deploy.new import command_words
from wecfl.deploy.processes import Service
from wecfl.deploy.proxy import nginx, nginx_config
from wecfl.errors import ConfigError, DeployError, unknown
from wecfl.folder.files import replace_file
from wecfl.folder.lock import Lock

__all__ = ["CONNECTION", "Deployment", "Node", "Tell"]

INSTALL = "pip install 'wecfl[flower]'"

CONNECTION = "federation"
"""The name of the SuperLink in `flwr/config.toml`."""

HIDDEN = (".federation/", "runs/")
"""What Flower must not pack into the app: it would go to every client."""

NOISE = ("\n", "\x1b[92mINFO", "Using SuperLink", "Successfully installed")
"""How lines begin that Flower adds to what the server of a run says."""

STARTING = 90.0
"""Seconds within which a server must listen."""

JOINING = 240.0
"""Seconds within which all nodes must be online; of one that was killed, 60 pass before it can."""

Tell = Callable[[str], None]
"""Is told what is being done."""


@dataclass(frozen=True, slots=True)
class Node:
    """A SuperNode: the client it stands for, its number at the SuperLink, its own port."""

    client: str
    number: int
    port: int


class Deployment:
    """The federation of an app. Its keys, nodes and database outlive `down`."""

    def __init__(self, app: Path) -> None:
        self.app = app.absolute()
        self.folder = self.app / ".federation"
        if not self.folder.is_dir():  # what was up can be stopped, whatever became of its app
            _settings(app)

    # What there is

    @property
    def port(self) -> int:
        """Where the proxy listens; the SuperLink is on the next port, the nodes on those after."""
        return int(self._made["port"])

    @property
    def nodes(self) -> list[Node]:
        """The nodes that were last brought up."""
        made = self._made
        names = [f"client-{i}" for i in range(made["nodes"])]
        return [
            Node(name, made["numbers"][name], self.port + 2 + i)
            for i, name in enumerate(names)
            if name in made["numbers"]
        ]

    @property
    def services(self) -> dict[str, Service]:
        """What is kept running: SuperLink, proxy, nodes; nothing after `down`."""
        found = processes.services(self.folder)
        pids = {process.pid for process in processes.found(self.folder)}
        order = ["superlink", "proxy", *(node.client for node in self.nodes)]
        return {
            name: found[name]
            for name in order
            if name in found and {found[name].keeper, found[name].pid} & pids
        }

    @property
    def last_run(self) -> Path | None:
        """The folder of the run that was last begun with `run`."""
        file = self.folder / "run.toml"
        return Path(tomllib.loads(file.read_text("utf-8"))["out"]) if file.exists() else None

    def online(self) -> dict[str, str]:
        """What the SuperLink knows of each node: online, offline or registered."""
        told = self.flwr("supernode", "list")["nodes"]
        by_number = {int(each["node-id"]): each["status"] for each in told}
        return {node.client: by_number.get(node.number, "unknown") for node in self.nodes}

    # What can be done

    def up(self, nodes: int, port: int, tell: Tell) -> None:
        """Start everything and wait until all nodes are online; else leave nothing running."""
        _settings(self.app)
        _check_hidden(self.app)
        for tool in ("flwr", "flower-superlink", "flower-supernode"):
            _tool(tool)
        nginx()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self.folder.chmod(0o700)
        lock = Lock(self.folder)
        lock.take()
        try:
            left = processes.found(self.folder)
            if {each.keeper for each in self.services.values()} & {each.pid for each in left}:
                raise DeployError(
                    f"{self.app} is up already: {command_words('status', self.app)} shows it, "
                    f"{command_words('down', self.app)} stops it"
                )
            if left:
                tell(f"ending {len(left)} processes that an earlier federation left")
                self.down()
            _check_ports(port, nodes)
            try:
                self._start(nodes, port, tell)
            except BaseException:
                tell("stopping")
                self.down()
                raise
        finally:
            lock.drop()

    def begin(self, settings: Mapping[str, Any], out: Path | None) -> tuple[str, Path]:
        """Begin to train: the number of the run, and its folder.

        A folder that holds an unfinished run goes on from its last checkpoint.
        """
        known = _settings(self.app)
        _check_hidden(self.app)
        for name in settings:
            if name not in known:
                raise ConfigError(unknown("setting", name, known))
        if not self.services:
            raise DeployError(f"{self.app} is not up: {command_words('up', self.app)}")
        place = out.absolute() if out else self.app / "runs" / f"{datetime.now():%Y%m%d-%H%M%S}"
        all_nodes = {"clients": len(self.nodes)} if "clients" in known else {}
        chosen = {**all_nodes, **settings, "out": str(place)}
        file = self.folder / "run.toml"
        replace_file(file, [tomli_w.dumps(chosen).encode()])
        return self.flwr("run", self.app, run_config=file)["run-id"], place

    def follow(self, number: str, tell: Tell) -> str:
        """Tell what the server of a run says, until it ends; return how, in Flower's words."""
        command = [str(_tool("flwr")), "log", number, CONNECTION]
        env = {**self.environment, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as log:
            assert log.stdout is not None
            for line in log.stdout:
                if not line.startswith(NOISE):
                    tell(line.rstrip())
        if log.returncode:
            return "lost with the SuperLink"
        while not (status := self._status(number)).startswith("finished"):
            time.sleep(1)
        return status

    def down(self) -> list[str]:
        """Stop everything that `up` started and nothing else: the names of what ran."""
        running = self.services
        nodes = [each for each in running if each not in ("superlink", "proxy")]
        for names in (nodes, ["proxy"], ["superlink"]):  # so that the nodes can say goodbye
            keepers = {running[name].keeper for name in names if name in running}
            kept = [each for each in processes.found(self.folder) if each.pid in keepers]
            processes.end(kept, patience=2 * processes.PATIENCE)
        for _ in range(3):
            if not (left := processes.found(self.folder)):
                break
            processes.end(left)
        else:
            if left := processes.found(self.folder):
                raise DeployError(f"can't stop processes {', '.join(str(p.pid) for p in left)}")
        for file in (self.folder / "services").glob("*.json"):
            file.unlink(missing_ok=True)
        return list(running)

    # How it is done

    def flwr(self, *words: str | Path, run_config: Path | None = None) -> dict[str, Any]:
        """Call Flower's command line on this federation, and return what it answered."""
        flags = [] if run_config is None else ["--run-config", str(run_config)]
        command = [str(_tool("flwr")), *words, CONNECTION, *flags, "--format", "json"]
        env = {**self.environment, "COLUMNS": "1000"}  # or it breaks the lines of its messages
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        with suppress(json.JSONDecodeError):
            answer: dict[str, Any] = json.loads(done.stdout)
            if answer.get("success"):
                return answer
            raise DeployError(f"flwr {words[0]}: {answer.get('error-message', answer)}")
        raise DeployError(f"flwr {words[0]}: {done.stderr.strip() or done.stdout.strip()}")

    @property
    def environment(self) -> dict[str, str]:
        """With which `flwr` talks to this federation, and to nothing else."""
        return _environment(self.folder / "flwr")

    @property
    def _made(self) -> dict[str, Any]:
        file = self.folder / "federation.json"
        nothing = {"port": 0, "nodes": 0, "numbers": {}}
        return json.loads(file.read_text("utf-8")) if file.exists() else nothing

    def _status(self, number: str) -> str:
        return str(self.flwr("list", "--run-id", number)["runs"][0]["status"])

    def _start(self, nodes: int, port: int, tell: Tell) -> None:
        folder, superlink = self.folder, port + 1
        numbers = self._made["numbers"] if (folder / "superlink" / "state.db").exists() else {}
        certificate, key = server_certificate(folder, ["localhost", "127.0.0.1", "::1"])
        for each in ("superlink", "clients", "flwr", "nginx", "logs"):
            (folder / each).mkdir(exist_ok=True)
        connection = {
            "address": f"127.0.0.1:{superlink}",
            "root-certificates": str(folder / "ca.crt"),
        }
        config = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (folder / "flwr" / "config.toml").write_text(tomli_w.dumps(config), encoding="utf-8")
        (folder / "nginx.conf").write_text(nginx_config(folder, port, superlink), encoding="utf-8")

        tell("starting the SuperLink")
        command = [
            _tool("flower-superlink"), "--host", "127.0.0.1", "--port", superlink,
            "--ssl-ca-certfile", folder / "ca.crt", "--ssl-certfile", certificate,
            "--ssl-keyfile", key, "--database", folder / "superlink" / "state.db",
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        self._keep("superlink", command, folder / "superlink")
        self._wait_for("superlink", superlink)
        tell("starting the proxy")
        log = folder / "logs" / "nginx.log"
        self._keep("proxy", [nginx(), "-e", log, "-c", folder / "nginx.conf"], folder / "nginx")
        self._wait_for("proxy", port)
        self._enrol(nodes, port, numbers, tell)
        for i, node in enumerate(self.nodes):
            home = folder / "clients" / node.client
            about = {
                "client-id": node.client, "partition-id": i, "num-partitions": nodes,
                "state-dir": str(home / "state"),
            }  # fmt: skip
            (home / "node.toml").write_text(tomli_w.dumps(about), encoding="utf-8")
            command = [
                _tool("flower-supernode"), "--superlink", f"127.0.0.1:{port}",
                "--root-certificates", folder / "ca.crt",
                "--auth-supernode-private-key", home / "key",
                "--host", "127.0.0.1", "--port", node.port, "--node-config", home / "node.toml",
            ]  # fmt: skip
            self._keep(node.client, command, home)
        began = time.monotonic()
        while (count := list(self.online().values()).count("online")) < nodes:
            tell(f"waiting for the nodes: {count} of {nodes} online")
            if time.monotonic() - began > JOINING:
                missing = [client for client, how in self.online().items() if how != "online"]
                raise DeployError(
                    f"{missing[0]} did not come online: {self._last_words(missing[0])}"
                )
            time.sleep(1)

    def _enrol(self, nodes: int, port: int, numbers: dict[str, int], tell: Tell) -> None:
        """Tell the SuperLink the public key of each client that has no number there yet."""
        for i in range(nodes):
            home = self.folder / "clients" / (client := f"client-{i}")
            if client not in numbers:
                tell(f"enrolling {client}")
                home.mkdir(exist_ok=True)
                (home / "key").unlink(missing_ok=True)  # perhaps known already, under what number?
                public = node_key(home / "key")
                numbers[client] = self.flwr("supernode", "register", public)["node-id"]
            made = {"port": port, "nodes": nodes, "numbers": numbers}
            replace_file(self.folder / "federation.json", [json.dumps(made, indent=2).encode()])

    def _keep(self, name: str, command: Sequence[object], home: Path) -> None:
        # An app that was killed while it was unpacked would be taken for whole: unpack it again.
        anew = ["/bin/sh", "-c", 'rm -rf "$FLWR_HOME/apps" && exec "$@"', name]
        processes.start(self.folder, name, [*anew, *command], _environment(home), self.app)

    def _wait_for(self, service: str, port: int) -> None:
        """Until a program answers on its port, with the right certificate."""
        trust = ssl.create_default_context(cafile=self.folder / "ca.crt")
        began, before = time.monotonic(), self._restarts(service)
        while True:
            with (
                suppress(OSError),
                socket.create_connection(("127.0.0.1", port), timeout=5) as plain,
                trust.wrap_socket(plain, server_hostname="localhost"),
            ):
                return
            if self._restarts(service) > before or time.monotonic() - began > STARTING:
                raise DeployError(f"{service} does not start: {self._last_words(service)}")
            time.sleep(0.2)

    def _restarts(self, service: str) -> int:
        kept = processes.services(self.folder).get(service)
        return kept.restarts if kept else 0

    def _last_words(self, service: str) -> str:
        """The end of a program's log, and where the rest is."""
        file = self.folder / "logs" / f"{service}.log"
        lines = file.read_text("utf-8", "replace").split("\n") if file.exists() else []
        told = [line for line in lines if line.strip() and not line.startswith(f"{service} ended")]
        return f"{told[-1].strip() if told else 'it said nothing'} ({file})"


def _environment(home: Path) -> dict[str, str]:
    """For Flower's programs: their own folder, and no word to anyone outside."""
    beside = str(Path(sys.executable).parent)  # they call each other by name
    return {
        **os.environ,
        "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _tool(name: str) -> Path:
    file = Path(sys.executable).parent / name
    if not file.exists():
        raise DeployError(f"Flower is not installed beside {sys.executable}: {INSTALL}")
    return file


def _settings(app: Path) -> dict[str, Any]:
    """The settings of an app, in its `pyproject.toml`."""
    file = app / "pyproject.toml"
    try:
        found = tomllib.loads(file.read_text("utf-8"))["tool"]["flwr"]["app"]["config"]
    except FileNotFoundError:
        raise ConfigError(
            f"{app} is no app, it has no pyproject.toml: {command_words('new', app)}"
        ) from None
    except (KeyError, TypeError):
        raise ConfigError(f"{file} is not that of an app: no [tool.flwr.app.config]") from None
    except (ValueError, OSError) as error:
        raise ConfigError(f"can't read {file}: {error}") from None
    return dict(found)


def _check_hidden(app: Path) -> None:
    """Flower packs all of an app's folder that `.gitignore` does not name, and sends it out."""
    file = app / ".gitignore"
    lines = file.read_text("utf-8").split() if file.exists() else []
    for name in HIDDEN:
        if not {name, name.rstrip("/"), f"/{name}"} & set(lines):
            raise ConfigError(
                f"{file} must have a line '{name}': Flower sends all other files to the clients"
            )


def _check_ports(port: int, nodes: int) -> None:
    """Refuse to begin where a port is taken."""
    last = port + 1 + nodes
    if port < 1024 or last > 65535:
        raise ConfigError(f"--port must be within 1024 … {65535 - 1 - nodes}, got {port}")
    for each in range(port, last + 1):
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                plain.bind(("127.0.0.1", each))
            except OSError as error:
                raise DeployError(
                    f"port {each} can't be used ({error.strerror}); ports {port} … {last} are "
                    f"needed: choose others by --port"
                ) from None
