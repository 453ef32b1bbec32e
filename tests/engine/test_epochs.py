"""Clients that make whole passes over their data in each round."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import wecfl
from helpers import run_flat
from wecfl import Config, Federation, methods, run_config
from wecfl.config.resolve import resolve
from wecfl.core.channel import Channel
from wecfl.core.plan import LocalPlan
from wecfl.errors import ConfigError
from wecfl.folder.readers import config_of

if TYPE_CHECKING:
    from helpers import Wecfl

ENGINES: Any = ["native", "torch"]
HOW: dict[str, Any] = {"model": "mlp", "batch": 4, "lr": 0.05, "rounds": 2, "seed": 2}


def unequal(fed: Federation) -> Federation:
    """The same clients, of which the first has a third of its training data."""
    train = list(fed.train)
    train[0] = train[0][: len(train[0]) // 3]
    return wecfl.Federation.from_arrays(
        [fed.x[rows] for rows in train], [fed.y[rows] for rows in train], test=0.2, classes=3
    )


@pytest.mark.parametrize("size", [1, 7, 8])
def test_every_round_sees_every_sample_as_often_as_asked(size: int) -> None:
    plan = LocalPlan(batch=4, epochs=3)
    rounds = [plan.batches(size, seed=1, round=t, client=0) for t in range(3)]
    for batches in rounds:
        assert len(batches) == plan.steps_of(np.array([size]))[0] == 3 * (1 + (size > 4))
        assert (np.bincount(np.concatenate(batches), minlength=size) == 3).all()
    if size > 1:
        assert any((a != b).any() for a, b in zip(rounds[0], rounds[1], strict=True))


@pytest.mark.parametrize("kind", ENGINES)
def test_each_client_takes_the_steps_of_its_own_data(kind: Any, fed: Federation) -> None:
    clients = unequal(fed)
    assert len({*clients.sizes.tolist()}) > 1
    together = run_flat(clients, methods.named("local"), engine=kind, epochs=2, **HOW)
    for i, size in enumerate(clients.sizes):
        steps = 2 * -(-int(size) // 4)
        alone = run_flat(clients, methods.named("local"), engine=kind, steps=steps, **HOW)
        kept, expected = (r.states[0].memory for r in (together, alone))
        np.testing.assert_array_equal(kept["personal"][i], expected["personal"][i])
        np.testing.assert_array_equal(kept["momentum"][i], expected["momentum"][i])


def test_control_variates_count_the_steps_of_each_client(fed: Federation) -> None:
    clients, plan = unequal(fed), LocalPlan(batch=4, epochs=1)
    how = {**HOW, "rounds": 1, "model": "logistic", "epochs": 1}
    result = run_flat(clients, methods.named("scaffold"), **how)
    apart = run_flat(clients, methods.named("local"), momentum=0.0, **how)
    started = apart.newcomer_setup.module
    begin = np.concatenate([p.detach().numpy().ravel() for p in started.parameters()])
    steps = plan.steps_of(clients.sizes)[:, None]
    expected = (begin - apart.states[0].memory["personal"]) / (steps * HOW["lr"])
    np.testing.assert_allclose(result.states[0].known["control"], expected, rtol=1e-3, atol=1e-5)


def test_stragglers_do_a_part_of_their_own_steps() -> None:
    sizes = np.tile([4, 40, 400], 40)
    steps = LocalPlan(batch=4, epochs=2).steps_of(sizes)
    done = Channel(stragglers=0.5).steps(LocalPlan(batch=4, epochs=2), sizes, round=0)
    assert done is not None
    assert ((done >= 1) & (done <= steps)).all()
    assert 0.3 < (done < steps)[sizes == 400].mean() < 0.7
    Channel(stragglers=0.5).check(LocalPlan(steps=1, epochs=1), 120)


def test_from_the_configuration_and_resumed(tmp_path: Path, wecfl: "Wecfl") -> None:
    flags = "--clients 6 --groups 2 --clusters 2 --rounds 2 --model logistic --epochs 2 --out run"
    assert wecfl("run", *flags.split()).code == 0
    again = config_of(tmp_path / "run")
    assert (again.epochs, "steps" in again.model_fields_set) == (2, False)
    assert wecfl("resume", "run", "--rounds", "3").code == 0
    three = run_config(again.model_copy(update={"rounds": 3}))
    lines = (tmp_path / "run/assignments.csv").read_text().splitlines()
    assert lines[-1] == ",".join(map(str, [3, *three.labels.tolist()]))
    outcome = wecfl("run", "--epochs", "2", "--steps", "3")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "not both" in outcome.err


def test_what_is_said_last_replaces_the_other(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("epochs = 2\n")
    assert "steps" not in resolve(file, "paper").model_fields_set
    assert resolve(file, flags={"steps": 4}).epochs is None
    assert Config(epochs=2).epochs == 2


@pytest.mark.parametrize(
    ("method", "choices"),
    [
        ("fedrep", {}),
        ("fesem", {"diagnostics": True}),
        ("fesem", {"lr": "theory", "momentum": 0.0}),
        ("fesem", {"steps": 3}),
    ],
)
def test_where_the_number_of_steps_is_one_for_all_epochs_are_refused(
    method: str, choices: dict[str, Any], fed: Federation
) -> None:
    made = methods.named(method, **({"k": 2} if method == "fesem" else {}))
    with pytest.raises(ConfigError, match="steps"):
        run_flat(fed, made, model="mlp", rounds=1, epochs=1, **choices)
