"""Whatever one client says, the run goes on without it, and its folder reads back and resumes."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message.message import make_message
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import wecfl
from fakegrid import WAITS, FakeGrid, Node, Tamper, digits_of
from fuzzing import tries
from wecfl import Federation
from wecfl.flower import client_app
from wecfl.flower.server import serve
from wecfl.folder.readers import read_clients, read_metrics, read_summary
from wecfl.report.page.html import page
from wecfl.runs.result import Result

M, CLASSES = 4, 10


@pytest.fixture(scope="module")
def fed() -> Federation:
    return digits_of(M)


def make_model() -> nn.Module:
    return wecfl.models.build("logistic", shape=(1, 8, 8), classes=CLASSES, seed=5)


def nodes_of(fed: Federation, place: str, tamper: Tamper) -> dict[int, Node]:
    def load_data(config: Any) -> tuple[Any, ...]:
        train, test = (rows[config["partition-id"]] for rows in (fed.train, fed.test))
        return fed.x[train], fed.y[train], fed.x[test], fed.y[test]

    app = client_app(load_data, make_model, classes=CLASSES)
    nodes = {
        i: Node(app, {"client-id": f"c{i}", "partition-id": i, "state-dir": f"{place}/c{i}"})
        for i in range(M)
    }
    nodes[0].tamper = tamper
    return nodes


def run(nodes: dict[int, Node], out: Path, rounds: int) -> Result:
    config = {
        "clients": M, "rounds": rounds, "steps": 2, "lr": 0.05, "clusters": 2, "timeout": 1,
        "enrolment": 0.05, "min-clients": 1, "quorum": 0.5, "out": str(out), "checkpoint-every": 1,
    }  # fmt: skip
    return serve(FakeGrid(nodes), config, make_model, classes=CLASSES, **WAITS)


NUMBERS: list[int | float] = [
    -1, 0, 1, 2, 2**31, 2**53, 2**60, 2**62, 2**63 - 1, -(2**63),
    0.5, -0.0, 1e30, 3e38, 1e308, float("nan"), float("inf"),
]  # fmt: skip
WORDS = ["", "c1", "x" * 10_000, "\x1b[31mred", "a\nb", "</script>", "\u202e", "ü"]
VALUES = st.one_of(st.sampled_from(NUMBERS), st.sampled_from(WORDS), st.booleans(), st.binary())


@st.composite
def tampers(draw: st.DrawFn) -> Tamper:
    """A client that changes some of what it says, in any of its messages."""
    kinds = draw(st.sets(st.sampled_from(["query.hello", "train", "query.ask"]), min_size=1))
    how = draw(st.sampled_from(["value", "drop", "extra", "error", "fill", "shape", "bytes"]))
    value, key = draw(VALUES), draw(st.sampled_from(range(8)))
    number = draw(st.sampled_from([each for each in NUMBERS if isinstance(each, float)]))

    def tamper(message: Message) -> Message | None:
        if message.metadata.message_type not in kinds:
            return message
        if how == "error":
            return make_message(
                metadata=message.metadata, error=Error(code=2, reason=str(value)[:500])
            )
        content = RecordDict(dict(message.content))
        name = sorted(content)[key % len(content)]
        record = content[name]
        if how == "drop":
            del content[name]
        elif how == "extra":
            content["more"] = ConfigRecord({"a": 1})
        elif isinstance(record, ArrayRecord):
            entry = sorted(record)[key % len(record)]
            content[name] = ArrayRecord({**record, entry: forged(record[entry], how, number)})
        else:
            kind = type(record)
            entry = sorted(record)[key % len(record)]
            changed: Any = {**record, entry: value}
            if kind is MetricRecord and not isinstance(value, int | float):
                changed = {**record, entry: 0.5}
            content[name] = kind(changed)
        return make_message(metadata=message.metadata, content=content)

    return tamper


def forged(array: Array, how: str, number: float) -> Array:
    honest = array.numpy()
    if how == "shape":
        return Array(np.zeros((*honest.shape, 2), honest.dtype))
    if how == "bytes":
        return Array(array.dtype, tuple(array.shape), array.stype, array.data[:-3])
    with np.errstate(all="ignore"):
        return Array(np.full_like(honest, number))


def replaced(kind: str, record: str, **entries: Any) -> Tamper:
    """A client that puts these entries into its messages of one kind."""

    def tamper(message: Message) -> Message:
        if message.metadata.message_type == kind:
            held: Any = message.content[record]
            arrays = isinstance(held, ArrayRecord)
            for key, value in entries.items():
                held[key] = Array(np.full_like(held[key].numpy(), value)) if arrays else value
        return message

    return tamper


@pytest.mark.parametrize(
    ("tamper", "clients"),
    [
        (replaced("query.hello", "config", key=2**63 - 1), 4),
        (replaced("query.hello", "config", key=2**60), 4),
        (replaced("query.hello", "config", name="\x1b[31m</script><script>alert(1)"), 4),
        (replaced("query.ask", "arrays", after=2.0**62), 4),
        (replaced("query.ask", "arrays", after=-1.0), 4),
        (replaced("train", "arrays", model=3e38), 4),
        (replaced("train", "arrays", model=3e38), 2),
        (replaced("train", "arrays", model=np.nan), 2),
        (replaced("train", "metrics", samples=2**62), 4),
        (replaced("train", "metrics", restarted=2**62), 4),
    ],
)
def test_numbers_that_ended_runs_do_not(fed: Federation, tamper: Tamper, clients: int) -> None:
    with TemporaryDirectory() as place:
        out = Path(place) / "run"
        nodes = dict(list(nodes_of(fed, place, tamper).items())[:clients])
        run(nodes, out, rounds=1)
        check(run(nodes, out, rounds=2), out, clients)


def test_what_a_client_says_does_not_reach_the_page_as_code(fed: Federation) -> None:
    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "train":
            reason = "\x1b[31m</script><script>alert(1)"
            return make_message(metadata=message.metadata, error=Error(code=2, reason=reason))
        return message

    with TemporaryDirectory() as place:
        out = Path(place) / "run"
        run(nodes_of(fed, place, tamper), out, rounds=1)
        [record] = read_metrics(out)
        assert "\\x1b[31m" in record["network"]["refused"][0][1]
        text = page([out])
        assert "\x1b" not in text
        assert "<script>alert" not in text


def check(result: Result, out: Path, clients: int = M) -> None:
    """The run is whole, its folder reads back, and the honest clients were heard throughout."""
    assert np.isfinite(result.centers).all()
    assert np.abs(result.centers).max() < 1e3
    records = read_metrics(out)
    assert len(records) == len(result.records)
    for record in records:
        assert record["accuracy"] is None or 0 <= record["accuracy"] <= 1
        assert record.get("replies", {"heard": M})["heard"] >= clients - 1
    assert read_summary(out)["status"] == "finished"
    assert len(read_clients(out)) == M


@tries(4)
@given(tamper=tampers())
def test_whatever_a_client_says_the_run_goes_on_reads_back_reports_and_resumes(
    fed: Federation, tamper: Tamper
) -> None:
    with TemporaryDirectory() as place:
        out = Path(place) / "run"
        run(nodes_of(fed, place, tamper), out, rounds=2)
        result = run(nodes_of(fed, place, tamper), out, rounds=3)  # resumed
        assert len(result.records) == 3
        check(result, out)
