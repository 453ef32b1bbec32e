"""Methods with a model for each cluster beside their naive twins, on both engines."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import cluster_twins
from cluster_twins import Clustered
from conformance.test_twins import plain
from test_twins import HEAD, inputs_of, network
from twins import Inputs, row, tensors
from wecfl import Federation, methods
from wecfl.core.channel import Channel
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.engine import make_engine
from wecfl.models import reinitialized, row_of

SEED, ROUNDS, M = 3, 3, 5
PLAN = LocalPlan(steps=4, batch=4, lr=0.1, momentum=0.8, weight_decay=0.01)
Twin = Callable[[Inputs, Any], Clustered]


def starts(inputs: Inputs, k: int) -> Any:
    """K initial models, the first of which is the given one."""
    single = deepcopy(inputs.module).float()
    return [inputs.module, *(reinitialized(single, SEED, j).double() for j in range(1, k))]


def body(inputs: Inputs) -> set[str]:
    return set(tensors(inputs.module)) - HEAD


CASES: dict[str, tuple[Method, Twin]] = {
    "ifca+": (
        methods.ifca_plus(2, restarts=3),
        lambda i, draws: cluster_twins.ifca_plus(i, 2, draws, restarts=3, common=body(i)),
    ),
    "ifca+ whole": (
        methods.ifca_plus(2, share_body=False, restarts=1),
        lambda i, draws: cluster_twins.ifca_plus(i, 2, draws, restarts=1, common=set()),
    ),
    "ifca-one-shot": (
        methods.ifca_one_shot(2, start_steps=7),
        lambda i, draws: cluster_twins.one_shot(i, 2, steps=7),
    ),
    "clove": (methods.clove(2), lambda i, draws: cluster_twins.clove(i, starts(i, 2))),
    "fedp2p": (methods.fedp2p(2), lambda i, draws: cluster_twins.fedp2p(i, 2, draws)),
}


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("conditions", ["all", "some"])
@pytest.mark.parametrize("name", CASES)
def test_a_method_is_its_naive_twin(name: str, conditions: str, kind: Any, fed: Federation) -> None:
    method, twin = CASES[name]
    module = network() if kind == "torch" else plain()
    plan = replace(PLAN, **method.plan)
    channel = Channel(keys=fed.keys, seed=SEED, refuse_above=np.inf)
    present = None
    if conditions == "some":
        channel = replace(channel, participation=0.6)
        present = [set(np.flatnonzero(channel.present(M, t)).tolist()) for t in range(ROUNDS + 1)]
        assert len(present[0]) < M
    inputs = inputs_of(
        fed, module, rounds=ROUNDS, seed=SEED, steps=plan.steps, batch=plan.batch, lr=plan.lr,
        momentum=plan.momentum, weight_decay=plan.weight_decay, present=present,
    )  # fmt: skip
    expected = twin(inputs.double(), partial(drawn, channel))
    with make_engine(kind, fed, module, workers=2) as engine:
        setting = Setting(method, engine, plan, SEED, channel=channel)
        path = iterate(setting, opening(setting))
        for _ in range(ROUNDS):
            state = next(path)
    met = np.ones(M, bool) if present is None else np.array(sorted(set.union(*present)))
    theirs = np.stack([row(model) for model in expected.models])[met]
    np.testing.assert_allclose(state.own_centers[met], theirs, rtol=2e-3, atol=1e-4)
    assert np.abs(theirs - row_of(module)).max() > 0.05  # it moved at all


def drawn(channel: Channel, purpose: str, round: int) -> Any:
    return channel.draws(purpose, M, round)
