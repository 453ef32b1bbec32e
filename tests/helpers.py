"""An engine in a few lines of NumPy, for property tests; what the command line came to."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

import wecfl
from wecfl import NativeEngine, methods
from wecfl.bilevel.local import Train
from wecfl.core.execution import perform
from wecfl.core.method import Method
from wecfl.core.plan import Correction, LocalPlan
from wecfl.core.program import Answers, Job, Program, Sent, Site, needs_of
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Bool, Int, Split, Table
from wecfl.engine.local import NO_MEMORY
from wecfl.layout import Layout
from wecfl.runs.result import Result
from wecfl.tasks import Classification

GROUPS = {
    "plan": wecfl.Plan, "conditions": wecfl.Conditions, "privacy": wecfl.Privacy,
    "measure": wecfl.Measure, "engine": wecfl.Compute, "folder": wecfl.Folder,
}  # fmt: skip


def grouped(**choices: Any) -> dict[str, Any]:
    """Choices under their flat names, as a configuration has them, as parameters of `wecfl.run`."""

    def taken(kind: Any) -> Any:
        fields = kind.__dataclass_fields__
        inside = {name: choices.pop(name) for name in fields if name in choices}
        return kind(**inside) if inside else None

    if "out" in choices:
        choices["path"] = choices.pop("out")
    if "attack" in choices:
        names = {"attackers": "attackers", "attack_strength": "strength"}
        how = {to: choices.pop(name) for name, to in names.items() if name in choices}
        choices["attack"] = wecfl.Attack(choices["attack"], **how)
    if {"newcomers", "unseen"} & choices.keys():
        late = choices.pop("newcomers", None), choices.pop("unseen", None)
        choices["newcomers"] = wecfl.Newcomers(*late)
    given = {}
    if not isinstance(choices.get("engine", ""), str):
        given["engine"] = choices.pop("engine")
    found = {name: taken(kind) for name, kind in GROUPS.items()}
    return choices | {name: value for name, value in found.items() if value is not None} | given


def run_flat(federation: Any, method: Method, **choices: Any) -> Result:
    """`wecfl.run` with choices under their flat names."""
    return wecfl.run(federation, method, **grouped(**choices))


def method_named(name: str, k: Any) -> Method:
    """The method of that name, with K where it has one."""
    return methods.named(name, **({"k": k} if "k" in methods.options(name) else {}))


def engines_for(what: Method | Program) -> list[str]:
    """The engines that can carry a method or a program; the first is the fastest."""
    needs = what.needs if isinstance(what, Method) else needs_of(what)
    return ["native", "torch"] if needs <= NativeEngine.offers else ["torch"]


def same_bits(one: Result, two: Result) -> None:
    """The same states to the bit."""
    for a, b in zip(one.states, two.states, strict=True):
        same_states(a, b)


def same_states(a: State, b: State) -> None:
    """The same to the bit."""
    np.testing.assert_array_equal(a.labels, b.labels)
    assert a.models.tobytes() == b.models.tobytes()
    assert a.centers.tobytes() == b.centers.tobytes()
    assert a.tick == b.tick
    for owner in ("memory", "cluster", "known", "whole"):
        one, two = getattr(a, owner), getattr(b, owner)
        assert one.keys() == two.keys(), owner
        assert all(one[key].tobytes() == two[key].tobytes() for key in one), owner


def same_folders(one: Path, two: Path) -> None:
    """The same run to the bit, but for clocks and what was called how often."""
    names = {file.relative_to(one) for file in one.rglob("*") if file.is_file()}
    assert names == {file.relative_to(two) for file in two.rglob("*") if file.is_file()}
    for name in names:
        a, b = (one / name).read_bytes(), (two / name).read_bytes()
        if name.name in ("env.json", ".lock") or name.match("checkpoints/*.json"):
            continue
        if name.name in ("metrics.jsonl", "summary.json"):
            a, b = (b"".join(timeless(text)) for text in (a, b))
        assert a == b, name


def timeless(text: bytes) -> list[bytes]:
    """JSON, in lines or not, without its seconds."""
    objects = [json.loads(text)] if text.startswith(b"{\n") else map(json.loads, text.splitlines())
    return [json.dumps({**each, "seconds": None}).encode() for each in objects]


class BowlEngine:
    """Clients minimize l_i(w) = ‖w − b_i‖ − log(1 + ‖w − b_i‖): convex, ‖∇l_i‖ < 1 everywhere.

    A row is one tensor of p columns, which is the head; two more columns are `statistics`.
    """

    name = "bowl"
    workers = nodes = outputs = 1
    task = Classification()
    shape = (1,)
    U = 1.0

    def __init__(self, targets: F64, sizes: Int) -> None:
        self.targets = targets
        self.sizes = sizes
        self.layout = Layout.of(
            [("w", (targets.shape[1],), ["head", "linear"]), ("bn", (2,), ["statistics"])]
        )

    def ask(
        self, job: Job, sent: Sent, who: Int | None = None, memory: Table = NO_MEMORY
    ) -> Answers:
        clients = np.arange(len(self.sizes)) if who is None else who
        site: Any = BowlSite(self, clients)  # its clients have no samples
        rows, _ = perform(job, site, sent, {})
        return Answers(rows, np.zeros(len(clients), np.int8), memory)

    def move_to(self, round: int) -> None:
        pass

    def network_report(self) -> dict[str, Any]:
        return {}

    def starts(self, which: Sequence[int], seed: int) -> F32:
        rows = [np.random.default_rng([seed, j]).normal(size=self.layout.width) for j in which]
        return np.stack(rows).astype(np.float32)


class BowlSite:
    """Some of these clients."""

    round = 0

    def __init__(self, engine: BowlEngine, clients: Int) -> None:
        self.layout, self.sizes = engine.layout, engine.sizes[clients]
        self.targets = engine.targets[clients]

    def train(
        self,
        rows: F32,
        plan: LocalPlan,
        *,
        correction: Correction | None = None,
        velocity: F32 | None = None,
        free: Bool | None = None,
        part: slice = slice(None),
        repeat: int = 1,
        out: F32 | None = None,
    ) -> tuple[F32, F32 | None]:
        models = rows.astype(np.float64)
        lr = np.broadcast_to(np.asarray(plan.lr), len(models))[:, None]
        for _ in range(plan.steps):
            models[:, :-2] -= lr * self._gradient(models)
        return models.astype(np.float32), None

    def _gradient(self, models: F64) -> F64:
        gap = models[:, :-2] - self.targets
        return np.asarray(gap / (1 + np.linalg.norm(gap, axis=1, keepdims=True)), np.float64)

    def gradients(self, rows: F32, batches: int | None = None) -> F32:
        return self._gradient(rows.astype(np.float64)).astype(np.float32)

    def risk(self, rows: F32, split: Split = "train", batches: int | None = None) -> F64:
        length = np.linalg.norm(rows[:, :-2] - self.targets, axis=1)
        return np.asarray(length - np.log1p(length), dtype=np.float64)

    def losses(self, models: F32, batches: int | None = None) -> F64:
        m = len(self.targets)
        return np.stack([self.risk(np.repeat(row[None], m, axis=0)) for row in models], axis=1)

    def tally(self, rows: F32, split: Split) -> F64:
        return np.ones((len(self.sizes), 1, 1))


def local_update(  # noqa: PLR0917
    engine: Any,
    state: State,
    plan: LocalPlan,
    correction: Correction,
    seed: int,
    active: Sequence[int] | None = None,
) -> tuple[F32, dict[str, F32]]:
    """All clients' models and momentum after a local update of those who are active."""
    m = len(state.labels)
    who = np.arange(m) if active is None else np.sort(np.array(active, np.int64))
    shapes = {"anchor": correction.anchor, "offset": correction.offset}
    extra = {
        name: np.asarray(rows, np.float32)[who] for name, rows in shapes.items() if rows is not None
    }
    sent = Sent({"model": state.models[who % m], **extra})
    mu: Any = correction.mu  # one for each column too: nothing but a number travels
    program: Any = Train(mu) if np.ndim(mu) == 0 else _Columnwise(mu)
    job = Job(program, plan.of(who), seed, state.round, keep=True)
    answers = engine.ask(job, sent, who, state.memory)
    models = state.models.copy()
    models[who] = answers.rows["model"]
    return models, dict(answers.memory)


class _Columnwise:
    """Training with a pull of its own for each column."""

    name, version, replies = "columnwise", 1, Train.replies

    def __init__(self, mu: F32) -> None:
        self.mu = mu

    def keeps(self, plan: LocalPlan) -> Any:
        return Train().keeps(plan)

    def check(self, plan: LocalPlan, layout: Layout) -> None: ...

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> Any:
        own = sent.own
        correction = Correction(self.mu, own.get("anchor"), own.get("offset"))
        rows, velocity = site.train(
            own["model"], plan, correction=correction, velocity=memory.get("momentum")
        )
        return {"model": rows}, {} if velocity is None or not memory else {"momentum": velocity}


def workers() -> list[int]:
    """The processes of all engines that are alive."""
    children = multiprocessing.active_children()
    return sorted(child.pid or 0 for child in children if child.name.startswith("wecfl-worker"))


@contextmanager
def serving(app: Any) -> Iterator[Callable[..., tuple[int, Any]]]:
    """Serve an ASGI app on loopback; yields a function that asks it: path, body ↦ status, JSON."""
    import uvicorn

    config = uvicorn.Config(app, port=0, ws="none", log_level="error", timeout_graceful_shutdown=5)
    listening = config.bind_socket()
    listening.listen()  # requests wait until the server is up
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    port = listening.getsockname()[1]

    def ask(path: str, body: Any = None) -> tuple[int, Any]:
        text = body if isinstance(body, str) or body is None else json.dumps(body)
        data = None if text is None else text.encode()
        request = Request(
            f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"}
        )
        try:
            with urlopen(request, timeout=20) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)

    try:
        yield ask
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        listening.close()


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Wecfl = Callable[..., Outcome]
"""Runs a command."""


@contextmanager
def as_nobody() -> Iterator[None]:
    """Sockets that are opened here belong to another user of the machine."""
    if os.getuid() != 0:
        pytest.skip("only root can pose as another user")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
