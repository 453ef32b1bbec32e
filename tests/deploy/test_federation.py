"""Real processes on loopback, with TLS and node keys: SuperLink, proxy, three SuperNodes.

All tests share one federation and run in the order in which they stand here, by `make test-deploy`
only. Each message starts a Python process of some CPU seconds at a client, so there are few.
"""

import importlib.util
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tomli_w
from safetensors.numpy import load_file

import wecfl as library
from helpers import Wecfl, as_nobody, run_flat
from wecfl.deploy import processes
from wecfl.deploy.app_folder import new_app
from wecfl.deploy.certificates import node_key
from wecfl.deploy.deployment import Deployment
from wecfl.deploy.flower_programs import flower_environment, flower_program
from wecfl.deploy.proxy import nginx
from wecfl.enrolment import Enrolment
from wecfl.errors import DeployError
from wecfl.folder.readers import read_assignments, read_metrics, read_summary

pytestmark = pytest.mark.deploy

WECFL = str(Path(sys.executable).parent / "wecfl")
NODES, ROUNDS, STEPS = 3, 2, 5
MAX_REPLY = 4_000_000
SETTINGS = {
    "rounds": ROUNDS, "steps": STEPS, "clusters": 2, "seed": 1,
    "timeout": 600.0, "enrolment": 600.0,  # on a busy machine a client may take minutes
}  # fmt: skip


def free_port() -> int:
    """The first of enough ports that nobody uses."""
    while True:
        first = random.randrange(20000, 30000)
        with_all = [socket.socket() for _ in range(NODES + 2)]
        try:
            for i, each in enumerate(with_all):
                each.bind(("127.0.0.1", first + i))
        except OSError:
            continue
        finally:
            for each in with_all:
                each.close()
        return first


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    try:
        nginx()
    except DeployError as error:
        pytest.skip(str(error))
    app = tmp_path_factory.mktemp("deploy") / "wards"
    new_app(app)
    liar = (Path(__file__).parent / "liar.py.tpl").read_text("utf-8").replace("PACKAGE", "wards")
    (app / "wards" / "client.py").write_text(liar, "utf-8")
    about = (app / "pyproject.toml").read_text("utf-8")
    (app / "pyproject.toml").write_text(
        about.replace("\nseed =", "\nscore-every = 1\nseed ="), "utf-8"
    )
    deployment = Deployment(app)
    try:
        words = [WECFL, "deploy", "up", str(app), "--nodes", str(NODES), "--port", str(free_port())]
        words += ["--max-reply", str(MAX_REPLY), "--max-samples", "1000"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert "3 online: client-0, client-1, client-2" in done.stdout
        yield deployment
    finally:
        deployment.down()


def train(federation: Deployment, out: Path, others: dict[str, Any] | None = None) -> list[str]:
    """Do a whole run; return the lines that the server printed."""
    lines: list[str] = []
    number, place = federation.begin({**SETTINGS, **(others or {})}, out)
    assert place == out
    ended = federation.follow(number, lines.append)
    assert ended == "finished:completed", "\n".join(lines)
    return lines


def wait(until: Callable[[], object], seconds: float, what: str) -> None:
    began = time.monotonic()
    while not until():
        assert time.monotonic() - began < seconds, what
        time.sleep(0.5)


def rounds(out: Path) -> int:
    file = out / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture(scope="module")
def trained(federation: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run that nothing disturbed."""
    out = tmp_path_factory.mktemp("runs") / "undisturbed"
    train(federation, out)
    return out


def test_trains_to_the_same_result_as_a_simulation(federation: Deployment, trained: Path) -> None:
    spec = importlib.util.spec_from_file_location("task", federation.app / "wards" / "task.py")
    assert spec and spec.loader
    task = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(task)
    partition = library.partitions.ClusterwiseNClass((5, 5), groups=2)
    fed = library.Federation.from_dataset("digits", partition, clients=NODES)
    result = run_flat(
        fed, library.methods.wecfl(k=2), model=task.make_model,
        rounds=ROUNDS, steps=STEPS, batch=32, lr=0.05, seed=1,
    )  # fmt: skip
    assert read_summary(trained)["status"] == "finished"
    assert read_assignments(trained)[-1].tolist() == result.labels.tolist()
    assert len(set(result.labels.tolist())) == 2
    models = load_file(trained / "models.safetensors")
    assert models.keys() == result.tensors.keys()
    for name, tensor in result.tensors.items():
        np.testing.assert_allclose(models[name], tensor, rtol=1e-5, atol=1e-6)
    accuracy = [record["accuracy"] for record in read_metrics(trained)]
    np.testing.assert_allclose(accuracy, result.history["accuracy"], rtol=1e-6)


def test_clients_get_the_app_and_nothing_else_of_its_folder(
    federation: Deployment, trained: Path
) -> None:
    apps = (federation.folder / "clients" / "client-0" / "apps").iterdir()
    got = {file.name for app in apps for file in app.iterdir()}
    assert got == {"pyproject.toml", "README.md", "wards"}


def test_status_tells_what_runs_and_how_far_the_run_is(
    wecfl: Wecfl, federation: Deployment, trained: Path
) -> None:
    code, out, err = wecfl("deploy", "status", federation.app)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    for name, service in federation.services.items():
        line = next(line for line in lines if line.strip().startswith(name))
        assert str(service.pid) in line
        assert ("online" in line) == name.startswith("client")
    assert f"round {ROUNDS} of {ROUNDS}: {NODES} of {NODES} replies;" in " ".join(out.split())


def test_a_second_up_says_that_it_is_up(wecfl: Wecfl, federation: Deployment) -> None:
    before = {name: service.pid for name, service in federation.services.items()}
    code, out, err = wecfl("deploy", "up", federation.app)
    assert (code, out.strip(), err.count("\n")) == (2, "", 1)
    assert "is up already" in err
    assert before == {name: service.pid for name, service in federation.services.items()}


def test_an_unregistered_key_is_refused(federation: Deployment, tmp_path: Path) -> None:
    node_key(tmp_path / "key")
    words: list[str | Path] = [
        flower_program("flower-supernode"), "--superlink", f"127.0.0.1:{federation.port}",
        "--root-certificates", federation.folder / "ca.crt",
        "--auth-supernode-private-key", tmp_path / "key",
        "--host", "127.0.0.1", "--port", str(free_port()),
    ]  # fmt: skip
    log = tmp_path / "log"
    with log.open("w") as file:  # its children may hold a pipe longer than it lives
        done = subprocess.run(
            words,
            env=flower_environment(tmp_path),
            stdout=file,
            stderr=file,
            timeout=300,
            check=False,
        )
    assert done.returncode != 0
    assert "Failed to activate SuperNode" in log.read_text()
    assert list(federation.online().values()).count("online") == NODES


# Clients that fail or lie

LiedTo = tuple[list[dict[str, Any]], list[str]]


@pytest.fixture(scope="module")
def lied_to(
    federation: Deployment, trained: Path, tmp_path_factory: pytest.TempPathFactory
) -> LiedTo:
    """A run in which all but client-0 lie or are silent: its records, and the server's lines."""
    answers = [
        {},
        {0: "nan", 1: "shape", 2: "weight"},
        {0: "huge", 1: "size", 2: "silence"},
    ]
    files = [federation.folder / "clients" / f"client-{i}" / "lies.json" for i in range(NODES)]
    for file, by_round in zip(files, answers, strict=True):
        file.write_text(json.dumps(by_round))
    out = tmp_path_factory.mktemp("runs") / "lied-to"
    settings = {"rounds": 3, "quorum": 0.3, "min-clients": 1, "score-every": 3}
    try:
        lines = train(federation, out, settings)
    finally:
        for file in files:
            file.unlink()
    return read_metrics(out), lines


@pytest.mark.parametrize(
    ("round", "client", "reason"),
    [
        (1, "client-1", "NaN"),
        (2, "client-1", "must be float32"),
        (2, "client-2", "got 3000000"),
        (3, "client-1", "now 1000000000000000"),
    ],
    ids=["nan", "shape", "oversized", "weight"],
)
def test_a_lie_is_refused_with_its_reason_and_the_run_goes_on(
    lied_to: LiedTo, round: int, client: str, reason: str
) -> None:
    records, _ = lied_to
    assert len(records) == 3
    refused = dict(records[round - 1]["network"]["refused"])
    assert reason in refused[client]
    assert "client-0" not in refused
    assert np.isfinite(records[-1]["accuracy"])
    assert records[round - 1]["replies"]["heard"] == 1


def test_a_reply_of_100_megabytes_is_stored_nowhere_and_holds_nobody_up(
    federation: Deployment, lied_to: LiedTo
) -> None:
    records, _ = lied_to
    assert records[0]["replies"]["lost"] == 1
    stored = sum(
        file.stat().st_size for file in (federation.folder / "superlink").glob("state.db*")
    )
    assert stored < 5 * MAX_REPLY
    assert [name for name, service in federation.services.items() if service.ill] == []
    assert federation.services["superlink"].restarts == 0


def test_the_clients_of_a_trial_are_on_a_list_which_the_server_obeys(
    federation: Deployment, lied_to: LiedTo
) -> None:
    enrolment = Enrolment.read(federation.folder / "enrolled.toml")
    assert enrolment.max_reply == MAX_REPLY
    told = [(each.name, each.node, each.samples, each.number) for each in enrolment.clients]
    assert told == [(node.client, node.number, 1000, i) for i, node in enumerate(federation.nodes)]
    _, lines = lied_to
    assert not any("no client is enrolled" in line for line in lines)


def test_a_client_that_never_answers_does_not_hold_the_others_up(lied_to: LiedTo) -> None:
    records, lines = lied_to
    replies = records[2]["replies"]
    assert (replies["heard"], replies["lost"], len(records)) == (1, 1, 3)
    assert any("no reply of client client-2" in line for line in lines)


def test_a_supernode_that_is_killed_is_started_again_without_its_client_app(
    federation: Deployment, lied_to: LiedTo
) -> None:
    """The client app that is silent since the run before does not outlive its node."""
    before = federation.services["client-2"]
    silent = processes.find(federation.folder, "client-2")
    assert before.pid and len(silent) > 2
    os.kill(before.pid, signal.SIGKILL)
    wait(lambda: federation.services["client-2"].pid not in (None, before.pid), 120, "no restart")
    assert not [each for each in silent if each.pid != before.keeper and each.is_running()
                and each.status() != psutil.STATUS_ZOMBIE]  # fmt: skip


# While that node waits: for 60 seconds the SuperLink believes that it is still online


def test_ports_in_use_leave_nothing_behind(
    wecfl: Wecfl, federation: Deployment, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    assert wecfl("deploy", "new", other).code == 0
    code, out, err = wecfl("deploy", "up", other, "--port", str(federation.port - 1))
    assert (code, out.strip(), err.count("\n")) == (2, "", 1)
    assert f"port {federation.port} can't be used" in err
    assert not processes.find(other / ".federation")


# Who may come in


def ask(federation: Deployment, path: str, method: str = "POST") -> int:
    """What the proxy says to a call."""
    trust = ssl.create_default_context(cafile=federation.folder / "ca.crt")
    place = f"https://localhost:{federation.port}{path}"
    try:
        call = urllib.request.Request(place, method=method, data=b"" if method == "POST" else None)
        with urllib.request.urlopen(call, context=trust, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize(
    "path",
    [
        "/", "/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task",
        "/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs", "/v1/control/../fleet/pull-messages",
        "//v1/fleet/pull-messages", "/v1/fleet/pull-messages?x", "/docs", "/openapi.json",
    ],
)  # fmt: skip
def test_the_proxy_passes_nothing_but_the_calls_of_nodes(federation: Deployment, path: str) -> None:
    assert ask(federation, path) == 403
    assert ask(federation, path, "GET") == 403


def test_calls_of_nodes_reach_the_superlink_which_wants_a_signature(
    federation: Deployment,
) -> None:
    assert ask(federation, "/v1/fleet/pull-messages", "GET") == 403
    assert ask(federation, "/v1/fleet/pull-messages") in (401, 415, 422)


def test_flwr_run_through_the_proxy_fails(federation: Deployment, tmp_path: Path) -> None:
    home = {
        "address": f"127.0.0.1:{federation.port}",
        "root-certificates": str(federation.folder / "ca.crt"),
    }
    (tmp_path / "config.toml").write_text(tomli_w.dumps({"superlink": {"outside": home}}))
    runs = len(federation.flwr("list")["runs"])
    done = subprocess.run(
        [flower_program("flwr"), "run", federation.app, "outside", "--format", "json"],
        env=flower_environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert '"success": true' not in done.stdout
    assert "403" in done.stdout + done.stderr or "denied" in (done.stdout + done.stderr).lower()
    assert len(federation.flwr("list")["runs"]) == runs


def test_another_user_of_a_nodes_host_can_not_take_its_work(federation: Deployment) -> None:
    place = f"http://127.0.0.1:{federation.nodes[0].port}/v1/runtime/acquire-task"
    answers = []
    for user in (nullcontext, as_nobody):
        call = urllib.request.Request(place, method="POST", data=b"")
        with user(), pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(call, timeout=30)
        with refused.value as error:
            answers.append(error.code)
    assert answers[0] != 403 and answers[1] == 403


def test_a_supernode_that_was_killed_comes_back_as_who_it_was(federation: Deployment) -> None:
    number, log = federation.nodes[2].number, federation.folder / "logs" / "client-2.log"
    wait(lambda: log.read_text().count(f"SuperNode ID: {number}") == 2, 300, "it did not join")
    assert federation.services["client-2"].restarts >= 1
    assert federation.online() == dict.fromkeys(federation.online(), "online")


# The server


def test_a_run_goes_on_after_the_superlink_was_killed(
    federation: Deployment, trained: Path, tmp_path: Path
) -> None:
    out, before = tmp_path / "killed", federation.services["superlink"]
    assert before.pid
    settings = {"score-every": ROUNDS}
    number, _ = federation.begin({**SETTINGS, **settings}, out)
    wait(lambda: rounds(out) == 1, 900, "no round")
    os.kill(before.pid, signal.SIGKILL)
    assert not federation.follow(number, lambda _: None).endswith("completed")
    wait(lambda: federation.services["superlink"].pid not in (None, before.pid), 120, "no restart")
    federation.wait_until_listening("superlink", federation.port + 1)
    train(federation, out, settings)
    assert read_assignments(out).tolist() == read_assignments(trained).tolist()
    models, expected = (load_file(each / "models.safetensors") for each in (out, trained))
    assert models.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(models[name], tensor)


def test_down_stops_everything_and_nothing_else(wecfl: Wecfl, federation: Deployment) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    found = processes.find(federation.folder)
    assert len(found) > 2 * (NODES + 2)
    code, out, err = wecfl("deploy", "down", federation.app)
    assert (code, err) == (0, "")
    assert out == "stopped: superlink, proxy, client-0, client-1, client-2\n"
    assert not [each for each in found if each.is_running() and each.status() != "zombie"]
    assert not processes.find(federation.folder)
    for port in range(federation.port, federation.port + 2 + NODES):
        with socket.socket() as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            plain.bind(("127.0.0.1", port))
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert wecfl("deploy", "down", federation.app).out.endswith("was running\n")


def test_ctrl_c_during_up_leaves_nothing_running(federation: Deployment) -> None:
    words = [WECFL, "deploy", "up", str(federation.app), "--port", str(free_port())]
    starting = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    wait(lambda: processes.find(federation.folder), 300, "nothing was started")
    starting.send_signal(signal.SIGINT)
    _, said = starting.communicate(timeout=120)
    assert (starting.returncode, said) == (130, "wecfl: interrupted\n")
    assert not processes.find(federation.folder)
