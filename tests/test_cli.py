"""The command line: what it prints, what it writes, what it refuses."""

import functools
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import Wecfl
from wecfl import __version__
from wecfl.cli.terminal import Stopped, Stopping
from wecfl.config import Config
from wecfl.core.method import Method
from wecfl.folder.readers import read_metrics, read_states, read_summary
from wecfl.methods import METHODS

CHOICES = {
    "clients": "6", "groups": "2", "clusters": "2", "rounds": "2", "steps": "2",
    "model": "logistic", "workers": "1",
}  # fmt: skip


def small(**others: str) -> list[str]:
    """The flags of a tiny experiment."""
    return [token for key, value in (CHOICES | others).items() for token in (f"--{key}", value)]


SMALL = small()


def clients(folder: Path, count: int = 4) -> Path:
    """A folder with one .npz per client."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        y = np.arange(20) % 3
        np.savez(folder / f"{i}.npz", x=rng.normal(size=(20, 4)) + y[:, None], y=y)
    return folder


# What works


def test_run_builds_each_method_once(wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch) -> None:
    built: Counter[str] = Counter()

    def counting(name: str, make: Callable[..., Method]) -> Callable[..., Method]:
        @functools.wraps(make)
        def counted(*values: Any, **options: Any) -> Method:
            built[name] += 1
            return make(*values, **options)

        return counted

    for name in ("wecfl", "ifca"):
        monkeypatch.setitem(METHODS, name, counting(name, METHODS[name]))
    assert wecfl("run", *SMALL, "--method", "wecfl,ifca", "--out", "here").code == 0
    assert built == {"wecfl": 1, "ifca": 1}


def test_a_bad_choice_is_refused_before_data_are_loaded(wecfl: Wecfl) -> None:
    """Also that of the second method: the data set, which does not exist, is never looked for."""
    auto = small(clusters="auto", dataset="nothing.npz", partition="iid", method="wecfl,ifca")
    code, _, err = wecfl("run", *auto)
    assert (code, "number of clusters" in err, "nothing.npz" in err) == (2, True, False)


def test_check_judges_a_run_lemma_by_lemma(wecfl: Wecfl, tmp_path: Path) -> None:
    flags = [*small(rounds="3", lr="theory", momentum="0", batch="999"), "--diagnostics"]
    assert wecfl("run", *flags, "--out", "here").code == 0
    code, out, _ = wecfl("check", "here", "--rounds", "--strict")
    assert code == 0
    for name in ("Lemma 1", "Lemma 5", "Theorem 1", "Theorem 3", "✓ convex: logistic"):
        assert name in out
    found = json.loads(wecfl("check", "here", "--json", "--epsilon", "0.5").out)
    judged = {each["name"]: each["rounds"] for each in found["statements"]}
    assert all(each["held"] and each["condition"] for each in judged["Theorem 1"])
    path = tmp_path / "here" / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for record in records:
        record["F"]["M"] = 2 * record["F"]["L"]
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    assert wecfl("check", "here").code == 0
    code, out, _ = wecfl("check", "here", "--strict")
    assert code == 1
    assert re.search(r"refuted .*: Lemma 2", out)


def test_check_judges_all_runs_of_a_folder(wecfl: Wecfl) -> None:
    flags = [*small(rounds="2"), "--diagnostics", "--method", "ifca,wecfl"]
    assert wecfl("run", *flags, "--out", "here").code == 0
    out = wecfl("check", "here").out
    ifca, clustered = out.index("ifca, K = 2"), out.index("wecfl, K = 2")
    assert "not about this method" in out[ifca:clustered]
    # Nor does Theorem 3 promise anything about it.
    assert "promises" not in out[ifca:clustered] and "promises" in out[clustered:]
    assert "not about this method" not in out[clustered:]
    assert wecfl("check", "here/ifca", "here/wecfl").out == out


def test_run_writes_a_folder_and_prints_the_table(wecfl: Wecfl) -> None:
    code, out, err = wecfl("run", *SMALL, "--alpha", "0.3", "8", "--out", "here")
    assert (code, err) == (0, "")
    assert re.search(r"digits.*clusterwise-dirichlet\(0\.3, 8\).* 6 clients .*2 groups", out)
    assert re.search(r"wecfl +2( +\d+\.\d\d){3} +\d +\d\.\d\d +\d+\.\d", out)
    assert out.endswith(": here\n")
    assert read_summary(Path("here"))["status"] == "finished"
    config = tomllib.loads(Path("here/config.toml").read_text(encoding="utf-8"))
    assert config["alpha"] == [0.3, 8.0]
    assert all(len(line) <= 80 for line in out.splitlines()[1:])


def test_without_out_every_run_has_a_folder_of_its_own(wecfl: Wecfl) -> None:
    for _ in range(2):
        assert wecfl("run", *SMALL).code == 0
    found = sorted(Path("runs").iterdir())
    assert len(found) == 2
    assert all(path.name.startswith("digits-wecfl-") for path in found)


def test_several_methods_on_the_same_clients(wecfl: Wecfl) -> None:
    code, out, _ = wecfl("run", *SMALL, "--method", "fedavg,wecfl", "--out", "two", "--figure",
                         "new/both.svg")  # fmt: skip
    assert code == 0
    assert sorted(path.name for path in Path("two").iterdir()) == ["fedavg", "runs.toml", "wecfl"]
    assert Path("new/both.svg").read_text(encoding="utf-8").startswith("<svg")
    assert out.endswith(": two\n")
    code, again, _ = wecfl("compare", "two")
    assert code == 0
    assert re.findall(r"^ (fedavg|wecfl)", again, re.M) == re.findall(
        r"^ (fedavg|wecfl) ", out, re.M
    )


def test_flags_override_the_file_overrides_the_preset(wecfl: Wecfl) -> None:
    Path("my.toml").write_text("rounds = 1\nclients = 8\ngroups = 2\nclusters = 2\nmodel = 'mlp'\n")
    code, _, _ = wecfl("run", "my.toml", "--preset", "paper", "--clients", "6", "--out", "x")
    assert code == 0
    config = tomllib.loads(Path("x/config.toml").read_text(encoding="utf-8"))
    assert (config["clients"], config["rounds"], config["batchnorm"]) == (6, 1, "batch")


def test_a_written_configuration_repeats_the_run(wecfl: Wecfl) -> None:
    assert wecfl("run", *SMALL, "--seed", "3", "--out", "a").code == 0
    assert wecfl("run", "a/config.toml", "--out", "b").code == 0
    a, b = (
        [{**record, "seconds": 0} for record in read_metrics(Path(name))] for name in ("a", "b")
    )
    assert a == b
    assert Path("a/models.safetensors").read_bytes() == Path("b/models.safetensors").read_bytes()


def test_report_writes_one_page(wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wecfl("run", *SMALL, "--method", "fedavg,wecfl", "--no-trace", "--out", "two").code == 0
    assert not Path("two/wecfl/trace").exists()
    code, out, _ = wecfl("report", "two", "--out", "new/x.html")
    assert code == 0
    assert re.fullmatch(r"report: new/x\.html \(\d\.\d MB\)\n", out)
    html = Path("new/x.html").read_text(encoding="utf-8")
    assert re.search("(fedavg and wecfl|wecfl and fedavg) on digits", html)  # the better one first
    assert "wecfl run two/wecfl/config.toml" in html
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    assert wecfl("run", *SMALL, "--out", "one").code == 0
    assert wecfl("report", "one", "--open").out.startswith("report: one/page.html")
    assert shown == [Path("one/page.html").absolute().as_uri()]
    assert wecfl("compare", "one").code == 0  # a page in it leaves the folder a run


def test_compare_gives_mean_and_deviation_over_seeds(wecfl: Wecfl) -> None:
    for seed in "01":
        assert wecfl("run", *SMALL, "--seed", seed, "--out", f"runs/{seed}").code == 0
    code, out, _ = wecfl("compare", "runs", "--figure", "f.png")
    assert code == 0
    assert Path("f.png").read_bytes().startswith(b"\x89PNG")
    summaries = [json.loads(Path(f"runs/{seed}/summary.json").read_text()) for seed in "01"]
    for key in ("accuracy", "macro_f1"):
        values = 100 * np.array([summary[key] for summary in summaries])
        assert f"{values.mean():.2f} ± {values.std(ddof=1):.2f}" in out
    [line] = [line for line in out.splitlines() if line.startswith(" wecfl")]
    assert wecfl("compare", "runs/0", "runs/1").out.count(line[:40]) == 1


def test_clients_from_a_folder(wecfl: Wecfl) -> None:
    folder = clients(Path("hos[/pi]täls"))
    quick = ("--clusters", "2", "--rounds", "2", "--steps", "2")
    code, out, err = wecfl("run", *quick, "--dataset", folder, "--out", "o[u]t")
    assert (code, err) == (0, "")
    assert "clients = " not in Path("o[u]t/config.toml").read_text(encoding="utf-8")
    code, _, err = wecfl("run", *quick, "--dataset", folder, "--clients", "9", "--out", "other")
    assert (code, err.count("\n")) == (2, 1)
    assert "--clients" in err
    assert re.search(r"^hos\[/pi\]täls: 4 clients.* 16 ± 0 .*seed 0", out, re.M)
    assert out.endswith(": o[u]t\n")
    code, out, _ = wecfl("compare", "o[u]t", "--figure", "a[b].html")
    assert (code, out.count("figure: a[b].html\n")) == (0, 1)
    code, out, _ = wecfl("partition", "--dataset", folder)
    assert code == 0
    assert re.match(r"hos\[/pi\]täls: 4 clients.* 16 ± 0 .*\(16 … 16\), 4 ± 0 ", out)


def test_one_npz_and_a_partition(wecfl: Wecfl) -> None:
    y = np.arange(120) % 4
    np.savez("mine.npz", x=np.eye(4)[y], y=y)
    code, out, _ = wecfl("run", *SMALL, "--dataset", "mine.npz", "--partition", "iid", "--out", "o")
    assert code == 0
    assert re.search(r"mine\.npz.*iid.* 6 clients.* 16 ± 0 ", out)


def test_the_holdout_and_the_seed_of_one_npz_count(wecfl: Wecfl) -> None:
    y = np.arange(120) % 4
    np.savez("mine.npz", x=np.eye(4)[y], y=y)
    for number, flags in enumerate([("--holdout", "0.5"), ("--holdout", "0.2")]):
        split = ("--dataset", "mine.npz", "--partition", "iid", *flags)
        code, out, _ = wecfl("run", *SMALL, *split, "--out", f"o{number}")
        assert code == 0
        assert f" {[10, 16][number]} ± 0 " in out


def test_a_resolved_configuration_can_change_its_partition(wecfl: Wecfl) -> None:
    assert wecfl("run", *SMALL, "--out", "first")[0] == 0
    code, out, _ = wecfl("run", "first/config.toml", "--partition", "iid", "--out", "second")
    assert code == 0
    assert "iid" in out


def test_compare_runs_of_two_engines_and_runs_further_down(wecfl: Wecfl) -> None:
    for engine in ("torch", "native"):
        assert wecfl("run", *SMALL, "--engine", engine, "--out", f"runs/deep/{engine}")[0] == 0
    Path("runs/killed").mkdir()
    Path("runs/killed/metrics.jsonl").touch()
    code, out, err = wecfl("compare", "runs")
    assert code == 0
    assert "torch" in out
    assert "native-" in out
    assert re.fullmatch(r"wecfl: .*runs/killed.*summary\.json.*\n", err)


def test_a_folder_named_as_a_data_set_does_not_hide_it(wecfl: Wecfl) -> None:
    Path("digits").mkdir()
    assert wecfl("run", *SMALL, "--out", "o").code == 0


def test_methods_lists_every_method_with_its_components(wecfl: Wecfl) -> None:
    out = wecfl("methods").out
    for name in METHODS:
        assert re.search(rf"^ {re.escape(name)} ", out, re.M)
    assert "KMeans" in out
    assert "Train(mu=0.95)" in out


def test_data_list_and_get(wecfl: Wecfl) -> None:
    out = wecfl("data", "list").out
    assert re.search(r"digits +1,438 \+ 359 +1 × 8 × 8 +10 ", out)
    assert "fashion-mnist" in out
    code, out, _ = wecfl("data", "get", "digits")
    assert (code, Path(out.strip()).is_dir()) == (0, True)


def test_partition_says_one_line_each_and_draws(wecfl: Wecfl) -> None:
    code, out, _ = wecfl("partition", "--panels", "four", "--clients", "20", "--out", "four.png")
    assert code == 0
    lines = out.splitlines()
    assert [line.partition("(")[0] for line in lines[:4]] == [
        "clientwise-dirichlet", "clientwise-nclass", "clusterwise-dirichlet", "clusterwise-nclass",
    ]  # fmt: skip
    assert re.fullmatch(
        r"clusterwise-dirichlet\(0\.1, 10\): 20 clients .*10 groups, \d+ ± \d+ .*"
        r"\(\d+ … \d+\), \d+ ± \d+ test .*\d\.\d classes.*",
        lines[2],
    )
    assert " 2.0 classes" in lines[1]
    assert [line.rpartition(" ")[2] for line in lines[4:]] == ["four.png"]
    assert Path("four.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("columns", ["20", "70", "80"])
def test_no_column_of_the_results_is_left_out_on_a_narrow_terminal(
    wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    wecfl("run", *SMALL, "--method", "fedavg-ft,wecfl", "--out", "two")
    wide = wecfl("compare", "two").out.split()
    monkeypatch.setenv("COLUMNS", columns)
    shown = wecfl("compare", "two").out
    assert max(map(len, shown.splitlines())) <= 80
    narrow = shown.split()
    rules = {"─" * n for n in range(300)}
    assert sorted(set(narrow) - rules) == sorted(set(wide) - rules)
    assert "seconds" in narrow


def test_help_and_version(wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert wecfl("--version").out.strip() == __version__
    assert "compare" in wecfl().out
    text = " ".join(wecfl("run", "--help").out.replace("│", " ").split())
    # A narrow terminal breaks lines, and puts the second name of a flag between two of them.
    words = " ".join(word for word in text.split() if not word.startswith("--no-"))
    for name, field in Config.model_fields.items():
        if name == "options":  # each of them is a flag of its own
            continue
        assert f"--{name.replace('_', '-')}" in text
        assert field.description
        assert " ".join(field.description.replace("`", "").split()) in words
    for flag in ("preset", "out", "figure"):
        assert re.search(rf"--{flag} (STR|PATH) [A-Z]", text)


def test_a_terminal_without_unicode(wecfl: Wecfl, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert wecfl("partition", "--clients", "20").code == 0
    stdout.flush()
    stdout.seek(0)
    assert "10 groups" in stdout.read()


# What is refused


BAD = [
    ["run", "--method", "wecfl", "--clusters", "500"],
    ["run", "--dataset", "nope"],
    ["run", "--dataset", ""],
    ["run", "--dataset", "."],
    ["run", "--dataset", "nope.npz"],
    ["run", "--dataset", "broken"],
    ["run", "--dataset", "broken/1.npz"],
    ["run", "--dataset", "nan"],
    ["run", "--dataset", "x" * 5000],
    ["run", "--data-dir", "nope"],
    ["run", "--data-dir", "x" * 5000],
    ["run", "--alpha", "-1"],
    ["run", "--alpha", "-1", "10"],
    ["run", "--alpha", "0.1", "10", "3"],
    ["run", "--alpha", "nan", "1"],
    ["run", "--alpha", "zero", "1"],
    ["run", "--alpha"],
    ["run", "--partition", "nope"],
    ["run", "--partition", "iid", "--alpha", "1"],
    ["run", "--partition", "clusterwise-nclass", "--classes-per", "3.5", "2"],
    ["run", "--method", ""],
    ["run", "--method", "fedavg,"],
    ["run", "--method", "fedavg,fedavg"],
    ["run", "--clusters", "0"],
    ["run", "--clusters", "2.5"],
    ["run", "--clusters", "9" * 5000],
    ["run", "--clients", "100000"],
    ["run", "--groups", "51"],
    ["run", "--rounds", "-3"],
    ["run", "--rounds"],
    ["run", "--lr", "inf"],
    ["run", "--lr", "practice"],
    ["run", "--lr", "theory"],
    ["run", "--lr", "theory", "--momentum", "0", "--method", "ifca"],
    ["check", "nowhere"],
    ["check"],
    ["reproduce", "table1", "--show", "--results", "file"],
    ["check", "."],
    ["check", ".", "--epsilon", "0"],
    ["run", "--mu", "nan"],
    ["run", "--seed", "-1"],
    ["run", "--seed", ""],
    ["run", "--workers", "0"],
    ["run", "--model", "cnn-fashion"],
    ["run", "--model", "nope"],
    ["run", "--representation", "conv*"],
    ["run", "--representation", ""],
    ["run", "--preset", "nope"],
    ["run", "--preset", ""],
    ["run", "--out", "file"],
    ["run", "--out", "file/below"],
    ["run", "--out", "broken"],
    ["run", "--out", ""],
    ["run", "--out", "x" * 5000],
    ["run", "--figure", "x.gif"],
    ["run", "--figure", "file/x.png"],
    ["run", "nope.toml"],
    ["run", "broken"],
    ["run", "latin.toml"],
    ["run", "null.toml"],
    ["run", "misspelt.toml"],
    ["run", "misspelt.toml", "latin.toml"],
    ["run", "--cluters", "3"],
    ["compare"],
    ["compare", "nope"],
    ["compare", "file"],
    ["compare", "broken"],
    ["compare", "x" * 5000],
    ["report"],
    ["report", "nope"],
    ["report", "file"],
    ["report", "broken"],
    ["report", "good", "--out", "x.pdf"],
    ["report", "good", "--out", "file/x.html"],
    ["partition", "--out", "x.gif"],
    ["partition", "--out", "file/x.png"],
    ["partition", "--panels", "five"],
    ["partition", "--alpha", "-1", "1"],
    ["partition", "--dataset", "good", "--panels", "four"],
    ["data", "get"],
    ["data", "get", "nope"],
    ["data", "list", "--data-dir", "nope"],
    ["data", "nope"],
    ["nope"],
    ["methods", "x"],
]


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """Files and folders to stumble over."""
    clients(tmp_path / "good")
    clients(tmp_path / "broken")
    (tmp_path / "broken" / "1.npz").write_bytes(b"PK but nothing more")
    clients(tmp_path / "nan")
    np.savez(tmp_path / "nan" / "1.npz", x=np.full((9, 4), np.nan), y=np.zeros(9))
    (tmp_path / "file").write_text("")
    (tmp_path / "latin.toml").write_bytes("method = 'ü'".encode("latin-1"))
    (tmp_path / "null.toml").write_text('dataset = "a\\u0000b.npz"')
    (tmp_path / "misspelt.toml").write_text("cluters = 3")
    return tmp_path


@pytest.mark.parametrize("tokens", BAD, ids=lambda tokens: " ".join(t[:20] for t in tokens))
def test_bad_input_is_one_line_and_writes_nothing(
    wecfl: Wecfl, traps: Path, tokens: list[str]
) -> None:
    before = sorted(traps.rglob("*"))
    code, out, err = wecfl(*tokens)
    assert code == 2
    assert err.startswith("wecfl: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert out == ""
    assert sorted(traps.rglob("*")) == before


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["run", "misspelt.toml"], "'cluters'; did you mean 'clusters'"),
        (["run", "--cluters", "3"], "--clusters"),
        (["run", "--method", "wefcl"], "did you mean 'wecfl'"),
        (["run", "--dataset", "digit"], "did you mean 'digits'"),
        (["run", "--clusters", "500"], "500 clusters of 50 clients"),
        (["run", "--dataset", "broken"], "broken/1.npz"),
        (["run", "--dataset", "nan"], "client 1: "),
        (["run", "--out", "broken"], "not empty"),
        (["run", "--alpha", "0.1"], "alpha A1 A2, got alpha 0.1"),
    ],
)
def test_the_remedy_is_said(wecfl: Wecfl, traps: Path, tokens: list[str], said: str) -> None:
    assert said in wecfl(*tokens).err


def test_the_second_folder_is_checked_before_the_first_run(wecfl: Wecfl) -> None:
    Path("two/wecfl").mkdir(parents=True)
    Path("two/wecfl/old").write_text("")
    code, _, err = wecfl("run", *SMALL, "--method", "fedavg,wecfl", "--out", "two")
    assert code == 2
    assert "two/wecfl" in err and "empty" in err
    assert not Path("two/fedavg").exists()


def test_a_run_that_diverges_is_one_line_and_its_folder_can_be_compared(wecfl: Wecfl) -> None:
    code, _, err = wecfl("run", *small(model="mlp", lr="1e20"), "--out", "lost")
    assert code == 2
    assert re.fullmatch(r"wecfl: .* round 1 .* lr\n", err)
    assert read_summary(Path("lost"))["status"] == "failed"
    code, out, _ = wecfl("compare", "lost")
    assert code == 0
    assert "wecfl (stopped)" in out
    assert "nan" not in out
    code, _, err = wecfl("compare", "lost", "--figure", "x.png")
    assert code == 2
    assert re.fullmatch(r"wecfl: .*lost .*round.*\n", err)


@pytest.mark.parametrize("content", ["[]", "{}", "{", '{"method": "x", "k": "many"}'])
def test_a_damaged_run_folder(wecfl: Wecfl, content: str) -> None:
    Path("old").mkdir()
    Path("old/summary.json").write_text(content)
    Path("old/config.toml").write_text("")
    code, _, err = wecfl("compare", "old")
    assert (code, err.count("\n")) == (2, 1)
    assert "old" in err


# Real processes


def wecfl_process(*tokens: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", "from wecfl.cli import main; main()", *tokens],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("number", "code", "engine"), [(signal.SIGINT, 130, "native"), (signal.SIGTERM, 143, "torch")]
)
def test_a_signal_leaves_a_readable_folder_and_no_process(
    number: signal.Signals, code: int, engine: str, tmp_path: Path
) -> None:
    tokens = small(rounds="1000000", workers="2", engine=engine, out="run")
    with wecfl_process("run", *tokens, cwd=tmp_path) as process:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size > 3000):
            time.sleep(0.05)
        os.killpg(process.pid, number)  # as a terminal does: the workers get it too
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert re.fullmatch(r"wecfl: stopping .*\nwecfl: interrupted.*wecfl resume run\n", err)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    summary, records = read_summary(tmp_path / "run"), read_metrics(tmp_path / "run")
    assert summary["status"] == "interrupted"
    assert summary["rounds"] == len(records) >= 2
    assert read_states(tmp_path / "run")[0].round == len(records)


def test_a_second_signal_does_not_wait(capsys: pytest.CaptureFixture[str]) -> None:
    with Stopping():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped) as stopped:
            signal.raise_signal(signal.SIGTERM)
    assert stopped.value.code == 143
    assert re.fullmatch(r"wecfl: .*once more.*\n", capsys.readouterr().err)


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    with wecfl_process("methods", cwd=tmp_path) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode in (1, 141)


def test_the_installed_command_and_its_exit_code(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("wecfl")
    done = subprocess.run(
        [command, "run", "--dataset", "nope"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "HOME"},
    )
    assert done.returncode == 2
    assert done.stdout == ""
    expected = r"wecfl: .*'nope'.* cifar-10, circle, communes, digits, .*, mnist, .*vowel\n"
    assert re.fullmatch(expected, done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_world_is_described_resumed_and_shared_by_newcomers(wecfl: Wecfl, tmp_path: Path) -> None:
    world = (
        "--partition", "iid", "--transform", "rotation", "noise(deviation=0.2, by=client)",
        "--mixture", "0.1", "--groups", "4", "--clients", "16", "--newcomers", "0.25",
        "--lr", "0.05", "--clusters", "4",
    )  # fmt: skip
    once = wecfl("run", *world, "--rounds", "2", "--out", "once")
    assert once.code == 0
    for part in ("noise(deviation=0.2, by=client)", "mixed 10 %", "16 clients in 4 groups"):
        assert part in once.out
    assert wecfl("run", *world, "--rounds", "1", "--out", "twice").code == 0
    assert wecfl("resume", "twice", "--rounds", "2").code == 0
    for name in ("clients.csv", "newcomers.csv"):
        assert (tmp_path / "once" / name).read_text() == (tmp_path / "twice" / name).read_text()
    assert wecfl("report", "once", "--out", "page.html").code == 0
    assert "noise(deviation=0.2, by=client)" in (tmp_path / "page.html").read_text()
    for bad in ("rotation(step=400)", "turn", "rotation(90)"):
        refused = wecfl("run", "--partition", "iid", "--transform", bad)
        assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_k_need_not_be_given(wecfl: Wecfl, tmp_path: Path) -> None:
    few = ("--clients", "12", "--groups", "3", "--lr", "0.05", "--steps", "5", "--rounds", "2")
    found = wecfl("run", "--clusters", "auto", *few, "--seed", "2", "--out", tmp_path / "a")
    assert re.search(r"^wecfl: 3 groups, found by round 2: silhouette", found.out, re.M)
    goes_on = wecfl("resume", tmp_path / "a", "--rounds", "4")
    assert re.search(r"3 groups, found by round 2: silhouette", goes_on.out)
    alike = wecfl("run", "--clusters", "auto", "--partition", "iid", *few, "--out", tmp_path / "b")
    assert re.search(r"one cluster.*silhouette", alike.out)
    refused = wecfl("run", "--clusters", "auto", "--method", "ifca")
    assert refused.code == 2
    assert re.fullmatch(r"wecfl: ifca .*number of clusters.*\n", refused.err)
    assert wecfl("run", "--clusters", "many").code == 2
