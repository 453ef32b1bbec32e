"""What runs at a client: its own data, its own model, its own state, through a local engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike, NDArray
from platformdirs import user_state_path
from torch import nn

from wecfl.bilevel.local import digest
from wecfl.core.program import Job, Sent
from wecfl.core.state import F32
from wecfl.data.federation import Federation
from wecfl.engine import make_engine
from wecfl.errors import DataError, WecflError
from wecfl.flower.guard import Guard, PolicyRefusal, request_hash
from wecfl.flower.policy import Policy
from wecfl.flower.store import Store
from wecfl.flower.wire import PROTOCOL, fingerprint, read_job, refusal, reply
from wecfl.models import make
from wecfl.models.rows import layout_of, row_of

__all__ = ["LoadData", "MakeModel", "client_app"]

LoadData = Callable[[Mapping[str, Any]], tuple[ArrayLike, ...]]
"""From the node's configuration to (x, y), of which a part is held out for tests, or to
(x, y, x_test, y_test)."""

MakeModel = Callable[[], nn.Module]
"""The model, the same at all clients and at the server."""

log = logging.getLogger("wecfl")

CLIENT_FAILED = 2
"""Flower's code of a client whose app failed."""

HOLDOUT = 0.2
"""The share of (x, y) that is kept for tests."""


def client_app(load_data: LoadData, make_model: MakeModel, *, classes: int) -> ClientApp:
    """The client's side of every method: it says who it is, and runs the programs it is asked for.

    The node's configuration (`flower-supernode --node-config`) says who the client is:
    `client-id`, its name; `partition-id`, its number for keyed randomness (else drawn from the
    name); `state-dir`, where it keeps what must survive a round; `policy`, the file that says what
    it allows (`wecfl.flower.policy`).
    """
    app = ClientApp()

    def hello(message: Message, context: Context) -> Message:
        here = _Here(context, load_data, make_model, classes)
        config = dict(message.content.config_records["config"])
        samples = here.guard.told_samples(config, here.samples)
        told: dict[str, Any] = {
            "name": here.name, "samples": samples, "key": here.key, "classes": classes,
            "layout": fingerprint(here.layout), "protocol": PROTOCOL, "programs": digest(),
        }  # fmt: skip
        here.guard.audit(None, request_hash(config, Sent()), "greeted", 0, samples=samples)
        return Message(RecordDict({"config": ConfigRecord(told)}), reply_to=message)

    def answer(message: Message, context: Context) -> Message:
        here = _Here(context, load_data, make_model, classes)
        config = dict(message.content.config_records["config"])
        own, common = (
            {name: array.numpy() for name, array in message.content.array_records[kind].items()}
            for kind in ("own", "common")
        )
        try:
            return Message(here.answer(config, Sent(own, common)), reply_to=message)
        except PolicyRefusal as reason:
            return Message(refusal(str(reason)), reply_to=message)

    app.query("hello")(_discreet(hello))
    app.train()(_discreet(answer))
    app.query("ask")(_discreet(answer))
    return app


Handler = Callable[[Message, Context], Message]


def _discreet(handler: Handler) -> Handler:
    """The handler of a message, whose errors stay at the client where nothing may leave it.

    The text of an error may hold data. A node that is private says only that it failed; its own log
    has the rest.
    """

    def handle(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception:
            config = dict(message.content.config_records.get("config", ConfigRecord()))
            if not _noted_as_private(context, config):
                raise
            log.exception("wecfl: a request failed")
            said = "it failed, and its own log says why"
            return Message(Error(code=CLIENT_FAILED, reason=said), reply_to=message)

    return handle


def _noted_as_private(context: Context, config: Mapping[str, Any]) -> bool:
    """Write the failure down, and say whether its reason must stay here.

    It must if the policy or the ledger can't be read.
    """
    try:
        guard = guard_of(context)
        guard.audit(None, "", "failed", 0)
        return guard.is_private(config)
    except WecflError:
        return True


def guard_of(context: Context) -> Guard:
    """What decides what leaves the client of a node."""
    place = _place(context)
    return Guard(place, Policy.read(context.node_config, place))


def _name(context: Context) -> str:
    return str(context.node_config.get("client-id", context.node_id))


def _place(context: Context) -> Path:
    """The client's own folder."""
    if place := context.node_config.get("state-dir"):
        return Path(str(place))
    safe = sha256(_name(context).encode()).hexdigest()[:16]
    return user_state_path("wecfl") / "clients" / safe


class _Here:
    """One client, as a federation of its own."""

    def __init__(
        self, context: Context, load_data: LoadData, make_model: MakeModel, classes: int
    ) -> None:
        said = context.node_config
        self.name, self.place = _name(context), _place(context)
        self.guard = guard_of(context)
        number = said.get("partition-id")
        self.key = (
            int.from_bytes(sha256(self.name.encode()).digest()[:4], "big")
            if number is None
            else int(number)
        )
        self.federation = _federation(load_data(said), classes, self.name, self.key)
        self.samples = int(self.federation.sizes[0])
        self.model = make(make_model, shape=self.federation.shape, classes=classes, seed=0)
        self.layout = layout_of(self.model)

    def answer(self, config: Mapping[str, Any], sent: Sent) -> RecordDict:
        """Run the program that is asked for, with what is kept here, and reply what it declares."""
        job, restarted = read_job(config), False

        def run() -> dict[str, NDArray[Any]]:
            nonlocal restarted
            rows, restarted = self._run(job, config, sent)
            return rows

        rows, numbers = self.guard.answer(job, config, sent, run, self.layout.width)
        samples = self.guard.told_samples(config, self.samples)
        return reply(rows, samples=samples, restarted=int(restarted), **numbers)

    def _run(
        self, job: Job, config: Mapping[str, Any], sent: Sent
    ) -> tuple[dict[str, NDArray[Any]], bool]:
        """What the program makes here, and whether what it should have kept was lost."""
        store, sizes = self._store(config), self._sizes
        found = store.load(job.tick)
        due = {
            name: (field.dtype, field.sized(sizes))
            for name, field in job.keeps(self.layout).items()
        }
        fitting = {
            name: rows
            for name, rows in found.items()
            if name not in due or (str(rows.dtype), rows.shape) == due[name]
        }
        memory = {name: fitting[name][None] for name in due if name in fitting}
        with make_engine(
            "auto", self.federation, self.model,
            workers=1, batch=job.plan.batch, batchnorm=config["batchnorm"],
        ) as engine:  # fmt: skip
            answers = engine.ask(job, self._completed(job, sent), None, memory)
        lost = False
        if job.keep:
            after = {name: answers.memory[name][0] for name in due if name in answers.memory}
            # What other programs keep stays.
            store.save(job.tick + 1, {**fitting, **after}, keep=int(config["kept"]))
            lost = bool(config["known"]) and not after.keys() <= fitting.keys()
        rows = {name: made[0] for name, made in answers.rows.items()}
        if job.keep and "model" in rows:
            rows["model"] = rows["model"][self.layout.columns(job.shared)]
        return rows, lost

    @property
    def _sizes(self) -> dict[str, int]:
        return {"P": self.layout.width, "trainable": self.layout.trainable}

    def _store(self, config: Mapping[str, Any]) -> Store:
        return Store(self.place, str(config["run"]), str(config["member"]))

    def _completed(self, job: Job, sent: Sent) -> Sent:
        """(1, …), rows as wide as models: what does not travel is at first as in the model here."""
        columns, start = self.layout.columns(job.shared), row_of(self.model)

        def whole(name: str, rows: F32) -> F32:
            made = np.zeros((*rows.shape[:-1], len(start)), np.float32)
            if name != "offset":  # which is no model
                made[...] = start
            made[..., columns] = rows
            return made

        own = {name: whole(name, rows)[None] for name, rows in sent.own.items()}
        return Sent(own, {name: whole(name, rows) for name, rows in sent.common.items()})


def _federation(held: tuple[ArrayLike, ...], classes: int, name: str, key: int) -> Federation:
    """A federation of this client alone."""
    if len(held) not in (2, 4):
        raise DataError(
            f"load_data must return (x, y) or (x, y, x_test, y_test), got {len(held)} values"
        )
    x, y, *tests = held
    test: Any = ([tests[0]], [tests[1]]) if tests else HOLDOUT
    own = Federation.from_arrays([x], [y], test=test, names=[name], classes=classes)
    return replace(own, keys=np.array([key], np.int64))
