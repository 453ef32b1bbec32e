"""Whatever one client says, the run goes on without it, and its folder reads back and resumes."""

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.app.message.message import make_message
from hypothesis import given
from hypothesis import strategies as st

from fakegrid import WAITS, FakeGrid, Node, Tamper
from fuzzing import chances, tries
from hostile import (
    CLASSES,
    RUNS,
    another_message,
    check_run,
    enrolled,
    lies,
    make_model,
    make_nodes,
    serve_hostile,
    unpackable,
)
from wecfl.bilevel.local import Train
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Job
from wecfl.enrolment import Enrolment
from wecfl.errors import ConfigError
from wecfl.flower import Roster
from wecfl.flower.mailbox import Mailbox
from wecfl.flower.messages import Refused, job_config, read_job
from wecfl.flower.roster import Place
from wecfl.flower.server import serve
from wecfl.folder.readers import read_metrics
from wecfl.report.page.html import page

M = 4


@pytest.mark.parametrize(
    "entries",
    [
        {"program": "[1]"}, {"program": "{"}, {"program": '"train"'}, {"program": '{"name": []}'},
        {"program": '{"name": "train"}'}, {"program": "9" * 5000}, {"steps": "many"}, {"steps": -1},
        {"lr": None}, {"seed": "x"}, {"round": 1e999}, {"optimizer": []}, {"done": None},
    ],
)  # fmt: skip
def test_a_request_without_a_job_is_refused_in_one_line(entries: dict[str, Any]) -> None:
    config = {**job_config(Job(Train(), LocalPlan())), "lr": 0.5, "done": 3}
    assert read_job(config).program == Train()
    with pytest.raises(ConfigError) as refused:
        read_job(config | entries)
    assert str(refused.value).count("\n") == 0 and len(str(refused.value)) < 400
    with pytest.raises(ConfigError, match="holds no job"):
        read_job({key: value for key, value in config.items() if key not in entries})


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


def always(how: Callable[[Message, Random], Message | None], kind: str = "train") -> Tamper:
    """A client that lies in one way in all its messages of one kind."""
    chance = Random(1)

    def tamper(message: Message) -> Message | None:
        return how(message, chance) if message.metadata.message_type == kind else message

    return tamper


@pytest.mark.parametrize(
    ("tamper", "clients"),
    [
        (replaced("query.hello", "config", key=2**63 - 1), 4),
        (replaced("query.hello", "config", key=2**60), 4),
        (replaced("query.hello", "config", name="\x1b[31m</script><script>alert(1)"), 4),
        (replaced("query.ask", "arrays", after=2.0**62), 4),
        (replaced("query.ask", "arrays", after=1e6), 4),
        (replaced("query.ask", "arrays", after=-1.0), 4),
        (replaced("train", "arrays", model=3e38), 4),
        (replaced("train", "arrays", model=3e38), 2),
        (replaced("train", "arrays", model=9e18), 2),
        (replaced("train", "arrays", model=np.nan), 2),
        (replaced("train", "metrics", samples=2**62), 4),
        (replaced("train", "metrics", restarted=2**62), 4),
        (always(unpackable), 4),
        (always(unpackable, "query.hello"), 4),
        (always(another_message), 4),
    ],
)
def test_what_ended_runs_does_not(tamper: Tamper, clients: int, tmp_path: Path) -> None:
    out, nodes = tmp_path / "run", make_nodes(clients, tmp_path, {0: tamper})
    serve_hostile(nodes, out, 1, method="wecfl", clusters=2)
    result = serve_hostile(nodes, out, 2, method="wecfl", clusters=2)
    check_run(result, out, rounds=2, honest=clients - 1)
    assert np.abs(result.centers).max() < 1e3


@tries(2)
@given(
    chance=chances,
    choices=st.sampled_from(RUNS),
)
def test_whatever_a_client_says_the_run_goes_on_reads_back_reports_and_resumes(
    chance: Random, choices: dict[str, Any]
) -> None:
    with TemporaryDirectory() as place:
        out, nodes = Path(place) / "run", make_nodes(M, Path(place), {0: lies(chance)})
        check_run(serve_hostile(nodes, out, 2, **choices), out, rounds=2, honest=M - 1)
        result = serve_hostile(nodes, out, 3, **choices)  # resumed
        check_run(result, out, rounds=3, honest=M - 1)
        text = page([out])
        assert "\x1b" not in text
        assert "<script>alert" not in text


# What a number is held against


def refusals(out: Path) -> dict[str, str]:
    """The last reason for which each client, or node, was refused."""
    records = read_metrics(out)
    return {who: why for each in records for who, why in each.get("network", {}).get("refused", [])}


def test_a_client_can_not_test_more_samples_than_it_joined_with(tmp_path: Path) -> None:
    """It holds 3: a tally of 9 counts is well formed, and a lie."""
    tamper = replaced("query.ask", "arrays", after=1.0)
    result = serve_hostile(make_nodes(M, tmp_path, {0: tamper}), tmp_path / "run", 1)
    assert "more than 3 test samples" in refusals(tmp_path / "run")["c0"]
    assert result.records[0]["clients"]["accuracy"][0] is None


def test_test_samples_are_counted_once_when_the_client_joins(tmp_path: Path) -> None:
    out, nodes = tmp_path / "run", make_nodes(M, tmp_path, {})
    serve_hostile(nodes, out, 1)
    nodes[0].tamper = replaced("query.hello", "config", tests=10**6)
    serve_hostile(nodes, out, 2)
    assert "3 for tests" in refusals(out)["node 0"]
    assert "1000000 for tests" in refusals(out)["node 0"]


def test_a_run_of_an_earlier_version_learns_the_numbers_of_test_samples(tmp_path: Path) -> None:
    out, nodes = tmp_path / "run", make_nodes(M, tmp_path, {})
    serve_hostile(nodes, out, 1)
    written = json.loads((out / "roster.json").read_text())
    assert [place.pop("tests") for place in written["places"]] == [3] * M
    (out / "roster.json").write_text(json.dumps(written))
    check_run(serve_hostile(nodes, out, 2), out, rounds=2, honest=M)
    after = json.loads((out / "roster.json").read_text())
    assert [place["tests"] for place in after["places"]] == [3] * M


@pytest.mark.parametrize(("length", "fits"), [(0.99, True), (1.01, False)])
def test_an_update_whose_squares_overflow_is_refused(
    tmp_path: Path, length: float, fits: bool
) -> None:
    """At half the root of the largest float32, where a squared distance would overflow."""
    width = sum(parameter.numel() for parameter in make_model().parameters())
    most = np.sqrt(np.finfo(np.float32).max / 4 / width)
    tamper = replaced("train", "arrays", model=length * most)
    nodes = make_nodes(M, tmp_path, dict.fromkeys(range(M), tamper))
    if fits:
        result = serve_hostile(nodes, tmp_path / "run", 1)
        assert np.isfinite(result.centers).all()
    else:
        with pytest.raises(Exception, match="0 valid replies"):
            serve_hostile(nodes, tmp_path / "run", 1, tries=1)


# One reply can't hold up, spoil or pose as another


class Stuck(FakeGrid):
    """A grid in which the upload of some replies never ends, as Flower waits for it."""

    def __init__(self, nodes: dict[int, Node], stuck: set[int]) -> None:
        super().__init__(nodes)
        self.stuck, self.released = stuck, Event()

    def pull_messages(self, message_ids: Any) -> Any:
        numbers = list(message_ids)
        for number in numbers:
            pushed = self.pushed[int(number[1:])].metadata
            if pushed.dst_node_id in self.stuck and pushed.message_type == "train":
                self.released.wait()
        return super().pull_messages(numbers)


def test_nobody_answers_for_another(tmp_path: Path) -> None:
    """What a reply says that it replies to is the sender's word."""

    def tamper(message: Message) -> Message:
        about = message.metadata
        if about.message_type == "train":
            other = f"m{int(about.reply_to_message_id[1:]) + 1}"
            about.__dict__["_reply_to_message_id"] = other
        return message

    result = serve_hostile(make_nodes(M, tmp_path / "a", {0: tamper}), tmp_path / "a" / "run", 2)
    honest = serve_hostile(make_nodes(M, tmp_path / "b", {}), tmp_path / "b" / "run", 2)
    assert refusals(tmp_path / "a" / "run") == {}
    np.testing.assert_array_equal(result.centers, honest.centers)


def test_nobody_has_the_name_of_a_free_place() -> None:
    roster = Roster(3)
    roster.join(Place("place holder", node=1, key=1, samples=3))
    with pytest.raises(Refused, match="name of a free place"):
        roster.join(Place("place 2", node=2, key=2, samples=3))


def test_an_upload_that_never_ends_holds_nobody_up(tmp_path: Path) -> None:
    nodes = make_nodes(M, tmp_path, {})
    grid = Stuck(nodes, {2})
    config = {"clients": M, "rounds": 2, "steps": 2, "timeout": 5, "method": "fedavg"}
    config["out"] = str(tmp_path / "run")
    result = serve(grid, config, make_model, classes=CLASSES, **WAITS)
    grid.released.set()
    assert result.status == "finished"
    assert [record["replies"]["lost"] for record in result.records] == [1, 1]


def test_what_takes_long_comes_later_and_an_error_of_the_transport_is_told(
    tmp_path: Path,
) -> None:
    def broken(message: Message) -> Message:
        raise ConnectionError("the SuperLink is gone")

    def push(*nodes: int) -> list[str]:
        about: dict[str, Any] = {"message_type": "train"}
        return [*grid.push_messages([Message(RecordDict(), dst_node_id=i, **about) for i in nodes])]

    nodes = make_nodes(2, tmp_path, {})
    grid = Stuck(nodes, {0})
    mailbox, (slow, quick) = Mailbox(grid, patience=0.05), push(0, 1)
    assert list(mailbox.take([slow, quick])) == [quick]
    grid.released.set()
    while not (late := mailbox.take([slow])):
        pass
    assert list(late) == [slow]
    nodes[1].tamper = broken
    with pytest.raises(ConnectionError, match="gone"):
        mailbox.take(push(1))


def test_what_a_client_says_does_not_reach_the_page_as_code(tmp_path: Path) -> None:
    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "train":
            reason = "\x1b[31m</script><script>alert(1)"
            return make_message(metadata=message.metadata, error=Error(code=2, reason=reason))
        return message

    out = tmp_path / "run"
    serve_hostile(make_nodes(M, tmp_path, {0: tamper}), out, 1)
    assert "\\x1b[31m" in refusals(out)["c0"]
    text = page([out])
    assert "\x1b" not in text
    assert "<script>alert" not in text


# Names and sizes by enrolment


def serve_enrolled(nodes: dict[int, Node], out: Path, enrolment: Enrolment | None) -> Any:
    config = {
        "clients": M, "rounds": 1, "steps": 2, "timeout": 1, "enrolment": 0.05, "out": str(out),
        "method": "fedavg",
    }  # fmt: skip
    choices: dict[str, Any] = {"classes": CLASSES, "enrolment": enrolment, **WAITS}
    return serve(FakeGrid(nodes), config, make_model, **choices)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"samples": 10**9}, "c0 is enrolled with at most 20 samples"),
        ({"samples": 21}, "at most 20 samples, but says that it has 21"),
        ({"name": "c1"}, "enrolled as c0"),
        ({"name": "somebody"}, "enrolled as c0"),
        ({"key": 1}, "enrolled with the number 0, but says 1"),
    ],
)
def test_who_says_something_else_than_the_operators_list_is_refused(
    tmp_path: Path, said: dict[str, Any], reason: str
) -> None:
    """And nobody is the center because it says so."""
    nodes = make_nodes(M, tmp_path, {0: replaced("query.hello", "config", **said)})
    result = serve_enrolled(nodes, tmp_path / "run", enrolled(M))
    assert reason in refusals(tmp_path / "run")["node 0"]
    assert result.clients["client"].tolist() == ["c1", "c2", "c3", "place 3"]
    assert result.clients["samples"].max() <= 20


def test_a_node_that_is_not_on_the_list_is_refused(tmp_path: Path) -> None:
    result = serve_enrolled(make_nodes(M, tmp_path, {}), tmp_path / "run", enrolled(M - 1))
    assert "not enrolled" in refusals(tmp_path / "run")["node 3"]
    assert result.clients["client"].tolist() == ["c0", "c1", "c2", "place 3"]


def test_a_model_that_does_not_fit_through_the_proxy_is_told_at_once(tmp_path: Path) -> None:
    nodes = make_nodes(M, tmp_path, {})
    with pytest.raises(ConfigError, match=r"lets only 1000 through.*--max-reply 1\d+$"):
        serve_enrolled(nodes, tmp_path / "run", enrolled(M, max_reply=1000))
    assert nodes[0].seen == []
    assert not (tmp_path / "run").exists()


def test_a_list_that_is_wrong_is_no_list_that_allows_all(tmp_path: Path) -> None:
    file = tmp_path / "enrolled.toml"
    file.write_text(enrolled(2).text)
    assert Enrolment.read(file) == enrolled(2)
    for text, problem in (
        ("clients = 3", "clients"),
        (enrolled(2).text.replace("samples = 20", "samples = 0"), "samples"),
        (enrolled(2).text.replace("number = 1", "number = 0"), "two clients have the number 0"),
        ("[[clients", "can't be read"),
        (enrolled(2).text.replace('"c1"', '"c0"'), "two clients have the name 'c0'"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=problem):
            Enrolment.read(file)
    with pytest.raises(ConfigError, match="can't be read"):
        Enrolment.read(tmp_path / "nowhere.toml")
