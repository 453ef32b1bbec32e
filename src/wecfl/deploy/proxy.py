"""The proxy in front of a SuperLink: nginx with a configuration that lets only nodes through."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from wecfl.errors import ConfigError, DeployError

__all__ = ["nginx", "nginx_config", "render"]

TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""Folders that nginx makes as it starts, each but the first two only if it was built for it."""

templates = Environment(
    loader=PackageLoader("wecfl.deploy"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def render(name: str, **values: object) -> str:
    """A file of `templates/`, filled in."""
    for value in values.values():
        if isinstance(value, str | Path) and set(str(value)) & set('"$\\\n%'):
            raise ConfigError(f"can't use '{value}' in {name}: it holds one of \" $ \\ %")
    return templates.get_template(name).render(values)


def nginx() -> Path:
    """Where the system's nginx is."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/opt/homebrew/bin"
    if not (found := shutil.which("nginx", path=places)):
        raise DeployError(
            "nginx, which keeps everyone but the nodes from the SuperLink, is not installed: "
            "'apt install nginx-light' on Debian or Ubuntu, 'brew install nginx' on macOS"
        )
    return Path(found)


def nginx_config(folder: Path, port: int, superlink: int) -> str:
    """For loopback, with all that nginx writes in `folder`: it need not be run by root."""
    built = subprocess.run([nginx(), "-V"], capture_output=True, text=True, check=True).stderr
    return render(
        "nginx.conf",
        folder=folder,
        user="root" if os.geteuid() == 0 else "",
        temporary=[each for each in TEMPORARY if f"--without-http_{each}_module" not in built],
        listen=f"127.0.0.1:{port}",
        host="localhost",
        superlink=superlink,
        certificate=folder / "server.crt",
        key=folder / "server.key",
        ca=folder / "ca.crt",
    )
