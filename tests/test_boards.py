"""Tables of all methods, and beside others' figures: what a definition of them means and shows."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import Wecfl
from wecfl.config import Config
from wecfl.errors import ConfigError
from wecfl.folder.parsing import read_json_lines
from wecfl.folder.result_schema import ResultSchema
from wecfl.from_config import federation_of
from wecfl.method_from_config import method_of
from wecfl.methods import METHODS
from wecfl.paper.definition_files import read_definitions
from wecfl.paper.definitions import Cell, PlannedRun
from wecfl.paper.queue import chosen_run
from wecfl.paper.result_store import ResultStore

SMALL = {"clients": 4, "groups": 2, "partition": "iid"}


def test_test_samples_can_be_common_or_merged() -> None:
    divided, common, merged = (
        federation_of(Config(**SMALL, test_set=kind, holdout=0.25))
        for kind in ("divided", "common", "merged")
    )
    everything = np.sort(np.concatenate(divided.test))
    assert all((rows == everything).all() for rows in common.test)
    for one, other in zip(divided.train, common.train, strict=True):
        assert (one == other).all()
    held = [*merged.train, *merged.test]
    assert sorted(np.concatenate(held)) == [*range(1797)]  # each sample once, whatever it was for
    assert len(np.concatenate(merged.test)) == pytest.approx(1797 / 4, abs=40)


def test_copies_are_seen_by_several_clients_and_samples_are_at_most_so_many() -> None:
    twice = federation_of(Config(**SMALL, copies=2))
    assert twice.sizes.sum() == 2 * 1438 and sum(map(len, twice.test)) == 2 * 359
    few = federation_of(Config(**SMALL, samples=20))
    assert few.sizes.tolist() == [20] * 4 and sum(map(len, few.test)) == 359


def test_models_are_adapted_only_where_clients_are_served_the_model_of_their_cluster() -> None:
    tuned = method_of(Config(method="ifca", clusters=2, adapt_steps=3))
    assert tuned.serve == METHODS["fedavg-ft"](3).serve
    with pytest.raises(ConfigError, match=r"adapt_steps is for .* ditto does not"):
        method_of(Config(method="ditto", adapt_steps=3))


def test_every_method_is_on_the_leaderboard_with_as_many_candidates() -> None:
    cells = read_definitions()["leaderboard"].cells
    worlds = {cell.label for cell in cells}
    assert {(cell.label, cell.config.method) for cell in cells} == {
        (world, method) for world in worlds for method in METHODS
    }
    assert {len(cell.tune) for cell in cells} == {6}
    for cell in cells:
        if cell.label == "digits, labels by group":
            for run in cell.candidates:  # an option that a method does not have is an error
                assert method_of(run.config).name == cell.config.method
                assert run.config.seed == 100 and run.config.validation
                assert run.config.adapt_steps is None
    every = {cell.config.method for cell in read_definitions()["methods"].cells}
    assert every == set(METHODS)


def written(store: ResultStore, run: PlannedRun, accuracy: float, **more: Any) -> None:
    """A stored result that nobody has computed."""
    curve = {"round": [1, 2], "accuracy": [0.9, 0.5], "macro_f1": [0.5, 0.5], "clusters": [1, 2]}
    by = {"engine": "native", "made_by": {"cpu": "abacus", "cores": 2}, "seconds": 1.0}
    scores = {"accuracy": accuracy, "macro_f1": 0.5, "ari": None, "worst_decile": 0.25}
    store.write(run, {**scores, **by, "curve": curve, **more})


BOARD = """
title = "Board"
table = "leaderboard"
together = true
[base]
seeds = 2
adapt = 2
tune_seed = 9
label = "a world"
[[sets]]
priority = 1
method = ["fedavg", "ditto"]
clusters = 1
tune = { lr = [0.01, 0.1] }
"""


def test_a_leaderboard_tunes_shows_and_can_be_sorted(
    wecfl: Wecfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "board.toml").write_text(BOARD)
    fedavg, ditto = read_definitions(tmp_path)["board"].cells
    assert fedavg.config.adapt_steps == 2 and ditto.config.adapt_steps is None
    store = ResultStore(tmp_path / "docs" / "results")
    for run, accuracy in zip(fedavg.candidates, (0.5, 0.6), strict=True):
        written(store, run, accuracy)
    best = chosen_run(fedavg, 0, store)
    assert best and best.config.lr == 0.1 and best.config.adapt_steps == 2
    traffic = {"up": 30_000_000, "down": 60_000_000, "messages": 3}
    written(
        store,
        best,
        0.75,
        before={"accuracy": 0.5, "macro_f1": 0.4},
        traffic=traffic,
        cpu_seconds=2.0,
    )

    monkeypatch.chdir(tmp_path)
    shown = wecfl("reproduce", "board", "--definitions", tmp_path, "--show")
    assert shown.code == 0
    markdown = (store.folder / "board.md").read_text()
    scores = "50.0 | 50.0 | 75.0 | 40.0 | 25.0 | 60 | 2.0 | 2.0 | –"
    assert f"| fedavg | one model | {scores} | lr 0.1 | 1 |" in markdown
    assert "| a world | fedavg 50.0 | not run | not run | fedavg 75.0 |" in markdown
    assert "| fedavg | one model | **50.0** |" in markdown
    assert "| ditto | a model per client | not run |" in markdown
    page = (store.folder / "board-page.html").read_text()
    assert 'data-value="75.0"' in page and "1 of 2 rows have run" in page
    assert "http" not in page  # it needs nothing from elsewhere


def test_what_all_results_have_is_written_once(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    runs = [PlannedRun(Config(lr=lr), pool="all") for lr in (0.1, 0.2, 0.3)]
    for run in runs:
        written(store, run, 0.5)
    first, *lines = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert first["common"]["config"]["clients"] == 50 and first["common"]["made_by"]["cores"] == 2
    assert [line["config"] for line in lines] == [
        {"lr": each["config"]["lr"]} for each in islice(store.all(), 3)
    ]
    assert all(store.read(run) for run in runs)
    assert read_json_lines(tmp_path / "all.jsonl", ResultSchema)[0]["config"]["dataset"] == "digits"
    for broken in ('{"common": 3}\n', '{"common": {"config": []}}\n'):
        (tmp_path / "all.jsonl").write_text(broken)
        with pytest.raises(Exception, match="line 1: 'common' must hold tables"):
            store.all()


BESIDE = """
title = "Beside"
table = "external"
together = true
[bases.theirs]
source = "Somebody's README"
their_rounds = 50
rounds = 2
clusters = 1
[[sets]]
like = "theirs"
priority = 1
seeds = 1
label = "a world"
method = ["fedavg", "fedprox", "local"]
score = "best"
theirs = { fedavg = [80.0, 2.0], fedprox = [88.0, 4.0], local = [70.0] }
"""


def test_others_figures_stand_beside_ours_by_their_rule(
    wecfl: Wecfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.toml").write_text(BESIDE)
    store = ResultStore(tmp_path / "docs" / "results")
    for cell in read_definitions(tmp_path)["beside"].cells[:2]:
        written(store, cell.run(0), 0.5)  # the best round has 0.9
    monkeypatch.chdir(tmp_path)
    assert wecfl("reproduce", "beside", "--definitions", tmp_path, "--show").code == 0
    text = (store.folder / "beside.md").read_text()
    head, _, far = text.partition("More than 2 of their ± away")
    row = "| a world | fedavg | 80.00 ± 2.00 | 90.00 | +10.00 | +5.0 | 2 of 50 | 1 |"
    assert "Somebody's README" in head and row in head and row in far
    assert "| a world | fedprox | 88.00 ± 4.00 | 90.00 | +2.00 | +0.5 | 2 of 50 | 1 |" in head
    assert "| a world | local | 70.00 | not run | – | – | 2 of 50 | 0 |" in head
    assert "fedprox" not in far

    (tmp_path / "beside.toml").write_text(BESIDE.replace('like = "theirs"', 'like = "their"'))
    refused = wecfl("reproduce", "beside", "--definitions", tmp_path, "--show")
    assert refused.code == 2 and "unknown base 'their'; did you mean 'theirs'?" in refused.err
    (tmp_path / "beside.toml").write_text(BESIDE.replace("local = [70.0]", "ditto = [70.0]"))
    refused = wecfl("reproduce", "beside", "--definitions", tmp_path, "--show")
    assert refused.code == 2 and "unknown method of a set 'ditto'" in refused.err
    changed = BESIDE.replace('score = "best"', "but = { local = { lr = 0.5 } }")
    (tmp_path / "beside.toml").write_text(changed)
    rates = [cell.config.lr for cell in read_definitions(tmp_path)["beside"].cells]
    assert rates == [0.001, 0.001, 0.5]


def test_a_choice_may_be_an_option_of_the_method() -> None:
    cell = Cell(Config(method="fedprox"), tune=((("lr", 0.1), ("mu", 0.5)),))
    [run] = cell.candidates
    assert run.config.mu == 0.5 and not run.config.options
    cell = Cell(Config(method="ditto", options=(("lam", 2.0),)), tune=((("lam", 0.5),),))
    assert cell.candidates[0].config.options == (("lam", 0.5),)
