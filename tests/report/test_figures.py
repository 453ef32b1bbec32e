"""The overview of runs: what is drawn, and that names of curves can be read."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tomli_w

from wecfl.errors import ConfigError, RunFolderError
from wecfl.methods import METHODS
from wecfl.report.figures.curves import PANEL_HEIGHT
from wecfl.report.figures.files import save
from wecfl.report.figures.overview import overview


def folder(
    path: Path,
    curve: list[float],
    *,
    method: str = "wecfl",
    k: int = 2,
    seed: int = 0,
    labels: tuple[int, ...] = (1, 1, 0, 0),
    groups: tuple[int | None, ...] = (0, 0, 1, 1),
    **config: Any,
) -> Path:
    path.mkdir()
    summary = {
        "method": method, "k": k, "rounds": len(curve), "accuracy": curve[-1] if curve else None,
        "macro_f1": 0.5, "ari": 1.0, "clusters": len(set(labels)), "seconds": 1.0, "seed": seed,
        "status": "finished",
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "config.toml").write_text(tomli_w.dumps({"rounds": len(curve)} | config))
    scores = {"accuracy": [0.5] * 4, "macro_f1": [0.5] * 4}
    record = {
        "macro_f1": 0.5, "ari": 1.0, "clusters": 2, "sizes": [2, 2], "F": {}, "R": {},
        "clients": scores,
    }  # fmt: skip
    lines = [json.dumps({"round": t, "accuracy": a} | record) for t, a in enumerate(curve, start=1)]
    (path / "metrics.jsonl").write_text("\n".join(lines))
    pd.DataFrame({"client": range(4), "samples": 9, "group": groups, "cluster": labels}).to_csv(
        path / "clients.csv", index=False
    )
    return path


def drawn(folders: list[Path]) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """The specification and the data of each layer, in order."""
    spec = overview(folders).to_dict()
    layers = [layer for panel in spec["hconcat"] for layer in panel["layer"]]
    names = [(layer.get("data") or {"name": None})["name"] for layer in layers]
    return spec, [spec["datasets"].get(name, []) for name in names]


def test_curves_are_the_accuracy_of_each_round(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / "a", [0.1, 0.4], method="fedavg", k=1, labels=(0, 0, 0, 0)),
        folder(tmp_path / "b", [0.3, 0.8], k=2),
    ]
    spec, (curves, names, *_) = drawn(folders)
    assert [(row["name"], row["round"], row["accuracy"]) for row in curves] == [
        ("wecfl K=2", 1, 0.3), ("wecfl K=2", 2, 0.8), ("fedavg", 1, 0.1), ("fedavg", 2, 0.4),
    ]  # fmt: skip
    assert {row["name"]: row["place"] for row in names} == {"fedavg": 0.4, "wecfl K=2": 0.8}
    assert len(spec["hconcat"]) == 2


def test_seeds_are_one_curve_and_choices_two(tmp_path: Path) -> None:
    folders = [folder(tmp_path / str(s), [0.1 * (s + 1), 0.5], seed=s, lr=0.1) for s in (0, 1)]
    spec, (curves, *_) = drawn(folders)
    assert [row["accuracy"] for row in curves] == [pytest.approx(0.15), 0.5]
    assert [(row["lowest"], row["highest"]) for row in curves] == [(0.1, 0.2), (0.5, 0.5)]
    assert spec["hconcat"][0]["layer"][0]["mark"]["type"] == "area"  # a band over the seeds
    folders.append(folder(tmp_path / "c", [0.9, 0.9], lr=0.2))
    _, (curves, *_) = drawn(folders)
    assert {row["name"] for row in curves} == {"wecfl K=2 lr=0.1", "wecfl K=2 lr=0.2"}


def test_runs_of_different_length_are_two_curves(tmp_path: Path) -> None:
    _, (curves, names, *_) = drawn(
        [folder(tmp_path / "a", [0.1, 0.2]), folder(tmp_path / "b", [0.5])]
    )
    assert len(curves) == 3
    assert {row["name"] for row in names} == {"wecfl K=2 rounds=2", "wecfl K=2 rounds=1"}
    assert {row["round"] for row in names} == {2}  # all names at the right edge


def test_names_of_seven_curves_that_end_together_stay_apart(tmp_path: Path) -> None:
    ends = [0.8, 0.801, 0.802, 0.5, 0.5, 0.2, 0.9]
    folders = [
        folder(tmp_path / name, [0.1, end], method=name)
        for name, end in zip(list(METHODS)[:7], ends, strict=True)
    ]
    spec, (_, names, *_) = drawn(folders)
    top = spec["hconcat"][0]["layer"][0]["encoding"]["y"]["scale"]["domain"][1]
    places = sorted((row["place"], row["accuracy"]) for row in names)
    for (a, low), (b, high) in pairwise(places):
        assert (b - a) / top * PANEL_HEIGHT >= 12  # the size of the letters
        assert low <= high  # in the order of the curves
    assert all(abs(place - accuracy) / top * PANEL_HEIGHT < 30 for place, accuracy in places)
    page = save(overview(folders), tmp_path / "seven.svg").read_text(encoding="utf-8")
    for name in list(METHODS)[:7]:
        assert f">{name} K=2<" in page


def test_the_groups_of_the_run_that_found_the_most(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / "vote", [0.9], method="fedavg+", k=10, labels=(0, 0, 0, 0)),
        folder(tmp_path / "found", [0.5], labels=(1, 1, 0, 0)),
    ]
    spec, _ = drawn(folders)
    panel = spec["hconcat"][1]
    assert panel["layer"][0]["title"].endswith("(wecfl K=2)")
    counts = spec["datasets"][(panel.get("data") or panel["layer"][0]["data"])["name"]]
    assert [(c["group"], c["cluster"], c["clients"]) for c in counts] == [(0, 1, 2), (1, 0, 2)]
    assert panel["layer"][0]["encoding"]["y"]["sort"] == [1, 0]  # a match is a diagonal


def test_without_groups_there_is_one_panel(tmp_path: Path) -> None:
    one = folder(tmp_path / "a", [0.5], groups=(None,) * 4)
    assert len(overview([one]).to_dict()["hconcat"]) == 1
    same = folder(tmp_path / "b", [0.5], labels=(0,) * 4)
    assert len(overview([same]).to_dict()["hconcat"]) == 1


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".html"])
def test_the_overview_is_written(tmp_path: Path, suffix: str) -> None:
    run = folder(tmp_path / "a", [0.5])  # one round: a point, not an invisible line
    assert save(overview([run]), tmp_path / f"x{suffix}").stat().st_size > 1000


def test_what_can_not_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="nothing to draw"):
        overview([folder(tmp_path / "a", [])])
    broken = folder(tmp_path / "b", [0.5])
    (broken / "metrics.jsonl").write_text("{")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl"):
        overview([broken])
    good = folder(tmp_path / "c", [0.5])
    (good / "clients.csv").unlink()
    with pytest.raises(RunFolderError, match=r"clients\.csv"):
        overview([good])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"figure .*x\.png"):
        save(overview([folder(tmp_path / "d", [0.5])]), tmp_path / "file" / "x.png")
