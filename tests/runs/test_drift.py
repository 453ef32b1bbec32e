"""Runs of clients whose data drift: every engine, every interruption, the truth of each round."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from helpers import Wecfl, same_states
from wecfl import State, make_engine, methods
from wecfl.bilevel.evaluation import tallies
from wecfl.config import Config
from wecfl.core.channel import Channel
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate, opening
from wecfl.core.setting import Setting
from wecfl.data.changes import changed_clients
from wecfl.experiment import run_config
from wecfl.folder.readers import read_metrics
from wecfl.from_config import federation_of
from wecfl.models import build

DRIFTING = Config(
    partition="iid", transform=("permutation",), clients=8, groups=2, clusters=2, rounds=5,
    steps=3, model="logistic", workers=1, lr=0.1, drift="abrupt(round=3, share=0.5)",
)  # fmt: skip


def rounds_of(engine: Any, state: State | None, count: int, round: int) -> State:
    """The state after `count` rounds, which begin with this one."""
    channel = Channel(participation=0.7, keys=np.arange(8))
    setting = Setting(methods.wecfl(k=2), engine, LocalPlan(3, 16, 0.1), channel=channel)
    state = opening(setting) if state is None else state
    for number, after in enumerate(islice(iterate(setting, state), count)):
        engine.move_to(round + number + 1)
        state = after
    return state


@pytest.mark.parametrize("name", ["native", "torch"])
def test_an_engine_that_moves_on_is_one_engine_after_the_other(name: Any) -> None:
    """With clients that miss rounds. The twin has never heard of drift."""
    fed = federation_of(DRIFTING)
    model = build("logistic", shape=fed.shape, classes=fed.classes)
    state = None
    for round, count in ((1, 2), (3, 3)):
        with make_engine(name, fed.at(round), model, workers=1) as plain:
            state = rounds_of(plain, state, count, round)
    assert state is not None
    with make_engine(name, fed, model, workers=2) as moving:
        same_states(rounds_of(moving, None, 5, 1), state)


def test_scores_and_agreement_are_those_of_the_round(tmp_path: Path) -> None:
    config = DRIFTING.model_copy(update={"drift": "recurring(round=3, period=1, times=3)"})
    fed: Any = federation_of(config)
    out = tmp_path / "run"
    result = run_config(config, out=out)
    with make_engine(
        "native", fed.at(5), build("logistic", shape=fed.shape, classes=fed.classes)
    ) as engine:
        scores = engine.task.scores(tallies(engine, result.states[0].sent, "test"))
    *_, last = records = read_metrics(out)
    assert last["clients"]["accuracy"] == pytest.approx(scores["accuracy"].tolist(), abs=1e-6)
    assert last["ari"] == pytest.approx(adjusted_rand_score(fed.at(5).groups, result.labels))
    changed = {t: record["drift"] for t, record in enumerate(records, 1) if "drift" in record}
    assert list(changed) == [3, 4, 5]
    assert all(told["groups"] == fed.at(t).groups.tolist() for t, told in changed.items())
    assert changed[3]["changed"] == changed[4]["changed"] == changed_clients(fed, 3).tolist()
    assert result.clients["group"].tolist() == fed.at(5).groups.tolist() != fed.groups.tolist()


def test_newcomers_drift_like_members() -> None:
    result = run_config(DRIFTING.model_copy(update={"newcomers": 0.4, "drift": "vanish(round=3)"}))
    assert result.newcomers is not None
    assert set(result.newcomers["group"]) == {0}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--drift", "abrubt"], "did you mean 'abrupt'"),
        (["--drift", "abrupt(share=2)"], "at most 1"),
        (
            ["--drift", "abrupt", "--partition", "iid", "--groups", "1", "--transform", "blur"],
            "two",
        ),
        (["--drift", "abrupt", "--partition", "iid"], "clients with groups"),
        (["--drift", "abrupt", "--attack", "label-flip"], "leave out attack or drift"),
        (["--drift", "abrupt", "--diagnostics"], "leave out diagnostics or drift"),
        (["--drift", "abrupt(round=40)"], "30 rounds"),
    ],
)
def test_what_cannot_be_is_one_line(flags: list[str], said: str, wecfl: Wecfl) -> None:
    done = wecfl("run", *flags)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert said in done.err
