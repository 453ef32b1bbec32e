"""The twins of `personal_twins`, on bowls a/2·(w − b)², where the answers are known."""

import numpy as np
import pytest

import personal_twins
import twins
from test_twins import LR, SIZES, START, A, B, all_same, bowls, close, inputs
from twins import Inputs, row

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
        bowls(rounds=400, present=None, steps=1), lam=lam, inner_steps=50, inner_lr=0.15
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
