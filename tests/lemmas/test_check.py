"""`wecfl check`: what it says of runs, good and bad."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pytest

from helpers import run_flat
from wecfl import Config, Federation, methods, run_config
from wecfl.errors import ConfigError, RunFolderError
from wecfl.theory.check import check_run
from wecfl.theory.verdicts import Assumption, Check, Inequality, Statement

NAMES = [
    "Lemma 1", "Lemma 2", "Lemma 3", "Theorem 1", "Lemma 4", "Lemma 4*", "Lemma 5", "Theorem 2",
    "Theorem 2*", "Theorem 3",
]  # fmt: skip
SMALL: dict[str, Any] = {
    "clients": 8, "groups": 2, "clusters": 2, "rounds": 4, "steps": 3, "workers": 1
}  # fmt: skip
CONVEX: dict[str, Any] = SMALL | {
    "model": "logistic", "momentum": 0.0, "batch": 2000, "alpha": (0.1, 1000.0), "lr": 0.05,
    "diagnostics": True,
}  # fmt: skip


def of(check: Check, name: str) -> Statement:
    return next(each for each in check.statements if each.name == name)


def unmet(statement: Statement) -> dict[str, str]:
    return {a.name: a.why for a in statement.assumptions if not a.met}


@pytest.fixture(scope="module")
def convex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "convex"
    run_config(Config(**CONVEX), out=out)
    return out


def test_a_convex_run_meets_every_assumption(convex: Path) -> None:
    check = check_run(convex, epsilon=100.0)
    assert [each.name for each in check.statements] == NAMES
    assert not check.refuted
    for each in check.statements:
        assert not each.missing and not unmet(each)
        assert len(each.rounds) in (3, 4)
    for name in ("Lemma 1", "Lemma 2", "Lemma 4", "Lemma 4*", "Lemma 5", "Theorem 2*", "Theorem 3"):
        assert all(i.held and i.condition for i in of(check, name).rounds), name
    assert not any(i.condition for i in of(check, "Lemma 3").rounds)  # the rate is not the bound's
    assert "T ≥" in check.notes[0]


def test_a_projection_keeps_lemmas_1_and_2_and_has_no_bound_of_the_rate(tmp_path: Path) -> None:
    run_config(Config(**{**CONVEX, "options": (("project", 8),)}), out=tmp_path / "run")
    check = check_run(tmp_path / "run")
    assert not check.refuted
    for name in ("Lemma 1", "Lemma 2"):
        assert all(i.held and i.condition for i in of(check, name).rounds), name
    for name in ("Lemma 3", "Theorem 1", "Theorem 2"):
        assert not any(i.condition for i in of(check, name).rounds), name


def test_margins_are_those_of_the_record(convex: Path) -> None:
    lines = (convex / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    before, record = (json.loads(line) for line in lines[1:3])
    found = {each.name: each.rounds for each in check_run(convex).statements}
    third = {name: next(i for i in rounds if i.round == 3) for name, rounds in found.items()}
    assert third["Lemma 1"].margin == record["F"]["L"] - record["F"]["E"]
    assert third["Lemma 3"].margin == before["F"]["M"] - record["F"]["L"]
    gain = record["theory"]["lemma_5"]
    assert gain < 0
    assert third["Lemma 5"].right == before["R"]["D"] + gain
    assert third["Lemma 4"].right == record["R"]["L"] + record["theory"]["lemma_4"]
    mean = sum(sum(r["theory"]["gradient"].values()) / 2 for r in (before, record)) / 2
    assert third["Theorem 3"].left == pytest.approx(mean)
    assert third["Theorem 2"].margin == before["R"]["L"] - record["R"]["L"]


def test_what_is_not_met_or_not_recorded_is_said(tmp_path: Path) -> None:
    run_config(Config(**SMALL), out=tmp_path / "plain")
    check = check_run(tmp_path / "plain")
    assert check.notes == ["B, U, σ² and β were not recorded: run with --diagnostics"]
    assert of(check, "Lemma 4").missing.endswith("--diagnostics")
    assert unmet(of(check, "Lemma 3")) == {"plain steps": "momentum 0.9"}
    assert not unmet(of(check, "Lemma 1"))
    run_config(Config(**SMALL, diagnostics=True, batch=4, objectives=False), out=tmp_path / "net")
    check = check_run(tmp_path / "net")
    assert "--no-objectives" in of(check, "Theorem 2").missing
    assert {"convex", "smooth", "plain steps", "whole data"} == unmet(of(check, "Theorem 2")).keys()
    run_config(Config(**SMALL, method="fesem", warm_start=False), out=tmp_path / "fesem")
    check = check_run(tmp_path / "fesem")
    assert unmet(of(check, "Lemma 1")).keys() == {"warm start"}
    assert unmet(of(check, "Lemma 2")).keys() == {"one λ"}


def test_a_run_of_python_values_can_be_checked(fed: Federation, tmp_path: Path) -> None:
    from torch import nn

    how: dict[str, Any] = {"rounds": 3, "steps": 2, "workers": 1, "diagnostics": True}
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    run_flat(fed, methods.wecfl(k=2), model=model, out=tmp_path / "own", **how)
    found = of(check_run(tmp_path / "own"), "Theorem 2")
    assert "BatchNorm" in unmet(found)["one loss"]
    assert {a.name: a.met for a in found.assumptions}["convex"] is not True


def test_an_inequality_that_fails_with_all_its_assumptions_met_is_refuted(
    convex: Path, tmp_path: Path
) -> None:
    folder = spoiled(convex, tmp_path, lambda record: record["F"].update(E=2 * record["F"]["L"]))
    assert check_run(folder).refuted == ["Lemma 1"]


def spoiled(convex: Path, tmp_path: Path, change: Callable[[Any], object]) -> Path:
    """A copy of the run folder with changed records."""
    folder = tmp_path / "spoiled"
    copytree(convex, folder)
    records = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    for record in records:
        change(record)
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.pop("F"), r"metrics\.jsonl, line 1: it has no 'F'"),
        (lambda record: record.update(R=3), r"metrics\.jsonl, line 1: R: "),
        (lambda record: record["F"].update(E="low"), r"metrics\.jsonl, line 1: F\.E: "),
    ],
)
def test_bad_records_are_said(
    convex: Path, tmp_path: Path, change: Callable[[Any], object], said: str
) -> None:
    with pytest.raises(RunFolderError, match=said):
        check_run(spoiled(convex, tmp_path, change))


def test_bad_folders_are_said(convex: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"config\.toml"):
        check_run(tmp_path)
    folder = spoiled(convex, tmp_path, lambda record: None)
    (folder / "metrics.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError, match="no complete round"):
        check_run(folder)
    (folder / "config.toml").write_text("steps = 'many'", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config.toml: steps"):
        check_run(folder)
    copy(convex / "metrics.jsonl", folder)
    (folder / "config.toml").write_text("", encoding="utf-8")
    (folder / "models.safetensors").write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"models\.safetensors"):
        check_run(folder)


@pytest.mark.parametrize("met", [True, False, None])
def test_a_statement_is_refuted_only_where_all_it_rests_on_was_met(met: bool | None) -> None:
    failed = [Inequality(1, left=2.0, right=1.0)]
    assumptions = [Assumption("one", True, ""), Assumption("other", met, "")]
    assert Statement("Lemma", "", failed, assumptions).refuted == (met is True)
