"""The methods with memory beside their naive twins, on both engines, also with absent clients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import personal_twins
import server_twins
import twins
import wecfl
from fuzzing import in_turns
from helpers import engines_for
from test_twins import HEAD, inputs_of, network
from twins import Batches, Inputs, Outcome
from wecfl import Federation, methods
from wecfl.core.channel import Channel
from wecfl.core.method import Method
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Sent
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.core.state import State
from wecfl.engine import make_engine
from wecfl.engine.site import LocalSite
from wecfl.models import row_of
from wecfl.runs.record import served

SEED, ROUNDS, M = 3, 5, 5
PLAN = LocalPlan(steps=4, batch=4, lr=0.1, momentum=0.8, weight_decay=0.01)
Twin = Callable[[Inputs], Outcome]


def upcoming(inputs: Inputs, i: int, steps: int) -> Batches:
    """The batches of fine-tuning: those of the round that would come next."""
    plan, size = LocalPlan(steps=steps, batch=inputs.batch), len(inputs.clients[i][1])
    return plan.batches(size, inputs.seed, inputs.rounds, inputs.keys[i])


def tuned(inputs: Inputs) -> Outcome:
    return twins.fedavg_ft(inputs, lambda i: upcoming(inputs, i, inputs.steps))


def adapted(twin: Callable[..., Outcome], steps: int = 1, **options: Any) -> Twin:
    """The twin of a method whose clients adapt the server's model by some steps."""
    return lambda inputs: twin(inputs, lambda i: upcoming(inputs, i, steps), **options)


def feddane(inputs: Inputs) -> Outcome:
    """The first set of clients is drawn like the second one, for another purpose."""
    share = 1.0 if inputs.present is None else 0.5
    draws = Channel(participation=share, keys=np.array(inputs.keys), seed=SEED)
    sets = [draws.present(M, t, "gradients") for t in range(inputs.rounds)]
    first = [{*np.flatnonzero(each).tolist()} for each in sets]
    assert inputs.present is None or first != list(inputs.present)  # a set of its own
    return server_twins.feddane(inputs, first, mu=0.1)


CASES: dict[str, tuple[Method, Twin]] = {
    "local": (methods.local(), twins.local),
    "fedavg-ft": (methods.fedavg_ft(), tuned),
    "scaffold": (methods.scaffold(), twins.scaffold),
    "fedavgm": (methods.fedavgm(), twins.fedavgm),
    "fedadagrad": (methods.fedadagrad(0.05), lambda i: twins.fedadagrad(i, eta=0.05)),
    "fedadam": (methods.fedadam(0.05), lambda i: twins.fedadam(i, eta=0.05)),
    "fedyogi": (methods.fedyogi(0.05), lambda i: twins.fedyogi(i, eta=0.05)),
    "ditto": (methods.ditto(0.7), lambda i: twins.ditto(i, lam=0.7)),
    "fedper": (methods.fedper(), lambda i: twins.fedper(i, HEAD)),
    "lg-fedavg": (methods.lg_fedavg(), lambda i: twins.lg_fedavg(i, HEAD)),
    "fedrep": (methods.fedrep(1), lambda i: twins.fedrep(i, HEAD, head_steps=1)),
    "per-fedavg": (methods.per_fedavg(0.2), adapted(personal_twins.per_fedavg, inner_lr=0.2)),
    "per-fedavg hessian": (
        methods.per_fedavg(0.2, hessian=True),
        adapted(personal_twins.per_fedavg, inner_lr=0.2, hessian=True),
    ),
    "fednova": (methods.fednova(), server_twins.fednova),
    "feddyn": (methods.feddyn(0.3), lambda i: server_twins.feddyn(i, alpha=0.3)),
    "fedatt": (methods.fedatt(0.8), lambda i: server_twins.fedatt(i, step=0.8)),
    "feddane": (methods.feddane(0.1), feddane),
    "fedbabu": (methods.fedbabu(2), adapted(personal_twins.fedbabu, 2, head=HEAD)),
    "apfl": (methods.apfl(0.4), lambda i: personal_twins.apfl(i, mixing=0.4)),
    "fedmeta": (
        methods.fedmeta(2, server_lr=0.05),
        adapted(personal_twins.fedmeta, 2, inner_steps=2, hessian=True, eta=0.05),
    ),
    "fedproto": (
        methods.fedproto(0.3),
        lambda i: Outcome(i.module, personal_twins.fedproto(i, lam=0.3).models),
    ),
    "moon": (methods.moon(2.0, 0.4), lambda i: server_twins.moon(i, mu=2.0, temperature=0.4)),
    "lotteryfl": (
        methods.lotteryfl(0.3, 0.25, 0.6),
        lambda i: personal_twins.pruned(i, above=0.3, rate=0.25, target=0.6),
    ),
    "hermes": (
        methods.hermes(0.3, 0.25, 0.6),
        lambda i: personal_twins.pruned(i, above=0.3, rate=0.25, target=0.6, channels=True),
    ),
    "pfedhn": (
        methods.pfedhn(3, 7, 0.05),
        lambda i: personal_twins.pfedhn(i, embedding=3, hidden=7, lr=0.05),
    ),
    "pfedme": (
        methods.pfedme(4.0, 3, 0.05, 0.8),
        lambda i: personal_twins.pfedme(i, lam=4.0, inner_steps=3, inner_lr=0.05, beta=0.8),
    ),
}

WITHOUT_BATCHNORM = {"per-fedavg hessian", "fedmeta", "fedatt", "lotteryfl", "hermes"}
"""Without the validation samples, some batches have one sample, on which BatchNorm can't train.
BatchNorm on a batch of two samples bends so much that a difference is not its Hessian, and that
the twin of FedAtt itself differs by 2e-3 between float32 and float64."""


@pytest.mark.parametrize(
    ("name", "kind", "conditions"),
    in_turns(
        [
            (name, kind, conditions)
            for name, (method, _) in CASES.items()
            for kind in reversed(engines_for(method))
            for conditions in (("some", "all") if kind == "torch" else ("all", "some"))
        ],
        turn=0,
        of=2,
    ),
)
def test_a_method_is_its_naive_twin(name: str, kind: Any, conditions: str, fed: Federation) -> None:
    method, twin = CASES[name]
    module = network() if kind == "torch" and name not in WITHOUT_BATCHNORM else plain()
    plan = replace(PLAN, **method.plan)
    channel = Channel(keys=fed.keys, seed=SEED, refuse_above=np.inf)
    present, done = None, None
    if conditions == "some":
        channel = replace(channel, participation=0.5, stragglers=0.4)
        present = [set(np.flatnonzero(channel.present(M, t)).tolist()) for t in range(ROUNDS)]
        taken = [channel.steps(plan, np.ones(M, int), t) for t in range(ROUNDS)]
        done = [[int(steps[i]) for steps in taken if steps is not None] for i in range(M)]
    inputs = inputs_of(
        fed, module, rounds=ROUNDS, seed=SEED, steps=plan.steps, batch=plan.batch, lr=plan.lr,
        momentum=plan.momentum, keep_momentum=plan.keep_momentum,
        weight_decay=plan.weight_decay, present=present, done=done,
    ).double()  # fmt: skip
    expected = twin(inputs)
    with make_engine(kind, fed, module, workers=1) as engine:
        setting = Setting(method, engine, plan, SEED, channel=channel)
        path = iterate(setting, opening(setting))
        for _ in range(ROUNDS):
            state = next(path)
        found = rows(state, method, setting)
    theirs = np.stack([twins.row(model) for model in expected.models])
    np.testing.assert_allclose(found, theirs, rtol=2e-3, atol=1e-4)
    assert np.abs(theirs - row_of(module)).max() > 0.05  # it moved at all


def plain() -> nn.Module:
    """The native engine knows no BatchNorm1d."""
    made = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Flatten(), nn.Linear(5, 3))
    return nn.Sequential(*wecfl.models.reinitialized(made, seed=0, which=0).children())


def rows(state: State, method: Method, setting: Setting) -> Any:
    """(m, P), what answers for each client."""
    engine: Any = setting.engine
    models = served([state], engine.layout, method.shared)
    begun = state.memory.get("begun", np.ones(M, np.bool_))
    memory = {
        name: np.where(begun[:, None], table, models)
        if (table.shape, table.dtype) == (models.shape, models.dtype)
        else table
        for name, table in state.memory.items()
    }
    site = LocalSite(engine, np.arange(M), SEED, state.round)
    return method.serve(site, Sent({"model": models}), memory, setting.plan)[-1]


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_clients_of_fedproto_predict_by_the_nearest_prototype(
    participation: float, fed: Federation
) -> None:
    """The prototypes are the twin's, and so are all predictions, also those of `result.model`."""
    plan = wecfl.Plan(steps=PLAN.steps, batch=PLAN.batch, lr=0.1, momentum=0.8)
    result = wecfl.run(
        fed, methods.fedproto(0.3), model=network(), rounds=ROUNDS, seed=SEED, plan=plan,
        conditions=wecfl.Conditions(participation=participation),
    )  # fmt: skip
    channel = Channel(participation=participation, keys=fed.keys, seed=SEED)
    present = [set(np.flatnonzero(channel.present(M, t)).tolist()) for t in range(ROUNDS)]
    inputs = inputs_of(
        fed, network(), rounds=ROUNDS, seed=SEED, steps=PLAN.steps, batch=PLAN.batch, lr=0.1,
        momentum=0.8, present=present,
    )  # fmt: skip
    twin = personal_twins.fedproto(inputs, lam=0.3)
    tables = result.states[0].cluster
    for label, prototype in twin.common.items():
        np.testing.assert_allclose(tables["prototypes"][0, label], prototype, atol=1e-4)
    for i, rows in enumerate(fed.test):
        x = torch.from_numpy(fed.x[rows])
        theirs = personal_twins.nearest(twin, i, x)
        right = np.mean(theirs == fed.y[rows])
        assert result.records[-1]["clients"]["accuracy"][i] == pytest.approx(right, abs=1e-6)
        np.testing.assert_array_equal(result.model(client=i)(x).argmax(dim=1), theirs)
    sent = {*result.records[-1]["clients"]["bytes_up"]}
    assert sent <= {0, 3 * 5 * 4 + 3 * 8}  # prototypes and counts, and no model
