"""The torch engine against plain torch, and against everything that can happen to a process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers import local_update, workers
from moody_model import Moody, is_marked, with_marked_client
from wecfl import Correction, Federation, State, TorchEngine, rng
from wecfl.bilevel import evaluation
from wecfl.core.plan import LocalPlan
from wecfl.core.types import F32, F64, Int, Split
from wecfl.engine import torch_crew
from wecfl.errors import ConfigError, EngineError, ModelError
from wecfl.models import fill, layout_of, row_of
from wecfl.models.rows import keyed

SEED = 3


def mlp(*extra: nn.Module) -> nn.Module:
    with keyed(SEED):
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), *extra, nn.Linear(5, 3))


def cnn(momentum: float | None = 0.1) -> nn.Module:
    with keyed(SEED):
        return nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3, momentum=momentum), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 3),
        )  # fmt: skip


def start(module: nn.Module, m: int = 5, spread: float = 0.1) -> State:
    """Every client at a model of its own."""
    rows = np.repeat(row_of(module)[None], m, axis=0)
    noise = np.random.default_rng(1).normal(size=rows.shape).astype(np.float32)
    rows[:] += spread * np.abs(noise)  # variances stay positive
    return State(0, {"model": rows}, rows[:1], np.zeros(m, dtype=np.int64))


def rounds(
    engine: TorchEngine,
    state: State,
    plan: LocalPlan,
    correction: Correction | None = None,
    count: int = 2,
) -> State:
    for _ in range(count):
        models, memory = local_update(engine, state, plan, correction or Correction(), SEED)
        state = state.replace(round=state.round + 1, replies={"model": models}, memory=memory)
    return state


def samples(fed: Federation, rows: Int) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(fed.x[rows]), torch.from_numpy(fed.y[rows])


def plain(
    module: nn.Module,
    fed: Federation,
    plan: LocalPlan,
    penalty: Callable[[int, Tensor, Tensor], Tensor] | None = None,
    count: int = 2,
) -> F32:
    """The same rounds by a plain loop with `torch.optim.SGD`; the penalty goes through autograd."""
    result = []
    rates = np.broadcast_to(np.asarray(plan.lr), len(fed))
    for client, row in enumerate(start(module, len(fed)).models):
        model, own, lr = fill(module, row), fed.train[client], float(rates[client])
        parameters = [p for p in model.parameters() if p.requires_grad]
        for round in range(count):
            if round == 0 or not plan.keep_momentum:
                optimizer = torch.optim.SGD(
                    parameters, lr, momentum=plan.momentum, weight_decay=plan.weight_decay
                )
            begin = flat(parameters).detach()
            for part in model.modules():
                if isinstance(part, nn.BatchNorm2d) and part.num_batches_tracked is not None:
                    part.num_batches_tracked.zero_()
            model.train()
            for batch in plan.batches(len(own), SEED, round, client):
                x, y = samples(fed, own[batch])
                loss = cross_entropy(model(x), y)
                if penalty:
                    loss = loss + penalty(client, flat(parameters), begin)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
        result.append(row_of(model))
    return np.stack(result)


def flat(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in parameters])


def close(a: Any, b: Any) -> None:
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


PLAN = LocalPlan(steps=7, batch=4, lr=0.05, momentum=0.9)


# Training


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        LocalPlan(steps=7, batch=4, lr=0.05, momentum=0.9, keep_momentum=False),
        LocalPlan(steps=7, batch=4, lr=0.05, momentum=0.0, weight_decay=0.1),
        LocalPlan(steps=7, batch=4, lr=0.05, momentum=0.5, weight_decay=0.1),
        LocalPlan(steps=3, batch=100, lr=0.05),
        LocalPlan(steps=2, batch=4, lr=np.array([0.0, 0.01, 0.05, 0.1, 0.2], np.float32)),
    ],
    ids=["momentum", "reset", "decay", "both", "whole", "rates"],
)
def test_local_update_is_plain_sgd(fed: Federation, plan: LocalPlan) -> None:
    with TorchEngine(fed, mlp(), workers=2) as engine:
        state = rounds(engine, start(mlp()), plan)
    close(state.models, plain(mlp(), fed, plan))
    assert (state.memory.keys() == {"momentum"}) == (plan.keep_momentum and plan.momentum > 0)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batchnorm_trains_as_in_torch_statistics_included(
    images: Federation, momentum: float | None
) -> None:
    module = cnn(momentum)
    with TorchEngine(images, module, workers=2) as engine:
        state = rounds(engine, start(module), PLAN)
    expected = plain(module, images, PLAN)
    close(state.models, expected)
    statistics = layout_of(module).columns("statistics")
    assert statistics == slice(6 * 9 + 3 + 6 + 81 + 3, 6 * 9 + 3 + 6 + 81 + 3 + 6)
    assert np.abs(state.models - start(module).models)[:, statistics].min() > 1e-5


MU = np.linspace(0, 2, 53).astype(np.float32)
ANCHOR = np.random.default_rng(5).normal(size=(5, 53)).astype(np.float32)
OFFSET = np.random.default_rng(6).normal(size=(5, 53)).astype(np.float32)


@pytest.mark.parametrize(
    ("correction", "penalty"),
    [
        (Correction(mu=0.95), lambda i, w, begin: 0.95 / 2 * ((w - begin) ** 2).sum()),
        (Correction(mu=MU), lambda i, w, begin: (torch.tensor(MU) / 2 * (w - begin) ** 2).sum()),
        (
            Correction(mu=0.5, anchor=ANCHOR),
            lambda i, w, _: 0.5 / 2 * ((w - torch.tensor(ANCHOR[i])) ** 2).sum(),
        ),
        (Correction(offset=OFFSET), lambda i, w, _: (torch.tensor(OFFSET[i]) * w).sum()),
        (
            Correction(mu=MU, anchor=ANCHOR, offset=OFFSET),
            lambda i, w, _: (
                (torch.tensor(MU) / 2 * (w - torch.tensor(ANCHOR[i])) ** 2).sum()
                + (torch.tensor(OFFSET[i]) * w).sum()
            ),
        ),
    ],
    ids=["fedprox", "mu by column", "anchor", "offset", "all"],
)
def test_correction_is_the_gradient_of_its_penalty(
    fed: Federation,
    correction: Correction,
    penalty: Callable[[int, Tensor, Tensor], Tensor],
) -> None:
    plan = LocalPlan(steps=4, batch=4, lr=0.05, momentum=0.9, weight_decay=0.01)
    with TorchEngine(fed, mlp(), workers=1) as engine:
        state = rounds(engine, start(mlp()), plan, correction)
    close(state.models, plain(mlp(), fed, plan, penalty))
    assert np.abs(state.models - plain(mlp(), fed, plan)).max() > 1e-3


def test_frozen_parameters_stay(fed: Federation) -> None:
    module = mlp()
    next(module.parameters()).requires_grad_(False)
    plan = LocalPlan(steps=4, batch=4, lr=0.05, weight_decay=0.5)
    with TorchEngine(fed, module, workers=1) as engine:
        columns = engine.layout.columns("frozen")
        state = rounds(engine, start(module), plan, Correction(mu=1.0))
    assert columns == slice(53 - 30, 53)
    assert np.array_equal(state.models[:, columns], start(module).models[:, columns])
    assert state.memory["momentum"].shape == (5, 23)
    close(
        state.models,
        plain(module, fed, plan, lambda i, w, begin: ((w - begin) ** 2).sum() / 2),
    )


def test_dropout_is_keyed_and_leaves_torch_alone(fed: Federation) -> None:
    before = torch.get_rng_state()
    module = mlp(nn.Dropout(0.5))

    def trained(round: int, seed: int) -> F32:
        state = start(module, len(engine.sizes), spread=0).replace(round=round)
        return local_update(
            engine, state, LocalPlan(steps=3, batch=99, lr=0.1), Correction(), seed
        )[0]

    with TorchEngine(fed, module, workers=2) as engine:
        first = trained(0, 0)
        assert np.array_equal(first, trained(0, 0))
        assert not np.array_equal(first, trained(0, 1))
    alike = Federation.from_arrays([np.ones((9, 6))] * 2, [[0] * 9] * 2, classes=3)
    with TorchEngine(alike, module, workers=1) as engine:  # no order of samples to tell rounds by
        models = np.stack([trained(t, 0) for t in (0, 1)])
    assert len(np.unique(models.reshape(4, -1), axis=0)) == 4  # two rounds of two clients
    assert torch.equal(before, torch.get_rng_state())


def test_the_module_of_the_user_is_untouched(images: Federation) -> None:
    module = cnn()
    before = deepcopy(module.state_dict())
    with TorchEngine(images, module, workers=1) as engine:
        rounds(engine, start(module), PLAN)
        engine.starts([0, 1], seed=0)
    assert module.training
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_zero_is_the_model_as_given_other_starts_are_drawn(fed: Federation) -> None:
    with TorchEngine(fed, mlp(), workers=1) as engine:
        rows = engine.starts([0, 1, 2], seed=4)
        assert np.array_equal(rows[0], row_of(mlp()))
        assert np.array_equal(rows[2:], engine.starts([2], seed=4))
        assert len(np.unique(np.concatenate([rows, engine.starts([1], seed=5)])[:, 0])) == 4


# Scores


def logits(module: nn.Module, row: F32, x: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = fill(module, row)(x)
    return out


def loss(module: nn.Module, row: F32, fed: Federation, rows: Int) -> float:
    x, y = samples(fed, rows)
    return float(cross_entropy(logits(module, row, x), y))


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_scores_are_those_of_torch_and_sklearn(
    fed: Federation, images: Federation, kind: str
) -> None:
    module, data = (mlp(), fed) if kind == "mlp" else (cnn(), images)
    models = start(module, spread=0.5).models
    with TorchEngine(data, module, workers=2) as engine:
        risk, losses = evaluation.risk(engine, models), evaluation.losses(engine, models[:3])
        found = {split: evaluation.tallies(engine, models, split) for split in splits()}
        many = evaluation.losses(
            engine, np.concatenate([models, models[::-1]])
        )  # more models than clients
    close(risk, [loss(module, models[i], data, data.train[i]) for i in range(5)])
    assert losses.shape == (5, 3)
    assert many.shape == (5, 10)
    close(np.diagonal(many), risk)
    for i in range(5):
        close(losses[i], [loss(module, models[k], data, data.train[i]) for k in range(3)])
        for split, confusion in found.items():
            x, y = samples(data, getattr(data, split)[i])
            guess = logits(module, models[i], x).argmax(dim=1)
            expected = confusion_matrix(y, guess, labels=range(3))
            assert np.array_equal(confusion[i], expected)


def splits() -> tuple[Split, Split]:
    return "train", "test"


def test_a_stack_of_models_votes_with_its_mean_logits(fed: Federation) -> None:
    module = mlp()
    stack = np.stack([start(module, spread=s).models for s in (0.2, 1.0, 3.0)])
    with TorchEngine(fed, module, workers=2) as engine:
        voted = evaluation.tallies(engine, np.moveaxis(stack, 0, 1), "train")
        alone = evaluation.tallies(engine, stack[0], "train")
    for i in range(5):
        x, y = samples(fed, fed.train[i])
        mean = torch.stack([logits(module, rows[i], x) for rows in stack]).mean(dim=0)
        assert np.array_equal(voted[i], confusion_matrix(y, mean.argmax(dim=1), labels=range(3)))
    assert not np.array_equal(voted, alone)


def test_batchnorm_of_the_batch(images: Federation) -> None:
    module = cnn()
    models = start(module, spread=0.5).models
    with TorchEngine(images, module, workers=2, batchnorm="batch", batch=5) as engine:
        risk, confusion = (
            evaluation.risk(engine, models),
            evaluation.tallies(engine, models, "train"),
        )
        assert np.array_equal(
            risk, evaluation.risk(engine, models)
        )  # no statistics leak into later scores
    for i, rows in enumerate(images.train):
        x, y = samples(images, rows)
        model = fill(module, models[i]).train()
        with torch.no_grad():
            out = torch.cat([model(chunk) for chunk in torch.split(x, 5)])
        close(risk[i], float(cross_entropy(out, y)))
        assert np.array_equal(confusion[i], confusion_matrix(y, out.argmax(dim=1), labels=range(3)))
    running: F64
    with TorchEngine(images, module, workers=1) as engine:
        running = evaluation.risk(engine, models)
    assert np.abs(running - risk).max() > 1e-2


def test_losses_on_a_few_batches_are_keyed(fed: Federation) -> None:
    models = start(mlp()).models[:2]
    with TorchEngine(fed, mlp(), workers=2, batch=4) as engine:
        few = evaluation.losses(engine, models, batches=1, seed=SEED, round=7)
        assert np.array_equal(few, evaluation.losses(engine, models, batches=1, seed=SEED, round=7))
        assert not np.allclose(
            few, evaluation.losses(engine, models, batches=1, seed=SEED, round=8)
        )
        assert np.array_equal(
            evaluation.losses(engine, models, batches=99), evaluation.losses(engine, models)
        )
        assert np.array_equal(
            evaluation.losses(engine, models, batches=10**30), evaluation.losses(engine, models)
        )
    for i, rows in enumerate(fed.train):
        chosen = rows[rng.stream(SEED, "losses", 7, i).permutation(len(rows))[:4]]
        close(few[i], [loss(mlp(), row, fed, chosen) for row in models])


# The same bits


@pytest.mark.parametrize("batchnorm", ["running", "batch"])
def test_workers_do_not_change_a_bit(images: Federation, batchnorm: Any) -> None:
    module = nn.Sequential(*list(cnn().children())[:-1], nn.Dropout(0.2), nn.Linear(27, 3))
    found: list[list[Any]] = []
    for count in (1, 2, 3):
        with TorchEngine(images, module, workers=count, batchnorm=batchnorm) as engine:
            assert engine.workers == count
            assert len(workers()) == (count if count > 1 else 0)  # one is this process
            state = rounds(engine, start(module), PLAN, Correction(mu=0.1))
            found.append(
                [
                    state.models,
                    state.memory["momentum"],
                    evaluation.tallies(engine, state.models, "test"),
                    evaluation.risk(engine, state.models),
                    evaluation.losses(engine, state.models[:2], batches=1),
                ]
            )
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_client_computes_the_same_in_any_company(images: Federation) -> None:
    module, order = cnn(), [3, 0, 4]
    with TorchEngine(images, module, workers=2) as engine:
        all_clients = rounds(engine, start(module), PLAN)
        risk = evaluation.losses(engine, all_clients.models[:1], batches=1)
    part = start(module)
    part = part.replace(replies={"model": part.models[order]}, labels=part.labels[order])
    with TorchEngine(images.subset(order), module, workers=2) as engine:
        few = rounds(engine, part, PLAN)
        assert few.models.tobytes() == all_clients.models[order].tobytes()
        assert few.memory["momentum"].tobytes() == all_clients.memory["momentum"][order].tobytes()
        assert (
            evaluation.losses(engine, all_clients.models[:1], batches=1).tobytes()
            == risk[order].tobytes()
        )


# Models that do not fit


@pytest.mark.parametrize("module", [nn.Linear(5, 3), nn.Linear(6, 4), nn.Bilinear(6, 6, 3)])
def test_a_model_that_does_not_fit_is_said_at_once(fed: Federation, module: nn.Module) -> None:
    with pytest.raises(ModelError) as caught:
        TorchEngine(fed, module, workers=2)
    assert "\n" not in str(caught.value)
    for fact in (type(module).__name__, "(6,)", "3 outputs"):
        assert fact in str(caught.value)


class Viewing(nn.Module):
    """As in many a tutorial; `view` fails on what a convolution makes of channels_last."""

    def __init__(self) -> None:
        super().__init__()
        with keyed(SEED):
            self.conv, self.out = nn.Conv2d(2, 3, 3), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        y: Tensor = self.out(x.view(x.shape[0], -1))
        return y


def test_a_model_may_view_its_activations(images: Federation) -> None:
    with TorchEngine(images, Viewing(), workers=2) as engine:
        state = rounds(engine, start(Viewing()), PLAN)
    close(state.models, plain(Viewing(), images, PLAN))


@pytest.mark.parametrize("count", [1, 2])
def test_a_failing_client_is_named_and_the_engine_survives(fed: Federation, count: int) -> None:
    def mood(x: Tensor) -> None:
        if is_marked(x):
            raise ArithmeticError("I would\nrather not \udcff")

    module = Moody(mood)
    with TorchEngine(with_marked_client(fed), module, workers=count) as engine:
        for _ in range(2):
            said = r"^client d failed in train: ArithmeticError: I would rather not \?$"
            with pytest.raises(EngineError, match=said):
                local_update(engine, start(module), PLAN, Correction(), 0)
        assert evaluation.risk(engine, start(module).models).shape == (5,)


@pytest.mark.parametrize("rate", [1e20, 1e39])
def test_a_model_that_diverged_is_not_finite(fed: Federation, rate: float) -> None:
    """What to do about it is for the server to decide (`wecfl.core.channel`)."""
    deep = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with TorchEngine(fed, deep, workers=1) as engine:
        models, _ = local_update(engine, start(deep), LocalPlan(steps=5, lr=rate), Correction(), 0)
    assert not np.isfinite(models).all(axis=1).any()


def test_wrong_arguments(fed: Federation) -> None:
    for workers_ in (0, -1):
        with pytest.raises(ConfigError, match=f"workers.*{workers_}"):
            TorchEngine(fed, mlp(), workers=workers_)
    wrong: Any = "bach"
    with pytest.raises(ConfigError, match="bach"):
        TorchEngine(fed, mlp(), batchnorm=wrong)


def test_numpy_numbers_are_numbers(fed: Federation) -> None:
    steps: Any = np.int64(2)
    seed: Any = np.int64(3)
    with TorchEngine(fed, mlp(), workers=1) as engine:
        models, _ = local_update(engine, start(mlp()), LocalPlan(steps=steps), Correction(), seed)
        expected, _ = local_update(engine, start(mlp()), LocalPlan(steps=2), Correction(), 3)
    assert np.array_equal(models, expected)


# Processes


@contextmanager
def bounded(seconds: float = 60) -> Iterator[None]:
    """Fail rather than hang."""

    def stop(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def soon(action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.3, action)
    timer.start()
    return timer


@pytest.mark.parametrize("number", [2, 3])
def test_a_worker_killed_at_work_ends_the_run(fed: Federation, number: int) -> None:
    module = Moody(lambda _: time.sleep(600))
    engine = TorchEngine(fed, module, workers=number)
    victim = workers()[-1]
    timer = soon(lambda: os.kill(victim, signal.SIGKILL))
    with bounded(), pytest.raises(EngineError, match=rf"{victim}.*SIGKILL"):
        local_update(engine, start(module), PLAN, Correction(), 0)
    timer.join()
    assert workers() == []


def test_a_worker_killed_between_rounds_ends_the_run(fed: Federation) -> None:
    engine = TorchEngine(fed, mlp(), workers=2)
    state = rounds(engine, start(mlp()), PLAN, count=1)
    victim = workers()[0]
    os.kill(victim, signal.SIGKILL)
    with bounded(), pytest.raises(EngineError, match=rf"{victim}.*SIGKILL"):
        for _ in range(2):
            state = rounds(engine, state, PLAN, count=1)
    assert workers() == []


def test_a_worker_that_leaves_is_noticed(fed: Federation) -> None:
    module = Moody(lambda _: os._exit(7))
    with (
        bounded(),
        TorchEngine(fed, module, workers=2) as engine,
        pytest.raises(EngineError, match="exit code 7"),
    ):
        local_update(engine, start(module), PLAN, Correction(), 0)


def test_an_interrupted_engine_gives_no_stale_answers(fed: Federation) -> None:
    module = Moody(lambda _: time.sleep(600))
    with bounded(), TorchEngine(fed, module, workers=2) as engine:
        main = threading.main_thread().ident or 0
        timer = soon(lambda: signal.pthread_kill(main, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            local_update(engine, start(module), PLAN, Correction(), 0)
        timer.join()
        assert workers() == []
        with pytest.raises(EngineError, match="closed"):
            evaluation.risk(engine, start(module).models)


def test_closing_twice_leaves_no_descriptor_open(fed: Federation) -> None:
    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))  # noqa: PTH208

    with TorchEngine(fed, mlp(), workers=2):
        pass  # what multiprocessing opens once and for all
    before = descriptors()
    for _ in range(3):
        with TorchEngine(fed, mlp(), workers=3) as engine:
            evaluation.risk(engine, start(mlp()).models)
        engine.close()
    assert descriptors() == before


def test_what_the_parent_did_with_torch_does_not_matter(fed: Federation) -> None:
    torch.set_num_threads(2)
    matrix = torch.randn(400, 400, requires_grad=True)
    torch.autograd.backward((matrix @ matrix).sum())  # starts torch's threads, which forks lose
    with bounded(), TorchEngine(fed, mlp(), workers=2) as engine:
        rounds(engine, start(mlp()), PLAN)
    torch.set_num_threads(1)


def test_one_worker_is_this_process_and_computes_with_one_thread(fed: Federation) -> None:
    seen = set()
    module = Moody(lambda _: seen.add((os.getpid(), torch.get_num_threads())))
    torch.set_num_threads(2)
    with TorchEngine(fed, module, workers=1) as engine:
        local_update(engine, start(module), PLAN, Correction(), 0)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert seen == {(os.getpid(), 1)}


@pytest.mark.parametrize("count", [1, 2])
def test_a_fork_can_not_use_the_engine_of_its_parent(fed: Federation, count: int) -> None:
    with TorchEngine(fed, mlp(), workers=count) as engine:
        reading, writing = os.pipe()
        if not (child := os.fork()):
            try:
                evaluation.risk(engine, start(mlp()).models)
            except EngineError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as said:
            assert f"process {os.getpid()}, of which this one is a fork" in said.read()
        assert evaluation.risk(engine, start(mlp()).models).shape == (5,)


PARENT = """
import multiprocessing, time
import numpy as np
import wecfl
from torch import nn
from wecfl.engine.site import LocalSite

class Slow(nn.Linear):
    def forward(self, x):
        if self.training:
            time.sleep(0.1)
        return super().forward(x)

fed = wecfl.Federation.from_arrays([np.zeros((4, 2), np.float32)] * 500, [[0, 1, 0, 1]] * 500)
idle = wecfl.TorchEngine(fed, Slow(2, 2), workers=2)
busy = wecfl.TorchEngine(fed, Slow(2, 2), workers=2)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
site = LocalSite(busy, np.arange(500))
site.train(np.zeros((500, 6), np.float32), wecfl.core.plan.LocalPlan(steps=10))
"""


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    with (tmp_path / "err").open("w+") as errors:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert parent.stdout
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(0.3)
        parent.kill()
        parent.wait()
        parent.stdout.close()
        assert len(pids) == 4
        with bounded():
            while any(map(alive, pids)):
                time.sleep(0.05)
        errors.seek(0)
        assert errors.read() == ""


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_no_pickle_travels() -> None:
    source = Path(torch_crew.__file__).read_text(encoding="utf-8")
    assert ".send_bytes(" in source
    for word in (".send(", ".recv(", "import pickle", "Queue("):
        assert word not in source
