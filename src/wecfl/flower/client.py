"""The client's app: its own data, model and memory, and a local engine that works on them."""

from __future__ import annotations

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

from wecfl.bilevel.programs import digest
from wecfl.core.program import Job, Sent, needs_of
from wecfl.core.task import Task
from wecfl.data.federation import Federation
from wecfl.engine import make_engine
from wecfl.enrolment import number_of
from wecfl.errors import DataError, WecflError
from wecfl.flower.client_memory import ClientMemory
from wecfl.flower.guard import Guard, PolicyRefusal, request_hash
from wecfl.flower.messages import PROTOCOL_VERSION, fingerprint, read_job, refusal, reply
from wecfl.flower.network_task import network_task
from wecfl.flower.policy import Policy
from wecfl.models import make
from wecfl.models.rows import layout_of, row_of
from wecfl.printing import log
from wecfl.tasks import described

__all__ = ["LoadData", "MakeModel", "client_app"]

LoadData = Callable[[Mapping[str, Any]], tuple[ArrayLike, ...]]
"""A function of the node's configuration that returns (x, y, x_test, y_test), or (x, y), of which
a part is kept for testing."""

MakeModel = Callable[[], nn.Module]
"""A function that makes the model, which is the same at all clients and at the server."""

Handler = Callable[[Message, Context], Message]
"""Answers a message of the server."""

TEST_SHARE = 0.2
"""The share of (x, y) that is kept for tests."""

CLIENT_FAILED_CODE = 2
"""What Flower calls a client whose app failed."""


def client_app(
    load_data: LoadData,
    make_model: MakeModel,
    *,
    classes: int | None = None,
    task: Task | str | None = None,
) -> ClientApp:
    """The client's side of every method: it introduces itself, and runs the requested programs.

    The task is a classification of so many `classes`, or the `task` that is given; it must be that
    of the server (`wecfl.flower.network_task`).

    The node's configuration (`flower-supernode --node-config`) says who the client is: `client-id`
    is its name, `partition-id` its number for keyed randomness (by default a hash of the name),
    `state-dir` the folder for the state that it keeps between rounds, and `policy` the file with
    the limits that it sets to the server (`wecfl.flower.policy`).
    """
    app, known_task = ClientApp(), network_task(task, classes)

    def hello(message: Message, context: Context) -> Message:
        client = _LocalClient(context, load_data, make_model, known_task)
        config = dict(message.content.config_records["config"])
        samples = client.guard.told_samples(config, client.samples)
        client.guard.audit(None, request_hash(config, Sent()), "greeted", 0, samples=samples)
        about: dict[str, Any] = {
            "name": client.name, "samples": samples, "key": client.key,
            "tests": client.guard.told_tests(config, client.tests),
            "shape": ",".join(map(str, client.shape)),
            "classes": known_task.outputs, "task": described(known_task),
            "layout": fingerprint(client.layout), "protocol": PROTOCOL_VERSION,
            "programs": digest(),
        }  # fmt: skip
        return Message(RecordDict({"config": ConfigRecord(about)}), reply_to=message)

    def answer(message: Message, context: Context) -> Message:
        client = _LocalClient(context, load_data, make_model, known_task)
        config = dict(message.content.config_records["config"])
        own, common = (
            {name: array.numpy() for name, array in message.content.array_records[kind].items()}
            for kind in ("own", "common")
        )
        try:
            return Message(client.answer(config, Sent(own, common)), reply_to=message)
        except PolicyRefusal as reason:
            return Message(refusal(str(reason)), reply_to=message)

    app.query("hello")(_discreet(hello))
    app.train()(_discreet(answer))
    app.query("ask")(_discreet(answer))
    return app


def _discreet(handler: Handler) -> Handler:
    """A handler whose error texts stay at the client, if nothing may leave it in the clear.

    The text of an error may contain data. So a private node only tells the server that it failed,
    and writes the error to its own log.
    """

    def handle(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception:
            config = dict(message.content.config_records.get("config", ConfigRecord()))
            if not _is_private_failure(context, config):
                raise
            log.exception("wecfl: a request failed")
            reason = "it failed, and its own log says why"
            return Message(Error(code=CLIENT_FAILED_CODE, reason=reason), reply_to=message)

    return handle


def _is_private_failure(context: Context, config: Mapping[str, Any]) -> bool:
    """Write a failure to the audit log, and say whether its reason must stay at the client.

    It must also stay if the policy or the ledger can't be read.
    """
    try:
        guard = _guard(context)
        guard.audit(None, "", "failed", 0)
        return guard.is_private(config)
    except WecflError:
        return True


def _name(context: Context) -> str:
    return str(context.node_config.get("client-id", context.node_id))


def _state_dir(context: Context) -> Path:
    """The client's own folder."""
    if chosen := context.node_config.get("state-dir"):
        return Path(str(chosen))
    safe_name = sha256(_name(context).encode()).hexdigest()[:16]
    return user_state_path("wecfl") / "clients" / safe_name


def _guard(context: Context) -> Guard:
    """What decides which replies leave the client of a node."""
    state_dir = _state_dir(context)
    return Guard(state_dir, Policy.read(context.node_config, state_dir))


class _LocalClient:
    """One client, as a federation without other clients."""

    def __init__(
        self, context: Context, load_data: LoadData, make_model: MakeModel, task: Task
    ) -> None:
        node_config = context.node_config
        self.name, self.state_dir = _name(context), _state_dir(context)
        self.guard = _guard(context)
        number = node_config.get("partition-id")
        self.key = number_of(self.name) if number is None else int(number)
        own = _federation(load_data(node_config), self.name, self.key)
        self.task, self.federation = task.fit(own)
        self.samples = int(self.federation.sizes[0])
        self.tests = len(self.federation.test[0])
        parts = own.pipeline.parts if own.pipeline else ()
        self.shape = () if parts else own.shape  # packed samples are not one array
        self.model = make(make_model, shape=own.shape, classes=task.outputs, seed=0, parts=parts)
        self.layout = layout_of(self.model)

    def answer(self, config: Mapping[str, Any], sent: Sent) -> RecordDict:
        """Run a job's program, unless the guard refuses; reply with the fields that it declares."""
        job, lost_memory = read_job(config), False

        def run() -> dict[str, NDArray[Any]]:
            nonlocal lost_memory
            rows, lost_memory = self._run(job, config, sent)
            return rows

        rows, totals = self.guard.answer(job, config, sent, run, self.layout.width)
        samples = self.guard.told_samples(config, self.samples)
        return reply(rows, samples=samples, restarted=int(lost_memory), **totals)

    def _run(
        self, job: Job, config: Mapping[str, Any], sent: Sent
    ) -> tuple[dict[str, NDArray[Any]], bool]:
        """The result of a program with the memory on this disk, and whether memory was lost."""
        kept_memory = ClientMemory(self.state_dir, str(config["run"]), str(config["member"]))
        found = kept_memory.load(job.tick)
        sizes = job.sizes(self.layout, sent)
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
            workers=1, batch=job.plan.batch, batchnorm=config["batchnorm"], task=self.task,
            needs=needs_of(job.program),
        ) as engine:  # fmt: skip
            answers = engine.ask(job, self._completed(job, sent), None, memory)
        lost = False
        if job.keep:
            after = {name: answers.memory[name][0] for name in declared if name in answers.memory}
            # The fields of other programs stay as they were.
            kept_memory.save(job.tick + 1, {**fitting, **after}, keep=int(config["kept"]))
            lost = bool(config["known"]) and not after.keys() <= fitting.keys()
        rows = {name: made[0] for name, made in answers.rows.items()}
        if "model" in rows:  # also in an evaluation: private columns never leave
            rows["model"] = rows["model"][self.layout.columns(job.shared)]
        return rows, lost

    def _completed(self, job: Job, sent: Sent) -> Sent:
        """(1, …), full rows: columns that are not sent start as in this client's own model."""
        columns, start = self.layout.columns(job.shared), row_of(self.model)

        sent_width = len(np.arange(len(start))[columns])

        def whole(name: str, rows: NDArray[Any]) -> NDArray[Any]:
            if rows.shape[-1] != sent_width:  # not a model
                return rows
            if rows.dtype == np.int8:  # a mask: columns that are not sent are used
                held = np.ones((*rows.shape[:-1], len(start)), np.int8)
                held[..., columns] = rows
                return held
            made = np.zeros((*rows.shape[:-1], len(start)), np.float32)
            if name not in ("offset", "gradient"):  # not models, so they start at zero
                made[...] = start
            made[..., columns] = rows
            return made

        own = {name: whole(name, rows)[None] for name, rows in sent.own.items()}
        return Sent(own, {name: whole(name, rows) for name, rows in sent.common.items()})


def _federation(held: tuple[ArrayLike, ...], name: str, key: int) -> Federation:
    """A federation that holds only this client."""
    if len(held) not in (2, 4):
        raise DataError(
            f"load_data must return (x, y) or (x, y, x_test, y_test), got {len(held)} values"
        )
    x, y, *tests = held
    test: Any = ([tests[0]], [tests[1]]) if tests else TEST_SHARE
    own = Federation.from_arrays([x], [y], test=test, names=[name])
    return replace(own, keys=np.array([key], np.int64))
