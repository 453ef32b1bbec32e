"""`wecfl deploy`: a Flower federation from the command line."""

from __future__ import annotations

import signal
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from cyclopts import App, Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from wecfl.cli import terminal
from wecfl.deploy.app_folder import deploy_command, new_app
from wecfl.enrolment import DEFAULT_MAX_REPLY, DEFAULT_MAX_SAMPLES, ENROLMENT_FILE, MAX_SAMPLES
from wecfl.errors import ConfigError, DeployError, RunFolderError

if TYPE_CHECKING:
    from wecfl.deploy.deployment import Deployment

__all__ = ["deploy"]

MAX_REPLY_HELP = (
    "The largest reply of a client, in bytes. A reply needs four bytes for each parameter of the "
    "model, and 10,000 more."
)

deploy = App(name="deploy", help="Train with real clients: a Flower federation.")
"""The command `wecfl deploy` with its subcommands."""


@deploy.command
def new(app: Path, /) -> None:
    """Write a Flower app into a new folder; you then fill in your data and your model.

    Parameters
    ----------
    app
        The new folder. The app gets its name.

    """
    task = next(file for file in new_app(app) if file.name == "task.py")
    terminal.show(f"fill in     {task}")
    terminal.show(f"try it      {deploy_command('up', app)}")


@deploy.command
def up(
    app: Path,
    /,
    *,
    nodes: Annotated[int, Parameter(help="How many clients to start.")] = 4,
    port: Annotated[
        int,
        Parameter(
            help="The port of the proxy. The SuperLink and the nodes use the ports after it."
        ),
    ] = 9443,
    max_reply: Annotated[int, Parameter(help=MAX_REPLY_HELP)] = DEFAULT_MAX_REPLY,
    max_samples: Annotated[
        int, Parameter(help="The largest number of samples that a client may say it has.")
    ] = DEFAULT_MAX_SAMPLES,
) -> None:
    """Start a whole federation on this machine: SuperLink, proxy and nodes, with TLS and keys.

    It runs until you call wecfl deploy down, even if you close the terminal. All programs listen on
    loopback only. The folder .federation inside the app's folder holds the keys, the database and
    what the clients keep.

    Parameters
    ----------
    app
        The folder of an app that wecfl deploy new has made.

    """
    if nodes < 1:
        raise ConfigError(f"--nodes must be at least 1, got {nodes}")
    if not 1 <= max_samples <= MAX_SAMPLES:
        raise ConfigError(f"--max-samples must lie between 1 and {MAX_SAMPLES}, got {max_samples}")
    federation = _deployment(app)
    with _interruptible(), terminal.console.status("") as status:
        federation.up(
            nodes,
            port,
            lambda text: status.update(escape(text)),
            max_reply=max_reply,
            max_samples=max_samples,
        )
    names = [node.client for node in federation.nodes]
    terminal.show(f"SuperLink   127.0.0.1:{port + 1}, for this user of this machine only")
    terminal.show(f"proxy       127.0.0.1:{port}, for nodes only")
    terminal.show(f"nodes       {len(names)} online: {', '.join(names)}")
    terminal.show("")
    terminal.show(f"train       {deploy_command('run', app)}")
    terminal.show(f"watch       {deploy_command('status', app, '--watch')}")
    terminal.show(f"stop        {deploy_command('down', app)}")


@deploy.command
def run(
    app: Path,
    /,
    *settings: Annotated[
        str, Parameter(help="Settings of the app for this run, such as rounds=3 method=ifca.")
    ],
    out: Annotated[
        Path | None,
        Parameter(
            help="The run folder (default: a new one in the folder runs/ of the app). If it holds "
            "an unfinished run, that run continues."
        ),
    ] = None,
) -> None:
    """Train on a federation that is up, and show what the server prints.

    Ctrl-C ends the output; the training goes on.

    Parameters
    ----------
    app
        The folder of the app.

    """
    federation = _deployment(app)
    chosen = dict(map(_setting, settings))
    number, place = federation.begin(chosen, out)
    terminal.show(f"run {number}, folder {place}")
    try:
        ended = federation.follow(number, terminal.show)
    except KeyboardInterrupt:
        terminal.say(f"the run continues; to watch it: {deploy_command('status', app, '--watch')}")
        sys.exit(130)
    if not ended.endswith("completed"):
        again = deploy_command("run", app, *settings, "--out", str(place))
        raise DeployError(f"the run has not completed ({ended}): to continue it, {again}")
    terminal.show(f"run folder: {place}")


@deploy.command
def status(
    app: Path,
    /,
    *,
    watch: Annotated[
        bool, Parameter(help="Show it again every two seconds, until Ctrl-C.", negative="")
    ] = False,
) -> None:
    """Show which programs run, which nodes are online, and how far the last run is.

    Parameters
    ----------
    app
        The folder of the app.

    """
    federation = _deployment(app)
    if not watch:
        terminal.console.print(_status(federation, _online(federation)))
        return
    with suppress(KeyboardInterrupt), Live(console=terminal.console, auto_refresh=False) as live:
        for tick in count():
            if tick % 15 == 0:  # this takes seconds, because it starts a process
                online = _online(federation)
            live.update(_status(federation, online), refresh=True)
            time.sleep(2)


@deploy.command
def down(app: Path, /) -> None:
    """Stop everything that wecfl deploy up has started for this app, and nothing else.

    The keys, the database and what the clients keep are left in place for the next time.

    Parameters
    ----------
    app
        The folder of the app.

    """
    with terminal.console.status("stopping"):
        names = _deployment(app).down()
    terminal.show(f"stopped: {', '.join(names)}" if names else f"nothing of {app} was running")


@deploy.command
def host(
    folder: Path,
    /,
    *,
    name: Annotated[str, Parameter(help="The host name by which the nodes reach the server.")],
    port: Annotated[
        int, Parameter(help="The port of the proxy. The SuperLink uses the port after it.")
    ] = 9443,
    max_reply: Annotated[int, Parameter(help=MAX_REPLY_HELP)] = DEFAULT_MAX_REPLY,
) -> None:
    """Write the files for real hosts: certificates, a proxy for nginx or Caddy, systemd units.

    The server's certificate is valid for a year. To renew it, give the same command again; the
    clients that are enrolled stay enrolled.

    Parameters
    ----------
    folder
        A new folder, or the one that this command wrote before. Keep its file ca.key secret:
        whoever has it can pose as the server.

    """
    made = _extra("wecfl.deploy.host_files").host_files(folder, name, port, max_reply)
    terminal.show(f"written to {folder}: {', '.join(file.name for file in made)}")


@deploy.command
def enrol(
    place: Path,
    name: str,
    key: Path,
    /,
    *,
    samples: Annotated[
        int, Parameter(help="The largest number of samples that the client may say it has.")
    ],
    number: Annotated[
        int | None,
        Parameter(
            help="The partition-id of its node, if the node has one (default: the client is known "
            "by its name)."
        ),
    ] = None,
) -> None:
    """Enrol a client: its key at the SuperLink, its name and its size on the operator's list.

    A run refuses a client that is not on the list, and one that gives another name or a larger
    number of samples than the list says. The run reads the list when it begins or continues. To
    change the name or the size of a client, enrol its key again.

    Parameters
    ----------
    place
        The folder that wecfl deploy host wrote, on the server's host; or the folder of an app that
        wecfl deploy up has started on this machine.
    name
        The client's name, the client-id of its node.
    key
        The public key of its node (.pub).

    """
    module = _extra("wecfl.deploy.enrol")
    folder = module.federation_folder(place)
    client = module.enrol(folder, name, key, samples, number)
    terminal.show(
        f"enrolled    {name}, node {client.node}, key {client.key}, {samples} samples at most"
    )
    terminal.show(f"list        {folder / ENROLMENT_FILE}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, and ignore all three while the program cleans up."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(*_: object) -> NoReturn:
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [signal.signal(number, stop) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _extra(module: str) -> Any:
    """Import a module that needs an extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'wecfl[flower]'") from None


def _deployment(app: Path) -> Deployment:
    made: type[Deployment] = _extra("wecfl.deploy.deployment").Deployment
    if not app.is_dir():
        raise ConfigError(f"there is no folder {app}: to make an app, {deploy_command('new', app)}")
    return made(app)


def _setting(text: str) -> tuple[str, Any]:
    """A setting with its value in TOML; a value that is not TOML is taken as a string.

    >>> _setting("rounds=3"), _setting("method=ifca"), _setting('lr = "0.1"')
    (('rounds', 3), ('method', 'ifca'), ('lr', '0.1'))
    """
    name, equals, value = (part.strip() for part in text.partition("="))
    if not name or not equals:
        raise ConfigError(f"a setting is written as name=value, got '{text}'")
    try:
        return name, tomllib.loads(f"value = {value}")["value"]
    except ValueError:  # no TOML, or an integer of more digits than Python converts
        return name, value


def _status(federation: Deployment, online: Mapping[str, str]) -> RenderableType:
    """A table of the programs, and a few lines about the last run."""
    services = federation.services
    table = Table(header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    for head in ("", "process", "since", "restarts", "at the SuperLink"):
        table.add_column(head, justify="right" if head in ("process", "restarts") else "left")
    for name, service in services.items():
        process = service.process
        state = "; ".join(
            filter(None, [online.get(name, ""), service.ill and f"ill: {service.ill}"])
        )
        since = datetime.fromtimestamp(process.create_time()) if process else None
        table.add_row(
            name,
            str(process.pid) if process else "-",
            f"{since:%Y-%m-%d %H:%M:%S}" if since else f"ended ({service.exit}), will start again",
            str(service.restarts),
            escape(state),
        )
    lines = [] if services else [f"not up; to start it: {deploy_command('up', federation.app)}"]
    return Group(
        *([table] if services else []), *map(escape, lines), *map(escape, _run(federation))
    )


def _online(federation: Deployment) -> dict[str, str]:
    """The state of each node at the SuperLink, if it answers."""
    if not federation.services:
        return {}
    try:
        return federation.online()
    except DeployError:
        return {node.client: "no answer" for node in federation.nodes}


def _run(federation: Deployment) -> list[str]:
    """How far the last run is, and which replies its last round refused."""
    from wecfl.folder.readers import read_config, read_metrics
    from wecfl.report.sentences import round_words

    if not (place := federation.last_run):
        return []
    try:
        records, config = read_metrics(place), read_config(place)
    except RunFolderError:
        records, config = [], {}
    if not records:
        return [f"run {place}: no round yet"]
    last = records[-1]
    report = last.get("network", {})
    refused = report.get("refused", [])
    return [
        f"run {place}",
        f"round {last['round']} of {config['rounds']}: {round_words(last)}",
        *([_privacy(report["privacy"])] if "privacy" in report else []),
        *(f"refused {who}: {why}" for who, why in refused),
    ]


def _privacy(spent: Mapping[str, Any]) -> str:
    """The largest privacy budget that a client's ledger has come to."""
    if spent["epsilon"] is None:
        return "privacy: none, the replies are clipped but have no noise"
    return f"privacy: ε = {spent['epsilon']:.3g} after {spent['replies']} replies of a client"
