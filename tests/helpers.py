"""An engine in a few lines of NumPy, for property tests; what the command line came to."""

import json
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import wecfl
from wecfl import methods
from wecfl.core.method import Method
from wecfl.core.plan import Correction, Plan
from wecfl.core.state import F32, F64, Int, Split, State
from wecfl.layout import Layout
from wecfl.runs.result import Result

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


def same_bits(one: Result, two: Result) -> None:
    """The same states to the bit."""
    for a, b in zip(one.states, two.states, strict=True):
        same_states(a, b)


def same_states(a: State, b: State) -> None:
    """The same to the bit."""
    np.testing.assert_array_equal(a.labels, b.labels)
    assert a.models.tobytes() == b.models.tobytes()
    assert a.centers.tobytes() == b.centers.tobytes()
    assert a.memory.keys() == b.memory.keys()
    assert all(a.memory[key].tobytes() == b.memory[key].tobytes() for key in a.memory)


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
    workers = nodes = 1
    U = 1.0

    def __init__(self, targets: F64, sizes: Int) -> None:
        self.targets = targets
        self.sizes = sizes
        self.layout = Layout.of(
            [("w", (targets.shape[1],), ["head", "linear"]), ("bn", (2,), ["statistics"])]
        )

    def gradient(self, models: F64) -> F64:
        gap = models - self.targets
        length = np.linalg.norm(gap, axis=1, keepdims=True)
        return np.asarray(gap / (1 + length), dtype=np.float64)

    def train(
        self,
        state: State,
        plan: Plan,
        correction: Correction,
        seed: int,
        active: Sequence[int] | None = None,
    ) -> tuple[F32, dict[str, F32]]:
        models = state.models.astype(np.float64)
        lr = np.zeros((len(models), 1))
        clients = slice(None) if active is None else active
        lr[clients, 0] = np.broadcast_to(np.asarray(plan.lr), len(models))[clients]
        for _ in range(plan.steps):
            models[:, :-2] -= lr * self.gradient(models[:, :-2])
        return models.astype(np.float32), {}

    def gradients(
        self, models: F32, *, batches: int | None = None, seed: int = 0, round: int = 0
    ) -> F32:
        return self.gradient(models[:, :-2].astype(np.float64)).astype(np.float32)

    def risk(self, models: F32, split: Split = "train") -> F64:
        length = np.linalg.norm(models[:, :-2] - self.targets, axis=1)
        return np.asarray(length - np.log1p(length), dtype=np.float64)

    def losses(
        self,
        models: F32,
        *,
        batches: int | None = None,
        seed: int = 0,
        round: int = 0,
        active: Sequence[int] | None = None,
    ) -> F64:
        m = len(self.targets)
        each = [self.risk(np.repeat(row[None], m, axis=0)) for row in models]
        return np.stack(each, axis=1)[slice(None) if active is None else active]

    def confusion(self, models: F32, split: Split) -> Int:
        return np.ones((len(self.sizes), 1, 1), dtype=np.int64)

    def notes(self) -> dict[str, Any]:
        return {}

    def starts(self, which: Sequence[int], seed: int) -> F32:
        rows = [np.random.default_rng([seed, j]).normal(size=self.layout.width) for j in which]
        return np.stack(rows).astype(np.float32)


def workers() -> list[int]:
    """The processes of all engines that are alive."""
    children = multiprocessing.active_children()
    return [child.pid or 0 for child in children if child.name.startswith("wecfl-worker")]


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Wecfl = Callable[..., Outcome]
"""Runs a command."""
