"""The benchmarks run, and judge their figures rightly."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

PLACE = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(PLACE))
    return import_module


def test_a_figure_is_a_median_beside_its_goal(module: Callable[[str], ModuleType]) -> None:
    line = module("common").Line
    assert line("w", "m", [1.0, 4.0, 9.0], least=4).verdict == "reached"
    assert line("w", "m", [1.0, 3.9, 9.0], least=4).verdict == "missed"
    assert line("w", "m", [1.6], most=1.5, unit="GB").verdict == "missed"
    assert line("w", "m", [1.6], most=1.5, unit="GB").goal == "≤ 1.5 GB"
    assert line("w", "m", [1.0, 2.0, 3.0]).figure == "2 [1.5–2.5]"
    assert line("w", "m", [], least=4, detail="not installed").verdict == ""


def test_every_question_is_asked(module: Callable[[str], ModuleType]) -> None:
    asked = {question.__name__ for question in module("all").QUESTIONS}
    helpers = {"all", "common", "peer_training"}
    assert asked == {file.stem for file in PLACE.glob("*.py")} - helpers


def test_growth_runs_the_public_interface(module: Callable[[str], ModuleType]) -> None:
    seconds, peak = module("growth")._run(clients=12, rounds=2, steps=1)
    assert len(seconds) == 1
    assert seconds[0] > 0
    assert peak > 0.1
