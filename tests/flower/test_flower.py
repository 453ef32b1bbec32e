"""Runs over a grid without a network: real client apps, the real server, messages in between."""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from flwr.app.message.message import make_message
from torch import nn

import wecfl
from fakegrid import WAITS, FakeGrid, Node, Tamper, changed, digits_of
from fuzzing import in_turns
from helpers import method_named, run_flat
from wecfl import Federation, NativeEngine, State, methods
from wecfl.bilevel.local import Alone
from wecfl.bilevel.representation import Columns
from wecfl.config import Config
from wecfl.core.ask import Ask
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate
from wecfl.core.schedule import Warmup
from wecfl.core.setting import Setting
from wecfl.core.state import Reply
from wecfl.errors import ConfigError, EngineError
from wecfl.flower import FlowerEngine, Roster, client_app
from wecfl.flower.messages import PROTOCOL_VERSION
from wecfl.flower.roster import Place
from wecfl.flower.server import read, serve
from wecfl.folder.cluster_models import export_model
from wecfl.folder.parsing import read_tensors
from wecfl.folder.readers import config_of, read_metrics
from wecfl.method_from_config import method_of
from wecfl.methods import METHODS
from wecfl.models import row_of
from wecfl.report.page.html import page
from wecfl.runs.result import Result
from wecfl.runs.summary import replies

M, CLASSES = 4, 10


@pytest.fixture(scope="module")
def fed() -> Federation:
    return digits_of(M)


def make_model() -> nn.Module:
    """The same start whoever makes it, with a part that is no head and one that is not trained."""
    return wecfl.models.build("mlp", shape=(1, 8, 8), classes=CLASSES, seed=5)


Nodes = dict[int, Node]


@pytest.fixture
def nodes(fed: Federation, tmp_path: Path) -> Nodes:
    """Clients 0 … 3, at nodes whose numbers are in another order."""

    def load_data(config: Any) -> tuple[Any, ...]:
        train, test = (rows[config["partition-id"]] for rows in (fed.train, fed.test))
        return fed.x[train], fed.y[train], fed.x[test], fed.y[test]

    app = client_app(load_data, make_model, classes=CLASSES)
    return {
        90 - i: Node(
            app, {"client-id": f"c{i}", "partition-id": i, "state-dir": f"{tmp_path}/c{i}"}
        )
        for i in range(M)
    }


Served = Callable[..., Result]


@pytest.fixture
def served(nodes: Nodes, tmp_path: Path) -> Iterator[Served]:
    def run(grid: FakeGrid | None = None, **said: Any) -> Result:
        usual: dict[str, Any] = {
            "clients": M, "rounds": 3, "steps": 3, "lr": 0.05, "seed": 3, "clusters": 2,
            "timeout": 5, "enrolment": 0.2, "min_clients": 2, "out": str(tmp_path / "run"),
        }  # fmt: skip
        chosen = {key: value for key, value in {**usual, **said}.items() if value is not None}
        config = {key.replace("_", "-"): value for key, value in chosen.items()}
        return serve(grid or FakeGrid(nodes), config, make_model, classes=CLASSES, **WAITS)

    level = logging.getLogger("wecfl").level
    logging.getLogger("wecfl").setLevel(logging.INFO)
    yield run
    logging.getLogger("wecfl").setLevel(level)


def simulated(fed: Federation, method: str = "wecfl", k: Any = 2, **options: Any) -> Result:
    """The same run here, with the defaults of a run over a network."""
    _, config = read({"clients": M})
    usual: dict[str, Any] = {
        "rounds": 3, "steps": 3, "lr": 0.05, "seed": 3, "objectives": config.objectives,
        "refuse_above": config.refuse_above, "shorten_above": config.shorten_above,
    }  # fmt: skip
    chosen = method_of(Config(method=method, clusters=k))
    return run_flat(fed, chosen, model=make_model(), **{**usual, **options})


def over_and_here(
    fed: Federation, grid: FakeGrid, method: Method, rounds: int
) -> tuple[Result, Result, FlowerEngine]:
    """A method that is a value over the network, the same in a simulation, and what carried it."""
    roster = Roster(M, classes=CLASSES, shape=fed.shape)
    runner = FlowerEngine(grid, roster, make_model(), **WAITS)
    runner.enrol(M, 5)
    roster.sort()
    options: dict[str, Any] = {"rounds": rounds, "steps": 3, "lr": 0.05, "objectives": False}
    over = run_flat(roster, method, model=make_model(), engine=runner, **options)
    return over, run_flat(fed, method, model=make_model(), **options), runner


def same_result(one: Result, two: Result) -> None:
    assert one.labels.tolist() == two.labels.tolist()
    for a, b in zip(one.states, two.states, strict=True):
        np.testing.assert_array_equal(a.centers, b.centers)
        np.testing.assert_array_equal(a.models, b.models)
    assert [r["accuracy"] for r in one.records] == [r["accuracy"] for r in two.records]


# The same numbers as a simulation


@pytest.mark.parametrize("method", in_turns([*METHODS, "wecfl auto"], 0))
def test_every_method_comes_to_what_the_simulation_does(
    fed: Federation, served: Served, method: str
) -> None:
    name, _, auto = method.partition(" ")
    k: Any = "auto" if auto else 2 if "k" in methods.options(name) else 1
    over = served(method=name, clusters=k, rounds=2)
    same_result(over, simulated(fed, name, k, rounds=2))
    assert over.clients["client"].tolist() == ["c0", "c1", "c2", "c3"]


def test_projections_are_those_of_the_simulation(fed: Federation, served: Served) -> None:
    method = methods.wecfl(2, project=8)
    here = run_flat(fed, method, model=make_model(), rounds=3, steps=3, lr=0.05, seed=3)
    same_result(served(project=8), here)


def test_optimizer_epochs_schedule_and_the_rule_of_the_end_work_over_the_network(
    fed: Federation, served: Served, tmp_path: Path
) -> None:
    plan: dict[str, Any] = {"steps": None, "epochs": 1, "optimizer": "adam", "max_gradient": 1.0}
    over = served(method="ditto", clusters=1, rounds=9, lr=0.0, warmup=2, until="score",
                  patience=2, **plan)  # fmt: skip
    assert len(over.records) == 3
    assert "accuracy" in over.summary["stopped"]
    learned = served(
        method="ditto", clusters=1, rounds=3, warmup=2, out=str(tmp_path / "two"), **plan
    )
    same_result(learned, simulated(fed, "ditto", 1, schedule=Warmup(2), **plan))
    assert [record["lr"] for record in learned.records] == [0.025, 0.05, 0.05]


def test_each_client_gets_the_model_of_its_own_cluster_and_each_model_travels_once(
    fed: Federation, nodes: Nodes, served: Served
) -> None:
    grid = FakeGrid(nodes)
    result = served(grid, rounds=2)
    last = [m for m in grid.pushed if m.metadata.message_type == "query.ask"][-M:]
    sent = {m.metadata.dst_node_id: m.content.array_records["own"]["model"] for m in last}
    for i in range(M):
        np.testing.assert_array_equal(sent[90 - i].numpy(), result.centers[result.labels[i]])
    assert len({array.object_id for array in sent.values()}) == len(np.unique(result.labels)) == 2


def test_objectives_and_diagnostics_are_asked_for_over_the_network(
    fed: Federation, served: Served
) -> None:
    over = served(objectives=True, diagnostics=True)
    here = simulated(fed, objectives=True, diagnostics=True)
    for a, b in zip(over.records, here.records, strict=True):
        assert a["R"] == pytest.approx(b["R"])
        assert a["F"] == pytest.approx(b["F"])
        assert a["B"]["Q"] == pytest.approx(b["B"]["Q"], rel=1e-4)


def test_private_columns_never_leave_the_client(fed: Federation, nodes: Nodes) -> None:
    method = methods.fedprox(0.1).replace(shared="~head", representation=Columns("~head"))
    grid = FakeGrid(nodes)
    over, here, runner = over_and_here(fed, grid, method, rounds=3)
    same = [r["accuracy"] for r in over.records] == [r["accuracy"] for r in here.records]
    assert same  # clients are tested with the columns they keep
    columns = runner.layout.columns("~head")
    np.testing.assert_array_equal(over.centers[:, columns], here.centers[:, columns])
    head = runner.layout.columns("head")
    np.testing.assert_array_equal(
        over.states[0].models[:, head], runner.starts([0], 0)[[0] * M][:, head]
    )
    widths = {
        array.shape[-1]
        for message in grid.pushed
        for record in message.content.array_records.values()
        for array in record.values()
    }
    assert widths == {np.arange(runner.layout.width)[columns].size}


def test_programs_keep_what_others_kept(fed: Federation, nodes: Nodes) -> None:
    """A round with two exchanges, whose programs remember different things."""
    method = methods.fedavg.replace(steps=(Ask(program=Alone()), "L", "E", "M", "D"))
    over, here, _ = over_and_here(fed, FakeGrid(nodes), method, rounds=3)
    np.testing.assert_array_equal(over.centers, here.centers)
    assert not any("restarted" in record.get("network", {}) for record in over.records)
    assert over.states[0].tick == here.states[0].tick == 6


@pytest.mark.parametrize(
    "name",
    [
        "ifca+",
        "ifca-one-shot",
        "cam",
        "fedem",
        "fedrc",
        "fedsoft",
        "pacfl",
        "fedgroup",
        "stocfl",
        "k-fed",
    ],
)
def test_several_models_and_trials_over_a_network(name: str, fed: Federation, nodes: Nodes) -> None:
    """What is asked before the rounds, what is common to all, and replies of several models."""
    method = method_named(name, k=2)
    over, here, _ = over_and_here(fed, FakeGrid(nodes), method, rounds=2)
    np.testing.assert_array_equal(over.centers, here.centers)
    np.testing.assert_array_equal(over.labels, here.labels)
    scores = [record["accuracy"] for run in (over, here) for record in run.records]
    assert scores[:2] == scores[2:]
    assert not any("restarted" in record.get("network", {}) for record in over.records)


def test_one_client_that_lies_about_the_shape_of_samples_changes_nothing(
    fed: Federation, nodes: Nodes, served: Served
) -> None:
    """The server takes what most of them say, also where the liar is the first in the roster."""

    def lie(message: Message) -> Message:
        if message.metadata.message_type == "query.hello":
            message.content.config_records["config"]["shape"] = "7,7"
        return message

    nodes[90].tamper = lie
    same_result(served(method="k-fed", rounds=2), simulated(fed, "k-fed", rounds=2))


@pytest.mark.parametrize("name", ["ditto", "local", "fedper", "lg-fedavg", "fedrep"])
def test_what_is_a_clients_own_is_in_no_message(
    name: str, nodes: Nodes, served: Served, tmp_path: Path
) -> None:
    """Neither a personal model nor a private column, nor any long part of one, either way."""
    answers: list[Message] = []

    def watch(message: Message) -> Message:
        answers.append(message)
        return message

    for node in nodes.values():
        node.tamper = watch
    grid = FakeGrid(nodes)
    served(grid, method=name, clusters=1, rounds=3)
    travelled = {
        array.data[at : at + 32]  # eight numbers, wherever they begin
        for message in [*grid.pushed, *answers]
        for record in message.content.array_records.values()
        for array in record.values()
        for at in range(0, len(array.data), 4)
    }
    found = 0
    for file in tmp_path.glob("c*/**/*.safetensors"):
        for field, kept in read_tensors(file).items():
            if field in ("personal", "private"):
                found += 1
                start = row_of(make_model())
                for i in range(0, len(kept) - 8, 8):
                    piece = kept[i : i + 8].astype(np.float32)
                    if not np.isin(piece, start).any() and piece.any():  # it has moved
                        assert piece.tobytes() not in travelled
    assert found >= M


def test_places_are_in_the_order_of_the_keys_not_of_names_or_arrival() -> None:
    roster = Roster(2)
    roster.join(Place("a", node=7, key=5, samples=3))
    roster.join(Place("b", node=8, key=1, samples=4))
    roster.sort()
    assert (roster.names, roster.sizes.tolist(), roster.row(7)) == (("b", "a"), [4, 3], 1)


# Replies that can't be used


def lie(array: Any = None, declared: Any = None, **metrics: Any) -> Tamper:
    """Answer training with another array, declared as it is or otherwise, or another weight."""

    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "train":
            held = message.content.array_records["arrays"]["model"]
            told = array(held.numpy()) if array else held.numpy()
            made = Array(np.asarray(told))
            if declared:
                made = Array(held.dtype, held.shape, held.stype, declared(made.data))
            message.content["arrays"] = ArrayRecord({"model": made})
            message.content.metric_records["metrics"].update(metrics)
        return message

    return tamper


def failed(message: Message) -> Message:
    """As the SuperLink says it."""
    if message.metadata.message_type == "train":
        return make_message(message.metadata, error=Error(7, "out of\nmemory"))
    return message


BAD: dict[str, tuple[Tamper, Reply, str]] = {
    "NaN": (lie(lambda row: row * np.nan), Reply.NOT_FINITE, "NaN or infinity"),
    "infinite": (lie(lambda row: row + np.inf), Reply.NOT_FINITE, "NaN or infinity"),
    "shape": (lie(lambda row: row[:-1]), Reply.MALFORMED, "must be float32"),
    "rows": (lie(lambda row: row[None]), Reply.MALFORMED, "must be float32"),
    "float64": (lie(lambda row: row.astype(np.float64)), Reply.MALFORMED, "got float64"),
    "oversized": (lie(declared=lambda data: data + bytes(10**6)), Reply.MALFORMED, "must take"),
    "short": (lie(declared=lambda data: data[:-4]), Reply.MALFORMED, "must hold"),
    "no array": (lie(declared=lambda data: bytes(len(data))), Reply.MALFORMED, "not an array"),
    "header": (
        lie(lambda row: row.view(np.int32), declared=lambda data: data),
        Reply.MALFORMED, "its header says",
    ),
    "weight": (lie(samples=10**15), Reply.MALFORMED, "now 1000000000000000"),
    "norm": (lie(lambda row: row + np.float32(1e6)), Reply.TOO_LARGE, ""),
    "keys": (changed(arrays=ArrayRecord({"a": Array(np.zeros(3))})), Reply.MALFORMED, "['a']"),
    "records": (changed(more=ConfigRecord({})), Reply.MALFORMED, "expected records"),
    "metrics": (lie(samples=1.5), Reply.MALFORMED, "whole numbers"),
    "error": (failed, Reply.MALFORMED, "out of memory"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_refused_with_its_reason_and_the_run_goes_on(
    fed: Federation, nodes: Nodes, served: Served, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    nodes[88].tamper, reply, reason = BAD[kind]
    result = served(rounds=2, method="fedavg", clusters=1)
    assert replies(result.records, M).tolist() == [[0, 0, reply, 0]] * 2
    if reason:
        refused = [line for record in result.records for line in record["network"]["refused"]]
        assert [who for who, _ in refused] == ["c2", "c2"]
        assert all(reason in why and "\n" not in why for _, why in refused)
        assert "reply of c2" in caplog.text
    assert result.clients["refused"].tolist() == [0, 0, 2, 0]
    # The others come to what they do without it.
    others = simulated(fed.subset([0, 1, 3]), "fedavg", 1, rounds=2)
    np.testing.assert_allclose(result.centers, others.centers, atol=1e-6)


def test_a_lie_about_scores_is_refused_and_left_out(
    nodes: Nodes, served: Served, tmp_path: Path
) -> None:
    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "query.ask":
            table = np.full((CLASSES, CLASSES), -1.0)
            message.content["arrays"] = ArrayRecord({"after": Array(table)})
        return message

    nodes[90].tamper = tamper
    record = served().records[-1]
    assert record["clients"]["accuracy"][0] is None
    assert record["accuracy"] > 0.2
    [(who, why)] = record["network"]["refused"]
    assert who == "c0"
    assert why.startswith("score: ") and "negative" in why
    shown = page([tmp_path / "run"])
    assert 'c0</th><td class="number">355</td><td class="number">–</td>' in shown


# Who takes part


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"client-id": "c1"}, "name c1 "),
        ({"client-id": "x", "partition-id": 1}, "key 1 "),
        ({"client-id": ""}, "a name must have"),
        ({"client-id": "a\nb"}, "printable"),
    ],
)
def test_who_can_not_have_a_place_is_told_why(
    nodes: Nodes, served: Served, config: dict[str, Any], reason: str
) -> None:
    nodes[99] = replace(nodes[90], config={**nodes[90].config, **config})
    nodes[90].online = False  # so that there is a place
    record = served(rounds=1).records[0]
    assert any(who == "node 99" and reason in why for who, why in record["network"]["refused"])


def test_another_model_and_other_classes_are_refused(
    fed: Federation, nodes: Nodes, served: Served
) -> None:
    def load_data(config: Any) -> tuple[Any, ...]:
        return fed.x[fed.train[0]], fed.y[fed.train[0]]

    def other() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))

    nodes[90].app = client_app(load_data, other, classes=CLASSES)
    nodes[89].app = client_app(load_data, make_model, classes=11)
    record = served(rounds=1).records[0]
    why = dict(record["network"]["refused"])
    assert "other tensors" in why["node 90"]
    assert "11 classes" in why["node 89"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"programs": "0123456789abcdef"}, "same version of wecfl"),
        ({"protocol": PROTOCOL_VERSION - 1}, "same version of wecfl"),
        ({"protocol": PROTOCOL_VERSION + 1}, "same version of wecfl"),
        ({"protocol": str(PROTOCOL_VERSION)}, "got str"),
        ({"protocol": None, "programs": None}, "expected the keys ['classes', 'key'"),
        ({"shape": "8,0"}, "shape must be"),
        ({"shape": "9" * 5000}, "shape must be"),
        ({"shape": "100000,100000"}, "at most"),
    ],
    ids=["programs", "earlier", "later", "type", "first edition", "zero", "long", "huge"],
)
def test_a_client_of_another_version_is_refused_at_the_greeting(
    nodes: Nodes, served: Served, said: dict[str, Any], reason: str
) -> None:
    """It is told so, never asked to train, and the others go on without it."""

    def tamper(message: Message) -> Message:
        if message.metadata.message_type == "query.hello":
            told = {**message.content.config_records["config"], **said}
            kept = {key: value for key, value in told.items() if value is not None}
            message.content["config"] = ConfigRecord(kept)
        return message

    nodes[88].tamper = tamper
    result = served(rounds=1, method="fedavg", clusters=1)
    [(who, why)] = result.records[0]["network"]["refused"]
    assert who == "node 88"
    assert reason in why
    assert nodes[88].seen == ["query.hello"]
    assert result.clients["client"].tolist() == ["c0", "c1", "c3", "place 3"]
    assert replies(result.records, M).tolist() == [[0, 0, 0, Reply.ABSENT]]


def test_too_few_clients_end_in_one_line(nodes: Nodes, served: Served) -> None:
    for number in (89, 88, 87):
        nodes[number].online = False
    with pytest.raises(EngineError, match=r"1 of at least 2 clients"):
        served()


def test_a_client_that_never_answers_does_not_hold_the_others_up(
    nodes: Nodes, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    nodes[88].tamper = lambda m: None if m.metadata.message_type == "train" else m
    result = served(timeout=60)
    assert replies(result.records, M).tolist() == [[0, 0, Reply.LOST, 0]] * 3
    assert "no reply of client c2" in caplog.text
    assert result.seconds < 50


def test_late_replies_are_counted_and_dropped(nodes: Nodes, served: Served) -> None:
    nodes[88].late = True
    result = served(rounds=4, enrolment=20)
    late = [record.get("network", {}).get("late", 0) for record in result.records]
    assert late == [0, 1, 1, 1]
    assert (replies(result.records, M)[:, 2] == Reply.LOST).all()
    assert result.status == "finished"


def test_clients_join_and_leave_while_it_runs(
    fed: Federation, nodes: Nodes, tmp_path: Path, served: Served
) -> None:
    class Moving(FakeGrid):
        def push_messages(self, messages: Any) -> Any:
            for message in messages:
                if message.metadata.message_type == "train":
                    t = int(message.metadata.group_id)
                    nodes[88].online, nodes[90].online = t >= 1, t != 2
            return super().push_messages(messages)

    nodes[88].online = False
    result = served(Moving(nodes), rounds=4, method="wecfl")
    told = replies(result.records, M)
    place = result.clients["client"].tolist().index("c2")
    assert place == 3  # it came last
    assert told[0, place] == Reply.ABSENT
    assert (told[2:, place] == Reply.HEARD).all()
    assert any(record.get("network", {}).get("joined") == ["c2"] for record in result.records)
    assert Reply.HEARD in told[:, 0]
    assert Reply.HEARD not in told[2, :1]
    assert result.records[0]["clients"]["accuracy"][place] is None
    assert result.clients["samples"][place] == fed.sizes[2]
    # The page shows such a run, too.
    assert "c2" in page([tmp_path / "run"])


def test_without_a_quorum_a_round_is_asked_for_again_and_then_given_up(
    fed: Federation, nodes: Nodes, served: Served, tmp_path: Path
) -> None:
    def silent(message: Message) -> Message | None:
        late = int(message.metadata.group_id or 0) >= 2
        return None if message.metadata.message_type == "train" and late else message

    for number in (90, 89):
        nodes[number].tamper = silent
    with pytest.raises(EngineError, match=r"round 3 .*2 valid replies of 4 clients"):
        served(timeout=0.3, tries=2, rounds=4)
    assert nodes[90].seen.count("train") == 4  # twice in vain
    assert nodes[88].seen.count("train") == 3  # who has answered is not asked again
    for number in (90, 89):
        nodes[number].tamper = lambda message: message
    assert len(read_metrics(tmp_path / "run")) == 2
    same_result(served(rounds=4), simulated(fed, rounds=4))


# Going on


def kept(run: Path, i: int) -> dict[str, Any]:
    """What the client keeps of the run on its own disk, and after how many exchanges it did."""
    folder = run.parent / f"c{i}" / json.loads((run / "roster.json").read_text())["run"]
    files = sorted(folder.rglob("*.safetensors"), key=lambda file: int(file.stem))
    return {"tick": int(files[-1].stem), **read_tensors(files[-1])} if files else {}


def same_memory(run: Path, state: State) -> set[str]:
    """The clients keep on their disks what a simulation has in its state; of what name."""
    names = set(state.memory) - {"begun"}
    for i in range(M):
        held = kept(run, i)
        assert held.keys() - {"tick"} == names
        assert held.get("tick", state.tick) == state.tick
        for name in names:
            assert held[name].tobytes() == state.memory[name][i].tobytes(), name
    return names


KEPT = {
    "wecfl": {"momentum"}, "scaffold": set[str](), "fedadam": {"momentum"},
    "ditto": {"personal", "personal_momentum", "momentum"}, "fedper": {"private", "momentum"},
    "local": {"personal", "momentum"},
}  # fmt: skip
"""By method, what stays with a client."""
KEPT_BY_THE_SERVER = {
    "wecfl": {}, "scaffold": {"known": {"control"}}, "fedadam": {"cluster": {"m", "v"}},
    "ditto": {}, "fedper": {}, "local": {},
}  # fmt: skip


@pytest.mark.parametrize("method", KEPT)
def test_a_killed_server_goes_on_to_the_same_bits(
    fed: Federation, nodes: Nodes, served: Served, tmp_path: Path, method: str
) -> None:
    """Also where clients had trained a round that the server forgot: at the server and at them."""

    class Dying(FakeGrid):
        def pull_messages(self, message_ids: Any) -> Any:
            asked = [m.metadata for m in self.pushed if m.metadata.message_type == "train"]
            if any(each.group_id == "2" for each in asked):
                raise ConnectionError("killed")
            return super().pull_messages(message_ids)

    how: dict[str, Any] = {"method": method, "clusters": 2 if method == "wecfl" else 1}
    with pytest.raises(ConnectionError, match="killed"):
        served(Dying(nodes), rounds=5, **how)
    (tmp_path / "run" / "summary.json").unlink()  # a killed process writes none
    assert nodes[90].seen.count("train") == 3
    assert kept(tmp_path / "run", 0).get("tick", 3) == 3  # one more than the server knows of
    again = served(rounds=5, **how)
    assert nodes[90].seen.count("train") == 6
    assert not any("restarted" in record.get("network", {}) for record in again.records)
    here = simulated(fed, method, how["clusters"], rounds=5)
    whole = served(rounds=5, out=str(tmp_path / "whole"), **how)
    for other in (here, whole):
        same_result(again, other)
        for owner in ("cluster", "known", "whole"):
            one, two = (getattr(each.states[0], owner) for each in (again, other))
            assert one.keys() == two.keys() == KEPT_BY_THE_SERVER[method].get(owner, set())
            assert all(one[name].tobytes() == two[name].tobytes() for name in one)
    for run in ("run", "whole"):
        assert same_memory(tmp_path / run, here.states[0]) == KEPT[method]


def ruin(file: Path) -> None:
    file.write_bytes(b"garbage")


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 7)


@pytest.mark.parametrize("damage", [ruin, cut, Path.unlink])
@pytest.mark.parametrize("method", ["wecfl", "ditto", "fedper", "local"])
def test_a_client_that_lost_its_state_says_so(
    fed: Federation, served: Served, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    *, method: str, damage: Callable[[Path], None],
) -> None:  # fmt: skip
    """And starts as at its first contact: momentum from zero, models from what it received."""
    k = 2 if method == "wecfl" else 1
    how: dict[str, Any] = {"method": method, "clusters": k, "shorten_above": "never"}
    served(rounds=2, **how)
    for file in (tmp_path / "c1").rglob("*.safetensors"):
        damage(file)
    result = served(rounds=3, **how)
    assert result.records[2]["network"]["restarted"] == ["c1"]
    assert "client c1 has lost" in caplog.text

    before = simulated(fed, method, k, rounds=2, shorten_above=np.inf).states[0]
    memory = {name: rows.copy() for name, rows in before.memory.items()}
    for rows in memory.values():
        rows[1] = 0  # of `begun`: not yet
    chosen = method_of(Config(method=method, clusters=k))
    with NativeEngine(fed, make_model(), workers=1) as runner:
        setting = Setting(chosen, runner, LocalPlan(steps=3, lr=0.05), seed=3)
        expected = next(iterate(setting, before.replace(memory=memory)))
    np.testing.assert_array_equal(result.centers, expected.centers)
    assert same_memory(tmp_path / "run", expected) == KEPT[method]


def test_a_run_goes_on_with_its_own_clients_only(
    fed: Federation, nodes: Nodes, served: Served, tmp_path: Path
) -> None:
    served(rounds=1)
    with pytest.raises(ConfigError, match=r"clients = 4 .* 5"):
        served(rounds=2, clients=5)
    moved = {number + 100: node for number, node in nodes.items()}
    with pytest.raises(EngineError, match="0 of at least 2 clients"):
        served(FakeGrid(moved), rounds=2)
    result = served(FakeGrid(moved), rounds=2, pin_nodes=False)
    assert len(result.records) == 2
    with pytest.raises(ConfigError, match="a run over a network"):
        config_of(tmp_path / "run")
    loaded = wecfl.load(tmp_path / "run", model=make_model)
    assert loaded.centers.tobytes() == result.centers.tobytes()
    assert loaded.summary == {**result.summary, "seconds": loaded.seconds}
    assert loaded.clients["client"].tolist() == ["c0", "c1", "c2", "c3"]
    assert loaded.predict(fed.x[:5], client="c2").shape == (5,)
    place = tmp_path / "cluster.safetensors"
    assert export_model(tmp_path / "run", 0, "safetensors", place).exists()


def test_the_weight_of_a_client_is_frozen_when_it_joins(
    fed: Federation, nodes: Nodes, served: Served
) -> None:
    served(rounds=1)

    def more(config: Any) -> tuple[Any, ...]:
        return fed.x[fed.train[0]][:50], fed.y[fed.train[0]][:50]

    nodes[90].app = client_app(more, make_model, classes=CLASSES)
    record = served(rounds=2).records[1]
    [(who, why)] = record["network"]["refused"]
    assert who == "node 90"
    assert re.search(rf"\bc0 .*\b{fed.sizes[0]} samples .*\b40\b", why)


# What can be asked for


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"clients": 0}, "clients"),
        ({"quorum": 1.5}, "quorum"),
        ({"min-clients": 9}, r"9 .* 4 clients"),
        ({"cluters": 2}, "did you mean 'clusters'"),
        ({"dataset": "digits"}, "dataset .* simulation"),
        ({"scale": "standard"}, "scale .* simulation"),
        ({"rounds": "3"}, "rounds"),
        ({"method": "nope"}, "nope"),
    ],
)
def test_bad_choices_end_in_one_line(served: Served, said: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as info:
        served(**said)
    assert "\n" not in str(info.value)


def test_attacks_need_a_simulation(nodes: Nodes) -> None:
    runner = FlowerEngine(FakeGrid(nodes), Roster(M), make_model())
    with pytest.raises(ConfigError, match="simulated"):
        run_flat(Roster(M), methods.fedavg, model=make_model(), engine=runner, attack="noise")
    with pytest.raises(ConfigError, match="needs the clients' data"):
        run_flat(Roster(M), methods.fedavg, model=make_model())
