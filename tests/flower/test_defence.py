"""What protects a run over a network from a client that shouts, by default."""

import logging
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from torch import nn

import wecfl
from fakegrid import WAITS, FakeGrid, Node
from wecfl import Federation
from wecfl.errors import RunFolderError
from wecfl.flower import client_app
from wecfl.flower.server import serve
from wecfl.runs.result import Result

M, CLASSES, LIAR = 20, 10, 7


@pytest.fixture(scope="module")
def fed() -> Federation:
    partition = wecfl.partitions.ClientwiseDirichlet(1.0)
    return Federation.from_dataset("digits", partition, clients=M, seed=1)


def make_model() -> nn.Module:
    return wecfl.models.build("logistic", shape=(1, 8, 8), classes=CLASSES, seed=5)


def grid_of(fed: Federation, place: Path, strength: float | None) -> FakeGrid:
    """Twenty clients, one of which sends its update times this."""

    def load_data(config: Any) -> tuple[Any, ...]:
        train, test = (rows[config["partition-id"]] for rows in (fed.train, fed.test))
        return fed.x[train], fed.y[train], fed.x[test], fed.y[test]

    app = client_app(load_data, make_model, classes=CLASSES)
    grid = FakeGrid(
        {
            i: Node(app, {"client-id": f"c{i}", "partition-id": i, "state-dir": f"{place}/c{i}"})
            for i in range(M)
        }
    )

    def shout(message: Message) -> Message:
        if strength is not None and message.metadata.message_type == "train":
            asked = grid.pushed[int(message.metadata.reply_to_message_id[1:])]
            received = asked.content.array_records["own"]["model"].numpy()
            trained = message.content.array_records["arrays"]["model"].numpy()
            lie = received + np.float32(strength) * (trained - received)
            message.content["arrays"] = ArrayRecord({"model": Array(lie)})
        return message

    grid.nodes[LIAR].tamper = shout
    return grid


def run(fed: Federation, place: Path, strength: float | None = None, **said: Any) -> Result:
    config = {
        "clients": M, "rounds": 5, "steps": 5, "lr": 0.2, "method": "fedavg", "clusters": 1,
        "timeout": 60, "enrolment": 1, "out": str(place / "run"), "score-every": 5, **said,
    }  # fmt: skip
    return serve(grid_of(fed, place, strength), config, make_model, classes=CLASSES, **WAITS)


def honest(result: Result) -> float:
    """The accuracy of the others in the last round."""
    return float(np.mean(np.delete(result.records[-1]["clients"]["accuracy"], LIAR)))


def test_one_client_of_twenty_that_shouts_the_opposite_does_not_spoil_the_model(
    fed: Federation, tmp_path: Path
) -> None:
    clean = honest(run(fed, tmp_path / "clean"))
    attacked = honest(run(fed, tmp_path / "attacked", -20.0))
    assert clean > 0.8
    assert attacked > clean - 0.02
    bare = {"shorten-above": "never"}
    assert honest(run(fed, tmp_path / "bare", -20.0, **bare)) < clean - 0.4


def test_what_protects_a_run_is_told_written_and_part_of_it(
    fed: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wecfl")
    run(fed, tmp_path, rounds=1)
    limit = tomllib.loads((tmp_path / "run" / "config.toml").read_text())["shorten_above"]
    assert f"an update longer than {limit:g} times the median" in caplog.text
    with pytest.raises(RunFolderError, match="shorten_above = 'never'"):
        run(fed, tmp_path, rounds=2, **{"shorten-above": "never"})
    caplog.clear()
    run(fed, tmp_path / "bare", rounds=1, **{"shorten-above": "never"})
    assert "no update is shortened" in caplog.text
