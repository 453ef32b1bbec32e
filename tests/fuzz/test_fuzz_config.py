"""Configurations, flags and paths at and past their edges."""

import json
import os
import shutil
import sys
import time
import tomllib
from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

import damage
from fuzzing import chances, contents, judge, tries
from helpers import Wecfl
from wecfl.config import Config
from wecfl.enrolment import Enrolment
from wecfl.errors import ConfigError
from wecfl.flower.policy import Policy
from wecfl.folder.readers import read_summary
from wecfl.limits import MAX_COUNT

SMALL: dict[str, Any] = {
    "model": "logistic", "clients": 4, "groups": 2, "clusters": 2, "rounds": 1, "steps": 1,
    "workers": 1, "objectives": False,
}  # fmt: skip
COSTLY = {"rounds", "steps", "workers"}
"""Legal up to a million, for those who have the time."""


def flags(choices: dict[str, Any]) -> list[str]:
    return [
        word
        for key, value in choices.items()
        for word in (
            [f"--{'' if value else 'no-'}{key.replace('_', '-')}"]
            if isinstance(value, bool)
            else [f"--{key.replace('_', '-')}", str(value)]
        )
    ]


TOKENS = (
    "", "0", "-1", "1", "2", "0.5", "1.5", "nan", "inf", "-inf", "1e308", "1e-320", "9" * 30, "-",
    "9" * 5000, str(2**63), str(2**31), str(MAX_COUNT), str(MAX_COUNT + 1), "true", "é",
    "a\nb", "--", "[1]", "x" * 300, "0x10", "1_0",
    " 3 ", "\u0663", "~", "*", "..", "/", "/dev/null", "/dev/zero",
    "theory", "none", "\udcff", "'; rm -rf", "{{ 7*7 }}", "fedavg,", "cfl",
)  # fmt: skip


def test_an_integer_of_thousands_of_digits(wecfl: Wecfl, tmp_path: Path) -> None:
    """Python does not convert it, neither as an option of a method nor in a file."""
    number = "9" * 5000
    assert not judge(wecfl("run", "--mu", "1", "--options", number, "--out", tmp_path / "out"))
    (tmp_path / "list.toml").write_text(f"max_reply = {number}")
    with pytest.raises(ConfigError, match="digits"):
        Enrolment.read(tmp_path / "list.toml")
    (tmp_path / "policy.toml").write_text(f"samples = {number}")
    with pytest.raises(ConfigError, match="digits"):
        Policy.read({}, tmp_path)


@tries(10)
@given(name=st.sampled_from(sorted(Config.model_fields)), token=st.sampled_from(TOKENS))
def test_flags(wecfl: Wecfl, tmp_path: Path, name: str, token: str) -> None:
    if name in COSTLY and token == str(MAX_COUNT):
        return
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    given = flags({key: value for key, value in SMALL.items() if key != name})
    worked = judge(wecfl("run", *given, f"--{name.replace('_', '-')}", token, "--out", out))
    assert not worked or read_summary(out)["status"] == "finished"


@tries(10)
@given(name=st.sampled_from(sorted(Config.model_fields)), rnd=chances)
def test_toml(wecfl: Wecfl, tmp_path: Path, name: str, rnd: Random) -> None:
    file, out = tmp_path / "a b.toml", tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    value = rnd.choice([each for each in damage.HOSTILE_VALUES if each is not None])
    written = tomli_w.dumps(damage.toml_values({**SMALL, name: value})).encode()
    file.write_bytes(damage.of_bytes(written, rnd) if rnd.random() < 0.2 else written)
    before = file.read_bytes()
    judge(wecfl("run", file, "--out", out, "--rounds", "1", "--steps", "1", "--workers", "1"))
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ["-a 'b\"ä€💥[red]$(x)\\n\n", "x" * 255])
def test_odd_names_work_from_end_to_end(wecfl: Wecfl, tmp_path: Path, name: str) -> None:
    """Of the run folder, the configuration and the folder of clients."""
    odd = tmp_path / name
    odd.mkdir()
    for i in range(3):
        np.savez(odd / f"{i}.npz", x=np.eye(4)[np.arange(12) % 4], y=np.arange(12) % 4)
    choices = {"clusters": 2, "rounds": 2, "steps": 1, "workers": 1, "dataset": str(odd)}
    (tmp_path / "c.toml").write_text(tomli_w.dumps(choices))
    assert judge(wecfl("run", tmp_path / "c.toml", "--out", odd / name))
    for command in (["compare"], ["check", "--rounds"], ["report"]):
        assert judge(wecfl(*command, odd / name))
    assert (odd / name / "page.html").exists()


def test_names_that_are_no_text_are_refused(wecfl: Wecfl, tmp_path: Path) -> None:
    """Bytes of a file name that are no UTF-8, as any file system but few formats can hold."""
    labels = np.arange(12) % 4
    odd, folder = tmp_path / "\udcff", tmp_path / "clients"
    for place in (odd, folder):
        place.mkdir()
        np.savez(place / "1.npz", x=np.eye(4)[labels], y=labels)
    quick = ("--clusters", "1", "--rounds", "1", "--steps", "1", "--workers", "1")
    assert not judge(wecfl("run", *quick, "--dataset", odd, "--out", "out"))
    (folder / "\udcff.npz").write_bytes((folder / "1.npz").read_bytes())
    assert not judge(wecfl("run", *quick, "--dataset", folder, "--out", "out"))
    assert not Path("out").exists()
    (folder / "\udcff.npz").unlink()
    assert judge(wecfl("run", *quick, "--dataset", folder, "--out", "out\udcff"))
    assert judge(wecfl("report", "out\udcff"))
    assert judge(wecfl("compare", "out\udcff"))


def test_a_null_byte_in_any_path(wecfl: Wecfl, tmp_path: Path) -> None:
    assert judge(wecfl("run", *flags(SMALL), "--out", "good"))
    before = contents(tmp_path)
    for tokens in (
        ["run", *flags(SMALL), "--out", "a\0b"],
        ["run", *flags(SMALL), "--out", "new", "--figure", "a\0b.svg"],
        ["run", *flags(SMALL), "--out", "new", "--data-dir", "a\0b"],
        ["run", "a\0b.toml"],
        ["run", *flags(SMALL), "--out", "new", "--dataset", "a\0b.npz"],
        ["partition", "--clients", "4", "--groups", "2", "--out", "a\0b.svg"],
        ["compare", "a\0b"],
        ["compare", "good", "--figure", "a\0b.svg"],
        ["check", "a\0b"],
        ["report", "a\0b"],
        ["report", "good", "--out", "a\0b.html"],
        ["reproduce", "table1", "--dry-run", "--definitions", "a\0b"],
        ["data", "list", "--data-dir", "a\0b"],
    ):
        assert not judge(wecfl(*tokens)), tokens
        shutil.rmtree("new", ignore_errors=True)
    assert contents(tmp_path) == before


def test_places_where_nothing_can_be_written(wecfl: Wecfl, tmp_path: Path) -> None:
    Path("file").write_text("mine")
    places = ["file", "file/below", "x" * 300, "/proc/new", "/dev/null", "new/" + "y" * 256]
    if os.geteuid():  # root writes anywhere
        Path("locked").mkdir(mode=0o500)
        places.append("locked/run")
    before = contents(tmp_path)
    for place in places:
        assert not judge(wecfl("run", *flags(SMALL), "--out", place)), place
        assert not judge(wecfl("partition", "--clients", "4", "--groups", "2", "--out", place))
    assert contents(tmp_path) == before


def test_a_clock_that_goes_backwards(
    wecfl: Wecfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at it is an hour earlier, and every second run begins when the first did."""
    looks = iter(range(10**9))

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2026, 1, 1, tzinfo=tz) - timedelta(hours=next(looks) // 2)

    monkeypatch.setattr(sys.modules["wecfl.cli.run"], "datetime", Clock)
    monkeypatch.setattr("wecfl.folder.writer.datetime", Clock)
    monkeypatch.setattr(time, "time", lambda: 1.7e9 - 3600 * next(looks))
    for _ in range(4):
        assert judge(wecfl("run", *flags(SMALL)))
    folders = sorted(Path("runs").iterdir())
    assert len(folders) == 4
    for folder in folders:
        assert read_summary(folder)["seconds"] >= 0
        assert all(
            seconds >= 0
            for line in (folder / "metrics.jsonl").read_text().splitlines()
            for seconds in json.loads(line)["seconds"].values()
        )
    assert judge(wecfl("compare", "runs"))


# The page

EVIL = "</script><img src=x onerror=alert(1)>\"'&lt;{{7*7}}"


class Tags(HTMLParser):
    """All elements with their attributes' names; what browsers would take for handlers."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))


def test_nothing_that_a_run_is_called_becomes_a_part_of_the_page(
    wecfl: Wecfl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same page, element for element, for plain names and for hostile ones."""
    assert judge(wecfl("run", *flags({**SMALL, "rounds": 2}), "--out", "plain"))
    hostile = Path("hostile <img src=x onerror=alert(1)>")
    shutil.copytree("plain", hostile)

    def write(name: str, change: Any) -> None:
        value = json.loads((hostile / name).read_text())
        change(value)
        (hostile / name).write_text(json.dumps(value))

    write("summary.json", lambda s: s.update(method=EVIL, engine=EVIL, status=f"finished{EVIL}"))
    write("env.json", lambda e: e.update(command=EVIL, system=EVIL))
    write("env.json", lambda e: e["packages"].update(wecfl=EVIL))
    config = tomllib.loads((hostile / "config.toml").read_text())
    config.update(dataset=EVIL, partition=EVIL)
    (hostile / "config.toml").write_text(tomli_w.dumps(config))
    for name in ("clients.csv", "classes.csv", "assignments.csv"):
        text = (hostile / name).read_text()
        head, *lines = text.splitlines()
        cell = '"' + EVIL.replace('"', '""') + '"'
        if name == "assignments.csv":
            head = head.replace("0", cell, 1)
        else:
            lines[0] = cell + lines[0][1:]
        (hostile / name).write_text("\n".join([head, *lines]) + "\n")
    pages = {}
    for folder in ("plain", hostile):
        assert judge(wecfl("report", folder, "--out", "page.html"))
        pages[folder] = Tags(Path("page.html").read_text(encoding="utf-8"))
    new = [tag for tag in pages[hostile].tags if tag not in pages["plain"].tags]
    assert new == []
    assert len(pages[hostile].tags) == len(pages["plain"].tags) + 3  # <div><dt><dd>: its status


def test_a_configuration_without_an_end(wecfl: Wecfl) -> None:
    for device in ("/dev/zero", "/dev/urandom"):
        outcome = wecfl("run", device)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert f"{device}: " in outcome.err and "configuration" in outcome.err
