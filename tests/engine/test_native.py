"""The native engine against torch, and its promises: bits, errors, threads."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import wecfl
from fuzzing import tries
from helpers import local_update, run_flat
from random_networks import (
    Case,
    Sequences,
    autograd,
    federation,
    networks,
    of_tokens,
    plain_steps,
    plain_torch,
    sequences,
    shaken,
    start,
    tied,
    tokens_of,
)
from wecfl import Correction, Federation, methods
from wecfl.bilevel import evaluation
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.engine import TorchEngine, make_engine
from wecfl.engine.native import NativeEngine, Unsupported, _native, instruction_sets
from wecfl.errors import ConfigError, EngineError
from wecfl.models import build, fill, layout_of, make, row_of

ISAS = instruction_sets()


ANY = st.one_of(networks(), sequences())


@given(ANY, st.integers(2, 40), st.integers(0, 1000), st.sampled_from(ISAS))
@tries(25)
def test_random_networks_train_like_torch_in_double_precision(
    case: Case, batch: int, seed: int, isa: str
) -> None:
    model, shape, classes = case
    fed = federation(shape, classes, [60], seed, tokens_of(model))
    plan = LocalPlan(steps=10, batch=batch, lr=0.02, momentum=0.9, weight_decay=0.01)
    steps_of_torch = plain_steps(model, fed, plan, torch.float64)
    before_ties = takewhile(lambda step: not tied(*step, by_batch=True), steps_of_torch)
    assume(steps := sum(1 for _ in before_ties))
    plan = replace(plan, steps=steps)
    exact = plain_torch(model, fed, plan, torch.float64)
    update = np.abs(exact - row_of(model)).max()

    def ours(shake: int) -> float:
        moved, clients = shaken(model, fed, shake)
        engine = NativeEngine(clients, moved, isa=isa)
        models, _ = local_update(engine, start(moved, 1), plan, Correction(), 0)
        return float(np.abs(models[0] - exact).max() / update)

    def of_torch(shake: int) -> float:
        row = plain_torch(model, fed, plan, torch.float32, shake)
        return float(np.abs(row - exact).max() / update)

    # One run of torch may be lucky: its error is the worst of three, two on inputs an ulp away.
    # At most twice that, or the rounding of a few steps where torch happens to be exact.
    if ours(0) > max(2 * max(map(of_torch, range(3))), 3e-5):
        # Errors of a badly conditioned network have long tails, and one of ours may be unlucky.
        shakes = range(21)
        assert median(map(ours, shakes)) <= 2 * median(map(of_torch, shakes))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("norm", [nn.GroupNorm(1, 1), nn.LayerNorm([1, 3, 5])])
def test_norms_round_their_means_no_more_than_torch(norm: nn.Module, isa: str) -> None:
    """They ignore what is added to all numbers, so the exact gradient of the bias before them is 0.

    What is found instead is rounding, most of all that of means of numbers that lie close together.
    """

    def fresh() -> nn.Module:
        first = nn.Conv2d(2, 1, 1, (2, 1), 1)
        return nn.Sequential(first, norm, nn.Flatten(), nn.Linear(15, 4))

    ratios = []
    for seed in range(12):
        model = make(fresh, shape=(2, 3, 3), classes=4, seed=seed)
        fed = federation((2, 3, 3), 4, [6] * 30, seed)
        rows, bias = start(model, 30).models, layout_of(model).columns("0.bias")
        found = evaluation.gradients(NativeEngine(fed, model, isa=isa), rows)[:, bias]
        of_torch = [
            autograd(model, fed.x[own], fed.y[own], torch.float32, width=6, by_batch=False)[bias]
            for own in fed.train
        ]
        ratios.append(np.median(np.abs(found)) / np.median(np.abs(of_torch)))
    assert np.mean(ratios) <= 1, ratios


@given(ANY, st.booleans(), st.integers(1, 70), st.integers(0, 1000))
@tries(15)
def test_gradients_of_random_networks_are_those_of_autograd(
    case: Case, by_batch: bool, size: int, seed: int
) -> None:
    model, shape, classes = case
    fed = federation(shape, classes, [size + 1, 40], seed, tokens_of(model))
    rows = start(model, 2).models
    whole: Any = {"width": len(fed.x), "by_batch": by_batch}
    slope = autograd(fill(model, rows[0]), fed.x, fed.y, torch.float64, **whole)
    # The mean of what a norm has normalized is 0: then a gradient is nothing but rounding.
    assume(np.abs(slope).max() > 1e-9)
    rows[1] *= 0.5
    modules = [fill(model, row) for row in rows]
    widths = [32 if by_batch else len(own) for own in fed.train]
    for module, own, width in zip(modules, fed.train, widths, strict=True):
        batches = torch.split(torch.from_numpy(fed.x[own]), width)
        assume(not any(tied(module, batch, by_batch) for batch in batches))
    engine = NativeEngine(fed, model, batchnorm="batch" if by_batch else "running", batch=32)
    found = evaluation.gradients(engine, rows)
    for own, module, width, ours in zip(fed.train, modules, widths, found, strict=True):
        x, y = fed.x[own], fed.y[own]
        how: dict[str, Any] = {"width": width, "by_batch": by_batch}
        exact = autograd(module, x, y, torch.float64, **how)
        # As in training: torch's own error where the network is badly conditioned.
        shaken = [x] if tokens_of(model) else [x, np.nextafter(x, 9), np.nextafter(x, -9)]
        single = [autograd(module, each, y, torch.float32, **how) for each in shaken]
        theirs = max(np.abs(each - exact).max() for each in single)
        assert np.abs(ours - exact).max() <= max(2 * theirs, 2e-4 * np.abs(exact).max())


def gradients_are_those_of_autograd(model: nn.Module, fed: Federation) -> None:
    """On every set of instructions, for the only client."""
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    how: Any = {"width": len(y), "by_batch": False}
    exact = autograd(model, x, y, torch.float64, **how)
    theirs = np.abs(autograd(model, x, y, torch.float32, **how) - exact).max()
    for isa in ISAS:
        engine = NativeEngine(fed, model, isa=isa)
        for _ in range(2):  # memory comes back as it was left
            (ours,) = evaluation.gradients(engine, start(model, 1).models)
            error = np.abs(ours - exact).max()
            assert error <= max(2 * theirs, 1e-6 * np.abs(exact).max()), isa


@pytest.mark.parametrize("channels", [(16, 16), (35, 18)])
@pytest.mark.parametrize(
    ("size", "pad"),
    [
        *(
            ((h, w), pad)
            for h, w in [(3, 9), (8, 8), (13, 7), (5, 70), (20, 17)]
            for pad in range(3)
        ),
        *(((h, w), pad) for h, w in [(1, 1), (1, 6), (2, 3), (7, 2)] for pad in (1, 2)),
    ],
)
def test_squares_of_pixels_at_every_edge(
    size: tuple[int, int], pad: int, channels: tuple[int, int]
) -> None:
    """Odd heights and widths, channels that fill no block, more than one band of rows."""
    model = nn.Sequential(
        nn.Conv2d(2, channels[0], 1), nn.Conv2d(*channels, 3, padding=pad), nn.Flatten(),
        nn.LazyLinear(3),
    )  # fmt: skip
    with torch.no_grad():
        model(torch.zeros(1, 2, *size))
    gradients_are_those_of_autograd(model, federation((2, *size), 3, [20]))


class Readers(nn.Module):
    """Convolutions that read one tensor, and their sum: all but the first through a norm."""

    def __init__(self, kernels: list[int], stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.paths = nn.ModuleList(nn.Conv2d(6, 6, k, stride, k // 2) for k in kernels)
        self.norms = nn.ModuleList(norm(6) for _ in kernels[1:])
        self.more = stride == 1
        if self.more:  # an addition that reads it first, and a convolution of another stride
            self.beside, self.coarse = nn.Conv2d(2, 6, 1), nn.Conv2d(6, 2, 1, 2)
            self.ends = nn.ModuleList(nn.LazyLinear(3) for _ in range(2))
        self.last = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        """Three outputs for each sample."""
        samples, x = x, torch.tanh(self.stem(x))
        before = torch.relu(x + self.beside(samples)) if self.more else None
        total = self.paths[0](x)
        coarse = self.coarse(x) if self.more else None
        for norm, path in zip(self.norms, self.paths[1:], strict=True):
            total = torch.relu(total + norm(path(x)))
        out: Tensor = self.last(torch.flatten(total, 1))
        if before is not None and coarse is not None:
            out = out + self.ends[0](torch.flatten(before, 1))
            out = out + self.ends[1](torch.flatten(coarse, 1))
        return out


@pytest.mark.parametrize("norm", [lambda c: nn.GroupNorm(3, c), nn.BatchNorm2d, nn.Identity])
@pytest.mark.parametrize("size", [(8, 8), (9, 6)])
@pytest.mark.parametrize(
    ("kernels", "stride"),
    [
        *((kernels, 2) for kernels in ([3, 1], [1, 3], [1, 1], [3, 1, 1], [1, 3, 5])),
        *((kernels, 3) for kernels in ([5, 1], [1, 1, 3])),
        *((kernels, 1) for kernels in ([1], [3, 1], [1, 3], [1, 1, 1])),
    ],
)
def test_several_convolutions_read_one_tensor(
    kernels: list[int],
    stride: int,
    size: tuple[int, int],
    norm: Callable[[int], nn.Module],
) -> None:
    """Gradients that one of them adds in its own pass, and pixels that some of them never read."""
    model = Readers(kernels, stride, norm)
    with torch.no_grad():
        model(torch.zeros(1, 2, *size))
    gradients_are_those_of_autograd(model, federation((2, *size), 3, [20]))


class UnreadWay(nn.Module):
    """Of a bidirectional GRU only the last state of the way back is read."""

    def __init__(self) -> None:
        super().__init__()
        self.both_ways = nn.GRU(4, 3, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.both_ways(x)[1][-1])
        return logits


class UnreadFunction(nn.Module):
    """A function of an image that nobody reads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.unread = nn.Tanh()
        self.head = nn.Linear(40, 3)

    def forward(self, x: Tensor) -> Tensor:
        image = self.first(x)
        self.unread(image)
        logits: Tensor = self.head(torch.flatten(self.second(image), 1))
        return logits


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("model", "shape"), [(UnreadWay, (5, 4)), (UnreadFunction, (2, 5, 4))])
def test_what_nobody_reads_has_no_gradient(
    model: type[nn.Module], shape: tuple[int, ...], isa: str
) -> None:
    """Also where others share memory, and a first batch has left its own gradients there."""
    net, fed = make(model, shape=shape, classes=3, seed=0), federation(shape, 3, [20])
    x, y = fed.x[fed.train[0]], fed.y[fed.train[0]]
    exact = autograd(net, x, y, torch.float64, width=len(y), by_batch=False)
    engine = NativeEngine(fed, net, isa=isa)
    for _ in range(2):
        (ours,) = evaluation.gradients(engine, start(net, 1).models)
        np.testing.assert_allclose(ours, exact, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn-cifar", (3, 32, 32)), ("cnn-fashion", (1, 28, 28))]
)
def test_ten_rounds_of_the_papers_networks(name: str, shape: tuple[int, ...]) -> None:
    fed = federation(shape, 10, [20, 33, 24, 40])
    fed.x[np.concatenate([*fed.train[:2], *fed.test[:2]])] *= -1  # two kinds of clients
    states = []
    for kind in ("native", "torch"):
        with make_engine(kind, fed, build(name, shape=shape, classes=10)) as engine:
            setting = Setting(methods.wecfl(2), engine, LocalPlan(steps=3, batch=8), 0)
            path = iterate(setting, opening(setting))
            states.append([next(path) for _ in range(10)][-1])
    native, reference = states
    np.testing.assert_array_equal(native.labels, reference.labels)
    moved = np.abs(reference.centers - row_of(build(name, shape=shape, classes=10))).max()
    np.testing.assert_allclose(native.centers, reference.centers, atol=1e-3 * moved)


@pytest.mark.parametrize("batchnorm", ["running", "batch"])
def test_evaluation_agrees_with_torch(batchnorm: Any) -> None:
    shape = (1, 28, 28)
    fed = federation(shape, 10, [70, 45])
    model = build("cnn-fashion", shape=shape, classes=10)
    found = []
    for kind in ("native", "torch"):
        with make_engine(kind, fed, model, batchnorm=batchnorm) as engine:
            rows = np.stack([row_of(model), row_of(model) * 0.5])
            rows[:, -48:] = np.abs(rows[:, -48:]) + 0.1  # variances
            each = evaluation.losses(engine, rows, batches=1, seed=3, round=2)
            asked = evaluation.losses(engine, rows, batches=1, seed=3, round=2, who=np.array([1]))
            assert asked.tobytes() == each[1:].tobytes()
            slopes = [
                evaluation.gradients(engine, rows),
                evaluation.gradients(engine, rows, batches=1, seed=3, round=2),
            ]
            found.append(
                (
                    evaluation.risk(engine, rows),
                    each,
                    evaluation.tallies(engine, rows, "test"),
                    *slopes,
                )
            )
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())


def test_corrections_and_memory_agree_with_torch() -> None:
    fed = federation((6,), 3, [20, 30, 25])
    model = build("mlp", shape=(6,), classes=3)
    layout, rng = layout_of(model), np.random.default_rng(1)
    begin = start(model, 3)
    noise = rng.normal(size=begin.models.shape).astype(np.float32)
    correction = Correction(
        mu=rng.uniform(0, 1, layout.trainable).astype(np.float32), anchor=noise, offset=0.01 * noise
    )
    rates = np.array([0.01, 0.02, 0.03], np.float32)
    for plan in (
        LocalPlan(5, 8, rates),
        LocalPlan(5, 8, 0.01, keep_momentum=False),
        LocalPlan(5, 8, 0.01, 0.0),
    ):
        found = []
        for kind in ("native", "torch"):
            with make_engine(kind, fed, model) as engine:
                models, memory = local_update(engine, begin, plan, correction, 0)
                again = begin.replace(replies={"model": models}, memory=memory, round=1)
                found.append(local_update(engine, again, plan, correction, 0))
        (ours, memory), (theirs, reference) = found
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
        assert memory.keys() == reference.keys()
        for key in memory:
            np.testing.assert_allclose(memory[key], reference[key], atol=1e-4)


@pytest.mark.parametrize("kind", ["native", "torch"])
def test_only_active_clients_train(kind: Any) -> None:
    fed = federation((6,), 3, [20, 30, 25, 22])
    model = build("mlp", shape=(6,), classes=3)
    begin, plan = start(model, 4), LocalPlan(steps=3, batch=8)
    with make_engine(kind, fed, model) as engine:
        everyone, memory = local_update(engine, begin, plan, Correction(), 0)
        some, kept = local_update(engine, begin, plan, Correction(), 0, active=[3, 1])
        nobody, _ = local_update(engine, begin, plan, Correction(), 0, active=[])
        with pytest.raises(ConfigError, match="0 to 3"):
            local_update(engine, begin, plan, Correction(), 0, active=[4])
    for whole, part, before in (
        (everyone, some, begin.models),
        (memory["momentum"], kept["momentum"], np.zeros_like(kept["momentum"])),
    ):
        assert part[[1, 3]].tobytes() == whole[[1, 3]].tobytes()
        assert part[[0, 2]].tobytes() == before[[0, 2]].tobytes()
    assert nobody.tobytes() == begin.models.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_same_bits_for_any_number_of_threads_and_any_order(isa: str) -> None:
    shape = (2, 9, 9)
    fed = federation(shape, 4, [11, 30, 17, 25, 12, 19, 40])
    model = nn.Sequential(
        nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(0.3), nn.Linear(45, 4),
    )  # fmt: skip
    begin, plan = start(model, 7), LocalPlan(steps=6, batch=7, lr=0.05)
    results = [
        local_update(NativeEngine(fed, model, workers=n, isa=isa), begin, plan, Correction(), 3)[0]
        for n in (1, 2, 4)
    ]
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
    order = np.array([3, 6, 0, 5, 2, 4, 1])
    turned = NativeEngine(fed.subset(order), model, workers=2, isa=isa)
    assert (
        local_update(turned, begin, plan, Correction(), 3)[0].tobytes()
        == results[0][order].tobytes()
    )
    other = local_update(NativeEngine(fed, model, isa=isa), begin, plan, Correction(), 4)[0]
    assert other.tobytes() != results[0].tobytes()


def test_dropout_keeps_the_mean_and_follows_its_key() -> None:
    fed = federation((50,), 2, [200])
    model = nn.Sequential(nn.Dropout(0.4), nn.Linear(50, 2))
    engine = NativeEngine(fed, model)
    plan = LocalPlan(steps=200, batch=32, lr=0.01, momentum=0.0)
    dropped, _ = local_update(engine, start(model, 1), plan, Correction(), 0)
    still = nn.Sequential(nn.Dropout(0.0), nn.Linear(50, 2))
    still.load_state_dict(model.state_dict())
    full, _ = local_update(NativeEngine(fed, still), start(model, 1), plan, Correction(), 0)
    assert dropped.tobytes() != full.tobytes()
    np.testing.assert_allclose(dropped, full, atol=0.15)
    again, _ = local_update(engine, start(model, 1), plan, Correction(), 0)
    assert again.tobytes() == dropped.tobytes()


class Functional(nn.Module):
    """What people write instead of nn.Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.out = nn.Linear(4 * 9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv(x)), 2)
        out: Tensor = self.out(x.view(x.size(0), -1))
        return out


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flatten(x, 1)
        out: Tensor = self.b(x * self.a(x))
        return out


class Shifted(Product):
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(torch.flatten(x, 1)) + 1)
        return out


class TwoOutputs(Product):
    def forward(self, x: Tensor) -> Any:
        x = torch.flatten(x, 1)
        return self.b(x), self.a(x)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.b(self.a(self.a(torch.flatten(x, 1))))
        return out


def test_a_traced_module_is_recognised() -> None:
    fed = federation((1, 8, 8), 3, [20])
    with make_engine("auto", fed, Functional()) as engine:
        assert engine.name.startswith("native-")


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Product(), "call of mul"),
        (Shifted(), "a value that is not a tensor: 1"),
        (Twice(), "'a' is used twice"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Softplus(), nn.Linear(3, 3)),
            "'2' \\(Softplus\\)",
        ),
        (
            nn.Sequential(
                nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"),
                nn.Flatten(),
                nn.Linear(128, 3),
            ),
            "padding other than zeros",
        ),
        (
            nn.Sequential(
                nn.InstanceNorm2d(1, track_running_stats=True), *[nn.Flatten()], nn.Linear(64, 3)
            ),
            "running statistics",
        ),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3)), "BatchNorm1d"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_the_kernels_do_not_know_runs_on_torch_with_one_line(
    model: nn.Module, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    fed = federation((1, 8, 8), 3, [20])
    with pytest.raises(Unsupported, match=reason):
        NativeEngine(fed, model)
    with pytest.raises(EngineError, match="engine to torch"):
        make_engine("native", fed, model)
    with make_engine("auto", fed, model, workers=1) as engine:
        assert engine.name == "torch"
    assert len(caplog.records) == 1
    assert "\n" not in caplog.text.strip()


def stack(*layers: nn.Module, shape: tuple[int, ...] = (1, 8, 8)) -> nn.Sequential:
    """These layers, and behind them a linear one that fits and gives three logits."""
    with torch.no_grad():
        outputs = nn.Sequential(*layers, nn.Flatten()).eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(outputs, 3))


WIDE = (1, 20, 20)
END = [nn.Flatten(), nn.Linear(1, 3)]  # behind a layer that breaks a rule before it


@pytest.mark.parametrize(
    ("runs", "breaks", "shape", "rule"),
    [
        (nn.Conv2d(1, 2, 3, 64), nn.Conv2d(1, 2, 3, 65), (1, 8, 8), "stride of 65"),
        (nn.Conv2d(1, 2, 3, (1, 2)), nn.Conv2d(1, 2, 3, (1, 65)), (1, 8, 9), "stride of 1 × 65"),
        (nn.MaxPool2d(15), nn.MaxPool2d((15, 16)), WIDE, "kernel of 15 × 16"),
        (nn.AvgPool2d(3), nn.AvgPool2d(3, divisor_override=2), WIDE, "divides"),
        (nn.LayerNorm((2, 9, 8)), nn.LayerNorm((9, 8)), (2, 9, 8), "normalizes 72"),
        (nn.Dropout(0.9), nn.Dropout(1.0), WIDE, "below 1"),
    ],
)
def test_rules_of_single_layers(
    runs: nn.Module, breaks: nn.Module, shape: tuple[int, ...], rule: str
) -> None:
    """The last number that the kernels run, and the first that they don't; the layer is named."""
    fed = federation(shape, 3, [20])
    assert NativeEngine(fed, stack(nn.ReLU(), runs, shape=shape)).name.startswith("native-")
    with pytest.raises(Unsupported, match=rf"'1' \({type(breaks).__name__}\).*{rule}") as caught:
        NativeEngine(fed, stack(nn.ReLU(), breaks, shape=shape))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "shape", "rule"),
    [
        ([nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(72, 3)], (1, 8, 8), "'0'.* 3 .* 1"),
        ([nn.Conv2d(1, 2, 7), nn.MaxPool2d(3), *END], (1, 8, 8), "'1'.*larger.*2 × 2"),
        ([nn.MaxPool2d(3, 1, 2), *END], (1, 8, 8), "'0'.*padding of 2"),
        ([nn.MaxPool2d(2, 0), *END], (1, 8, 8), "'0'.*stride of 0"),
        ([nn.MaxPool2d(2**40), *END], (1, 8, 8), "'0'.*kernel"),
        ([nn.Flatten(), nn.ReLU(), nn.MaxPool2d(2), *END], (1, 8, 8), "'2'.*flat"),
        ([nn.Conv2d(1, 2, 3), *END], (8, 8), "'0'.*images"),
        ([nn.BatchNorm2d(2), *END], (1, 8, 8), "'0'.* 2 .* 1"),
        ([nn.Linear(8, 3)], (1, 8, 8), "'0'.*flat"),
        ([nn.Flatten(), nn.Linear(63, 3)], (1, 8, 8), "'1'.* 63 .* 64"),
        ([nn.Flatten(), nn.Linear(64, 4)], (1, 8, 8), "last layer.*3"),
        ([nn.Flatten(), nn.Linear(64, 3)], (1, 2, 4, 8), "4 dim"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rules_of_layers_after_one_another(
    layers: list[nn.Module], shape: tuple[int, ...], rule: str
) -> None:
    with pytest.raises(Unsupported, match=rule) as caught:
        NativeEngine(federation(shape, 3, [20]), nn.Sequential(*layers))
    assert "\n" not in str(caught.value)


class Fickle(nn.Module):
    """Another function in evaluation than in training: a trace sees only one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(torch.flatten(x, 1))
        return out if self.training else torch.relu(out - 1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c(self.b(self.a(torch.flatten(x, 1))))
        return out


@pytest.mark.parametrize("model", [Fickle(), Fickle().eval(), Tied()])
def test_what_a_trace_can_not_tell_is_left_to_torch(model: nn.Module) -> None:
    fed = federation((1, 8, 8), 3, [20])
    NativeEngine(fed, nn.Sequential(nn.Flatten(), nn.Linear(64, 3)))  # the layers of one trace
    with pytest.raises(Unsupported, match=r"self-check|share|sub"):
        NativeEngine(fed, model)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(144, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(63, 3)),
    ],
    ids=["channels", "features", "inputs"],
)
def test_a_model_that_does_not_fit_is_one_clear_error(model: nn.Module) -> None:
    fed = federation((1, 8, 8), 3, [20])
    with pytest.raises(wecfl.errors.ModelError, match=r"\(1, 8, 8\)"):
        make_engine("auto", fed, model, workers=1)


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize(
    ("correction", "said"),
    [
        (Correction(mu=np.zeros(3, np.float32)), "mu.*15"),
        (Correction(anchor=np.zeros((2, 14), np.float32)), "anchor.*14"),
        (Correction(offset=np.zeros((2, 3), np.float32)), "offset.*3"),
    ],
)
def test_wrong_corrections_are_said_alike(kind: Any, correction: Correction, said: str) -> None:
    fed = federation((4,), 3, [20, 20])
    with make_engine(kind, fed, nn.Linear(4, 3), workers=1) as engine:
        with pytest.raises(wecfl.errors.ConfigError, match=said):
            local_update(engine, start(nn.Linear(4, 3), 2), LocalPlan(), correction, 0)
        double: Any = np.zeros((2, 15))  # is converted
        wide = Correction(anchor=double, mu=1.0)
        assert np.isfinite(
            local_update(engine, start(nn.Linear(4, 3), 2), LocalPlan(), wide, 0)[0]
        ).all()


def test_the_self_check_finds_what_the_kernels_compute_otherwise() -> None:
    """A hook changes what the module computes, and a trace does not see it.

    That the same layers have passed the self-check without it changes nothing.
    """
    fed = federation((1, 8, 8), 3, [20])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    NativeEngine(fed, model)
    model[1].register_forward_hook(lambda _module, _inputs, output: 1.1 * output)
    with pytest.raises(Unsupported, match="self-check"):
        NativeEngine(fed, model)


@pytest.mark.parametrize("seed", [4, 200, 231, 606])
def test_a_network_on_whose_relu_rounding_decides_is_not_refused(seed: int) -> None:
    """With these weights an input of ReLU was zero up to rounding, and the kernels were refused."""
    torch.manual_seed(seed)
    blocks: list[nn.Module] = []
    for inputs in (3, 32, 32, 32):
        conv = nn.Conv2d(inputs, 32, 3, padding=1, bias=False)
        blocks += [conv, nn.GroupNorm(4, 32), nn.ReLU()]
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    for isa in ISAS:
        NativeEngine(federation((3, 16, 16), 10, [20]), model, isa=isa)


def test_a_network_with_a_small_gradient_is_not_refused() -> None:
    """One token, which is not learned: what is left of the gradient beside balanced classes."""
    torch.manual_seed(1)
    layers = [
        nn.Embedding(1, 1, padding_idx=0),
        nn.GRU(1, 18, 2, batch_first=True, bidirectional=True),
    ]
    model = of_tokens(Sequences(layers, "state", 18, 2), 5)
    NativeEngine(federation((5,), 2, [20], 0, 1), model)


def test_missing_extension_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wecfl.engine.native._native", None)
    fed = federation((4,), 3, [20])
    with pytest.raises(Unsupported, match="compiler"):
        NativeEngine(fed, nn.Linear(4, 3))


def test_a_model_that_diverged_is_not_finite() -> None:
    fed = federation((4,), 3, [20, 20])
    engine = NativeEngine(fed, nn.Linear(4, 3))
    models, _ = local_update(engine, start(nn.Linear(4, 3), 2), LocalPlan(lr=1e39), Correction(), 0)
    assert not np.isfinite(models).all(axis=1).any()


def test_clients_that_take_fewer_steps() -> None:
    """As if the plan had been for fewer: in round 0, the first of the same batches."""
    fed = federation((2, 6, 6), 3, [20, 20, 9])
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    state, plan = start(model, 3), LocalPlan(steps=4, batch=8, lr=0.05)
    done = np.array([1, 4, 2])
    with TorchEngine(fed, model, workers=1) as slow:
        for engine in (NativeEngine(fed, model), slow):
            few, kept = local_update(engine, state, replace(plan, done=done), Correction(), 7)
            for i, count in enumerate(done):
                short = replace(plan, steps=int(count))
                alone, memory = local_update(engine, state, short, Correction(), 7)
                np.testing.assert_array_equal(few[i], alone[i])
                np.testing.assert_array_equal(kept["momentum"][i], memory["momentum"][i])
            none, _ = local_update(
                engine, state, replace(plan, done=np.array([0, 1, 0])), Correction(), 7
            )
            assert (none != state.models).any(axis=1).tolist() == [False, True, False]
            with pytest.raises(ConfigError, match=r"0 to 4 .*5"):
                local_update(
                    engine, state, replace(plan, done=np.array([1, 5, 2])), Correction(), 7
                )


class TestRunner:
    """The extension itself: whatever comes, a Python exception and never a crash."""

    good: dict[str, Any]

    def setup_method(self) -> None:
        self.runner = _native.Runner(
            [_native.Layer("linear", outputs=3, weight=0, bias=12)], [4], 3, 15, 15
        )
        self.good = {
            "rows": np.zeros((2, 15), np.float32),
            "buffers": np.zeros((2, 15), np.float32),
            "anchor": None,
            "offset": None,
            "mu": None,
            "free": None,
            "lr": np.zeros(2, np.float32),
            "optimizer": _native.Optimizer("sgd", [12, 15], momentum=0.9),
            "x": np.zeros((6, 4), np.float32),
            "y": np.array([0, 1, 2, 0, 1, 2]),
            "clients": np.arange(2),
            "index": np.arange(6),
            "offsets": np.array([[0, 3], [3, 6]]),
            "keys": np.zeros(2, np.uint64),
            "threads": 2,
        }

    def test_good_arguments(self) -> None:
        self.runner.train(*self.good.values())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("rows", np.zeros((2, 14), np.float32)),
            ("rows", np.zeros((2, 15))),
            ("rows", np.zeros((15, 2), np.float32).T),
            ("rows", np.zeros(15, np.float32)),
            ("rows", None),
            ("buffers", np.zeros((2, 14), np.float32)),
            ("buffers", np.zeros((1, 15), np.float32)),
            ("optimizer", "adam"),
            ("optimizer", _native.Optimizer("adam", [12, 15])),
            ("optimizer", _native.Optimizer("sgd", [12, 14])),
            ("optimizer", _native.Optimizer("sgd", [16, 15])),
            ("anchor", np.zeros((2, 14), np.float32)),
            ("offset", np.zeros((3, 15), np.float32)),
            ("mu", np.zeros(14, np.float32)),
            ("free", np.ones(14, np.bool_)),
            ("free", np.ones(15, np.float32)),
            ("lr", np.zeros(3, np.float32)),
            ("x", np.zeros((6, 5), np.float32)),
            ("x", np.zeros((6, 4))),
            ("y", np.array([0, 1, 3, 0, 1, 2])),
            ("y", np.array([0, -1, 2, 0, 1, 2])),
            ("y", np.array([0, 1, 2])),
            ("y", np.zeros(6)),
            ("clients", np.array([0, 0])),
            ("clients", np.array([1, 0])),
            ("clients", np.array([0, 2])),
            ("clients", np.array([-1, 1])),
            ("clients", np.array([0])),
            ("index", np.array([0, 1, 2, 3, 4, 6])),
            ("index", np.array([0, 1, 2, 3, 4, -1])),
            ("offsets", np.array([[0, 3], [3, 7]])),
            ("offsets", np.array([[0, 0], [3, 6]])),
            ("offsets", np.array([[3, 0], [3, 6]])),
            ("offsets", np.array([[-1, 3], [3, 6]])),
            ("offsets", np.zeros((2, 0), np.int64)),
            ("keys", np.zeros(1, np.uint64)),
            ("threads", 0),
            ("threads", -1),
        ],
    )
    def test_bad_arguments(self, name: str, value: Any) -> None:
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            self.runner.train(*{**self.good, name: value}.values())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("rows", np.zeros((2, 14), np.float32)),
            ("which", np.array([0, 2])),
            ("which", np.array([0, -1])),
            ("which", np.zeros(0, np.int64)),
            ("x", np.zeros((6, 5), np.float32)),
            ("y", np.array([0, 1, 3, 0, 1, 2])),
            ("index", np.array([0, 1, 2, 3, 4, 6])),
            ("offsets", np.array([0, 4, 3])),
            ("offsets", np.array([0, 3, 7])),
            ("offsets", np.array([-1, 3, 6])),
            ("out", np.zeros((2, 14), np.float32)),
            ("out", np.zeros((2, 15))),
            ("mode", "train"),
            ("batch", 0),
            ("threads", 0),
        ],
    )
    def test_bad_arguments_of_gradients(self, name: str, value: Any) -> None:
        good = {
            "rows": np.zeros((2, 15), np.float32),
            "which": np.arange(2),
            "x": self.good["x"],
            "y": self.good["y"],
            "index": np.arange(6),
            "offsets": np.array([0, 3, 6]),
            "out": np.ones((2, 15), np.float32),
            "mode": "running",
            "batch": 4,
            "threads": 2,
        }
        self.runner.gradients(*good.values())
        assert (good["out"] != 1).all()
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            self.runner.gradients(*{**good, name: value}.values())

    @pytest.mark.parametrize(
        ("layers", "shape", "rule"),
        [
            ([], [4], "last layer"),
            ([_native.Layer("relu")], [4], "last layer"),
            ([_native.Layer("what")], [4], "what"),
            ([_native.Layer("linear", outputs=3, weight=8, bias=12)], [4], "weight"),
            ([_native.Layer("linear", outputs=3, weight=0, bias=13)], [4], "bias"),
            ([_native.Layer("linear", outputs=3, weight=-1)], [4], "weight"),
            ([_native.Layer("linear", outputs=2, weight=0)], [4], "last layer"),
            ([_native.Layer("linear", outputs=-3, weight=0)], [4], "output"),
            ([_native.Layer("linear", outputs=3, weight=0)], [4, 1, 1], "flat"),
            ([_native.Layer("conv", kernel=(3, 3), outputs=3, weight=0)], [4, 3, 3], "weight"),
            ([_native.Layer("conv", kernel=(3, 3), outputs=1, weight=0)], [1, 1, 1], "larger"),
            (
                [_native.Layer("conv", kernel=(0, 1), outputs=3, weight=0)],
                [4, 1, 1],
                "kernel of 0 × 1",
            ),
            ([_native.Layer("conv", kernel=(1, 1), outputs=0, weight=0)], [4, 1, 1], "output"),
            ([_native.Layer("max_pool", kernel=(0, 0))], [4, 1, 1], "kernel of 0"),
            ([_native.Layer("max_pool", kernel=(1, 1), stride=(0, 0))], [4, 1, 1], "stride of 0"),
            ([_native.Layer("max_pool", kernel=(1, 1), pad=(-1, -1))], [4, 1, 1], "padding of -1"),
            ([_native.Layer("dropout", rate=1.0)], [4], "share"),
            ([_native.Layer("relu", reads=[1])], [4], "not there yet"),
            ([_native.Layer("relu", reads=[-1])], [4], "not there yet"),
            ([_native.Layer("relu", reads=[0, 0])], [4], "more than one"),
            ([_native.Layer("add", reads=[0])], [4], "two inputs"),
            (
                [_native.Layer("flatten"), _native.Layer("add", reads=[0, 1])],
                [2, 2],
                "different shapes",
            ),
            ([_native.Layer("concat", reads=[0, 0], number=1)], [2, 2], "neither"),
            ([_native.Layer("attention", groups=2)], [2, 9], "2 heads"),
            ([_native.Layer("attention")], [513, 3], "513 steps"),
            ([_native.Layer("group_norm", groups=3)], [4, 2, 2], "3 groups"),
            ([_native.Layer("group_norm", groups=4)], [4, 1, 1], "one value"),
            ([_native.Layer("group_norm", weight=12)], [4, 2, 2], "weight"),
            ([_native.Layer("layer_norm", inputs=4, bias=12)], [4], "bias"),
            (
                [_native.Layer("conv", kernel=(1, 1), outputs=3, groups=2, weight=0)],
                [4, 1, 1],
                "2 groups",
            ),
            ([_native.Layer("adaptive_pool", kernel=(0, 1))], [4, 1, 1], "size of 0"),
            ([_native.Layer("embedding", inputs=9, outputs=2, weight=0)], [4], "weight"),
            ([_native.Layer("embedding", inputs=0, outputs=2, weight=0)], [4], "0 rows"),
            ([_native.Layer("embedding", inputs=2, outputs=2, weight=0)], [4, 1], "tokens"),
            (
                [
                    _native.Layer("relu"),
                    _native.Layer("embedding", inputs=5, outputs=3, weight=0),
                    _native.Layer("time_mean"),
                ],
                [4],
                "than the samples",
            ),
            ([_native.Layer("gru", outputs=1, weight=0, inner_weight=6)], [4], "flat"),
            ([_native.Layer("gru", outputs=1, weight=0, inner_weight=13)], [4, 4], "inner weight"),
            (
                [_native.Layer("lstm", outputs=1, weight=0, inner_weight=8, inner_bias=12)],
                [4, 2],
                "inner bias",
            ),
            ([_native.Layer("step", number=4)], [4, 2], "step 4"),
            ([_native.Layer("time_mean")], [4], "flat"),
            ([_native.Layer("norm", mean=99, variance=0)], [4, 1, 1], "mean"),
            ([_native.Layer("norm", mean=0, variance=12)], [4, 1, 1], "variance"),
            ([], [], "0 dim"),
            ([], [4, 0], "at least one"),
            ([], [2**16, 2**16], "too large"),
        ],
    )
    def test_bad_networks(self, layers: list[Any], shape: list[int], rule: str) -> None:
        with pytest.raises(ValueError, match=rule):
            _native.Runner(layers, shape, 3, 15, 15)

    def test_nan_stays_nan(self) -> None:
        self.good["x"][0] = np.nan
        self.good["lr"][:] = 0.1
        self.runner.train(*self.good.values())
        assert np.isnan(self.good["rows"][0]).any()
        assert np.isfinite(self.good["rows"][1]).all()

    def test_unknown_instruction_set(self) -> None:
        with pytest.raises(ValueError, match="mmx"):
            _native.Runner([_native.Layer("linear", outputs=1, weight=0)], [1], 1, 1, 1, "mmx")


def test_ctrl_c_stops_the_threads_at_once() -> None:
    code = """
import numpy as np, wecfl
from wecfl.models import build, row_of
x = np.zeros((64, 1, 28, 28), np.float32); y = np.arange(64) % 10
fed = wecfl.Federation.from_arrays([x] * 4, [y] * 4)
model = build("cnn-fashion", shape=(1, 28, 28), classes=10)
engine = wecfl.NativeEngine(fed, model)
rows = np.repeat(row_of(model)[None], 4, axis=0)
state = wecfl.State(0, {"model": rows}, rows[:1], np.zeros(4, np.int64))
print("go", flush=True)
try:
    from wecfl.engine.site import LocalSite
    LocalSite(engine, np.arange(4)).train(rows, wecfl.core.plan.LocalPlan(steps=100_000))
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "go\n"
        time.sleep(0.2)
        os.kill(child.pid, signal.SIGINT)
        began = time.monotonic()
        assert child.stdout.readline() == "stopped\n"
        assert (
            time.monotonic() - began < 30
        )  # a promise of one second, on a machine that may be busy
    assert child.returncode == 0


def test_run_uses_it_by_default_and_says_so() -> None:
    fed = federation((4,), 3, [20, 20])
    result = run_flat(fed, methods.fedavg, model="logistic", rounds=1, engine="auto")
    assert result.records[0]["round"] == 1
