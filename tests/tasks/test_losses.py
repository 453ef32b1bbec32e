"""Every loss beside torch's, in double precision: its value, its gradient, its sum and its mean."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from wecfl.tasks import Binary, Classification, MultiLabel, Regression

N, C = 12, 4
RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.normal(size=(N, C))
LABELS = RNG.integers(0, C, N)
ANSWERS = (RNG.random((N, C)) < 0.4).astype(np.float32)
NUMBERS = RNG.normal(size=(N, C)).astype(np.float32)
WEIGHTS = (0.5, 1.0, 2.0, 4.0)


def focal(logits: torch.Tensor, labels: torch.Tensor, gamma: float) -> torch.Tensor:
    """Lin et al., *Focal Loss for Dense Object Detection*, as its formula stands."""
    p = logits.softmax(dim=1)[torch.arange(len(labels)), labels]
    return -((1 - p) ** gamma) * p.log()


def pinball(error: torch.Tensor, q: float) -> torch.Tensor:
    return torch.where(error < 0, -q * error, (1 - q) * error)


def bce(z: torch.Tensor, y: torch.Tensor, **more: Any) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(z, y, reduction="none", **more)


W = torch.tensor(WEIGHTS, dtype=torch.float64)
CASES: list[tuple[Any, Any, Any, Any]] = [
    (Classification(), LOGITS, LABELS,
     lambda z, y: functional.cross_entropy(z, y, reduction="none")),
    (Classification(weights=WEIGHTS), LOGITS, LABELS,
     lambda z, y: functional.cross_entropy(z, y, weight=W, reduction="none")),
    (Classification(smoothing=0.2, weights=WEIGHTS), LOGITS, LABELS,
     lambda z, y: functional.cross_entropy(z, y, weight=W, label_smoothing=0.2, reduction="none")),
    (Classification(gamma=2.0), LOGITS, LABELS, lambda z, y: focal(z, y, 2.0)),
    (Classification(gamma=0.5), LOGITS, LABELS, lambda z, y: focal(z, y, 0.5)),
    (Binary(), LOGITS[:, :1], LABELS % 2, lambda z, y: bce(z[:, 0], y.double())),
    (Binary(weight=3.0, smoothing=0.1), LOGITS[:, :1], LABELS % 2,
     lambda z, y: bce(z[:, 0], 0.9 * y + 0.05, pos_weight=torch.tensor(3.0))),
    (Binary(gamma=2.0), LOGITS[:, :1], LABELS % 2,
     lambda z, y: focal(torch.cat([torch.zeros_like(z), z], dim=1), y, 2.0)),
    (MultiLabel(weights=WEIGHTS), LOGITS, ANSWERS,
     lambda z, y: bce(z, y.double(), pos_weight=W).mean(dim=1)),
    (Regression(), LOGITS, NUMBERS, lambda z, y: ((z - y) ** 2).mean(dim=1)),
    (Regression("mae"), LOGITS, NUMBERS, lambda z, y: (z - y).abs().mean(dim=1)),
    (Regression("huber", delta=0.7), LOGITS, NUMBERS,
     lambda z, y: functional.huber_loss(z, y.double(), delta=0.7, reduction="none").mean(dim=1)),
    (Regression("quantile", quantile=0.9), LOGITS, NUMBERS,
     lambda z, y: pinball(z - y, 0.9).mean(dim=1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "outputs", "targets", "reference"), CASES, ids=[str(case[0]) for case in CASES]
)
def test_a_loss_is_that_of_torch(task: Any, outputs: Any, targets: Any, reference: Any) -> None:
    y = torch.from_numpy(targets)
    theirs = torch.tensor(outputs, requires_grad=True)
    expected = reference(theirs, y)
    np.testing.assert_allclose(task.losses(outputs, targets), expected.detach(), rtol=1e-6)
    (gradient,) = torch.autograd.grad(expected.mean(), theirs)
    for reduction, factor in (("mean", 1), ("sum", N)):
        ours = torch.tensor(outputs, requires_grad=True)
        whole = task.objective(ours, y, reduction)
        assert float(whole.detach()) == pytest.approx(float(expected.detach().mean()) * factor)
        (found,) = torch.autograd.grad(whole, ours)
        np.testing.assert_allclose(found, gradient * factor, rtol=1e-5, atol=1e-9)


def test_a_focused_loss_has_a_gradient_where_the_answer_is_certain() -> None:
    for task, shape in ((Classification(gamma=0.5), 2), (Binary(gamma=0.5), 1)):
        outputs = torch.full((1, shape), 200.0)
        outputs[:, 0] = -200.0 if shape == 1 else 200.0
        outputs[:, 1:] = -200.0
        outputs.requires_grad_()
        (found,) = torch.autograd.grad(task.objective(outputs, torch.tensor([0])), outputs)
        assert torch.isfinite(found).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_options_that_do_nothing_leave_plain_cross_entropy(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, labels = rng.normal(size=(7, classes)), rng.integers(0, classes, 7)
    plain = Classification().losses(outputs, labels)
    for task in (
        Classification(weights=(1.0,) * classes), Classification(smoothing=0.0, gamma=0.0),
        Classification(weights=(1.0,) * classes, gamma=1e-12),
    ):  # fmt: skip
        np.testing.assert_allclose(task.losses(outputs, labels), plain, rtol=1e-9)
    two = np.stack([np.zeros(7), outputs[:, 0]], axis=1)
    np.testing.assert_allclose(
        Binary().losses(outputs[:, :1], labels % 2), Classification().losses(two, labels % 2),
        rtol=1e-9,
    )  # fmt: skip
