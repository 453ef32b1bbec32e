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
    assert line("w", "m", [1], most=0).goal == "≤ 0"
    assert line("w", "m", [1.0, 2.0, 3.0]).figure == "2 [1.5–2.5]"
    assert line("w", "m", [], least=4, detail="not installed").verdict == ""


def test_every_question_is_asked(module: Callable[[str], ModuleType]) -> None:
    asked = {question.__name__ for question in module("all").QUESTIONS}
    helpers = {"all", "common", "peer_training"}
    alone = {
        "soak",
        "choose_k",
        "newcomers",
        "kmeans_start",
        "serve_rate",
    }  # cited where they are needed
    assert asked == {file.stem for file in PLACE.glob("*.py")} - helpers - alone


def test_growth_runs_the_public_interface(module: Callable[[str], ModuleType]) -> None:
    seconds, peak = module("growth")._run(clients=12, rounds=2, steps=1)
    assert len(seconds) == 1
    assert seconds[0] > 0
    assert peak > 0.1


def test_soak_measures_what_it_says(
    module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where it runs in one of its own, and as small as can be."""
    soak = module("soak")
    monkeypatch.setattr(soak, "in_a_fresh_process", lambda work, *rest: work(*rest))
    peak, flat, _ = soak.clients(m=20, rounds=2)
    assert peak.values[0] > 0
    assert flat.values[0] == pytest.approx(1, abs=0.5)
    _, files, threads, _, folder = soak.rounds(count=12, m=10)
    # A file that is just being written is open in some rounds; a leak would be one in each.
    assert files.values[0] <= 1
    assert threads.values[0] <= 1
    assert folder.values[0] > 0.5
    same, *peaks = soak.model(hidden=8, m=4, rounds=2)
    assert same.verdict == "reached"
    assert all(line.values[0] > 1 for line in peaks)


@pytest.mark.parametrize(("code", "verdict"), [(0, "reached"), (1, "missed")])
def test_soak_counts_the_kills(
    code: int,
    verdict: str,
    module: Callable[[str], ModuleType],
    tmp_path: Path,
) -> None:
    """Of which tests/runs/test_resume.py has real ones."""
    script = """
import sys
told = {"kills": 2, "while writing": 1, "runs": 1}
print(told)
if sys.argv[-1] == "torch" and not CODE:
    print(told)
sys.exit(CODE)
"""
    (tmp_path / "kills.py").write_text(script.replace("CODE", str(code)))
    soak = module("soak")
    stood, total = soak.kills(times=2, names=["wecfl"], script=tmp_path / "kills.py")
    assert (stood.verdict, stood.values) == (verdict, [2 - code])
    assert total.values == [4 - 2 * code]
    assert ("failed in pair 2" in total.detail) == bool(code)


def test_soak_tells_growth_from_what_comes_and_goes(module: Callable[[str], ModuleType]) -> None:
    growth = module("soak").growth
    assert growth([5, 7, 5, 8, 7, 5, 9, 5]) == 0
    assert growth([5, 6, 6, 7, 7, 8, 8, 9]) == 3
