"""Pruned models: how much is pruned, what is sent, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wecfl
from wecfl import Federation, methods
from wecfl.core.plan import validation_part
from wecfl.errors import ConfigError, ModelError
from wecfl.models import reinitialized, row_of


def module() -> nn.Module:
    made = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return reinitialized(made, seed=0, which=0)


def run(fed: Federation, name: str, rounds: int = 9, **options: Any) -> wecfl.Result:
    method = methods.named(name, prune_above=0.0, **options)
    plan = wecfl.Plan(steps=3, batch=4, lr=0.1)
    return wecfl.run(fed, method, model=module(), rounds=rounds, plan=plan, seed=2)


@pytest.mark.parametrize("name", ["lotteryfl", "hermes"])
def test_pruned_columns_are_neither_kept_nor_sent(name: str, fed: Federation) -> None:
    """A client sends 4 bytes for each column that it has, and a bit for each of all columns."""
    result = run(fed, name, prune_rate=0.2, prune_target=0.5)
    pruned, width = result.states[0].memory["pruned"] > 0, 6 * 5 + 5 + 5 * 3 + 3
    left = (~pruned).sum(axis=1)
    assert result.records[-1]["clients"]["bytes_up"] == (4 * left + -(-width // 8)).tolist()
    np.testing.assert_array_equal(result.states[0].known["mask"] > 0, ~pruned)
    assert pruned.any(axis=1).all()
    weights = np.r_[:30] if name == "hermes" else np.r_[:30, 35:50]
    share = pruned[:, weights].mean(axis=1)
    assert ((share >= 0.5) & (share <= 0.6)).all()
    for i in range(len(fed)):
        own = row_of(result.model(client=i))
        np.testing.assert_array_equal(own == 0, pruned[i])


def test_channels_go_as_a_whole_with_their_bias(fed: Federation) -> None:
    pruned = run(fed, "hermes", prune_rate=0.2).states[0].memory["pruned"] > 0
    channels = pruned[:, :30].reshape(len(fed), 5, 6)
    assert (channels.all(axis=2) == channels.any(axis=2)).all()
    np.testing.assert_array_equal(pruned[:, 30:35], channels.all(axis=2))
    assert not pruned[:, 35:].any()


def test_a_client_prunes_if_it_is_accurate_on_samples_it_does_not_train_on(fed: Federation) -> None:
    """LotteryFL, in the first round: the initial model on the validation samples."""
    method = methods.lotteryfl(prune_above=0.4)
    result = wecfl.run(fed, method, model=module(), rounds=1, seed=2)
    for i, pruned in enumerate(result.states[0].memory["pruned"]):
        _, apart = validation_part(len(fed.train[i]), 2, int(fed.keys[i]))
        rows = fed.train[i][apart]
        found = module()(torch.from_numpy(fed.x[rows])).argmax(dim=1).numpy()
        assert pruned.any() == (np.mean(found == fed.y[rows]) > 0.4)
    assert 0 < result.states[0].memory["pruned"].any(axis=1).sum() < len(fed)


@pytest.mark.parametrize("name", ["lotteryfl", "hermes"])
def test_what_does_not_fit(name: str, fed: Federation) -> None:
    for options in ({"prune_above": 1.0}, {"prune_rate": 0.0}, {"prune_target": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            methods.named(name, **options)
    with pytest.raises(ConfigError, match="max_gradient"):
        wecfl.run(fed, methods.named(name), rounds=1, plan=wecfl.Plan(max_gradient=1.0))
    privacy = wecfl.Privacy(clip=1.0, noise=1.0)
    with pytest.raises(ConfigError, match="reply 'mask'"):
        wecfl.run(fed, methods.named(name), rounds=1, privacy=privacy)
    if name == "hermes":
        with pytest.raises(ModelError, match="more layers"):
            wecfl.run(fed, methods.hermes(), model="logistic", rounds=1)
