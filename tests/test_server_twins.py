"""The twins of `server_twins`, where their answers are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import server_twins
import twins
from test_twins import SIZES, START, A, B, all_same, bowls, close, inputs
from twins import Inputs, row

__all__ = ["inputs"]  # a fixture

REST = (SIZES[:, None] * A * B).sum(axis=0) / (SIZES[:, None] * A).sum(axis=0)
"""Where Σ λ_i a_i (w − b_i) = 0: the least weighted loss."""
UNEQUAL = [[1] * 900, [3] * 900, [2] * 900]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_with_equal_steps_is_fedavg(momentum: float) -> None:
    given = bowls(momentum=momentum, keep_momentum=False)
    all_same(server_twins.fednova(given), twins.fedavg(given))


def test_fednova_forgives_unequal_steps_and_fedavg_does_not() -> None:
    """With short steps the fixed point of FedNova is the least weighted loss."""
    given = bowls(
        rounds=900, present=None, lr=0.005, keep_momentum=False, done=UNEQUAL, momentum=0.5
    )
    close(server_twins.fednova(given).center, REST, rtol=0.02)
    assert np.abs(row(twins.fedavg(given).center) - REST).max() > 0.3


def test_feddyn_finds_the_least_weighted_loss_where_fedavg_does_not() -> None:
    given = bowls(rounds=300, present=None)
    close(server_twins.feddyn(given, alpha=0.5).center, REST, rtol=1e-6)
    assert np.abs(row(twins.fedavg(given).center) - REST).max() > 0.02


def test_fedatt_of_clients_that_agree_takes_a_step_towards_them() -> None:
    given = bowls(rounds=1, present=[{1}])
    alone = row(twins.fedavg(given).center)
    close(server_twins.fedatt(given, step=1.2).center, START + 1.2 * (alone - START))


def test_fedatt_by_hand() -> None:
    """Two tensors of one number each: the softmax of the two distances."""
    given = bowls(rounds=1, present=[{0, 1}])
    models = [row(twins.fedavg(bowls(rounds=1, present=[{i}])).center) for i in (0, 1)]
    gaps = START - np.stack(models)
    far = torch.softmax(torch.tensor(np.abs(gaps)), dim=0).numpy()
    close(server_twins.fedatt(given, step=0.7).center, START - 0.7 * (far * gaps).sum(axis=0))


def test_feddane_finds_the_least_weighted_loss_and_needs_both_sets() -> None:
    """On bowls every client sees the whole gradient, moved by its own curvature."""
    given = bowls(rounds=200, present=None)
    found = server_twins.feddane(given, [{0, 1, 2}] * 200, mu=0.1)
    close(found.center, REST, rtol=1e-6)
    other = server_twins.feddane(given, [{0}] * 200, mu=0.1)
    assert np.abs(row(other.center) - REST).max() > 0.1


def test_feddane_of_one_client_is_fedprox() -> None:
    given = bowls(rounds=3, present=[{1}] * 3)
    found = server_twins.feddane(given, [{1}] * 3, mu=0.0)
    all_same(found, twins.fedavg(given))
    assert np.abs(row(found.center) - B[1]).max() < np.abs(START - B[1]).max()


def test_moon_without_a_contrast_is_fedavg_and_so_is_its_first_round(inputs: Inputs) -> None:
    """At the first contact the last model is the one received, and the term does not pull."""
    all_same(server_twins.moon(inputs, mu=0.0, temperature=0.5), twins.fedavg(inputs))
    later = server_twins.moon(inputs, mu=3.0, temperature=0.5)
    assert np.abs(row(later.center) - row(twins.fedavg(inputs).center)).max() > 0.01
    once = replace(inputs, rounds=1, steps=1, done=None)  # after a step, z has moved away
    found = server_twins.moon(once, mu=3.0, temperature=0.5)
    np.testing.assert_allclose(row(found.center), row(twins.fedavg(once).center), atol=1e-12)
