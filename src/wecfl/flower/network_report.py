"""What happened on the network, for the record of a round, the log and the audit file."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from flwr.app import Message

from wecfl.channel.privacy import Privacy
from wecfl.flower.ledger import append_line
from wecfl.printing import log, printable
from wecfl.runs.json_values import json_number

__all__ = ["NetworkReport", "News"]

MAX_REASON_CHARACTERS = 300

NEWS_SECONDS = 30.0
"""While the server waits for clients, it says so this often."""


class NetworkReport:
    r"""Collects what happened to messages since the last call of `take`.

    The file `audit` gets one line for each message, at once. Text that comes from clients is cut,
    and its control characters are shown as escapes.

    >>> report = NetworkReport()
    >>> report.refuse("ward-1", "NaN in \x1b[31mred")
    >>> report.take()
    {'refused': [['ward-1', 'NaN in \\x1b[31mred']]}
    """

    def __init__(self, privacy: Privacy | None = None, audit: Path | None = None) -> None:
        self._privacy, self._audit_file = privacy, audit
        self._entries: dict[str, Any] = {}

    def take(self) -> dict[str, Any]:
        """The report up to now; a new one begins."""
        entries, self._entries = self._entries, {}
        return entries

    def greet(self, client: str, message: Message, *, joined: bool, samples: int) -> None:
        """Count a client that introduced itself; `joined`: it was not known before."""
        if joined:
            self._add("joined", client)
        log.info("wecfl: client %s is online, with %d samples", client, samples)
        self._audit(client, message, "greeted")

    def use(self, client: str, message: Message, metrics: Mapping[str, float]) -> None:
        """Count a reply that is used."""
        if metrics.get("restarted"):
            self._add("restarted", client)
            log.warning("wecfl: client %s has lost its state and starts without it", client)
        if self._privacy is not None:
            self._add_spent(metrics)
        self._audit(client, message, "used")

    def refuse(self, sender: str, reason: str, message: object = None) -> None:
        """Count a reply that is refused; `message` is the reply, if it could be unpacked."""
        line = printable(reason)[:MAX_REASON_CHARACTERS]
        log.warning("wecfl: refused a reply of %s: %s", sender, line)
        self._add("refused", [sender, line])
        self._audit(sender, message, f"refused: {line}")

    def count_late(self) -> None:
        """Count a reply that came after its round had ended."""
        self._entries["late"] = self._entries.get("late", 0) + 1

    def _add(self, name: str, entry: object) -> None:
        self._entries.setdefault(name, []).append(entry)

    def _add_spent(self, metrics: Mapping[str, float]) -> None:
        """Keep the largest totals of the clients' ledgers; an infinite ε is None."""
        before = self._entries.get("privacy", {"replies": 0, "epsilon": 0.0})
        known = inf if before["epsilon"] is None else before["epsilon"]
        epsilon = max(known, metrics.get("epsilon", inf))
        self._entries["privacy"] = {
            "replies": max(before["replies"], int(metrics.get("released", 0))),
            "epsilon": json_number(epsilon),
        }

    def _audit(self, sender: str, message: object, outcome: str) -> None:
        if self._audit_file is None:
            return
        about: dict[str, Any] = {"from": sender}
        if isinstance(message, Message):
            records = message.content.array_records.values() if message.has_content() else ()
            about |= {
                "kind": message.metadata.message_type,
                "round": message.metadata.group_id,
                "bytes": sum(len(array.data) for each in records for array in each.values()),
            }
        append_line(self._audit_file, {**about, "outcome": outcome})


class News:
    """Logs what the server waits for, but not too often."""

    def __init__(self, every: float = NEWS_SECONDS) -> None:
        self._every, self._told = every, monotonic()

    def tell(self, text: str, *values: object) -> None:
        """Log this, unless something was logged a short time ago."""
        if monotonic() - self._told >= self._every:
            self._told = monotonic()
            log.info(f"wecfl: {text}", *values)
