"""What pages say of their own tables is counted again, from the results that are stored."""

import re
from itertools import product
from pathlib import Path

import pandas as pd
import pytest

DOCS = Path(__file__).parents[1] / "docs"


def words(page: str) -> str:
    """The page on one line, as it does not matter where lines break."""
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def accuracies(dataset: str) -> pd.DataFrame:
    """Of the gallery: a row for each world, a column for each method."""
    stored = pd.read_csv(DOCS / "results" / "gallery.csv")
    return stored[stored["dataset"] == dataset].pivot_table("accuracy", "label", "name")


@pytest.mark.parametrize("dataset", ["digits", "mnist"])
def test_in_how_many_worlds_k_auto_serves_as_well(dataset: str) -> None:
    found = accuracies(dataset)
    as_well = int((found["wecfl auto"] >= found["wecfl"] - 1).sum())
    said = re.findall(r"(\d+) of (\d+) worlds", words("gallery.md"))
    place = 0 if dataset == "digits" else -1
    assert said[place] == (str(as_well), str(len(found)))


def test_where_thresholds_serve_worse() -> None:
    found = accuracies("digits")
    worse = {name: int((found[name] < found["wecfl"] - 1).sum()) for name in ("flhc", "cfl")}
    sentence = f"in {worse['flhc']} of {len(found)} worlds"
    assert sentence in words("gallery.md")
    assert f"CFL in {worse['cfl']}." in words("gallery.md")


def test_the_best_of_the_leaderboard() -> None:
    stored = pd.read_csv(DOCS / "results" / "leaderboard.csv")
    rotated = stored[stored["world"] == "digits, rotation by group"]
    accuracy: dict[str, float] = dict(zip(rotated["method"], rotated["accuracy"], strict=True))
    text = words("leaderboard.md")
    for method, name in (("cam", "CAM has"), ("fedprox+", "a vote of four models")):
        assert f"{name} {accuracy[method]:.1f} %" in text
    assert f"one model {accuracy['fedadagrad']:.1f} % (FedAdagrad)" in text


def test_k_auto_in_the_results() -> None:
    stored = pd.read_csv(DOCS / "results" / "unknown-k.csv")
    of_cifar = (stored["dataset"] == "cifar-10") & (stored["k"] == "auto") & (stored["n"] > 0)
    runs = stored[of_cifar & (stored["method"] == "wecfl")]
    assert {*runs["criterion"]} == {"both", "served"}
    for accuracy in runs["accuracy"]:
        assert f"{accuracy:.1f} %" in words("results.md")


def test_which_votes_of_several_models_were_run() -> None:
    tables = [pd.read_csv(DOCS / "results" / f"table{number}.csv") for number in (1, 2)]
    votes = pd.concat([table[table["method"].str.endswith("+")] for table in tables])
    run = votes[votes["n"] > 0]
    assert {*run["dataset"]} == {"cifar-10"}
    data = [
        f"{kind}-{skew}"
        for kind in ("clusterwise", "clientwise")
        for skew in ("dirichlet", "nclass")
    ]
    assert {*zip(run["partition"], run["method"], strict=True)} == {
        *product(data, ("fedavg+", "fedprox+"))
    }, "docs/claims.md, claim 7, says which votes were run"


@pytest.mark.parametrize("table", ["table1", "table2"])
def test_how_many_cells_were_run(table: str) -> None:
    stored = pd.read_csv(DOCS / "results" / f"{table}.csv")
    said = f"{(stored['n'] > 0).sum()} of {len(stored)} cells have been run"
    part = words("results.md").split(f"<!-- {table} run -->")[1].split("<!--")[0]
    assert said in part


def test_what_clustering_is_worth_on_cifar_10() -> None:
    stored = pd.read_csv(DOCS / "results" / "table1.csv").set_index(
        ["dataset", "partition", "method", "k"]
    )["accuracy"]
    kinds = ("clusterwise-dirichlet", "clusterwise-nclass")
    ten, one = (
        [f"{stored['cifar-10', kind, method, k]:.1f}" for kind in kinds]
        for method, k in (("wecfl", 10), ("fedavg", 1))
    )
    said = f"reach {ten[0]} and {ten[1]} %, one model for all {one[0]} and {one[1]} %"
    assert said in words("results.md")
