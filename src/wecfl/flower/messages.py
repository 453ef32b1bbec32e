"""The messages between server and clients, and the checks that a reply must pass before use.

A request has three records: the arrays that are the client's `own`, those that are `common` to all,
and a `config`, which names a program. A reply has two: `arrays`, as the program declares them, and
`metrics`, which holds `samples`, |D_i|. Arrays are in NumPy's own format, never pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from io import BytesIO
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from wecfl.bilevel.programs import PROGRAMS, decoded, encoded
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Job
from wecfl.core.state import Reply
from wecfl.core.types import F32
from wecfl.enrolment import MAX_SAMPLES
from wecfl.errors import ConfigError, WecflError
from wecfl.layout import Layout

__all__ = [
    "ALL_STEPS",
    "PROTOCOL_VERSION",
    "Refused",
    "Shapes",
    "SharedArrays",
    "fingerprint",
    "job_config",
    "read_arrays",
    "read_config",
    "read_job",
    "refusal",
    "reply",
    "reply_bytes",
    "request",
]

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""The type and the shape of each array that a reply must have, by name."""

PROTOCOL_VERSION = 5
"""The version of requests and replies; it must be the same on both sides."""

ALL_STEPS = -1
"""Asks a client for all steps of the plan; only the client knows how many epochs have."""

NO_ARRAYS: Mapping[str, Array] = MappingProxyType({})

MAX_NPY_HEADER_BYTES = 256
"""NumPy's format may take this many bytes beside the numbers."""

RECORDS_BYTES = 10_000
"""What is in a reply beside arrays takes less."""

MAX_FLOAT = float(np.finfo(np.float32).max)
"""Models are float32, and what is computed from them stays below this."""

METRIC_LIMITS: Mapping[str, float] = MappingProxyType(
    {"samples": MAX_SAMPLES, "restarted": 1, "released": 2**53 - 1, "epsilon": MAX_FLOAT}
)
"""The numbers that a client may add to a reply, and how large they may be."""


class Refused(Exception):  # noqa: N818
    """A reply can't be used: the reason, and the kind by which it is counted."""

    def __init__(self, reason: str, kind: Reply = Reply.MALFORMED) -> None:
        super().__init__(reason)
        self.kind = kind


def fingerprint(layout: Layout) -> str:
    """A hash of the names and shapes of a model's tensors."""
    return sha256(repr([(e.name, e.shape) for e in layout.entries]).encode()).hexdigest()


def request(
    config: Mapping[str, Any],
    own: Mapping[str, Array] = NO_ARRAYS,
    common: Mapping[str, Array] = NO_ARRAYS,
) -> RecordDict:
    """A message of the server. An array that several requests share is sent once."""
    return RecordDict(
        {
            "own": ArrayRecord(dict(own)),
            "common": ArrayRecord(dict(common)),
            "config": ConfigRecord(dict(config)),
        }
    )


class SharedArrays:
    """Packs arrays to send. Equal arrays, such as those of one cluster, are sent only once."""

    def __init__(self) -> None:
        self._made: dict[tuple[tuple[int, ...], bytes], Array] = {}

    def __call__(self, array: F32) -> Array:
        """The packed array, or an equal one that was packed before."""
        held = np.ascontiguousarray(array)
        return self._made.setdefault((held.shape, held.tobytes()), Array(held))


def job_config(job: Job) -> dict[str, Any]:
    """The part of a job's configuration that is the same for all clients."""
    plan = job.plan
    return {
        "program": json.dumps(encoded(job.program)), "seed": str(job.seed), "round": job.round,
        "tick": job.tick, "shared": job.shared, "keep": job.keep, "steps": plan.steps,
        "batch": plan.batch, "momentum": plan.momentum, "keep_momentum": plan.keep_momentum,
        "weight_decay": plan.weight_decay, "optimizer": plan.optimizer,
        "adam_beta2": plan.adam_beta2, "adam_eps": plan.adam_eps,
        "max_gradient": plan.max_gradient or 0.0, "epochs": plan.epochs or 0,
        "leave_validation": plan.leave_validation,
    }  # fmt: skip


def read_job(config: Mapping[str, Any]) -> Job:
    """The job of one client, from the configuration of its request."""
    try:
        return _job(config)
    except WecflError:
        raise
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"expected a request of wecfl, got one that holds no job ({type(error).__name__}: "
            f"{error}): install the same release of wecfl at the server and at the clients"
        ) from None


def _job(config: Mapping[str, Any]) -> Job:
    plan = LocalPlan(
        steps=int(config["steps"]), batch=int(config["batch"]), lr=float(config["lr"]),
        momentum=float(config["momentum"]), keep_momentum=bool(config["keep_momentum"]),
        weight_decay=float(config["weight_decay"]), optimizer=config["optimizer"],
        adam_beta2=float(config["adam_beta2"]), adam_eps=float(config["adam_eps"]),
        max_gradient=float(config["max_gradient"]) or None, epochs=int(config["epochs"]) or None,
        leave_validation=bool(config["leave_validation"]),
        done=None if config["done"] == ALL_STEPS else np.array([int(config["done"])]),
    )  # fmt: skip
    program = decoded(json.loads(config["program"]))
    if type(program) not in PROGRAMS.values():
        raise TypeError(f"expected a program, got {config['program'][:100]}")
    return Job(
        program, plan, int(config["seed"]), int(config["round"]), int(config["tick"]),
        str(config["shared"]), bool(config["keep"]),
    )  # fmt: skip


def refusal(reason: str) -> RecordDict:
    """The answer of a client that refuses the request."""
    return RecordDict({"refusal": ConfigRecord({"reason": reason})})


def reply(arrays: Mapping[str, NDArray[Any]], **metrics: float) -> RecordDict:
    """A message of a client."""
    held = {name: Array(np.array(array, order="C")) for name, array in arrays.items()}
    return RecordDict({"arrays": ArrayRecord(held), "metrics": MetricRecord(dict(metrics))})


def reply_bytes(parameters: int, counts: int) -> int:
    """The size of the largest reply in bytes: a model, or two tallies with this number of counts.

    >>> reply_bytes(parameters=4810, counts=100)
    29496
    """
    return max(4 * parameters, 2 * 8 * counts) + MAX_NPY_HEADER_BYTES + RECORDS_BYTES


def read_config(message: Message, **kinds: type) -> dict[str, Any]:
    """The configuration in a reply to `hello`: it must have exactly these keys and types."""
    record = _content(message, "config")["config"]
    if set(record) != set(kinds):
        raise Refused(f"expected the keys {sorted(kinds)}, got {sorted(map(str, record))[:9]}")
    for key, kind in kinds.items():
        if type(record[key]) is not kind:
            raise Refused(f"{key} must be {kind.__name__}, got {type(record[key]).__name__}")
    return dict(record)


def read_arrays(
    message: Message, shapes: Shapes, samples: int
) -> tuple[dict[str, NDArray[Any]], dict[str, float]]:
    """The arrays of a reply, which must have these shapes, and its metrics.

    `samples` is |D_i| as the client reported it when it joined: its weight does not change later.
    `restarted` is 1 if it has lost its memory. Where a client adds noise, `released` and `epsilon`
    are the totals of its ledger. Numbers with which the server could not compute are refused.
    """
    content = _content(message, "arrays", "metrics")
    arrays, metrics = content["arrays"], content["metrics"]
    if set(arrays) != set(shapes):
        raise Refused(f"expected the arrays {sorted(shapes)}, got {sorted(map(str, arrays))[:9]}")
    if more := set(metrics) - set(METRIC_LIMITS):
        raise Refused(f"expected metrics among {list(METRIC_LIMITS)}, got {sorted(more)[:9]}")
    for name, value in metrics.items():
        if type(value) is not (float if name == "epsilon" else int):
            raise Refused(f"metrics must be whole numbers and epsilon a float, but {name} is not")
    if metrics.get("samples") != samples:
        raise Refused(f"it had {samples} samples when it joined, but now {metrics.get('samples')}")
    for name, value in metrics.items():
        if not 0 <= value <= METRIC_LIMITS[name]:
            raise Refused(f"{name} must lie between 0 and {METRIC_LIMITS[name]:g}, got {value}")
    found = {name: _decoded(name, arrays[name], *shape) for name, shape in shapes.items()}
    for name, array in found.items():
        _check_range(name, array)
    return found, dict(metrics)


def _check_range(name: str, array: NDArray[Any]) -> None:
    """Refuse numbers with which the server could not compute.

    Float32 rows are added, averaged and compared by squared distances. With ‖ω‖² at most a quarter
    of the largest float32, none of this overflows: ‖ω − Ω‖² ≤ (‖ω‖ + ‖Ω‖)² ≤ 4 max(‖ω‖, ‖Ω‖)².
    Float64 numbers, such as losses, come from float32 outputs, and are no larger than these can be.
    """
    if array.dtype.kind != "f":
        return
    if not np.isfinite(array).all():
        raise Refused(f"{name} holds NaN or infinity", Reply.NOT_FINITE)
    if array.dtype == np.float32:
        flat = array.reshape(-1)
        if np.einsum("p,p->", flat, flat, dtype=np.float64) > MAX_FLOAT / 4:
            raise Refused(f"{name} is so long that its square overflows", Reply.TOO_LARGE)
    elif array.size and np.abs(array).max() > MAX_FLOAT:
        raise Refused(f"{name} holds numbers above {MAX_FLOAT:.3g}", Reply.TOO_LARGE)


def _content(message: Message, *names: str) -> Mapping[str, Any]:
    """The records of a reply, which must have exactly these names."""
    if message.has_error():
        raise Refused(f"it failed: {message.error.reason or message.error.code}")
    content = message.content
    if set(content) == {"refusal"} and isinstance(content["refusal"], ConfigRecord):
        raise Refused(f"its policy refuses: {content['refusal'].get('reason')!s}"[:300])
    kinds = {"arrays": ArrayRecord, "config": ConfigRecord, "metrics": MetricRecord}
    if set(content) != set(names) or not all(isinstance(content[n], kinds[n]) for n in names):
        raise Refused(f"expected records {sorted(names)}, got {sorted(map(str, content))[:9]}")
    return content


def _decoded(name: str, array: Array, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Decode an array; its declaration, size and header must all agree on this type and shape."""
    declared = (array.stype, array.dtype, tuple(array.shape))
    if declared != ("numpy.ndarray", dtype, shape):
        raise Refused(f"{name} must be {dtype} {shape}, got {declared[1]} {declared[2]}"[:200])
    size = np.dtype(dtype).itemsize * prod(shape)
    if not size < len(array.data) <= size + MAX_NPY_HEADER_BYTES:
        raise Refused(f"{name} must take {size} bytes and a header, got {len(array.data)}")
    stream = BytesIO(array.data)
    try:
        if npy.read_magic(stream) != (1, 0):
            raise ValueError("the version of its format is unknown")
        written = npy.read_array_header_1_0(stream)
    except ValueError as error:
        raise Refused(f"{name} is not an array: {error}"[:200]) from None
    if written != (shape, False, np.dtype(dtype)):
        raise Refused(f"{name} must be {dtype} {shape}, but its header says {written}"[:200])
    if len(array.data) - stream.tell() != size:
        raise Refused(f"{name} must hold {size} bytes, got {len(array.data) - stream.tell()}")
    return np.frombuffer(array.data, dtype, offset=stream.tell()).reshape(shape)
