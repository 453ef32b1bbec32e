"""The Ray engine on a real cluster of two nodes: the same bits, whatever dies."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pytest
from torch import Tensor, nn

import moody_model
import wecfl
from helpers import Wecfl, local_update, method_named, run_flat, same_states
from moody_model import Moody, is_marked, with_marked_client
from wecfl import Correction, Federation, RayEngine, State, make_engine, methods
from wecfl.bilevel import evaluation
from wecfl.bilevel.local import Train
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Job, Sent
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.types import F32, Table
from wecfl.engine.local import BaseEngine
from wecfl.engine.ray import FETCHING
from wecfl.engine.ray.actor_memory import MAX_REPEATED_EXCHANGES, ActorMemory
from wecfl.engine.ray.cluster import imported
from wecfl.errors import ConfigError, EngineError
from wecfl.models import build, row_of
from wecfl.models.rows import keyed

pytestmark = [
    pytest.mark.deploy,
    # Ray leaves the logs of its processes, and those, to the collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess [0-9]+ is still running:ResourceWarning"),
]

SEED = 3
PLAN = LocalPlan(steps=3, batch=4, lr=0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each; a node that is gone is missed after a second."""
    imported()
    from ray.cluster_utils import Cluster

    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 2}
    made = Cluster(True, head_node_args={"num_cpus": 1, "_system_config": quick})
    made.add_node(num_cpus=1)
    yield made
    made.shutdown()  # type: ignore[no-untyped-call]


def cnn() -> nn.Module:
    with keyed(SEED):
        return nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.2), nn.Flatten(), nn.Linear(27, 3),
        )  # fmt: skip


def start(module: nn.Module, m: int = 5) -> State:
    """Every client at a model of its own."""
    rows = np.repeat(row_of(module)[None], m, axis=0)
    rows[:] += 0.1 * np.abs(np.random.default_rng(1).normal(size=rows.shape)).astype(np.float32)
    return State(0, {"model": rows}, rows[:1], np.zeros(m, dtype=np.int64))


def actors() -> list[int]:
    """The processes of the actors on this machine, without those they forked."""
    found = {}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and b"ray::Actor" in (folder / "cmdline").read_bytes():
                parent = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
                found[int(folder.name)] = int(parent)
    return [pid for pid, parent in found.items() if parent not in found]


def all_of(engine: BaseEngine, module: nn.Module) -> list[bytes]:
    """Whatever an engine can be asked, as bytes."""
    state = start(module)
    m, width = 5, engine.layout.width
    draw = np.random.default_rng(2)
    affine = Correction(
        draw.uniform(), state.models[::-1].copy(),
        draw.normal(size=(m, width)).astype(np.float32),
    )  # fmt: skip
    plan = LocalPlan(
        3, 4, draw.uniform(0, 0.1, m).astype(np.float32), done=np.array([3, 1, 2, 3, 2])
    )
    found: list[Any] = [engine.sizes, engine.starts([0, 2], SEED)]
    for correction, how, active in (
        (Correction(), PLAN, None), (affine, plan, None), (Correction(0.5), PLAN, [0, 4]),
        (affine, plan, [3]), (Correction(), LocalPlan(2, 4, 0.1, keep_momentum=False), [1, 2]),
    ):  # fmt: skip
        models, memory = local_update(engine, state, how, correction, SEED, active)
        found += [models, *memory.values()]
        state = state.replace(round=state.round + 1, replies={"model": models}, memory=memory)
    same = np.repeat(state.models[:1], m, axis=0)
    for models in (state.models, same):
        found += [evaluation.risk(engine, models), evaluation.gradients(engine, models)]
        found += [evaluation.gradients(engine, models, batches=1, seed=SEED, round=2)]
        found += [
            evaluation.tallies(engine, models, "test"),
            evaluation.tallies(engine, models, "train"),
        ]
    found += [
        evaluation.tallies(engine, np.stack([state.models, same, state.models[::-1]], 1), "test")
    ]
    found += [
        evaluation.losses(engine, state.models[:2]),
        evaluation.losses(engine, same[:1], who=np.array([1, 4])),
    ]
    found += [
        evaluation.losses(
            engine, state.models, batches=1, seed=SEED, round=1, who=np.array([0, 2, 3])
        )
    ]
    return [repr((each.shape, each.dtype)).encode() + each.tobytes() for each in found]


@pytest.mark.parametrize("inside", ["native", "torch"])
@pytest.mark.parametrize("batchnorm", ["running", "batch"])
def test_the_same_bits_with_any_number_of_actors(
    inside: Any, batchnorm: Any, images: Federation, cluster: Any
) -> None:
    how: Any = {"batchnorm": batchnorm, "batch": 4}
    with make_engine(inside, images, cnn(), workers=1, **how) as local:
        expected, name, layout = all_of(local, cnn()), local.name, local.layout
    number = {"running": 2, "batch": 3}[batchnorm]
    how |= {"address": cluster.address, "inside": inside}
    with RayEngine(images, cnn(), workers=number, **how) as engine:
        assert (engine.name, engine.layout) == (name, layout)
        assert (engine.workers, engine.nodes) == (number, 2)
        assert len(actors()) == number
        assert all_of(engine, cnn()) == expected
    with pytest.raises(EngineError, match="closed"):
        evaluation.risk(engine, start(cnn()).models)


@pytest.fixture(scope="module")
def digits() -> Federation:
    partition = wecfl.partitions.ClusterwiseDirichlet((0.1, 10.0), groups=3)
    return wecfl.Federation.from_dataset("digits", partition, clients=9, seed=SEED)


def after(setting: Setting, rounds: int = 2) -> State:
    return next(islice(iterate(setting, opening(setting)), rounds - 1, None))


@pytest.mark.parametrize("inside", ["native", "torch"])
def test_every_method_gives_the_same_bits(
    inside: Literal["native", "torch"], digits: Federation, cluster: Any
) -> None:
    """On the native engine, or on torch if a method needs what only torch can tell."""
    model = build("mlp", shape=digits.shape, classes=10, seed=SEED)
    chosen = [method_named(name, k=3) for name in methods.METHODS]
    with (
        RayEngine(digits, model, address=cluster.address, inside=inside) as ours,
        make_engine(inside, digits, model, workers=1) as theirs,
    ):
        for method in (each for each in chosen if bool(each.needs) == (inside == "torch")):
            for member in range(method.members):
                one, two = (
                    after(
                        Setting(method, engine, replace(PLAN, **method.plan), SEED + member, member)
                    )
                    for engine in (ours, theirs)
                )
                same_states(one, two)


def test_a_whole_run_leaves_the_ray_it_found(digits: Federation, cluster: Any) -> None:
    """Under hard conditions, with all that is measured, and a second engine for the bait."""
    import ray

    ray.init(cluster.address, log_to_driver=False)
    try:
        how: Any = {
            "rounds": 2, "steps": 3, "lr": 0.05, "seed": SEED, "participation": 0.6,
            "dropout": 0.2, "stragglers": 0.3, "attack": "backdoor", "attackers": 0.3,
            "diagnostics": True,
        }  # fmt: skip
        ours = run_flat(digits, methods.ifca(3), engine="ray", **how)
        theirs = run_flat(digits, methods.ifca(3), engine="native", **how)
        assert ours.engine == theirs.engine
        same_states(ours.states[0], theirs.states[0])
        for one, two in zip(ours.records, theirs.records, strict=True):
            assert {**one, "seconds": {}} == {**two, "seconds": {}}
        assert ray.is_initialized()
        gone(actors())
    finally:
        ray.shutdown()


class Watch:
    """Does something when a step has begun, once."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action, self.done, self.seen = action, False, [("", 0, 0)]

    def __call__(self, work: str, done: int, total: int) -> None:
        self.seen.append((work, done, total))
        if work == "train" and not self.done:
            self.done = True
            self.action()


def trained(engine: BaseEngine, module: nn.Module, rounds: int = 2) -> tuple[F32, F32]:
    state = start(module)
    for _ in range(rounds):
        models, memory = local_update(engine, state, PLAN, Correction(), SEED)
        state = state.replace(round=state.round + 1, replies={"model": models}, memory=memory)
    return state.models, state.memory["momentum"]


def kill_actors() -> None:
    for pid in actors():
        os.kill(pid, signal.SIGKILL)


def test_an_actor_that_is_killed_is_replaced(
    images: Federation, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with make_engine("native", images, cnn(), workers=1) as local:
        expected = trained(local, cnn())
    watch = Watch(kill_actors)
    with RayEngine(images, cnn(), workers=2, address=cluster.address, progress=watch) as engine:
        found = trained(engine, cnn())
        assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]
        assert len(actors()) == 2
    assert caplog.text.count("died during 'train'") == 2
    assert watch.seen[1] == ("train", 0, 5)
    assert watch.seen[3] == ("train", 5, 5)


def test_a_node_that_dies_is_done_without(
    images: Federation, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The third of three: its shard goes to one of the two others, whose cores are taken."""
    with make_engine("native", images, cnn(), workers=1) as local:
        expected = trained(local, cnn())
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()

    def remove() -> None:
        before = actors()
        cluster.remove_node(node, allow_graceful=False)
        while len(actors()) == len(before):  # an actor outlives its node by a moment
            time.sleep(0.1)

    watch = Watch(remove)
    with RayEngine(images, cnn(), address=cluster.address, progress=watch) as engine:
        assert (engine.workers, engine.nodes) == (3, 3)
        found = trained(engine, cnn())
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]
    assert "died during 'train'" in caplog.text


def wide() -> nn.Module:
    """A model whose rows are too large to be sent with the answers of actors."""
    with keyed(SEED):
        return nn.Sequential(nn.Flatten(), nn.Linear(72, 600), nn.ReLU(), nn.Linear(600, 3))


def memory_after(engine: BaseEngine, memory: Table, number: int, active: list[int] | None) -> Table:
    """What clients keep after a local update that begins with one model for all."""
    who = np.arange(5) if active is None else np.array(active)
    job = Job(Train(), PLAN.of(who), SEED, number, keep=True)
    sent = Sent({"model": np.repeat(row_of(wide())[None], len(who), axis=0)})
    return engine.ask(job, sent, who, memory).memory


def remembered(
    engine: BaseEngine, rounds: int, before: Callable[[int], object] = lambda number: None
) -> list[Table]:
    """What clients keep after each of some rounds."""
    memories: list[Table] = [{}]
    for number in range(rounds):
        before(number)
        active = [None, [0, 3], [1, 2, 3, 4], [2]][number % 4]
        memories.append(memory_after(engine, memories[-1], number, active))
    return memories[1:]


def bits(memories: list[Table]) -> list[bytes]:
    return [memory["momentum"].tobytes() for memory in memories]


def test_what_clients_keep_stays_with_their_actors_and_can_be_read_at_any_time(
    images: Federation, cluster: Any
) -> None:
    """Also of earlier rounds, after the engine was closed, and by an engine that goes on."""
    with make_engine("native", images, wide(), workers=1) as local:
        expected = remembered(local, 13)
    with RayEngine(images, wide(), workers=2, address=cluster.address) as engine:
        found = remembered(engine, 13)
        last = found[-1]
        assert isinstance(last, ActorMemory)
        assert len(last.exchanges) == 13 % MAX_REPEATED_EXCHANGES
        assert bits(found[3:4]) == bits(expected[3:4])
    assert bits(found) == bits(expected)
    with make_engine("native", images, wide(), workers=1) as local:
        once_more = memory_after(local, expected[-1], 13, [1, 2])
    with RayEngine(images, wide(), workers=3, address=cluster.address) as engine:
        for memory in (last, expected[-1]):
            assert bits([memory_after(engine, memory, 13, [1, 2])]) == bits([once_more])


@pytest.mark.parametrize("when", ["training", "reading"])
def test_what_clients_keep_is_made_again_if_its_node_dies(
    when: str, images: Federation, cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The rounds since the last copy are done again, of which there is none here."""
    with make_engine("native", images, wide(), workers=1) as local:
        expected = remembered(local, 7)
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()

    def remove(number: int) -> None:
        if number == 6:
            cluster.remove_node(node, allow_graceful=False)

    with RayEngine(images, wide(), address=cluster.address) as engine:
        assert engine.nodes == 3
        found = remembered(engine, 7, remove if when == "training" else lambda number: None)
        if when == "reading":
            remove(6)
        assert bits(found[-1:]) == bits(expected[-1:])
    assert f"died during '{'train' if when == 'training' else FETCHING}'" in caplog.text


@pytest.fixture
def by_value() -> Iterator[None]:
    """The nodes can't import this file, nor the model of the test."""
    from ray import cloudpickle

    pickling: Any = cloudpickle
    files = sys.modules[__name__], moody_model
    for file in files:
        pickling.register_pickle_by_value(file)
    yield
    for file in files:
        pickling.unregister_pickle_by_value(file)


def test_a_client_that_fails_or_kills_its_actor(
    fed: Federation, cluster: Any, by_value: None
) -> None:
    odd = with_marked_client(fed)

    def fail(x: Tensor) -> None:
        if is_marked(x):
            raise ArithmeticError("I would\nrather not")

    module = Moody(fail)
    with RayEngine(odd, module, workers=2, address=cluster.address) as engine:
        assert engine.name == "torch"
        for _ in range(2):
            with pytest.raises(
                EngineError, match=r"client d .*ArithmeticError: I would rather not$"
            ):
                local_update(engine, start(module), PLAN, Correction(), SEED)
        assert evaluation.risk(engine, start(module).models).shape == (5,)
        with pytest.raises(ConfigError, match=r"anchor .*21"):
            local_update(
                engine, start(module), PLAN, Correction(1.0, np.zeros((5, 2), np.float32)), SEED
            )

    def kill(x: Tensor) -> None:
        if is_marked(x):
            os.kill(os.getpid(), signal.SIGKILL)

    how: Any = {"workers": 1, "address": cluster.address, "max_replacements": 1}
    with (
        RayEngine(odd, Moody(kill), **how) as engine,
        pytest.raises(
            EngineError, match=r"2 actors .* 5 clients .*'train'.* lower workers"
        ) as info,
    ):
        local_update(engine, start(module), PLAN, Correction(), SEED)
    assert "\n" not in str(info.value)


class Fatal(nn.Linear):
    """A linear model that kills whoever first unpacks it elsewhere, so many times."""

    def __init__(self, deaths: Path) -> None:
        super().__init__(6, 3)
        self.deaths, self.home = deaths, os.getpid()

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self.home not in (os.getpid(), os.getppid()):
            for death in self.deaths.iterdir():
                death.unlink()
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("by_value")
def test_an_actor_that_dies_as_it_loads_is_replaced(
    fed: Federation,
    cluster: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = Fatal(tmp_path)
    for number in range(3):
        (tmp_path / str(number)).touch()
    how: Any = {
        "workers": 1, "address": cluster.address, "inside": "torch", "max_replacements": 1,
    }  # fmt: skip
    with pytest.raises(EngineError, match=r"2 actors .* 5 clients .*'load'.* lower workers"):
        RayEngine(fed, module, **how)
    with RayEngine(fed, module, **how) as engine:
        assert evaluation.risk(engine, start(module).models).shape == (5,)
    assert caplog.text.count("died during 'load'") == 2
    assert not list(tmp_path.iterdir())


def test_a_run_begun_on_ray_goes_on_without_it(wecfl: Wecfl, cluster: Any) -> None:
    few = ("run", "--clients", "6", "--groups", "2", "--clusters", "2", "--rounds")
    begun = wecfl(*few, 3, "--engine", "ray", "--ray-address", cluster.address, "--out", "a")
    assert begun.code == 0
    assert re.search(r"6 clients .*2 actors .*2 nodes", begun.out)
    assert begun.err == ""
    on = wecfl("resume", "a", "--rounds", "5", "--engine", "native")
    assert (on.code, on.err) == (0, "")
    assert wecfl(*few, 5, "--engine", "native", "--out", "b").code == 0
    for name in ("models.safetensors", "assignments.csv", "clients.csv"):
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


@contextmanager
def run_of_its_own(home: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has started Ray for itself and has finished its first round."""
    out = home / "run"
    command = ["run", "--engine", "ray", "--workers", "1", "--rounds", "100000", "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-c", "import wecfl_main; wecfl_main.main()", *command],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "HOME": str(home)},
    ) as process:  # fmt: skip
        try:
            metrics = out / "metrics.jsonl"
            while not metrics.exists() or not metrics.stat().st_size:
                assert process.poll() is None, process.communicate()
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


def test_ctrl_c_ends_the_ray_that_was_started(tmp_path: Path) -> None:
    """The first one waits for the round, although Ray has handlers of its own."""
    with run_of_its_own(tmp_path) as process:
        descend = descendants(process.pid)
        assert len(descend) > 3  # Ray's servers, and the actor
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert "after this round" in said.splitlines()[0]
    assert re.search(r"^wecfl: interrupted.* wecfl resume ", said.splitlines()[-1])
    assert process.returncode == 130
    gone(descend)


def test_a_ray_of_its_own_is_for_this_user_of_this_machine_and_ends_with_a_killed_run(
    tmp_path: Path,
) -> None:
    with run_of_its_own(tmp_path) as process:
        descend = descendants(process.pid)
        listening = [
            each.laddr
            for pid in (process.pid, *descend)
            for each in psutil.Process(pid).net_connections("tcp")
            if each.status == psutil.CONN_LISTEN
        ]
        assert len(listening) > 3
        assert {each.ip for each in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}
        token = tmp_path / ".ray" / "auth_token"
        assert token.stat().st_mode & 0o777 == 0o600
        server = next(pid for pid in descend if psutil.Process(pid).name() == "gcs_server")
        port = next(each.laddr.port for each in psutil.Process(server).net_connections("tcp")
                    if each.status == psutil.CONN_LISTEN)  # fmt: skip
        assert nodes(port, token.read_text()).startswith("1")
        assert "authentic" in nodes(port, "0" * 64).lower()
        process.kill()
        gone(descend)


def nodes(port: int, token: str) -> str:
    """How many nodes the cluster at a port has, or why it does not tell."""
    code = f"""
from ray._raylet import GcsClient
try:
    print(len(GcsClient(address="127.0.0.1:{port}").get_all_node_info()))
except Exception as error:
    print(error)
"""
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout


def gone(pids: list[int]) -> None:
    """They end, if not at once; without the reaper two of them live for a minute."""
    until = time.monotonic() + 40
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.1)


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
