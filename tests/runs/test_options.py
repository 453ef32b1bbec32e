"""The values that an experiment is made of, and the options of a method."""

from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import wecfl
from helpers import Wecfl
from wecfl import Config, Experiment, Federation, Method, methods
from wecfl.config.keys import METHOD_OPTIONS
from wecfl.config.resolve import resolve
from wecfl.errors import ConfigError
from wecfl.from_config import federation_of
from wecfl.method_from_config import method_of
from wecfl.methods import METHODS

TINY: dict[str, Any] = {
    "clients": 6, "groups": 2, "clusters": 2, "rounds": 1, "model": "logistic", "workers": 1
}  # fmt: skip


WRONG: dict[str, Any] = {
    "steps": {"steps": 1.5}, "lr": {"lr": "fast"}, "attack": {"attack": "noise"}
}  # fmt: skip
"""Of another type than is asked for."""


@pytest.fixture(scope="module")
def fed() -> Federation:
    return federation_of(Config(**TINY))


def test_the_parameters_of_run_are_the_fields_of_an_experiment() -> None:
    parameters = signature(wecfl.run).parameters
    expected = {each.name: each.default for each in fields(Experiment) if each.name != "written"}
    assert list(parameters) == list(expected)
    assert len(parameters) <= 14
    for name in list(expected)[2:]:
        assert parameters[name].default == expected[name]


def test_the_defaults_of_a_configuration_are_those_of_the_factories() -> None:
    for name in METHODS:
        for key, option in METHOD_OPTIONS.items():
            known = methods.options(name).get(option)
            if known is not None and known.default is not known.empty:
                assert Config().model_dump()[key] == known.default, (name, option)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: wecfl.Plan(steps=0), "steps"),
        (lambda: wecfl.Plan(**WRONG["steps"]), "steps"),
        (lambda: wecfl.Plan(**WRONG["lr"]), "lr"),
        (lambda: wecfl.Plan(lr=-1), "lr"),
        (lambda: wecfl.Plan(momentum=1), "momentum"),
        (lambda: wecfl.Plan(weight_decay=float("nan")), "weight_decay"),
        (lambda: wecfl.Plan(weight_decay=float("inf")), "weight_decay"),
        (lambda: wecfl.Plan(keep_momentum="no"), "keep_momentum"),  # type: ignore[arg-type]
        (lambda: wecfl.Experiment(([[[0.0]]], [[1]]), methods.fedavg), "from_arrays"),  # type: ignore[arg-type]
        (lambda: wecfl.Conditions(participation=0), "participation"),
        (lambda: wecfl.Conditions(**WRONG["attack"]), "attack"),
        (lambda: wecfl.Attack("nois"), "did you mean 'noise'"),
        (lambda: wecfl.Attack("noise", attackers=1), "attackers"),
        (lambda: wecfl.Attack("label-flip", strength=2), "strength"),
        (lambda: wecfl.Privacy(1.0, delta=2), "delta"),
        (wecfl.Newcomers, "newcomers"),
        (lambda: wecfl.Newcomers(1.0), "newcomers"),
        (lambda: wecfl.Compute("torch", ray_address="auto"), "ray_address"),
        (lambda: wecfl.Folder("x", checkpoint_every=0), "checkpoint_every"),
    ],
)
def test_a_wrong_value_is_refused_when_it_is_made(make: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


def test_what_is_said_wins_over_the_plan_of_the_method(fed: Federation) -> None:
    usual = {"momentum": 0.0, "steps": 3}
    plan = wecfl.Plan(steps=7).complete(usual)
    assert (plan.steps, plan.momentum, plan.batch) == (7, 0.0, 32)
    assert wecfl.Plan().follows({"lr": "theory"})
    assert not wecfl.Plan(lr=0.1).follows({"lr": "theory"})
    assert wecfl.Plan(momentum=0.9).complete(usual).momentum == 0.9


def test_nothing_is_written_by_a_check(fed: Federation, tmp_path: Path) -> None:
    experiment = Experiment(fed, methods.wecfl(k=7), folder=tmp_path / "run")
    with pytest.raises(ConfigError, match="7 clusters"):
        experiment.check()
    Experiment(fed, methods.wecfl(k=2), folder=tmp_path / "run").check()
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"^plan .*Plan"):
        Experiment(fed, methods.fedavg, plan={"lr": 1})  # type: ignore[arg-type]


# Options of a method


def mine(vigour: float, loud: bool = False) -> Method:
    """A method with an option of its own."""
    return methods.fedprox(vigour if loud else 0.0).replace(name="mine")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", mine)


@pytest.mark.usefixtures("registered")
def test_a_new_option_is_a_flag_and_a_key_of_its_own(wecfl: Wecfl, tmp_path: Path) -> None:
    flags = ["--method", "mine,fedavg", "--vigour", "0.5", "--loud", "true", "--rounds", "1"]
    flags += ["--clients", "6", "--groups", "2", "--model", "logistic", "--workers", "1"]
    outcome = wecfl("run", *flags, "--out", "runs/both")
    assert outcome.code == 0, outcome.err
    again = resolve(Path("runs/both/mine/config.toml"))
    assert dict(again.options) == {"vigour": 0.5, "loud": True}
    assert method_of(again).local == methods.fedprox(0.5).local
    assert resolve(Path("runs/both/fedavg/config.toml")).options == ()
    table = tmp_path / "mine.toml"
    table.write_text('rounds = 2\n[method]\nname = "mine"\nvigour = 0.25\nloud = true\n')
    assert method_of(resolve(table)).local == methods.fedprox(0.25).local


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--method mine --vigour much", "vigour of mine"),
        ("--method mine", "mine needs its option 'vigour'"),
        ("--method cfl --mu 0.5", "cfl can't use --mu: it is an option of fedprox, fedprox+"),
        ("--method fedavg,cfl --vigour 2", "it is an option of mine"),
        ("--cluters 3", "did you mean '--clusters'?"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(wecfl: Wecfl, flags: str, problem: str) -> None:
    code, _, err = wecfl("run", *flags.split())
    assert (code, err.count("\n")) == (2, 1)
    assert problem in err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('name = "fedavg"\nmu = 0.5', "fedavg has no options, got 'mu'"),
        ('name = "cfl"\neps3 = 0.5', "unknown option of cfl 'eps3'; did you mean"),
        ("mu = 0.5", r"\[method\].* name"),
    ],
)
def test_a_table_takes_the_options_of_its_method(table: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(f"[method]\n{table}\n")
    with pytest.raises(ConfigError, match=problem):
        method_of(resolve(tmp_path / "x.toml"))


def test_a_table_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('[method]\nname = "wecfl"\nk = 3\nwarm = false\n')
    config = resolve(file)
    assert (config.clusters, config.warm_start) == (3, False)
    assert "options" not in config.toml()
    assert method_of(resolve(file, flags={"clusters": 4})).k == 4
    assert method_of(resolve(file, flags={"method": "fedavg"})).name == "fedavg"
    file.write_text('clusters = 4\n[method]\nname = "wecfl"\nk = 3\n')
    with pytest.raises(ConfigError, match=r"clusters .*twice"):
        resolve(file)
