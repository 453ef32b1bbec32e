"""Clients are scaled by the statistics of their cluster, in training and wherever it is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from sklearn.preprocessing import MinMaxScaler, StandardScaler

import wecfl
from wecfl import Federation, methods
from wecfl.errors import ConfigError, DataError
from wecfl.folder.cluster_models import export_model
from wecfl.runs.result import Result

PLAN = wecfl.Plan(lr=0.05)


def sites(n: int = 900) -> pd.DataFrame:
    """Six sites, half of which measure the pressure in another unit and read it the other way."""
    rng = np.random.default_rng(0)
    site, truth = rng.integers(0, 6, n), rng.normal(size=n)
    other = site % 2 == 1
    return pd.DataFrame(
        {
            "site": [f"s{i}" for i in site],
            "pressure": np.where(other, 1000 + 3 * truth, 10 + 200 * truth),
            "sex": rng.choice(["f", "m"], n),
            "sick": np.where((truth > 0) ^ other, "ill", "well"),
        }
    )


def trained(folder: Path, rounds: int = 15, *, resume: bool = False, **table: Any) -> Result:
    usual = {"client": "site", "target": "sick", "scale_by": "cluster"}
    fed = Federation.from_frame(sites(), **{**usual, **table})
    place = wecfl.Folder(folder, resume=resume)
    return wecfl.run(
        fed, methods.wecfl(k=2), model="logistic", rounds=rounds, plan=PLAN, folder=place
    )


@pytest.mark.parametrize(
    ("scale", "scaler"), [("standard", StandardScaler), ("minmax", MinMaxScaler)]
)
def test_it_is_what_scikit_learn_does_to_the_pooled_rows_of_a_cluster(
    scale: Any, scaler: Any, tmp_path: Path
) -> None:
    result = trained(tmp_path / "run", scale=scale, test=0)
    assert result.pipeline is not None
    assert isinstance(result.federation, Federation)
    frame, names = sites(), np.array(result.federation.names)
    assert len(np.unique(result.labels)) == 2
    for k in (0, 1):
        rows = frame[frame["site"].isin(names[result.labels == k])]
        pooled = scaler().fit_transform(rows[["pressure"]])
        made = result.pipeline.transform(rows.drop(columns=["site", "sick"]), k)
        np.testing.assert_allclose(made[:, :1], pooled, atol=1e-4)
    mine = result.federation.x[result.federation.train[1], 0]
    own = frame[frame["site"] == "s1"].drop(columns=["site", "sick"])
    np.testing.assert_allclose(mine, result.pipeline.transform(own, "s1")[:, 0], atol=1e-4)


def test_it_travels_with_the_models_and_pays(tmp_path: Path) -> None:
    result = trained(tmp_path / "run")
    assert result.clients["accuracy"].mean() > 0.9
    alike = wecfl.run(
        Federation.from_frame(sites(), client="site", target="sick"), methods.wecfl(k=2),
        model="logistic", rounds=15, plan=PLAN,
    )  # fmt: skip
    assert alike.clients["accuracy"].mean() < 0.85  # 200 times the unit hides what is told in 3
    rows = sites().query("site == 's1'").drop(columns=["site", "sick"])
    shares, k = result.predict_proba(rows, client="s1"), int(result.labels[1])
    np.testing.assert_array_equal(result.predict_proba(rows, cluster=k), shares)
    np.testing.assert_array_equal(
        wecfl.load(tmp_path / "run").predict_proba(rows, cluster=k), shares
    )
    export_model(tmp_path / "run", k, "onnx", tmp_path / "m.onnx")
    given = {"numbers": rows[["pressure"]].to_numpy(), "categories": rows[["sex"]].to_numpy(object)}
    [logits] = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(["logits"], given)
    assert (logits.argmax(axis=1) == shares.argmax(axis=1)).all()
    with pytest.raises(DataError, match="newcomer"):
        result.assign(rows, ["ill"] * len(rows))


def test_a_resumed_run_keeps_its_clusters(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", rounds=6)
    trained(tmp_path / "part", rounds=3)
    again = trained(tmp_path / "part", rounds=6, resume=True)
    np.testing.assert_array_equal(again.labels, whole.labels)
    np.testing.assert_array_equal(again.centers, whole.centers)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (methods.wecfl(k=2), {"newcomers": wecfl.Newcomers(0.3)}),
        (methods.wecfl(k=2), {"conditions": wecfl.Conditions(participation=0.5)}),
        (methods.wecfl(k=2), {"measure": wecfl.Measure(diagnostics=True)}),
        (methods.fedavg_plus(k=2), {}),
        (methods.fedem(k=2), {}),
    ],
)
def test_what_it_does_not_go_together_with(method: Any, options: dict[str, Any]) -> None:
    fed = Federation.from_frame(sites(60), client="site", target="sick", scale_by="cluster")
    with pytest.raises(ConfigError, match="scale_by cluster") as caught:
        wecfl.run(fed, method, model="logistic", rounds=1, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("scale", "by"), [("none", "cluster"), ("none", "client")])
def test_what_has_no_statistics(scale: Any, by: Any) -> None:
    with pytest.raises(DataError, match="needs scale"):
        Federation.from_frame(sites(60), client="site", target="sick", scale=scale, scale_by=by)
