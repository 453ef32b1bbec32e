"""Privacy over a network, attacked as a hostile server would: what leaves a client."""

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn

import wecfl
from fakegrid import WAITS, FakeGrid, Node, digits_of
from wecfl import Federation
from wecfl.bilevel.local import Alone, ClusterLosses, Gradients, Risk, Score, Train
from wecfl.channel.privacy import Privacy, epsilon_of
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Answers, Job, Program, Sent
from wecfl.core.state import Reply
from wecfl.errors import ConfigError, EngineError, RunFolderError
from wecfl.flower import FlowerEngine, Roster, client_app
from wecfl.flower.ledger import LEDGER_FILE, Ledger
from wecfl.flower.server import serve
from wecfl.folder.readers import read_metrics
from wecfl.runs.result import Result

M, CLASSES = 3, 10
PRIVACY = Privacy(clip=0.1, noise=10.0)

Nodes = dict[int, Node]


@pytest.fixture(scope="module")
def fed() -> Federation:
    return digits_of(2 * M)


def make_model() -> nn.Module:
    return wecfl.models.build("logistic", shape=(1, 8, 8), classes=CLASSES, seed=5)


@pytest.fixture
def make_nodes(fed: Federation, tmp_path: Path) -> Callable[..., Nodes]:
    """M nodes that keep their files in `place`; with `other` the first holds other data."""

    def make(other: bool = False, place: str = "nodes", **policy: Any) -> Nodes:
        def load_data(config: Any) -> tuple[Any, ...]:
            number = config["partition-id"]
            row = M if other and number == 0 else number
            return fed.x[fed.train[row]], fed.y[fed.train[row]]

        nodes = {}
        for i in range(M):
            state = tmp_path / place / f"c{i}"
            state.mkdir(parents=True, exist_ok=True)
            if policy:
                lines = [f"{key} = {json.dumps(value)}" for key, value in policy.items()]
                (state / "policy.toml").write_text("\n".join(lines))
            config = {"client-id": f"c{i}", "partition-id": i, "state-dir": str(state)}
            nodes[i] = Node(client_app(load_data, make_model, classes=CLASSES), config)
        return nodes

    return make


class Server:
    """What a server may do: ask any program with any settings."""

    def __init__(self, nodes: Nodes, run: str | None = None, **options: Any) -> None:
        roster = Roster(M, classes=CLASSES)
        roster.run = run or roster.run
        usual: dict[str, Any] = {**WAITS, "timeout": 0.2, "tries": 1, "privacy": PRIVACY}
        self.grid = FakeGrid(nodes)
        self.engine = FlowerEngine(self.grid, roster, make_model(), **{**usual, **options})
        self.engine.enrol(M, 1)

    def ask(self, program: Program = Train(), lr: float = 0.05, **job: Any) -> Answers:  # noqa: B008
        model = self.engine.starts([0], 0)
        sent = Sent({"model": model.repeat(M, axis=0)}, {"models": model})
        plan = LocalPlan(steps=3, lr=lr)
        return self.engine.ask(Job(program, plan, **{"keep": False, "round": 0, **job}), sent)


def lines(node: Node, name: str) -> list[dict[str, Any]]:
    file = Path(node.config["state-dir"]) / name
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("privacy", [None, PRIVACY])
def test_private_columns_stay_also_where_the_server_says_that_nothing_is_to_be_kept(
    make_nodes: Callable[..., Nodes], privacy: Privacy | None
) -> None:
    """The attack that broke it: FedPer trains, and then a program is asked as an evaluation is."""
    nodes = make_nodes()
    server = Server(nodes, privacy=privacy)
    shared = server.engine.layout.columns("*bias")
    left: list[int] = []

    def watch(message: Message) -> Message:
        arrays: dict[str, Any] = dict(message.content.array_records.get("arrays", {}))
        left.extend(array.shape[0] for array in arrays.values())
        return message

    for node in nodes.values():
        node.tamper = watch
    server.ask(shared="*bias", keep=True)
    server.ask(shared="*bias", keep=False, tick=1, lr=1e-12)
    width = len(np.arange(server.engine.layout.width)[shared])
    assert left == 2 * M * [width]


# Noise that does not cancel


def test_two_replies_to_one_round_with_other_settings_have_noise_of_their_own(
    make_nodes: Callable[..., Nodes],
) -> None:
    """The attack that broke it: the same round asked with lr = 0 and with lr = 0.05."""
    server = Server(make_nodes())
    still, moved = (server.ask(lr=lr, keep=True).rows["model"] for lr in (1e-12, 0.05))
    scale = PRIVACY.noise * PRIVACY.clip
    assert (moved - still).std() == pytest.approx(np.sqrt(2) * scale, rel=0.1)


def test_a_server_that_begins_again_learns_no_more(make_nodes: Callable[..., Nodes]) -> None:
    """Run, stop in round 1, run again in the same name with another learning rate."""
    nodes = make_nodes()
    first = Server(nodes, run="a1").ask(lr=1e-12, keep=True).rows["model"]
    second = Server(nodes, run="a1").ask(lr=0.05, keep=True).rows["model"]
    assert (second - first).std() > PRIVACY.noise * PRIVACY.clip
    assert len(lines(nodes[0], LEDGER_FILE)) == 2


def test_the_same_request_gets_the_same_reply_and_costs_nothing_more(
    make_nodes: Callable[..., Nodes],
) -> None:
    nodes = make_nodes()
    one, two = (Server(nodes, run="a1").ask(keep=True).rows["model"] for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert len(lines(nodes[0], LEDGER_FILE)) == 1
    assert [each["answer"] for each in lines(nodes[0], "audit.jsonl")][1::2] == ["sent", "resent"]


@pytest.mark.parametrize(
    "other",
    [{"round": 1}, {"seed": 1}, {"tick": 1}, {"keep": True}, {"lr": 0.01}, {"program": Train(0.5)}],
)
def test_whatever_else_is_asked_spends_budget(
    make_nodes: Callable[..., Nodes], other: dict[str, Any]
) -> None:
    nodes = make_nodes()
    Server(nodes, run="a1").ask()
    Server(nodes, run="a1").ask(**other)
    assert len(lines(nodes[0], LEDGER_FILE)) == 2


def test_an_update_is_clipped_and_its_noise_has_the_size_that_is_told(
    make_nodes: Callable[..., Nodes],
) -> None:
    start = Server(make_nodes(), privacy=None).engine.starts([0], 0)[0]
    clipped = Server(make_nodes(place="no noise"), privacy=Privacy(0.1)).ask().rows["model"][0]
    assert np.linalg.norm(clipped - start) == pytest.approx(0.1, rel=1e-4)
    noisy = Server(make_nodes(place="noise")).ask().rows["model"][0]
    assert (noisy - clipped).std() == pytest.approx(PRIVACY.noise * PRIVACY.clip, rel=0.15)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_number_that_is_not_finite_does_not_switch_clipping_off(bad: float) -> None:
    trained = np.full(1000, 5.0, np.float32)
    trained[3] = bad
    sent = Privacy(0.1, 1.0).protected(np.zeros(1000, np.float32), trained, np.zeros)
    assert not sent.any()  # no update at all, and the noise, which is 0 here


# Nothing else leaves


def transcript(nodes: Nodes) -> list[Message]:
    """Every message that leaves the first node, whatever the server asks."""
    left: list[Message] = []

    def record(message: Message) -> Message:
        left.append(message)
        return message

    nodes[0].tamper = record
    for privacy in (PRIVACY, None):
        server = Server(nodes, run="a1", privacy=privacy)
        for program in (Train(), ClusterLosses(), Risk(), Gradients(), Score()):
            for keep in (True, False):
                with suppress(EngineError):  # nobody answered
                    server.ask(program, keep=keep)
        server.ask(Train(), lr=1e30)
        server.ask(Alone(), tick=10**6)
    return left


def skeleton(message: Message) -> str:
    """All of a message but the noise: every word, every number, every size."""
    if message.has_error():
        return f"error {message.error.code} {message.error.reason}"
    parts = []
    for name, record in message.content.items():
        for key, value in record.items():
            if isinstance(value, Array):
                parts.append(f"{name} {key} {value.dtype} {value.shape} {len(value.data)}")
            else:
                parts.append(f"{name} {key} {value!r}")
    return "; ".join(parts)


@pytest.mark.parametrize("policy", [{}, {"private": True}, {"private": True, "samples": 40}])
def test_all_that_leaves_a_private_node_is_the_same_for_other_data_but_for_the_noise(
    make_nodes: Callable[..., Nodes], policy: dict[str, Any]
) -> None:
    """Whatever the server asks: sizes, scores, losses and errors tell nothing about the data."""
    one = transcript(make_nodes(**policy))
    two = transcript(make_nodes(other=True, place="others", **policy))
    assert [skeleton(each) for each in one] == [skeleton(each) for each in two]
    arrays = [
        (name, array.numpy())
        for message in one
        if not message.has_error()
        for record in message.content.array_records.values()
        for name, array in record.items()
    ]
    assert {name for name, _ in arrays} == {"model"}
    start = make_model().state_dict()["1.weight"].numpy().ravel()
    for _, model in arrays:  # each of them with noise of its own, of the size that was asked for
        assert (model[: len(start)] - start).std() > 0.8 * PRIVACY.noise * PRIVACY.clip
    for (_, a), (_, b) in pairwise(arrays):
        assert (a - b).std() > PRIVACY.noise * PRIVACY.clip
    ledger = lines(make_nodes(**policy)[0], LEDGER_FILE)
    assert len(ledger) == len(arrays)


def test_the_error_of_a_private_node_stays_there(
    fed: Federation, tmp_path: Path, make_nodes: Callable[..., Nodes], caplog: Any
) -> None:
    def load_data(config: Any) -> tuple[Any, ...]:
        raise ValueError("patient Smith has no age")

    nodes = make_nodes(private=True)
    left: list[Message] = []
    nodes[0].tamper = left.append
    nodes[0].app = client_app(load_data, make_model, classes=CLASSES)
    with pytest.raises(EngineError):
        Server(nodes)
    assert left
    assert "Smith" not in "".join(skeleton(message) for message in left)
    assert "Smith" in caplog.text


def test_a_client_that_has_sent_in_the_clear_promises_no_privacy_later(
    make_nodes: Callable[..., Nodes],
) -> None:
    nodes = make_nodes()
    assert (Server(nodes, privacy=None).ask().outcome == Reply.HEARD).all()
    server = Server(nodes)
    assert (server.ask().outcome == Reply.MALFORMED).all()
    assert "in the clear" in str(server.engine.network_report()["refused"])


# The node has the last word


@pytest.mark.parametrize(
    ("policy", "asked", "reason"),
    [
        ({"private": True}, {"privacy": None}, "clip and noise"),
        ({"private": True}, {"privacy": Privacy(0.1)}, "noise"),
        ({"min_noise": 20.0}, {}, "at least 20"),
        ({"max_clip": 0.05}, {}, "at most 0.05"),
        ({"max_parameters": 10}, {}, "at most 10 parameters"),
        ({"programs": ["ditto"]}, {}, "train"),
        ({"max_replies": 0}, {}, "budget"),
        ({"max_epsilon": 0.1}, {}, "budget of 0.1"),
    ],
)
def test_a_server_that_asks_for_more_gets_a_refusal_it_can_read(
    make_nodes: Callable[..., Nodes], policy: dict[str, Any], asked: dict[str, Any], reason: str
) -> None:
    nodes = make_nodes(**policy)
    server = Server(nodes, **asked)
    assert (server.ask().outcome == Reply.MALFORMED).all()
    [(_, told), *_] = server.engine.network_report()["refused"]
    assert reason in told
    assert lines(nodes[0], "audit.jsonl")[-1]["answer"] == "refused"
    assert not (Path(nodes[0].config["state-dir"]) / LEDGER_FILE).exists()


def test_the_budget_ends_where_the_policy_says(make_nodes: Callable[..., Nodes]) -> None:
    budget = epsilon_of({10.0: 3}, 1e-5)
    nodes = make_nodes(max_epsilon=budget * 1.0001)
    server = Server(nodes)
    outcomes = [server.ask(round=t).outcome[0] for t in range(5)]
    assert outcomes == [Reply.HEARD] * 3 + [Reply.MALFORMED] * 2


@pytest.mark.parametrize("text", ["privat = true", "min_noise = -1", "private = 1", "[", "\x00"])
def test_a_policy_that_is_wrong_is_no_policy_that_allows_all(
    make_nodes: Callable[..., Nodes], text: str
) -> None:
    nodes = make_nodes(private=True)
    for node in nodes.values():
        (Path(node.config["state-dir"]) / "policy.toml").write_text(text)
    with pytest.raises(EngineError):
        Server(nodes)


# The ledger


def test_what_is_told_is_what_the_ledgers_say_also_after_a_kill(
    make_nodes: Callable[..., Nodes],
) -> None:
    """Replies of runs that nobody finished count: a reply was written down before it left."""
    nodes = make_nodes()
    for t in range(4):
        Server(nodes).ask(round=t)
    server = Server(nodes)
    server.ask()
    spent = server.engine.network_report()["privacy"]
    assert spent["replies"] == 5
    assert spent["epsilon"] == pytest.approx(PRIVACY.epsilon(5))
    assert len(lines(nodes[0], LEDGER_FILE)) == 5


def test_a_ledger_cut_off_while_it_was_written_goes_on_and_a_damaged_one_does_not(
    make_nodes: Callable[..., Nodes],
) -> None:
    nodes = make_nodes()
    Server(nodes).ask()
    file = Path(nodes[0].config["state-dir"]) / LEDGER_FILE
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:20])  # a kill while a second line was written
    assert Server(nodes).ask().outcome[0] == Reply.HEARD
    assert Ledger(file).read().replies == 2
    file.write_bytes(b"{}\n" + file.read_bytes())
    with pytest.raises(RunFolderError, match="line 1"):
        Ledger(file).read()
    with pytest.raises(EngineError, match="2 of at least 3 clients"):
        Server(nodes)


@pytest.mark.parametrize("replies", [{10.0: 3, 20.0: 7}, {2.0: 1, 50.0: 100}, {8.0: 5}])
def test_composition_is_an_upper_bound_and_a_tight_one(replies: dict[float, int]) -> None:
    """Against the exact curve of composed Gaussian mechanisms (Dong et al., 2022)."""
    delta = 1e-5
    mu = np.sqrt(sum(count * (2 / noise) ** 2 for noise, count in replies.items()))

    def excess(epsilon: float) -> float:
        tail = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(tail - delta)

    exact = brentq(excess, 1e-6, 100)
    assert exact <= epsilon_of(replies, delta) <= 1.35 * exact + 0.05


# A whole run


@pytest.fixture
def served(make_nodes: Callable[..., Nodes], tmp_path: Path) -> Callable[..., Result]:
    def run(nodes: Nodes, **said: Any) -> Result:
        usual: dict[str, Any] = {
            "clients": M, "rounds": 3, "steps": 3, "lr": 0.05, "seed": 3, "clusters": 2,
            "timeout": 5, "enrolment": 0.2, "min_clients": M, "out": str(tmp_path / "run"),
            "clip": 0.1, "noise": 10.0,
        }  # fmt: skip
        config = {key.replace("_", "-"): value for key, value in {**usual, **said}.items()}
        return serve(FakeGrid(nodes), config, make_model, classes=CLASSES, **WAITS)

    return run


def test_a_private_run_tells_the_budget_of_the_ledgers_and_asks_for_no_scores(
    make_nodes: Callable[..., Nodes], served: Callable[..., Result], tmp_path: Path
) -> None:
    nodes = make_nodes(private=True)
    result = served(nodes)
    assert {kind for node in nodes.values() for kind in node.seen} == {"query.hello", "train"}
    told = result.summary["privacy"]
    assert told["replies"] == 3
    assert told["epsilon"] == pytest.approx(PRIVACY.epsilon(3))
    assert result.summary["accuracy"] is None
    assert [record["accuracy"] for record in read_metrics(tmp_path / "run")] == [None] * 3
    again = served(nodes, out=str(tmp_path / "another"))
    assert again.summary["privacy"]["replies"] == 6  # the data are the same
    audit = (tmp_path / "run.audit.jsonl").read_text().splitlines()
    assert len(audit) == M + 3 * M
    assert {json.loads(line)["outcome"] for line in audit} == {"greeted", "used"}


def test_a_private_run_that_was_killed_goes_on_and_every_reply_is_counted(
    make_nodes: Callable[..., Nodes], served: Callable[..., Result], tmp_path: Path
) -> None:
    nodes = make_nodes()
    served(nodes, rounds=2)
    result = served(nodes, rounds=4)
    assert len(result.records) == 4
    assert result.summary["privacy"]["replies"] == len(lines(nodes[0], LEDGER_FILE)) == 4


@pytest.mark.parametrize(
    "said",
    [
        {"method": "ifca"},
        {"diagnostics": True},
        {"objectives": True},
        {"lr": "theory", "momentum": 0.0},
    ],
)
def test_what_can_not_be_noised_is_refused_before_anyone_is_asked(
    make_nodes: Callable[..., Nodes], served: Callable[..., Result], said: dict[str, Any]
) -> None:
    nodes = make_nodes()
    with pytest.raises(ConfigError, match=re.escape("no noise protects")):
        served(nodes, **said)
    assert not any(node.seen for node in nodes.values())


def test_an_engine_with_other_noise_than_the_experiment_is_refused(
    make_nodes: Callable[..., Nodes],
) -> None:
    engine = Server(make_nodes()).engine
    for privacy in (None, replace(PRIVACY, noise=1.0)):
        with pytest.raises(ConfigError, match="same privacy"):
            wecfl.Experiment(
                Roster(M, classes=CLASSES), wecfl.methods.fedavg, model=make_model(),
                engine=engine, privacy=privacy, measure=wecfl.Measure(objectives=False),
            ).check()  # fmt: skip
