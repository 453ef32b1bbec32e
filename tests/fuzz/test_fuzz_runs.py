"""Run folders, results and definitions gone wrong, and what the commands make of them."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import load_file, save_file

import damage
from fuzzing import FACTOR, chances, contents, judge, tries
from helpers import Wecfl, run_flat
from wecfl import methods
from wecfl.config import Config
from wecfl.errors import WecflError
from wecfl.experiment import run_config
from wecfl.experiment.loading import load
from wecfl.from_config import federation_of
from wecfl.paper.definition_files import read_definitions
from wecfl.paper.definitions import ordered
from wecfl.paper.execution import perform
from wecfl.paper.queue import queue
from wecfl.paper.result_store import ResultStore

DAMAGE: dict[str, damage.Damage] = {
    ".json": damage.of_json,
    ".jsonl": damage.of_json_lines,
    ".csv": damage.of_csv,
    ".toml": damage.of_toml,
    ".safetensors": damage.of_safetensors,
}
SMALL = Config(
    model="logistic", clients=4, groups=2, clusters=2, rounds=3, steps=2, lr=0.05, workers=1
)


def spoil(file: Path, rnd: Random) -> None:
    file.write_bytes(DAMAGE[file.suffix](file.read_bytes(), rnd))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run from a configuration, measured in full; one of Python values."""
    path = tmp_path_factory.mktemp("runs")
    measured = SMALL.model_copy(update={"diagnostics": True, "clients": 6, "newcomers": 0.3})
    run_config(measured, out=path / "config")
    fed, out = federation_of(SMALL), path / "values"
    quick = {"model": "logistic", "rounds": 2, "steps": 2, "workers": 1}
    run_flat(fed, methods.wecfl(k=2), newcomers=0.25, out=out, **quick)
    return path


def fresh(
    runs: Path,
    place: Path,
    rnd: Random,
    names: tuple[str, ...],
    which: tuple[str, ...] = ("config", "values"),
) -> Path:
    """A copy of one of the runs with one file gone wrong."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(runs / rnd.choice(which), place)
    spoil(place / rnd.choice(names), rnd)
    return place


@tries(15)
@given(rnd=chances)
def test_check(wecfl: Wecfl, runs: Path, tmp_path: Path, rnd: Random) -> None:
    names = ("config.toml", "summary.json", "metrics.jsonl", "models.safetensors")
    folder = fresh(runs, tmp_path / "run", rnd, names)
    reads_only(wecfl, folder, None, "check", folder, rnd.choice(("--rounds", "--json")))


@tries(15)
@given(rnd=chances)
def test_compare(wecfl: Wecfl, runs: Path, tmp_path: Path, rnd: Random) -> None:
    folder = fresh(runs, tmp_path / "run", rnd, ("config.toml", "summary.json"))
    reads_only(wecfl, folder, None, "compare", folder, runs / "values")


def reads_only(wecfl: Wecfl, folder: Path, written: Path | None, *tokens: str | Path) -> None:
    """Writes its file if, and only if, it worked; changes nothing in the folder."""
    before = contents(folder)
    if written:
        written.unlink(missing_ok=True)
    worked = judge(wecfl(*tokens))
    assert written is None or written.exists() == worked
    assert contents(folder) == before


@tries(3)
@given(rnd=chances)
def test_compare_with_a_figure(wecfl: Wecfl, runs: Path, tmp_path: Path, rnd: Random) -> None:
    names = ("config.toml", "summary.json", "metrics.jsonl", "clients.csv")
    folder, figure = fresh(runs, tmp_path / "run", rnd, names), tmp_path / "new.svg"
    reads_only(wecfl, folder, figure, "compare", folder, "--figure", figure)


@tries(2)
@given(rnd=chances)
def test_report(wecfl: Wecfl, runs: Path, tmp_path: Path, rnd: Random) -> None:
    names = (
        "config.toml", "env.json", "summary.json", "metrics.jsonl", "assignments.csv",
        "classes.csv", "clients.csv", "newcomers.csv", "trace/0001.safetensors",
        "trace/0002.safetensors",
    )  # fmt: skip
    which = ("config", "values") if FACTOR else ("values",)  # the other has more charts
    folder, page = fresh(runs, tmp_path / "run", rnd, names, which), tmp_path / "new.html"
    reads_only(wecfl, folder, page, "report", folder, "--out", page)


def test_newcomers_without_the_score_of_the_run(wecfl: Wecfl, runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs / "config", folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert "newcomers" in summary
    (folder / "summary.json").write_text(json.dumps({**summary, "scores": {"macro_f1": "higher"}}))
    reads_only(wecfl, folder, tmp_path / "p.html", "report", folder, "--out", tmp_path / "p.html")


@tries(10)
@given(rnd=chances)
def test_assign_and_export(wecfl: Wecfl, runs: Path, tmp_path: Path, rnd: Random) -> None:
    names = ("config.toml", "summary.json", "models.safetensors", "reference.safetensors")
    folder = fresh(runs, tmp_path / "run", rnd, names, ("config",))
    np.savez(tmp_path / "new.npz", x=np.eye(64).reshape(64, 1, 8, 8), y=np.arange(64) % 10)
    by = rnd.choice(("update", "losses"))
    reads_only(wecfl, folder, None, "assign", folder, tmp_path / "new.npz", "--by", by)
    out = tmp_path / "cluster.safetensors"
    reads_only(wecfl, folder, out, "export", folder, "--cluster", "1", "--out", out)


@tries(15)
@given(rnd=chances)
def test_load(runs: Path, tmp_path: Path, rnd: Random) -> None:
    """A result that predicts, or an error that is meant."""
    checkpoints = [f"checkpoints/000002.{kind}" for kind in ("json", "safetensors")]
    names = ("config.toml", "summary.json", "models.safetensors", "clients.csv", *checkpoints)
    folder = fresh(runs, tmp_path / "run", rnd, names)
    with suppress(WecflError):
        loaded = load(folder)
        shape = loaded.newcomer_setup.blueprint.shape
        assert loaded.predict(np.zeros((2, *shape)), client=0).shape == (2,)


@tries(8)
@given(rnd=chances)
def test_resume(wecfl: Wecfl, runs: Path, tmp_path: Path, rnd: Random) -> None:
    """Goes on, or refuses and leaves all as it is."""
    kinds = ("json", "safetensors")
    checkpoints = [f"checkpoints/00000{t}.{kind}" for t in (2, 3) for kind in kinds]
    names = ("config.toml", "env.json", "metrics.jsonl", "assignments.csv", *checkpoints)
    folder = fresh(runs, tmp_path / "run", rnd, names, ("config",))
    before = contents(folder)
    if not judge(wecfl("resume", folder, "--rounds", "4")):
        assert {**contents(folder), ".lock": ""} == {**before, ".lock": ""}


def test_distances_as_large_as_float32_can_be_drawn(wecfl: Wecfl, tmp_path: Path) -> None:
    """The plane of five clients is a t-SNE: none of it may end in a warning."""
    run_config(SMALL.model_copy(update={"clients": 5}), out=tmp_path / "run")
    for huge in (3e38, 0.0):
        for file in (tmp_path / "run" / "trace").iterdir():
            arrays = {name: np.full_like(array, huge) for name, array in load_file(file).items()}
            save_file(arrays, file)
        judge(wecfl("report", tmp_path / "run"))


# The queue of the paper

TABLE = """
title = "A small table"
paper = "table1"

[base]
model = "logistic"
clients = 4
groups = 2
rounds = 2
steps = 2

[[sets]]
priority = 1
seeds = 1
method = "fedavg+"
clusters = 2

[[sets]]
priority = 2
seeds = 2
method = "wecfl"
clusters = [1, 2]
label = "tuned"
tune = [0.01, 0.1]
alpha = [0.1, 10]
"""
FIGURES = ("convergence", "cosine", "tsne", "objectives")


def define(folder: Path) -> Path:
    folder.mkdir()
    (folder / "small.toml").write_text(TABLE)
    same = "priority = 1\nseeds = 1\nmodel = 'logistic'\nclients = 4\ngroups = 2\nrounds = 2"
    for name in FIGURES:
        text = f"title = 'x'\nfigure = '{name}'\n[[sets]]\n{same}\nclusters = 2\ntrace = true\n"
        (folder / f"{name}.toml").write_text(text)
    lies = "clusters = 2\nattack = 'backdoor'\naggregation = ['mean', 'krum']\n"
    shown = "table = 'robustness'\nfigure = 'robustness'\ntogether = true\n"
    (folder / "liars.toml").write_text(f"title = 'x'\n{shown}[[sets]]\n{same}\n{lies}")
    return folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Definitions and the results of all their runs."""
    path = tmp_path_factory.mktemp("stored")
    defined = read_definitions(define(path / "definitions"))
    store = ResultStore(path / "results")
    asked = [pair for each in defined.values() for pair in ordered([each])]
    while todo := queue(asked, store):
        for each in todo:
            config = each.config.model_copy(update={"workers": 1})
            perform(replace(each, config=config), store, federation_of(config))
    return path


@tries(5)
@given(rnd=chances)
def test_results(wecfl: Wecfl, stored: Path, tmp_path: Path, rnd: Random) -> None:
    results = tmp_path / "results"
    shutil.rmtree(results, ignore_errors=True)
    shutil.copytree(stored / "results", results)
    file = rnd.choice(sorted(results.glob("*.json*")))
    spoil(file, rnd)
    before = contents(results)
    shown = rnd.choice(FIGURES[1:]) if "_trace_" in file.name else "small"
    shown = "liars" if file.suffix == ".jsonl" else shown
    ask = ("reproduce", shown, "--definitions", stored / "definitions", "--results", results)
    judge(wecfl(*ask, "--dry-run" if shown == "small" and rnd.random() < 0.5 else "--show"))
    assert before.items() <= contents(results).items()


@tries(15)
@given(rnd=chances)
def test_definitions(wecfl: Wecfl, tmp_path: Path, rnd: Random) -> None:
    folder = tmp_path / "definitions"
    shutil.rmtree(folder, ignore_errors=True)
    spoil(define(folder) / "small.toml", rnd)
    before = contents(tmp_path)
    judge(wecfl("reproduce", "small", "--definitions", folder, rnd.choice(("--show", "--dry-run"))))
    assert contents(tmp_path) == before
