"""A method of one's own – a program, a serving, a second exchange – in simulation and over a grid.

It touches nothing of the library: what clients must know of it is registered.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import wecfl
from fakegrid import WAITS, FakeGrid, Node, digits_of
from helpers import run_flat, same_bits
from wecfl import methods
from wecfl.bilevel.clustering.hierarchy import Agglomerative
from wecfl.bilevel.programs import PROGRAMS, register
from wecfl.bilevel.serving import SERVINGS, Center
from wecfl.core.ask import Ask
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Field, ReplyAndMemory, Sent, Site
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F32, F64, Table
from wecfl.errors import ConfigError
from wecfl.flower import client_app
from wecfl.flower.server import read, serve
from wecfl.layout import Layout

M = 4


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """Train the model received; keep a slow mean of what came of it."""

    decay: float = 0.5
    name: ClassVar[str] = "own-slow-steps"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {"model": Field(("P",), update=True)}

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        return {"slow": Field(("P",), start="received")}

    def check(self, plan: LocalPlan, layout: Layout) -> None: ...

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        rows, _ = site.train(sent.own["model"], plan)
        half = np.float32(self.decay)
        return {"model": rows}, {"slow": half * memory["slow"] + (1 - half) * rows}


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of each class among the samples."""

    name: ClassVar[str] = "own-shares"
    version: ClassVar[int] = 1
    replies: ClassVar[Mapping[str, Field]] = {"shares": Field(("C",), "float64")}

    def keeps(self, plan: LocalPlan) -> Mapping[str, Field]:
        return {}

    def check(self, plan: LocalPlan, layout: Layout) -> None: ...

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> ReplyAndMemory:
        _, ys = site.samples()
        parts = np.split(ys, np.cumsum(site.sizes)[:-1])
        classes = site.layout.head[0]
        return {"shares": np.stack([np.bincount(y, minlength=classes) / len(y) for y in parts])}, {}


@dataclass(frozen=True, slots=True)
class Slow(Center):
    """The slow mean serves."""

    name: ClassVar[str] = "own-slow"
    needs_memory: ClassVar[bool] = True

    def __call__(self, site: Site, sent: Sent, memory: Table, plan: LocalPlan) -> list[F32]:
        return [memory["slow"]]


def city_block(points: Any, centers: Any) -> F64:
    return np.asarray(cdist(points, centers, "cityblock"))


def learn_shares(before: State, after: State, sent: Table, setting: Setting) -> State:
    assert after.replies is not None
    known = replace(before, tick=after.tick, memory=after.memory)
    return known.replace(known={**before.known, "shares": after.replies["shares"]})


def mine() -> Method:
    return methods.flhc().replace(
        name="mine", local=SlowSteps(), serve=Slow(), distance=city_block,
        clustering=Agglomerative(threshold=5.0, metric="method"),
        steps=(Ask(Shares(), learn=learn_shares, who="shares"), "L", "E", "M", "D"),
    )  # fmt: skip


@pytest.fixture
def registered() -> Iterator[None]:
    for kind in (SlowSteps, Shares, Slow):
        register(kind)
    yield
    del PROGRAMS[SlowSteps.name], PROGRAMS[Shares.name], SERVINGS[Slow.name]


def make_model() -> Any:
    return wecfl.models.build("mlp", shape=(1, 8, 8), classes=10, seed=5)


def over_the_grid(where: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(methods.METHODS, "mine", mine)
    fed = digits_of(M)

    def load_data(config: Any) -> tuple[Any, ...]:
        train, test = (rows[config["partition-id"]] for rows in (fed.train, fed.test))
        return fed.x[train], fed.y[train], fed.x[test], fed.y[test]

    app = client_app(load_data, make_model, classes=10)
    nodes = {
        i: Node(app, {"client-id": f"c{i}", "partition-id": i, "state-dir": f"{where}/c{i}"})
        for i in range(M)
    }
    config = {
        "clients": M, "rounds": 3, "steps": 3, "lr": 0.05, "method": "mine", "timeout": 5,
        "enrolment": 0.2, "min-clients": M, "out": str(where / "run"),
    }  # fmt: skip
    return serve(FakeGrid(nodes), config, make_model, classes=10, **WAITS)


@pytest.mark.usefixtures("registered")
def test_it_is_over_the_network_what_it_is_in_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = over_the_grid(tmp_path, monkeypatch)
    _, config = read({"clients": M})
    limits = {name: getattr(config, name) for name in ("refuse_above", "shorten_above")}
    here = run_flat(digits_of(M), mine(), model=make_model(), rounds=3, steps=3, lr=0.05, **limits)
    assert over.labels.tolist() == here.labels.tolist()
    np.testing.assert_array_equal(over.centers, here.centers)
    scores = [[record["accuracy"] for record in result.records] for result in (over, here)]
    assert scores[0] == scores[1]
    assert None not in scores[0]


def test_what_clients_can_not_know_is_refused_before_they_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"SlowSteps: register .*register\(SlowSteps\)"):
        over_the_grid(tmp_path, monkeypatch)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("registered")
def test_a_name_is_taken_once() -> None:
    taken = type("Other", (Slow,), {"name": Center.name})
    with pytest.raises(ConfigError, match="registered as 'center'"):
        register(taken)


@pytest.mark.usefixtures("registered")
def test_the_engines_and_a_resumed_run_agree(tmp_path: Path) -> None:
    fed = digits_of(M)
    how: dict[str, Any] = {"steps": 3, "lr": 0.05, "participation": 0.8}
    native, torch = (
        run_flat(fed, mine(), rounds=3, engine=engine, **how) for engine in ("native", "torch")
    )
    np.testing.assert_allclose(native.centers, torch.centers, atol=1e-4)
    run_flat(fed, mine(), rounds=2, engine="native", out=tmp_path / "run", **how)
    more = run_flat(
        fed, mine(), rounds=3, engine="native", out=tmp_path / "run", resume=True, **how
    )
    same_bits(native, more)
    row = fed.x[fed.test[0]]
    loaded = wecfl.load(tmp_path / "run", method=mine())
    np.testing.assert_array_equal(loaded.predict(row, client="0"), more.predict(row, client="0"))
