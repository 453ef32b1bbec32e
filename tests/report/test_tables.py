"""The result table, from run folders written by hand."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from wecfl.report.tables.results import named_runs, results, rich_results

SUMMARY = {
    "method": "wecfl", "k": 3, "rounds": 5, "accuracy": 0.5, "macro_f1": 0.25, "ari": 1.0,
    "clusters": 3, "seconds": 2.0, "engine": "torch", "seed": 0, "status": "finished",
}  # fmt: skip
CONFIG: dict[str, Any] = {"method": "wecfl", "rounds": 5, "dataset": "digits", "lr": 0.1}


def folder(path: Path, config: dict[str, Any] | None = None, **summary: Any) -> Path:
    path.mkdir()
    (path / "summary.json").write_text(json.dumps(SUMMARY | summary))
    seed = {"seed": summary.get("seed", 0), "workers": 1 + summary.get("seed", 0)}
    (path / "config.toml").write_text(tomli_w.dumps(CONFIG | seed | (config or {})))
    return path


def text(folders: list[Path]) -> tuple[list[str], list[str]]:
    """The words of the heading and the lines below it, on a narrow terminal."""
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(rich_results(results(folders)))
    head, _, body = re.split(r"(─+)", console.export_text())
    return head.split(), [line for line in body.splitlines() if line.strip()]


def test_seeds_are_averaged(tmp_path: Path) -> None:
    scores = [0.2, 0.6, 0.7]
    folders = [
        folder(tmp_path / str(s), seed=s, accuracy=a, ari=a, macro_f1=a / 2, clusters=s, seconds=s)
        for s, a in enumerate(scores)
    ]
    [row] = results(folders).to_dict("records")
    assert row["seeds"] == 3
    for key, values in (("accuracy", scores), ("ari", scores)):
        assert row[key] == pytest.approx(np.mean(values))
        assert row[f"{key}_std"] == pytest.approx(np.std(values, ddof=1))
    assert row["macro_f1"] == pytest.approx(0.25)
    assert (row["clusters"], row["seconds"], row["unfinished"]) == (1, 1, 0)
    head, [line] = text(folders)
    assert "50.00 ± 26.46" in line
    assert "25.00 ± 13.23" in line
    assert "0.50 ± 0.26" in line
    assert head[-2:] == ["seeds", "seconds"]


def test_a_repeated_run_counts_once(tmp_path: Path) -> None:
    folders = [folder(tmp_path / name, accuracy=a) for name, a in (("a", 0.2), ("b", 0.4))]
    [row] = results(folders).to_dict("records")
    assert (row["seeds"], row["accuracy"]) == (1, 0.4)
    assert np.isnan(row["accuracy_std"])


def test_choices_that_differ_are_columns(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / "a", {"lr": 0.1, "alpha": [0.1, 10.0]}),
        folder(tmp_path / "b", {"lr": 0.2, "alpha": [0.1, 10.0]}, accuracy=0.9),
        folder(tmp_path / "c", {"lr": 0.2, "alpha": [0.1, 10.0]}, accuracy=0.7, seed=1),
    ]
    frame = results(folders)
    assert frame["lr"].tolist() == ["0.1", "0.2"]
    assert "alpha" not in frame
    assert "workers" not in frame
    assert frame["accuracy"].tolist() == [0.5, pytest.approx(0.8)]
    head, lines = text(folders)
    assert "lr" in head
    assert lines[0].split()[:4] == ["wecfl", "3", "0.2", "80.00"]  # the best comes first


def test_runs_of_different_length_are_different_experiments(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / "a", {"rounds": 5}, rounds=5),
        folder(tmp_path / "b", {"rounds": 50}, rounds=50, accuracy=0.9),
    ]
    frame = results(folders)
    assert frame["rounds"].tolist() == [5, 50]
    assert frame["accuracy"].tolist() == [0.5, 0.9]
    assert "rounds" in text(folders)[0]
    assert "rounds" not in text(folders[:1])[0]


def test_names_hold_what_the_method_alone_does_not_tell(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / "a", {"momentum": 0.0}, method="scaffold", k=1, accuracy=0.2),
        folder(tmp_path / "b", {"momentum": 0.9}, accuracy=0.6),
        folder(tmp_path / "c", {"momentum": 0.9}, accuracy=0.8, seed=1),
        folder(tmp_path / "d", {"momentum": 0.9}, method="fedavg", k=1, accuracy=0.5),
    ]
    assert named_runs(folders)["name"].tolist() == ["wecfl K=3"] * 2 + ["fedavg", "scaffold"]
    assert "momentum" in text(folders)[0]
    folders.append(folder(tmp_path / "e", {"momentum": 0.5}, method="fedavg", k=1, accuracy=0.9))
    names = ["fedavg momentum=0.5", *["wecfl K=3 momentum=0.9"] * 2]
    assert named_runs(folders)["name"].tolist()[:3] == names


def test_methods_and_numbers_of_clusters_are_apart(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / "a", method="fedavg", k=1),
        folder(tmp_path / "b", k=3),
        folder(tmp_path / "c", k=4),
    ]
    assert results(folders)[["method", "k"]].to_numpy().tolist() == [
        ["fedavg", 1], ["wecfl", 3], ["wecfl", 4],
    ]  # fmt: skip


def test_what_is_not_known_is_a_dash(tmp_path: Path) -> None:
    nothing = {"accuracy": None, "macro_f1": None, "ari": None, "clusters": None}
    lost = folder(tmp_path / "a", rounds=0, status="failed", **nothing)
    blind = folder(tmp_path / "b", {"lr": 1.0}, ari=None, method="odd[/name]")
    _, lines = text([lost, blind])
    assert lines[0].split() == ["odd[/name]", "3", "1.0", "50.00", "25.00", "3", "–", "5", "2.0"]
    assert lines[1].split() == ["wecfl", "(stopped)", "3", "0.1", *"––––0", "2.0"]
    assert results([lost, blind])["unfinished"].tolist() == [1, 0]


def test_the_usual_table_fits_a_narrow_terminal(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path / f"{name}{seed}", method=name, accuracy=a, seed=seed)
        for name, a in (("fedavg", 0.5), ("fedprox+", 0.75), ("wecfl", 1.0))
        for seed in (0, 1)
    ]
    head, lines = text(folders)
    assert set(head) == {
        "method", "K", "accuracy", "macro-F1", "%", "used", "ARI", "seeds", "seconds",
    }  # fmt: skip
    assert len(lines) == 3
    assert "…" not in "".join(lines)
