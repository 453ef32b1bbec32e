"""Weights and biases of single samples in training, and mixed predictions, on both engines."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from wecfl import Federation
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Ensemble
from wecfl.engine import make_engine
from wecfl.engine.site import LocalSite
from wecfl.errors import ConfigError
from wecfl.models import fill, reinitialized, row_of
from wecfl.tasks import Binary, Classification, Regression

SEED, M, C = 3, 5, 3
PLAN = LocalPlan(steps=9, batch=4, lr=0.1, momentum=0.8)
KINDS = pytest.mark.parametrize("kind", ["native", "torch"])


def module() -> nn.Module:
    made = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, C))
    return reinitialized(made, seed=0, which=0)


def site(engine: Any, *clients: int) -> LocalSite:
    return LocalSite(engine, np.array(clients or range(M)), SEED)


def numbers(fed: Federation, *shape: int) -> Any:
    return np.random.default_rng(1).random((int(fed.sizes.sum()), *shape)).astype(np.float32)


def by_autograd(fed: Federation, i: int, weights: Any, bias: Any) -> Any:
    """Client i after its steps; a dictionary gives each sample its weight and bias."""
    model = module()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    own = fed.train[i]
    weight_of = dict(zip(own.tolist(), weights, strict=True))
    bias_of = dict(zip(own.tolist(), bias, strict=True))
    for chosen in PLAN.batches(len(own), SEED, 0, int(fed.keys[i])):
        rows = own[chosen]
        x, y = torch.from_numpy(fed.x[rows]), torch.from_numpy(fed.y[rows])
        shift = torch.tensor(np.stack([bias_of[row] for row in rows.tolist()]))
        factor = torch.tensor([float(weight_of[row]) for row in rows.tolist()])
        each = cross_entropy(model(x) + shift, y, reduction="none")
        optimizer.zero_grad()
        torch.autograd.backward((factor * each).sum() / len(rows))
        optimizer.step()
    return row_of(model)


@KINDS
def test_each_sample_keeps_its_weight_and_its_bias(kind: Any, fed: Federation) -> None:
    """Also in shuffled batches: another library gives them to the samples in another order."""
    weights, bias = numbers(fed), numbers(fed, C)
    rows = np.repeat(row_of(module())[None], M, axis=0)
    with make_engine(kind, fed, module(), workers=2) as engine:
        found, _ = site(engine).train(rows, PLAN, weights=weights, bias=bias)
        part = slice(int(fed.sizes[:2].sum()), int(fed.sizes[:3].sum()))
        alone, _ = site(engine, 2).train(rows[2:3], PLAN, weights=weights[part], bias=bias[part])
    assert alone[0].tobytes() == found[2].tobytes()
    first = 0
    for i, size in enumerate(fed.sizes.tolist()):
        own = slice(first, first + size)
        expected = by_autograd(fed, i, weights[own], bias[own])
        np.testing.assert_allclose(found[i], expected, rtol=2e-4, atol=2e-5)
        first += size
    assert np.abs(found - rows).max() > 0.05


@KINDS
def test_weights_of_one_and_no_bias_change_nothing(kind: Any, fed: Federation) -> None:
    rows = np.repeat(row_of(module())[None], M, axis=0)
    with make_engine(kind, fed, module(), workers=1) as engine:
        plain, _ = site(engine).train(rows, PLAN)
        ones, zeros = np.ones_like(numbers(fed)), np.zeros_like(numbers(fed, C))
        same, _ = site(engine).train(rows, PLAN, weights=ones, bias=zeros)
        still, _ = site(engine).train(rows, PLAN, weights=0 * ones)
    np.testing.assert_array_equal(plain, same)
    np.testing.assert_array_equal(still, rows)


def test_one_for_each_sample(fed: Federation) -> None:
    with make_engine("native", fed, module()) as engine:
        rows = np.repeat(row_of(module())[None], M, axis=0)
        with pytest.raises(ConfigError, match="weights must have shape"):
            site(engine).train(rows, PLAN, weights=np.ones(3, np.float32))


@KINDS
def test_outputs_and_losses_of_the_samples(kind: Any, fed: Federation) -> None:
    models = np.stack([row_of(reinitialized(module(), 0, j)) for j in range(2)])
    with make_engine(kind, fed, module(), workers=1) as engine:
        x, y = site(engine).samples()
        losses = site(engine).sample_losses(models)
        outputs = site(engine).outputs(models[[0, 1, 0, 1, 0]])
        means = site(engine).losses(models)
    assert x.shape == (fed.sizes.sum(), 6)
    with torch.no_grad():
        made = [fill(module(), row)(torch.from_numpy(x)) for row in models]
    for k in range(2):
        each = cross_entropy(made[k], torch.from_numpy(y), reduction="none")
        np.testing.assert_allclose(losses[:, k], each, atol=1e-5)
    owner = np.repeat(np.arange(M), fed.sizes)
    expected = np.where((owner % 2 == 0)[:, None], made[0], made[1])
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    for i in range(M):
        np.testing.assert_allclose(losses[owner == i].mean(axis=0), means[i], atol=1e-6)


@KINDS
def test_probabilities_are_mixed_and_not_logits(kind: Any, fed: Federation) -> None:
    """Two models that are sure of different classes: the mean of logits decides otherwise."""
    models = np.stack([3 * row_of(reinitialized(module(), 0, j)) for j in range(2)])
    mixture = np.random.default_rng(2).dirichlet([1, 1], size=M)
    x = torch.from_numpy(fed.x)
    with torch.no_grad():
        made = [fill(module(), row)(x) for row in models]
    differ = 0
    with make_engine(kind, fed, module(), workers=1) as engine:
        stack = np.repeat(models[None], M, axis=0)
        found = site(engine).tally(Ensemble(stack, mixture), "test")
        added = site(engine).tally(Ensemble(stack), "test")
    for i, rows in enumerate(fed.test):
        shares = sum(p * z[rows].softmax(dim=1) for p, z in zip(mixture[i], made, strict=True))
        tables = [np.zeros((C, C)), np.zeros((C, C))]
        for table, answer in zip(tables, (shares, made[0][rows] + made[1][rows]), strict=True):
            np.add.at(table, (fed.y[rows], answer.argmax(dim=1).numpy()), 1)
        np.testing.assert_array_equal(found[i], tables[0])
        np.testing.assert_array_equal(added[i], tables[1])
        differ += not np.array_equal(tables[0], tables[1])
    assert differ


def test_every_task_mixes_predictions() -> None:
    random = np.random.default_rng(0)
    outputs, mixture = random.normal(size=(3, 7, 1)), random.dirichlet([1, 1, 1], size=7).T
    shares = (mixture[..., None] / (1 + np.exp(-outputs))).sum(axis=0)
    logits = Binary().mixed(outputs, mixture)
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), shares)
    mean = (mixture[..., None] * outputs).sum(axis=0)
    np.testing.assert_allclose(Regression().mixed(outputs, mixture), mean)
    four = random.normal(size=(3, 7, 4))
    soft = np.exp(four) / np.exp(four).sum(axis=2, keepdims=True)
    expected = (mixture[..., None] * soft).sum(axis=0)
    np.testing.assert_allclose(np.exp(Classification().mixed(four, mixture)), expected)
