"""Divides the clients among Ray actors, on this machine or on the nodes of a cluster.

Each actor has a shard, which is a part of the clients, in an engine of one machine (native if that
knows the model, otherwise torch). It is called once per step. Everything that a client's
computation depends on is keyed by (seed, round, client). So any number of actors and nodes gives
the same bits, and if an actor dies, another one can repeat its work.

Rows of numbers are sent through Ray's object store. After the distribution, the clients of a
cluster have the same model, so each distinct row of a matrix is sent once, for all shards. What
clients keep stays on the nodes (`actor_memory.py`). Ray itself pickles what it sends: whoever can
reach its ports can run code on its nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from time import monotonic, sleep
from typing import Any, Literal, Unpack, final
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray
from torch import nn

from wecfl.core.program import Answers, Job, Sent
from wecfl.core.types import Int, Table
from wecfl.data.federation import Federation
from wecfl.engine.local import NO_MEMORY, BaseEngine, EngineOptions
from wecfl.engine.ray.actor import Actor
from wecfl.engine.ray.actor_memory import ActorMemory, Exchange, Shard
from wecfl.engine.ray.cluster import check_address, connect, first_line, imported
from wecfl.engine.ray.rows import Packed, array_for, distinct
from wecfl.errors import EngineError, WecflError
from wecfl.printing import log

__all__ = ["ClientProgress", "RayEngine"]

ClientProgress = Callable[[str, int, int], None]
"""Called with the work, the number of clients that have done it, and the number of all clients."""

MAX_REPLACEMENTS = 3
"""The largest number of times that the actor of a shard is replaced in one step."""
FETCHING = "fetch what clients keep"
"""The name of this work in messages."""
FREE_CORES_TIMEOUT_SECONDS = 5.0
"""The time to wait for free cores. After it, actors share the cores that exist."""


@final
class RayEngine(BaseEngine):
    """Runs the clients of a federation on Ray (implements `wecfl.core.engine.Engine`).

    The arguments are those of `BaseEngine`. `workers` are actors; None: one for each core of the
    cluster. `address` is the address of a running cluster to which this machine belongs, or
    ``auto``. Without an address, Ray is started here, and ended by `close`. `inside` is the engine
    that actors use, as for `wecfl.make_engine`. In one step, the actor of a shard is replaced at
    most `max_replacements` times. Use it as a context manager.

    >>> fed = Federation.from_arrays([np.eye(4, dtype=np.float32)] * 2, [np.arange(4)] * 2)
    >>> RayEngine(fed, nn.Linear(4, 4), address="nowhere")
    Traceback (most recent call last):
    ...
    wecfl.errors.ConfigError: the address of a Ray cluster must be HOST:PORT or auto, got 'nowhere'
    """

    def __init__(
        self,
        federation: Federation,
        model: nn.Module,
        *,
        address: str | None = None,
        inside: Literal["auto", "native", "torch"] = "auto",
        progress: ClientProgress | None = None,
        max_replacements: int = MAX_REPLACEMENTS,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(federation, model, **options)
        federation = self._drifting
        if address is not None:
            check_address(address)
        self._ray = imported(loopback=address is None)
        self._progress = progress or (lambda work, done, total: None)
        self._max_replacements = max_replacements
        self._shards: list[Shard] = []
        self._unread: WeakValueDictionary[int, ActorMemory] = WeakValueDictionary()
        self._name = ""
        inner_options: EngineOptions = {
            "batchnorm": self._batchnorm, "batch": self._batch, "workers": 1, "task": self.task,
        }  # fmt: skip
        kind = _kind(inside, federation, model, inner_options)
        self._connection = connect(address, self.workers)
        try:
            if options.get("workers") is None:
                cores = int(self._ray.cluster_resources().get("CPU", 1))
                self.workers = min(max(cores, 1), len(federation))
            self._share_out(kind, inner_options)
        except BaseException:
            self.close()
            raise

    @property
    def name(self) -> str:
        """The name of the engines inside the actors, since the last bits depend on them."""
        return self._name

    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        """Each shard runs the program for its clients (`wecfl.core.engine.Engine`).

        What clients keep stays with the actors, until somebody reads it (`ActorMemory`).
        """
        if not self._shards:
            raise EngineError("the engine is closed: make a new one")
        clients = self._chosen(who)
        before = self._held(memory)
        exchange = self._exchange(job, sent, clients)
        rows: dict[str, NDArray[Any]] = {}
        kept: dict[Shard, Any] = {}
        row_bytes: dict[str, int] = {}
        for shard, (reply, sizes), part in self._each(job, exchange, before):
            at = np.searchsorted(clients, exchange.clients(shard))
            for name, made in reply.items():
                if name not in rows:
                    rows[name] = array_for(made, (len(clients), *made.shape[1:]))
                rows[name][at] = made
            kept[shard] = part
            row_bytes |= sizes
        heard = np.zeros(len(clients), np.int8)
        if not row_bytes:
            return Answers(rows, heard, memory)
        after = before.after(exchange, kept, row_bytes)
        self._unread[id(after)] = after
        if after.is_due:
            after.tables()
        return Answers(rows, heard, after)

    def _held(self, memory: Table) -> ActorMemory:
        """The memory of all clients: with the actors of this engine, or a copy that is here."""
        if isinstance(memory, ActorMemory) and memory.kept.keys() <= {*self._shards}:
            return memory
        return ActorMemory(len(self.sizes), dict(memory), self._fetched)

    def close(self) -> None:
        """End the actors; also end Ray, or the connection to it, if this engine began it.

        What clients keep is fetched before.
        """
        if self._ray.is_initialized():
            for memory in list(self._unread.values()):
                with suppress(EngineError):  # which is raised again if the memory is read
                    memory.tables()
            for shard in self._shards:
                self._ray.kill(shard.actor)
        self._shards.clear()
        self._connection.close()

    def _share_out(self, kind: str, options: EngineOptions) -> None:
        """Give each actor its shard: every n-th client, since neighbours may have similar sizes."""
        ray, m = self._ray, len(self.sizes)
        free = self._free(self.workers)
        for number in range(self.workers):
            clients = np.arange(number, m, self.workers)
            held = ray.put(_alone(self._drifting, clients.tolist()))
            self._shards.append(Shard(clients, held, self._actor(free - number)))
        self._how = {
            "kind": kind, "model": ray.put(self._model), "options": dict(options),
            "release": version("wecfl"),
        }  # fmt: skip
        if kind == "native":
            sets = self._ask_all(lambda shard: shard.actor.instruction_sets.remote())
            common = [isa for isa in sets[0] if all(isa in others for others in sets)]
            self._how["options"]["isa"] = common[0] if common else "none"
        engines = self._ask_all(self._loaded)
        names = sorted({name for name, _ in engines})
        if len(names) > 1:
            raise EngineError(
                f"all nodes must use the same engine, got {', '.join(names)}: "
                f"use nodes of the same kind"
            )
        self._name, self.nodes = names[0], len({node for _, node in engines})

    def _free(self, wanted: int) -> float:
        """The number of free cores. Ray reports the cores of ended actors with a delay."""
        until = monotonic() + FREE_CORES_TIMEOUT_SECONDS
        while (free := self._ray.available_resources().get("CPU", 0)) < wanted:
            if monotonic() > until or self._ray.cluster_resources().get("CPU", 0) < wanted:
                break
            sleep(0.1)
        return float(free)

    def _actor(self, free: float) -> Any:
        """A new actor, on its own core if one is free, otherwise on a shared core."""
        options = {"num_cpus": 1 if free >= 1 else 0, "scheduling_strategy": "SPREAD"}
        return self._ray.remote(**options)(Actor).remote()

    def _loaded(self, shard: Shard) -> Any:
        return shard.actor.load.remote(shard.held, **self._how)

    def _ask_all(self, ask: Callable[[Shard], Any]) -> list[Any]:
        """The answers of all actors, before they take part in a step."""
        asked = [(shard, ask(shard)) for shard in self._shards]
        deaths: Counter[Shard] = Counter()
        return [self._answer(shard, answer, ask, "load", deaths) for shard, answer in asked]

    def _answer(
        self,
        shard: Shard,
        asked: Any,
        ask: Callable[[Shard], Any],
        work: str,
        deaths: Counter[Shard],
    ) -> Any:
        """The answer of a shard's actor, or of the one that replaces it."""
        while True:
            try:
                return self._ray.get(asked)
            except self._fatal as error:
                self._renew(shard, work, deaths, error)
                asked = ask(shard)
            except self._ray.exceptions.RayError as error:
                raise self._as_ours(error, "load") from None

    def _exchange(self, job: Job, sent: Sent, clients: Int) -> Exchange:
        """What the actors of these clients are told, without the clients' memory.

        Every actor gets what is common to all, and the rows of its own clients.
        """
        ray, calls = self._ray, {}
        packed = {name: self._packed(rows) for name, rows in sent.own.items()}
        common = {name: ray.put(np.ascontiguousarray(a)) for name, a in sent.common.items()}
        for shard in self._shards:
            part = np.flatnonzero(np.isin(clients, shard.clients))
            if len(part):
                in_shard = np.searchsorted(shard.clients, clients[part])
                calls[shard] = (
                    in_shard, replace(job, plan=job.plan.of(part)), list(common),
                    {name: rows.which(part) for name, rows in packed.items()},
                    *common.values(), *(rows.rows(part) for rows in packed.values()),
                )  # fmt: skip
        size = sum(rows.nbytes for rows in packed.values())
        size += sum(rows.nbytes for rows in sent.common.values())
        return Exchange(calls, self._round, size)

    def _each(
        self, job: Job, exchange: Exchange, memory: ActorMemory
    ) -> Iterator[tuple[Shard, Any, Any]]:
        """Let the actors run a program; yield shards, answers and references to what is kept."""
        ray, work = self._ray, job.program.name
        waiting = {}
        for shard in exchange.calls:
            answer, part = self._called(shard, memory.part(shard), exchange)
            waiting[answer] = shard, part
        deaths: Counter[Shard] = Counter()
        done, total = 0, sum(len(exchange.clients(shard)) for shard in exchange.calls)
        self._progress(work, done, total)
        while waiting:
            (ready,), _ = ray.wait(list(waiting), num_returns=1)
            shard, part = waiting.pop(ready)
            try:
                result = ray.get(ready)
            except self._fatal as error:
                self._renew(shard, work, deaths, error)
                self._answer(shard, self._loaded(shard), self._loaded, work, deaths)
                answer, part = self._called(shard, self._restored(shard, memory), exchange)
                waiting[answer] = shard, part
                continue
            except ray.exceptions.RayError as error:
                raise self._as_ours(error, work) from None
            yield shard, result, part
            done += len(exchange.clients(shard))
            self._progress(work, done, total)

    def _called(self, shard: Shard, memory: Any, exchange: Exchange) -> tuple[Any, Any]:
        """References to the answer of a shard's actor, and to what its clients keep then."""
        call = shard.actor.call.options(num_returns=2).remote
        answer, kept = call(memory, *exchange.calls[shard], round=exchange.round)
        return answer, kept

    def _restored(self, shard: Shard, memory: ActorMemory) -> Any:
        """What the clients of a shard keep; if a node was lost with it, it is made again."""
        part = memory.part(shard)
        if shard not in memory.kept:
            return part
        try:
            self._ray.get(part)
        except self._fatal:
            part = self._ray.put(memory.copied(shard))
            for exchange in memory.exchanges:
                if shard in exchange.calls:
                    _, part = self._called(shard, part, exchange)
            memory.kept[shard] = part
        return part

    def _fetched(self, shard: Shard, memory: ActorMemory) -> Table:
        """The rows that the clients of a shard keep, from the node where they are."""
        if not self._shards or not self._ray.is_initialized():
            raise EngineError("what clients keep can't be read, because the engine is closed")
        deaths: Counter[Shard] = Counter()
        while True:
            try:
                rows: Table = self._ray.get(memory.part(shard))
            except self._fatal as error:
                self._renew(shard, FETCHING, deaths, error)
                self._answer(shard, self._loaded(shard), self._loaded, FETCHING, deaths)
                self._restored(shard, memory)
            else:
                return rows

    def _packed(self, rows: NDArray[Any]) -> Packed:
        """The rows (n, …, P) of the clients that are asked, packed for the actors."""
        given = np.ascontiguousarray(rows)
        if given.dtype != np.float32 or given.ndim < 2:
            return Packed(given, given.nbytes)
        flat = given.reshape(-1, given.shape[-1])
        chosen, which = distinct(flat)
        if len(chosen) * self.nodes < len(flat):
            rows = flat[chosen]
            return Packed(self._ray.put(rows), rows.nbytes, which.reshape(given.shape[:-1]))
        return Packed(given, given.nbytes)

    @property
    def _fatal(self) -> tuple[type[Exception], ...]:
        """The errors that Ray raises if an actor, its node or its answer is lost."""
        known = self._ray.exceptions
        return (
            known.RayActorError, known.ObjectLostError, known.NodeDiedError,
            known.WorkerCrashedError, known.OutOfMemoryError,
        )  # fmt: skip

    def _renew(self, shard: Shard, work: str, deaths: Counter[Shard], error: Exception) -> None:
        """Give a shard to a new actor on a node that is alive; its data is not loaded yet."""
        count = len(shard.clients)
        if deaths[shard] == self._max_replacements:
            raise EngineError(
                f"{deaths[shard] + 1} actors in a row died with the same {count} clients during "
                f"'{work}' ({first_line(error)}): if nodes are short of memory, lower workers"
            )
        deaths[shard] += 1
        log.warning(
            "wecfl: the actor of %d clients died during '%s' (%s): another actor repeats its work",
            count, work, first_line(error),
        )  # fmt: skip
        self._ray.kill(shard.actor)  # in case it is alive and only could not be reached
        shard.actor = self._actor(self._free(1))

    def _as_ours(self, error: Exception, work: str) -> WecflError:
        """The error of wecfl that Ray has wrapped, or an `EngineError`."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, WecflError):
            return cause
        return EngineError(f"the Ray engine failed in {work}: {first_line(cause or error)}")


def _alone(federation: Federation, clients: Sequence[int]) -> Federation:
    """These clients, with a pool that holds only their own samples.

    >>> fed = Federation.from_arrays([np.eye(5)] * 3, [np.arange(5)] * 3)
    >>> alone = _alone(fed, [2])
    >>> fed.x.shape, alone.x.shape, alone.keys, np.array_equal(
    ...     alone.x[alone.test[0]], fed.x[fed.test[2]])
    ((15, 5), (5, 5), array([2]), True)
    """
    part = federation.subset(clients)
    later = [rows for change in part.changes for rows in (*change.train, *change.test)]
    used = np.unique(np.concatenate([*part.train, *part.test, *later]))

    def places(split: Sequence[Int]) -> tuple[Int, ...]:
        return tuple(np.searchsorted(used, rows) for rows in split)

    changes = tuple(
        change._replace(train=places(change.train), test=places(change.test))
        for change in part.changes
    )
    train, test = places(part.train), places(part.test)
    return replace(part, x=part.x[used], y=part.y[used], train=train, test=test, changes=changes)


def _kind(
    inside: Any, federation: Federation, model: nn.Module, options: EngineOptions
) -> Literal["native", "torch"]:
    """The engine inside the actors; a model that does not fit is refused before Ray is started."""
    from wecfl.engine import make_engine  # noqa: PLC0415

    with make_engine(inside, federation.subset([0]), model, **options) as engine:
        return "torch" if engine.name == "torch" else "native"
