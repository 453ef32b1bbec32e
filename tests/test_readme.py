"""What README.md promises is tested: here, or by the tests that are named here."""

import ast
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import wecfl
from wecfl.cli import app
from wecfl.methods import METHODS
from wecfl.models import MODELS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")

PROMISES = {
    "BatchNorm, Dropout and frozen layers work": {
        "engine/test_torch.py": [
            "test_batchnorm_trains_as_in_torch_statistics_included",
            "test_dropout_is_keyed_and_leaves_torch_alone",
            "test_frozen_parameters_stay",
        ]
    },
    "If you give an instance": {
        "runs/test_experiment.py": ["test_a_model_as_class_function_or_instance"]
    },
    "Anything else trains on the torch engine, and one line says why": {
        "engine/test_native.py": ["test_what_the_kernels_do_not_know_runs_on_torch_with_one_line"]
    },
    "A client that comes later": {
        "runs/test_newcomers.py": ["test_the_folder_assigns_as_the_result_does"]
    },
    "survives interruption": {
        "test_reproduce.py": ["test_interrupted_it_keeps_what_was_finished_and_goes_on"]
    },
    "nothing is ever unpickled": {"fuzz/test_fuzz_data.py": ["test_objects_are_not_unpickled"]},
    "**Same seed, same bits**": {
        "test_freeze.py": [
            "test_the_same_seed_gives_the_same_bits_and_another_one_does_not",
        ],
        "conformance/test_methods.py": [
            "test_every_method_gives_the_same_bits_with_any_number_of_workers"
        ],
    },
    "**Checked against something else**": {
        "test_twin.py": ["test_same_assignments_and_models_as_the_twin"]
    },
    "**Nothing lost**": {"runs/test_resume.py": ["test_kills_change_nothing"]},
    "**Bad replies refused**": {
        "conformance/test_programs.py": ["test_what_is_not_finite_resets_a_client_to_its_start"]
    },
    "**More than one machine**": {
        "deploy/test_ray.py": [
            "test_every_method_gives_the_same_bits",
            "test_a_node_that_dies_is_done_without",
        ]
    },
    "**Your tools can watch**": {
        "report/test_trackers.py": [
            "test_tensorboard_holds_every_number_of_every_round",
            "test_mlflow_holds_every_number_of_every_round",
        ]
    },
    "**Errors you can act on**": {"test_cli.py": ["test_bad_input_is_one_line_and_writes_nothing"]},
}
"""What README.md says, and which tests would fail if it were false."""


@pytest.mark.parametrize("promise", PROMISES)
def test_promises_have_tests(promise: str) -> None:
    assert promise in " ".join(README.split()), (
        "README.md says this in other words: update PROMISES"
    )
    for file, names in PROMISES[promise].items():
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert set(names) <= there, f"{file}: {set(names) - there}"


def test_everything_to_rely_on_has_a_test() -> None:
    section = README.partition("## What you can rely on")[2]
    heads = re.findall(r"^- (\*\*.+?\*\*)", section, re.M)
    assert heads and set(heads) <= set(PROMISES)


def test_commands_in_the_text_parse() -> None:
    commands = re.findall(r"`(wecfl [^`]+)`", README)
    for command in commands:
        words = command.replace("HOST:PORT", "localhost:1").replace("\n", " ")
        if "…" not in words and words != "wecfl resume RUN":
            app.parse_args(shlex.split(words)[1:], exit_on_error=False, print_error=False)
    assert commands


def test_it_lists_every_method_and_every_model() -> None:
    table = README.partition("## Your own method")[2].partition("They can be combined")[0]
    listed = re.findall(r"`([\w+-]+)`", table.partition("|---|---|")[2])
    assert sorted(listed) == sorted(METHODS)
    assert f"{len(METHODS)} methods" in README
    for name in MODELS:
        assert f"`{name}`" in README


def test_what_is_said_of_the_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["requires-python"] == ">=3.11" and "Python 3.11 or newer" in README
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^(\S+)==(\S+)$", pins, re.M)
    assert [name for name, _ in pinned] == ["torch"]
    assert "+" not in pinned[0][1], "a version, not a build: README.md says so"
    assert {"flower", "onnx", "ray"} <= set(project["optional-dependencies"])


def test_the_first_example_says_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Accuracies to a point: bits depend on the instruction set."""
    monkeypatch.chdir(tmp_path)
    app("run --baselines", result_action="return_value", exit_on_error=False)
    printed = capsys.readouterr().out
    for method in ("wecfl", "fedavg", "local", "fedavg-ft"):
        row = rf"^ {method} +\d+ +([\d.]+) +[\d.]+ +([\d.]+) +(\d+) +([\d.]+)"
        said, found = re.search(row, README, re.M), re.search(row, printed, re.M)
        assert said and found
        for i, points in ((1, 1), (2, 5)):  # all clients, and the five that fare worst
            assert float(found[i]) == pytest.approx(float(said[i]), abs=points)
        assert found.groups()[2:] == said.groups()[2:]
    told = re.search(r"^task: .*$", printed, re.M)
    assert told and told[0] in README
    verdict = (
        r"serves (\d+) of (\d+)\s+clients better than one model .*?"
        r"worst\s+decile.*?wecfl ([\d.]+) %"
    )
    said, found = (re.search(verdict, text, re.S) for text in (README, printed))
    assert said and found
    for mine, its in zip(said.groups(), found.groups(), strict=True):
        assert float(mine) == pytest.approx(float(its), abs=2)


def test_every_line_of_what_you_can_bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    rng = np.random.default_rng(0)
    df = pd.DataFrame(
        {"site": ["north", "south"] * 10, "age": rng.normal(50, 9, 20), "sick": ["no", "yes"] * 10,
         "weight": rng.normal(70, 9, 20)}
    )  # fmt: skip
    df.to_csv("people.csv", index=False)
    xs, ys = [rng.normal(size=(8, 3)).astype(np.float32) for _ in "ab"], [np.arange(8) % 2] * 2
    Path("clients").mkdir()
    for name, x, y in zip("ab", xs, ys, strict=True):
        np.savez(f"clients/{name}.npz", x=x, y=y)
    partitioner = partitioners.IidPartitioner(num_partitions=2)
    partitioner.dataset = datasets.Dataset.from_pandas(df[["age", "sick"]])
    fed = wecfl.Federation.from_arrays(xs, ys)
    table = wecfl.Federation.from_frame(df, client="site", target="sick")
    wecfl.run(table, wecfl.methods.fedavg, model="logistic", rounds=1, folder="runs/people")
    has = {name: getattr(wecfl, name) for name in wecfl.__all__} | {
        "df": df, "xs": xs, "ys": ys, "fed": fed, "partitioner": partitioner, "torch": torch,
    }  # fmt: skip
    lines = re.findall(r"^\| [^|]+ \| `(.+)` \|$", README.partition("What you can bring")[2], re.M)
    assert len(lines) >= 13
    for line in lines[:13]:
        two = "[[[1" in line  # texts of two samples
        assert eval(line, has | ({"ys": [[0, 1]] * 2} if two else {})) is not None, line
