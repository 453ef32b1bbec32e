"""Shows what a run prints and, while it prints nothing, what it waits for."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, Queue
from threading import Thread

from wecfl.errors import DeployError

__all__ = ["RunNews", "ShowLine", "follow_run"]

FLOWER_LINE_STARTS = ("\n", "\x1b[92mINFO", "Using SuperLink", "Successfully installed")
"""Lines of a run's log that begin so are Flower's, not the server app's."""

FLOWER_LEVEL = re.compile(r"^\x1b\[\d+m(\w+)\s*\x1b\[0m")
"""The level of a line, which Flower colors."""

RUN_START_SECONDS = 180.0
"""The server of a run must begin within this time."""

RUN_END_SECONDS = 60.0
"""When the log of a run has ended, the SuperLink must know within this time how the run did."""

QUIET_SECONDS = 60.0
"""While a run prints nothing, the user is told this often what it waits for."""

READER_SECONDS = 5.0
"""A program that was asked to end closes its output within this time."""

ShowLine = Callable[[str], None]
"""Shows the user one line: what is being done, or what a run prints."""

RunNews = Callable[[], tuple[str, str]]
"""Tells the status of a run, and what is wrong with the programs, which may be nothing."""


def follow_run(
    command: Sequence[str],
    env: Mapping[str, str],
    news: RunNews,
    show: ShowLine,
    *,
    quiet: float = QUIET_SECONDS,
    start: float = RUN_START_SECONDS,
    end: float = RUN_END_SECONDS,
) -> str:
    """Show what `command`, which follows a run's log, prints; return the run's last status.

    After every `quiet` seconds without a line, the user sees what `news` says. A run that has not
    begun after `start` seconds is an error. If the SuperLink died, the status is "lost with the
    SuperLink".
    """
    began, has_begun = time.monotonic(), False
    with _printed(command, env, quiet) as (log, lines):
        for line in lines:
            if line is None:
                status, problem = _asked(news)
                show(f"(still waiting: the run is {status}{problem and '; ' + problem})")
                overdue = time.monotonic() - began > start
                if overdue and not has_begun and status in ("pending", "starting"):
                    raise DeployError(
                        f"the server of the run has not begun within {start:g} s: "
                        f"{problem or 'see the log of the SuperLink'}"
                    )
            elif not line.startswith(FLOWER_LINE_STARTS):
                has_begun = True
                show(FLOWER_LEVEL.sub(r"\1", line.rstrip()))
        code = log.wait()
    if code:
        return "lost with the SuperLink"
    ended = time.monotonic()
    while not (status := _asked(news)[0]).startswith("finished"):
        if time.monotonic() - ended > end:
            return f"{status}, although its log has ended"
        time.sleep(min(1.0, end))
    return status


def _asked(news: RunNews) -> tuple[str, str]:
    """The news; that the SuperLink does not answer is news, too."""
    try:
        return news()
    except DeployError as error:
        return "unknown", str(error)


@contextmanager
def _printed(
    command: Sequence[str], env: Mapping[str, str], quiet: float
) -> Iterator[tuple[subprocess.Popen[str], Iterator[str | None]]]:
    """A program, and what it prints; None after each `quiet` seconds without a line."""
    printed: Queue[str | None] = Queue()

    def read() -> None:
        for line in process.stdout or ():
            printed.put(line)
        printed.put(None)

    def lines() -> Iterator[str | None]:
        while True:
            try:
                if (line := printed.get(timeout=quiet)) is None:
                    return
                yield line
            except Empty:
                yield None

    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        reader = Thread(target=read, daemon=True)
        reader.start()
        try:
            yield process, lines()
        finally:
            process.terminate()
            reader.join(READER_SECONDS)
