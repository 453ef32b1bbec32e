"""A fleet, whose rounds hold those that take part, beside a run that has rows for all."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

import wecfl
from helpers import Wecfl
from wecfl import Federation, methods
from wecfl.bilevel.clustering.joining import by_losses
from wecfl.bilevel.representation import Columns
from wecfl.config import Config
from wecfl.core.channel import Channel
from wecfl.core.rounds import iterate, opening
from wecfl.core.state import State
from wecfl.core.turns import participants, shuffled
from wecfl.core.types import Bool
from wecfl.data.fleet import DrawnFleet, Fleet
from wecfl.engine.kept_rows import KeptRows
from wecfl.errors import ConfigError, DataError, RunFolderError
from wecfl.experiment import Experiment, run_config
from wecfl.experiment.fleet import run_fleet
from wecfl.folder.readers import read_assignments, read_summary
from wecfl.metrics import agreement
from wecfl.options import Attack, Compute, Conditions, Folder, Measure, Plan
from wecfl.runs.fleet_result import FleetResult

M, ACTIVE, ROUNDS = 14, 4, 7  # a pass takes three rounds, the last of them with six clients
PLAN = Plan(lr=0.05, steps=3, batch=4)
CONDITIONS = Conditions(dropout=0.2, stragglers=0.3)


def load(number: int) -> tuple[Any, Any]:
    """Clients of two kinds, and of different sizes."""
    draws = np.random.default_rng([7, number])
    y = draws.integers(0, 3, 8 + number % 5)
    x = 2 * np.eye(3, dtype=np.float32)[(y + number % 2) % 3]
    return x + draws.normal(size=x.shape).astype(np.float32) / 4, y


def fleet(**how: Any) -> Fleet:
    return Fleet(range(M), load, classes=3, groups=np.arange(M) % 2, **how)


def trained(method: wecfl.Method, **how: Any) -> FleetResult:
    options = {"active": ACTIVE, "model": "mlp", "rounds": ROUNDS, "plan": PLAN, **how}
    return run_fleet(fleet(), method, **{"engine": Compute(workers=1), **options})


class Turns(Channel):
    """Clients take turns, and each of them has rows."""

    __slots__ = ()

    def present(self, m: int, round: int, purpose: str = "participation") -> Bool:
        return np.isin(np.arange(m), participants(m, ACTIVE, 0, round))


def with_rows_for_all(method: wecfl.Method, plan: Plan = PLAN) -> State:
    """The state after the same rounds, by a run that holds all clients."""
    xs, ys = zip(*map(load, range(M)), strict=True)
    everyone = Federation.from_arrays(xs, ys, classes=3)
    experiment = Experiment(everyone, method, model="mlp", plan=plan, engine=Compute(workers=1))
    with experiment.open() as opened:
        setting = replace(opened.settings[0], channel=Turns(), joining=by_losses)
        path = iterate(setting, opening(setting))
        return [next(path) for _ in range(ROUNDS)][-1]


@pytest.mark.parametrize(
    "method",
    [
        methods.fedavg,
        methods.wecfl(k=2),
        methods.wecfl(k=2, project=8).replace(name="projected"),
        methods.fesem(k=3),
        methods.fedprox(),
        methods.ditto(),
    ],
    ids=lambda method: method.name,
)
def test_a_fleet_trains_as_a_run_with_rows_for_all(method: wecfl.Method) -> None:
    found, expected = trained(method), with_rows_for_all(method)
    # Clusters that begin alike are numbered by rounding.
    _, same = linear_sum_assignment(cdist(expected.centers, found.centers))
    np.testing.assert_allclose(found.centers[same], expected.centers, rtol=1e-4, atol=1e-6)
    assert found.labels.tolist() == same[expected.labels].tolist()
    assert [record["heard"] for record in found.records] == [4, 8, 14, 14, 14, 14, 14]


def test_what_clients_keep_may_be_in_files(monkeypatch: Any, tmp_path: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    seen: list[int] = []
    small = trained(methods.wecfl(k=2), memory=0, watch=[lambda *_: seen.append(
        sum(file.is_file() for file in tmp_path.rglob("momentum")))])  # fmt: skip
    assert small.centers.tobytes() == trained(methods.wecfl(k=2)).centers.tobytes()
    assert seen == [1] * ROUNDS and not [*tmp_path.iterdir()]


def test_rows_exist_for_those_that_have_some() -> None:
    kept, dense = KeptRows(1000, budget=300), np.zeros((1000, 5), np.float32)
    draws = np.random.default_rng(0)
    for _ in range(6):
        who = draws.choice(1000, 7, replace=False)
        dense[who] = draws.normal(size=(7, 5))
        kept.put(who, {"momentum": dense[who]})
        asked = draws.choice(1000, 50, replace=False)
        assert kept.take(asked)["momentum"].tolist() == dense[asked].tolist()
    assert kept.nbytes == 20 * len(kept) == 20 * int(dense.any(axis=1).sum())
    kept.close()


@pytest.mark.parametrize("m", [1, 2, 3, 5, 64, 1000, 1025])
def test_the_order_of_turns_is_a_permutation(m: int) -> None:
    orders = [shuffled(m, np.arange(m), np.random.default_rng(seed)) for seed in range(3)]
    assert all(sorted(order.tolist()) == [*range(m)] for order in orders)
    some = shuffled(m, np.arange(m)[::3], np.random.default_rng(0))
    assert some.tolist() == orders[0][::3].tolist()  # each place is evaluated alone
    if m >= 1000:
        apart = np.abs(np.diff(orders[0])).mean() / m
        assert apart == pytest.approx(1 / 3, abs=0.03)  # of a random order
        assert (orders[0] == orders[1]).mean() < 0.01


def test_turns_reach_everyone_once_in_a_pass() -> None:
    for start in (0, 3):
        passed = [participants(14, 4, 3, start + t) for t in range(3)]
        assert sorted(np.concatenate(passed).tolist()) == [*range(14)]
    assert participants(10**6, 3, 0, 0).tolist() != participants(10**6, 3, 1, 0).tolist()


def test_k_is_chosen_on_a_fleet() -> None:
    found = trained(methods.wecfl(k="auto"), active=14, rounds=3, plan=replace(PLAN, lr=0.2))
    assert found.agreement()["ari"] == 1


@pytest.mark.parametrize("project", [None, 8])
def test_a_stopped_fleet_goes_on_to_the_same_bits_and_is_read_back(
    tmp_path: Path, project: int | None
) -> None:
    method = methods.wecfl(k=2, project=project)
    whole = trained(method, folder=tmp_path / "whole", conditions=CONDITIONS)
    trained(method, folder=tmp_path / "two", conditions=CONDITIONS, rounds=3)
    again = Folder(tmp_path / "two", resume=True)
    found = trained(method, folder=again, conditions=CONDITIONS)
    assert found.centers.tobytes() == whole.centers.tobytes()
    assert found.labels.tolist() == whole.labels.tolist()
    for name in ("models.safetensors", "clients.csv"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    stored = wecfl.load(tmp_path / "two")
    assert isinstance(stored, FleetResult) and stored.clients.equals(whole.clients)
    assert stored.summary["fleet"] == whole.summary["fleet"]
    client = str(whole.clients["client"][1])
    for way in ({"cluster": 1}, {"client": client}):
        x = np.eye(3, dtype=np.float32)
        assert stored.predict(x, **way).tolist() == whole.predict(x, **way).tolist()
    with pytest.raises(ConfigError, match="fleet"):
        stored.assign(x, [0, 1, 2])
    with pytest.raises(ConfigError, match="fleet"):
        read_assignments(tmp_path / "two")
    with pytest.raises(RunFolderError, match="active"):
        trained(method, folder=again, conditions=CONDITIONS, active=5, rounds=9)


def test_large_rows_are_not_copied_and_small_ones_stay() -> None:
    kept = KeptRows(100, budget=1e9)
    kept.put(np.array([9, 4]), {"momentum": np.ones((2, 3))})
    copied, shared = kept.rows(1e9), kept.rows(0)
    kept.put(np.array([4]), {"momentum": np.zeros((1, 3))})
    assert copied["client"].tolist() == [9, 4] and copied["momentum"].sum() == 6
    assert shared["momentum"].sum() == 3


def test_more_active_than_registered_clients_are_refused(wecfl: Wecfl) -> None:
    refused = wecfl("run", "--registered", "10", "--active", "20")
    assert refused.code == 2 and "20" in refused.err and refused.err.count("\n") == 1


def test_registered_clients_draw_from_those_of_a_data_set(tmp_path: Path, wecfl: Wecfl) -> None:
    source = Federation.from_arrays(*zip(*map(load, range(4)), strict=True), groups=[0, 1, 0, 1])
    drawn = DrawnFleet(source, 1_000, samples=4).federation(np.array([6, 7, 998]))
    for client, whose in enumerate((2, 3, 2)):
        assert {*drawn.train[client]} <= {*source.train[whose]}
        assert {*drawn.test[client]} <= {*source.test[whose]}
    assert (
        drawn.groups is not None
        and drawn.groups.tolist() == [0, 1, 0]
        and drawn.sizes.tolist() == [4] * 3
    )
    flags = "--registered 1000 --active 30 --clients 10 --clusters 2 --rounds 2 --lr 0.1"
    said = wecfl("run", *flags.split(), "--workers", "1", "--out", str(tmp_path / "run"))
    assert "1,000 clients are registered, 30 are active" in said.out
    wecfl("resume", str(tmp_path / "run"), "--rounds", "3")
    assert read_summary(tmp_path / "run")["fleet"]["heard"] == 90


def test_a_fleet_of_ones_own_code(tmp_path: Path, wecfl: Wecfl) -> None:
    file = tmp_path / "fleet.py"
    file.write_text(
        "import numpy as np, wecfl\n"
        "def load(i):\n"
        "    y = np.arange(8) % 2\n"
        "    return np.eye(2, dtype='f4')[y], y, np.eye(2, dtype='f4'), np.arange(2)\n"
        "def make():\n"
        "    return wecfl.Fleet(range(500), load, classes=2)\n"
    )
    run, code = str(tmp_path / "run"), ("--dataset", f"{file}:make")
    wecfl("run", *code, *["--active", "6", "--clusters", "2", "--rounds", "1", "--out"], run)
    assert "give it again" in wecfl("resume", run, "--rounds", "2").err
    wecfl("resume", run, "--rounds", "2", *code)
    assert read_summary(tmp_path / "run")["fleet"]["heard"] == 12


def test_what_a_fleet_refuses() -> None:
    with pytest.raises(ConfigError, match="scaffold"):
        trained(methods.scaffold())
    with pytest.raises(ConfigError, match="ifca"):
        trained(methods.ifca(k=2))
    with pytest.raises(ConfigError, match="theory"):
        trained(methods.wecfl(k=2), plan=Plan(lr="theory", momentum=0))
    with pytest.raises(ConfigError, match="predict alone"):
        alone = Columns("classifier")
        trained(methods.wecfl(k=2).replace(shared="classifier", representation=alone))
    with pytest.raises(ConfigError, match="machine"):
        trained(methods.wecfl(k=2), engine=Compute("ray"))
    for condition in (Conditions(participation=0.5), Conditions(joining=0.5),
                      Conditions(min_cluster=2), Conditions(attack=Attack("noise"))):  # fmt: skip
        with pytest.raises(ConfigError, match="a fleet can't have"):
            trained(methods.wecfl(k=2), conditions=condition)
    with pytest.raises(ConfigError, match="diagnostics"):
        trained(methods.wecfl(k=2), measure=Measure(diagnostics=True))
    with pytest.raises(ConfigError, match="run_fleet"):
        run_config(Config(registered=100))
    with pytest.raises(ConfigError, match="active"):
        trained(methods.wecfl(k=2), active=0)
    with pytest.raises(ConfigError, match="memory"):
        trained(methods.wecfl(k=2), memory=-1)
    with pytest.raises(DataError, match="no clients"):
        Fleet([], load)
    with pytest.raises(DataError, match="groups"):
        Fleet(range(3), load, groups=np.zeros(2, np.int64))
    uneven = Fleet(["a"], lambda name: (np.zeros((3, 2)), np.zeros(2, np.int64)), classes=2)
    with pytest.raises(DataError, match="client a"):
        uneven.federation(np.zeros(1, np.int64))


def test_clients_heard_before_clusters_were_found_are_placed_then(tmp_path: Path) -> None:
    """Clients of two kinds take turns; the first ones are not heard again."""
    many = Fleet(range(400), load, classes=3, groups=np.arange(400) % 2)
    how: Any = {"active": 20, "model": "mlp", "plan": replace(PLAN, lr=0.2), "rounds": 4}
    found = run_fleet(many, methods.wecfl(k="auto"), **how, folder=tmp_path / "whole")
    first = found.records[0]
    assert first["clusters"] == 1 and found.records[-1]["clusters"] > 1
    early = np.array(first["clients"]["number"])
    assert agreement(found.labels[early], early % 2)["ari"] == 1
    run_fleet(many, methods.wecfl(k="auto"), **how | {"rounds": 1}, folder=tmp_path / "two")
    again = Folder(tmp_path / "two", resume=True)
    resumed = run_fleet(many, methods.wecfl(k="auto"), **how, folder=again)
    assert resumed.labels.tolist() == found.labels.tolist()


def drawn_around_means(number: int) -> tuple[Any, Any]:
    """Clients of four kinds, which differ in the means of classes: one model can learn all."""
    means = np.random.default_rng(0).standard_normal((4, 4, 16))
    draws = np.random.default_rng([5, number])
    y = draws.integers(0, 4, 16)
    return (means[number % 4][y] + draws.standard_normal((16, 16))).astype(np.float32), y


MANY = Fleet(range(2000), drawn_around_means, classes=4, groups=np.arange(2000) % 4)


@pytest.mark.parametrize("k", [4, "auto"])
def test_groups_stay_apart_although_everyone_is_new(k: Any) -> None:
    how: Any = {"model": "mlp", "plan": Plan(lr=0.1, keep_momentum=False), "rounds": 50}
    found = run_fleet(MANY, methods.wecfl(k=k), active=40, engine=Compute(workers=1), **how)
    assert found.records[-1]["heard"] == 2000
    assert found.agreement()["ari"] == pytest.approx(1, abs=0.01)


def test_a_client_is_asked_once_and_receives_all_models(tmp_path: Path) -> None:
    found = trained(methods.wecfl(k=3), folder=tmp_path)
    model, losses = found.centers[0].nbytes, 8 * 3
    first, second, third, *again = [record["clients"] for record in found.records]
    # In the first round there is one model yet. In the third two clients more take part.
    for clients, new in ((first, 0), (second, 1), (third, 1), *((one, 0) for one in again)):
        n = len(clients["number"])
        assert clients["bytes_down"] == [model * (1 + 3 * new)] * n
        assert clients["bytes_up"] == [model + losses * new] * n
    assert [record["traffic"]["messages"] for record in found.records[:3]] == [8, 16, 24]


def test_new_clients_choose_alike_with_any_number_of_workers() -> None:
    one, two = (
        trained(methods.wecfl(k=2), engine=Compute(workers=workers), conditions=CONDITIONS)
        for workers in (1, 2)
    )
    assert one.centers.tobytes() == two.centers.tobytes()
    assert one.labels.tolist() == two.labels.tolist()
