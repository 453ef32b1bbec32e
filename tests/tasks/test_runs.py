"""Runs of every task, from the command line and from Python: folder, page, resume, newcomers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pytest

import wecfl
from wecfl import Federation, methods
from wecfl.errors import ConfigError
from wecfl.folder.readers import read_clients, read_metrics, read_summary
from wecfl.report.page.html import page
from wecfl.report.tables.results import result_cells, results, text_columns
from wecfl.tasks import Binary, Classification, MultiLabel, Regression

if TYPE_CHECKING:
    from helpers import Wecfl

QUICK: dict[str, Any] = {
    "model": "logistic",
    "plan": wecfl.Plan(lr=0.05),
    "engine": wecfl.Compute(workers=1),
}
FLAGS = ["--model", "logistic", "--lr", "0.05", "--clusters", "2", "--workers", "1"]


def two_kinds(m: int = 8, n: int = 30, outputs: int = 1) -> tuple[list[Any], list[Any]]:
    """Samples and numbers of clients of two kinds, between which the relation changes its sign."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 3)).astype(np.float32) for _ in range(m)]
    slopes = rng.normal(size=(3, outputs))
    ys = [x @ slopes * (-1) ** i + 0.1 * rng.normal(size=(n, outputs)) for i, x in enumerate(xs)]
    return xs, [y[:, 0] if outputs == 1 else y for y in ys]


def folder_of_clients(folder: Path, xs: list[Any], ys: list[Any]) -> Path:
    folder.mkdir()
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        np.savez(folder / f"{i}.npz", x=x, y=y)
    return folder


def test_a_regression_from_files_to_an_exported_model(wecfl: Wecfl, tmp_path: Path) -> None:
    xs, ys = two_kinds()
    data = folder_of_clients(tmp_path / "data", xs, ys)
    code, out, _ = wecfl("run", "--dataset", data, *FLAGS, "--rounds", "8", "--out", "whole")
    assert code == 0
    assert re.search("task: regression.*float", out)
    assert "RMSE ↓" in out and "worst tenth" in out and "accuracy" not in out
    summary = read_summary(tmp_path / "whole")
    assert summary["config"]["task"] == "regression"
    assert summary["scores"] == {"rmse": "lower", "r2": "higher", "mae": "lower"}
    assert summary["rmse"] < 0.3 and summary["worst_decile"] >= summary["rmse"]
    clients = read_clients(tmp_path / "whole")
    assert clients["cluster"].tolist() == [i % 2 ^ clients["cluster"][0] for i in range(8)]
    assert clients["rmse"].max() == pytest.approx(
        read_metrics(tmp_path / "whole")[-1]["worst_decile"], rel=1e-5
    )
    html = page([tmp_path / "whole"])
    assert "RMSE (lower is better)" in html and "RMSE of the worst tenth" in html
    together = read_metrics(tmp_path / "whole")[-1]["cluster_scores"]
    assert all(f"pooled RMSE {score:.4g}" in html for score in together)
    assert "ccuracy" not in html.partition("<script")[0]

    assert wecfl("run", "--dataset", data, *FLAGS, "--rounds", "5", "--out", "half").code == 0
    assert wecfl("resume", "half", "--rounds", "8").code == 0
    for name in ("models.safetensors", "clients.csv", "assignments.csv"):
        assert (tmp_path / "half" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    code, out, _ = wecfl("assign", "whole", data / "3.npz", "--json")
    (found,) = json.loads(out)
    assert code == 0 and found["cluster"] == clients["cluster"][3] and found["rmse"] < 0.3
    assert "RMSE" in wecfl("assign", "whole", data / "3.npz").out

    assert wecfl("export", "whole", "--cluster", "0", "--format", "onnx").code == 0
    session = onnxruntime.InferenceSession(tmp_path / "whole" / "cluster-0.onnx")
    (served,) = session.run(None, {"samples": xs[0]})
    near, far = (np.abs(served[:, 0] - y).mean() for y in (ys[0], ys[1]))
    assert min(near, np.abs(served[:, 0] + ys[0]).mean()) < 0.3
    assert session.get_modelmeta().custom_metadata_map["task"] == "regression(outputs=1)"
    assert far > 0


def test_numbers_are_shared_out_without_classes(wecfl: Wecfl, tmp_path: Path) -> None:
    xs, ys = two_kinds(m=1, n=80)
    np.savez(tmp_path / "pool.npz", x=xs[0], y=ys[0])
    flags = ["--dataset", "pool.npz", *FLAGS, "--rounds", "1", "--clients", "4"]
    code, _, err = wecfl("run", *flags)
    assert code == 2 and "targets are numbers" in err and "iid" in err
    assert wecfl("run", *flags, "--partition", "iid", "--out", "a").code == 0
    assert (
        wecfl("run", *flags, "--partition", "quantity-skew", "--alpha", "9", "--out", "b").code == 0
    )
    assert not (tmp_path / "a" / "classes.csv").exists()
    code, _, err = wecfl("partition", *flags[:2], "--partition", "iid", "--clients", "4")
    assert code == 2 and "targets of pool.npz are numbers" in err


def test_a_pool_is_shared_out_as_its_task_says(wecfl: Wecfl, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    np.savez(tmp_path / "ages.npz", x=x, y=rng.integers(18, 90, 200))
    np.savez(tmp_path / "floats.npz", x=x, y=rng.integers(0, 3, 200).astype(float))
    flags = [*FLAGS, "--rounds", "1", "--clients", "4", "--groups", "2"]
    ages = ["run", "--dataset", "ages.npz", *flags]
    for task, said in (("auto", "distinct values"), ("regression", "targets are numbers")):
        code, _, err = wecfl(*ages, "--task", task)
        assert code == 2 and said in err and err.count("\n") == 1
    assert wecfl(*ages, "--task", "regression", "--partition", "iid", "--out", "ages").code == 0
    floats = ["run", "--dataset", "floats.npz", *flags, "--task", "classification"]
    assert wecfl(*floats, "--out", "floats").code == 0
    assert (tmp_path / "floats" / "classes.csv").exists()


def test_runs_of_two_tasks_are_compared_each_by_its_headline(wecfl: Wecfl, tmp_path: Path) -> None:
    xs, ys = two_kinds(m=4)
    data = folder_of_clients(tmp_path / "data", xs, ys)
    for task in ("regression", "regression(loss=mae)"):
        assert (
            wecfl(
                "run", "--dataset", data, *FLAGS, "--rounds", "2", "--task", task, "--out", task
            ).code
            == 0
        )
    more = ["--clients", "4", "--groups", "2", "--rounds", "1", "--out", "digits"]
    assert wecfl("run", *FLAGS, *more).code == 0
    assert wecfl("compare", ".").code == 0
    folders = [tmp_path / name for name in ("digits", "regression", "regression(loss=mae)")]
    heads, rows = result_cells(results(folders))
    scores = heads[text_columns(results(folders)) :][:4]
    assert scores == ["accuracy %", "macro-F1 %", "RMSE ↓", "R²"]
    errors = [row[heads.index("RMSE ↓")] for row in rows]
    assert errors[0] == "–" and float(errors[1]) <= float(errors[2])  # the best of a task first
    assert "RMSE" in page([tmp_path / "regression", tmp_path / "digits"])


@pytest.mark.parametrize(
    ("task", "headline"),
    [
        (Classification(weights="balanced", smoothing=0.1, gamma=1.0), "accuracy"),
        (Classification(headline="auc"), "auc"),
        (Binary(), "accuracy"),
        (MultiLabel(), "auc"),
        (Regression("huber"), "rmse"),
        (Regression("quantile", quantile=0.7), "pinball"),
    ],
)
def test_every_task_learns_what_tells_the_clients_apart(
    task: Any, headline: str, tmp_path: Path
) -> None:
    xs, ys = two_kinds(outputs=2 if isinstance(task, MultiLabel) else 1)
    if not isinstance(task, Regression):
        ys = [(y > 0).astype(np.int64) for y in ys]
    result = wecfl.run(
        Federation.from_arrays(xs, ys), methods.wecfl(k=2), task=task, rounds=8,
        folder=tmp_path / "a", **QUICK,
    )  # fmt: skip
    assert len(set(result.labels[::2])) == len(set(result.labels[1::2])) == 1
    assert result.labels[0] != result.labels[1]
    first, last = result.records[0], result.records[-1]
    assert next(iter(result.summary["scores"])) == headline
    sign = -1 if headline in task.lower else 1
    assert sign * last[headline] >= sign * first[headline]
    assert read_summary(tmp_path / "a")[headline] == result.summary[headline]
    found = result.assign(xs[1], ys[1])
    assert found.cluster == result.labels[1] and list(found.scores) == list(
        result.summary["scores"]
    )


def test_attacks_on_labels_need_labels() -> None:
    xs, ys = two_kinds(m=4)
    conditions = wecfl.Conditions(attack=wecfl.Attack("label-flip"))
    with pytest.raises(ConfigError, match="targets are numbers"):
        wecfl.run(Federation.from_arrays(xs, ys), methods.fedavg, conditions=conditions, **QUICK)


def test_a_vote_of_regressions_is_their_mean() -> None:
    xs, ys = two_kinds()
    alike = Federation.from_arrays(xs, [y * (-1) ** i for i, y in enumerate(ys)])
    one, vote = (
        wecfl.run(alike, method, rounds=20, **QUICK)
        for method in (methods.fedavg, methods.fedavg_plus(3))
    )
    assert one.summary["rmse"] < 0.3
    assert vote.summary["rmse"] < 1.2 * one.summary["rmse"]
