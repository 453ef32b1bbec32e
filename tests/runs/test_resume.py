"""A run that was stopped goes on as if it had not been; what is damaged is said."""

import ast
import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers import run_flat, same_folders, same_states
from wecfl import Federation, NativeEngine, State, methods
from wecfl.config import Config
from wecfl.core.plan import LocalPlan
from wecfl.core.rounds import iterate
from wecfl.core.setting import Setting
from wecfl.errors import ConfigError, RunFolderError
from wecfl.experiment import run_config
from wecfl.folder import checkpoint, files
from wecfl.folder.readers import config_of, read_metrics, read_states, read_summary
from wecfl.folder.writer import RunFolder
from wecfl.from_config import federation_of
from wecfl.method_from_config import method_of
from wecfl.models import build

if TYPE_CHECKING:
    from helpers import Wecfl

TESTS = Path(__file__).parent.parent
TINY = Config(
    clients=6, groups=2, clusters=2, rounds=6, steps=3, model="logistic", workers=1
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six rounds that was left alone."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    run_config(TINY, out=path)
    return path


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The same run, killed after its fourth round."""
    return stop_after(4, TINY, tmp_path / "run")


def stop_after(rounds: int, config: Config, out: Path) -> Path:
    def stop(record: dict[str, Any], states: object) -> None:
        if record["round"] == rounds:
            raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(RunFolder, "end", lambda *_: None)
        run_config(config, out=out, watch=[stop])
    return out


def go_on(folder: Path) -> None:
    run_config(config_of(folder), out=folder, resume=True)


# Kills


MEMORY: dict[str, dict[str, list[str]]] = {
    "cfl-adam": {
        "memory": ["momentum"], "cluster": ["m", "v"], "whole": ["notes.largest", "notes.mean"]
    },
    "wecfl-adam": {
        "memory": ["momentum"], "cluster": ["m", "v"],
        "whole": [f"notes.{name}" for name in ("found", "grouped", "k", "next", "same", "settled")],
    },
    "scaffold": {"known": ["control"]},
    "ditto": {"memory": ["begun", "momentum", "personal", "personal_momentum"]},
    "fedper": {"memory": ["begun", "momentum", "private"]},
    "local": {"memory": ["begun", "momentum", "personal"]},
}  # fmt: skip
"""Methods that keep something of every kind, and what each must have had to lose."""


def test_kills_change_nothing() -> None:
    """At random moments, and by fault injection in the middle of writing; `make soak` has more."""
    command = [sys.executable, "tests/kills.py", "--times", "1", "--rounds", "4"]
    path = os.pathsep.join(["tests", *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, "--method", *MEMORY, "--case", "several", "ledger"],
        cwd=TESTS.parent, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = list(map(ast.literal_eval, done.stdout.splitlines()))
    told = {each.get("method") or each["case"]: each for each in lines}
    assert {method: told[method]["kept"] for method in MEMORY} == MEMORY
    assert told["several"]["clusters"] == [1, 2, 4, 6]
    assert told["ledger"]["in ledgers"] >= told["ledger"]["sent"] >= 3 * 4
    assert told["cfl-adam"]["clusters"] == [1, 2, 4, 6]  # parted when they had moments to leave
    assert told["wecfl-adam"]["clusters"] == [1, 2, 2, 2]  # after two looks that agree
    assert all(each["kills"] == 1 for each in told.values())
    writing = sum(each["while writing"] for each in told.values())
    assert writing >= 2
    assert sum(each["kills"] for each in told.values()) - writing >= 2


def test_a_run_killed_before_its_first_checkpoint_begins_anew(whole: Path, tmp_path: Path) -> None:
    stop_after(1, TINY.model_copy(update={"checkpoint_every": 4}), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    run_config(TINY, out=tmp_path / "run", resume=True)
    same_folders(whole, tmp_path / "run")


# What is kept


def test_the_last_two_checkpoints_are_kept(whole: Path) -> None:
    names = sorted(file.name for file in (whole / "checkpoints").iterdir())
    kept = [f"00000{round}.{kind}" for round in (5, 6) for kind in ("json", "safetensors")]
    assert names == kept
    assert [state.round for state in read_states(whole)] == [6]


def test_what_a_kill_left_of_older_checkpoints_goes(whole: Path, tmp_path: Path) -> None:
    """Killed in the last round, between the two files of the checkpoint that it drops."""
    run = stop_after(6, TINY, tmp_path / "run")
    (run / "checkpoints" / "000004.safetensors").write_bytes(b"old")
    go_on(run)
    same_folders(whole, run)


def test_a_checkpoint_is_a_safetensors_file(whole: Path) -> None:
    arrays = load_file(whole / "checkpoints" / "000006.safetensors")
    known = {"0.round", "0.tick", "0.centers", "0.labels", "0.memory.momentum"}
    assert arrays.keys() == known
    [state] = read_states(whole)
    np.testing.assert_array_equal(arrays["0.centers"], state.centers)
    np.testing.assert_array_equal(state.models, state.own_centers)


def test_private_columns_are_kept(fed: Federation, tmp_path: Path) -> None:
    method = methods.wecfl(k=2).replace(shared="head")
    how: Any = {"model": "mlp", "steps": 2, "lr": 0.05, "workers": 1}
    result = run_flat(fed, method, rounds=2, out=tmp_path / "run", **how)
    [state] = read_states(tmp_path / "run")
    kept = state.memory["private"]
    assert len(np.unique(kept, axis=0)) == len(fed)
    np.testing.assert_array_equal(kept, result.states[0].memory["private"])


@pytest.mark.parametrize("choices", [{"diagnostics": True}, {"diagnostics": True, "lr": "theory"}])
def test_what_diagnostics_remember_goes_on_too(choices: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**{**TINY.model_dump(), "momentum": 0.0, **choices})
    run_config(config, out=tmp_path / "whole")
    go_on(stop_after(3, config, tmp_path / "run"))
    same_folders(tmp_path / "whole", tmp_path / "run")


def test_more_rounds_than_were_asked_for(whole: Path, tmp_path: Path, wecfl: "Wecfl") -> None:
    shutil.copytree(whole, tmp_path / "more")
    assert wecfl("resume", "more", "--rounds", "8").code == 0
    run_config(TINY.model_copy(update={"rounds": 8}), out=tmp_path / "eight")
    same_folders(tmp_path / "eight", tmp_path / "more")
    env = json.loads((tmp_path / "more" / "env.json").read_text())
    assert [each["round"] for each in env["resumed"]] == [6]
    outcome = wecfl("resume", "more")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "more already has 8 rounds" in outcome.err


def test_a_run_of_python_values_goes_on_in_python(
    fed: Federation, tmp_path: Path, wecfl: "Wecfl"
) -> None:

    how: Any = {"model": "logistic", "steps": 2, "lr": 0.05, "workers": 1, "out": tmp_path / "run"}
    run_flat(fed, methods.fesem(k=2), rounds=2, **how)
    result = run_flat(fed, methods.fesem(k=2), rounds=4, resume=True, **how)
    assert [record["round"] for record in result.records] == [1, 2, 3, 4]
    outcome = wecfl("resume", "run")
    assert outcome.code == 2
    assert "in Python, by run(…, folder=Folder('run', resume=True))" in outcome.err
    with pytest.raises(RunFolderError, match=r"clusters = 3.* with 2:"):
        run_flat(fed, methods.fesem(k=3), rounds=5, resume=True, **how)
    with pytest.raises(RunFolderError, match="other data"):
        run_flat(fed.subset([1, 0, 2, 3, 4]), methods.fesem(k=2), rounds=5, resume=True, **how)
    with pytest.raises(ConfigError, match=r"resume .* out"):
        run_config(TINY, resume=True)


# Damage


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 7)


DAMAGE = pytest.mark.parametrize("damage", [flip, cut, Path.unlink])


@DAMAGE
@pytest.mark.parametrize("kind", ["safetensors", "json"])
def test_a_damaged_checkpoint_is_said_and_the_one_before_it_used(
    damage: Callable[[Path], None], kind: str, stopped: Path, whole: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    damage(stopped / "checkpoints" / f"000004.{kind}")
    assert read_states(stopped)[0].round == 3
    go_on(stopped)
    same_folders(whole, stopped)
    gone = (damage, kind) == (Path.unlink, "json")  # never finished, as far as anyone can tell
    assert ("000004" in caplog.text and "earlier checkpoint" in caplog.text) != gone


def test_a_manifest_that_says_something_else_is_not_believed(
    stopped: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As good JSON as before, but not what the run wrote."""
    file = stopped / "checkpoints" / "000004.json"
    signed = json.loads(file.read_text())
    signed["manifest"]["seconds"] += 1
    file.write_text(json.dumps(signed))
    go_on(stopped)
    assert "000004.json is damaged" in caplog.text
    same_folders(whole, stopped)


def test_nothing_left_to_go_on_from(stopped: Path, wecfl: "Wecfl") -> None:
    for file in (stopped / "checkpoints").glob("*.safetensors"):
        flip(file)
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    outcome = wecfl("resume", stopped)
    assert outcome.code == 2
    assert outcome.err.startswith(f"wecfl: no checkpoint of {stopped} can be used (")
    assert outcome.err.count("\n") == 1
    del before[stopped / ".lock"]
    assert all(file.read_bytes() == content for file, content in before.items())


def test_lines_that_were_taken_away(stopped: Path, wecfl: "Wecfl") -> None:
    os.truncate(stopped / "metrics.jsonl", 100)
    outcome = wecfl("resume", stopped)
    assert outcome.code == 2
    assert "metrics.jsonl" in outcome.err


@pytest.mark.parametrize(
    ("name", "number"), [("metrics.jsonl", r"\.\d{5,}"), ("assignments.csv", r"\d\Z")]
)
def test_lines_that_were_changed_and_are_as_long_as_before(
    name: str, number: str, stopped: Path, wecfl: "Wecfl"
) -> None:
    """A score, a cluster."""
    content = (stopped / name).read_text()
    found = re.search(number, content.rstrip())
    assert found
    digit = found.end() - 1
    edited = content[:digit] + str(int(content[digit] == "0")) + content[digit + 1 :]
    (stopped / name).write_text(edited)
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    outcome = wecfl("resume", stopped)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert name in outcome.err and "checkpoint" in outcome.err
    assert {file: file.read_bytes() for file in before} == before


def test_a_resumed_run_knows_what_was_written_before_it(stopped: Path, wecfl: "Wecfl") -> None:
    """The digests go on where they were: an edit of an early line is seen after two stops, too."""
    run_config(config_of(stopped).model_copy(update={"rounds": 5}), out=stopped, resume=True)
    content = bytearray((stopped / "metrics.jsonl").read_bytes())
    content[content.index(b'"round": 1') + len('"round": ')] = ord("2")
    (stopped / "metrics.jsonl").write_bytes(content)
    outcome = wecfl("resume", stopped, "--rounds", "6")
    assert outcome.code == 2
    assert "metrics.jsonl differs from its checkpoint" in outcome.err


def test_the_millionth_round_is_the_last_one(stopped: Path) -> None:
    """Its name is longer than those before it."""
    place = stopped / "checkpoints"
    [state] = read_states(stopped)
    about = json.loads((place / "000004.json").read_text())["manifest"]
    kept = {key: about[key] for key in ("lengths", "seconds", "engine", "data", "config")}
    for round in (999_999, 1_000_000):
        checkpoint.write(stopped, [replace(state, round=round)], **kept)
    assert read_states(stopped)[0].round == 1_000_000
    assert {file.stem for file in place.iterdir()} == {"999999", "1000000"}


def test_a_configuration_that_was_changed(stopped: Path, wecfl: "Wecfl") -> None:
    file = stopped / "config.toml"
    file.write_text(file.read_text().replace("steps = 3", "steps = 4"))
    outcome = wecfl("resume", stopped)
    assert outcome.code == 2
    assert re.fullmatch(rf"wecfl: {stopped} .*steps = 4.* with 3: .*\n", outcome.err)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_can_not_be_written(
    number: int, whole: Path, wecfl: "Wecfl", monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk, a file system gone read-only, a broken one: in the third checkpoint."""
    original, calls = files.replace_tensors, []

    def failing(path: Path, arrays: Any) -> tuple[int, str]:
        calls.append(path)
        if len(calls) >= 3:
            raise OSError(number, os.strerror(number))
        return original(path, arrays)

    tokens = ["--clients", "6", "--groups", "2", "--clusters", "2", "--rounds", "6", "--steps", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "replace_tensors", failing)
        outcome = wecfl("run", *tokens, "--model", "logistic", "--workers", "1", "--out", "run")
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert os.strerror(number) in outcome.err and "wecfl resume run" in outcome.err
    assert read_states(tmp_path / "run")[0].round == 2
    assert wecfl("resume", "run").code == 0
    same_folders(whole, tmp_path / "run")


# Several methods


def test_several_methods_go_on_with_all_that_is_left(tmp_path: Path, wecfl: "Wecfl") -> None:
    """One that has ended, one killed at its end, one killed while it began, one not begun."""
    flags = ["--clients", "6", "--groups", "2", "--clusters", "2", "--steps", "2", "--workers", "1"]
    command = ["run", "--method", "fedavg,scaffold,wecfl,ifca", "--rounds", "3", *flags]
    assert wecfl(*command, "--model", "logistic", "--out", "whole").code == 0
    whole, part = tmp_path / "whole", Path(shutil.copytree("whole", "part")).absolute()
    ended = (part / "fedavg" / "summary.json").stat().st_mtime_ns
    (part / "scaffold" / "summary.json").unlink()
    shutil.rmtree(part / "wecfl")
    (part / "wecfl").mkdir()
    (part / "wecfl" / "env.json").write_text("{}")  # it was killed before config.toml was there
    shutil.rmtree(part / "ifca")
    assert wecfl("resume", "part").code == 0
    for method in ("fedavg", "scaffold", "wecfl", "ifca"):
        for file in (whole, part):
            (file / method / ".lock").unlink()
        same_folders(whole / method, part / method)
    assert (part / "fedavg" / "summary.json").stat().st_mtime_ns == ended
    again = wecfl("resume", "part")
    assert (again.code, again.err.count("\n")) == (2, 1)
    assert "more rounds" in again.err
    assert wecfl("resume", "part", "--rounds", "4").code == 0
    assert {len(read_metrics(folder.parent)) for folder in part.glob("*/config.toml")} == {4}


@pytest.mark.parametrize(
    "content", ["fedavg = 3", "['../out']", "['a/b']", "[fedavg]\nround = 3", "[fedavg", "\0"]
)
def test_a_list_of_runs_that_is_wrong(content: str, tmp_path: Path, wecfl: "Wecfl") -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "runs.toml").write_text(content)
    outcome = wecfl("resume", "some")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "runs.toml" in outcome.err
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["runs.toml"]


# One writer


@pytest.fixture
def locked(stopped: Path) -> Iterator[int]:
    """Another process holds the folder."""
    script = "import sys; from pathlib import Path; from wecfl.folder.lock import Lock\n"
    script += f"Lock(Path({str(stopped)!r})).take(); print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdin
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_second_process_is_refused(locked: int, stopped: Path, wecfl: "Wecfl") -> None:
    outcome = wecfl("resume", stopped)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert str(stopped) in outcome.err and f"process {locked}" in outcome.err


def test_an_existing_run_is_gone_on_with_not_overwritten(stopped: Path, wecfl: "Wecfl") -> None:
    outcome = wecfl("run", "--out", stopped)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith(f"wecfl resume {stopped}\n")


# Formats


@pytest.mark.parametrize("format", [0, 1, 2])
def test_old_run_folders_stay_readable(format: int, tmp_path: Path, wecfl: "Wecfl") -> None:
    folder = Path(shutil.copytree(TESTS / "folders" / f"format-{format}", tmp_path / "old"))
    assert read_summary(folder)["rounds"] == len(read_metrics(folder)) == 2
    assert "26.74" in wecfl("compare", "old").out
    assert "Lemma 1" in wecfl("check", "old").out
    assert wecfl("report", "old").code == 0


def test_a_run_of_format_1_goes_on_to_the_bit(tmp_path: Path, wecfl: "Wecfl") -> None:
    """For two more rounds, to what comes of the arrays of its checkpoint as they lie there.

    A run made now in one go differs from it in the last digits, from its first round on.
    """
    stored = TESTS / "folders" / "format-1"
    folder, config = Path(shutil.copytree(stored, tmp_path / "old")), config_of(stored)
    assert wecfl("resume", "old", "--rounds", "4").code == 0
    assert read_summary(folder)["rounds"] == len(read_metrics(folder)) == 4
    assert read_summary(folder)["format"] == checkpoint.FOLDER_FORMAT
    for name in ("metrics.jsonl", "assignments.csv"):  # what the first edition wrote stays
        assert (folder / name).read_bytes().startswith((stored / name).read_bytes())
    [state] = read_states(folder)
    arrays = load_file(stored / "checkpoints" / "000002.safetensors")
    assert arrays.keys() == {"0.round", "0.centers", "0.labels", "0.memory.momentum"}
    begun = State(
        2, None, arrays["0.centers"], arrays["0.labels"],
        {"momentum": arrays["0.memory.momentum"]}, tick=2,
    )  # fmt: skip
    fed = federation_of(config)
    model = build(config.model, shape=fed.shape, classes=fed.classes, seed=config.seed)
    with NativeEngine(fed, model, workers=1) as engine:
        setting = Setting(method_of(config), engine, LocalPlan(steps=10, lr=0.001), config.seed)
        *_, expected = islice(iterate(setting, begun), 2)
    same_states(state, expected)
    fresh = run_config(config.model_copy(update={"rounds": 4})).states[0]
    np.testing.assert_array_equal(state.labels, fresh.labels)
    np.testing.assert_allclose(state.centers, fresh.centers, rtol=1e-4, atol=1e-6)


def test_a_run_of_format_2_goes_on_although_its_lines_have_no_digest(
    tmp_path: Path, wecfl: "Wecfl"
) -> None:
    folder = Path(shutil.copytree(TESTS / "folders" / "format-2", tmp_path / "old"))
    before = (folder / "metrics.jsonl").read_bytes()
    assert wecfl("resume", "old", "--rounds", "3").code == 0
    assert read_summary(folder)["rounds"] == len(read_metrics(folder)) == 3
    after = (folder / "metrics.jsonl").read_bytes()
    assert after.startswith(before)
    [*_, last] = sorted((folder / "checkpoints").glob("*.json"))
    digest = json.loads(last.read_text())["manifest"]["digests"]["metrics.jsonl"]
    assert digest == sha256(after).hexdigest()


def test_a_later_format_is_refused(stopped: Path, whole: Path, tmp_path: Path) -> None:
    later = Path(shutil.copytree(whole, tmp_path / "later"))
    summary = json.loads((later / "summary.json").read_text())
    assert summary["format"] == checkpoint.FOLDER_FORMAT
    (later / "summary.json").write_text(
        json.dumps({**summary, "format": checkpoint.FOLDER_FORMAT + 1})
    )
    with pytest.raises(RunFolderError, match="later"):
        read_summary(later)


def test_the_same_federation_has_the_same_fingerprint() -> None:
    one, two = federation_of(TINY), federation_of(TINY)
    assert one.fingerprint == two.fingerprint
    two.x[two.train[0][:2]] += 1  # one of a thousand samples may go unnoticed, not many
    changed = federation_of(TINY.model_copy(update={"seed": 1}))
    assert changed.fingerprint != one.fingerprint
