"""The entry point of the command `wecfl`, outside the package, so that it is there before imports.

Ctrl-C during an import ends in the same line and exit code as later. The process stops at once: a
command imports first and works then, and an exception could be swallowed by a `try` in one of the
libraries.
"""

import os
import signal
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Load the command line and run it."""
    # unless it is ignored, as in background jobs of a shell
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)
    from wecfl.cli import main as command  # noqa: PLC0415

    command()


def _stop(signum: int, frame: FrameType | None) -> None:
    """Stop at once if a module is being imported; otherwise interrupt, as Python does."""
    above = frame
    while above:
        if above.f_code.co_filename == "<frozen importlib._bootstrap>":
            os.write(2, b"wecfl: interrupted\n")
            os._exit(130)
        above = above.f_back
    signal.default_int_handler(signum, frame)
