"""The proxy in front of a SuperLink: nginx, configured to pass only the calls of nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from wecfl.errors import ConfigError, DeployError

__all__ = ["nginx", "nginx_config", "render"]

NGINX_TEMP_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""nginx makes these folders when it starts; all but the first two only if built with the module."""

templates = Environment(
    loader=PackageLoader("wecfl.deploy"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def render(name: str, **values: object) -> str:
    """The text of a file of `templates/` with these values."""
    for value in values.values():
        if isinstance(value, str | Path) and set(str(value)) & set('"$\\\n%'):
            raise ConfigError(
                f"can't use '{value}' in {name}: it must not contain any of \" $ \\ %"
            )
    return templates.get_template(name).render(values)


def nginx() -> Path:
    """The path of the system's nginx."""
    places = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    if not (found := shutil.which("nginx", path=places)):
        raise DeployError(
            "nginx is not installed; it lets only the nodes reach the SuperLink: "
            "'apt install nginx-light' on Debian or Ubuntu"
        )
    return Path(found)


def nginx_config(folder: Path, port: int, superlink: int) -> str:
    """The configuration for loopback. nginx writes only to `folder`, so it needs no root."""
    built = subprocess.run([nginx(), "-V"], capture_output=True, text=True, check=True).stderr
    return render(
        "nginx.conf",
        folder=folder,
        user="root" if os.geteuid() == 0 else "",
        temporary=[
            name for name in NGINX_TEMP_FOLDERS if f"--without-http_{name}_module" not in built
        ],
        listen=f"127.0.0.1:{port}",
        host="localhost",
        superlink=superlink,
        certificate=folder / "server.crt",
        key=folder / "server.key",
        ca=folder / "ca.crt",
    )
