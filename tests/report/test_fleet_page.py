"""The report page of a fleet, and what `wecfl check` can say about one."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import wecfl
from pages import Text, lines
from wecfl import Fleet, methods
from wecfl.core.state import Reply
from wecfl.errors import RunFolderError
from wecfl.options import Compute, Conditions, Plan
from wecfl.report.page.html import page
from wecfl.runs.record import Record
from wecfl.theory.check import check_run

M, ACTIVE, ROUNDS = 30, 8, 6  # a pass takes three rounds, so all take part again in the last three


def load(number: int) -> tuple[Any, Any]:
    """Clients of two kinds, and of different sizes."""
    draws = np.random.default_rng([3, number])
    y = draws.integers(0, 3, 10 + number % 4)
    x = 2 * np.eye(3, dtype=np.float32)[(y + number % 2) % 3]
    return x + draws.normal(size=x.shape).astype(np.float32), y


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet of which some replies are lost."""
    place = tmp_path_factory.mktemp("fleet") / "run"
    wecfl.run_fleet(
        Fleet(range(M), load, classes=3, groups=np.arange(M) % 2), methods.wecfl(k=2),
        active=ACTIVE, model="mlp", rounds=ROUNDS, plan=Plan(lr=0.1, steps=3, batch=4),
        conditions=Conditions(dropout=0.25), engine=Compute(workers=1), folder=place,
    )  # fmt: skip
    return place


def records_of(folder: Path) -> list[Record]:
    """The lines of `metrics.jsonl`, as they stand there."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def changed(folder: Path, to: Path, change: Callable[[list[Record]], None]) -> Path:
    """A copy of the folder with other records."""
    shutil.copytree(folder, to)
    records = records_of(folder)
    change(records)
    (to / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return to


def test_the_page_counts_who_was_heard(folder: Path) -> None:
    text = Text(page([folder]))
    areas, turns = lines(text, "presence-0-0"), lines(text, "presence-0-1")
    seen: set[int] = set()
    for record, area, turn in zip(records_of(folder), areas, turns, strict=True):
        numbers, reply = record["clients"]["number"], record["clients"].get("reply")
        heard = {
            number for i, number in enumerate(numbers) if reply is None or reply[i] == Reply.HEARD
        }
        first = len(heard - seen)
        assert [turn["v0"], turn["v1"], turn["v2"]] == [
            first, len(heard) - first, len(numbers) - len(heard)
        ]  # fmt: skip
        seen |= heard
        assert area["top1"] == area["v0"] + area["v1"] == len(seen)


def test_the_page_shows_scores_clusters_and_memory(folder: Path) -> None:
    html = page([folder])
    text, records = Text(html), records_of(folder)
    shown = lines(text, "service-0-0")
    for record, spread in zip(records, shown, strict=True):
        expected = np.quantile(record["clients"]["accuracy"], (0.9, 0.5, 0.1))
        assert [spread[f"v{i}"] for i in range(3)] == pytest.approx(expected, rel=1e-5)
    costs = lines(text, "costs-0-1")
    assert [each["v1"] for each in costs] == pytest.approx(
        [record["memory"]["kept"] / 1e9 for record in records], rel=1e-5
    )
    table = wecfl.load(folder).clients
    for label, inside in table.groupby("cluster"):
        assert f"Cluster {label}</h4>" in html and f">{len(inside)} clients, " in html
    exact = adjusted_rand_score(table["group"], table["cluster"])
    assert f"<dt>ARI of all heard</dt><dd>{exact:.2f}</dd>" in html
    assert f"<dt>heard</dt><dd>{len(table)} of {M}</dd>" in html
    last = records[-1]["clients"]["number"]
    named = [cell for cell in text.cells if cell.isdecimal() and int(cell) in last]
    assert {int(name) for name in named} >= {*table["number"]} & {*last}
    assert "Clients, round by round" not in text.heads  # there is no map


def test_a_fleet_beside_an_ordinary_run(folder: Path, tmp_path: Path) -> None:
    few = wecfl.Federation.from_arrays(*zip(*map(load, range(8)), strict=True), classes=3)
    wecfl.run(few, methods.fedavg, model="mlp", rounds=2, folder=tmp_path / "run",
              engine=Compute(workers=1))  # fmt: skip
    heads = Text(page([folder, tmp_path / "run"])).heads
    assert "Who took part" in heads and "Clients, round by round" in heads


def test_refused_replies_are_counted_by_client(folder: Path, tmp_path: Path) -> None:
    def refuse(records: list[Record]) -> None:
        for record in records:
            record["clients"]["reply"] = [int(Reply.HEARD)] * len(record["clients"]["number"])
        number = wecfl.load(folder).clients["number"][4]
        for record in records:
            if number in record["clients"]["number"]:
                at = record["clients"]["number"].index(number)
                record["clients"]["reply"][at] = int(Reply.NOT_FINITE)

    refused = changed(folder, tmp_path / "refused", refuse)
    text = page([refused])
    assert "2 replies refused" in text and "client 4 (2 of 6 rounds)" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [("number", M), ("number", -1), ("cluster", 2), ("reply", None), ("number", "a")],
)
def test_clients_that_do_not_exist_are_refused(
    folder: Path, tmp_path: Path, key: str, value: Any
) -> None:
    def damage(records: list[Record]) -> None:
        held = records[2]["clients"]
        held[key] = [value] * len(held["number"])

    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 3"):
        page([changed(folder, tmp_path / "damaged", damage)])


def test_files_of_different_fleets_are_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "two")
    rows = (folder / "clients.csv").read_text().splitlines(keepends=True)
    (tmp_path / "two" / "clients.csv").write_text("".join(rows[:-1]))
    with pytest.raises(RunFolderError, match="not belong together"):
        page([tmp_path / "two"])


def test_lemmas_1_and_2_are_judged_on_those_who_take_part(folder: Path, tmp_path: Path) -> None:
    found = {statement.name: statement for statement in check_run(folder).statements}
    for name, left, right in (("Lemma 1", "E", "L"), ("Lemma 2", "M", "E")):
        judged = [(each.left, each.right) for each in found[name].rounds]
        assert judged == [(r["F"][left], r["F"][right]) for r in records_of(folder)]
        assert all(each.held for each in found[name].rounds)
    assert {name for name, each in found.items() if each.missing} == {*found} - {
        "Lemma 1", "Lemma 2"
    }  # fmt: skip

    def raise_f(records: list[Record]) -> None:
        records[3]["F"]["E"] = 2 * records[3]["F"]["L"]

    assert check_run(changed(folder, tmp_path / "raised", raise_f)).refuted == ["Lemma 1"]
