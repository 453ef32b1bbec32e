"""The optimizers of both engines against those of torch, over several steps and rounds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import wecfl
from helpers import local_update, run_flat
from wecfl import Config, Correction, Federation, State, make_engine, methods
from wecfl.bilevel.local import Parts, Train
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Job, Sent
from wecfl.core.types import F32, Table
from wecfl.errors import ConfigError, RunFolderError
from wecfl.experiment import Experiment
from wecfl.flower.messages import job_config, read_job
from wecfl.from_config import options_of
from wecfl.models import fill, row_of
from wecfl.models.rows import keyed

SEED, ROUNDS = 3, 3
ENGINES: Any = ["native", "torch"]
PLAN = LocalPlan(steps=4, batch=4, lr=0.02)
PLANS = {
    "nesterov": replace(PLAN, optimizer="nesterov"),
    "nesterov-decay-reset": replace(
        PLAN, optimizer="nesterov", weight_decay=0.1, keep_momentum=False
    ),
    "adam": replace(PLAN, optimizer="adam"),
    "adam-decay-reset": replace(PLAN, optimizer="adam", weight_decay=0.1, keep_momentum=False),
    "adam-numbers": replace(
        PLAN, optimizer="adam", momentum=0.5, adam_beta2=0.9, adam_eps=1e-3, max_gradient=0.5
    ),
    "adam-without-momentum": replace(PLAN, optimizer="adam", momentum=0.0),
    "adamw": replace(PLAN, optimizer="adamw", weight_decay=0.2),
    "clipped": replace(PLAN, max_gradient=0.3, weight_decay=0.1),
    "clipped-plain": replace(PLAN, max_gradient=0.3, momentum=0.0),
    "not-reached": replace(PLAN, max_gradient=1e6),
}


def network() -> nn.Module:
    with keyed(SEED):
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def rows_of(m: int) -> F32:
    """Every client at a model of its own."""
    rows = np.repeat(row_of(network())[None], m, axis=0)
    return rows + np.random.default_rng(1).normal(size=rows.shape, scale=0.1).astype(np.float32)


def optimizer_of(plan: LocalPlan, parameters: Any) -> torch.optim.Optimizer:
    lr, decay = float(plan.lr), plan.weight_decay
    if plan.adaptive:
        kind = torch.optim.Adam if plan.optimizer == "adam" else torch.optim.AdamW
        betas = (plan.momentum, plan.adam_beta2)
        return kind(parameters, lr, betas=betas, eps=plan.adam_eps, weight_decay=decay)
    nesterov = plan.optimizer == "nesterov"
    return torch.optim.SGD(
        parameters, lr, momentum=plan.momentum, weight_decay=decay, nesterov=nesterov
    )


def by_torch(fed: Federation, plan: LocalPlan, first: int | None = None) -> F32:
    """Rounds of a plain loop; `first` steps of each train the last layer, the others the body."""
    result = []
    for client, row in enumerate(rows_of(len(fed))):
        model: Any = fill(network(), row)
        head, body = list(model[2].parameters()), list(model[0].parameters())
        optimizer = optimizer_of(plan, model.parameters())
        for round in range(ROUNDS):
            if not plan.keep_momentum:
                optimizer = optimizer_of(plan, model.parameters())
            own = fed.train[client]
            for q, batch in enumerate(plan.batches(len(own), SEED, round, client)):
                for parameter in model.parameters():
                    parameter.grad = None
                x, y = torch.from_numpy(fed.x[own[batch]]), torch.from_numpy(fed.y[own[batch]])
                torch.autograd.backward(cross_entropy(model(x), y))
                for parameter in [] if first is None else body if q < first else head:
                    parameter.grad = None  # as if it needed no gradient
                if plan.max_gradient:
                    clip_grad_norm_(model.parameters(), plan.max_gradient)
                optimizer.step()
        result.append(row_of(model))
    return np.stack(result)


def close(ours: F32, theirs: F32) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=5e-6)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", PLANS)
def test_steps_are_those_of_torch(name: str, kind: Any, fed: Federation) -> None:
    plan, rows = PLANS[name], rows_of(len(fed))
    state = State(0, {"model": rows}, rows[:1], np.zeros(len(fed), np.int64))
    with make_engine(kind, fed, network(), workers=2) as engine:
        for _ in range(ROUNDS):
            models, memory = local_update(engine, state, plan, Correction(), SEED)
            state = state.replace(round=state.round + 1, replies={"model": models}, memory=memory)
        kept = plan.buffer(engine.layout)
    close(state.models, by_torch(fed, plan))
    if plan.keep_momentum and kept:
        assert memory["momentum"].shape == (len(fed), kept)
    else:
        assert not memory


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("name", ["nesterov", "adam", "adamw", "clipped"])
def test_what_is_frozen_keeps_its_moments_and_counts_no_step(
    name: str, kind: Any, fed: Federation
) -> None:
    plan, rows = PLANS[name], rows_of(len(fed))
    memory: Table = {}
    with make_engine(kind, fed, network(), workers=2) as engine:
        for round in range(ROUNDS):
            job = Job(Parts("classifier", steps=1), plan, SEED, round, keep=True)
            answers = engine.ask(job, Sent({"model": rows}), None, memory)
            rows, memory = answers.rows["model"], answers.memory
    close(rows, by_torch(fed, plan, first=1))


@pytest.mark.parametrize("optimizer", ["nesterov", "adam", "adamw"])
def test_methods_come_to_the_same_on_both_engines_and_go_on_to_the_bit(
    optimizer: Any, fed: Federation, tmp_path: Any
) -> None:
    about: dict[str, Any] = {
        "model": "mlp", "optimizer": optimizer, "lr": 0.01, "steps": 3, "weight_decay": 0.01,
        "max_gradient": 1.0, "participation": 0.6, "stragglers": 0.3,
    }  # fmt: skip
    results = [run_flat(fed, methods.ditto(), rounds=3, engine=kind, **about) for kind in ENGINES]
    np.testing.assert_allclose(results[0].centers, results[1].centers, rtol=1e-3, atol=1e-4)
    run_flat(fed, methods.ditto(), rounds=1, engine="native", out=tmp_path / "run", **about)
    again = run_flat(
        fed, methods.ditto(), rounds=3, engine="native", out=tmp_path / "run", resume=True, **about
    )
    np.testing.assert_array_equal(again.centers, results[0].centers)
    kept, expected = (each.states[0].memory["personal_momentum"] for each in (again, results[0]))
    np.testing.assert_array_equal(kept, expected)


def test_every_choice_reaches_the_plan_and_travels() -> None:
    chosen: dict[str, Any] = {
        "optimizer": "adamw", "momentum": 0.8, "adam_beta2": 0.9, "adam_eps": 1e-6,
        "max_gradient": 2.0, "weight_decay": 0.1, "keep_momentum": False, "batch": 8,
    }  # fmt: skip
    plan = options_of(Config(**chosen, steps=7))["plan"].complete({})
    assert {name: getattr(plan, name) for name in chosen} == chosen
    for each in (plan, LocalPlan()):
        config = {**job_config(Job(Train(), each)), "lr": 0.5, "done": 3}
        assert replace(read_job(config).plan, lr=each.lr, done=None) == each


@pytest.mark.parametrize(
    "choices",
    [
        {"optimizer": "rmsprop"},
        {"optimizer": "nesterov", "momentum": 0.0},
        {"adam_beta2": 1.0},
        {"adam_eps": 0.0},
        {"max_gradient": 0.0},
    ],
    ids=str,
)
def test_a_wrong_plan_is_refused(choices: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(choices.values())) if "optimizer" in choices
                       else next(iter(choices))):  # fmt: skip
        wecfl.Plan(**choices)


def test_a_folder_from_before_there_were_optimizers_goes_on(fed: Federation, tmp_path: Any) -> None:
    plan = {"steps": 10, "batch": 32, "lr": 0.001, "momentum": 0.9, "keep_momentum": True}
    about: dict[str, Any] = {"method": "fedavg", "rounds": 1}
    experiment = Experiment(
        fed, methods.fedavg, model="logistic", rounds=1, folder=tmp_path / "run",
        written={**about, "plan": plan},
    )  # fmt: skip
    experiment.run()
    further = replace(experiment, rounds=2, folder=wecfl.Folder(tmp_path / "run", resume=True))
    with pytest.raises(RunFolderError, match="plan"):
        replace(further, written={**about, "plan": {**plan, "optimizer": "adam"}}).run()
    again = replace(further, written={**about, "plan": {**plan, "optimizer": "sgd"}})
    assert len(again.run().records) == 2


@pytest.mark.parametrize("choices", [{"optimizer": "adam"}, {"lr": "theory", "max_gradient": 1.0}])
def test_what_needs_plain_steps_says_so(choices: dict[str, Any], fed: Federation) -> None:
    method = methods.wecfl(k=2) if "lr" in choices else methods.named("scaffold")
    with pytest.raises(ConfigError, match="plain gradient steps"):
        run_flat(fed, method, model="logistic", rounds=1, momentum=0.0, **choices)
