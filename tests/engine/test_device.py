"""Stacked clients on one device against the loop of the torch engine, to rounding.

There is rarely a GPU where the tests run. So the stacked path is compared on the CPU, what moves
between devices on torch's lazy device, which refuses tensors of another, and `cuda` where it is.
"""

import logging
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import wecfl
from wecfl import Federation, Method, State, TorchEngine, make_engine, methods
from wecfl.bilevel.local import (
    ClusterLosses,
    Ditto,
    Gradients,
    Parts,
    Risk,
    Score,
    Train,
)
from wecfl.bilevel.serving import Tuned
from wecfl.core.plan import LocalPlan
from wecfl.core.program import Job, Program, Sent
from wecfl.core.types import Table
from wecfl.engine import DeviceEngine, LocalEngine
from wecfl.engine.site import LocalSite
from wecfl.errors import ConfigError, EngineError, ModelError
from wecfl.models import row_of
from wecfl.models.rows import keyed
from wecfl.tasks import Binary, Classification, MultiLabel, Regression

SEED, M = 3, 5
PLAN = LocalPlan(steps=4, batch=4, lr=0.05)
PLANS = {
    "sgd": replace(PLAN, momentum=0.0),
    "momentum": replace(PLAN, weight_decay=0.1),
    "nesterov": replace(PLAN, optimizer="nesterov"),
    "adam": replace(PLAN, optimizer="adam", weight_decay=0.1),
    "adamw": replace(PLAN, optimizer="adamw", weight_decay=0.2, adam_beta2=0.9),
    "clipped": replace(PLAN, max_gradient=0.3),
    "forgets": replace(PLAN, keep_momentum=False),
    "epochs": replace(PLAN, epochs=1, batch=5),
    "unequal": replace(
        PLAN, lr=np.linspace(0.01, 0.1, M, dtype=np.float32), done=np.array([4, 0, 2, 4, 1])
    ),
    "large-batches": replace(PLAN, batch=12),
}
PROGRAMS: list[Program] = [
    Train(), Train(0.5), Ditto(0.7), Parts("classifier", 2), ClusterLosses(),
    ClusterLosses(1), Risk(), Gradients(), Score(), Score(Tuned(3)),
]  # fmt: skip
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ],
)
DEVICES = ["cpu", CUDA]


class Shortcut(nn.Module):
    """A residual connection, GroupNorm, a buffer, and a parameter that is frozen."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))
        self.shift = nn.Parameter(torch.tensor(0.1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = torch.relu(h + self.norm(self.second(h)))
        out: Tensor = self.head(h.mean(dim=(2, 3))) * self.scale + self.shift
        return out


def mlp(*extra: nn.Module, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), *extra, nn.Linear(5, outputs))


def cnn(momentum: float | None = 0.1) -> nn.Module:
    # A bias before BatchNorm has no gradient but rounding, which Adam would make large.
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3, momentum=momentum), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3),
    )  # fmt: skip


def made(module: Callable[[], nn.Module]) -> nn.Module:
    with keyed(SEED):
        return module()


def rows_of(module: nn.Module) -> Any:
    noise = np.random.default_rng(1).normal(size=(M, len(row_of(module))))
    return row_of(module) + 0.1 * np.abs(noise).astype(np.float32)  # variances stay positive


def asked(engine: LocalEngine, program: Program, plan: LocalPlan, model: nn.Module) -> list[Any]:
    """Two exchanges: all that is replied and kept."""
    memory: Table = {}
    rows, found, everyone = rows_of(model), [], np.arange(M)
    keep = "model" in program.replies
    for round in range(2):
        common = {"models": rows[:3]}
        job = Job(program, plan, SEED, round, round, "all", keep)
        answers = engine.ask(job, Sent({"model": rows.copy()}, common), everyone, memory)
        memory = dict(answers.memory)
        found += [answers.rows[name] for name in sorted(answers.rows)]
        found += [memory[name] for name in sorted(memory)]
        rows = answers.rows.get("model", rows)
    return found


def close(ours: list[Any], theirs: list[Any], rtol: float = 2e-4, atol: float = 1e-5) -> None:
    assert len(ours) == len(theirs)
    for one, two in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, two, rtol=rtol, atol=atol)


def compared(
    fed: Federation,
    model: nn.Module,
    program: Program,
    plan: LocalPlan,
    device: str,
    **options: Any,
) -> DeviceEngine:
    with TorchEngine(fed, model, workers=1, **options) as loop:
        theirs = asked(loop, program, plan, model)
    with DeviceEngine(fed, model, device=device, **options) as engine:
        close(asked(engine, program, plan, model), theirs)
    return engine


def runs(fed: Federation, method: Method, device: str) -> list[wecfl.Result]:
    """The same run by the loop and on the device."""
    model, plan = made(mlp), wecfl.Plan(steps=4, batch=4, lr=0.1)
    with (
        TorchEngine(fed, model, workers=1) as loop,
        DeviceEngine(fed, model, device=device) as ours,
    ):
        return [
            wecfl.run(fed, method, model=model, rounds=3, plan=plan, engine=engine)
            for engine in (loop, ours)
        ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PLANS)
def test_steps_are_those_of_the_loop(name: str, device: str, images: Federation) -> None:
    for module in (cnn, Shortcut):
        assert compared(images, made(module), Train(0.3), PLANS[name], device).stacked


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("program", PROGRAMS, ids=repr)
def test_programs_answer_as_in_the_loop(
    program: Program, device: str, fed: Federation, images: Federation
) -> None:
    assert compared(fed, made(mlp), program, PLAN, device).stacked
    assert compared(images, made(cnn), program, PLAN, device, batchnorm="batch").stacked


@pytest.mark.parametrize("device", DEVICES)
def test_an_offset_is_added_to_each_gradient(device: str, fed: Federation) -> None:
    results = runs(fed, methods.scaffold(), device)
    close([results[1].centers], [results[0].centers])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "task",
    [
        Classification(weights=(0.5, 1.0, 2.0), smoothing=0.1), Classification(gamma=2.0),
        Classification(ignore=2), Binary(weight=3.0), MultiLabel(), Regression(),
        Regression("mae"), Regression("huber"), Regression("quantile", quantile=0.9),
    ],
    ids=repr,
)  # fmt: skip
def test_every_loss_can_be_stacked(task: Any, device: str, fed: Federation) -> None:
    held, outputs = fed, 3
    if isinstance(task, Classification) and task.ignore is not None:
        outputs = 2
    elif isinstance(task, Binary):
        held, outputs = replace(fed, y=(fed.y % 2).astype(np.int64)), 1
    elif isinstance(task, MultiLabel):
        held = replace(fed, y=np.eye(3, dtype=np.float32)[fed.y])
    elif isinstance(task, Regression):
        held, outputs = replace(fed, y=fed.x[:, 0].copy()), 1
    model = made(lambda: mlp(outputs=outputs))
    assert compared(held, model, Train(), PLAN, device, task=task).stacked


@pytest.mark.parametrize("device", DEVICES)
def test_samples_have_weights_and_biases(device: str, fed: Federation) -> None:
    model, total = made(mlp), int(fed.sizes.sum())
    draw = np.random.default_rng(2)
    weights = draw.random(total).astype(np.float32)
    bias = draw.normal(size=(total, 3)).astype(np.float32)
    found = []
    with (
        TorchEngine(fed, model, workers=1) as loop,
        DeviceEngine(fed, model, device=device) as ours,
    ):
        for engine in (loop, ours):
            site = LocalSite(engine, np.arange(M), SEED)
            found.append(site.train(rows_of(model), PLAN, weights=weights, bias=bias)[0])
    close([found[1]], [found[0]])


def test_any_number_of_clients_at_once(fed: Federation) -> None:
    model = made(mlp)
    found = []
    for workers in (1, 2, 5):
        with DeviceEngine(fed, model, device="cpu", workers=workers) as engine:
            found.append(asked(engine, Train(), PLAN, model))
    close(found[1], found[0])
    close(found[2], found[0])


def test_dropout_runs_client_by_client(fed: Federation, caplog: pytest.LogCaptureFixture) -> None:
    model = made(lambda: mlp(nn.Dropout(0.5)))
    before = torch.get_rng_state()
    with caplog.at_level(logging.WARNING, "wecfl"):
        engine = compared(fed, model, Train(), PLAN, "cpu")
    assert not engine.stacked
    assert torch.equal(torch.get_rng_state(), before)
    assert "one client at a time on cpu" in caplog.text and "random" in caplog.text


class Choosy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Shy(nn.Module):
    """Keeps the mean of what it saw, in a way that stacking does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        out: Tensor = self.last(x) * (1 + self.seen % 2)
        return out


@pytest.mark.parametrize("module", [lambda: Choosy(6, 3), Shy])
def test_what_cannot_be_stacked_is_said(
    module: Any, fed: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "wecfl"):
        engine = DeviceEngine(fed, made(module), device="cpu")
    assert not engine.stacked
    assert len(caplog.records) == 1 and "one client at a time" in caplog.text


@pytest.mark.parametrize("device", DEVICES)
def test_a_whole_run(device: str, fed: Federation) -> None:
    """Clusters, labels and scores of a run with everything in it."""
    results = runs(fed, methods.wecfl(k=2), device)
    close([results[1].centers], [results[0].centers])
    assert (results[1].labels == results[0].labels).all()


@pytest.mark.parametrize("device", DEVICES)
def test_mixed_precision(device: str, images: Federation) -> None:
    model = made(cnn)
    found = []
    for precision in ("float32", "bfloat16"):
        with DeviceEngine(images, model, device=device, precision=precision) as engine:
            assert engine.stacked
            found.append(asked(engine, Train(), PLAN, model))
    assert engine.name == f"torch-{device}-bfloat16"
    assert any((one != two).any() for one, two in zip(*found, strict=True))
    full, mixed = found[0][0], found[1][0]
    assert np.linalg.norm(mixed - full) < 0.1 * np.linalg.norm(full - rows_of(model))


SECOND_DEVICE = """
import sys
sys.path[:0] = ["tests", "tests/engine"]
import torch._lazy.ts_backend
torch._lazy.ts_backend.init()
import test_device as here
from conftest import federation
from dataclasses import replace
fed, model = federation((6,)), here.made(here.mlp)
plan = replace(here.PLAN, steps=2, max_gradient=0.3)
for program, plan in [
    (here.Train(0.5), plan),
    (here.Parts("classifier", 1), replace(plan, optimizer="adam")),
    (here.Score(), plan),
    (here.Gradients(), plan),
]:
    assert here.compared(fed, model, program, plan, "lazy").stacked
print("all on the device")
"""


def test_everything_is_on_the_device() -> None:
    """On torch's lazy device, which exists everywhere and does not mix with the CPU.

    In a process of its own, because that device can't be put away again.
    """
    root = __file__.rpartition("/tests/")[0]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SECOND_DEVICE],
        check=False,
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "all on the device\n", done.stderr[-2000:]


def test_a_model_that_does_not_fit_is_refused(fed: Federation) -> None:
    for model in (nn.Linear(7, 3), nn.Linear(6, 1), nn.Sequential(nn.Linear(6, 3), nn.Flatten(0))):
        with pytest.raises(ModelError, match="does not turn samples"):
            DeviceEngine(fed, model, device="cpu")


class Brittle(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) == 3:
            raise ValueError("three\nsamples")
        return super().forward(x)


def test_a_failure_names_clients_and_device(fed: Federation) -> None:
    model = made(lambda: Brittle(6, 3))
    with DeviceEngine(fed, model, device="cpu") as engine:
        state = State(0, {"model": rows_of(model)}, rows_of(model)[:1], np.zeros(M, np.int64))
        job = Job(Train(), replace(PLAN, batch=3), SEED, 0, keep=True)
        with pytest.raises(EngineError, match="failed in train on cpu: ValueError") as caught:
            engine.ask(job, Sent({"model": state.models}), None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("choices", "problem"),
    [
        ({"device": "gpu"}, "device must be"),
        ({"device": "cuda", "engine": "native"}, "native computes on the CPU"),
        ({"device": "mps", "engine": "ray"}, "ray computes on the CPU"),
        ({"precision": "bfloat16"}, "needs a GPU"),
        ({"precision": "float8"}, "precision must be"),
    ],
)
def test_a_choice_that_does_not_go_is_refused(
    choices: dict[str, Any], problem: str, fed: Federation
) -> None:
    compute = wecfl.Compute(**choices)
    with pytest.raises(ConfigError, match=problem):
        wecfl.run(fed, methods.fedavg, engine=compute, rounds=1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_missing_device_is_one_line(wecfl: Any) -> None:
    code, _, err = wecfl("run", "--device", "cuda")
    assert code == 2 and "device cuda is not available" in err and err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_auto_is_the_cpu_where_there_is_nothing_else(fed: Federation) -> None:
    with make_engine("torch", fed, made(mlp), device="auto", workers=1) as engine:
        assert isinstance(engine, TorchEngine)
