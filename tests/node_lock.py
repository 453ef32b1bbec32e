"""The lock of what a node's host installs: every package with its version and its hashes.

`make lock` runs this file, which writes `requirements-node.txt`; `wecfl deploy host` hands it out.
A digest of what it was made from stands in its first lines, so that `test_supply_chain.py` notices
without a network when it is out of date.
"""

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK_FILE = ROOT / "src" / "wecfl" / "deploy" / "templates" / "requirements-node.txt"
NODE_EXTRAS = ("flower", "privacy")

HEADER = """\
# What the host of a node installs: pip install --require-hashes -r requirements-node.txt
# Written by make lock, for Python 3.11 and later on any platform, from https://pypi.org.
# inputs: sha256:{digest}
"""


def requirements() -> list[str]:
    """The direct requirements of a node, as `pyproject.toml` and `constraints.txt` give them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    constraints = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return [
        *project["dependencies"],
        *(each for name in NODE_EXTRAS for each in extras[name]),
        *(line for line in constraints if line and not line.startswith("#")),
    ]


def digest() -> str:
    """A hash of all that the lock is made from."""
    return hashlib.sha256(json.dumps(requirements()).encode()).hexdigest()


def write(flags: list[str]) -> None:
    """Resolve the requirements and write the lock; versions that are in it stay if they can."""
    extras = [word for name in NODE_EXTRAS for word in ("--extra", name)]
    subprocess.run(
        [Path(sys.executable).parent / "uv", "pip", "compile", "pyproject.toml", *extras,
         "--constraints", "constraints.txt", "--generate-hashes", "--universal", "--quiet",
         "--python-version", "3.11", "--default-index", "https://pypi.org/simple",
         "--no-header", "--no-annotate", "--output-file", LOCK_FILE, *flags],
        cwd=ROOT, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    text = LOCK_FILE.read_text("utf-8")
    LOCK_FILE.write_text(HEADER.format(digest=digest()) + text, "utf-8")


if __name__ == "__main__":
    write(sys.argv[1:])
