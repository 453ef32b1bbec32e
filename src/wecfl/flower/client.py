"""What runs at a client: its own data, its own model, its own state, through a local engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import ArrayLike
from platformdirs import user_state_path
from torch import nn

from wecfl.bilevel.local import digest
from wecfl.channel.privacy import NO_NETWORK
from wecfl.core.program import Job, Sent
from wecfl.core.types import F32
from wecfl.data.federation import Federation
from wecfl.engine import make_engine
from wecfl.errors import ConfigError, DataError
from wecfl.flower.store import Store
from wecfl.flower.wire import PROTOCOL, fingerprint, read_job, reply
from wecfl.models import make
from wecfl.models.rows import layout_of, row_of

__all__ = ["LoadData", "MakeModel", "client_app"]

LoadData = Callable[[Mapping[str, Any]], tuple[ArrayLike, ...]]
"""From the node's configuration to (x, y), of which a part is held out for tests, or to
(x, y, x_test, y_test)."""

MakeModel = Callable[[], nn.Module]
"""The model, the same at all clients and at the server."""

HOLDOUT = 0.2
"""The share of (x, y) that is kept for tests."""


def client_app(load_data: LoadData, make_model: MakeModel, *, classes: int) -> ClientApp:
    """The client's side of every method: it says who it is, and runs the programs it is asked for.

    The node's configuration (`flower-supernode --node-config`) says who the client is:
    `client-id`, its name; `partition-id`, its number for keyed randomness (else drawn from the
    name); `state-dir`, where it keeps what must survive a round.
    """
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        here = _Here(context, load_data, make_model, classes)
        told: dict[str, Any] = {
            "name": here.name, "samples": here.samples, "key": here.key, "classes": classes,
            "layout": fingerprint(here.layout), "protocol": PROTOCOL, "programs": digest(),
        }  # fmt: skip
        return Message(RecordDict({"config": ConfigRecord(told)}), reply_to=message)

    def answer(message: Message, context: Context) -> Message:
        here = _Here(context, load_data, make_model, classes)
        config = dict(message.content.config_records["config"])
        own, common = (
            {name: array.numpy() for name, array in message.content.array_records[kind].items()}
            for kind in ("own", "common")
        )
        return Message(here.answer(config, Sent(own, common)), reply_to=message)

    app.train()(answer)
    app.query("ask")(answer)
    return app


class _Here:
    """One client, as a federation of its own."""

    def __init__(
        self, context: Context, load_data: LoadData, make_model: MakeModel, classes: int
    ) -> None:
        said = context.node_config
        self.name = str(said.get("client-id", context.node_id))
        number = said.get("partition-id")
        self.key = (
            int.from_bytes(sha256(self.name.encode()).digest()[:4], "big")
            if number is None
            else int(number)
        )
        place = said.get("state-dir")
        safe = sha256(self.name.encode()).hexdigest()[:16]
        self.place = Path(str(place)) if place else user_state_path("wecfl") / "clients" / safe
        self.federation = _federation(load_data(said), classes, self.name, self.key)
        self.samples = int(self.federation.sizes[0])
        self.model = make(make_model, shape=self.federation.shape, classes=classes, seed=0)
        self.layout = layout_of(self.model)

    def answer(self, config: Mapping[str, Any], sent: Sent) -> RecordDict:
        """Run the program that is asked for, with what is kept here, and reply what it declares."""
        if "clip" in config:
            raise ConfigError(NO_NETWORK)
        job = read_job(config)
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
        return reply(rows, samples=self.samples, restarted=int(lost))

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
