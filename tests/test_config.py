"""Defaults, preset, TOML file and flags become one checked list of choices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wecfl
from wecfl import Compute, Conditions, Federation, Folder, Measure, Plan, methods
from wecfl.config import Config
from wecfl.config.resolve import PRESETS, resolve
from wecfl.data.partition import Iid
from wecfl.errors import ConfigError


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "experiment.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_the_last_word_counts(tmp_path: Path) -> None:
    file = write(tmp_path, "rounds = 7\nclients = 30\nlr = 1\n")
    config = resolve(file, "paper", {"clients": 20})
    assert (config.clients, config.rounds, config.loss_batches) == (20, 7, 3)
    assert config.batchnorm == "batch"
    assert resolve(file).loss_batches is None
    assert resolve(preset="paper").rounds == 100


def test_a_file_may_name_its_preset_and_a_flag_overrides_it(tmp_path: Path) -> None:
    file = write(tmp_path, "preset = 'paper'\n")
    assert resolve(file).clients == 200
    assert resolve(file, "default").clients == 50


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid(preset: str) -> None:
    assert isinstance(resolve(preset=preset), Config)


def test_lists_are_read_and_the_paper_fills_what_is_open(tmp_path: Path) -> None:
    file = write(tmp_path, "partition = 'clusterwise-nclass'\nclasses_per = [4, 1]\n")
    assert resolve(file).classes_per == (4, 1)
    assert resolve(write(tmp_path, "alpha = [1, 2.5]")).alpha == (1.0, 2.5)
    assert resolve().alpha == (0.1, 10.0)
    assert resolve(flags={"partition": "clientwise-dirichlet"}).alpha == (0.1,)
    assert resolve(flags={"partition": "clientwise-nclass"}).classes_per == (2,)
    assert resolve(flags={"partition": "iid"}).alpha is None


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    import tomli_w

    config = resolve(flags={"alpha": (0.3, 5.0), "data_dir": "ü\n'\"", "workers": 3, "seed": 2**70})
    assert resolve(write(tmp_path, tomli_w.dumps(config.toml()))) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cluters = 3", "unknown key 'cluters'; did you mean 'clusters'?"),
        ("[run]\nrounds = 3", "unknown key 'run'"),
        ("rounds = '3'", "rounds: input should be a valid integer, got '3'"),
        ("rounds = 3.0", "rounds: input should be a valid integer, got 3.0"),
        ("rounds = true", "rounds: input should be a valid integer, got True"),
        ("rounds = 0", "rounds: input should be greater than or equal to 1, got 0"),
        ("warm_start = 1", "warm_start: input should be a valid boolean, got 1"),
        ("alpha = 0.1", "alpha: input should be a valid list, got 0.1"),
        ("alpha = ['0.1', '10']", "alpha.0: input should be a valid number, got '0.1'"),
        ("classes_per = [3.0, 2]", "classes_per.0: input should be a valid integer, got 3.0"),
        ("lr = nan", "lr: input should be a finite number, got nan"),
        ("lr = 'fast'", "lr: input should be a valid number or 'theory', got 'fast'"),
        ("clusters = 'x'", "clusters: input should be a valid integer or 'auto', got 'x'"),
        ("mu = inf", "mu: input should be a finite number, got inf"),
        ("alpha = [inf, 1]", "alpha.0: input should be a finite number, got inf"),
        ("method = ['fedavg']", "method: input should be a valid string"),
        ("seed = 1979-05-27", "seed: input should be a valid integer"),
        ("importance = 'x'", "importance: input should be 'method', 'data-size', 'uniform' or"),
        (f"dataset = ['{'x' * 900}']", "dataset: input should be a valid string"),
        ("preset = 3", "unknown preset '3'; known: default, paper"),
        ("preset = ['paper']", "unknown preset '['paper']'; did you mean 'paper'?"),
        ("preset = 'papr'", "unknown preset 'papr'; did you mean 'paper'?"),
        ("rounds = ", "can't read the configuration"),
        ("rounds = 1\nrounds = 2", "can't read the configuration"),
        ("method = 'ü'".encode("latin-1"), "can't read the configuration"),
        (b"\xff\xfe\x00", "can't read the configuration"),
        ("x = " + "[" * 3000, "can't read the configuration"),
    ],
)
def test_mistakes_are_said_in_one_line(tmp_path: Path, text: str | bytes, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(write(tmp_path, text))
    message = str(caught.value)
    assert said in message
    assert str(tmp_path / "experiment.toml") in message
    assert "\n" not in message
    assert len(message.replace(str(tmp_path), "")) < 250


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.toml"):
        resolve(tmp_path / "nope.toml")
    with pytest.raises(ConfigError, match="Is a directory"):
        resolve(tmp_path)
    for preset in ("nope", ""):
        with pytest.raises(ConfigError, match=f"unknown preset '{preset}'"):
            resolve(preset=preset)


LARGE: dict[str, Callable[[Federation, int], object]] = {
    "batch": lambda fed, n: wecfl.run(fed, methods.fedavg, plan=Plan(batch=n)),
    "steps": lambda fed, n: wecfl.run(fed, methods.fedavg, plan=Plan(steps=n)),
    "rounds": lambda fed, n: wecfl.run(fed, methods.fedavg, rounds=n),
    "seed": lambda fed, n: wecfl.run(fed, methods.fedavg, seed=n**3),
    "workers": lambda fed, n: wecfl.run(fed, methods.fedavg, engine=Compute(workers=n)),
    "score_every": lambda fed, n: wecfl.run(fed, methods.fedavg, measure=Measure(score_every=n)),
    "checkpoint_every": lambda fed, n: Folder("run", checkpoint_every=n),
    "clients": lambda fed, n: Federation.from_dataset("digits", Iid(), clients=n),
    "min_cluster": lambda fed, n: wecfl.run(
        fed, methods.wecfl(k=2), conditions=Conditions(min_cluster=n)
    ),
}
"""What is counted, from Python."""


@pytest.mark.parametrize("number", [2**63, 2**64 + 1, 10**30, -(2**63)])
@pytest.mark.parametrize("name", LARGE)
def test_a_number_that_nobody_can_mean_is_one_line_also_from_python(
    name: str, number: int, fed: Federation
) -> None:
    with pytest.raises(ConfigError) as error:
        LARGE[name](fed, number)
    assert name in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", methods.METHODS)
def test_a_refused_option_is_named_as_the_user_knows_it(name: str) -> None:
    known = methods.options(name)
    needed = {"k": 2} if "k" in known else {}
    wrong: list[Any] = [-1, float("nan"), "?", []]
    for option in known:
        for value in wrong:
            try:
                methods.named(name, **{**needed, option: value})
            except ConfigError as error:
                assert option in str(error)
                assert "\n" not in str(error)
