"""Clients that say anything: what a hostile node puts in place of its app's honest answers.

`lies` draws one such client from a source of chance, so that Hypothesis can look for the worst
(tests/flower/test_hostile.py). As a program this file runs whole federations of such clients, and
prints a line about each; `make soak` does that (benchmarks/soak.py).
"""

import argparse
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from torch import nn

from fakegrid import WAITS, FakeGrid, Node, Tamper
from wecfl.enrolment import Enrolled, Enrolment
from wecfl.flower import client_app
from wecfl.flower.server import serve
from wecfl.folder.readers import read_assignments, read_clients, read_metrics, read_summary
from wecfl.report.page.html import page
from wecfl.runs.result import Result

FEATURES, CLASSES = 5, 3
PRIVATE = {"clip": 0.5, "noise": 2.0}
RUNS: tuple[dict[str, Any], ...] = (
    {"method": "wecfl", "clusters": 2, "objectives": True, "diagnostics": True},
    {"method": "ifca", "clusters": 2},
    {"method": "scaffold"},
    {"method": "fedadam"},
    {"method": "ditto"},
    {"method": "fedper"},
    {"method": "wecfl", "clusters": "auto"},
    {"method": "fedavg", **PRIVATE},
    {"method": "cfl"},
    {"method": "local"},
    {"method": "fesem", "clusters": 2, **PRIVATE},
    {"method": "fedavg-ft"},
)
"""Runs in which clients are asked for everything there is, and keep and send all that they can."""


def make_model() -> nn.Module:
    """The same start whoever makes it, with a part that is no head."""
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    for i, parameter in enumerate(model.parameters()):
        start = np.random.default_rng(i).normal(0, 0.5, tuple(parameter.shape))
        parameter.data.copy_(torch.from_numpy(start))
    return model


def load_data(config: Mapping[str, Any]) -> tuple[Any, ...]:
    """A few samples of a client, of one of two kinds, which swap two classes."""
    number = int(config["partition-id"])
    chance = np.random.default_rng([7, number])
    y = np.arange(15 + number % 4) % CLASSES
    seen = np.where(y < 2, 1 - y, y) if number % 2 else y
    x = np.eye(CLASSES, FEATURES)[seen] + 0.3 * chance.normal(size=(len(y), FEATURES))
    return x[3:], y[3:], x[:3], y[:3]


def make_nodes(m: int, place: Path, tampers: Mapping[int, Tamper]) -> dict[int, Node]:
    """m nodes, some of which lie."""
    app = client_app(load_data, make_model, classes=CLASSES)
    nodes = {
        i: Node(app, {"client-id": f"c{i}", "partition-id": i, "state-dir": f"{place}/c{i}"})
        for i in range(m)
    }
    for i, tamper in tampers.items():
        nodes[i].tamper = tamper
    return nodes


def enrolled(m: int, **changes: Any) -> Enrolment:
    """The nodes of `make_nodes`, each with at most 20 samples."""
    clients = [
        Enrolled(name=f"c{i}", node=i, key=f"SHA256:{i}", samples=20, number=i) for i in range(m)
    ]
    return Enrolment(clients=clients, **changes)


def serve_hostile(nodes: Mapping[int, Node], out: Path, rounds: int, **choices: Any) -> Result:
    """Begin or continue a run with such nodes, which are enrolled."""
    config = {
        "clients": len(nodes), "rounds": rounds, "steps": 2, "lr": 0.05, "timeout": 1,
        "enrolment": 0.05, "quorum": 0.5, "out": str(out), "checkpoint-every": 1,
        "method": "fedavg", **choices,
    }  # fmt: skip
    listed: dict[str, Any] = {"enrolment": enrolled(len(nodes)), **WAITS}
    return serve(FakeGrid(nodes), config, make_model, classes=CLASSES, **listed)


def check_run(result: Result, out: Path, rounds: int, honest: int) -> None:
    """The run is whole, its folder reads back, and the honest clients were heard throughout."""
    m = len(result.labels)
    assert result.status == "finished"
    assert np.isfinite(result.centers).all()
    records = read_metrics(out)
    assert len(records) == len(result.records) == rounds
    for record in records:
        assert record["accuracy"] is None or 0 <= record["accuracy"] <= 1
        assert record.get("replies", {"heard": m})["heard"] >= honest
    assert read_summary(out)["status"] == "finished"
    assert len(set(read_clients(out)["client"])) == m
    assert read_assignments(out).shape == (rounds, m)


KINDS = ("query.hello", "train", "query.ask")
"""The messages that a client answers."""

INTEGERS = (
    -1, 0, 1, 2, 7, 10**9, 10**9 + 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**60, 2**62, 2**63 - 1,
    -(2**63),
)  # fmt: skip
FLOATS = (
    0.5, -0.0, 1e-45, -1e19, 9.3e18, 1e19, 1.8e19, 1e30, 3e38, -3.4e38, 1e39, 1e200, 1e308,
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
WORDS = (
    "", " ", "c1", " c1", "c1 ", "place 0", "place 3", "x" * 200, "x" * 10_000, "\x1b[31mred",
    "a\nb", "\r", "\0", "</script><script>alert(1)", "\u202e", "\ufeffc1", "ü", "名前",
    "e\u0301", "\u2028", "../../etc",
    "NaN", "null", '"', "'", ",", ";", "=1+1", "{}", "%s%n", "[red]", "true",
)  # fmt: skip
DTYPES = ("float64", "float16", "int64", "complex64", "bool", "uint8", ">f4")


def lies(chance: Random) -> Tamper:
    """A client that says something else in some or all of its messages."""
    kinds = set(chance.sample(KINDS, chance.randint(1, len(KINDS))))
    how = chance.choice(WAYS)
    always = chance.random() < 0.7

    def tamper(message: Message) -> Message | None:
        if message.metadata.message_type not in kinds or not (always or chance.random() < 0.5):
            return message
        return how(message, chance)

    return tamper


def word(chance: Random) -> str:
    if chance.random() < 0.7:
        return chance.choice(WORDS)
    points = (chance.randrange(0x11000) for _ in range(chance.randrange(12)))
    return "".join(chr(point) for point in points if not 0xD800 <= point < 0xE000)


def number(chance: Random) -> int | float:
    return chance.choice(INTEGERS if chance.random() < 0.6 else FLOATS)


def value(chance: Random) -> Any:
    """Whatever a record can hold."""
    if chance.random() < 0.2:
        return [chance.choice(INTEGERS) for _ in range(chance.choice([0, 1, 3, 1000]))]
    return chance.choice([number(chance), word(chance), chance.random() < 0.5, chance.randbytes(9)])


def noted(message: Message, content: RecordDict) -> Message:
    return make_message(metadata=message.metadata, content=content)


def an_error(message: Message, chance: Random) -> Message:
    code, reason = chance.choice([0, 1, 2, 99, 2**31 - 1]), word(chance) * chance.choice([1, 50])
    return make_message(metadata=message.metadata, error=Error(code=code, reason=reason))


def silence(message: Message, chance: Random) -> None:
    return None


def nothing_in_it(message: Message, chance: Random) -> Message:
    return noted(message, RecordDict())


def a_refusal(message: Message, chance: Random) -> Message:
    reason = value(chance)
    return noted(message, RecordDict({"refusal": ConfigRecord({"reason": reason})}))


def other_records(message: Message, chance: Random) -> Message:
    """Records dropped, added, of another kind, or under another's name."""
    if message.has_error():
        return message
    content: Any = RecordDict(dict(message.content))
    name = chance.choice(sorted(content))
    what = chance.randrange(4)
    if what == 0:
        del content[name]
    elif what == 1:
        content[word(chance)] = ConfigRecord({word(chance): value(chance)})
    elif what == 2:
        content[name] = chance.choice([
            ConfigRecord({word(chance): value(chance)}), MetricRecord({word(chance): 1}),
            ArrayRecord({word(chance): Array(np.zeros(3))}), ConfigRecord({}), ArrayRecord({}),
        ])  # fmt: skip
    else:
        content[word(chance)] = content[name]
        del content[name]
    return noted(message, content)


def other_values(message: Message, chance: Random) -> Message:
    """Entries changed, dropped or added, whatever the record."""
    if message.has_error():
        return message
    content = RecordDict(dict(message.content))
    for name in chance.sample(sorted(content), chance.randint(1, len(content))):
        record = content[name]
        held: dict[str, Any] = dict(record)
        entry = chance.choice([*sorted(held), word(chance)])
        if held and chance.random() < 0.15:
            held.pop(entry, None)
        elif isinstance(record, ArrayRecord):
            if entry in held:
                held[entry] = forged(held[entry], chance)
        elif isinstance(record, MetricRecord):
            held[entry] = chance.choice([number(chance), [1, 2], [0.5]])
        else:
            held[entry] = value(chance)
        content[name] = type(record)(held)
    return noted(message, content)


def poison(message: Message, chance: Random) -> Message:
    """Arrays of the right type and shape with numbers that break sums."""
    if message.has_error():
        return message
    content = RecordDict(dict(message.content))
    for name, record in message.content.array_records.items():
        content[name] = ArrayRecord({key: filled(array, chance) for key, array in record.items()})
    return noted(message, content)


def filled(array: Array, chance: Random) -> Array:
    honest = array.numpy().copy()
    with np.errstate(all="ignore"):
        bad = np.asarray(number(chance)).astype(honest.dtype)
        if chance.random() < 0.5 or not honest.size:
            honest[...] = bad
        else:
            honest.reshape(-1)[chance.randrange(honest.size)] = bad
    return Array(honest)


def forged(array: Array, chance: Random) -> Array:
    """An array that is not what it says, or says what was not asked for."""
    honest, what = array.numpy(), chance.randrange(8)
    shapes = ((), (0,), (*honest.shape, 2), (3,), (1,) * 40)
    if what == 0:
        return filled(array, chance)
    if what == 1:
        return Array(np.zeros(chance.choice(shapes[:4]), honest.dtype))
    if what == 2:
        return Array(honest.astype(chance.choice(DTYPES)))
    cut = array.data[: chance.randrange(len(array.data) + 1)]
    data = chance.choice([cut, b"", chance.randbytes(50), array.data + b"more", bytes(200_000)])
    if what == 3:
        return Array(array.dtype, tuple(array.shape), array.stype, data)
    if what == 4:
        return Array(
            array.dtype, chance.choice([*shapes, (-1,), (2**62,)]), array.stype, array.data
        )
    if what == 5:
        return Array(word(chance), tuple(array.shape), array.stype, array.data)
    if what == 6:
        return Array(array.dtype, tuple(array.shape), word(chance), array.data)
    damaged = bytearray(array.data)
    for _ in range(chance.randint(1, 8)):
        damaged[chance.randrange(min(len(damaged), 128))] = chance.randrange(256)
    return Array(array.dtype, tuple(array.shape), array.stype, bytes(damaged))


def another_message(message: Message, chance: Random) -> Message:
    """A reply that says it answers another message, comes from another node, is of another kind."""
    about = message.metadata
    forged_about = Metadata(
        run_id=about.run_id,
        message_id=about.message_id,
        src_node_id=chance.choice([about.src_node_id, 1, 2, 3, 2**63]),
        dst_node_id=about.dst_node_id,
        reply_to_message_id=chance.choice([f"m{chance.randrange(12)}", "", word(chance)]),
        group_id=word(chance),
        created_at=about.created_at,
        ttl=about.ttl,
        message_type=chance.choice([about.message_type, *KINDS]),
    )
    if message.has_error():
        return make_message(metadata=forged_about, error=message.error)
    return make_message(metadata=forged_about, content=message.content)


class CannotBeUnpackedError(ValueError):
    """What Flower raises for objects that are no message; the exact type is its own business."""


def unpackable(message: Message, chance: Random) -> Message:
    raise CannotBeUnpackedError(word(chance))


WAYS: tuple[Callable[[Message, Random], Message | None], ...] = (
    an_error, silence, nothing_in_it, a_refusal, other_records, other_values, other_values, poison,
    poison, another_message, unpackable,
)  # fmt: skip
"""How a client may lie."""


def federation(seed: int, m: int, rounds: int = 3) -> dict[str, Any]:
    """Run a federation of which up to two in five lie; it must finish, read back, resume, report.

    Who lies and how follows from the seed. Returns what happened.
    """
    chance, choices = Random(seed), RUNS[seed % len(RUNS)]
    liars = sorted(chance.sample(range(m), chance.randint(1, max(1, 2 * m // 5))))
    with TemporaryDirectory() as place:
        out = Path(place) / "run"
        nodes = make_nodes(m, Path(place), {i: lies(chance) for i in liars})
        for until in (rounds - 1, rounds):
            result = serve_hostile(nodes, out, until, **choices)
            check_run(result, out, rounds=until, honest=m - len(liars))
        page([out])
        refused = sum(len(each.get("network", {}).get("refused", [])) for each in read_metrics(out))
    return {"seed": seed, **choices, "nodes": m, "liars": len(liars), "refused": refused}


if __name__ == "__main__":
    flags = argparse.ArgumentParser()
    flags.add_argument("--count", type=int, default=24)
    flags.add_argument("--nodes", type=int, default=20)
    chosen = flags.parse_args()
    torch.set_num_threads(1)
    for name_of_log in ("wecfl", "flwr"):
        logging.getLogger(name_of_log).setLevel(logging.ERROR)
    for number_of_run in range(chosen.count):
        print(federation(number_of_run, chosen.nodes), flush=True)
