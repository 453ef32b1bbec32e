"""What the tracker of Weights & Biases writes, offline, read back from its file."""

import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from wecfl.folder.readers import read_metrics
from wecfl.report.trackers import numbers

FLAGS = [
    "--clients",
    "6",
    "--groups",
    "2",
    "--rounds",
    "2",
    "--clusters",
    "2",
    "--model",
    "logistic",
]
BLOCK, HEADER = 32768, 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command. Its own process, because the tool keeps one beside it until the end."""
    path = tmp_path_factory.mktemp("wandb") / "run"
    plain = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", "from wecfl.cli import main; main()", "run", *FLAGS,
         "--workers", "1", "--track", "wandb", "--out", str(path)],
        env={**plain, "WANDB_BASE_URL": "http://127.0.0.1:9"}, cwd=path.parent,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "wandb" not in done.stderr
    return path


def records(folder: Path) -> Iterator[Any]:
    """The records of the one run in the folder: a log in the format of LevelDB, of messages."""
    Record: Any = import_module("wandb.proto.wandb_internal_pb2").Record

    [file] = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, whole = file.read_bytes(), HEADER, b""
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # what is left of a block is padding
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + HEADER])
        whole += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # a whole message, or the last piece of one
            yield Record.FromString(whole)
            whole = b""


def pairs(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_it_holds_every_number_of_every_round(folder: Path) -> None:
    history = [pairs(record.history.item) for record in records(folder) if record.history.item]
    for told, record in zip(history, read_metrics(folder), strict=False):
        for name, value in numbers(record).items():
            assert told[name] == pytest.approx(value)
    assert [told["round"] for told in history if "round" in told] == [1, 2]


def test_it_holds_configuration_summary_and_files(folder: Path) -> None:
    everything = list(records(folder))
    [started] = [record.run for record in everything if record.HasField("run")]
    config = pairs(started.config.update)
    assert (config["method"], config["clusters"]) == ("wecfl", 2)
    assert started.project == "wecfl"
    summary: dict[str, Any] = {}
    for record in everything:
        summary |= pairs(record.summary.update)
    told = json.loads((folder / "summary.json").read_text())
    assert summary["summary/accuracy"] == pytest.approx(told["accuracy"])
    [picture] = folder.glob("wandb/offline-run-*/files/media/images/overview_*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    saved = {entry.path for record in everything for entry in record.files.files}
    assert {"models.safetensors", "metrics.jsonl", "config.toml"} <= saved
    assert not [name for name in saved if re.match(r"state", name)]
    [end] = [record.exit.exit_code for record in everything if record.HasField("exit")]
    assert end == 0


def test_it_is_told_nothing_about_the_machine(folder: Path) -> None:
    told = [record for record in records(folder) if record.HasField("environment")]
    assert not told
    assert not list(folder.glob("wandb/offline-run-*/files/wandb-metadata.json"))
    assert not list(folder.glob("wandb/offline-run-*/files/requirements.txt"))
