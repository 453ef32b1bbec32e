"""The model of a cluster, exported and loaded back: the same logits."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import wecfl
from conftest import federation
from helpers import run_flat
from wecfl import Result, methods
from wecfl.errors import ConfigError
from wecfl.folder.cluster_models import export_model
from wecfl.models import Vote, build

if TYPE_CHECKING:
    from helpers import Wecfl

QUICK: dict[str, Any] = {"rounds": 2, "steps": 2, "workers": 1, "objectives": False, "lr": 0.05}
SHAPES = {"mlp": (1, 8, 8), "cnn-fashion": (1, 28, 28), "cnn-cifar": (3, 32, 32)}


def trained(name: str, out: Path, method: wecfl.Method | None = None) -> Result:
    fed = federation(SHAPES[name], m=4)
    return run_flat(fed, method or methods.wecfl(k=2), model=name, out=out, **QUICK)


def logits(result: Result, x: Any) -> Any:
    return result.model(cluster=len(result.centers) - 1)(torch.from_numpy(x)).detach().numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_both_formats_give_the_same_logits(name: str, tmp_path: Path) -> None:
    result = trained(name, tmp_path / "run")
    x = np.random.default_rng(0).normal(size=(5, *SHAPES[name])).astype(np.float32)
    file = export_model(tmp_path / "run", 1, "safetensors", tmp_path / "new" / "a.safetensors")
    module = build(name, shape=SHAPES[name], classes=3)
    module.load_state_dict(load_file(file))
    loaded = module.eval()(torch.from_numpy(x)).detach().numpy()
    assert np.array_equal(loaded, logits(result, x))
    with safe_open(file, framework="numpy") as opened:
        about = opened.metadata()
    assert (about["model"], about["cluster"], about["classes"]) == (name, "1", "3")
    assert about["shape"] == " ".join(map(str, SHAPES[name]))
    session = onnxruntime.InferenceSession(
        export_model(tmp_path / "run", 1, "onnx", tmp_path / "a.onnx").read_bytes()
    )
    for some in (x, x[:1]):  # any number of samples
        (served,) = session.run(["logits"], {"samples": some})
        assert served == pytest.approx(logits(result, some), rel=1e-5, abs=1e-5)
    assert session.get_modelmeta().custom_metadata_map["model"] == name


def test_a_soft_vote_is_one_model(tmp_path: Path) -> None:
    result = trained("mlp", tmp_path / "run", methods.fedavg_plus(2))
    file = export_model(tmp_path / "run", 0, "safetensors", tmp_path / "a.safetensors")
    vote = Vote([build("mlp", shape=SHAPES["mlp"], classes=3) for _ in range(2)]).eval()
    vote.load_state_dict(load_file(file))
    x = np.random.default_rng(0).normal(size=(5, 1, 8, 8)).astype(np.float32)
    assert np.array_equal(vote(torch.from_numpy(x)).detach().numpy(), logits(result, x))


def test_what_can_t_be_exported_is_said_in_one_line(wecfl: "Wecfl", tmp_path: Path) -> None:

    trained("mlp", tmp_path / "run")
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    fed = federation((1, 8, 8), m=4)
    run_flat(fed, methods.wecfl(k=2), model=net, out="own", **QUICK)
    Path("file").write_text("mine")
    code, out, err = wecfl("export", "run", "--cluster", "1")
    assert (code, out, err) == (0, "model: run/cluster-1.safetensors\n", "")
    assert wecfl("export", "run", "--cluster", "1", "--replace").code == 0
    assert wecfl("export", "own", "--cluster", "1").code == 0  # the tensors need no module
    old = Path(__file__).parent.parent / "folders"
    for name in ("format-0", "format-1"):
        assert wecfl("export", old / name, "--cluster", "1", "--out", f"{name}.x").code == 0
    for tokens, problem in (
        (["run", "--cluster", "1"], "--replace"),
        (["run", "--cluster", "2"], "0 to 1"),
        (["run", "--cluster", "-1"], "no cluster -1"),
        (["run", "--cluster", "1", "--format", "pickle"], "--format"),
        (["run", "--cluster", "0", "--out", "file/a"], "file is not a folder"),
        (["run", "--cluster", "0", "--out", "a\0b"], "can't write the model"),
        (["own", "--cluster", "0", "--format", "onnx"], "Sequential"),
        (["nowhere", "--cluster", "0"], "nowhere"),
    ):
        code, _, err = wecfl("export", *tokens)
        assert (code, err.count("\n")) == (2, 1), (tokens, err)
        assert problem in err, (tokens, err)


@pytest.mark.parametrize("name", ["fedper", "local"])
def test_models_that_are_not_whole_are_not_given_away(
    name: str, tmp_path: Path, wecfl: "Wecfl"
) -> None:
    method = methods.named(name)
    result = trained("mlp", tmp_path / "values", method)
    flags = ["--clients", "6", "--groups", "2", "--rounds", "1", "--method", name]
    assert wecfl("run", *flags, "--out", "flags").code == 0
    x = np.zeros((8, 1, 8, 8), np.float32)
    np.savez(tmp_path / "late.npz", x=x, y=np.arange(8) % 3)
    for tokens in (
        ("export", str(tmp_path / "values"), "--cluster", "0"),
        ("export", "flags", "--cluster", "0"),
        ("assign", "flags", str(tmp_path / "late.npz")),
        ("run", *flags, "--newcomers", "0.3"),
    ):
        outcome = wecfl(*tokens)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert f"the clusters of {name} have no whole models" in outcome.err
    with pytest.raises(ConfigError, match="no whole models"):
        result.assign(x, np.arange(8) % 3)
