"""The HTTP endpoint says what the result says, and refuses in one line of JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest

import wecfl
from helpers import serving
from wecfl.data.federation import Federation
from wecfl.endpoint import make_app
from wecfl.runs.result import Result


@pytest.fixture(scope="module")
def folder(fed: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    plan = wecfl.Plan(lr=0.1, batch=8)
    method = wecfl.methods.wecfl(k=2)
    result = wecfl.run(fed, method, model="mlp", rounds=3, plan=plan, folder=path)
    result.assign(fed.x[:10], fed.y[:10])  # so that the folder holds what newcomers need
    return path


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return wecfl.load(folder, workers=1)


RUN = "from wecfl_main import main; main()"
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def ask(result: Result) -> Iterator[Ask]:
    with serving(make_app(result)) as function:
        yield function


def test_predictions_are_those_of_the_result(ask: Ask, result: Result, fed: Federation) -> None:
    x = fed.x[fed.test[2]]
    for who in ({"client": "2"}, {"cluster": 1}):
        told = ask("/predict", {"rows": x.tolist(), **who})[1]
        shares = result.predict_proba(x, **who)
        np.testing.assert_allclose(told["probabilities"], shares, rtol=1e-6)
        assert told["predictions"] == result.predict(x, **who).tolist()
        assert told["classes"] == [0, 1, 2]
        assert told["cluster"] == (who.get("cluster") or result.labels[2])
    assert ask("/clients")[1] == dict(zip(fed.names, result.labels.tolist(), strict=True))
    about = ask("/health")[1]
    assert (about["status"], about["clients"], about["clusters"]) == ("ok", 5, 2)


def test_newcomers_are_assigned_and_served(ask: Ask, result: Result, fed: Federation) -> None:
    x, y = fed.x[fed.train[3]], fed.y[fed.train[3]]
    newcomer = {"x": x.tolist(), "y": y.tolist()}
    for by in ("update", "losses"):
        told = ask("/assign", {**newcomer, "by": by})[1]
        mine = result.assign(x, y, by=by)
        assert (told["cluster"], told["novel"]) == (mine.cluster, mine.novel)
        assert told["loss"] == pytest.approx(mine.loss)
    rows = fed.x[fed.test[3]]
    told = ask("/predict", {"rows": rows.tolist(), "newcomer": newcomer})[1]
    assert told["predictions"] == result.predict(rows, cluster=mine.cluster).tolist()


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/predict", {"rows": [[0] * 6], "client": "9"}, 400, "unknown client '9'"),
        ("/predict", {"rows": [[0] * 5], "client": "1"}, 400, "expected (samples, 6)"),
        ("/predict", {"rows": [["a"] * 6], "client": "1"}, 400, "expected numbers"),
        ("/predict", {"rows": [[0] * 6]}, 400, "give exactly one of"),
        ("/predict", {"rows": [[0] * 6], "client": "1", "cluster": 1}, 400, "give exactly one of"),
        ("/predict", {"rows": [[0] * 6], "cluster": 7}, 400, "from 0 to 1"),
        ("/predict", {"rows": [], "cluster": 1}, 422, "rows"),
        ("/predict", {"rows": [[0]] * 10_001, "cluster": 1}, 422, "rows"),
        ("/predict", {"row": [[0] * 6], "cluster": 1}, 422, "row"),
        ("/predict", "{", 422, "JSON"),
        ("/assign", {"x": [[0] * 6] * 3, "y": [0, 1]}, 400, "y has shape"),
        ("/assign", {"x": [[0] * 6] * 3, "y": [0, 1, 7]}, 400, "out of range"),
        ("/assign", {"x": [[0] * 6], "y": [0], "by": "luck"}, 422, "by"),
        ("/assign", {"x": [[0] * 6], "by": "update"}, 400, "needs labels"),
        ("/assign", {"x": [[0] * 5]}, 400, "expected (samples, 6)"),
        ("/assign", {"x": []}, 422, "x"),
        ("/nothing", {}, 404, "/nothing"),
        ("/predict", "[" + "1," * (17 << 20) + "1]", 413, "fewer rows"),
    ],
)
def test_what_is_refused(ask: Ask, path: str, body: Any, status: int, said: str) -> None:
    code, told = ask(path, body)
    assert code == status, told
    assert told.keys() == {"error"}
    assert said in told["error"]
    assert "\n" not in told["error"]


def test_the_command_listens_on_this_machine(folder: Path, result: Result, fed: Federation) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "serve", folder, "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        address = lines[1].split()[2].removesuffix("/health;")
        assert address.startswith("http://127.0.0.1:")
        body = json.dumps({"client": "1", "rows": fed.x[:4].tolist()}).encode()
        ask = Request(f"{address}/predict", body, {"content-type": "application/json"})
        with urlopen(ask, timeout=60) as answer:
            told = json.load(answer)
        assert told["predictions"] == result.predict(fed.x[:4], client="1").tolist()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "wecfl: interrupted\n")
