"""The paper's theorems on real runs of a convex problem, and what is measured for them."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import wecfl
from wecfl import Config, Federation, State, methods, run_config
from wecfl.bilevel.learning_rate import theory
from wecfl.bilevel.objectives import F, R
from wecfl.core.components import Rate
from wecfl.core.engine import Engine
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.types import F32, F64, Int
from wecfl.from_config import federation_of
from wecfl.models import make
from wecfl.runs.diagnostics import Diagnostics
from wecfl.runs.record import Record
from wecfl.theory.check import check_run

EPS = 1e-5  # rows are float32
CONVEX: dict[str, Any] = {"model": "logistic", "momentum": 0.0, "batch": 2000, "workers": 1}
ALIKE: dict[str, Any] = {"alpha": (0.1, 1000.0), "groups": 2, "clusters": 2, "clients": 8}


def falls(values: list[float]) -> list[bool]:
    return [b <= a * (1 + EPS) for a, b in pairwise(values)]


def below(record: Record, *bounds: str) -> bool:
    clients = record["clients"]
    return all(
        limit is not None and lr <= limit * (1 + EPS)
        for bound in bounds
        for lr, limit in zip(clients["lr"], clients[bound], strict=True)
    )


# Theorem 1 and 2: logistic regression on digits, whole-data steps, no momentum, the bound's rate


def test_theorem_1_f_falls_in_every_step_of_a_convex_run_at_the_bounds_rate() -> None:
    choices = CONVEX | {"clients": 20, "groups": 5, "clusters": 5}
    result = run_config(Config(**choices, lr="theory", rounds=6, diagnostics=True))
    trace = [record["F"][step] for record in result.records for step in "LEM"]
    assert all(falls(trace))
    for first, record in zip([True] + [False] * 5, result.records, strict=True):
        assert below(record, "lr_bound_1") != first  # in the first round nobody has moved: 0
        assert max(record["clients"]["lr"]) > 0
    # The clients of a group are too unlike for Theorem 2: no rate meets its condition.
    assert not any(below(record, "lr_bound_2") for record in result.records)


def test_rates_that_differ_by_far_make_no_honest_update_too_long() -> None:
    """In round 16 the longest update is more than 100 times as long as the median."""
    records = run_config(Config(**CONVEX, lr="theory", rounds=16, objectives=False)).records
    assert not any("replies" in record for record in records)


def test_theorem_2_r_falls_in_every_round_that_meets_its_condition() -> None:
    choices = CONVEX | ALIKE | {"steps": 2, "rounds": 6, "diagnostics": True}
    result = run_config(Config(**choices, lr="theory"))
    assert all(falls([record["F"][step] for record in result.records for step in "LEM"]))
    met = [below(record, "lr_bound_1", "lr_bound_2") for record in result.records]
    assert met == [False] + [True] * 5
    assert all(falls([record["R"]["L"] for record in result.records]))
    assert result.records[-1]["R"]["L"] < 0.95 * result.records[0]["R"]["L"]


def test_lemmas_4_and_5_and_theorem_3_at_one_rate() -> None:
    """Both lemmas speak of one η; then R falls as they say, and Theorem 3 follows."""
    choices = CONVEX | ALIKE | {"steps": 2, "rounds": 10, "lr": 0.05, "diagnostics": True}
    records = run_config(Config(**choices)).records
    for before, record in pairwise(records):
        known = record["theory"]
        assert record["R"]["D"] <= record["R"]["L"] + known["lemma_4"]
        assert record["R"]["D"] <= record["R"]["L"] + known["convexity"]
        assert record["R"]["L"] <= before["R"]["D"] + known["lemma_5"]
        assert before["theory"]["lemma_4"] + known["lemma_5"] < 0  # so R must fall
        assert record["R"]["L"] < before["R"]["L"]
        assert known["curvature"] > 0
        # F can't fall in every step at a rate that doesn't shrink: averaging closes the gaps.
        assert record["F"]["L"] > before["F"]["M"]


def test_theorem_2_leaves_out_that_the_rate_must_not_shrink_too_fast(engine: Engine) -> None:
    """Below both bounds R may still rise: averaging costs at the rate of the round before.

    The theorem bounds η from above only, and its proof takes Lemma 4 (models made at the rate of
    round t − 1) and Lemma 5 (rate of round t) for the same η. Hardly any rate in round 2 leaves R
    where averaging has lifted it.
    """

    def shrinking(gap: F64, state: State, engine: Engine, plan: LocalPlan, seed: int) -> F32:
        rates = theory(gap, state, engine, plan, seed)
        return rates if state.round == 0 else rates * np.float32(1e-3)

    steady, shrunk = (followed(engine, rate, rounds=2) for rate in (theory, shrinking))
    assert [below(record, "lr_bound_1", "lr_bound_2") for record in steady + shrunk] == [
        False, True, False, True
    ]  # fmt: skip
    assert steady[1]["R"]["L"] < steady[0]["R"]["L"]
    assert shrunk[1]["R"]["L"] > shrunk[0]["R"]["L"]


@pytest.fixture(scope="module")
def alike() -> Federation:
    return federation_of(Config(**CONVEX, **ALIKE))


@pytest.fixture(scope="module")
def engine(alike: Federation) -> Any:
    model = make("logistic", shape=alike.shape, classes=alike.classes, seed=0)
    with wecfl.make_engine("auto", alike, model, workers=1, batch=2000) as runner:
        yield runner


def followed(
    engine: Engine, rate: Rate, rounds: int, see: Callable[[str, State], None] | None = None
) -> list[Record]:
    """What is measured of a run whose rate is set by a rule."""
    method, plan = methods.wecfl(k=2), LocalPlan(steps=2, batch=2000, momentum=0.0)
    setting = Setting(method, engine, plan, rate=rate)
    state = opening(setting)
    watched, records = Diagnostics(setting, state, logistic=True), []
    values: dict[str, dict[str, float]] = {"F": {}, "R": {}}

    def observe(step: str, state: State, seconds: float) -> None:
        values["F"][step] = F(state, method, engine)
        values["R"][step] = R(state, method, engine)
        if see:
            see(step, state)

    path = iterate(setting, state, observe, watched.step)
    for _ in range(rounds):
        next(path)
        measured, clients, _ = watched.round()
        records.append({**measured, "clients": clients, **{k: dict(v) for k, v in values.items()}})
    return records


# What is measured, beside a NumPy twin


def gradient(row: F32, x: F64, y: Int) -> F64:
    """∇ of the mean cross-entropy of logistic regression, by the textbook formula."""
    classes = len(row) // (x.shape[1] + 1)
    weight, bias = row[: classes * x.shape[1]].reshape(classes, -1), row[classes * x.shape[1] :]
    logits = x @ weight.astype(np.float64).T + bias
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    share[np.arange(len(y)), y] -= 1
    return np.concatenate([(share.T @ x).reshape(-1), share.sum(axis=0)]) / len(y)


def test_what_is_measured_is_what_a_naive_twin_finds(engine: Engine, alike: Federation) -> None:
    seen: dict[str, list[State]] = {step: [] for step in "LEMD"}
    records = followed(engine, theory, 3, lambda step, state: seen[step].append(state))
    data = [
        (alike.x[rows].reshape(len(rows), -1).astype(np.float64), alike.y[rows])
        for rows in alike.train
    ]

    def slopes(state: State) -> F64:
        return np.stack([gradient(row, *own) for row, own in zip(state.models, data, strict=True)])

    lam = alike.sizes / alike.sizes.sum()
    head = slice(0, 640)
    U, beta = 0.0, 0.0
    for t in (1, 2):  # the second and third round
        sent, trained, parted, again = (
            seen["D"][t - 1], seen["L"][t], seen["M"][t], seen["D"][t]
        )  # fmt: skip
        at = [slopes(state) for state in (sent, trained, again)]
        norms = [np.linalg.norm(each, axis=1) for each in at]
        found, U = records[t], max(norm.max() for norm in norms)
        for key, each in (("0", at[0]), ("Q", at[1])):
            for k in range(2):
                own = parted.labels == k
                mean = sum(w * g for w, g in zip(lam[own], each[own], strict=True)) / lam[own].sum()
                B = max(np.linalg.norm(g - mean) for g in each[own]) / np.linalg.norm(mean)
                assert found["B"][key][k] == pytest.approx(B, rel=1e-3)
        B = np.max([found["B"]["0"], found["B"]["Q"]], axis=0)[parted.labels]
        assert found["theory"]["U_round"] == pytest.approx(U, rel=1e-4)
        assert found["theory"]["sigma2"] == 0
        for key, norm in (("0", norms[0]), ("Q", norms[1])):
            assert found["theory"]["gradient"][key] == pytest.approx((lam * norm**2).sum(), 1e-4)
        gap = np.linalg.norm((seen["M"][t - 1].models - sent.models)[:, head], axis=1)
        bound = gap / (2 * max(norms[0].max(), norms[1].max()))
        np.testing.assert_allclose(found["clients"]["lr_bound_1"], bound, rtol=1e-3)
        np.testing.assert_allclose(found["clients"]["lr"], bound, rtol=1e-3)
        for a, b, ga, gb in ((sent, trained, at[0], at[1]), (trained, again, at[1], at[2])):
            step = np.linalg.norm(a.models - b.models, axis=1)
            beta = max(beta, (np.linalg.norm(ga - gb, axis=1) / step).max())
        assert found["theory"]["beta"] >= beta * (1 - 1e-2)
        b, eta = found["theory"]["beta"], np.array(found["clients"]["lr"])
        least = np.minimum(norms[0], norms[1]) ** 2
        rise, gain = eta.max() * 2 * U**2 * B, 2 * (b * eta**2 / 2 - eta) * least
        assert found["theory"]["lemma_4"] == pytest.approx((lam * rise).sum(), rel=1e-3)
        assert found["theory"]["lemma_5"] == pytest.approx((lam * gain).sum(), rel=1e-3)
        np.testing.assert_allclose(
            found["clients"]["lr_bound_2"], (1 - B * U**2 / least) * 2 / b, rtol=1e-2
        )
    assert records[-1]["theory"]["U"] > U  # the largest so far was that of the first round


# β


def test_beta_of_logistic_regression_is_its_bound_at_any_rate(tmp_path: Path) -> None:
    """At η = 20 the first step saturates the softmax, where secants see hardly any curvature."""
    federation = federation_of(Config(**CONVEX, **ALIKE))
    data = [federation.x[rows].reshape(len(rows), -1) for rows in federation.train]
    with_bias = [np.c_[x, np.ones(len(x))].astype(np.float64) for x in data]
    bound = max(np.linalg.eigvalsh(x.T @ x / len(x)).max() for x in with_bias) / 2
    for lr in (0.01, 20.0):
        out = tmp_path / f"{lr}"
        choices = CONVEX | ALIKE | {"steps": 2, "rounds": 3, "diagnostics": True}
        records = run_config(Config(**choices, lr=lr), out=out).records
        found = [record["theory"]["beta"] for record in records]
        assert found == [found[0]] * 3
        assert found[0] == pytest.approx(bound, rel=0.01)
        [theorem] = [each for each in check_run(out).statements if each.name == "Theorem 3"]
        assert bool(theorem.rounds) == (lr * bound < 2)
        assert ("2/β" in theorem.missing) == (lr * bound >= 2)


def test_beta_of_a_network_does_not_shrink_where_the_softmax_saturates() -> None:
    """The largest eigenvalue of the Hessian at the common start, by torch's autograd."""
    choices = {"clients": 4, "groups": 2, "clusters": 2, "rounds": 2, "steps": 2, "workers": 1}
    config = Config(**choices, model="mlp", lr=20.0, momentum=0.0, diagnostics=True)
    federation = federation_of(config)
    model = make("mlp", shape=federation.shape, classes=federation.classes, seed=config.seed)
    largest = max(
        top_eigenvalue(model, torch.tensor(federation.x[rows]), torch.tensor(federation.y[rows]))
        for rows in federation.train
    )
    for record in run_config(config).records:
        assert record["theory"]["beta"] >= 0.9 * largest


def top_eigenvalue(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Of the Hessian of the mean cross-entropy: power iteration with exact products."""
    parameters = list(model.parameters())
    slope = torch.autograd.grad(cross_entropy(model(x), y), parameters, create_graph=True)
    vectors = [each.detach() for each in slope]
    length = 0.0
    for _ in range(30):
        length = float(torch.sqrt(sum((v**2).sum() for v in vectors)))  # type: ignore[arg-type]
        vectors = [v / length for v in vectors]
        vectors = list(torch.autograd.grad(slope, parameters, vectors, retain_graph=True))
    return float(torch.sqrt(sum((v**2).sum() for v in vectors)))  # type: ignore[arg-type]


def test_diagnostics_change_nothing_but_the_record() -> None:
    choices = {"clients": 6, "groups": 2, "clusters": 2, "rounds": 3, "steps": 3, "workers": 1}
    plain, watched = (
        run_config(Config(**choices, objectives=True, diagnostics=d)) for d in (False, True)
    )
    assert plain.states[0].models.tobytes() == watched.states[0].models.tobytes()
    for a, b in zip(plain.records, watched.records, strict=True):
        assert {"silhouette", "B", "theory"} == b.keys() - a.keys()
        assert all(a[key] == b[key] for key in a if key not in ("seconds", "clients"))
        assert b["theory"]["sigma2"] > 0  # mini-batches
        assert b["theory"]["U_round"] > 0


def test_a_finished_round_holds_only_numbers_json_knows(tmp_path: Path) -> None:
    """A cluster of one client, an empty one, a soft vote and losses as representation."""
    choices = {"clients": 4, "groups": 2, "clusters": 3, "rounds": 2, "steps": 2, "workers": 1}
    for method in ("wecfl", "fedavg+", "ifca"):
        out = tmp_path / method
        run_config(Config(**choices, method=method, diagnostics=True), out=out)
        text = (out / "metrics.jsonl").read_text(encoding="utf-8")
        assert "NaN" not in text and "Infinity" not in text
        statements = check_run(out).statements
        assert len(statements) == 10
        assert all(each.missing for each in statements) == (method != "wecfl")
