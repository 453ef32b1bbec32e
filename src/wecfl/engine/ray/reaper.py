"""A program that ends the processes of a Ray which was started for a run, when that run has ended.

Ray ends its own processes if the run is killed, except for two agents, which try for a minute to
report the death to a server that is dead as well, with their ports open. The run holds the other
end of this program's input, so the input ends with the run, however it ends. Each line of it is the
number of a process and the time when it began, by which a later process of that number is told
apart. It is run by its path and imports nothing of `wecfl`, so that it stays small.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import psutil

__all__ = ["main"]


def main() -> None:
    """Wait for the end of the input, and kill those of the processes that are left."""
    for number, began in [line.split() for line in sys.stdin]:
        with suppress(psutil.Error):
            process = psutil.Process(int(number))
            if process.create_time() == float(began):
                process.kill()


if __name__ == "__main__":
    main()
