"""The proxy in front of a SuperLink: nginx, configured to pass only the calls of nodes."""

from __future__ import annotations

import os
import shutil
import subprocess
from math import ceil
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from wecfl.enrolment import DEFAULT_MAX_REPLY
from wecfl.errors import ConfigError, DeployError

__all__ = ["nginx", "nginx_config", "render", "reply_limits"]

NGINX_TEMP_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
"""nginx makes these folders when it starts; all but the first two only if built with the module."""

FLOWER_PART_BYTES = 5 * 2**20
"""Flower sends larger arrays in parts of this size, each with a call of its own."""

PART_OVERHEAD_BYTES = 2**16
"""What a call adds to such a part takes less."""

REPLIES_PER_MINUTE = 6
"""How many replies of full size a node can store in a minute."""

MIN_REPLY_BYTES, MAX_REPLY_BYTES = 20_000, 4 * 10**9
"""The least is what a reply takes beside its arrays, the most a billion parameters."""

SMALL_CALLS = 50
"""A reply takes fewer calls beside the parts of its arrays."""

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
            "nginx is not installed, without which others could reach the SuperLink: "
            "'apt install nginx-light' on Debian or Ubuntu"
        )
    return Path(found)


def reply_limits(max_reply: int) -> dict[str, int]:
    """The limits that the proxy sets to a node, for replies of at most this number of bytes.

    >>> reply_limits(16_000_000)
    {'max_reply': 16000000, 'part_bytes': 5308416, 'parts': 4, 'parts_per_minute': 24, 'calls': 54}
    """
    if not MIN_REPLY_BYTES <= max_reply <= MAX_REPLY_BYTES:
        raise ConfigError(
            f"--max-reply must lie between {MIN_REPLY_BYTES} and {MAX_REPLY_BYTES} bytes, got "
            f"{max_reply}"
        )
    parts = ceil(max_reply / FLOWER_PART_BYTES)
    return {
        "max_reply": max_reply,
        "part_bytes": min(max_reply, FLOWER_PART_BYTES + PART_OVERHEAD_BYTES),
        "parts": parts,
        "parts_per_minute": REPLIES_PER_MINUTE * parts,
        "calls": SMALL_CALLS + parts,
    }


def nginx_config(
    folder: Path, port: int, superlink: int, max_reply: int = DEFAULT_MAX_REPLY
) -> str:
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
        **reply_limits(max_reply),
    )
