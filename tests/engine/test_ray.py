"""The Ray engine without a cluster; `tests/deploy/test_ray.py` has one."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import nn

from helpers import Wecfl
from wecfl import Federation, RayEngine
from wecfl.engine.ray.actor import Actor
from wecfl.engine.ray.rows import distinct
from wecfl.errors import ConfigError, EngineError


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nowhere", "HOST:PORT or auto, got 'nowhere'"),
        ("ray://127.0.0.1:10001", "HOST:PORT or auto, got 'ray://127.0.0.1:10001'"),
        ("127.0.0.1:1", "127.0.0.1:1 ([Errno 111]"),
        ("127.0.0.1:99999", "127.0.0.1:99999 ("),
        ("no.such.host.invalid:1", "no.such.host.invalid:1 ("),
        ("a\0b:1", "no Ray cluster"),
    ],
)
def test_a_wrong_address_is_one_line(
    address: str, said: str, wecfl: Wecfl, fed: Federation
) -> None:
    with pytest.raises(ConfigError) as raised:
        RayEngine(fed, nn.Linear(6, 3), address=address)
    assert said in str(raised.value)
    if "\0" not in address:
        done = wecfl("run", "--rounds", "1", "--engine", "ray", "--ray-address", address)
        assert (done.code, len(done.err.splitlines())) == (2, 1)
        assert said in done.err


def test_what_says_nothing_without_ray(wecfl: Wecfl) -> None:
    done = wecfl("run", "--rounds", "1", "--ray-address", "auto")
    assert "ray_address" in done.err
    assert (done.code, len(done.err.splitlines())) == (2, 1)


def test_without_the_extra_one_line_says_how_to_install_it(
    wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = wecfl("run", "--rounds", "1", "--engine", "ray")
    assert done.code == 2
    assert "pip install 'wecfl[ray]'" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_ray_that_does_not_start_is_one_line(
    wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It raises a bare `Exception` where a part of it does not come up."""

    def init(*_: Any, **__: Any) -> None:
        raise Exception("The current node timed out during startup.\nMore follows.")

    failing = SimpleNamespace(init=init, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", failing)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = wecfl("run", "--rounds", "1", "--engine", "ray")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "timed out during startup" in done.err


def test_nodes_with_another_release_are_refused(fed: Federation) -> None:
    how: Any = {"kind": "native", "model": nn.Linear(6, 3), "options": {}}
    with pytest.raises(EngineError, match=r"install 0\.0"):
        Actor().load(fed, release="0.0", **how)


def test_rows_that_differ_anywhere_travel_apart() -> None:
    rows = np.zeros((6, 1000), np.float32)
    rows[1, 999] = rows[3, 999] = -0.0
    rows[2, 500] = rows[4, 500] = np.nan
    chosen, which = distinct(rows)
    for i, number in enumerate(which):
        assert rows[chosen[number]].tobytes() == rows[i].tobytes()
    assert which[0] == which[5]
