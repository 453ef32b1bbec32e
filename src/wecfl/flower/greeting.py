"""What a client says when the server greets it, and whether it can take part at all."""

from __future__ import annotations

import re
from math import prod

from flwr.app import Message

from wecfl.bilevel.programs import digest
from wecfl.core.task import Task
from wecfl.flower.messages import PROTOCOL_VERSION, Refused, fingerprint, read_config
from wecfl.flower.roster import Place
from wecfl.layout import Layout
from wecfl.tasks import described

__all__ = ["read_hello"]

SHAPE_PATTERN = r"([1-9][0-9]{0,8}(,[1-9][0-9]{0,8}){0,7})?"
"""The shape of a sample: at most eight numbers."""
MAX_INPUTS = 10**8
"""The largest number of numbers in a sample."""


def read_hello(message: Message, node: int, layout: Layout, task: Task) -> Place:
    """The place that a client asks for; raise `Refused` if it has other code, model or task."""
    hello = read_config(
        message, name=str, samples=int, tests=int, key=int, shape=str, classes=int, layout=str,
        protocol=int, programs=str, task=str,
    )  # fmt: skip
    if (hello["protocol"], hello["programs"]) != (PROTOCOL_VERSION, digest()):
        raise Refused("its programs are not the server's: install the same version of wecfl")
    if hello["layout"] != fingerprint(layout):
        raise Refused("its model has other tensors than the server's: use the same make_model")
    if hello["classes"] != task.outputs:
        raise Refused(f"it has {hello['classes']} classes, expected {task.outputs} as the server")
    if hello["task"] != described(task):
        raise Refused(f"its task is {hello['task']}, expected {described(task)} as the server")
    if not re.fullmatch(SHAPE_PATTERN, hello["shape"], re.ASCII):
        raise Refused(f"shape must be like 28,28, got {hello['shape'][:40]!r}")
    shape = tuple(int(axis) for axis in hello["shape"].split(",") if axis)
    if prod(shape) > MAX_INPUTS:
        raise Refused(f"a sample may have at most {MAX_INPUTS} numbers, got {prod(shape)}")
    return Place(hello["name"], node, hello["key"], hello["samples"], hello["tests"], shape)
