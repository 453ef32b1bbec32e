"""Learning rates that change from round to round."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

import wecfl
from helpers import run_flat, same_folders
from wecfl import Config, Federation, Folder, Plan, methods, run_config
from wecfl.core.schedule import CosineDecay, Schedule, StepDecay, Warmup
from wecfl.errors import ConfigError
from wecfl.folder.readers import config_of, read_metrics
from wecfl.from_config import options_of

if TYPE_CHECKING:
    from helpers import Wecfl


def torch_rates(make: Callable[[Any], Any], rounds: int) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, found = make(optimizer), []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(
    ("schedule", "theirs"),
    [
        (StepDecay(3, 0.5), lambda opt: StepLR(opt, 3, 0.5)),
        (CosineDecay(9, 0.1), lambda opt: CosineAnnealingLR(opt, 9, eta_min=0.1)),
        (
            Warmup(4, CosineDecay(5)),
            lambda opt: SequentialLR(
                opt, [LinearLR(opt, 1 / 4, total_iters=3), CosineAnnealingLR(opt, 5)], [4]
            ),
        ),
    ],
)
def test_schedules_are_those_of_torch(schedule: Schedule, theirs: Callable[[Any], Any]) -> None:
    np.testing.assert_allclose([schedule(t) for t in range(9)], torch_rates(theirs, 9), atol=1e-12)


def test_a_factor_is_a_factor_of_the_rate_to_the_bit(fed: Federation) -> None:
    about: dict[str, Any] = {"model": "mlp", "rounds": 3, "seed": 1}
    halved = wecfl.run(fed, methods.wecfl(k=2), plan=Plan(lr=0.25, schedule=lambda t: 0.5), **about)
    plain = wecfl.run(fed, methods.wecfl(k=2), plan=Plan(lr=0.125), **about)
    np.testing.assert_array_equal(halved.centers, plain.centers)
    assert [record["lr"] for record in halved.records] == [0.125] * 3
    assert "lr" not in plain.records[0]


def test_a_round_without_a_rate_moves_nothing_and_adaptation_uses_that_of_the_round(
    fed: Federation,
) -> None:
    about: dict[str, Any] = {"model": "logistic", "lr": 0.3, "momentum": 0.0}
    first = run_flat(fed, methods.named("fedavg-ft"), rounds=1, **about)
    both = run_flat(
        fed, methods.named("fedavg-ft"), rounds=2, schedule=lambda t: float(t == 0), **about
    )
    np.testing.assert_allclose(first.centers, both.centers, rtol=1e-6)
    assert both.records[0]["clients"] == first.records[0]["clients"]
    assert both.records[1]["accuracy"] == both.records[1]["before"]["accuracy"]


TINY = Config(
    clients=6, groups=2, clusters=2, rounds=6, steps=3, model="logistic", workers=1, lr=0.1,
    schedule="cosine", warmup=2,
)  # fmt: skip


def test_from_the_configuration_also_resumed_and_with_more_rounds(tmp_path: Path) -> None:
    run_config(TINY, out=tmp_path / "whole")
    rates = [0.1 * Warmup(2, CosineDecay(4))(t) for t in range(6)]
    found = [record["lr"] for record in read_metrics(tmp_path / "whole")]
    np.testing.assert_allclose(found, rates, rtol=1e-12)

    def stop(record: dict[str, Any], states: object) -> None:
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_config(TINY, out=tmp_path / "stopped", watch=[stop])
    again = config_of(tmp_path / "stopped")
    assert again.decay_rounds == 4
    run_config(again, out=tmp_path / "stopped", resume=True)
    same_folders(tmp_path / "whole", tmp_path / "stopped")
    longer = again.model_copy(update={"rounds": 7})
    assert run_config(longer, out=tmp_path / "stopped", resume=True).records[6]["lr"] == 0


def test_a_schedule_of_python_goes_on_in_python(fed: Federation, tmp_path: Path) -> None:
    def falling(round: int) -> float:
        return 1 / (1 + round)

    about: dict[str, Any] = {"model": "logistic", "plan": Plan(lr=0.1, schedule=falling)}
    wecfl.run(fed, methods.fedavg, rounds=2, folder=tmp_path / "run", **about)
    place = Folder(tmp_path / "run", resume=True)
    result = wecfl.run(fed, methods.fedavg, rounds=3, folder=place, **about)
    np.testing.assert_allclose([r["lr"] for r in result.records], [0.1, 0.05, 0.1 / 3])
    assert 'schedule = "falling"' in (tmp_path / "run/config.toml").read_text()


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--schedule step", "decay_rounds"),
        ("--decay 0.5", "schedule"),
        ("--warmup 3 --rounds 3", "warmup"),
        ("--schedule cosine --lr theory --momentum 0", "theory"),
        ("--warmup 2 --lr theory --momentum 0", "theory"),
        ("--schedule linear", "schedule"),
    ],
)
def test_what_does_not_go_together_is_one_line(wecfl: "Wecfl", flags: str, problem: str) -> None:
    code, _, errors = wecfl("run", *flags.split())
    assert code == 2
    assert problem in errors
    assert errors.count("\n") <= 1 or "╭" in errors  # of a word that is unknown, a box


def test_what_is_no_schedule_is_refused(fed: Federation) -> None:
    with pytest.raises(ConfigError, match="function of the round"):
        Plan(schedule=0.5)  # type: ignore[arg-type]
    for wrong in (float("nan"), -1.0, "half"):
        with pytest.raises(ConfigError, match="factor"):
            run_flat(fed, methods.fedavg, model="logistic", rounds=1, schedule=lambda t, w=wrong: w)
    for make in (lambda: StepDecay(0), lambda: CosineDecay(3, 2.0), lambda: Warmup(1.5)):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="needs a"):
            make()


def test_step_of_the_configuration() -> None:
    options = options_of(Config(schedule="step", decay_rounds=10, decay=0.5, warmup=2))
    assert options["plan"].schedule == Warmup(2, StepDecay(10, 0.5))
