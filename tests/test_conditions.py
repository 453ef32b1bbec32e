"""Clients that are absent, lost, slow, broken or lying; and what the server does about it."""

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm
from torch import nn

import wecfl as library
from fuzzing import in_turns
from helpers import BowlEngine, Wecfl, method_named, run_flat, same_folders
from wecfl import Federation, methods
from wecfl.bilevel.aggregation import AGGREGATIONS
from wecfl.bilevel.clustering import AtLeast, KMeans
from wecfl.bilevel.distance import squared_euclidean
from wecfl.bilevel.objectives import F
from wecfl.channel.attacks import ATTACKS, choose
from wecfl.channel.privacy import Privacy
from wecfl.config import Config
from wecfl.config.resolve import resolve
from wecfl.core.ask import Ask
from wecfl.core.channel import Channel
from wecfl.core.components import View
from wecfl.core.exchange import exchange
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Answers
from wecfl.core.rounds import distribution, expectation, iterate, maximization, opening
from wecfl.core.setting import Setting
from wecfl.core.state import Reply, State
from wecfl.errors import ConfigError, DivergedError, EngineError
from wecfl.experiment import run_config
from wecfl.folder.readers import config_of, read_metrics, read_summary
from wecfl.options import Conditions
from wecfl.runs.summary import replies


def some(turn: int) -> pytest.MarkDecorator:
    """A third of the methods (`make fuzz`: all)."""
    return pytest.mark.parametrize("name", in_turns(methods.METHODS, turn))


HARD: dict[str, Any] = {"participation": 0.6, "dropout": 0.2, "stragglers": 0.3}
SEED = 3
CHANGED_WITHOUT_STEPS = ("fedmeta", "fedsoft", "pfedhn", "stocfl")
"""Methods whose centers change also if clients take steps of length 0: the server of FedMeta steps
along gradients, a center of FedSoft is a mean of clients that are not its own, the weights of
pFedHN's hyper-network decay, and StoCFL merges no clients without an update."""
SHAKY = ("fedmeta",)
"""Its finite differences turn the last bits of a gradient into the third digit of an update, and
the order of clients decides the last bits."""


@pytest.fixture(scope="module")
def digits() -> Federation:
    partition = library.partitions.ClusterwiseDirichlet((0.1, 10.0), groups=3)
    return Federation.from_dataset("digits", partition, clients=12, seed=SEED)


def run(fed: Federation, method: Any, **choices: Any) -> library.Result:
    how = {"rounds": 4, "steps": 4, "lr": 0.05, "seed": SEED, "workers": 1, "objectives": False}
    return run_flat(fed, method, **(how | choices))


# Absence


@some(0)
def test_every_method_under_hard_conditions(name: str, digits: Federation) -> None:
    """Labels of the absent stay, their centers too; any number of workers, any order of clients."""
    method, seen = method_named(name, k=3), []

    def watch(record: Any, states: Any) -> None:
        seen.append(states[0])

    result = run(digits, method, **HARD, rounds=6, watch=[watch])
    again = run(digits, method, **HARD, rounds=6, workers=2)
    for a, b in zip(result.states, again.states, strict=True):
        assert a.models.tobytes() == b.models.tobytes()
    if not (method.representation.asks or method.representation.tells):
        for before, after in pairwise(seen):
            unheard = ~after.heard
            assert unheard.any()
            np.testing.assert_array_equal(after.labels[unheard], before.labels[unheard])
            # A client counts in more than its own cluster, or one network makes all centers.
            if "mixture" in method.local.replies or "M" not in method.steps:
                continue
            silent = set(range(len(before.centers))) - set(after.labels[after.heard])
            for k in silent:
                np.testing.assert_array_equal(after.centers[k], before.centers[k])
    order = np.random.default_rng(0).permutation(len(digits))
    permuted = run(digits.subset(order), method, **HARD, rounds=6)
    if name not in SHAKY:
        np.testing.assert_allclose(permuted.states[0].models, seen[-1].models[order], atol=1e-4)


@some(1)
def test_hard_conditions_go_on_to_the_bit(name: str, tmp_path: Path) -> None:
    config = Config(
        method=name, clients=8, groups=2, clusters=2, rounds=5, steps=3, model="mlp", workers=1,
        attack="sign-flip", **HARD,
    )  # fmt: skip
    run_config(config, out=tmp_path / "whole")
    short = config.model_copy(update={"rounds": 3})
    run_config(short, out=tmp_path / "parts")
    longer = config_of(tmp_path / "parts").model_copy(update={"rounds": 5})
    run_config(longer, out=tmp_path / "parts", resume=True)
    same_folders(tmp_path / "whole", tmp_path / "parts")


def test_participation_is_that_share_of_the_clients_and_reaches_all_of_them() -> None:
    channel = Channel(participation=0.3)
    here = np.array([channel.present(10, round) for round in range(60)])
    assert (here.sum(axis=1) == 3).all()
    assert (here.sum(axis=0) > 5).all()
    assert Channel(participation=0.01).present(10, 0).sum() == 1
    assert Channel().present(10, 0).all()


def test_only_those_who_take_part_are_asked_for_their_losses() -> None:
    engine: Any = BowlEngine(np.random.default_rng(0).normal(size=(10, 4)), np.ones(10, np.int64))
    asked, ask = [], engine.ask

    def watched(job: Any, sent: Any, who: Any, memory: Any) -> Any:
        if job.program.name == "losses":
            asked.append(who.tolist())
        return ask(job, sent, who, memory)

    engine.ask = watched
    channel = Channel(participation=0.3)
    setting = Setting(methods.ifca(2), engine, LocalPlan(), channel=channel)
    next(iterate(setting, opening(setting)))
    here = [np.flatnonzero(channel.present(10, round)).tolist() for round in range(2)]
    assert asked == here


def test_stragglers_take_fewer_steps_and_others_all() -> None:
    steps = [
        Channel(stragglers=0.4).steps(LocalPlan(steps=5), np.ones(50, int), t) for t in range(40)
    ]
    counts = np.bincount(np.concatenate([s for s in steps if s is not None]), minlength=6) / 2000
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], [0.1, 0.1, 0.1, 0.1, 0.6], atol=0.03)


def test_a_lost_reply_leaves_the_model_but_the_client_remembers(digits: Federation) -> None:
    plain = run(digits, methods.fedavg, rounds=1)
    lossy = run(digits, methods.fedavg, rounds=1, dropout=0.5)
    lost = ~lossy.states[0].heard
    assert 0 < lost.sum() < 12
    assert (replies(lossy.records, 12)[0][lost] == Reply.LOST).all()
    momentum = [each.states[0].memory["momentum"] for each in (plain, lossy)]
    np.testing.assert_array_equal(momentum[0], momentum[1])
    heard_only = run(digits.subset(np.flatnonzero(~lost)), methods.fedavg, rounds=1)
    np.testing.assert_allclose(heard_only.centers, lossy.centers, atol=1e-6)


@some(2)
def test_rounds_in_which_nobody_is_heard(name: str, digits: Federation) -> None:
    few = digits.subset(range(4))
    result = run(few, method_named(name, k=2), dropout=0.8, rounds=8)
    told = replies(result.records, 4)
    assert (told != Reply.HEARD).all(axis=1).any()
    assert (told == Reply.HEARD).any()
    assert np.isfinite(result.states[0].models).all()
    unheard = run(few, method_named(name, k=2), dropout=0.999, rounds=2)
    once = run(few, method_named(name, k=2), dropout=0.999, rounds=1)
    np.testing.assert_array_equal(unheard.centers, once.centers)
    start = run(few, method_named(name, k=2), lr=0.0, rounds=1)
    if name not in CHANGED_WITHOUT_STEPS:
        np.testing.assert_allclose(unheard.centers, start.centers, atol=1e-6)


def test_clusters_are_found_although_few_take_part(digits: Federation) -> None:
    """Labels keep their meaning over rounds, or absent clients would be in the wrong clusters."""
    result = run(digits, methods.wecfl(k=3), participation=0.4, rounds=15)
    assert result.records[-1]["ari"] == 1.0


@settings(max_examples=30)
@given(seed=st.integers(0, 2**20), share=st.floats(0.1, 0.9))
def test_lemma_2_holds_for_those_who_take_part(seed: int, share: float) -> None:
    """F, over the clients heard, does not rise in M."""
    draws = np.random.default_rng(seed)
    engine: Any = BowlEngine(draws.normal(size=(9, 4)) * 3, draws.integers(1, 30, 9))
    method = methods.wecfl(k=3)
    channel = Channel(participation=share, seed=seed)
    setting = Setting(method, engine, LocalPlan(lr=0.1), seed, channel=channel)
    path = iterate(setting, opening(setting))
    for _ in range(3):
        state = next(path)
    state = exchange(state, setting)
    assigned = expectation(state, setting)
    averaged = maximization(assigned, setting)
    assert F(averaged, method, engine) <= F(assigned, method, engine) + 1e-6
    assert distribution(averaged, setting).models.shape == state.models.shape


# Refusal


class Broken:
    """What makes some clients send garbage from round 2 on."""

    def __init__(self, garbage: dict[int, float]) -> None:
        self.garbage = garbage

    def __call__(self, state: State, setting: Any) -> Any:
        offset = np.zeros((len(state.labels), setting.engine.layout.width), np.float32)
        if state.round >= 1:
            for client, value in self.garbage.items():
                offset[client] = value
        return {"offset": offset}


def test_garbage_is_refused_counted_and_reported(digits: Federation, tmp_path: Path) -> None:
    method = methods.wecfl(k=3).replace(
        steps=(Ask(send=Broken({2: np.nan, 5: np.inf, 7: 1e6})), *"EMD")
    )
    result = run(digits, method, out=tmp_path / "run", rounds=5)
    told = replies(result.records, 12)
    assert (told[1:, [2, 5]] == Reply.NOT_FINITE).all()
    assert (told[1:, 7] == Reply.TOO_LARGE).all()
    assert (np.delete(told, [2, 5, 7], axis=1) == Reply.HEARD).all()
    assert (told[0] == Reply.HEARD).all()
    assert np.isfinite(result.states[0].models).all()
    assert result.records[-1]["replies"] == {
        "heard": 9, "absent": 0, "lost": 0, "not_finite": 2, "too_large": 1,
        "malformed": 0,
    }  # fmt: skip
    assert result.clients["refused"].tolist() == [0, 0, 4, 0, 0, 4, 0, 4, 0, 0, 0, 0]
    honest = run(digits.subset([0, 1, 3, 4, 6, 8, 9, 10, 11]), methods.wecfl(k=3), rounds=5)
    assert abs(result.records[-1]["accuracy"] - honest.records[-1]["accuracy"]) < 0.2


def test_a_cluster_of_which_all_are_refused_keeps_its_center(digits: Federation) -> None:
    good = run(digits, methods.wecfl(k=3), rounds=1)
    bad = {int(i): np.nan for i in np.flatnonzero(good.labels == 1)}
    method = methods.wecfl(k=3).replace(steps=(Ask(send=Broken(bad)), *"EMD"))
    result = run(digits, method, rounds=3)
    np.testing.assert_array_equal(result.centers[1], good.centers[1])
    assert (result.labels == good.labels).all()
    assert (result.centers[0] != good.centers[0]).any()


@given(
    st.lists(st.floats(1e-3, 90), min_size=1, max_size=9),
    st.sampled_from([0.5, 1.0, 1.5, 3.0]),
    st.integers(0, 99),
)
def test_long_updates_are_shortened_and_keep_their_direction(
    lengths: list[float], limit: float, seed: int
) -> None:
    """Against loops in double precision; the last client sends NaN, and sets no measure."""
    m, draws = len(lengths) + 1, np.random.default_rng(seed)
    engine: Any = BowlEngine(np.zeros((m, 4)), np.ones(m, np.int64))
    rows = draws.normal(size=(m, engine.layout.width))
    rows *= np.array([*lengths, np.nan])[:, None] / np.linalg.norm(rows, axis=1, keepdims=True)

    def ask(job: Any, sent: Any, who: Any, memory: Any) -> Answers:
        models = (sent.own["model"] + rows).astype(np.float32)
        return Answers({"model": models}, np.zeros(m, np.int8))

    engine.ask = ask
    channel = Channel(shorten_above=limit, refuse_above=1e9)
    setting = Setting(methods.fedavg, engine, LocalPlan(), channel=channel)
    start = opening(setting)
    after = exchange(start, setting)
    median = sorted(lengths)[(len(lengths) - 1) // 2]  # of two in the middle the shorter one
    for i, length in enumerate(lengths):
        share = min(1.0, limit * median / length)
        np.testing.assert_allclose(
            after.models[i] - start.models[i], share * rows[i], rtol=1e-3, atol=1e-4
        )
    assert after.heard.tolist() == [True] * (m - 1) + [False]


def test_a_client_that_recovers_is_heard_again(digits: Federation) -> None:
    """Its momentum was not finite either, and is cleared."""

    class Once(Broken):
        def __call__(self, state: State, setting: Any) -> Any:
            return super().__call__(state, setting) if state.round == 1 else {}

    once = methods.fedavg.replace(steps=(Ask(send=Once({4: np.nan})), *"EMD"))
    result = run(digits, once, rounds=4)
    assert replies(result.records, 12)[:, 4].tolist() == [0, Reply.NOT_FINITE, 0, 0]


def test_models_of_another_shape_are_refused() -> None:
    engine: Any = BowlEngine(np.zeros((3, 4)), np.ones(3, np.int64))
    setting = Setting(methods.fedavg, engine, LocalPlan())
    state = opening(setting)
    rows = {"model": np.zeros((3, 5), np.float32)}
    engine.ask = lambda *_: Answers(rows, np.zeros(3, np.int8))
    with pytest.raises(EngineError, match=r"of shape \(3, 6\), got \(3, 5\)"):
        next(iterate(setting, state))


def test_if_all_diverge_it_is_the_learning_rate(digits: Federation) -> None:
    with pytest.raises(DivergedError, match=r"diverged.*12 models"):
        run(digits, methods.fedavg, lr=1e30)


# Lies


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_every_attack_runs_and_is_measured(attack: str, engine: str, digits: Federation) -> None:
    result = run(digits, methods.wecfl(k=3), attack=attack, attackers=0.25, engine=engine)
    found = result.summary["attack"]
    assert found.keys() == {"isolated", "exposed"} | (
        {"success"} if attack == "backdoor" else set()
    )
    assert 0 <= found["exposed"] <= 1


def test_attacks_hurt_and_the_median_helps(digits: Federation) -> None:
    """All clients alike, so that the aggregation alone has to stand it."""
    fed = Federation.from_dataset("digits", library.partitions.Iid(), clients=12, seed=SEED)

    def accuracy(aggregation: str, **choices: Any) -> float:
        method = methods.fedavg.replace(aggregation=AGGREGATIONS[aggregation]())
        return float(run(fed, method, rounds=15, **choices).records[-1]["accuracy"])

    lying: dict[str, Any] = {"attack": "sign-flip", "attackers": 0.34, "attack_strength": 3.0}
    assert accuracy("mean") > 0.9
    assert accuracy("mean", **lying) < 0.5
    assert accuracy("median", **lying) > 0.8
    assert accuracy("krum", **lying) > 0.8


def test_a_backdoor_works_and_is_measured() -> None:
    fed = Federation.from_dataset("digits", library.partitions.Iid(), clients=10, seed=SEED)
    plain: dict[str, Any] = {"rounds": 20, "steps": 10}
    result = run(fed, methods.fedavg, attack="backdoor", attackers=0.4, **plain)
    assert result.summary["attack"]["success"] > 0.5
    assert result.summary["accuracy"] > 0.85
    assert result.summary["attack"]["exposed"] == 1.0


def test_scores_are_those_of_honest_clients(digits: Federation) -> None:
    result = run(digits, methods.fedavg, attack="noise", attackers=0.5)
    record = result.records[-1]
    liars = choose(digits.keys, 0.5, SEED)
    honest = np.average(
        np.array(record["clients"]["accuracy"])[~liars], weights=digits.sizes[~liars]
    )
    assert record["accuracy"] == pytest.approx(honest, abs=1e-6)


# Privacy


def test_what_leaves_a_client_is_short_and_noisy() -> None:
    start = np.zeros((3, 4000), np.float32)
    trained = np.full((3, 4000), 0.1, np.float32)
    everyone, keys = np.array([True, True, False]), np.arange(3)
    short = Privacy(1.0, 0.0)(start, trained, everyone, keys, round=0, seed=0)
    assert np.linalg.norm(short, axis=1) == pytest.approx([1, 1, 0.1 * 4000**0.5])
    noisy = Privacy(1.0, 2.0)(start, trained, everyone, keys, round=0, seed=0)
    assert np.std(noisy[0]) == pytest.approx(2.0, rel=0.05)
    assert (noisy[0] != noisy[1]).all()
    np.testing.assert_array_equal(noisy[2], trained[2])


@pytest.mark.parametrize(("noise", "rounds"), [(2.0, 1), (10.0, 30), (40.0, 100)])
def test_epsilon_is_an_upper_bound_and_a_tight_one(noise: float, rounds: int) -> None:
    """Against the exact curve of the composed Gaussian mechanism (Balle & Wang, 2018)."""
    mu, delta = 2 * np.sqrt(rounds) / noise, 1e-5  # sensitivity 2C, noise z·C, n times

    def excess(epsilon: float) -> float:
        tail = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(tail - delta)

    exact = brentq(excess, 1e-3, 400)
    told = Privacy(1.0, noise, delta).epsilon(rounds)
    assert exact <= told <= 1.25 * exact + 0.1


def test_the_budget_is_that_of_who_took_part_most(tmp_path: Path) -> None:
    choices: dict[str, Any] = {
        "clients": 8, "groups": 2, "clusters": 2, "rounds": 6, "steps": 3, "model": "logistic",
        "workers": 1,
    }  # fmt: skip
    config = Config(**choices, participation=0.5, clip=0.5, noise=20.0)
    run_config(config, out=tmp_path / "run")
    told = read_summary(tmp_path / "run")["privacy"]
    took_part = (replies(read_metrics(tmp_path / "run"), 8) != Reply.ABSENT).sum(axis=0)
    assert told["replies"] == took_part.max() < 6
    assert told["epsilon"] == pytest.approx(Privacy(0.5, 20.0, 1e-5).epsilon(told["replies"]))
    assert told["delta"] == 1e-5
    quiet = run_config(Config(**choices, clip=0.5))
    assert quiet.summary["privacy"]["epsilon"] is None


def test_a_vote_costs_the_privacy_of_all_its_members(digits: Federation) -> None:
    """Whoever takes part in a round trains, and sends, a model of each."""
    private: dict[str, Any] = {"clip": 0.5, "noise": 20.0, "participation": 0.5, "rounds": 6}
    one = run(digits, methods.fedavg, model="logistic", **private)
    three = run(digits, methods.fedavg_plus(3), model="logistic", **private)
    for state in three.states:
        np.testing.assert_array_equal(state.outcome, one.states[0].outcome)
    assert (three.states[0].centers != three.states[1].centers).any()
    told = [each.summary["privacy"] for each in (one, three)]
    assert told[1]["replies"] == 3 * told[0]["replies"]
    assert told[1]["epsilon"] > told[0]["epsilon"]


def test_privacy_that_could_not_be_told_is_not_begun(
    digits: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants.analysis", None)
    with pytest.raises(ConfigError, match=r"pip install 'wecfl\[privacy\]'"):
        run(digits, methods.fedavg, clip=1.0, noise=1.0, model="logistic", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Small clusters


@settings(max_examples=30)
@given(seed=st.integers(0, 2**20), least=st.integers(1, 7))
def test_no_cluster_is_smaller_than_asked(seed: int, least: int) -> None:
    points = np.random.default_rng(seed).normal(size=(12, 3))
    clustering = AtLeast(KMeans(fresh=2), least)
    view = View(points, points[:5], np.ones(12), np.zeros(12, np.int64))
    found = clustering(view, squared_euclidean, np.random.default_rng(0))
    labels, centers = found.labels, found.centers
    sizes = np.bincount(labels, minlength=5)
    assert (sizes[sizes > 0] >= least).all()
    if least == 1:
        np.testing.assert_array_equal(labels, squared_euclidean(points, centers).argmin(axis=1))


def test_no_center_is_made_of_fewer_models(digits: Federation) -> None:
    seen: list[State] = []
    method = methods.wecfl(k=3)
    how: dict[str, Any] = {"min_cluster": 2, "participation": 0.5, "dropout": 0.5, "rounds": 12}
    run(digits, method, watch=[lambda record, states: seen.append(states[0])], **how)
    stayed = 0
    for before, after in pairwise(seen):
        heard = np.bincount(after.labels[after.heard], minlength=3)
        for k in np.flatnonzero((heard > 0) & (heard < 2)):
            stayed += 1
            columns = np.flatnonzero(after.centers[k] != before.centers[k])
            assert len(columns) == 0
    assert stayed > 0


# What is refused


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (("--attackers", "0.2"), "attackers needs attack"),
        (("--noise", "1"), "noise needs clip"),
        (("--attack", "label-flip", "--attack-strength", "2"), "label-flip has no option strength"),
        (("--attack", "sign-flop"), "attack"),
        (("--stragglers", "0.5", "--steps", "1"), "at least 2"),
        (("--min-cluster", "99"), "min_cluster"),
        (("--method", "ifca", "--clip", "1", "--noise", "1"), "no noise protects"),
        (("--model", "logistic", "--clip", "1", "--objectives"), "objectives would ask"),
        (("--model", "logistic", "--clip", "1", "--diagnostics"), "diagnostics would ask"),
        (
            ("--model", "logistic", "--clip", "1", "--lr", "theory", "--momentum", "0"),
            "lr theory would ask",
        ),
        (("--aggregation", "median", "--tolerated", "0.1"), "tolerated"),
        (("--participation", "0"), "participation"),
        (("--dropout", "1"), "dropout"),
        (("--attack", "noise", "--attackers", "0.99"), "lower the share"),
    ],
)
def test_bad_conditions_are_one_line(tokens: tuple[str, ...], said: str, wecfl: Wecfl) -> None:
    outcome = wecfl("run", "--clients", "6", "--groups", "2", "--clusters", "2", *tokens)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert said in outcome.err


def test_what_one_of_several_methods_can_not_do_is_said_at_once(wecfl: Wecfl) -> None:
    outcome = wecfl(
        "run", "--method", "fedavg,ifca", "--model", "logistic", "--clip", "1", "--noise", "1"
    )
    assert outcome.code == 2
    assert "clients of ifca" in outcome.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "alone",
    [{"attackers": 0.2}, {"attack_strength": 2.0}, {"noise": 1.0}, {"clip": 1.0, "delta": 0.1}],
)
def test_choices_that_would_be_ignored_are_refused(alone: Any) -> None:
    with pytest.raises(ConfigError, match=" needs "):
        resolve(flags=alone)


@pytest.mark.parametrize(
    "clear",
    [{"objectives": True}, {"diagnostics": True}, {"lr": "theory", "momentum": 0.0}],
)
def test_nothing_is_measured_in_the_clear_beside_noise(
    clear: Any, digits: Federation, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="losses, gradients"):
        run(digits, methods.fedavg, model="logistic", clip=1.0, out=tmp_path / "run", **clear)
    assert not (tmp_path / "run").exists()
    result = run(digits, methods.fedavg, model="logistic", clip=1.0, rounds=1)
    assert result.records[0]["R"] == {}


def test_noise_on_batch_statistics_is_refused(fed: Federation) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ConfigError, match="BatchNorm"):
        run(fed, methods.fedavg, model=model, clip=1.0, noise=1.0)


# Clients that join while the run goes on


def test_clients_join_in_a_later_round() -> None:
    config = Config(
        clients=12, groups=2, clusters=2, rounds=4, steps=3, lr=0.05, model="logistic", workers=1,
        joining=0.25, joining_round=3, objectives=False,
    )  # fmt: skip
    result = run_config(config)
    told = replies(result.records, 12)
    late = told[0] == Reply.ABSENT
    assert late.sum() == 3
    assert (told[:2, late] == Reply.ABSENT).all() and (told[2:, late] == Reply.HEARD).all()
    assert (told[:, ~late] == Reply.HEARD).all()
    scores = [np.array(record["clients"]["accuracy"], float) for record in result.records]
    assert all(np.isnan(each[late]).all() for each in scores[:2]), "nobody is tested before"
    assert not np.isnan(scores[2]).any()
    assert result.records[-1]["ari"] == 1, "they find their group by the rule for those never heard"
    with pytest.raises(ConfigError, match=r"at most 4, .* got 5"):
        run_config(config.model_copy(update={"joining_round": 5}))
    for wrong in ({"joining": 1.0}, {"joining": -0.1}, {"joining_round": 1}):
        with pytest.raises(ConfigError, match="joining"):
            Conditions(**wrong)


def test_a_run_that_is_stopped_before_clients_join(tmp_path: Path) -> None:
    def stop(record: dict[str, Any], states: object) -> None:
        if record["round"] == 1:
            raise ZeroDivisionError

    config = Config(
        clients=8, groups=2, clusters=2, rounds=4, steps=2, model="logistic", workers=1,
        joining=0.25, joining_round=3, dropout=0.2, participation=0.8,
    )  # fmt: skip
    run_config(config, out=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        run_config(config, out=tmp_path / "run", watch=[stop])
    run_config(config_of(tmp_path / "run"), out=tmp_path / "run", resume=True)
    same_folders(tmp_path / "whole", tmp_path / "run")


def test_who_joins_later_does_not_depend_on_order_or_presence() -> None:
    keys = np.arange(20) * 7
    channel = Channel(joining=0.4, joining_round=5, participation=0.5, keys=keys, seed=3)
    late = ~channel.joined(20, 0)
    assert late.sum() == 8 and channel.joined(20, 4).all()
    assert (~replace(channel, keys=keys[::-1]).joined(20, 0) == late[::-1]).all()
    for round in range(4):
        present = channel.present(20, round)
        assert present.sum() == 6 and not (present & late).any()
    assert any((channel.present(20, round) & late).any() for round in range(4, 8))
