"""Methods put together at random: what clients do × clustering × aggregation × serving.

Two rounds of each on both engines. What is drawn is a base, which clusters, and a donor, from which
the base takes what its clients do, the exchanges that this needs, and the plan.
"""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import wecfl
from fuzzing import tries
from helpers import run_flat
from wecfl import Federation, methods
from wecfl.bilevel.aggregation import Mean, Median, TrimmedMean
from wecfl.bilevel.aggregation.attention import Attentive
from wecfl.bilevel.aggregation.optimizer import Adaptive, Momentum, yogi
from wecfl.bilevel.representation import Columns
from wecfl.bilevel.serving import Tuned
from wecfl.core.ask import Ask
from wecfl.core.components import Aggregation, Serving
from wecfl.core.method import Method

BASES = (
    methods.fedavg, methods.wecfl(2), methods.wecfl("auto"), methods.fesem(2), methods.ifca(2),
    methods.cfl(eps1=10.0, eps2=0.0), methods.flhc(threshold=0.2),
)  # fmt: skip
DONORS = (
    methods.fedavg, methods.fedprox(0.3), methods.scaffold(), methods.fednova(),
    methods.feddyn(0.3), methods.feddane(0.1), methods.local(), methods.fedavg_ft(2),
    methods.ditto(), methods.fedrep(1), methods.per_fedavg(0.1), methods.pfedme(2.0, 2, 0.05),
    methods.fedbabu(2), methods.apfl(), methods.fedmeta(1, hessian=False),
)  # fmt: skip
AGGREGATIONS: tuple[Aggregation, ...] = (
    Mean(), Median(), TrimmedMean(0.3), Momentum(0.9, 0.5), Adaptive(yogi, 0.03), Attentive(0.9),
)  # fmt: skip


@st.composite
def combinations(draw: st.DrawFn) -> Method:
    base, donor = draw(st.sampled_from(BASES)), draw(st.sampled_from(DONORS))
    asks = tuple(step for step in donor.steps if step == "L" or isinstance(step, Ask))
    others = tuple(step for step in base.steps if step != "L")
    aggregation = donor.aggregation  # that of these donors belongs to what their clients do
    if donor.name not in ("fednova", "feddyn", "local"):
        aggregation = draw(st.sampled_from(AGGREGATIONS))
    servings: list[Serving] = [donor.serve, Tuned(1), Tuned(2, 0.01)]
    serve = draw(st.sampled_from(servings))
    # Losses need whole models.
    choices = ["all"] if base.representation.asks else ["all", "~classifier"]
    shared = draw(st.sampled_from(choices))
    made = base.replace(
        name=f"{base.name} with {donor.name}", local=donor.local, plan=donor.plan, serve=serve,
        steps=(*asks, *others), aggregation=aggregation, shared=shared,
    )  # fmt: skip
    if shared != "all":
        made = made.replace(representation=Columns(shared))
    return made


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def two_rounds(fed: Federation, method: Method, engine: str, **how: Any) -> wecfl.Result:
    return run_flat(
        fed, method, model=module(), rounds=2, steps=4, batch=4, lr=0.02, seed=1, engine=engine,
        workers=1, objectives=False, **how,
    )  # fmt: skip


@tries(12)
@given(combinations(), st.sampled_from([1.0, 0.6]))
def test_any_combination_runs_and_comes_to_the_same_on_both_engines(
    fed: Federation, method: Method, participation: float
) -> None:
    native, other = (
        two_rounds(fed, method, kind, participation=participation) for kind in ("native", "torch")
    )
    np.testing.assert_array_equal(native.labels, other.labels)
    for one, two in zip(native.states, other.states, strict=True):
        assert np.isfinite(one.centers).all()
        np.testing.assert_allclose(one.centers, two.centers, atol=2e-3)
        assert one.memory.keys() == two.memory.keys()
    assert [r["traffic"] for r in native.records] == [r["traffic"] for r in other.records]
