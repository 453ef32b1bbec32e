"""Runs that end before their last round: by a rule, by a watcher, and resumed."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import wecfl
from helpers import run_flat, same_folders
from wecfl import Config, Federation, Rounds, methods, run_config
from wecfl.channel.privacy import Privacy
from wecfl.core.until import NoGain, Settled
from wecfl.errors import ConfigError
from wecfl.experiment import Experiment
from wecfl.folder.readers import config_of
from wecfl.options import Conditions

if TYPE_CHECKING:
    from helpers import Wecfl

TINY = Config(
    clients=6, groups=2, clusters=2, rounds=40, steps=3, model="logistic", workers=1, lr=0.05,
    objectives=False, until="settled", patience=2, tolerance=0.05,
)  # fmt: skip


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends when clusters and F have settled."""
    path = tmp_path_factory.mktemp("runs") / "settled"
    run_config(TINY, out=path)
    return path


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]


def naive_end(records: list[dict[str, Any]], n: int, tolerance: float) -> int:
    """The first round in which the assignment and the means of F say that nothing changes."""
    for t in range(2 * n, len(records) + 1):
        F = np.array([record["F"]["M"] for record in records[:t]])
        calm = all(record["churn"] == 0 for record in records[t - n : t])
        if calm and abs(F[-n:].mean() - F[-2 * n : -n].mean()) <= tolerance * F.max():
            return t
    raise AssertionError("it never settles")


def test_it_ends_in_the_round_in_which_clusters_and_F_settle(settled: Path) -> None:
    whole = run_config(TINY.model_copy(update={"until": "rounds", "patience": None,
                                               "tolerance": None}))  # fmt: skip
    last = naive_end(whole.records, 2, 0.05)
    assert 4 < last < 40
    summary = summary_of(settled)
    assert (summary["rounds"], summary["status"]) == (last, "finished")
    assert "F has settled" in summary["stopped"]


@pytest.mark.parametrize("killed", [3, None], ids=["before", "in"])
def test_a_resumed_run_ends_in_the_same_round(
    killed: int | None, settled: Path, tmp_path: Path
) -> None:
    last = killed or summary_of(settled)["rounds"]

    def stop(record: dict[str, Any], states: object) -> None:
        if record["round"] == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(TINY, out=tmp_path / "run", watch=[stop])
    run_config(config_of(tmp_path / "run"), out=tmp_path / "run", resume=True)
    same_folders(settled, tmp_path / "run")
    assert summary_of(settled)["stopped"] == summary_of(tmp_path / "run")["stopped"]


def test_the_command_says_why_and_goes_on_if_told_to(wecfl: "Wecfl", tmp_path: Path) -> None:
    flags = (
        "--clients 6 --groups 2 --clusters 2 --steps 3 --model logistic --lr 0.05 --rounds 40 "
        "--no-objectives --until settled --patience 2 --tolerance 0.05 --out run"
    )
    outcome = wecfl("run", *flags.split())
    assert outcome.code == 0
    last = summary_of(tmp_path / "run")["rounds"]
    assert f"stopped after round {last}: no client has changed its cluster" in outcome.out
    again = wecfl("resume", "run")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "has ended" in again.err
    assert wecfl("resume", "run", "--until", "rounds", "--rounds", str(last + 2)).code == 0
    assert summary_of(tmp_path / "run")["rounds"] == last + 2
    assert "stopped" not in summary_of(tmp_path / "run")


def test_a_score_that_does_not_rise_ends_it(fed: Federation) -> None:
    rounds = Rounds(20, NoGain(rounds=3))
    result = run_flat(fed, methods.fedavg, rounds=rounds, model="logistic", lr=0.0)
    assert len(result.records) == 4
    assert "accuracy has not risen" in result.summary["stopped"]
    numbers = Federation.from_arrays(
        [np.eye(9, dtype=np.float32)] * 3, [np.linspace(0, 1, 9, dtype=np.float32)] * 3
    )
    costs = run_flat(numbers, methods.fedavg, rounds=rounds, model="logistic", lr=0.0)
    assert "rmse has not fallen below" in costs.summary["stopped"]
    falling = run_flat(numbers, methods.fedavg, rounds=rounds, model="logistic", lr=0.1)
    assert len(falling.records) > 4
    with pytest.raises(ConfigError, match="'acc'"):
        run_flat(fed, methods.fedavg, rounds=Rounds(5, NoGain("acc")), model="logistic")


def test_any_function_and_a_watcher_end_it_in_a_round_with_scores(fed: Federation) -> None:
    def enough(records: Any) -> bool:
        return len(records) >= 3

    about: dict[str, Any] = {"model": "logistic", "score_every": 2}
    by_rule = run_flat(fed, methods.fedavg, rounds=Rounds(9, enough), **about)
    by_watcher = run_flat(
        fed, methods.fedavg, rounds=9, **about,
        watch=[lambda record, states: "I have seen it" if record["round"] == 3 else None],
    )  # fmt: skip
    for result in (by_rule, by_watcher):
        assert len(result.records) == 4
        assert result.records[-1]["accuracy"] is not None
    assert "enough" in str(by_rule.stopped)
    assert by_watcher.summary["stopped"] == "I have seen it"
    to_the_end = run_flat(fed, methods.fedavg, rounds=4, **about)
    np.testing.assert_array_equal(by_rule.centers, to_the_end.centers)
    assert to_the_end.stopped is None


def test_without_F_the_assignment_decides() -> None:
    records = [{"churn": churn, "F": {}} for churn in (0.5, 0.1, 0.0, 0.0)]
    assert "changed its cluster" in str(Settled(rounds=2)(records))
    assert Settled(rounds=2)([*records, {"churn": 0.1, "F": {}}]) is None
    diverged = [{"churn": 0.0, "F": {"M": float("nan")}}] * 4
    assert Settled(rounds=2)(diverged) is None


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--patience 3", "until"),
        ("--tolerance 0.1", "until"),
        ("--until settled --patience 0", "patience"),
        ("--until soon", "until"),
    ],
)
def test_wrong_choices_are_refused(wecfl: "Wecfl", flags: str, problem: str) -> None:
    outcome = wecfl("run", *flags.split())
    assert outcome.code == 2
    assert problem in outcome.err


def test_wrong_values_are_refused(fed: Federation) -> None:
    for make in (lambda: Settled(0), lambda: NoGain(gain=-1), lambda: Rounds(0),
                 lambda: Rounds(5, until="soon")):  # type: ignore[arg-type]  # fmt: skip
        with pytest.raises(ConfigError):
            make()
    with pytest.raises(ConfigError, match="private clients"):
        Rounds(5, NoGain()).check(fed, Conditions(), Privacy(1.0))
    Experiment(fed, wecfl.methods.fedavg, rounds=Rounds(5, NoGain())).check()


def test_of_several_methods_those_that_ended_by_the_rule_are_left_alone(
    wecfl: "Wecfl", tmp_path: Path
) -> None:
    flags = (
        "--clients 6 --groups 2 --clusters 2 --steps 3 --model logistic --lr 0 --rounds 9 "
        "--no-objectives --until score --patience 2 --method fedavg,wecfl --out runs"
    )
    assert wecfl("run", *flags.split()).code == 0
    (tmp_path / "runs" / "wecfl" / "summary.json").unlink()
    assert wecfl("resume", "runs").code == 0
    for name in ("fedavg", "wecfl"):
        assert summary_of(tmp_path / "runs" / name)["rounds"] == 3
    again = wecfl("resume", "runs")
    assert again.code == 2
    assert "have ended" in again.err
    assert wecfl("resume", "runs", "--until", "rounds", "--rounds", "4").code == 0
    assert summary_of(tmp_path / "runs" / "fedavg")["rounds"] == 4
