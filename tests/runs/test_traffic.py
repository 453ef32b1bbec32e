"""Bytes and messages, against a count by hand of what each method must send."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wecfl
from helpers import run_flat
from wecfl import methods
from wecfl.core.method import Method
from wecfl.folder.readers import read_metrics, read_summary
from wecfl.report.tables.results import result_cells, results

P, HEAD, M, K = 4810, 650, 6, 3  # the mlp on digits: 64·64 + 64 and 64·10 + 10


@pytest.fixture(scope="module")
def fed() -> wecfl.Federation:
    return wecfl.Federation.from_dataset("digits", wecfl.partitions.Iid(), clients=M, seed=0)


def traffic(fed: wecfl.Federation, method: Method, **how: Any) -> list[dict[str, Any]]:
    result = run_flat(fed, method, rounds=2, steps=2, engine="native", **how)
    return [{**r["traffic"], **r["clients"]} for r in result.records]


@pytest.mark.parametrize(
    ("method", "up", "down", "exchanges"),
    [
        (methods.fedavg, [P, P], [P, P], [1, 1]),
        (methods.fedper(), [P - HEAD, P - HEAD], [P - HEAD, P - HEAD], [1, 1]),
        (methods.local(), [0, 0], [P, P], [1, 1]),
        # c − c_i comes with the model, from the second round on
        (methods.scaffold(), [P, P], [P, 2 * P], [1, 1]),
        # K models down and K float64 losses up in each E, which the opening has, too
        (methods.ifca(K), [P + 4 * K, P + 2 * K], [P + 2 * K * P, P + K * P], [3, 2]),
        (methods.fedavg_plus(2), [2 * P, 2 * P], [2 * P, 2 * P], [2, 2]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_a_client_sends_and_receives(
    method: Method, up: list[int], down: list[int], exchanges: list[int], fed: wecfl.Federation
) -> None:
    for t, found in enumerate(traffic(fed, method)):
        assert found["bytes_up"] == [4 * up[t]] * M
        assert found["bytes_down"] == [4 * down[t]] * M
        assert (found["up"], found["down"]) == (4 * up[t] * M, 4 * down[t] * M)
        assert found["messages"] == 2 * M * exchanges[t]
        one_object = {id(count) for count in found["bytes_down"]}
        assert len(one_object) == 1  # records of all rounds stay in memory


def test_absent_clients_send_nothing_and_a_lost_reply_was_sent(fed: wecfl.Federation) -> None:
    for found in traffic(fed, methods.fedavg, participation=0.5, dropout=0.5):
        here = np.array(found["bytes_up"]) > 0
        assert here.sum() == 3
        assert found["messages"] == 6
        np.testing.assert_array_equal(np.array(found["bytes_down"]) > 0, here)


def test_measurements_do_not_count(fed: wecfl.Federation) -> None:
    plain = traffic(fed, methods.wecfl(2))
    measured = traffic(fed, methods.wecfl(2), objectives=True, diagnostics=True)
    assert [each["up"] for each in plain] == [each["up"] for each in measured]
    assert plain[0]["down"] == measured[0]["down"] == 4 * P * M


def test_it_is_in_the_folder_and_in_the_table(fed: wecfl.Federation, tmp_path: Path) -> None:
    run_flat(fed, methods.fedavg, rounds=2, steps=2, engine="native", out=tmp_path / "run")
    assert read_metrics(tmp_path / "run")[0]["traffic"]["up"] == 4 * P * M
    total = {"up": 8 * P * M, "down": 8 * P * M, "messages": 4 * M}
    assert read_summary(tmp_path / "run")["traffic"] == total
    frame = results([tmp_path / "run"])
    assert frame["megabytes"].tolist() == [16 * P * M / 1e6]
    heads, rows = result_cells(frame)
    assert rows[0][heads.index("MB sent")] == "0.5"
