"""A program that ends the processes of a Ray that was started for a run, after the run has ended.

If the run is killed, Ray ends its own processes, except two agents: for a minute, with open ports,
these try to report the death to a server that is dead too. The run holds the other end of this
program's input, so the input ends with the run, however it ends. Each line of the input is the
number of a process and the time when it began, which distinguishes it from a later process with the
same number. The program is run by its path and imports nothing of `wecfl`, so that it stays small.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import psutil

__all__ = ["main"]


def main() -> None:
    """Wait for the end of the input, and kill the processes that still run."""
    for number, began in [line.split() for line in sys.stdin]:
        with suppress(psutil.Error):
            process = psutil.Process(int(number))
            if process.create_time() == float(began):
                process.kill()


if __name__ == "__main__":
    main()
