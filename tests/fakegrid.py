"""A grid without a network: messages are handed to client apps in this process, as bytes.

What a client app answers may be tampered with, lost or delayed, by node. A tamper that raises an
error stands for a reply that Flower can't unpack: the error comes out of `pull_messages`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import wecfl
from wecfl import Federation

Tamper = Callable[[Message], Message | None]
"""What becomes of a reply on its way; None: it never comes."""

WAITS: dict[str, Any] = {
    "poll": 0.001, "look_every": 0.0, "min_extra_wait": 0.05, "patience": 0.1
}  # fmt: skip
"""Seconds: nothing takes long in a grid without a network."""

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@dataclass
class Node:
    """A client app, and how its node is set up."""

    app: ClientApp
    config: dict[str, Any]
    online: bool = True
    tamper: Tamper = lambda message: message
    late: bool = False
    """Its replies to `train` come when the next `train` is sent."""
    seen: list[str] = field(default_factory=list)
    """The kinds of messages it got."""


class FakeGrid(Grid):
    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self.nodes = dict(nodes)
        self.waiting: dict[str, tuple[Node, Message | Exception]] = {}
        self.late: dict[str, tuple[Node, Message | Exception]] = {}
        self.pushed: list[Message] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [number for number, node in self.nodes.items() if node.online]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages, numbers = list(messages), []
        if any(message.metadata.message_type == "train" for message in messages):
            self.waiting |= self.late
            self.late = {}
        for message in messages:
            number = f"m{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = number
            self.pushed.append(message)
            numbers.append(number)
            node = self.nodes[message.metadata.dst_node_id]
            node.seen.append(message.metadata.message_type)
            context = Context(1, message.metadata.dst_node_id, node.config, RecordDict(), {})
            try:
                answer: Message | None = node.app(message, context)
            except Exception as error:  # as Flower does
                answer = Message(Error(code=2, reason=repr(error)), reply_to=message)
            if answer is None:
                continue
            try:
                told: Message | Exception | None = node.tamper(answer)
            except Exception as error:
                told = error
            if told is not None:
                train = message.metadata.message_type == "train"
                (self.late if train and node.late else self.waiting)[number] = (node, told)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        came = []
        for number in message_ids:
            if number in self.waiting:
                node, message = self.waiting[number]
                if node.online:
                    del self.waiting[number]
                    if isinstance(message, Exception):
                        raise message
                    came.append(message)
        return came

    def send_and_receive(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise NotImplementedError


def digits_of(clients: int) -> Federation:
    """Clients of two groups with five classes each."""
    partition = wecfl.partitions.ClusterwiseNClass((5, 5), groups=2)
    return Federation.from_dataset("digits", partition, clients=clients, seed=1)


def changed(**records: Any) -> Tamper:
    """Replace records of a reply to training."""

    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "train":
            for name, record in records.items():
                message.content[name] = record
        return message

    return tamper


__all__ = ["WAITS", "ConfigRecord", "FakeGrid", "Node", "Tamper", "changed", "digits_of"]
