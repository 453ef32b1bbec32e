"""What clients keep from round to round, in the object stores of the nodes where they are trained.

Momentum and personal models are needed where the clients are. So the driver has references to them,
which it gives back with the next step, and fetches the rows only if somebody reads them. Ray frees
an object when its last reference is gone, so the memory of older states can be read as long as such
a state is held. An object outlives its actor but not its node. Therefore the driver has a copy that
is not too old, and knows what the actors were told since then, so that others can do it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, final

from numpy.typing import NDArray

from wecfl.core.types import Int, Table
from wecfl.engine.ray.rows import array_for

__all__ = ["ActorMemory", "Exchange", "Shard"]

MAX_REPEATED_EXCHANGES = 10
"""The largest number of exchanges that are done again after the death of a node."""


@dataclass(slots=True, eq=False)
class Shard:
    """Some of the clients, and the actor that currently has them."""

    clients: Int
    held: Any
    """The data of its clients, in the object store."""
    actor: Any


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """What the actors of the clients that are asked are told in an exchange."""

    calls: Mapping[Shard, tuple[Any, ...]]
    """The arguments of `Actor.call`, except the memory and the round."""
    round: int
    nbytes: int
    """The size of the rows among them."""

    def clients(self, shard: Shard) -> Int:
        """The clients of a shard that are asked."""
        in_shard, *_ = self.calls[shard]
        clients: Int = shard.clients[in_shard]
        return clients


@final
class ActorMemory(Mapping[str, NDArray[Any]]):
    """Tables (m, …) of what clients keep; the first one that is read fetches all of them.

    `copy` is what this process has, `fetch` gets the rows of a shard. `exchanges` happened after
    the copy, and `kept` is what they made: references to the rows of shards.
    """

    def __init__(self, m: int, copy: Table, fetch: Callable[[Shard, ActorMemory], Table]) -> None:
        self.exchanges: tuple[Exchange, ...] = ()
        self.kept: dict[Shard, Any] = {}
        self._m, self._copy, self._fetch = m, copy, fetch
        self._reading = Lock()
        self._row_bytes = {name: rows[:1].nbytes for name, rows in copy.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._row_bytes:
            raise KeyError(name)
        return self.tables()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._row_bytes

    def __iter__(self) -> Iterator[str]:
        return iter(self._row_bytes)

    def __len__(self) -> int:
        return len(self._row_bytes)

    def after(
        self, exchange: Exchange, kept: Mapping[Shard, Any], row_bytes: Mapping[str, int]
    ) -> ActorMemory:
        """The memory after an exchange, in which some shards kept tables with rows of this size."""
        memory = ActorMemory(self._m, self._copy, self._fetch)
        memory.exchanges = (*self.exchanges, exchange)
        memory.kept = {**self.kept, **kept}
        memory._row_bytes = {**self._row_bytes, **row_bytes}
        return memory

    @property
    def is_due(self) -> bool:
        """Whether to fetch a copy now: much would have to be done again, or is held for that."""
        told = sum(exchange.nbytes for exchange in self.exchanges)
        return len(self.exchanges) >= MAX_REPEATED_EXCHANGES or told > self._m * sum(
            self._row_bytes.values()
        )

    def part(self, shard: Shard) -> Any:
        """What the clients of a shard keep: a reference, or rows of the copy."""
        return self.kept[shard] if shard in self.kept else self.copied(shard)

    def copied(self, shard: Shard) -> dict[str, NDArray[Any]]:
        """What the clients of a shard kept when the copy was made."""
        return {name: rows[shard.clients] for name, rows in self._copy.items()}

    def tables(self) -> Table:
        """The tables, which are also the copy from now on."""
        with self._reading:  # the thread that writes checkpoints reads, too
            self._gather()
            return self._copy

    def _gather(self) -> None:
        if self.exchanges:
            tables: dict[str, NDArray[Any]] = {}
            all_kept = sum(len(shard.clients) for shard in self.kept) == self._m
            for shard in list(self.kept):
                for name, rows in self._fetch(shard, self).items():
                    if name not in tables:
                        tables[name] = array_for(rows, (self._m, *rows.shape[1:]))
                        if not all_kept:
                            tables[name][...] = self._copy.get(name, 0)
                    tables[name][shard.clients] = rows
            self._copy, self.exchanges = tables, ()
