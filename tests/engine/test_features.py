"""Features of models, and terms of the loss on them: torch on the CPU and on a device."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

import wecfl
from test_twins import network
from wecfl import Federation, methods
from wecfl.core.plan import FeatureTerm, LocalPlan
from wecfl.engine import DeviceEngine, LocalEngine, NativeEngine, TorchEngine
from wecfl.engine.site import LocalSite
from wecfl.errors import ConfigError, EngineError, ModelError
from wecfl.models import fill, reinitialized, row_of

SEED, M, D = 3, 5, 5
PLAN = LocalPlan(steps=9, batch=4, lr=0.1, momentum=0.8)
KINDS = pytest.mark.parametrize("kind", ["torch", "device"])


def engine_of(kind: str, fed: Federation, module: nn.Module) -> LocalEngine:
    if kind == "torch":
        return TorchEngine(fed, module, workers=2)
    return DeviceEngine(fed, module, device="cpu")


def plain() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(6, D), nn.Tanh(), nn.Linear(D, 3))
    return nn.Sequential(*reinitialized(made, seed=0, which=0).children())


def numbers(fed: Federation, *shape: int) -> Any:
    return np.random.default_rng(1).random((int(fed.sizes.sum()), *shape)).astype(np.float32)


@KINDS
@pytest.mark.parametrize("make", [plain, network])
def test_features_are_what_the_last_layer_is_given(kind: str, make: Any, fed: Federation) -> None:
    models = np.stack([row_of(reinitialized(make(), 0, j)) for j in range(M)])
    with engine_of(kind, fed, make()) as engine:
        site = LocalSite(engine, np.array([1, 3]), SEED)
        found, (x, _) = site.features(models[[1, 3]]), site.samples()
    first = int(site.sizes[0])
    with torch.no_grad():
        for i, own in ((1, slice(first)), (3, slice(first, None))):
            model: Any = fill(make(), models[i])
            np.testing.assert_allclose(found[own], model[:-1](torch.from_numpy(x[own])), atol=1e-6)


def by_autograd(fed: Federation, i: int, term: FeatureTerm, weights: Any) -> Any:
    """Client i after its steps; the term is written as in the publications."""
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8)
    own, first = fed.train[i], int(fed.sizes[:i].sum())
    for chosen in PLAN.batches(len(own), SEED, 0, int(fed.keys[i])):
        rows, at = own[chosen], first + chosen
        x, y = torch.from_numpy(fed.x[rows]), torch.from_numpy(fed.y[rows])
        points, factors = torch.tensor(term.points[at]), torch.tensor(term.factors[at])
        z: Tensor = model[:-1](x)
        far = ((z - points) ** 2).sum(dim=1)
        if term.kind == "contrast":
            along = cosine_similarity(z, points) * points.norm(dim=1)
            far = -(1 / (1 + along.exp())).log()
        each = cross_entropy(model[-1](z), y, reduction="none")
        optimizer.zero_grad()
        loss = (torch.tensor(weights[at]) * each).mean() + (factors * far).mean()
        torch.autograd.backward(loss)
        optimizer.step()
    return row_of(model)


@KINDS
@pytest.mark.parametrize("of", ["squared", "contrast"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_term_is_part_of_the_loss(kind: str, of: Any, weighted: bool, fed: Federation) -> None:
    term = FeatureTerm(of, numbers(fed, D) - 0.5, numbers(fed))
    weights = numbers(fed) if weighted else np.ones_like(numbers(fed))
    rows = np.repeat(row_of(plain())[None], M, axis=0)
    with engine_of(kind, fed, plain()) as engine:
        site = LocalSite(engine, np.arange(M), SEED)
        found, _ = site.train(rows, PLAN, term=term, weights=weights if weighted else None)
        without, _ = site.train(rows, PLAN)
        nothing = FeatureTerm(of, term.points, 0 * term.factors)
        same, _ = site.train(rows, PLAN, term=nothing)
    for i in range(M):
        expected = by_autograd(fed, i, term, weights)
        np.testing.assert_allclose(found[i], expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(same, without, atol=1e-6)
    assert np.abs(found - without).max() > 0.02


def test_what_does_not_fit(fed: Federation) -> None:
    rows = np.repeat(row_of(plain())[None], M, axis=0)
    term = FeatureTerm("squared", numbers(fed, D), numbers(fed))
    relu = nn.Sequential(nn.Linear(6, D), nn.ReLU(), nn.Linear(D, 3))
    with NativeEngine(fed, relu) as engine:
        site = LocalSite(engine, np.arange(M))
        for work in (lambda: site.features(rows), lambda: site.train(rows, PLAN, term=term)):
            with pytest.raises(EngineError, match="engine to torch"):
                work()
    with TorchEngine(fed, plain(), workers=1) as other:
        site = LocalSite(other, np.arange(M))
        short = FeatureTerm("squared", numbers(fed, 2), numbers(fed))
        with pytest.raises(ConfigError, match="points must have shape"):
            site.train(rows, PLAN, term=short)


class Twice(nn.Module):
    """Its last layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(6, D), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        made: Tensor = self.last(z) + self.last(2 * z)
        return made


@pytest.mark.parametrize("name", ["fedproto", "moon"])
def test_refusals(name: str, fed: Federation) -> None:
    method = methods.named(name)
    with pytest.raises(ConfigError, match="native") as refused:
        wecfl.run(fed, method, model=plain(), rounds=1, engine="native")
    assert "\n" not in str(refused.value)
    with pytest.raises(ModelError, match="after other layers"):
        wecfl.run(fed, method, model="logistic", rounds=1)
    with pytest.raises(EngineError, match="used once"):
        wecfl.run(fed, method, model=Twice(), rounds=1)
    assert wecfl.run(fed, method, model=plain(), rounds=1).engine == "torch"


def test_prototypes_are_not_private(fed: Federation) -> None:
    privacy = wecfl.Privacy(clip=1.0, noise=1.0)
    with pytest.raises(ConfigError, match="reply 'prototypes'"):
        wecfl.run(fed, methods.fedproto(), model=plain(), rounds=1, privacy=privacy)


def test_prototypes_need_classes(fed: Federation) -> None:
    numbers_of = Federation.from_arrays(
        [fed.x[rows] for rows in fed.train], [fed.x[rows, 0] for rows in fed.train]
    )
    with pytest.raises(ConfigError, match="task regression"):
        wecfl.run(numbers_of, methods.fedproto(), model="mlp", task="regression", rounds=1)
