"""The client's app: its own data, model and memory, and a local engine that works on them."""

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
from wecfl.flower.client_memory import ClientMemory
from wecfl.flower.messages import PROTOCOL_VERSION, fingerprint, read_job, reply
from wecfl.models import make
from wecfl.models.rows import layout_of, row_of

__all__ = ["LoadData", "MakeModel", "client_app"]

LoadData = Callable[[Mapping[str, Any]], tuple[ArrayLike, ...]]
"""Gets the node's configuration; returns (x, y), a part of which is kept for tests, or
(x, y, x_test, y_test)."""

MakeModel = Callable[[], nn.Module]
"""Makes the model, which is the same at all clients and at the server."""

TEST_SHARE = 0.2
"""The share of (x, y) that is kept for tests."""


def client_app(load_data: LoadData, make_model: MakeModel, *, classes: int) -> ClientApp:
    """The client's side of every method: it introduces itself, and runs the programs it is sent.

    The node's configuration (`flower-supernode --node-config`) says who the client is: `client-id`
    is its name, `partition-id` its number for keyed randomness (by default a hash of the name), and
    `state-dir` the folder for what it keeps between rounds.
    """
    app = ClientApp()

    @app.query("hello")
    def hello(message: Message, context: Context) -> Message:
        client = _LocalClient(context, load_data, make_model, classes)
        about: dict[str, Any] = {
            "name": client.name, "samples": client.samples, "key": client.key, "classes": classes,
            "layout": fingerprint(client.layout), "protocol": PROTOCOL_VERSION,
            "programs": digest(),
        }  # fmt: skip
        return Message(RecordDict({"config": ConfigRecord(about)}), reply_to=message)

    def answer(message: Message, context: Context) -> Message:
        client = _LocalClient(context, load_data, make_model, classes)
        config = dict(message.content.config_records["config"])
        own, common = (
            {name: array.numpy() for name, array in message.content.array_records[kind].items()}
            for kind in ("own", "common")
        )
        return Message(client.answer(config, Sent(own, common)), reply_to=message)

    app.train()(answer)
    app.query("ask")(answer)
    return app


class _LocalClient:
    """One client, as a federation that has no other."""

    def __init__(
        self, context: Context, load_data: LoadData, make_model: MakeModel, classes: int
    ) -> None:
        node_config = context.node_config
        self.name = str(node_config.get("client-id", context.node_id))
        number = node_config.get("partition-id")
        self.key = (
            int.from_bytes(sha256(self.name.encode()).digest()[:4], "big")
            if number is None
            else int(number)
        )
        chosen = node_config.get("state-dir")
        safe_name = sha256(self.name.encode()).hexdigest()[:16]
        usual = user_state_path("wecfl") / "clients" / safe_name
        self.state_dir = Path(str(chosen)) if chosen else usual
        self.federation = _federation(load_data(node_config), classes, self.name, self.key)
        self.samples = int(self.federation.sizes[0])
        self.model = make(make_model, shape=self.federation.shape, classes=classes, seed=0)
        self.layout = layout_of(self.model)

    def answer(self, config: Mapping[str, Any], sent: Sent) -> RecordDict:
        """Run the program of a job with the memory that is kept here; reply what it declares."""
        if "clip" in config:
            raise ConfigError(NO_NETWORK)
        job = read_job(config)
        kept_memory = ClientMemory(self.state_dir, str(config["run"]), str(config["member"]))
        found = kept_memory.load(job.tick)
        sizes = {"P": self.layout.width, "trainable": self.layout.trainable}
        declared = {
            name: (field.dtype, field.sized(sizes))
            for name, field in job.keeps(self.layout).items()
        }
        fitting = {
            name: rows
            for name, rows in found.items()
            if name not in declared or (str(rows.dtype), rows.shape) == declared[name]
        }
        memory = {name: fitting[name][None] for name in declared if name in fitting}
        with make_engine(
            "auto", self.federation, self.model,
            workers=1, batch=job.plan.batch, batchnorm=config["batchnorm"],
        ) as engine:  # fmt: skip
            answers = engine.ask(job, self._completed(job, sent), None, memory)
        lost = False
        if job.keep:
            after = {name: answers.memory[name][0] for name in declared if name in answers.memory}
            # The fields of other programs stay as they were.
            kept_memory.save(job.tick + 1, {**fitting, **after}, keep=int(config["kept"]))
            lost = bool(config["known"]) and not after.keys() <= fitting.keys()
        rows = {name: made[0] for name, made in answers.rows.items()}
        if job.keep and "model" in rows:
            rows["model"] = rows["model"][self.layout.columns(job.shared)]
        return reply(rows, samples=self.samples, restarted=int(lost))

    def _completed(self, job: Job, sent: Sent) -> Sent:
        """(1, …), full rows: columns that are not sent start as in this client's own model."""
        columns, start = self.layout.columns(job.shared), row_of(self.model)

        def whole(name: str, rows: F32) -> F32:
            made = np.zeros((*rows.shape[:-1], len(start)), np.float32)
            if name != "offset":  # an offset is not a model, so it starts at zero
                made[...] = start
            made[..., columns] = rows
            return made

        own = {name: whole(name, rows)[None] for name, rows in sent.own.items()}
        return Sent(own, {name: whole(name, rows) for name, rows in sent.common.items()})


def _federation(held: tuple[ArrayLike, ...], classes: int, name: str, key: int) -> Federation:
    """A federation that holds only this client."""
    if len(held) not in (2, 4):
        raise DataError(
            f"load_data must return (x, y) or (x, y, x_test, y_test), got {len(held)} values"
        )
    x, y, *tests = held
    test: Any = ([tests[0]], [tests[1]]) if tests else TEST_SHARE
    own = Federation.from_arrays([x], [y], test=test, names=[name], classes=classes)
    return replace(own, keys=np.array([key], np.int64))
