"""Tokens, several arrays and sequences of unequal length reach `forward` as they were given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import wecfl
from fakegrid import WAITS, FakeGrid, Node
from helpers import serving
from wecfl import Federation, methods
from wecfl.data.packing import pack
from wecfl.endpoint import make_app
from wecfl.errors import DataError, ModelError
from wecfl.flower import client_app
from wecfl.flower.server import read, serve
from wecfl.folder.cluster_models import export_model

RNG = np.random.default_rng(0)
TOKENS = [RNG.integers(0, 20, (12, 5)) for _ in range(4)]
AGES = [RNG.normal(size=(12, 1)) for _ in range(4)]
LISTS = [[list(range(1, 2 + int(n))) for n in RNG.integers(0, 4, 12)] for _ in range(4)]
YS = [np.arange(12) % 2 for _ in range(4)]
PLAN = wecfl.Plan(lr=0.1, steps=3, batch=4)


class OfTokens(nn.Module):
    """Says what it gets, and embeds it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.int64
        logits: Tensor = self.head(self.embedding(x).mean(dim=1))
        return logits


class OfBoth(nn.Module):
    """Takes tokens and a number by name or by place."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 3), nn.Linear(4, 2)

    def forward(self, text: Tensor, age: Tensor) -> Tensor:
        assert (text.dtype, age.dtype) == (torch.int64, torch.float32)
        logits: Tensor = self.head(torch.cat([self.embedding(text).mean(dim=1), age], dim=1))
        return logits


class OfMasked(nn.Module):
    """Takes the mean over the places that are filled."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        assert (x.dtype, mask.dtype) == (torch.int64, torch.bool)
        if not torch.compiler.is_compiling():
            assert (x[~mask] == 0).all() and mask[:, 0].all()
        filled = mask[:, :, None].float()
        mean = (self.embedding(x) * filled).sum(dim=1) / filled.sum(dim=1)
        logits: Tensor = self.head(mean)
        return logits


CASES: dict[str, tuple[list[Any], type[nn.Module]]] = {
    "tokens": (TOKENS, OfTokens),
    "by name": (
        [{"text": t, "age": a} for t, a in zip(TOKENS, AGES, strict=True)], OfBoth
    ),
    "by place": ([*zip(TOKENS, AGES, strict=True)], OfBoth),
    "unequal length": (LISTS, OfMasked),
}  # fmt: skip


def called(module: nn.Module, x: Any) -> Any:
    """The outputs of the user's own module for samples as the user has them."""
    with torch.no_grad():
        if isinstance(x, dict):
            return module(**{k: torch.tensor(np.asarray(v), dtype=kind(v)) for k, v in x.items()})
        if isinstance(x, tuple):
            return module(*(torch.tensor(np.asarray(v), dtype=kind(v)) for v in x))
        if isinstance(x, list):
            longest = max(len(s) for each in LISTS for s in each)
            full = torch.tensor([[*s, *[0] * (longest - len(s))] for s in x])
            return module(full, torch.tensor([[j < len(s) for j in range(longest)] for s in x]))
        return module(torch.tensor(x))


def kind(values: Any) -> torch.dtype:
    return torch.int64 if np.asarray(values).dtype.kind == "i" else torch.float32


def rows_of(x: Any) -> list[Any]:
    """The samples as a request in JSON has them."""
    if isinstance(x, dict):
        return [{name: array[i].tolist() for name, array in x.items()} for i in range(12)]
    if isinstance(x, tuple):
        return [[array[i].tolist() for array in x] for i in range(12)]
    return x if isinstance(x, list) else x.tolist()


@pytest.mark.parametrize("case", CASES)
def test_they_are_trained_predicted_and_loaded(case: str, tmp_path: Path) -> None:
    xs, net = CASES[case]
    fed = Federation.from_arrays(xs, YS)
    result = wecfl.run(
        fed, methods.wecfl(k=2), model=net, rounds=2, plan=PLAN, folder=tmp_path,
        engine=wecfl.Compute(workers=1),
    )  # fmt: skip
    own = net()
    own.load_state_dict(result.model(client="1").state_dict())
    expected = called(own, xs[1])
    assert result.predict(xs[1], client="1").tolist() == expected.argmax(dim=1).tolist()
    shares = result.predict_proba(xs[1], client="1")
    np.testing.assert_allclose(shares, expected.softmax(dim=1), atol=1e-6)
    loaded = wecfl.load(tmp_path, model=net)
    assert (loaded.predict_proba(xs[1], client="1") == shares).all()
    assert result.assign(xs[1], YS[1]).cluster in (0, 1)
    with serving(make_app(loaded)) as ask:
        status, told = ask("/predict", {"client": "1", "rows": rows_of(xs[1])})
    assert (status, told["predictions"]) == (200, result.predict(xs[1], client="1").tolist())


def given(x: Any, taken: list[str]) -> dict[str, Any]:
    """What the exported graph is given for samples as the user has them."""
    if isinstance(x, list):
        filled = [[*s, *[0] * (4 - len(s))] for s in x]
        return {
            "x": np.array(filled),
            "mask": np.array([[j < len(s) for j in range(4)] for s in x]),
        }
    arrays = x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else [x]
    kinds = [a.astype(np.int64 if a.dtype.kind == "i" else np.float32) for a in arrays]
    return dict(zip(taken, kinds, strict=True))


@pytest.mark.parametrize("case", ["tokens", "by name", "unequal length"])
def test_the_exported_graph_takes_them_as_forward_does(case: str, tmp_path: Path) -> None:
    xs, net = CASES[case]
    run = tmp_path / "run"
    result = wecfl.run(Federation.from_arrays(xs, YS), methods.fedavg, model=net, rounds=1,
                       plan=PLAN, folder=run)  # fmt: skip
    export_model(run, 0, "onnx", tmp_path / "m.onnx", model=net)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    [logits] = session.run(["logits"], given(xs[1], [i.name for i in session.get_inputs()]))
    assert result.pipeline is not None
    answers = result.model(cluster=0)(torch.from_numpy(pack("", xs[1], result.pipeline.parts)))
    np.testing.assert_allclose(logits, answers.detach(), atol=1e-5)


@pytest.mark.parametrize("case", ["by name", "unequal length"])
def test_over_flower_they_give_the_bits_of_a_simulation(case: str, tmp_path: Path) -> None:
    xs, net = CASES[case]
    fed = Federation.from_arrays(xs, YS)

    def picked(x: Any, rows: Any) -> Any:
        if isinstance(x, dict):
            return {name: array[rows] for name, array in x.items()}
        if isinstance(x, tuple):
            return tuple(array[rows] for array in x)
        return [x[i] for i in rows] if isinstance(x, list) else x[rows]

    def load_data(config: Any) -> tuple[Any, ...]:
        i = config["partition-id"]
        train, test = fed.train[i] - 12 * i, fed.test[i] - 12 * i
        return picked(xs[i], train), YS[i][train], picked(xs[i], test), YS[i][test]

    start = net()
    app = client_app(load_data, lambda: start, classes=2)
    nodes = {
        i: Node(app, {"client-id": f"c{i}", "partition-id": i, "state-dir": f"{tmp_path}/{i}"})
        for i in range(4)
    }
    said = {"clients": 4, "rounds": 2, "steps": 3, "batch": 4, "lr": 0.1, "clusters": 2,
            "timeout": 5, "enrolment": 0.2, "out": f"{tmp_path}/run"}  # fmt: skip
    served = serve(FakeGrid(nodes), said, lambda: start, classes=2, **WAITS)
    _, config = read({"clients": 4})
    shorten = float(config.shorten_above)
    limits = wecfl.Conditions(refuse_above=config.refuse_above, shorten_above=shorten)
    here = wecfl.run(fed, methods.wecfl(k=2), model=start, rounds=2, plan=PLAN, conditions=limits)
    np.testing.assert_array_equal(served.centers, here.centers)
    shares = (served.predict_proba(xs[1], client="c1"), here.predict_proba(xs[1], client="1"))
    np.testing.assert_allclose(*shares, atol=1e-6)


def test_a_sample_that_the_model_can_not_use_is_one_line() -> None:
    fed = Federation.from_arrays(TOKENS, YS)
    result = wecfl.run(fed, methods.fedavg, model=OfTokens, rounds=1, plan=PLAN)
    with pytest.raises(ModelError, match="IndexError") as caught:
        result.predict([[99] * 5], client="1")
    assert "\n" not in str(caught.value)


def test_the_steps_are_those_of_a_plain_loop() -> None:
    fed = Federation.from_arrays(CASES["by name"][0], YS, test=0)
    plan = wecfl.Plan(lr=0.1, steps=3, batch=12, momentum=0.0)
    torch.manual_seed(0)
    net = OfBoth()
    result = wecfl.run(fed, methods.local(), model=net, rounds=1, plan=plan)
    twin = OfBoth()
    twin.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    text, age = torch.tensor(TOKENS[2]), torch.tensor(AGES[2], dtype=torch.float32)
    for _ in range(3):  # a batch is all that the client has
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(twin(text, age), torch.tensor(YS[2]))
        torch.autograd.backward(loss)
        optimizer.step()
    mine = result.model(client="2").state_dict()
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-5, atol=1e-6)


def test_whole_numbers_are_features_of_a_model_without_an_embedding() -> None:
    whole = wecfl.run(Federation.from_arrays(TOKENS, YS), methods.fedavg, model="mlp", rounds=2)
    floats = [x.astype(np.float32) for x in TOKENS]
    other = wecfl.run(Federation.from_arrays(floats, YS), methods.fedavg, model="mlp", rounds=2)
    assert (whole.centers == other.centers).all()


def test_texts_as_labels_keep_their_names() -> None:
    xs = [np.eye(2, dtype=np.float32)[y] for y in YS]
    names = [np.array(["no", "yes"])[y] for y in YS]
    result = wecfl.run(
        Federation.from_arrays(xs, names), methods.fedavg, model="logistic", rounds=20, plan=PLAN
    )
    assert result.predict(xs[0], client="0").tolist() == names[0].tolist()
    only_yes = result.assign(xs[0][1::2], ["yes"] * 6, by="losses")
    assert only_yes.accuracy == 1.0, "a newcomer without a no"


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ({"text": TOKENS[0]}, "got 1 arrays .* expected the arrays text, age"),
        ({"text": TOKENS[0], "age": AGES[0][:3]}, "3 and 12 samples"),
        ({"text": TOKENS[0][:, :3], "age": AGES[0]}, r"text has shape \(12, 3\)"),
        ({"text": TOKENS[0] + 0.5, "age": AGES[0]}, "text must hold whole numbers"),
        ({"text": TOKENS[0] * 10**8, "age": AGES[0]}, "above 16777216"),
        ({"text": TOKENS[0], "age": np.full((12, 1), "a")}, "expected numbers"),
        ([[1]], "must have the arrays text, age"),
    ],
)
def test_what_does_not_fit_is_said(x: Any, said: str) -> None:
    fed = Federation.from_arrays(CASES["by name"][0], YS)
    result = wecfl.run(fed, methods.fedavg, model=OfBoth, rounds=1)
    with pytest.raises(DataError, match=said) as caught:
        result.predict(x, client="0")
    assert "\n" not in str(caught.value)


def test_sequences_that_do_not_fit() -> None:
    fed = Federation.from_arrays(LISTS, YS)
    result = wecfl.run(fed, methods.fedavg, model=OfMasked, rounds=1)
    for x, said in (([[1] * 9], "expected 1 to 4"), ([[]], "length 0"), ([[[1]]], "shape")):
        with pytest.raises(DataError, match=said):
            result.predict(x, client="0")
    assert len(result.predict([[3, 4], [1]], client="0")) == 2


class FirstOnly(nn.Module):
    """A chain of layers, but for what is done to its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, age: Tensor, text: Tensor) -> Tensor:
        logits: Tensor = self.head(age)
        return logits


def test_the_native_engine_leaves_hooks_to_torch() -> None:
    fed = Federation.from_arrays([*zip(AGES, TOKENS, strict=True)], YS)
    assert wecfl.run(fed, methods.fedavg, model=FirstOnly, rounds=1).engine == "torch"


def test_a_model_by_name_takes_one_array() -> None:
    with pytest.raises(ModelError, match="takes one array, but samples have 2"):
        wecfl.run(Federation.from_arrays(LISTS, YS), methods.fedavg, model="mlp", rounds=1)
    with pytest.raises(DataError, match=r"same arrays .* text, age"):
        Federation.from_arrays([CASES["by name"][0][0], {"age": AGES[1]}], YS[:2])
    with pytest.raises(DataError, match="tuple of 2"):
        Federation.from_arrays([(TOKENS[0], AGES[0]), (TOKENS[1],)], YS[:2])
