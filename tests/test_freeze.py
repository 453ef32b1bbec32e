"""What shows whether bits moved can itself fail: `tests/freeze.py`, on a few small runs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import freeze
from freeze import Case

SMALL = {"rounds": 2, "steps": 2}


@pytest.fixture(scope="module")
def case() -> Case:
    return freeze.measure("wecfl native plain", **SMALL)


@pytest.mark.parametrize(
    "name", ["wecfl native plain", "fedavg+ torch unreliable", "fedprox native columns"]
)
def test_the_same_seed_gives_the_same_bits_and_another_one_does_not(name: str) -> None:
    first, again = (freeze.measure(name, **SMALL, seed=1) for _ in range(2))
    assert (first.outcome, freeze.moved(first, again)) == ("finished", [])
    assert {*first.digests} == {"centers", "labels", "models"}
    other = " ".join(freeze.moved(first, freeze.measure(name, **SMALL, seed=2)))
    assert all(word in other for word in ("centers (by", "models (by", "metrics (accuracy from 1"))


def test_what_is_nudged_is_told_with_its_size(case: Case) -> None:
    arrays = {name: array.copy() for name, array in case.arrays.items()}
    arrays["centers"][1, 2] += 0.25
    arrays["labels"] = arrays["labels"][:-1]
    nudged = replace(case, arrays=arrays, digests=freeze.digests(arrays))
    assert freeze.moved(case, nudged) == ["centers (by 0.25)", "labels (int64(10,) → int64(9,))"]
    arrays = case.arrays | {"models": np.nextafter(case.arrays["models"], np.float32(9))}
    (told,) = freeze.moved(case, replace(case, arrays=arrays, digests=freeze.digests(arrays)))
    assert told.startswith("models (by ") and 0 < float(told[11:-1]) < 1e-6


def test_metrics_are_told_from_the_round_in_which_they_part(case: Case) -> None:
    F, sizes = case.metrics["F"], case.metrics["sizes"]
    changed = case.metrics | {"F": [F[0], F[1] + "0"], "sizes": sizes[:1]}
    told = freeze.moved(case, replace(case, metrics=changed))
    assert told == ["metrics (sizes from 2, F from 2)"]


def test_a_line_for_each_case_that_is_not_the_same(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    refused, failed = Case("refused: no noise"), Case("failed: KeyError: 'k'")
    base = {"a": case, "b": case, "c": refused, "d": failed, "e": case, "f": refused}
    new = {"a": case, "b": refused, "c": Case("refused: other words"), "d": failed, "f": case}
    assert freeze.compare(base, new | {"g": case})
    assert capsys.readouterr().out.splitlines() == [
        "b: moved: finished → refused: no noise",
        "c: refused: no noise",
        "d: moved: failed: KeyError: 'k' → failed: KeyError: 'k'",
        "e: moved: gone",
        "f: moved: refused: no noise → finished",
        "g: new: finished",
        "7 cases: 1 same, 4 moved, 1 refused, 1 new",
    ]
    assert not freeze.compare({"a": case, "c": refused}, {"a": case, "c": refused, "g": case})


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    freeze.record(tmp_path / "a.json", ["ifca", "native", "noisy", "plain"])
    done = freeze.read(tmp_path / "a.json")
    assert [*done] == ["ifca native plain", "ifca native noisy"]
    plain, again = done["ifca native plain"], freeze.measure("ifca native plain")
    assert freeze.moved(plain, again) == freeze.moved(again, plain) == []
    assert plain.arrays["models"].shape == (10, 4810)
    assert len(plain.metrics["F"]) == 4
    assert done["ifca native noisy"].outcome.startswith("refused: clients of ifca tell")


def test_the_matrix_holds_every_method_engine_and_condition() -> None:
    names = [*freeze.cases(["wecfl", "new"])]
    assert {word for name in names for word in name.split()} == {
        "wecfl", "new", *freeze.ENGINES, *freeze.CONDITIONS
    }  # fmt: skip
    assert "new torch plain" in names and "new torch auto" not in names
    some = [*freeze.cases(["wecfl", "new"], ["wecfl", "torch", "plain", "auto"])]
    assert some == ["wecfl torch plain", "wecfl torch auto"]


def test_another_tree_is_not_measured_by_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = type("Finder", (), {"__module__": "_editable_skbc_wecfl"})()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    kept = [each for each in sys.meta_path if "editable" not in getattr(each, "__module__", "")]
    with pytest.raises(SystemExit, match=f"wecfl comes from .*, not from {tmp_path}"):
        freeze.only_from(tmp_path)
    assert sys.meta_path == kept


def test_an_unknown_revision_is_told_in_one_line() -> None:
    words = [sys.executable, freeze.__file__, "--base", "no-such-revision"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "freeze: git knows no commit 'no-such-revision'\n"
