"""A model in a file of one's own: --model FILE.py:NAME runs its code, and nothing else does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import wecfl as library
from wecfl.folder.readers import config_of
from wecfl.from_config import federation_of
from wecfl.models.own import own_model

if TYPE_CHECKING:
    from helpers import Wecfl

NET = """
from pathlib import Path
from torch import nn

with Path("ran").open("a") as log:
    log.write("x")

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))

number = 3
"""
FLAGS = ["--clients", "6", "--groups", "2", "--clusters", "2", "--steps", "2", "--workers", "1"]


def test_from_the_flag_to_the_model(wecfl: Wecfl) -> None:
    Path("nets.py").write_text(NET)
    whole = ["run", "--model", "nets.py:Net", *FLAGS]
    code, _, err = wecfl(*whole, "--rounds", "2", "--out", "run")
    assert code == 0, err
    assert wecfl(*whole, "--rounds", "1", "--out", "begun").code == 0
    runs = len(Path("ran").read_text())
    for tokens, said in (
        (("resume", "begun", "--rounds", "2"), "again: add --model nets.py:Net"),
        (("assign", "run", "c.npz"), "class Net"),
    ):
        code, _, err = wecfl(*tokens)
        assert (code, err.count("\n")) == (2, 1)
        assert said in err
    assert len(Path("ran").read_text()) == runs, "code ran that nobody asked for"
    code, _, err = wecfl("resume", "begun", "--rounds", "2", "--model", "nets.py:Net")
    assert code == 0, err
    loaded = [library.load(place, model=own_model("nets.py:Net")) for place in ("run", "begun")]
    assert loaded[0].centers.tobytes() == loaded[1].centers.tobytes()
    x = federation_of(config_of("run")).x[:4]
    one, two = (each.predict_proba(x, client="3") for each in loaded)
    np.testing.assert_array_equal(one, two)


def test_files_that_can_t_be_used_are_told_in_one_line(wecfl: Wecfl) -> None:
    Path("nets.py").write_text(NET)
    Path("broken.py").write_text("from torch import nn\n\n1 / 0\n")
    Path("typo.py").write_text("class Net(:\n")
    for model, said in (
        ("none.py:Net", "no file none.py"),
        ("nets.py:Nets", "did you mean 'Net'"),
        ("nets.py:number", "module, a function or a name"),
        ("nets.py:", "FILE.py:NAME"),
        ("broken.py:Net", "broken.py, line 3: ZeroDivisionError"),
        ("typo.py:Net", "typo.py, line 1: SyntaxError"),
    ):
        code, _, err = wecfl("run", "--model", model, *FLAGS, "--out", "run")
        assert (code, err.count("\n")) == (2, 1), (model, err)
        assert said in err, (model, err)
        assert not Path("run").exists()
