"""One suite over every registered method, and the relations between methods."""

import dataclasses
from collections.abc import Callable
from functools import cache
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from threadpoolctl import threadpool_limits

import wecfl
from fuzzing import FACTOR, in_turns
from helpers import engines_for, method_named, run_flat, same_bits, same_folders
from wecfl import NativeEngine, State, methods, rng
from wecfl.bilevel.aggregation import Mean
from wecfl.bilevel.aggregation.optimizer import Momentum
from wecfl.bilevel.importance import data_size, uniform
from wecfl.bilevel.representation import Columns
from wecfl.core.ask import Ask
from wecfl.core.components import Clusters, View
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import STEPS, iterate, opening
from wecfl.core.setting import Setting
from wecfl.engine import make_engine
from wecfl.folder.readers import read_states
from wecfl.folder.writer import RunFolder
from wecfl.models import build, row_of
from wecfl.runs.result import Result

SEED = 5
ROUNDS = 3
NAMES = [*methods.METHODS, "wecfl auto", "fesem auto", "wecfl projected"]
EVERY = pytest.mark.parametrize("name", NAMES)
KINDS = (
    "fedavg+", "ifca", "wecfl auto", "wecfl projected", "fedadam", "scaffold", "fedavg-ft", "ditto",
    "fedper",
)  # fmt: skip
"""A method of each kind: votes, asks, counts clusters, keeps something here, there or at home."""


def some(turn: int) -> pytest.MarkDecorator:
    """A third of the methods, and one of each kind (`make fuzz`: all)."""
    return pytest.mark.parametrize("name", in_turns(NAMES, turn, always=KINDS))


def named(name: str) -> Method:
    """With three clusters, or with as many as it finds."""
    if name == "wecfl projected":
        return methods.wecfl(3, project=64)
    kind, _, auto = name.partition(" ")
    return method_named(kind, k="auto" if auto else 3)


def on_engines(names: list[str]) -> pytest.MarkDecorator:
    """On the native engine, if it can carry them; on torch, which takes four times as long, one of
    each kind (`make fuzz`: all)."""
    return pytest.mark.parametrize(
        ("name", "engine"),
        [
            (name, engine)
            for name in names
            for engine in engines_for(named(name))[: 2 if FACTOR or name in KINDS else 1]
        ],
    )


@cache
def digits() -> wecfl.Federation:
    partition = wecfl.partitions.ClusterwiseDirichlet((0.1, 10.0), groups=3)
    return wecfl.Federation.from_dataset("digits", partition, clients=9, seed=SEED)


@pytest.fixture(scope="module")
def fed() -> wecfl.Federation:
    return digits()


def run(
    fed: wecfl.Federation,
    method: Method,
    workers: int = 1,
    rounds: int = ROUNDS,
    engine: str | None = None,
) -> Result:
    engine = engine or engines_for(method)[0]
    how: Any = {"workers": workers, "engine": engine, "objectives": False}
    return run_flat(fed, method, rounds=rounds, steps=5, lr=0.05, seed=SEED, **how)


@cache
def plain(name: str, engine: str | None = None) -> Result:
    """The run that several tests compare others with."""
    return run(digits(), named(name), engine=engine)


@EVERY
def test_every_method_learns_and_keeps_the_shapes(name: str, fed: wecfl.Federation) -> None:
    """On one engine; that the other one comes to the same is another test."""
    method = named(name)
    result = run(fed, method, rounds=12)
    width = wecfl.models.layout_of(result.architecture).width
    assert len(result.states) == method.members
    for state in result.states:
        assert state.round == 12
        assert state.models.shape == (9, width)
        assert state.models.dtype == state.centers.dtype == np.float32
        assert state.centers.shape == (len(result.records[-1]["sizes"]), width)
        assert method.k in ("auto", len(state.centers))
        assert state.labels.shape == (9,)
        assert 0 <= state.labels.min() <= state.labels.max() < len(state.centers)
        assert np.isfinite(state.models).all()
        # The run closes with the distribution: every client holds the model of its cluster.
        assert state.replies is None
    assert [record["round"] for record in result.records] == list(range(1, 13))
    assert result.records[-1]["accuracy"] > result.records[0]["accuracy"]
    assert result.records[-1]["accuracy"] > 0.7
    assert sum(result.records[-1]["sizes"]) == 9


@some(0)
def test_a_round_does_not_change_the_state_before_it(name: str, fed: wecfl.Federation) -> None:
    """Of what the server holds: whoever kept an earlier state still has it as it was."""
    method = named(name)
    model = build("mlp", shape=fed.shape, classes=fed.classes, seed=SEED)
    plan = dataclasses.replace(LocalPlan(steps=2, lr=0.05), **method.plan)
    with make_engine("auto", fed, model, needs=method.needs) as engine:
        setting = Setting(method, engine, plan, SEED)
        path = iterate(setting, opening(setting))
        for _ in range(2):
            state = next(path)
            tables = [state.cluster, state.known, state.whole]
            held: list[Any] = [state.centers, state.labels]
            held += [rows for each in tables for rows in each.values()]
            before = [np.copy(rows) for rows in held]
            next(path)
            for rows, copy in zip(held, before, strict=True):
                np.testing.assert_array_equal(rows, copy)


@pytest.mark.parametrize("order", [*map("".join, permutations("EMDL"))])
def test_no_order_of_the_steps_notices_that_distributed_models_are_not_stored(
    order: str, fed: wecfl.Federation
) -> None:
    model = build("mlp", shape=fed.shape, classes=fed.classes, seed=SEED)
    before, _, after = order.partition("L")
    method = methods.wecfl(k=3).replace(opening=tuple(before), steps=("L", *after, *before))
    setting = Setting(method, NativeEngine(fed, model), LocalPlan(steps=3, lr=0.05), SEED)
    begun = opening(setting)
    stored = State(
        0, {"model": begun.models.copy()}, begun.centers, begun.labels, whole=begun.whole
    )
    *_, ended = islice(iterate(setting, begun), 3)
    for step in 3 * ("L" + after + before):
        stored = STEPS[step](stored, setting)
        stored = stored.replace(replies={"model": stored.models.copy()})
    assert ended.round == stored.round == 3
    for name in ("models", "centers", "labels"):
        np.testing.assert_array_equal(getattr(ended, name), getattr(stored, name))


@on_engines(in_turns(NAMES, 1, always=KINDS))
def test_every_method_gives_the_same_bits_with_any_number_of_workers(
    name: str, engine: str, fed: wecfl.Federation
) -> None:
    same_bits(plain(name, engine), run(fed, named(name), 2, engine=engine))


@pytest.mark.parametrize(
    "name", in_turns([name for name in NAMES if len(engines_for(named(name))) > 1], 2)
)
def test_every_method_gives_the_same_result_on_both_engines(name: str) -> None:
    native, torch = plain(name), plain(name, "torch")
    np.testing.assert_array_equal(native.labels, torch.labels)
    for ours, theirs in zip(native.states, torch.states, strict=True):
        np.testing.assert_allclose(ours.models, theirs.models, atol=1e-4)


@on_engines(in_turns(NAMES, 0, always=KINDS))
def test_every_method_goes_on_to_the_bit(
    name: str, engine: str, fed: wecfl.Federation, tmp_path: Path
) -> None:
    """Stopped a round after the last checkpoint, and resumed: as if nothing had happened."""
    method, after = named(name), tmp_path / "run"
    how: Any = {
        "engine": engine, "workers": 1, "rounds": 4, "steps": 2, "lr": 0.05, "seed": SEED,
        "checkpoint_every": 2, "objectives": engine == "native",
    }  # fmt: skip

    def stop(record: dict[str, Any], states: object) -> None:
        if record["round"] == 3:
            raise ZeroDivisionError

    whole = run_flat(fed, method, out=tmp_path / "whole", **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "end", lambda *_: None)  # killed: the end is never written
        with pytest.raises(ZeroDivisionError):
            run_flat(fed, method, out=after, watch=[stop], **how)
    assert read_states(after)[0].round == 2
    resumed = run_flat(fed, method, out=after, resume=True, **how)
    same_bits(whole, resumed)
    same_folders(tmp_path / "whole", after)


@some(1)
def test_permuting_the_clients_permutes_the_result(name: str, fed: wecfl.Federation) -> None:
    method = named(name)
    order = np.random.default_rng(0).permutation(len(fed))
    usual, permuted = plain(name), run(fed.subset(order), method)
    assert adjusted_rand_score(usual.labels[order], permuted.labels) == 1.0
    np.testing.assert_allclose(
        permuted.states[0].models, usual.states[0].models[order], atol=1e-5, rtol=1e-4
    )
    assert permuted.records[-1]["accuracy"] == pytest.approx(usual.records[-1]["accuracy"])


@some(2)
def test_scaling_importance_changes_nothing(name: str, fed: wecfl.Federation) -> None:
    method = named(name)
    scaled = method.replace(importance=lambda sizes: 7.3 * method.importance(sizes))
    usual, other = plain(name), run(fed, scaled)
    np.testing.assert_array_equal(usual.labels, other.labels)
    np.testing.assert_allclose(usual.states[0].models, other.states[0].models, atol=1e-6)


def test_one_cluster_is_fedavg(fed: wecfl.Federation) -> None:
    same_bits(run(fed, methods.wecfl(k=1)), run(fed, methods.fedavg))


def test_fesem_with_one_cluster_is_fedavg_too(fed: wecfl.Federation) -> None:
    same_bits(run(fed, methods.fesem(k=1)), run(fed, methods.fedavg))


def test_mu_zero_is_fedavg(fed: wecfl.Federation) -> None:
    same_bits(run(fed, methods.fedprox(mu=0.0)), run(fed, methods.fedavg))


def test_mu_matters(fed: wecfl.Federation) -> None:
    near, far = run(fed, methods.fedprox(mu=5.0)), run(fed, methods.fedavg)
    assert np.abs(near.centers - far.centers).max() > 1e-3


def test_uniform_importance_is_fesem(fed: wecfl.Federation) -> None:
    mine = methods.wecfl(k=3).replace(importance=uniform, aggregation=Mean(data_size))
    same_bits(run(fed, mine), run(fed, methods.fesem(k=3)))


def test_a_vote_of_one_is_the_method_itself(fed: wecfl.Federation) -> None:
    same_bits(run(fed, methods.fedavg_plus(k=1)), run(fed, methods.fedavg))


def test_the_first_member_of_a_vote_is_the_plain_run_and_the_others_differ(
    fed: wecfl.Federation,
) -> None:
    vote, plain = run(fed, methods.fedavg_plus(k=3)), run(fed, methods.fedavg)
    assert vote.states[0].centers.tobytes() == plain.centers.tobytes()
    assert len({state.centers.tobytes() for state in vote.states}) == 3


def test_private_columns_stay_with_their_client(fed: wecfl.Federation) -> None:
    """FedPer in one value: the last layer is never sent."""
    fedper = methods.fedavg.replace(
        name="fedper", shared="~3.*", representation=Columns("1.weight")
    )
    result = run(fed, fedper)
    layout = wecfl.models.layout_of(result.architecture)
    private, shared = layout.columns("3.*"), layout.columns("~3.*")
    models = np.stack([row_of(result.model(client=i)) for i in range(len(fed))])
    assert len(np.unique(models[:, private], axis=0)) == len(fed)
    assert len(np.unique(models[:, shared], axis=0)) == 1
    start = row_of(build("mlp", shape=fed.shape, classes=fed.classes, seed=SEED))
    np.testing.assert_array_equal(result.centers[0, private], start[private])  # never sent


@pytest.mark.parametrize("make", [methods.wecfl, methods.ifca])
def test_a_plain_step_of_a_servers_optimizer_is_the_mean_in_every_cluster(
    make: Callable[[int], Method], fed: wecfl.Federation
) -> None:
    """Δ_k = mean − Ω_k, also of clients that E has just moved: η = 1, β = 0 changes nothing."""
    plain = run(fed, make(3))
    stepped = run(fed, make(3).replace(aggregation=Momentum(lr=1.0, beta=0.0)))
    np.testing.assert_array_equal(plain.labels, stepped.labels)
    np.testing.assert_allclose(plain.centers, stepped.centers, atol=1e-6)
    assert stepped.states[0].cluster["m"].shape == stepped.centers.shape
    moved = run(fed, make(3).replace(aggregation=Momentum(lr=1.0, beta=0.9)))
    assert np.abs(plain.centers - moved.centers).max() > 1e-3


def test_methods_with_memory_combine_with_clusters(fed: wecfl.Federation) -> None:
    """With one cluster each combination is the method it takes its part from."""
    scaffold, ditto, fedadam = methods.scaffold(), methods.ditto(), methods.fedadam()
    cases: list[tuple[Method, dict[str, Any]]] = [
        (scaffold, {"steps": scaffold.steps, "plan": scaffold.plan}),
        (ditto, {"local": ditto.local, "serve": ditto.serve}),
        (fedadam, {"aggregation": fedadam.aggregation}),
    ]
    for alone, part in cases:
        inside = run(fed, methods.wecfl(1).replace(**part))
        same_bits(run(fed, alone), inside)
        several = run(fed, methods.wecfl(3).replace(**part))
        assert len(np.unique(several.labels)) == 3
        assert [r["round"] for r in several.records] == [r["round"] for r in inside.records]


def test_what_else_clients_are_sent(fed: wecfl.Federation) -> None:
    """A constant offset of the gradient moves the models against it."""
    push = np.ones((len(fed), 4810), dtype=np.float32)
    pushed = methods.fedavg.replace(
        name="pushed", steps=(Ask(send=lambda state, setting: {"offset": push}), *"EMD")
    )
    gap = run(fed, pushed).centers - run(fed, methods.fedavg).centers
    assert gap.mean() < -0.1


@pytest.mark.parametrize(
    "importance",
    [
        lambda n: 0.0 * n,
        lambda n: -1.0 * n,
        lambda n: np.full(len(n), np.nan),
        lambda n: np.ones(2),
    ],
    ids=["zero", "negative", "nan", "short"],
)
def test_importance_must_be_positive(
    importance: Callable[[Any], Any], fed: wecfl.Federation
) -> None:
    with pytest.raises(wecfl.errors.ConfigError, match="9 positive numbers"):
        run(fed, methods.wecfl(k=3).replace(importance=importance))


def test_components_are_checked(fed: wecfl.Federation) -> None:
    with pytest.raises(wecfl.errors.ConfigError, match=r"^local .* 3$"):
        methods.fedavg.replace(local=3)
    with pytest.raises(wecfl.errors.ConfigError, match=r"steps .*'X'"):
        methods.fedavg.replace(steps=("L", "X"))
    with pytest.raises(wecfl.errors.ConfigError, match="local update"):
        methods.fedavg.replace(steps=("E", "M", "D"))
    with pytest.raises(wecfl.errors.ConfigError, match=r"share only .*'~3"):
        run(fed, methods.fedavg.replace(shared="~3.*"))
    with pytest.raises(wecfl.errors.ModelError, match="names no column"):
        run(fed, methods.fedavg.replace(shared="~nothing.*"))


@pytest.mark.parametrize(
    ("clusters", "complaint"),
    [
        (Clusters(np.full(9, 3), np.zeros((3, 650))), "labels 0 to 2|labels from 0 to 2"),
        (Clusters(np.full(9, -1), np.zeros((3, 650))), "labels 0 to 2|labels from 0 to 2"),
        (Clusters(np.zeros(9, int), np.zeros((2, 650))), "3 clusters, got 2"),
    ],
)
def test_what_a_clustering_gives_is_checked(
    clusters: Clusters, complaint: str, fed: wecfl.Federation
) -> None:
    with pytest.raises(wecfl.errors.ConfigError, match=complaint):
        run(fed, methods.wecfl(k=3).replace(clustering=lambda *_: clusters))


def test_a_clustering_draws_anew_in_every_round(fed: wecfl.Federation) -> None:
    drawn = []

    def clustering(view: View, distance: object, draws: np.random.Generator) -> Clusters:
        drawn.append((view.round, draws.random()))
        return Clusters(view.labels, view.centers)

    run(fed, methods.wecfl(k=3).replace(clustering=clustering))
    keyed = [rng.stream(SEED, "clustering", t).random() for t in range(ROUNDS + 1)]
    assert drawn == [*enumerate(keyed)]


@pytest.mark.parametrize("label", [-1, 3])
def test_a_state_has_no_labels_without_a_center(label: int) -> None:
    with pytest.raises(ValueError, match=r"labels must be clusters 0 to 2, got \[.*\]"):
        State(0, None, np.zeros((3, 5), np.float32), labels=np.array([0, label]))


def test_same_bits_whatever_the_threads_of_the_linear_algebra() -> None:
    found = set()
    for threads in (1, 2):
        with threadpool_limits(threads):
            result = wecfl.run_config(wecfl.Config(rounds=2, objectives=False))
        found.add(result.centers.tobytes())
    assert len(found) == 1


class TestCorners:
    """Defined behaviour at the edges."""

    def twins(self, m: int) -> wecfl.Federation:
        """Clients that hold the very same data and draw the very same batches."""
        digits = wecfl.Federation.from_dataset("digits", wecfl.partitions.Iid(), clients=20, seed=0)
        return dataclasses.replace(
            digits, train=digits.train[:1] * m, test=digits.test[:1] * m,
            keys=np.repeat(digits.keys[:1], m),
            names=tuple(map(str, range(m))),
        )  # fmt: skip

    def test_more_clusters_than_clients(self, fed: wecfl.Federation) -> None:
        with pytest.raises(wecfl.errors.ConfigError, match="10 clusters of 9 clients"):
            run(fed, methods.wecfl(k=10))

    def test_a_client_alone_in_its_cluster(self, fed: wecfl.Federation) -> None:
        result = run(fed, methods.wecfl(k=9), rounds=4)
        assert sorted(result.labels) == list(range(9))
        # Each client is its own center, so this is local training: F is zero after M.
        assert result.records[-1]["F"]["M"] == 0.0

    @pytest.mark.parametrize("make", [methods.wecfl, methods.fesem])
    def test_identical_clients_share_a_cluster(self, make: Callable[[int], Method]) -> None:
        result = run(self.twins(6), make(3))
        assert len(set(result.labels)) == 1
        assert sorted(result.records[-1]["sizes"]) == [0, 0, 6]
        assert np.isfinite(result.centers).all()

    def test_empty_clusters_of_ifca_keep_their_start(self) -> None:
        result = run(self.twins(4), methods.ifca(3))
        used = result.labels[0]
        assert (result.labels == used).all()
        given = build("mlp", shape=(1, 8, 8), classes=10, seed=SEED)
        starts = [given, *(wecfl.models.reinitialized(given, SEED, j) for j in (1, 2))]
        for k in {0, 1, 2} - {used}:
            np.testing.assert_array_equal(result.centers[k], wecfl.models.row_of(starts[k]))
