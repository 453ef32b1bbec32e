"""Mistakes that new users made: each is one line that says what to do, with exit code 2."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest

if TYPE_CHECKING:
    from helpers import Wecfl

TABLE = [
    "run", "--dataset", "people.csv", "--client-column", "town", "--rounds", "1", "--clusters", "2",
]  # fmt: skip
SICK = [*TABLE, "--target", "sick", "--features", "age"]
AGE = [*TABLE, "--target", "age", "--features", "visits"]


@pytest.fixture
def place(wecfl: Wecfl) -> Path:
    """A folder with a table, arrays, and files that are none."""
    rng = np.random.default_rng(0)
    people = pd.DataFrame(
        {
            "town": ["a", "b"] * 60, "age": rng.normal(50, 9, 120), "visits": np.arange(120),
            "gap": np.where(np.arange(120) % 7, 1.0, np.nan), "name": [f"n{i}" for i in range(120)],
            "born": pd.date_range("1950", periods=120), "sick": ["no", "yes"] * 60,
        }
    )  # fmt: skip
    people.to_csv("people.csv", index=False)
    Path("clients").mkdir()
    for i, x in enumerate((np.ones((4, 2)), np.full((4, 2), np.inf))):
        np.savez(f"clients/{i}.npz", x=x, y=[0, 1, 0, 1])
    np.savez("numbers.npz", x=np.ones((40, 2)), y=np.linspace(0, 1, 40))
    Path("net.py").write_text("Net = 3\n")
    Path("empty").mkdir()
    Path("twice.csv").write_text("town,age,age,sick\n" + "a,50,120,no\nb,60,130,yes\n" * 20)
    for name in ("fedavg", "local"):  # two runs, as --baselines writes them
        Path("both", name).mkdir(parents=True)
        Path("both", name, "config.toml").touch()
    return Path()


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([*TABLE, "--target", "sick", "--features", "gap"], "--impute"),  # values are missing
        (["run", "--dataset", "twice.csv", *TABLE[3:], "--target", "sick"], "the name 'age'"),
        ([*TABLE, "--target", "sik"], "did you mean 'sick'"),
        (["run", "--representation", "none"], "selects no column"),
        (["run", "--copies", "1000000"], "fewer copies"),
        ([*TABLE, "--target", "visits", "--features", "age"], "choose task"),  # labels or numbers?
        ([*TABLE, "--target", "gap"], "drop"),  # targets are missing
        ([*SICK, "ag"], "did you mean 'age'"),
        ([*AGE, "--task", "classification"], "label"),
        ([*SICK, "--task", "regresion"], "did you mean"),
        ([*AGE, "--task", "regression(los=mae)"], "los"),
        ([*AGE, "--task", "regression(loss=l7)"], "l7"),
        ([*SICK, "--scale", "pixels"], "images"),
        ([*SICK, "--clients", "9"], "--clients"),
        ([*SICK, "--model", "cnn"], "cnn"),
        ([*SICK, "--model", "net.py:Net"], "a module"),
        ([*SICK, "--model", "net.py:Nett"], "Nett"),
        (["run", "--dataset", "people.csv", "--rounds", "1"], "client_column"),
        (["run", "--dataset", "no.csv", "--client-column", "a", "--target", "b"], "no such file"),
        (["run", "--dataset", "clients", "--clusters", "2"], "NaN or Inf"),
        (["run", "--dataset", "numbers.npz", "--clients", "4"], "numbers"),  # shared out by class
        (["run", "--optimizer", "adm"], "optimizer"),
        (["run", "--schedule", "step"], "decay_rounds"),
        (["run", "--device", "cuda"], "cuda"),
        ([*SICK, "--until", "score", "--holdout", "0"], "score"),
        (["run", "--method", "fedsoft", "--proximal", "-1"], "proximal"),
        (["run", "--method", "fedavg", "--clusters", "3"], "--clusters"),
        (["run", "--cluters", "3"], "--clusters"),
        (["report", "empty"], "empty"),
        (["serve", "empty"], "empty"),
        (["export", "empty", "--cluster", "0"], "empty"),
        (["assign", "empty", "people.csv"], "empty"),
        (["assign", "both", "people.csv"], "such as both/fedavg"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value)[-40:],
)  # fmt: skip
def test_a_mistake_is_one_line(tokens: list[str], said: str, place: Path, wecfl: Wecfl) -> None:
    code, _, told = wecfl(*tokens)
    assert (code, told.count("\n")) == (2, 1), told
    assert said in told
