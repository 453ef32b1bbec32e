"""How a program is run at its clients: what they receive, what they keep, and what they reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wecfl.core.program import Field, Job, ReplyAndMemory, Sent, Site, private_columns
from wecfl.core.types import Bool, Int, Table
from wecfl.errors import ConfigError

__all__ = ["perform"]


def perform(job: Job, site: Site, sent: Sent, memory: Table) -> ReplyAndMemory:
    """Run a program for its clients, and return their replies and memory (n, …).

    A model that arrives is completed with the client's private columns. Memory that starts from the
    received model does so at the first contact (`begun` says which clients have had one), and again
    after a result that is not finite. Such a result is sent nevertheless, and the server refuses
    it.
    """
    n = len(site.sizes)
    private, fresh = private_columns(site.layout, job.shared), _FreshMemory.of(job, site, sent)
    begun = np.asarray(memory.get("begun", np.ones(n, np.bool_)), np.bool_)
    own = dict(sent.own)
    if private is not None and "model" in own:
        own["model"] = _with_private(own["model"], private, begun, memory)
    kept = fresh.completing(memory, begun)
    reply, after = job.program(site, Sent(own, sent.common), kept, job.plan)
    if missing := {*job.program.replies} ^ {*reply}:
        raise ConfigError(
            f"the program {job.program.name} must reply exactly the fields that it declares, but "
            f"these are missing or not declared: {', '.join(sorted(missing))}"
        )
    if not job.keep:
        return reply, {}
    if private is not None:
        own_columns = reply["model"][:, private] if "model" in reply else kept["private"]
        after = {**after, "private": own_columns}
    results = [rows for rows in reply.values() if rows.dtype.kind == "f"]
    bad = ~_finite(n, results + [after[name] for name in fresh.received if name in after])
    if bad.any():
        after = fresh.instead_of(after, bad)
    if fresh.received:
        after["begun"] = np.ones(n, np.bool_)
    return reply, after


def _with_private(model: NDArray[Any], private: Int, begun: Bool, memory: Table) -> NDArray[Any]:
    """The models that were sent with what clients have kept in their private columns.

    It is a copy, so that private columns are not sent.
    """
    completed = model.copy()
    if "private" in memory:
        completed[np.ix_(begun, private)] = memory["private"][begun]
    return completed


@dataclass(frozen=True, slots=True, eq=False)
class _FreshMemory:
    """What memory is at the first contact, and again after a result that is not finite."""

    fields: Mapping[str, Field]
    sizes: Mapping[str, int | tuple[int, ...]]
    n: int
    received: Table
    """(n, …), the fields that start as the model that was received."""

    @classmethod
    def of(cls, job: Job, site: Site, sent: Sent) -> _FreshMemory:
        """The memory that a program declares, for the clients of a site."""
        fields, private = job.keeps(site.layout), private_columns(site.layout, job.shared)
        model = sent.own.get("model")
        # Copies, since a program may overwrite what it received.
        received = {
            name: np.array(model[:, private] if name == "private" else model)
            for name, field in fields.items()
            if field.start == "received" and model is not None
        }
        return cls(fields, job.sizes(site.layout, sent), len(site.sizes), received)

    def start(self, name: str) -> NDArray[Any]:
        """(n, …), one field: what was received, or zeros."""
        if name in self.received:
            return self.received[name]
        return np.zeros((self.n, *self.fields[name].sized(self.sizes)), self.fields[name].dtype)

    def completing(self, memory: Table, begun: Bool) -> dict[str, NDArray[Any]]:
        """All fields: the memory, and what is fresh where there is none or a client begins."""
        kept = {name: memory[name] if name in memory else self.start(name) for name in self.fields}
        if not begun.all():
            kept |= {
                name: np.where(_along(begun, rows), kept[name], rows)
                for name, rows in self.received.items()
            }
        return kept

    def instead_of(self, after: Table, bad: Bool) -> dict[str, NDArray[Any]]:
        """The new memory, fresh for clients with a bad result."""
        return {
            name: np.where(_along(bad, rows), self.start(name), rows)
            for name, rows in after.items()
        }


def _finite(n: int, tables: Sequence[NDArray[Any]]) -> Bool:
    """(n,), the clients with finite rows. Sums of float32 numbers can't overflow in float64."""
    finite = np.ones(n, np.bool_)
    with np.errstate(invalid="ignore"):
        for rows in tables:
            finite &= np.isfinite(rows.reshape(n, -1).sum(axis=1, dtype=np.float64))
    return finite


def _along(who: Bool, rows: NDArray[Any]) -> Bool:
    """(n, 1, …), with as many axes as `rows`, so that it selects rows."""
    return who.reshape(-1, *[1] * (rows.ndim - 1))
