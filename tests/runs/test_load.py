"""A result that is loaded from its folder is the result that was in memory."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import wecfl
from helpers import method_named, run_flat, same_bits
from wecfl import methods
from wecfl.bilevel.importance import data_size
from wecfl.config import Config
from wecfl.core.types import F64, Int
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError, ModelError, RunFolderError
from wecfl.experiment import run_config
from wecfl.from_config import federation_of
from wecfl.methods import METHODS
from wecfl.runs.result import Result

QUICK: dict[str, Any] = {"model": "mlp", "rounds": 2, "steps": 2, "batch": 8, "workers": 1}
FOLDERS = Path(__file__).parent.parent / "folders"


def same_results(one: Result, two: Result, x: Any) -> None:
    """The same numbers, all of them."""
    same_bits(one, two)
    assert one.records == two.records
    assert {**one.summary, "seconds": 0} == {**two.summary, "seconds": 0}
    assert repr(one) == repr(two)
    pd.testing.assert_frame_equal(one.history, two.history)
    pd.testing.assert_frame_equal(one.clients, two.clients, check_dtype=False)
    for client in one.federation.names if one.method.serve.center_alone else ():
        a, b = (each.predict_proba(x, client=client) for each in (one, two))
        np.testing.assert_array_equal(a, b)
    assert one.tensors.keys() == two.tensors.keys()
    for name, tensor in one.tensors.items():
        np.testing.assert_array_equal(tensor, two.tensors[name])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_values(name: str, fed: Federation, tmp_path: Path) -> None:
    result = run_flat(fed, method_named(name, 2), out=tmp_path / "run", **QUICK)
    loaded = wecfl.load(tmp_path / "run")
    same_results(result, loaded, fed.x)
    assert methods.components(loaded.method) == methods.components(result.method)
    assert (
        " at 0x" not in (tmp_path / "run" / "config.toml").read_text()
    )  # the same in every process


@pytest.mark.parametrize(
    "choices",
    [
        {"method": "wecfl", "newcomers": 0.2, "unseen": 1},
        {"method": "fedprox+", "clusters": 2},
        {"method": "ditto", "participation": 0.5, "dropout": 0.2},
        {"method": "wecfl", "clip": 1.0, "attack": "sign-flip"},
        {"method": "fedadam", "options": (("server_lr", 0.05),), "batchnorm": "batch"},
    ],
)
def test_every_kind_of_configuration(choices: dict[str, Any], tmp_path: Path) -> None:
    base = {"clients": 10, "groups": 2, "clusters": 2, "rounds": 2, "steps": 2, "workers": 1}
    config = Config(**{**base, **choices})
    result = run_config(config, out=tmp_path / "run")
    loaded = wecfl.load(tmp_path / "run")
    same_results(result, loaded, federation_of(config).x[:20])
    if result.newcomers is not None:
        assert loaded.newcomers is not None
        pd.testing.assert_frame_equal(result.newcomers, loaded.newcomers, check_dtype=False)


def test_privacy_and_newcomers_of_values(fed: Federation, tmp_path: Path) -> None:
    result = run_flat(
        fed, methods.wecfl(k=2), out=tmp_path / "run", clip=1.0, noise=2.0, newcomers=0.3, **QUICK
    )
    same_results(result, wecfl.load(tmp_path / "run"), fed.x)


def test_newcomers_without_the_data(fed: Federation, tmp_path: Path) -> None:
    """Of a run of Python values, once the program has made what they are compared with."""
    result = run_flat(fed, methods.wecfl(k=2), out=tmp_path / "run", **QUICK)
    x, y = fed.x[fed.train[3]], fed.y[fed.train[3]]
    with pytest.raises(ConfigError, match=r"result\.assign"):
        wecfl.load(tmp_path / "run").assign(x, y)
    for by in ("update", "losses"):
        mine = result.assign(x, y, by=by)
        its = wecfl.load(tmp_path / "run", workers=1).assign(x, y, by=by)
        for name in ("cluster", "confidence", "distance", "limit", "accuracy"):
            assert getattr(its, name) == getattr(mine, name), name


def test_a_run_that_was_killed(fed: Federation, tmp_path: Path) -> None:
    """What a kill leaves: no summary, no models, and metrics that are ahead of the checkpoint."""
    config = Config(clients=6, groups=2, clusters=2, rounds=3, steps=2, workers=1)
    result = run_config(config, out=tmp_path / "run")
    for name in ("summary.json", "models.safetensors", "clients.csv"):
        (tmp_path / "run" / name).unlink()
    for file in (tmp_path / "run" / "checkpoints").glob("000003.*"):
        file.unlink()
    loaded = wecfl.load(tmp_path / "run")
    assert (loaded.status, len(loaded.records)) == ("interrupted", 2)
    assert loaded.records == result.records[:2]
    assert loaded.clients["samples"].tolist() == result.clients["samples"].tolist()
    assert loaded.predict(federation_of(config).x[:3], client="2").shape == (3,)


def test_folders_of_earlier_versions() -> None:
    for name in ("format-0", "format-1"):
        loaded = wecfl.load(FOLDERS / name)
        assert loaded.status == "finished"
        shape = loaded.newcomer_setup.blueprint.shape
        assert loaded.predict(np.zeros((2, *shape)), cluster=0).shape == (2,)


class Net(nn.Module):
    """A model of one's own."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 3))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def test_models_and_methods_of_one_s_own(fed: Federation, tmp_path: Path) -> None:
    def twice(sizes: Int) -> F64:
        return 2.0 * np.asarray(data_size(sizes))

    mine = methods.wecfl(k=2).replace(name="mine", importance=twice)
    result = run_flat(fed, mine, out=tmp_path / "run", **QUICK | {"model": Net})
    with pytest.raises(ConfigError, match=r"importance twice.*method="):
        wecfl.load(tmp_path / "run", model=Net)
    with pytest.raises(ModelError, match=r"class Net.*model=Net"):
        wecfl.load(tmp_path / "run", method=mine)
    with pytest.raises(ModelError, match=r"43 parameters.*the model of the run"):
        wecfl.load(tmp_path / "run", method=mine, model=lambda: Net(5))
    same_results(result, wecfl.load(tmp_path / "run", method=mine, model=Net), fed.x)


def test_a_plan_without_a_learning_rate_is_refused(fed: Federation, tmp_path: Path) -> None:
    run_flat(fed, methods.wecfl(k=2), out=tmp_path / "run", **QUICK)
    written = tmp_path / "run" / "config.toml"
    lines = written.read_text().splitlines(keepends=True)
    written.write_text("".join(line for line in lines if not line.startswith("lr ")))
    with pytest.raises(RunFolderError, match=r"config.toml.*learning rate") as caught:
        wecfl.load(tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_what_can_t_be_loaded_is_said_in_one_line(fed: Federation, tmp_path: Path) -> None:
    run_flat(fed, methods.local(), out=tmp_path / "run", **QUICK)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    for place, said in ((tmp_path / "run", "own models"), (tmp_path / "no", "no run folder")):
        with pytest.raises(RunFolderError, match=said) as caught:
            wecfl.load(place)
        assert "\n" not in str(caught.value)
