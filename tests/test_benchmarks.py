"""The benchmarks run, and judge their figures rightly."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pandas as pd
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
    helpers = {"all", "common", "peer_jax_models", "peer_training", "peer_workloads"}
    # Cited where they are needed.
    alone = {
        "soak", "choose_k", "newcomers", "kmeans_start", "serve_rate", "weighting",
        "table2_mixture", "auto_k_battery", "auto_k_safeguards", "drift", "niid_scaffold",
        "kmeans_sample", "cluster_plan", "cluster_profile",
        "projection",
    }  # fmt: skip
    assert asked == {file.stem for file in PLACE.glob("*.py")} - helpers - alone


def test_a_plan_adds_up_what_was_measured(module: Callable[[str], ModuleType]) -> None:
    found = module("cluster_plan").Constants(
        train=0.01, call=0.001, server=0.0002, copy=1e-9, parameters=1000
    )
    assert found.round(1000, 1, 1.0, cores=10) == pytest.approx(1.0 + 0.2)
    # half a second of training, the server, 20 actors, 8 MB copied and sent at 8 MB/s, or 4 MB
    for fetched, sent in ((1.0, 1.008), (0.0, 0.504)):
        seconds = found.round(1000, 2, fetched, cores=10, network=8e6)
        assert seconds == pytest.approx(0.5 + 0.2 + 0.02 + sent)


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
    stood, total = soak.kills(times=2, names=["wecfl"], cases={}, script=tmp_path / "kills.py")
    assert (stood.verdict, stood.values) == (verdict, [2 - code])
    assert total.values == [4 - 2 * code]
    assert ("failed in configuration 2" in total.detail) == bool(code)


def test_soak_tells_growth_from_what_comes_and_goes(module: Callable[[str], ModuleType]) -> None:
    growth = module("soak").growth
    assert growth([5, 7, 5, 8, 7, 5, 9, 5]) == 0
    assert growth([5, 6, 6, 7, 7, 8, 8, 9]) == 3


@pytest.mark.parametrize(("code", "verdict"), [(0, "reached"), (1, "missed")])
def test_soak_counts_the_federations(
    code: int, verdict: str, module: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    """Of which tests/flower/test_hostile.py has real ones."""
    script = """
import sys
assert sys.argv[1:] == ["--count", "2", "--nodes", "5"]
print({"liars": 1, "refused": 3})
if CODE:
    sys.exit(CODE)
print({"liars": 2, "refused": 4})
"""
    (tmp_path / "hostile.py").write_text(script.replace("CODE", str(code)))
    [line] = module("soak").federations(count=2, nodes=5, script=tmp_path / "hostile.py")
    assert (line.verdict, line.values) == (verdict, [2 - code])
    assert ("failed in federation 1" in line.detail) == bool(code)
    assert ("3 nodes lied, 7 replies" in line.detail) != bool(code)


def test_the_weighting_counts_where_sizes_differ(module: Callable[[str], ModuleType]) -> None:
    """One world in which the two methods are the same, and one in which they are not."""
    weighting = module("weighting")
    equal, skewed = (
        list(weighting.runs(seeds=1, separations=(0.5,), skews=(skew,))) for skew in (0.0, 1.5)
    )
    scores = {row["method"]: row["by_client"] for row in equal}
    assert scores["wecfl"] == scores["fesem"] > scores["fedavg"]
    scores = {row["method"]: row["by_client"] for row in skewed}
    assert scores["wecfl"] > scores["fesem"] + 2


def words_of(page: Path) -> str:
    """The text of a page in one line, however it is wrapped and quoted."""
    return " ".join(page.read_text(encoding="utf-8").replace("\n> ", " ").split())


def test_the_page_about_the_weighting_holds_the_stored_figures(
    module: Callable[[str], ModuleType],
) -> None:
    weighting = module("weighting")
    frame = pd.read_csv(weighting.RESULTS / "weighting.csv")
    stored = (weighting.RESULTS / "weighting.md").read_text(encoding="utf-8")
    assert stored == weighting.markdown(weighting.differences(frame), frame["seed"].nunique())
    page = words_of(weighting.RESULTS.parent / "evidence" / "weighting.md")
    best = weighting.differences(frame).sort_values("by_client").iloc[-1]
    assert f"{best['by_client']:.1f} ± {best['by_client_error']:.1f}" in page
    wide = frame.pivot(index=["separation", "skew", "seed"], columns="method", values="by_client")
    gain = wide["wecfl"] - wide["fesem"]
    assert f"Of {len(gain)} paired runs WeCFL is ahead in {(gain > 0).sum()}" in page
    assert f"behind in {(gain < 0).sum()}, by at most {-gain.min():.1f} points" in page


def test_the_page_about_table_2_holds_the_stored_figures(
    module: Callable[[str], ModuleType],
) -> None:
    mixture = module("table2_mixture")
    found = mixture.mixtures(pd.read_csv(mixture.RESULTS / "table2.csv"))
    stored = (mixture.RESULTS / "table2-mixture.md").read_text(encoding="utf-8")
    assert stored == mixture.markdown(found)
    page = words_of(mixture.RESULTS.parent / "evidence" / "table-2.md")
    assert mixture.told(found) in page


def test_a_mixture_is_found_again(module: Callable[[str], ModuleType]) -> None:
    """Cells made of a known share of the two kinds of runs."""
    mixture = module("table2_mixture")
    paper, other = mixture.published("table2"), mixture.published("table1")
    cells = paper.reset_index().query("method == 'wecfl'").assign(n=1)
    for score in mixture.SCORES:
        apart = [
            other.loc[(d, f"clusterwise-{p.split('-')[1]}", k, m), score]
            for d, p, k, m in zip(
                cells.dataset, cells.partition, cells.k, cells.method, strict=True
            )
        ]
        cells[score] = (cells[score] - 0.25 * pd.Series(apart, cells.index)) / 0.75
    found = mixture.mixtures(cells)
    assert found["share"].to_numpy() == pytest.approx(0.25)
    gap = (found["cluster_wise"] - found["ours"]).abs()
    assert found["spread"].to_numpy() == pytest.approx(gap.to_numpy() * 0.1875**0.5)


def test_a_drifted_client_is_found_in_the_round_of_the_change(
    module: Callable[[str], ModuleType],
) -> None:
    drift = module("drift")
    result = drift.result_of(
        20, drift="abrupt(round=12)", options=(("recluster", "drift"),), score_every=30,
        **drift.WORLDS["rotation"],
    )  # fmt: skip
    told = result.records[11]["drift"]
    assert {*told["changed"]} <= {*told["found"]}
    assert result.records[-1]["ari"] == 1.0
