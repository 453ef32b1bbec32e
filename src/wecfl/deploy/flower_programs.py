"""Flower's own programs: their paths, the environment in which they run, and calls of `flwr`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w

from wecfl.errors import DeployError

__all__ = [
    "CONNECTION_NAME",
    "call_flwr",
    "flower_environment",
    "flower_program",
    "flwr_config",
    "guarded_server",
]

CONNECTION_NAME = "federation"
"""The name of the SuperLink in Flower's `config.toml`."""

CALL_TIMEOUT_SECONDS = 120.0
"""`flwr` must answer within this time; the SuperLink may be busy, and Python starts slowly."""

INSTALL_COMMAND = "pip install 'wecfl[flower]'"


def flower_program(name: str) -> Path:
    """The program `name`, which pip installs beside this Python."""
    file = Path(sys.executable).parent / name
    if not file.exists():
        raise DeployError(
            f"Flower is not installed beside {sys.executable}: install it with {INSTALL_COMMAND}"
        )
    return file


def guarded_server(name: str) -> list[str]:
    """The command that runs a server of Flower which other users of the machine can't reach."""
    flower_program(name)
    return [sys.executable, "-P", "-m", "wecfl_main.loopback_guard", name]


def flower_environment(home: Path) -> dict[str, str]:
    """The environment of a program that has the folder `home`, and sends nothing to others."""
    programs = str(Path(sys.executable).parent)  # they call each other by name
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def flwr_config(home: Path, superlink: int, ca: str) -> Path:
    """Write the file in `home` that tells `flwr` the SuperLink's address; return the file."""
    connection = {"address": f"127.0.0.1:{superlink}", "root-certificates": ca}
    config = {"superlink": {"default": CONNECTION_NAME, CONNECTION_NAME: connection}}
    home.mkdir(exist_ok=True)
    file = home / "config.toml"
    file.write_text(tomli_w.dumps(config), encoding="utf-8")
    return file


def call_flwr(
    home: Path, words: Sequence[str | Path], timeout: float = CALL_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Call `flwr` with these arguments, and return its answer; an error is a `DeployError`."""
    command = [flower_program("flwr"), *words, "--format", "json"]
    env = {**flower_environment(home), "COLUMNS": "1000"}  # or it breaks the lines of its messages
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise DeployError(
            f"flwr {words[0]}: the SuperLink has not answered within {timeout:g} s"
        ) from None
    with suppress(json.JSONDecodeError):
        answer: dict[str, Any] = json.loads(done.stdout)
        if answer.get("success"):
            return answer
        raise DeployError(f"flwr {words[0]}: {answer.get('error-message', answer)}")
    raise DeployError(f"flwr {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
