"""The command `wecfl` before it is loaded: outside the package, whose imports take a second.

Ctrl-C during these ends in the same line and exit code as later. Nothing has begun yet, so the
process just stops; an exception could be lost in one of the libraries' own `try`.
"""

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Load the command line and run it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where a shell's background job ignores it
        signal.signal(signal.SIGINT, _stop)
    from wecfl.cli import main as command  # noqa: PLC0415

    signal.signal(signal.SIGINT, before)
    command()


def _stop(signum: int, frame: FrameType | None) -> None:
    os.write(2, b"wecfl: interrupted\n")
    os._exit(130)
