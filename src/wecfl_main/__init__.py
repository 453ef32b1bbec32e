"""The entry point of the command `wecfl`, outside the package, whose imports take a second.

Ctrl-C during the imports ends in the same line and exit code as later. The process stops at once:
nothing has begun yet, and an exception could be swallowed by a `try` in one of the libraries.
"""

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Load the command line and run it."""
    before = signal.getsignal(signal.SIGINT)
    if (
        before is signal.default_int_handler
    ):  # unless it is ignored, as in background jobs of a shell
        signal.signal(signal.SIGINT, _stop)
    from wecfl.cli import main as command  # noqa: PLC0415

    signal.signal(signal.SIGINT, before)
    command()


def _stop(signum: int, frame: FrameType | None) -> None:
    os.write(2, b"wecfl: interrupted\n")
    os._exit(130)
