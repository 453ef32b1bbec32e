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

from wecfl.channel.privacy import NO_NETWORK
from wecfl.core.plan import Correction, Plan
from wecfl.core.state import F32, Int, State
from wecfl.data.federation import Federation
from wecfl.engine import BaseEngine, make_engine
from wecfl.errors import ConfigError, DataError
from wecfl.flower.store import Store
from wecfl.flower.wire import fingerprint, reply
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
    """The client's side of every method: hello, train, losses, gradients and evaluation.

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
            "layout": fingerprint(here.layout),
        }  # fmt: skip
        return Message(RecordDict({"config": ConfigRecord(told)}), reply_to=message)

    def answering(work: Callable[[_Here, Mapping[str, Any], dict[str, F32]], RecordDict]) -> Any:
        def answer(message: Message, context: Context) -> Message:
            here = _Here(context, load_data, make_model, classes)
            config = dict(message.content.config_records["config"])
            came = message.content.array_records["arrays"]
            arrays = {name: array.numpy() for name, array in came.items()}
            return Message(work(here, config, arrays), reply_to=message)

        return answer

    app.train()(answering(_Here.train))
    app.evaluate()(answering(_Here.evaluate))
    app.query("losses")(answering(_Here.losses))
    app.query("risk")(answering(_Here.risk))
    app.query("gradients")(answering(_Here.gradients))
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

    def train(self, config: Mapping[str, Any], arrays: dict[str, F32]) -> RecordDict:
        """Q steps from the model that came, with the momentum and the columns kept here."""
        if "clip" in config:
            raise ConfigError(NO_NETWORK)
        seed, round = int(config["seed"]), int(config["round"])
        momentum = float(config["momentum"])
        keeps = {"momentum": self.layout.trainable} if config["keep_momentum"] and momentum else {}
        store, columns, hidden = self._store(config), self._columns(config), self._hidden(config)
        if len(hidden):
            keeps["private"] = len(hidden)
        kept = store.load(round, keeps)
        rows = {
            name: self._row(config, arrays[name], kept)
            for name in ("model", "anchor", "offset")
            if name in arrays
        }
        plan = Plan(
            steps=int(config["steps"]), batch=int(config["batch"]), lr=float(config["lr"]),
            momentum=momentum, keep_momentum=bool(config["keep_momentum"]),
            weight_decay=float(config["weight_decay"]), done=np.array([int(config["done"])]),
        )  # fmt: skip
        correction = Correction(
            arrays.get("mu", float(config["mu"])), rows.get("anchor"), rows.get("offset")
        )
        memory = {"momentum": kept["momentum"][None]} if "momentum" in kept else {}
        start = rows["model"]
        state = State(round, start, start, np.zeros(1, np.int64), memory)
        with self._engine(config) as engine:
            models, memory, *_ = engine.train(state, plan, correction, seed)
        after = {name: own[0] for name, own in memory.items()}
        if len(hidden):
            after["private"] = models[0, hidden]
        store.save(round + 1, after, keep=int(config["kept"]))
        sent = models[0, columns]
        restarted = bool(config["known"] and keeps and not kept)
        return reply({"model": sent}, samples=self.samples, restarted=int(restarted))

    def evaluate(self, config: Mapping[str, Any], arrays: dict[str, F32]) -> RecordDict:
        """Truth by prediction, of one model or of a soft vote."""
        with self._engine(config) as engine:
            stack = self._rows(config, arrays)[:, None]
            table = engine.confusion(stack, config["split"])[0]
        return reply({"confusion": table}, samples=self.samples)

    def losses(self, config: Mapping[str, Any], arrays: dict[str, F32]) -> RecordDict:
        """The mean loss of each model."""
        with self._engine(config) as engine:
            losses = engine.losses(self._rows(config, arrays), **_drawn(config))[0]
        return reply({"losses": losses}, samples=self.samples)

    def risk(self, config: Mapping[str, Any], arrays: dict[str, F32]) -> RecordDict:
        """The mean loss of one model, on training or test data."""
        with self._engine(config) as engine:
            losses = engine.risk(self._rows(config, arrays), config["split"])
        return reply({"losses": losses}, samples=self.samples)

    def gradients(self, config: Mapping[str, Any], arrays: dict[str, F32]) -> RecordDict:
        """The gradient of the mean loss at the model."""
        with self._engine(config) as engine:
            gradient = engine.gradients(self._rows(config, arrays), **_drawn(config))[0]
        return reply({"gradient": gradient}, samples=self.samples)

    def _engine(self, config: Mapping[str, Any]) -> BaseEngine:
        return make_engine(
            "auto", self.federation, self.model,
            workers=1, batch=int(config["batch"]), batchnorm=config["batchnorm"],
        )  # fmt: skip

    def _store(self, config: Mapping[str, Any]) -> Store:
        return Store(self.place, str(config["run"]), int(config["state_seed"]))

    def _columns(self, config: Mapping[str, Any]) -> Int:
        """Those that travel."""
        found: Int = np.arange(self.layout.width)[self.layout.columns(str(config["shared"]))]
        return found

    def _hidden(self, config: Mapping[str, Any]) -> Int:
        """Those that stay."""
        return np.setdiff1d(np.arange(self.layout.width), self._columns(config))

    def _row(self, config: Mapping[str, Any], came: F32, kept: Mapping[str, F32]) -> F32:
        """(1, P), what came and what is here; at first, the common start."""
        row = row_of(self.model)
        row[self._columns(config)] = came
        if "private" in kept:
            row[self._hidden(config)] = kept["private"]
        return row[None]

    def _rows(self, config: Mapping[str, Any], arrays: Mapping[str, F32]) -> F32:
        """(n, P), models to be looked at, with the columns that are kept here."""
        hidden, kept = self._hidden(config), {}
        if len(hidden):
            sizes = {"private": len(hidden)}
            kept = self._store(config).load(int(config["state_round"]), sizes)
        return np.concatenate([self._row(config, row, kept) for row in arrays["models"]])


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


def _drawn(config: Mapping[str, Any]) -> dict[str, Any]:
    """How much of its data the client looks at."""
    return {
        "batches": int(config["batches"]) or None,
        "seed": int(config["seed"]),
        "round": int(config["round"]),
    }
