"""What has left a node so far, on the node's own disk, written before a reply leaves.

One line of JSON for each reply that depends on the node's data, over all runs: `noise` is the noise
multiplier z, or null for a reply in the clear. The ledger is about the data of the node: only a
node with new data may begin a new ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wecfl.channel.privacy import epsilon_of
from wecfl.errors import RunFolderError

__all__ = ["LEDGER_FILE", "Ledger", "Spent", "append_line"]

LEDGER_FILE = "ledger.jsonl"
"""In the `state-dir` of a node."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The totals of a ledger.

    >>> Spent(Counter({10.0: 1})).epsilon(1e-5) < Spent(Counter({10.0: 2})).epsilon(1e-5)
    True
    """

    noisy: Counter[float] = field(default_factory=Counter)
    """How many replies left with each noise multiplier."""
    clear: int = 0
    """How many replies left in the clear."""

    @property
    def replies(self) -> int:
        """All noisy replies."""
        return self.noisy.total()

    def epsilon(self, delta: float) -> float:
        """ε of all replies together; infinite if one was in the clear or without noise."""
        return float("inf") if self.clear else epsilon_of(self.noisy, delta)

    def plus(self, noise: float | None) -> Spent:
        """The totals after one more reply."""
        if noise is None:
            return Spent(self.noisy, self.clear + 1)
        return Spent(self.noisy + Counter({noise: 1}), self.clear)


class Ledger:
    """The replies of one node.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as place:
    ...     ledger = Ledger(Path(place) / LEDGER_FILE)
    ...     with ledger.open() as (spent, record):
    ...         record(10.0, {"run": "a"})
    ...     ledger.read().noisy
    Counter({10.0: 1})
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Spent:
        """The totals of the file as it is now."""
        if not self.path.exists():
            return Spent()
        noisy, clear = Counter[float](), 0
        text = self.path.read_bytes()
        # What follows the last line break was cut off while it was written, before its reply left.
        for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                noise = json.loads(line)["noise"]
                if noise is None:
                    clear += 1
                else:
                    noisy[float(noise)] += 1
            except (ValueError, KeyError, TypeError):
                raise RunFolderError(
                    f"line {number} of the ledger {self.path} is damaged: what has left this node "
                    f"is unknown, so nothing leaves it until its operator has repaired the line"
                ) from None
        return Spent(noisy, clear)

    @contextmanager
    def open(self) -> Iterator[tuple[Spent, Any]]:
        """The totals, and a function that adds a reply; other processes wait until the exit."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)

            def record(noise: float | None, about: Mapping[str, Any]) -> None:
                whole = self.path.read_bytes().rfind(b"\n") + 1
                os.ftruncate(descriptor, whole)  # what was cut off while it was written
                append_line(self.path, {"noise": noise, **about})

            yield self.read(), record
        finally:
            os.close(descriptor)


def append_line(path: Path, about: Mapping[str, Any]) -> None:
    """Add a line of JSON with the time to a file, and wait until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps({"when": now, **about}).encode() + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
