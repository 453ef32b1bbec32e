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
from wecfl.channel.attacks import ATTACKS
from wecfl.config import Config
from wecfl.errors import RunFolderError
from wecfl.flower import client_app
from wecfl.flower.server import read, serve
from wecfl.paper.definition_files import read_definitions
from wecfl.runs.result import Result

M, CLASSES, LIAR = 20, 10, 7
BARE: dict[str, Any] = {"refuse-above": 100.0, "shorten-above": "never"}
"""The limits of a simulation."""


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
    assert clean > 0.8
    for strength in (-20.0, -4.0):  # refused, shortened
        place = tmp_path / f"{strength}"
        assert honest(run(fed, place, strength)) > clean - 0.02
    assert honest(run(fed, tmp_path / "bare", -20.0, **BARE)) < clean - 0.4


def test_what_protects_a_run_is_told_written_and_part_of_it(
    fed: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "wecfl")
    run(fed, tmp_path, -20.0, rounds=1)
    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    told = (
        f"refused above {written['refuse_above']:g} times the median length of the round and "
        f"shortened above {written['shorten_above']:g} times"
    )
    assert told in caplog.text
    assert f"the update of c{LIAR} was refused" in caplog.text
    with pytest.raises(RunFolderError, match="shorten_above = 'never'"):
        run(fed, tmp_path, rounds=2, **BARE | {"refuse-above": written["refuse_above"]})
    caplog.clear()
    run(fed, tmp_path / "bare", -20.0, rounds=1, **BARE)
    assert "refused above 100 times" in caplog.text
    assert "never shortened" in caplog.text
    assert f"the update of c{LIAR} was refused" not in caplog.text


def test_the_defence_over_a_network_is_reported_on_other_data_than_it_was_chosen_on() -> None:
    defined = read_definitions()
    chosen, told = (defined[f"network-{name}"].cells for name in ("candidates", "defaults"))
    _, default = read({"clients": 20})
    for cells in (chosen, told):
        limits = {(c.config.refuse_above, c.config.shorten_above) for c in cells}
        usual = Config()
        assert {
            (default.refuse_above, default.shorten_above),
            (usual.refuse_above, usual.shorten_above),
        } <= limits
        assert {c.config.attack for c in cells} == {*ATTACKS}
        assert {round(c.config.clients * (c.config.attackers or 0)) for c in cells} == {1, 4}
        assert {c.config.method for c in cells} == {"fedavg", "wecfl"}
    data = [{(c.config.dataset, c.config.partition) for c in cells} for cells in (chosen, told)]
    assert not data[0] & data[1]
