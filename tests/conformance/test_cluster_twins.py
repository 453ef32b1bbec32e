"""Methods with a model for each cluster beside their naive twins, on both engines."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import cluster_twins
import told_twins
import wecfl
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
from wecfl.models import fill, reinitialized, row_of

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
    "pacfl": (
        methods.pacfl(vectors=1, angle_threshold=1.0),
        lambda i, draws: told_twins.pacfl(i, vectors=1, limit=1.0),
    ),
    "pacfl sum": (
        methods.pacfl(vectors=1, angle_threshold=20.0, angles="sum"),
        lambda i, draws: told_twins.pacfl(i, vectors=1, limit=20.0, total=True),
    ),
    "fedgroup": (
        methods.fedgroup(2, start_steps=7),
        lambda i, draws: told_twins.fedgroup(i, 2, steps=7),
    ),
    "fedgroup between": (
        methods.fedgroup(2, start_steps=5, between_rate=0.05),
        lambda i, draws: told_twins.fedgroup(i, 2, steps=5, rate=0.05),
    ),
    "stocfl": (
        methods.stocfl(tau=0.4, proximal=0.3, start_steps=7),
        lambda i, draws: told_twins.stocfl(i, tau=0.4, mu=0.3, steps=7),
    ),
    "k-fed": (methods.k_fed(2), lambda i, draws: told_twins.k_fed(i, 2)),
    "fedp2p": (methods.fedp2p(2), lambda i, draws: cluster_twins.fedp2p(i, 2, draws)),
}


def outcome(
    method: Method, conditions: str, kind: Any, fed: Federation, twin: Callable[[Inputs, Any], Any]
) -> tuple[Any, Any, Any]:
    """The state after the last round, what the twin comes to, and who was ever met."""
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
    with make_engine(kind, fed, module, workers=1) as engine:
        setting = Setting(method, engine, plan, SEED, channel=channel)
        path = iterate(setting, opening(setting))
        for _ in range(ROUNDS):
            state = next(path)
    met = [present is None or any(i in some for some in present) for i in range(M)]
    return state, expected, np.array(met)


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("conditions", ["all", "some"])
@pytest.mark.parametrize("name", CASES)
def test_a_method_is_its_naive_twin(name: str, conditions: str, kind: Any, fed: Federation) -> None:
    method, twin = CASES[name]
    state, expected, met = outcome(method, conditions, kind, fed, twin)
    theirs = np.stack([row(model) for model in expected.models])[met]
    np.testing.assert_allclose(state.own_centers[met], theirs, rtol=2e-3, atol=1e-4)
    begun = network() if kind == "torch" else plain()
    assert np.abs(theirs - row_of(begun)).max() > 0.05  # it moved at all


def same(ours: Any, models: Any) -> None:
    np.testing.assert_allclose(ours, np.stack([row(m) for m in models]), rtol=2e-3, atol=1e-4)


MIXTURES: dict[str, tuple[Method, Callable[[Inputs, Any], Any]]] = {
    "fedem": (methods.fedem(2), lambda i, _: cluster_twins.fedem(i, starts(i, 2))),
    "fedrc": (methods.fedrc(2), lambda i, _: cluster_twins.fedem(i, starts(i, 2), priors=True)),
    "fedsoft": (
        methods.fedsoft(2, proximal=0.5),
        lambda i, _: cluster_twins.fedsoft(i, starts(i, 2), mu=0.5, interval=2),
    ),
}


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("conditions", ["all", "some"])
@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_is_its_naive_twin(
    name: str, conditions: str, kind: Any, fed: Federation
) -> None:
    """Centers, weights and own models; also of clients that come late."""
    method, twin = MIXTURES[name]
    state, expected, _ = outcome(method, conditions, kind, fed, twin)
    same(state.centers, expected.centers)
    met = [i for i, weights in enumerate(expected.weights) if weights]
    theirs = np.array([expected.weights[i] for i in met])
    np.testing.assert_allclose(state.memory["mixture"][met], theirs, atol=1e-4)
    if conditions == "all":  # a client that comes late first joins a cluster that has clients
        np.testing.assert_array_equal(state.labels, theirs.argmax(axis=1))
    if expected.models:
        same(state.memory["personal"][met], [expected.models[i] for i in met])
    assert np.abs(theirs - 0.5).max() > 0.01


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize(("conditions", "k"), [("all", 2), ("some", 1)])
def test_cam_is_its_naive_twin(conditions: str, k: int, kind: Any, fed: Federation) -> None:

    def twin(inputs: Inputs, _: Any) -> Any:
        return cluster_twins.cam(inputs, k=k, mu=0.3, head="3.weight")

    state, expected, _ = outcome(methods.cam(k, proximal=0.3), conditions, kind, fed, twin)
    *centers, common = expected.centers
    same(state.own_centers, [centers[label] for label in expected.labels])
    same(state.whole["common"][None], [common])
    assert np.abs(state.whole["common"] - state.centers[0]).max() > 0.01


def drawn(channel: Channel, purpose: str, round: int) -> Any:
    return channel.draws(purpose, M, round)


@pytest.mark.parametrize("name", ["fedem", "fedrc", "cam"])
def test_what_predicts_for_a_client(name: str, fed: Federation) -> None:
    """The accuracy of the record is that of mixed probabilities, or of added outputs."""
    result = wecfl.run(
        fed, methods.named(name, k=2), model=plain(), rounds=3, plan=wecfl.Plan(steps=4, lr=0.3)
    )
    state = result.states[0]
    for i, rows in enumerate(fed.test):
        x = torch.from_numpy(fed.x[rows])
        if name == "cam":
            pair = [state.centers[state.labels[i]], state.whole["common"]]
            found = sum(fill(plain(), each)(x) for each in pair)
        else:
            shares = state.memory["mixture"][i].tolist()
            models = [fill(plain(), each).eval() for each in state.centers]
            found = sum(p * m(x).softmax(dim=1) for p, m in zip(shares, models, strict=True))
        right = (np.asarray(found.argmax(dim=1)) == fed.y[rows]).mean()
        assert result.records[-1]["clients"]["accuracy"][i] == pytest.approx(right, abs=1e-6)
    with pytest.raises(wecfl.errors.ConfigError, match="several models"):
        result.model(client=0)
