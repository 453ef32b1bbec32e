"""The twins of `personal_twins`, on bowls a/2·(w − b)², where the answers are known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import personal_twins
import twins
from test_twins import LR, SIZES, START, A, B, all_same, bowls, close, inputs, same
from twins import Batches, Inputs, row
from wecfl.core.plan import LocalPlan

__all__ = ["inputs"]  # a fixture


def batch(_: int) -> list[np.ndarray]:
    return [np.zeros(1, np.int64)]


@pytest.mark.parametrize("hessian", [False, True])
def test_per_fedavg_by_hand(hessian: bool) -> None:
    """On a bowl, ∇L(w − a∇L(w)) = a_i·(1 − a·a_i)·(w − b), and the Hessian is a_i."""
    inner, steps = 0.2, 2
    found = personal_twins.per_fedavg(
        bowls(steps=7 if hessian else 5, present=None, rounds=3), batch, inner_lr=inner,
        hessian=hessian,
    )  # fmt: skip
    shrink = (1 - inner * A) ** (2 if hessian else 1)
    w = START
    for _ in range(3):
        w = SIZES @ (B + (1 - LR * A * shrink) ** steps * (w - B)) / SIZES.sum()
    close(found.center, w)
    for i, own in enumerate(found.models):
        close(own, B[i] + (1 - inner * A[i]) * (w - B[i]))


def test_per_fedavg_without_an_inner_step_is_fedavg_on_every_other_batch(inputs: Inputs) -> None:
    class Halved(Inputs):
        def batches(self, i: int, t: int) -> list[np.ndarray]:
            every = super().batches(i, t)
            return list(every[1::2])

    halved = Halved(**{name: getattr(inputs, name) for name in inputs.__dataclass_fields__})
    found = personal_twins.per_fedavg(inputs, lambda i: [], inner_lr=1e-300)
    plain = twins.fedavg(halved)
    np.testing.assert_allclose(row(found.center)[:-10], row(plain.center)[:-10], rtol=1e-9)


def test_pfedme_comes_to_rest_where_the_envelopes_balance() -> None:
    """∇ of the envelope is lam·(w − θ) with θ = (a·b + lam·w) / (a + lam): a weighted mean of b."""
    lam = 2.0
    found = personal_twins.pfedme(
        bowls(rounds=300, present=None, steps=1), lam=lam, inner_steps=20, inner_lr=0.2
    )
    pull = SIZES[:, None] * lam * A / (A + lam)
    rest = (pull * B).sum(axis=0) / pull.sum(axis=0)
    close(found.center, rest, rtol=1e-5)
    for i, own in enumerate(found.models):
        close(own, (A[i] * B[i] + lam * rest) / (A[i] + lam), rtol=1e-4)


def test_a_part_of_a_step_of_pfedmes_server() -> None:
    given = bowls(rounds=1, present=None, steps=2)
    how = {"lam": 3.0, "inner_lr": 0.1}
    whole = personal_twins.pfedme(given, inner_steps=4, **how)
    half = personal_twins.pfedme(given, inner_steps=4, beta=0.5, **how)
    close(half.center, (START + row(whole.center)) / 2)
    all_same(whole, personal_twins.pfedme(given, inner_steps=4, beta=1.0, **how))


def test_fedbabu_is_fedavg_of_the_body_and_keeps_the_head() -> None:
    """On bowls body and head are apart: one is FedAvg's, the other is fine-tuned from the start."""
    found = personal_twins.fedbabu(bowls(), batch, {"head"})
    body = row(twins.fedavg(bowls()).center)[0]
    close(found.center, [body, START[1]])
    for i, own in enumerate(found.models):
        w = np.array([body, START[1]])
        close(own, w - LR * A[i] * (w - B[i]))


def test_apfl_at_its_ends() -> None:
    """With share 0 the personal model is the trained copy of the center; with 1 it is `local`."""
    common = personal_twins.apfl(bowls(present=None), mixing=0.0, adaptive=False)
    alone = personal_twins.apfl(bowls(present=None), mixing=1.0, adaptive=False)
    for own, other in zip(alone.models, twins.local(bowls(present=None)).models, strict=True):
        close(own, row(other))
    before = row(twins.fedavg(bowls(present=None, rounds=len(bowls().present or []) - 1)).center)
    for i, own in enumerate(common.models):
        close(own, B[i] + (1 - LR * A[i]) ** 3 * (before - B[i]))
    close(common.center, row(alone.center))


def test_apfl_comes_to_rest_where_the_mixture_is_the_clients_best() -> None:
    """Where a·v + (1 − a)·Ω = b; the client is served v with Ω after its own step."""
    given = bowls(rounds=900, present=None, steps=1)
    found = personal_twins.apfl(given, mixing=0.5, adaptive=False)
    w = row(found.center)
    for i, own in enumerate(found.models):
        close(own, B[i] - 0.5 * LR * A[i] * (w - B[i]), rtol=1e-3)


@pytest.mark.parametrize("hessian", [False, True])
def test_fedmeta_by_hand(hessian: bool) -> None:
    """One round on bowls: after s inner steps the gradient is a·(1 − η·a)^s·(w − b), and so on."""
    given, inner, tau = bowls(rounds=1, present=[{1}], steps=4), 2, 1e-3
    found = personal_twins.fedmeta(
        given, lambda i: batch(i) * inner, inner_steps=inner, hessian=hessian, eta=0.3
    )
    g = A[1] * (1 - LR * A[1]) ** (2 * inner if hessian else inner) * (START - B[1])
    expected = START - 0.3 * 0.1 * g / (np.sqrt(0.99 * tau**2 + 0.01 * g**2) + tau)
    close(found.center, expected)
    close(found.models[0], B[0] + (1 - LR * A[0]) ** inner * (expected - B[0]))


def test_fedproto_without_a_pull_is_local_training(inputs: Inputs) -> None:
    found = personal_twins.fedproto(inputs, lam=0.0)
    for own, other in zip(found.models, twins.local(inputs).models, strict=True):
        same(own, other)


def test_the_pull_of_fedproto_by_hand() -> None:
    """One client whose samples are all alike, so that its prototype is where its features were.

    In the first round there is no prototype. In the second one it is what the features were after
    the first, and they stay nearer to it the stronger the pull is.
    """
    x, y = torch.ones(4, 6, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 3)).double()
    how: Any = {"module": module, "steps": 3, "batch": 4, "lr": 0.01, "momentum": 0.0}
    given = Inputs(clients=[(x, y)], keys=[0], rounds=1, **how)
    once = personal_twins.fedproto(given, lam=5.0)
    z = personal_twins.features(once.models[0], x[:1])[0]
    np.testing.assert_allclose(once.common[0].detach(), z.detach())
    gaps = []
    for lam in (0.0, 2.0):
        twice = personal_twins.fedproto(replace(given, rounds=2), lam=lam)
        now = personal_twins.features(twice.models[0], x[:1])[0]
        gaps.append(float((now - z).detach().norm()))
    assert gaps[1] < 0.8 * gaps[0]
    assert personal_twins.nearest(once, 0, x) == [0] * 4


@pytest.mark.parametrize("channels", [False, True])
def test_without_pruning_it_is_fedavg_without_the_validation_samples(
    channels: bool, inputs: Inputs
) -> None:
    class Fewer(Inputs):
        def batches(self, i: int, t: int) -> Batches:
            plan = LocalPlan(steps=self.steps, batch=self.batch, leave_validation=True)
            every = plan.batches(len(self.clients[i][1]), self.seed, t, self.keys[i])
            return every if self.done is None else every[: self.done[i][t]]

    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    inputs = replace(inputs, module=module)
    fewer = Fewer(**{name: getattr(inputs, name) for name in inputs.__dataclass_fields__})
    how: Any = {"rate": 0.3, "target": 0.5, "channels": channels}
    all_same(personal_twins.pruned(inputs, above=1.0, **how), twins.fedavg(fewer))


def test_the_smallest_are_pruned() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    twins.load(module, {"0.weight": torch.tensor([[3.0, -4.0], [0.1, 0.2], [-9.0, 0.3]])})
    mask = {name: torch.ones_like(w) for name, w in twins.tensors(module).items()}
    personal_twins.drop_weights(module, mask, ["0.weight"], 0.5)
    assert mask["0.weight"].tolist() == [[1, 1], [0, 0], [1, 0]]
    mask = {name: torch.ones_like(w) for name, w in twins.tensors(module).items()}
    personal_twins.drop_channels(module, mask, ["0.weight"], 0.4)
    assert mask["0.weight"].tolist() == [[1, 1], [0, 0], [1, 1]]
    assert mask["0.bias"].tolist() == [1, 0, 1]


def test_the_hyper_network_comes_to_make_what_the_clients_reply() -> None:
    """Clients of the bowls come to rest at b, and so does the hyper-network.

    Before any step the hyper-network makes the common start; an absent client's model moves too.
    """
    how: Any = {"embedding": 4, "hidden": 20, "lr": 0.01}
    for own in personal_twins.pfedhn(bowls(rounds=0), **how).models:
        close(own, START)
    found = personal_twins.pfedhn(bowls(rounds=60, present=None, steps=5), **how)
    for i, own in enumerate(found.models):
        np.testing.assert_allclose(row(own), B[i], atol=0.4)
    absent = personal_twins.pfedhn(bowls(rounds=1, present=[{1}]), **how)
    assert np.abs(row(absent.models[0]) - START).max() > 1e-4
