"""Lemmas 1 to 3 and Theorem 1 of the paper on the real step functions."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import BowlEngine
from wecfl import methods
from wecfl.bilevel.importance import data_size
from wecfl.bilevel.objectives import F
from wecfl.core.channel import Channel
from wecfl.core.exchange import exchange
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import (
    distribution,
    expectation,
    iterate,
    maximization,
    opening,
)
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.core.types import F64
from wecfl.rng import stream

Case = tuple[BowlEngine, State]
EPS = 1e-5  # rows are float32


@st.composite
def situations(draw: st.DrawFn) -> Case:
    """An engine and an arbitrary state: any models, centers and labels."""
    m, k, p = draw(st.integers(2, 12)), draw(st.integers(1, 5)), draw(st.integers(1, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.01, 1.0, 10.0]))
    sizes = rng.integers(1, 1000, m)
    engine = BowlEngine(rng.normal(size=(m, p)) * spread, sizes)
    models = rng.normal(size=(m, p + 2)).astype(np.float32) * np.float32(spread)
    if draw(st.booleans()):
        models[rng.integers(m)] = models[rng.integers(m)]  # equal clients
    k = min(k, m)
    centers = rng.normal(size=(k, p + 2)).astype(np.float32) * np.float32(spread)
    return engine, State(1, {"model": models}, centers, rng.integers(0, k, m))


def setting(engine: BowlEngine, method: Method, plan: LocalPlan | None = None) -> Setting:
    """Nobody is refused, however much longer its update is: the paper hears all clients."""
    heard = Channel(refuse_above=np.inf)
    return Setting(method, engine, plan or LocalPlan(momentum=0.0), channel=heard)


def projected(k: int) -> Method:
    """WeCFL by three random directions; there may be fewer columns, which nothing here checks."""
    return methods.wecfl(k, project=3)


def nearest_projected(k: int) -> Method:
    """One reassignment by the same projections."""
    return projected(k).replace(clustering=methods.fedavg.clustering)


MAKERS = [methods.wecfl, methods.fesem, methods.ifca, projected, nearest_projected]


@given(situations(), st.sampled_from(MAKERS))
def test_lemma_1_the_expectation_step_never_raises_f(
    case: Case, make: Callable[[int], Method]
) -> None:
    engine, state = case
    method = make(len(state.centers))
    after = expectation(state, setting(engine, method))
    before = F(state, method, engine)
    assert F(after, method, engine) <= before * (1 + EPS) + EPS**2


@given(situations(), st.floats(0.01, 100))
def test_lemma_1_nearest_does_not_depend_on_positive_importance(case: Case, scale: float) -> None:
    engine, state = case
    method = methods.fedavg.replace(k=len(state.centers))
    skewed = method.replace(importance=lambda sizes: scale / sizes)
    plain, other = (expectation(state, setting(engine, each)) for each in (method, skewed))
    np.testing.assert_array_equal(plain.labels, other.labels)


@given(situations(), st.sampled_from([methods.wecfl, projected]))
def test_lemma_2_is_an_identity(case: Case, make: Callable[[int], Method]) -> None:
    """F(M) − F(E) = −Σ_k (Σ_{i∈k} λ_i) ‖G_k^M − G_k^E‖² / Σλ, for any assignment and any Ω^E."""
    engine, state = case
    method = make(len(state.centers))
    after = maximization(state, setting(engine, method))
    lam, head = data_size(engine.sizes), slice(0, -2)
    moved = (after.centers - state.centers)[:, head].astype(np.float64)
    if make is projected:
        moved = moved @ stream(0, "projection").standard_normal((moved.shape[1], 3)) / np.sqrt(3)
    shift: F64 = (moved**2).sum(axis=1)
    weight = np.bincount(state.labels, weights=lam, minlength=len(shift))
    expected = -(weight * shift).sum() / lam.sum()
    before = F(state, method, engine)
    assert F(after, method, engine) - before == pytest.approx(expected, rel=1e-4, abs=EPS * before)


@given(situations(), st.integers(1, 10))
def test_lemma_3_local_updates_at_the_bounds_rate_do_not_raise_f(case: Case, steps: int) -> None:
    """η_i ≤ ‖ω_i − Ω_k‖ / (Q·U), ω_i before the distribution, norm on the representation."""
    engine, state = case
    method = methods.wecfl(len(state.centers))
    plain = setting(engine, method)
    state = maximization(expectation(state, plain), plain)
    gap = np.linalg.norm((state.models - state.own_centers)[:, :-2].astype(np.float64), axis=1)
    rates = (gap / (steps * engine.U)).astype(np.float32)
    bounded = setting(engine, method, LocalPlan(steps=steps, momentum=0.0, lr=rates))
    after = exchange(distribution(state, bounded), bounded)
    before = F(state, method, engine)
    assert F(after, method, engine) <= before * (1 + EPS) + EPS**2
    # Not only in the mean: no client ends further from its center than it was.
    moved = np.linalg.norm((after.models - after.own_centers)[:, :-2].astype(np.float64), axis=1)
    assert (moved <= gap * (1 + 1e-3) + EPS).all()


@given(situations())
@settings(max_examples=20)
def test_theorem_1_f_falls_in_every_step_of_every_round(case: Case) -> None:
    engine, _ = case
    method = methods.wecfl(min(3, len(engine.sizes)))
    current = setting(engine, method, LocalPlan(steps=3, momentum=0.0, lr=0.5))
    state = next(iterate(current, opening(current)))
    trace: list[float] = []
    for _ in range(6):
        state = exchange(state, current)
        trace.append(F(state, method, engine))
        state = expectation(state, current)
        trace.append(F(state, method, engine))
        state = maximization(state, current)
        trace.append(F(state, method, engine))
        gap = np.linalg.norm((state.models - state.own_centers)[:, :-2].astype(np.float64), axis=1)
        rates = (gap / (3 * engine.U)).astype(np.float32)
        current = replace(current, plan=LocalPlan(steps=3, momentum=0.0, lr=rates))
        state = distribution(state, current)
    assert all(b <= a * (1 + EPS) + EPS**2 for a, b in pairwise(trace))


def test_lemmas_1_and_2_hold_in_every_round_of_a_real_run() -> None:
    from helpers import run_flat
    from wecfl import Federation, partitions

    partition = partitions.ClusterwiseDirichlet((0.1, 10.0), groups=4)
    fed = Federation.from_dataset("digits", partition, clients=12, seed=1)
    for k in (3, 4, 6):
        result = run_flat(fed, methods.wecfl(k), rounds=6, lr=0.05, seed=0, objectives=False)
        for record in result.records:
            assert record["F"]["E"] <= record["F"]["L"] * (1 + EPS)
            assert record["F"]["M"] <= record["F"]["E"] * (1 + EPS)
