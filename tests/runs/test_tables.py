"""A table from the flag to the served model: what is trained on is what predicts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import wecfl
from helpers import serving
from wecfl.endpoint import make_app
from wecfl.folder.cluster_models import export_model
from wecfl.folder.readers import read_pipeline
from wecfl.runs.result import Result

if TYPE_CHECKING:
    from helpers import Wecfl

FLAGS = [
    "--client-column", "site", "--target", "sick", "--impute", "median", "--clusters", "2",
    "--rounds", "6", "--lr", "0.1", "--steps", "5", "--workers", "1",
]  # fmt: skip


def hospitals(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Six sites of two kinds: at half of them a high pressure means the opposite."""
    rng = np.random.default_rng(seed)
    site, pressure = rng.integers(0, 6, n), rng.normal(120, 20, n)
    noise = rng.normal(0, 3, n)
    frame = pd.DataFrame(
        {
            "site": [f"site {i}" for i in site],
            "pressure": pressure,
            "admitted": rng.integers(1_600_000_000, 1_700_000_000, n),
            "smokes": rng.choice(["no", "yes, much", "ätt"], n),
            "private": rng.random(n) < 0.5,
            "sick": np.where((pressure + noise > 120) ^ (site % 2 == 1), "ill", "well"),
        }
    )
    frame.loc[rng.random(n) < 0.1, "pressure"] = np.nan
    return frame


def inputs(result: Result, frame: pd.DataFrame) -> dict[str, Any]:
    """What the exported graph is given."""
    assert result.pipeline is not None
    numbers = [column.name for column in result.pipeline.numbers]
    texts = [column.name for column in result.pipeline.categories]
    given: dict[str, Any] = {"numbers": frame[numbers].astype(float).to_numpy()}
    return given | ({"categories": frame[texts].to_numpy(object)} if texts else {})


def asked(frame: pd.DataFrame, client: str) -> dict[str, Any]:
    """A request to the endpoint; JSON has no NaN, but null."""
    rows = json.loads(frame.drop(columns=["site", "sick"]).to_json(orient="records"))
    return {"client": client, "rows": rows}


def softmax(logits: Any) -> Any:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exponents / exponents.sum(axis=1, keepdims=True)


def test_from_the_flag_to_the_served_model(wecfl: Wecfl) -> None:
    import wecfl as library

    hospitals().to_csv("sites.csv", index=False)
    code, out, err = wecfl("run", "--dataset", "sites.csv", *FLAGS, "--out", "run")
    assert (code, err) == (0, "")
    assert "sites.csv: 6 clients" in out
    result = library.load("run")
    new = hospitals(60, seed=9).assign(smokes="yes, much")
    new.loc[new.index % 3 == 0, "smokes"] = "a pipe"
    hits = []
    for i in range(6):
        client = f"site {i}"
        own = new[new["site"] == client]
        shares = result.predict_proba(own, client=client)
        named = result.predict(own, client=client)
        assert set(named) <= {"ill", "well"}
        np.testing.assert_array_equal(named, np.array(["ill", "well"])[shares.argmax(axis=1)])
        hits += (named == own["sick"]).tolist()
        if i > 0:
            continue
        assert wecfl("export", "run", "--client", client, "--format", "onnx", "--out", "m.onnx",
                     "--replace").code == 0  # fmt: skip
        session = onnxruntime.InferenceSession("m.onnx")
        [logits] = session.run(["logits"], inputs(result, own))
        np.testing.assert_allclose(softmax(logits), shares, atol=1e-6)
        with serving(make_app(result)) as ask:
            status, told = ask("/predict", asked(own, client))
        assert status == 200
        np.testing.assert_allclose(told["probabilities"], softmax(logits), atol=1e-6)
        assert told["predictions"] == named.tolist()
    assert np.mean(hits) > 0.8
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["numbers"]) == ["pressure", "admitted", "private"]
    assert json.loads(about["class_names"]) == ["ill", "well"]
    late = hospitals(200, seed=4)
    late[late["site"] == "site 3"].to_csv("late.csv", index=False)
    code, told, err = wecfl("assign", "run", "late.csv", "--json")
    assert code == 0, err
    assert json.loads(told)[0]["cluster"] == result.labels[3]
    for tokens, said in (
        (("assign", "run", "none.csv"), "no such file"),
        (("export", "run"), "either --cluster"),
        (("export", "run", "--client", "site 9"), "did you mean 'site"),
        (("run", "--dataset", "sites.csv"), "client_column"),
        (("run", "--dataset", "sites.csv", *FLAGS, "--clients", "5"), "leave out --clients"),
        (("run", "--dataset", "sites.csv", *FLAGS, "--scale", "pixels"), "for images"),
        (("run", "--target", "sick", "--client-column", "site"), "digits is not a table"),
        (("run", "--target", "sick"), "target is for tables"),
        (("run", "--impute", "mean"), "impute is for tables"),
        (("run", "--scale", "standard"), "for tables"),
    ):
        code, _, err = wecfl(*tokens)
        assert (code, err.count("\n")) == (2, 1), (tokens, err)
        assert said in err, (tokens, err)


def test_a_folder_keeps_the_pipeline(tmp_path: Path) -> None:
    """Also of a run from Python values, whose clients are scaled by their own statistics."""
    frame = hospitals().drop(columns="smokes")
    fed = wecfl.Federation.from_frame(
        frame, client="site", target="sick", impute="mean", scale_by="client"
    )
    result = wecfl.run(
        fed, wecfl.methods.wecfl(k=2), model="logistic", rounds=3, folder=tmp_path / "run",
        plan=wecfl.Plan(lr=0.1),
    )  # fmt: skip
    assert read_pipeline(tmp_path / "run") == fed.pipeline
    loaded = wecfl.load(tmp_path / "run")
    rows = frame[frame["site"] == "site 2"]
    one, two = (each.predict_proba(rows, client="site 2") for each in (result, loaded))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(one, loaded.predict_proba(rows, client=2))
    with pytest.raises(wecfl.errors.DataError, match="name of a client"):
        loaded.predict(rows, cluster=0)
    newcomer = loaded.newcomer_setup.blueprint.shape
    assert newcomer == (len(fed.pipeline.features),) if fed.pipeline else False
    found = result.assign(rows.drop(columns="sick"), rows["sick"])
    assert found.cluster == result.labels[2]
    with pytest.raises(wecfl.errors.DataError, match="no class 'odd'"):
        result.assign(rows.drop(columns="sick"), ["odd"] * len(rows))
    out = tmp_path / "two.onnx"
    with pytest.raises(wecfl.errors.ConfigError, match="--client"):
        export_model(tmp_path / "run", 0, "onnx", out)
    number = int(result.labels[2])
    export_model(tmp_path / "run", number, "onnx", out, client="site 2")
    [logits] = onnxruntime.InferenceSession(out).run(["logits"], inputs(result, rows))
    np.testing.assert_allclose(softmax(logits), one, atol=1e-6)
    shutil.copytree(tmp_path / "run", tmp_path / "bad")
    (tmp_path / "bad" / "pipeline.json").write_text('{"columns": []}')
    with pytest.raises(wecfl.errors.RunFolderError, match=r"pipeline\.json"):
        wecfl.load(tmp_path / "bad")


def test_pixels_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ys = [np.arange(20) % 3 for _ in range(3)]
    xs = [rng.integers(0, 60, (20, 1, 4, 4), np.uint8) + 60 * y[:, None, None, None] for y in ys]
    fed = wecfl.Federation.from_arrays([x.astype(np.uint8) for x in xs], ys).scaled("pixels")
    result = wecfl.run(fed, wecfl.methods.fedavg, model="mlp", rounds=1, folder=tmp_path / "run")
    pixels = xs[0].astype(np.uint8)
    export_model(tmp_path / "run", 0, "onnx", tmp_path / "m.onnx")
    [logits] = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"pixels": pixels})
    np.testing.assert_allclose(softmax(logits), result.predict_proba(pixels, cluster=0), atol=1e-6)


def test_nothing_changes_for_arrays(tmp_path: Path, fed: Any) -> None:
    result = wecfl.run(fed, wecfl.methods.fedavg, model="mlp", rounds=1, folder=tmp_path / "run")
    assert (fed.pipeline, result.pipeline) == (None, None)
    assert not (tmp_path / "run" / "pipeline.json").exists()


def test_several_targets_from_the_flag_to_the_served_model(wecfl: Wecfl) -> None:
    import wecfl as library

    frame = hospitals().fillna({"pressure": 120.0}).drop(columns=["sick", "smokes"])
    frame = frame.assign(
        old=frame["pressure"] > 125, tall=(frame["pressure"] < 110).astype(int),
        high=frame["pressure"] / 2, low=frame["pressure"] / 3, who=frame["site"],
    )  # fmt: skip
    frame.to_csv("sites.csv", index=False)
    usual = ["--client-column", "site", "--features", "pressure", "--clusters", "2", "--rounds",
             "20", "--lr", "0.1", "--optimizer", "adam"]  # fmt: skip
    for names, task in ((["old", "tall"], "multi-label"), (["high", "low"], "regression of 2")):
        told = wecfl("run", "--dataset", "sites.csv", "--target", *names, *usual, "--out", task)
        assert told.code == 0, told.err
        assert f"task: {task}" in told.out
        result = library.load(task)
        rows = frame.head(5)[["pressure"]]
        answers = result.predict(rows, client="site 1")
        truth = frame.head(5)[names].to_numpy(float)
        assert answers.shape == (5, 2)
        assert np.abs(answers - truth).mean() < (0.2 if task == "multi-label" else 10)
        with serving(make_app(result)) as ask:
            _, said = ask("/predict", {"client": "site 1", "rows": rows.to_numpy().tolist()})
        assert said["predictions"] == answers.tolist()
        assert names in (said.get("classes"), said.get("targets"))
    for names, said in (
        (["old", "site"], "different columns"), (["old", "old"], "different columns"),
        (["site"], "different columns"), (["old", "nil"], "'nil'"), (["old", "who"], "who"),
    ):  # fmt: skip
        told = wecfl("run", "--dataset", "sites.csv", "--target", *names, *usual)
        assert (told.code, told.err.count("\n")) == (2, 1), told.err
        assert said in told.err
