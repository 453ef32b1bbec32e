"""The files that a federation needs on real hosts: certificates, proxy, systemd units."""

from __future__ import annotations

import re
from pathlib import Path

from wecfl.deploy.certificates import server_certificate
from wecfl.deploy.flower_programs import flwr_config
from wecfl.deploy.proxy import render, reply_limits
from wecfl.enrolment import DEFAULT_MAX_REPLY, ENROLMENT_FILE, Enrolment
from wecfl.errors import ConfigError
from wecfl.folder.files import replace_file

__all__ = ["host_files"]

HOST_TEMPLATES = {
    "nginx.conf": "proxy.conf",
    "Caddyfile": "Caddyfile",
    "wecfl-superlink.service": "wecfl-superlink.service",
    "wecfl-supernode@.service": "wecfl-supernode@.service",
    "client.toml": "client.toml",
    "policy.toml": "policy.toml",
    "requirements-node.txt": "requirements-node.txt",
}
"""The files that are written, and the template of each."""


def host_files(
    folder: Path, name: str, port: int = 9443, max_reply: int = DEFAULT_MAX_REPLY
) -> list[Path]:
    """Write the files of a federation whose nodes reach the server as `name`; return their paths.

    An authority that the folder already has (`ca.key`) is kept, and so are the enrolled clients;
    everything else is made again. A reply may have at most `max_reply` bytes.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     made = host_files(Path(place) / "host", "fl.example.org")
    ...     "server_name fl.example.org;" in made[0].read_text()
    True
    """
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", name):
        raise ConfigError(f"--name must be a host name or an IPv4 address, got '{name}'")
    if not 0 < port < 65535:
        raise ConfigError(f"--port must be within 1 … 65534, got {port}")
    limits = reply_limits(max_reply)
    try:
        known = (folder / "ca.key").exists()
        if not known and folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"{folder} is not empty: choose a new folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"can't write {folder}: {error.strerror or error}") from None
    place = "/etc/wecfl"
    values = {
        "listen": str(port), "host": name, "port": port, "superlink": port + 1,
        "config": place, "state": "/var/lib/wecfl", "venv": "/opt/wecfl",
        "ca": f"{place}/ca.crt", "certificate": f"{place}/server.crt", "key": f"{place}/server.key",
        "enrolled": f"{place}/{ENROLMENT_FILE}", **limits,
    }  # fmt: skip
    made = []
    for file, template in HOST_TEMPLATES.items():
        made.append(folder / file)
        made[-1].write_text(render(template, **values), encoding="utf-8")
    listed = folder / ENROLMENT_FILE
    before = Enrolment.read(listed) if listed.exists() else Enrolment()
    made.append(listed)
    replace_file(listed, [before.model_copy(update={"max_reply": max_reply}).text.encode()])
    made.append(flwr_config(folder / "flwr", port + 1, f"{place}/ca.crt"))
    server_certificate(folder, [name, "localhost", "127.0.0.1"])
    keys = ("ca.crt", "ca.key", "server.crt", "server.key")
    return [*made, *(folder / key for key in keys)]
