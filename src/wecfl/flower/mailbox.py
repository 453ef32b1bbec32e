"""Takes replies out of a grid one by one, so that none can delay, destroy or replace another.

Flower's own call returns all replies at once, and waits up to two hours until the last part of each
has come: a client that never finishes its upload would stop the run. If one reply can't be
unpacked, the call ends with an exception, and the others are lost. And each reply says itself which
message it answers, so one client could answer for another. Here each reply is fetched on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from wecfl.flower.messages import Refused

__all__ = ["PATIENCE_SECONDS", "Delivery", "Mailbox"]

Delivery = Message | Refused
"""A reply, or why there is none that can be read."""

PATIENCE_SECONDS = 1.0
"""A reply that takes longer to fetch is fetched on the side, and taken when it is whole."""


class Mailbox:
    """The replies to messages that were pushed to a grid.

    An error of the transport is raised. Any other error in fetching a reply comes from the content
    of the reply, which is then refused.
    """

    def __init__(self, grid: Grid, patience: float = PATIENCE_SECONDS) -> None:
        self._grid, self._patience = grid, patience
        self._fetches: dict[str, _Fetch] = {}

    def take(self, numbers: Iterable[str]) -> dict[str, Delivery]:
        """The replies to these messages that have arrived, by the number of the message."""
        taken: dict[str, Delivery] = {}
        for number in numbers:
            if (fetch := self._fetches.get(number)) is None:
                fetch = self._fetches[number] = _Fetch(self._grid, number)
                fetch.start()
                fetch.join(self._patience)
            if fetch.is_alive():
                continue
            del self._fetches[number]
            if isinstance(fetch.error, httpx.HTTPError | OSError):
                raise fetch.error
            if fetch.error is not None:
                what = f"{type(fetch.error).__name__}: {fetch.error}"
                taken[number] = Refused(f"its reply can't be unpacked: {what}")
            elif fetch.came:
                taken[number] = fetch.came[0]
        return taken

    def forget(self, numbers: Iterable[str]) -> None:
        """Stop waiting for these replies; a fetch that has begun ends on its own."""
        for number in numbers:
            self._fetches.pop(number, None)


class _Fetch(Thread):
    """Fetches one reply in a daemon thread: a reply that never ends must not stop our exit."""

    def __init__(self, grid: Grid, number: str) -> None:
        super().__init__(daemon=True)
        self._grid, self._number = grid, number
        self.came: list[Message] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.came = list(self._grid.pull_messages([self._number]))
        except Exception as error:
            self.error = error
