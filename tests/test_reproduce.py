"""The paper's tables as a queue: what is run, kept, shared, chosen, shown and drawn."""

import csv
import json
import re
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import Wecfl
from wecfl.bilevel.aggregation import AGGREGATIONS
from wecfl.channel.attacks import ATTACKS
from wecfl.config import Config
from wecfl.data.transforms import TRANSFORMS
from wecfl.folder.parsing import read_json_lines
from wecfl.folder.readers import read_summary
from wecfl.folder.result_schema import ResultSchema
from wecfl.from_config import federation_of
from wecfl.paper.definition_files import read_definitions
from wecfl.paper.definitions import PlannedRun, ordered
from wecfl.paper.result_store import ResultStore
from wecfl.paper.tables.beside_paper import published

BASE = """
[base]
dataset = "digits"
model = "logistic"
clients = 6
groups = 2
rounds = 4
steps = 2
objectives = false
"""

TABLE = f"""
title = "A small table"
{BASE}
[[sets]]
priority = 2
seeds = 1
method = "fedavg+"
clusters = [2, 3]

[[sets]]
priority = 1
seeds = 2
method = "wecfl"
clusters = 2

[[sets]]
priority = 3
seeds = 1
method = "fedavg"
clusters = 1
"""
ORDER = [
    "wecfl k=2 seed 0", "wecfl k=2 seed 1",
    "fedavg k=1 seed 0", "fedavg k=1 seed 0 member 1", "fedavg+ k=2 seed 0",
    "fedavg k=1 seed 0 member 2", "fedavg+ k=3 seed 0",
]  # fmt: skip


@pytest.fixture
def defined(tmp_path: Path) -> Path:
    """A folder with one small definition."""
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "small.toml").write_text(TABLE)
    return folder


def done(out: str) -> list[str]:
    """The runs that a command says it has done, in order."""
    return re.findall(r"^digits clusterwise-dirichlet (.+): accuracy", out, re.M)


def stored(folder: Path) -> dict[str, dict[str, Any]]:
    return {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


HOW = ("seconds", "cpu_seconds", "made_by")
"""When and by whom a run was done."""


def same(one: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on when and by whom a run was done."""
    return {key: value for key, value in one.items() if key not in HOW}


def test_the_queue_runs_by_priority_shares_members_and_does_nothing_twice(
    wecfl: Wecfl, defined: Path
) -> None:
    listed = wecfl("reproduce", "small", "--definitions", defined, "--dry-run")
    assert sum(line.endswith("unknown ") for line in listed.out.splitlines()) == 7
    assert "7 runs to do for 5 asked for" in listed.out
    assert not Path("docs").exists()

    first = wecfl("reproduce", "small", "--definitions", defined, "--workers", "1")
    assert done(first.out) == ORDER
    assert "7 runs done" in first.out
    assert "not run" not in first.out

    again = wecfl("reproduce", "small", "--definitions", defined)
    assert done(again.out) == [] and "0 runs done" in again.out
    more = wecfl("reproduce", "small", "--definitions", defined, "--seeds", "3", "--dry-run")
    assert "estimated" in more.out and "unknown for 2" not in more.out


def test_a_result_says_what_was_run_and_repeats_what_wecfl_run_gives(
    wecfl: Wecfl, defined: Path
) -> None:
    """Also the soft vote, made from the models of its members alone."""
    wecfl("reproduce", "small", "--definitions", defined, "--results", "results", "--workers", "1")
    common = ["--model", "logistic", "--clients", "6", "--groups", "2", "--rounds", "4"]
    for method, k in (("fedavg+", 3), ("fedavg+", 2), ("wecfl", 2)):
        out = Path(f"{method}{k}")
        wecfl(
            "run", *common, "--steps", "2", "--method", method, "--clusters", str(k), "--out", out
        )
        kept = next(
            each for each in stored(Path("results")).values()
            if (each["config"]["method"], each["config"]["clusters"]) == (method, k)
        )  # fmt: skip
        summary = read_summary(out)
        for score in ("accuracy", "macro_f1", "ari"):
            assert kept[score] == pytest.approx(summary[score], abs=1e-6)
        assert kept["engine"] == summary["engine"]
        assert kept["seed"] == 0 and kept["seconds"] >= 0
        assert kept["curve"]["round"][-1] == 4
        assert kept["made_by"]["packages"]["wecfl"]
        assert not {"workers", "data_dir", "seed"} & kept["config"].keys()
        assert len((Path("results") / PlannedRun(Config()).stem).name) < 100


def test_a_vote_whose_members_lost_their_models_trains_only_those_anew(
    wecfl: Wecfl, defined: Path
) -> None:
    """The repository keeps results, not models."""
    ask = ("reproduce", "small", "--definitions", defined, "--results", "results", "--workers", "1")
    wecfl(*ask)
    before = stored(Path("results"))
    for file in Path("results/models").glob("*fedavg_k1*"):
        file.unlink()
    next(Path("results").glob("*fedavg+_k2*.json")).unlink()
    assert done(wecfl(*ask).out) == [ORDER[2], ORDER[3], ORDER[4]]
    after = stored(Path("results"))
    assert {name: same(each) for name, each in after.items()} == {
        name: same(each) for name, each in before.items()
    }


def test_cells_are_chosen_by_their_words(wecfl: Wecfl, defined: Path) -> None:
    ask = ("reproduce", "small", "--definitions", defined, "--workers", "1", "--cells")
    only = wecfl(*ask, "fedavg k=1", "--cells", "digits wecfl", "--seeds", "1")
    assert done(only.out) == ["wecfl k=2 seed 0", "fedavg k=1 seed 0"]
    assert "fedavg+" not in only.out  # only those are shown
    assert "fedavg+" in Path("docs/results/small.md").read_text()
    for words, fact in (("wefcl", "did you mean 'wecfl'?"), ("wecfl k=3", "'wecfl k=3'")):
        refused = wecfl(*ask, words)
        assert refused.code == 2 and fact in refused.err and refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("tokens", "fact"),
    [
        (["smal"], "did you mean 'small'?"),
        ([], "small, all"),
        (["small", "--budget", "2 hours"], "--budget"),
        (["small", "--seeds", "0"], "--seeds"),
        (["small", "--definitions", "nowhere"], "nowhere"),
    ],
)
def test_bad_requests_are_one_line(
    wecfl: Wecfl, defined: Path, tokens: list[str], fact: str
) -> None:
    refused = wecfl(
        "reproduce",
        *tokens,
        *(["--definitions", str(defined)] if "--definitions" not in tokens else []),
    )
    assert refused.code == 2 and fact in refused.err and refused.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("title = 3 =", "small.toml"),
        ("[[sets]]\npriority = 1\nseeds = 1", "'title'"),
        ('title = "t"\n[[sets]]\npriority = "first"', "priority"),
        ('title = "t"\n[[sets]]\npriority = 1\nseeds = 1\ncluters = 3', "did you mean 'clusters'?"),
        ('title = "t"\nsets = 3', "small.toml"),
        ('title = "t"\n[[sets]]\npriority = 1\nseeds = 1\nmethod = true', "method"),
    ],
)
def test_bad_definitions_are_one_line(wecfl: Wecfl, defined: Path, text: str, fact: str) -> None:
    (defined / "small.toml").write_text(text)
    refused = wecfl("reproduce", "small", "--definitions", defined)
    assert refused.code == 2 and fact in refused.err and refused.err.count("\n") == 1


def test_a_title_and_what_is_run_are_a_definition(wecfl: Wecfl, defined: Path) -> None:
    """FedAvg has one cluster, whatever is said for the others."""
    (defined / "mine.toml").write_text(
        'title = "Mine"\n[base]\ndataset = "digits"\nmethod = ["fedavg", "wecfl", "flhc"]\n'
        "clusters = 2\nclients = 4\ngroups = 2\nrounds = 1\n"
    )
    told = wecfl("reproduce", "mine", "--definitions", defined, "--workers", "1").out
    with Path("docs/results/mine.csv").open() as file:
        rows = {row["method"]: row["k"] for row in csv.DictReader(file)}
    assert rows == {"fedavg": "1", "wecfl": "2", "flhc": "auto"}
    assert "3 runs done" in told


def test_a_broken_result_is_named(wecfl: Wecfl, defined: Path) -> None:
    ask = ("reproduce", "small", "--definitions", defined, "--workers", "1", "--cells", "wecfl")
    wecfl(*ask, "--seeds", "1")
    [file] = Path("docs/results").glob("*.json")
    file.write_text("{")
    refused = wecfl(*ask)
    assert refused.code == 2 and str(file) in refused.err


def test_what_is_wrong_with_all_runs_is_said_once(wecfl: Wecfl, defined: Path) -> None:
    (defined / "small.toml").write_text(TABLE.replace('"digits"', '"no-such.npz"'))
    refused = wecfl("reproduce", "small", "--definitions", defined)
    assert refused.code == 2 and "no-such.npz" in refused.err and refused.err.count("\n") == 1


def test_no_run_begins_that_the_budget_does_not_allow(wecfl: Wecfl, defined: Path) -> None:
    ask = ("reproduce", "small", "--definitions", defined, "--workers", "1")
    wecfl(*ask, "--cells", "wecfl", "--seeds", "1")
    [file] = Path("docs/results").glob("*.json")
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "seconds": 7200.0}))
    short = wecfl(*ask, "--budget", "1.5h")
    assert done(short.out) == [] and "6 left" in short.out
    assert "estimated time 8 h 00 min for 4 of them" in wecfl(*ask, "--dry-run").out


def test_an_estimate_is_of_runs_of_the_same_kind_on_as_many_cores(
    wecfl: Wecfl, defined: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker of four cores took two hours; pictures, which took far longer, do not count."""
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    ask = ("reproduce", "small", "--definitions", defined, "--cells", "wecfl")
    wecfl(*ask, "--workers", "1", "--seeds", "1")
    [file] = Path("docs/results").glob("*.json")
    kept = json.loads(file.read_text()) | {"seconds": 7200.0}
    file.write_text(json.dumps(kept))
    for workers, told in (("1", "2 h 00 min"), ("2", "60 min"), ("4", "30 min")):
        assert f"estimated time {told} for 1" in wecfl(*ask, "--dry-run", "--workers", workers).out
    assert "estimated time 30 min for 1" in wecfl(*ask, "--dry-run").out

    (defined / "fig-tsne.toml").write_text(
        'title = "t-SNE"\nfigure = "tsne"\n'
        + BASE.replace("rounds = 4", "rounds = 5").replace("false", "true")
        + '[[sets]]\npriority = 1\nseeds = 1\nmethod = "wecfl"\nclusters = 2\ntrace = true\n'
    )
    wecfl("reproduce", "fig-tsne", "--definitions", defined, "--workers", "1")
    [traced] = [name for name, each in stored(Path("docs/results")).items() if "trace" in each]
    slow = json.loads(Path("docs/results", traced).read_text()) | {"seconds": 72000.0}
    Path("docs/results", traced).write_text(json.dumps(slow))
    assert "estimated time 30 min for 1" in wecfl(*ask, "--dry-run").out


def test_interrupted_it_keeps_what_was_finished_and_goes_on(
    wecfl: Wecfl, defined: Path, tmp_path: Path
) -> None:
    """A run in work elsewhere, Ctrl-C, a kill: the results are those of an undisturbed queue."""
    slow = TABLE.replace("rounds = 4", "rounds = 40").replace('"wecfl"', '"fedprox"')
    (defined / "small.toml").write_text(slow)
    ask = ["reproduce", "small", "--definitions", str(defined), "--workers", "1", "--results"]
    store = ResultStore(tmp_path / "shared")

    def disturbed(by: signal.Signals) -> tuple[int, str, str]:
        """Begin in a process of its own and stop it after the first run it has done."""
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", "from wecfl.cli import main; main()", *ask, "shared"],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(by)
        out, err = process.communicate()
        return process.returncode, first + out, err

    cell, seed = ordered(read_definitions(defined).values())[0]
    claimed = cell.run(seed)
    with store.claim(claimed) as mine:
        assert mine
        code, out, err = disturbed(signal.SIGINT)
    assert code == 130 and err.startswith("wecfl: interrupted; ")
    assert "shared" in err
    one = set(done(out))  # Ctrl-C while a line is printed may print it again
    assert len(one) == len(stored(store.folder)) >= 1 and str(claimed) not in out
    code, out, _ = disturbed(signal.SIGKILL)
    assert code == -signal.SIGKILL
    two, three = set(done(out)), set(done(wecfl(*ask, store.folder).out))
    assert two and three and not (one & two or one & three or two & three)  # nothing done twice
    assert "0 runs to do" in wecfl(*ask, store.folder, "--dry-run").out

    wecfl(*ask, "undisturbed")
    assert {name: same(each) for name, each in stored(store.folder).items()} == {
        name: same(each) for name, each in stored(tmp_path / "undisturbed").items()
    }


def test_a_table_stands_beside_the_papers_figures(wecfl: Wecfl) -> None:
    """Two made-up seeds of one cell; the rest of the table is not run."""
    store = ResultStore(Path("docs/results"))
    cell = next(
        cell for cell in read_definitions()["table1"].cells
        if {"cifar-10", "clusterwise-dirichlet", "wecfl", "k=10"} <= {*cell.words}
    )  # fmt: skip
    for seed, accuracy in enumerate((0.70, 0.74)):
        scores = {"accuracy": accuracy, "macro_f1": 0.35, "ari": 1.0}
        curve = {"curve": {"round": [1], "accuracy": [accuracy], "macro_f1": [0.35]}}
        by = {"engine": "native", "made_by": {"cpu": "abacus", "cores": 2}}
        store.write(cell.run(seed), {**scores, **curve, "seconds": 1800.0, **by})
    page = Path("docs/results.md")
    page.write_text(
        "Before\n<!-- cost --><!-- /cost -->\n<!-- table1 -->\nold\n<!-- /table1 -->\nafter\n"
    )

    shown = wecfl("reproduce", "table1", "--show", "--cells", "cifar-10 clusterwise-dirichlet")
    [line] = [line for line in shown.out.splitlines() if line.split()[:2] == ["wecfl", "10"]]
    # (72 − 70.95) / 3.57 = 0.29, (35 − 40.19) / 2.88 = −1.80
    assert line.split("  ")[-6:] != [] and "72.00 ± 2.83" in line and "70.95 ± 3.57" in line
    assert "+0.3" in line and "-1.8" in line and line.split()[-1] == "2"
    assert "fashion-mnist" not in shown.out

    text = Path("docs/results/table1.md").read_text()
    row = "| wecfl | 10 | 72.00 ± 2.83 | 70.95 ± 3.57 | +0.3 |"
    assert row in text and text.count("| not run |") == 2 * 47
    assert "of 1 cells" in text and "none" in text
    assert page.read_text().startswith("Before\n<!-- cost -->\n") and row in page.read_text()
    assert "| cifar-10 | 2 | 1.0 | native | abacus, 2 cores |" in page.read_text()
    assert page.read_text().endswith("<!-- /table1 -->\nafter\n") and "old" not in page.read_text()
    tex = Path("docs/results/table1.tex").read_text()
    assert r"wecfl & 10 & 72.00 $\pm$ 2.83 & 70.95 $\pm$ 3.57 & +0.3 &" in tex
    assert tex.count(r"\begin{tabular}") == tex.count(r"\end{tabular}") == 4
    with Path("docs/results/table1.csv").open() as file:
        rows = list(csv.DictReader(file))
    [mine] = [row for row in rows if row["n"] == "2"]
    assert float(mine["accuracy"]) == pytest.approx(72)
    assert float(mine["accuracy_gap"]) == pytest.approx((72 - 70.95) / 3.57, abs=1e-5)
    assert [row["accuracy"] for row in rows if row["n"] == "0"] == [""] * 47


def test_a_method_has_its_rows_on_its_own_page(wecfl: Wecfl) -> None:
    folder = Path("docs/methods")
    folder.mkdir(parents=True)
    Path("docs/results").mkdir()
    Path("docs/results/note.md").write_text("From JPEG.\n")
    names = ("wecfl", "fedavg+")
    for name in names:
        (folder / f"{name}.md").write_text(f"<!-- table1 {name} --><!-- /table1 {name} -->")
    wecfl("reproduce", "table1", "--show")
    for name in names:
        text = (folder / f"{name}.md").read_text()
        rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
        assert len(rows) == 8 and {row[0] for row in rows} == {
            f"| {data}, clusterwise-{partition}"
            for data in ("cifar-10", "fashion-mnist")
            for partition in ("dirichlet", "nclass")
        }
        assert "From JPEG." in text
    wide = "| cifar-10, clusterwise-dirichlet | 10 | not run | 70.95 ± 3.57 |"
    assert wide in (folder / "wecfl.md").read_text().replace("\N{NO-BREAK SPACE}", " ")


def test_the_definitions_hold_every_cell_of_the_paper_in_the_order_of_the_issue() -> None:
    defined = read_definitions()
    for name in ("table1", "table2"):
        cells = {
            (c.config.dataset, c.config.partition, c.config.clusters, c.config.method)
            for c in defined[name].cells
        }
        assert cells == set(published(name).index) and len(cells) == 48
        assert {c.config.rounds for c in defined[name].cells} == {100}
    pairs = ordered([defined["table1"], defined["table2"]])
    assert len(pairs) == len(set(pairs)) == 2 * (4 * 8 * 5 + 4 * 4 * 1)
    first = [cell.config for cell, _ in pairs[:32]]
    assert {c.dataset for c in first} == {"cifar-10"}
    assert {c.method for c in first} == {"fedavg", "fedprox", "wecfl", "fesem", "ifca"}
    assert {c.partition for c in first} == {"clusterwise-dirichlet", "clusterwise-nclass"}


def test_a_tuned_row_is_chosen_without_the_test_data(wecfl: Wecfl, defined: Path) -> None:
    (defined / "small.toml").write_text(f"""
title = "Tuned"
{BASE.replace("rounds = 4", "rounds = 8")}
[[sets]]
label = "untuned"
priority = 1
seeds = 1
method = "wecfl"
clusters = 2

[[sets]]
priority = 1
seeds = 2
method = "wecfl"
clusters = 2
tune = [0.001, 0.05, 1e38]
""")
    ask = ("reproduce", "small", "--definitions", defined, "--workers", "1")
    assert "2 more follow once their learning rate is chosen" in wecfl(*ask, "--dry-run").out
    tuned = wecfl(*ask)
    assert "wecfl k=2 seed 0 (choosing lr: 1e+38): training diverged" in tuned.out
    assert [run for run in done(tuned.out) if "choosing" in run] == [
        "wecfl k=2 seed 0 (choosing lr: 0.001)",
        "wecfl k=2 seed 0 (choosing lr: 0.05)",
    ]
    kept = list(stored(Path("docs/results")).values())
    choosing = {k["config"]["lr"]: k for k in kept if k["config"]["validation"]}
    assert choosing.keys() == {0.001, 0.05, 1e38} and "diverged" in choosing[1e38]["error"]
    assert choosing[0.05]["accuracy"] > choosing[0.001]["accuracy"]
    final = [k for k in kept if k["config"]["lr"] == 0.05 and not k["config"]["validation"]]
    assert sorted(k["seed"] for k in final) == [0, 1]
    assert "lr 0.05 chosen of 0.001, 0.05, 1e+38" in tuned.out
    assert "0 runs to do" in wecfl(*ask, "--dry-run").out


def test_validation_data_come_from_the_training_data_alone() -> None:
    config = Config(clients=6, groups=2)
    whole, held = (
        federation_of(config),
        federation_of(config.model_copy(update={"validation": 0.2})),
    )
    for i in range(6):
        assert not set(held.test[i]) & set(whole.test[i])
        assert sorted(np.concatenate([held.train[i], held.test[i]])) == sorted(whole.train[i])


def test_figures_are_drawn_from_what_is_stored(wecfl: Wecfl, defined: Path) -> None:
    base = BASE.replace("rounds = 4", "rounds = 6").replace("false", "true")
    sets = '[[sets]]\npriority = 1\nseeds = 1\nmethod = "wecfl"\nclusters = 2\n'
    kinds = ("tsne", "cosine", "objectives", "convergence", "rate")
    for kind in kinds:
        trace = "trace = true\n" if kind != "convergence" else ""
        trace += "diagnostics = true\nmomentum = 0.0\n" if kind == "rate" else ""
        (defined / f"fig-{kind}.toml").write_text(
            f'title = "{kind}"\nfigure = "{kind}"\n{base}{sets}{trace}'
        )
    nothing = wecfl("reproduce", "fig-tsne", "--definitions", defined, "--show")
    assert "fig-tsne: nothing to draw" in nothing.out
    drawn = wecfl("reproduce", *(f"fig-{kind}" for kind in kinds), "--definitions", defined)
    assert len(done(drawn.out)) == 3  # one with a trace for three of them, one without, and rate
    for kind in kinds:
        for suffix in ("png", "svg", "pdf", "html"):
            assert Path(f"docs/results/fig-{kind}.{suffix}").stat().st_size > 2000
    traces = [s["trace"] for s in stored(Path("docs/results")).values() if "trace" in s]
    [measured] = [each["gradient"]["measured"] for each in traces if "gradient" in each]
    assert len(measured) == 5  # Theorem 3 counts from the second record on
    [trace] = [each for each in traces if "gradient" not in each]
    assert [seen["round"] for seen in trace["rounds"]] == [1, 2, 3, 4, 5]
    assert len(trace["rounds"][0]["x"]) == 6 and len(trace["F"]["E"]) == len(trace["R"]["D"]) == 6
    centers = np.array(trace["cosine"]["centers"])
    assert np.allclose(np.diag(centers), 1) and np.allclose(centers, centers.T)


@pytest.mark.parametrize(
    ("kind", "lost", "told"),
    [
        ("objectives", {"F": {}, "R": {}, "B": {}}, "no objective"),
        ("objectives", {"R": {"L": []}}, "at least 1 item"),
        ("rate", {"gradient": None}, "gradient"),
        ("rate", {"gradient": {"promised": [1.0]}}, "measured"),
    ],
)
def test_a_figure_whose_numbers_are_lost_is_refused_in_one_line(
    wecfl: Wecfl, defined: Path, kind: str, lost: dict[str, Any], told: str
) -> None:
    run = 'method = "wecfl"\nclusters = 2\ntrace = true\ndiagnostics = true\nmomentum = 0.0\n'
    (defined / "it.toml").write_text(
        f'title = "it"\nfigure = "{kind}"\n{BASE.replace("false", "true")}'
        f"[[sets]]\npriority = 1\nseeds = 1\n{run}"
    )
    ask = ("reproduce", "it", "--definitions", defined)
    assert wecfl(*ask).code == 0
    [file] = Path("docs/results").glob("*_trace_*.json")
    stored = json.loads(file.read_text())
    stored["trace"] |= lost
    file.write_text(json.dumps(stored))
    refused = wecfl(*ask, "--show")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert told in refused.err
    del stored["trace"]["gradient"]
    if kind == "rate":
        file.write_text(json.dumps(stored))
        assert "no gradients" in wecfl(*ask, "--show").err


def test_a_partition_is_drawn_without_any_run(wecfl: Wecfl, defined: Path) -> None:
    (defined / "fig-partition.toml").write_text(
        f'title = "p"\nfigure = "partition"\n{BASE}'
        '[[sets]]\npriority = 1\nseeds = 0\npartition = ["iid", "clusterwise-dirichlet"]\n'
    )
    drawn = wecfl("reproduce", "fig-partition", "--definitions", defined, "--seeds", "2")
    assert "0 runs done" in drawn.out and not list(Path("docs/results").glob("*.json"))
    assert "clusterwise-dirichlet(0.1, 10)" in Path("docs/results/fig-partition.svg").read_text()


LIARS = f"""
title = "Liars"
table = "robustness"
figure = "robustness"
together = true
{BASE}
attackers = 0.34
aggregation = ["mean", "median"]
priority = 1
seeds = 2

[[sets]]
label = "none"
method = "wecfl"
clusters = 2
attack = "scale"
attack_strength = 1.0

[[sets]]
method = "wecfl"
clusters = 2
attack = ["sign-flip", "backdoor"]

[[sets]]
seeds = 1
method = "fedavg+"
clusters = 2
attack = "backdoor"
"""
SIZE = ("--model", "logistic", "--clients", "6", "--groups", "2", "--rounds", "4", "--steps", "2")


def lines(file: Path) -> list[dict[str, Any]]:
    """The results in a file, each with what is common to all."""
    return read_json_lines(file, ResultSchema)


def test_many_short_runs_are_lines_of_one_file_and_the_same_as_wecfl_run(
    wecfl: Wecfl, defined: Path
) -> None:
    """Also a soft vote under attack, whose scores are those of honest clients too."""
    (defined / "liars.toml").write_text(LIARS)
    ask = ("reproduce", "liars", "--definitions", defined, "--workers", "1")
    assert "18 runs to do for 14 asked for" in wecfl(*ask, "--dry-run").out
    some = wecfl(*ask, "--cells", "sign-flip median", "--seeds", "1")
    assert done(some.out) == ["wecfl k=2 sign-flip median seed 0"]
    whole = wecfl(*ask)
    assert "17 runs done" in whole.out and "0 runs to do" in wecfl(*ask, "--dry-run").out
    results = Path("docs/results")
    assert not list(results.glob("*.json")) and len(lines(results / "liars.jsonl")) == 18

    for method, attack, aggregation in (
        ("wecfl", "sign-flip", "median"), ("wecfl", "backdoor", "mean"),
        ("fedavg+", "backdoor", "median"),
    ):  # fmt: skip
        words = ("--method", method, "--attack", attack, "--aggregation", aggregation)
        out = Path(f"{method}-{attack}")
        wecfl("run", *SIZE, *words, "--clusters", "2", "--attackers", "0.34", "--out", out)
        [kept] = [
            each for each in lines(results / "liars.jsonl")
            if (each["config"]["method"], each["config"]["attack"]) == (method, attack)
            and each["config"]["aggregation"] == aggregation and each["seed"] == 0
        ]  # fmt: skip
        summary = read_summary(out)
        assert kept["accuracy"] == pytest.approx(summary["accuracy"], abs=1e-6)
        assert kept["attack"] == pytest.approx(summary["attack"], abs=1e-6)
        assert ("success" in kept["attack"]) == (attack == "backdoor")

    before = lines(results / "liars.jsonl")
    (results / "liars.jsonl").write_text(
        "".join(f"{json.dumps(each)}\n" for i, each in enumerate(before) if i != 3)
    )
    assert len(done(wecfl(*ask).out)) == 1
    assert [*map(same, lines(results / "liars.jsonl"))] == [*map(same, before)]
    (results / "liars.jsonl").write_text('{}\n{"seed": 1')
    refused = wecfl(*ask, "--show")
    assert refused.code == 2 and "liars.jsonl, line 1" in refused.err


def made_up(
    store: ResultStore, run: PlannedRun, rounds: dict[str, Any] | None = None, **scores: Any
) -> None:
    """A stored result that nobody has computed."""
    curve = {"curve": {"round": [1], "accuracy": [0.5], "macro_f1": [0.5], **(rounds or {})}}
    by = {"engine": "native", "made_by": {"cpu": "abacus", "cores": 2}, "seconds": 1.0}
    store.write(run, {"accuracy": 0.5, "macro_f1": 0.5, "ari": None, **scores, **curve, **by})


def test_several_processes_write_one_file(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)

    def write(first: int) -> None:
        for seed in range(first, 40, 4):
            made_up(store, PlannedRun(Config(seed=seed), pool="all"))

    workers = [get_context("fork").Process(target=write, args=(first,)) for first in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [each["seed"] for each in lines(tmp_path / "all.jsonl")] == [*range(40)]
    assert len(store.seeds(PlannedRun(Config(), pool="all"))) == len(store.all()) == 40


def test_robustness_is_told_by_attack_and_aggregation(wecfl: Wecfl, defined: Path) -> None:
    (defined / "liars.toml").write_text(LIARS)
    store = ResultStore(Path("docs/results"))
    scores = {("none", "mean"): (0.9, 0.8), ("none", "median"): (0.7, 0.7),
              ("sign-flip", "mean"): (0.2,), ("backdoor", "mean"): (0.5,)}  # fmt: skip
    for cell in read_definitions(defined)["liars"].cells:
        name = (cell.label or str(cell.config.attack), cell.config.aggregation)
        known = scores.get(name, ()) if cell.config.method == "wecfl" else ()
        for seed, accuracy in enumerate(known):
            success = {"success": 0.25} if name[0] == "backdoor" else {}
            attack = {"isolated": 0.5, "exposed": 1.0, **success}
            made_up(store, cell.run(seed), accuracy=accuracy, ari=0.5, attack=attack)
    page = Path("docs/liars.md")
    page.write_text("Before\n<!-- liars --><!-- /liars -->\nafter\n")
    shown = wecfl("reproduce", "liars", "--definitions", defined, "--show")
    text = Path("docs/results/liars.md").read_text()
    for row in (
        "| none | **85.0 ± 7.1** | 70.0 ± 0.0 | 2 |",
        "| sign-flip | 20.0 | not run | 0–1 |",
        "| wecfl, K = 2 | 25.0 | not run | 0–1 |",
        "| wecfl, K = 2 | none | 50.0 ± 0.0 | 100.0 ± 0.0 | 0.50 ± 0.00 | 85.0 ± 7.1 | 2 |",
        "| fedavg+, K = 2 | backdoor | not run | not run | not run | not run | 0 |",
    ):
        assert row in text and row in page.read_text()
    assert "85.0 ± 7.1" in shown.out and "**" not in shown.out
    assert r"none & \textbf{85.0 $\pm$ 7.1} & 70.0 $\pm$ 0.0" in (
        Path("docs/results/liars.tex").read_text()
    )
    with Path("docs/results/liars.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and rows[0]["attack"] == "none" and rows[0]["isolated"] == "50.0"
    assert Path("docs/results/liars.png").stat().st_size > 2000


def test_robustness_holds_every_method_attack_and_aggregation_of_the_issue() -> None:
    defined = read_definitions()["robustness"]
    cells = {
        (c.config.method, c.config.clusters, c.label or c.config.attack, c.config.aggregation)
        for c in defined.cells
    }
    methods = [("fedavg", 1), ("ifca", 5), ("fesem", 5), ("wecfl", 5), ("wecfl", 10)]
    assert cells == {
        (*method, attack, aggregation)
        for method in methods
        for attack in ("none", *ATTACKS)
        for aggregation in AGGREGATIONS
    }
    assert len(ordered([defined])) == 3 * len(cells) == 735


DEFENDED = f"""
title = "Defended"
table = "defended"
together = true
{BASE}
attackers = 0.34
method = "fedavg"
priority = 1
seeds = 2

[[sets]]
attack = "scale"
attack_strength = 1.0
shorten_above = ["never", 2.0]

[[sets]]
attack = "sign-flip"
attack_strength = 20.0
shorten_above = ["never", 2.0]

[[sets]]
attack = "backdoor"
shorten_above = ["never", 2.0]
"""


def test_defences_are_told_by_what_they_cost_and_hold(wecfl: Wecfl, defined: Path) -> None:
    """Against figures worked out by hand; of the attacked runs without defence one diverged."""
    (defined / "defended.toml").write_text(DEFENDED)
    store = ResultStore(Path("docs/results"))
    scores: dict[tuple[Any, Any], tuple[float | None, ...]] = {
        ("scale", "never"): (0.90, 0.94), ("scale", 2.0): (0.90, 0.93),
        ("sign-flip", "never"): (0.50, None), ("sign-flip", 2.0): (0.89, 0.92),
        ("backdoor", "never"): (0.92, 0.92), ("backdoor", 2.0): (0.88, 0.90),
    }  # fmt: skip
    for cell in read_definitions(defined)["defended"].cells:
        for seed, accuracy in enumerate(scores[cell.config.attack, cell.config.shorten_above]):
            success = {"success": 0.25} if cell.config.attack == "backdoor" else {}
            attack = {"isolated": 0.0, "exposed": 1.0, **success}
            made_up(store, cell.run(seed), accuracy=accuracy, attack=attack)
    page = Path("docs/anything.md")
    page.write_text("Before\n<!-- defended --><!-- /defended -->\nafter\n")
    mark = "defended: Accuracy of honest clients in %, mean over the data: none → shorten above 2"
    part = Path("docs/part.md")
    part.write_text(f"<!-- {mark} --><!-- /{mark} -->")
    shown = wecfl("reproduce", "defended", "--definitions", defined, "--show")
    text = page.read_text()
    for row in (
        "| none | 0.0 | 0.0 | 1 of 2 | 33.5 | 67.0 | 25 | 2 |",
        "| shorten above 2 | 0.5 | 0.5 | 1 of 2 | 2.2 | 3.0 | 25 | 2 |",
        "| sign-flip × 20 | 2 | **25.0 ± 35.4** | 90.5 ± 2.1 | 2 |",
        "| backdoor | 2 | 92.0 ± 0.0 | **89.0 ± 1.4** | 2 |",
        "| triggers that work | 2 | 25.0 ± 0.0 | 25.0 ± 0.0 | 2 |",
    ):
        assert row in text and row in Path("docs/results/defended.md").read_text()
    assert "| sign-flip × 20 | **25.0** → 90.5 |" in part.read_text()
    assert "1 of 2" not in part.read_text()
    assert "1 of 2" in shown.out and "**" not in shown.out


FOUND = f"""
title = "Found"
table = "found"
together = true
{BASE}
priority = 1
seeds = 3

[[sets]]
method = "wecfl"
clusters = ["auto", 2]

[[sets]]
partition = "iid"
method = "wecfl"
clusters = "auto"
"""


def test_clusters_found_are_told_by_seed(wecfl: Wecfl, defined: Path) -> None:
    (defined / "found.toml").write_text(FOUND)
    store = ResultStore(Path("docs/results"))
    auto, given, iid = read_definitions(defined)["found"].cells
    for seed, (clusters, ari) in enumerate([(2, 1.0), (3, 0.8), (2, 0.5)]):  # in the last round
        rounds = {"clusters": [4, 3, clusters], "ari": [0.1, 0.2, ari]}
        made_up(store, auto.run(seed), rounds, ari=(0.3 + ari) / 3)
    made_up(store, iid.run(0), {"clusters": [1]})
    made_up(store, iid.run(1))  # it diverged before its first round was over
    assert given.config.clusters == 2
    page = Path("docs/methods/mine.md")
    page.parent.mkdir(parents=True)
    page.write_text("<!-- found --><!-- /found -->")
    wecfl("reproduce", "found", "--definitions", defined, "--show")
    for row in (
        "| wecfl | auto | served | 2 | 2, 3, 2 | 1.00, 0.80, 0.50 | 1 of 3 | 50.0 ± 0.0 |",
        "| wecfl | 2 | – | 2 | not run | – | – | – | – | 0 |",
        "| wecfl | auto | 1, – | 1 of 2 | 50.0 ± 0.0 | 50.0 ± 0.0 | 2 |",
    ):
        assert row in page.read_text(), page.read_text()


def shown_table(wecfl: Wecfl, defined: Path, name: str) -> str:
    """Show a table of stored results; returns its page."""
    wecfl("reproduce", name, "--definitions", defined, "--show")
    return Path(f"docs/results/{name}.md").read_text()


GALLERY = f"""
title = "Worlds"
table = "gallery"
together = true
{BASE}
priority = 1
seeds = 2

[[sets]]
method = ["fedavg", "wecfl"]
clusters = 2

[[sets]]
method = "wecfl"
clusters = "auto"

[[each]]
label = "rotation, by group"
transform = ["rotation", "permutation"]

[[each]]
label = "nothing differs"
partition = "iid"
"""


def test_a_gallery_has_a_row_for_each_world(wecfl: Wecfl, defined: Path) -> None:
    (defined / "gallery.toml").write_text(GALLERY)
    store = ResultStore(Path("docs/results"))
    cells = read_definitions(defined)["gallery"].cells
    assert [cell.config.transform for cell in cells] == [("rotation", "permutation")] * 3 + [
        None
    ] * 3
    fedavg, given, *_ = cells
    made_up(store, fedavg.run(0), ari=0.0, worst_decile=0.25)
    for seed in range(2):
        made_up(store, given.run(seed), ari=1.0, worst_decile=0.375 + 0.25 * seed)
    text = shown_table(wecfl, defined, "gallery")
    for row in (
        "| what | fedavg | wecfl | wecfl auto |",
        "| rotation, by group | **50.0** | **50.0** | not run |",
        "| rotation, by group | 25.0 | **50.0** | not run |",
        "| rotation, by group | 0.00 | **1.00** | not run |",
        "| nothing differs | not run | not run | not run |",
    ):
        assert row in text, text
    assert text.count("nothing differs") == 2  # there is no ARI without groups


def test_the_gallery_shows_every_cell_of_the_taxonomy() -> None:
    cells = read_definitions()["gallery"].cells
    worlds = {cell.label: cell.config for cell in cells}
    assert len(cells) == 2 * 9 * len(worlds)  # digits and MNIST, nine methods
    kinds = {
        (transform.partition("(")[0], "by=client" in transform)
        for config in worlds.values()
        for transform in config.transform or ()
    }
    others = {"sign", "concept", "hue"}  # of regressions, streams of points, and three colours
    assert {name for name, _ in kinds} == set(TRANSFORMS) - others
    assert {("rotation", True), ("rotation", False), ("permutation", True)} <= kinds
    partitions = {config.partition for config in worlds.values()}
    assert partitions >= {
        "clientwise-dirichlet", "clusterwise-dirichlet", "clientwise-nclass", "clusterwise-nclass",
        "quantity-power", "clusterwise-quantity", "iid",
    }  # fmt: skip
    assert any(config.mixture for config in worlds.values())


DRIFT = f"""
title = "Drift"
table = "drift"
together = true
{BASE}
priority = 1
seeds = 2
first_seed = 20
partition = "iid"
transform = ["permutation"]

[[sets]]
label = "looks"
drift = ["abrupt(round=3)", "staggered(schedule='01 10')"]
options = {{ recluster = "drift" }}
"""


def test_a_table_of_drift_says_how_soon_runs_recover(wecfl: Wecfl, defined: Path) -> None:
    (defined / "drift.toml").write_text(DRIFT)
    store = ResultStore(Path("docs/results"))
    definition = read_definitions(defined)["drift"]
    assert [seed for _, seed in ordered([definition])] == [20, 20, 21, 21]
    abrupt, staggered = definition.cells
    found = {"rounds": [3], "changed": 3, "found": 2, "at_once": 1, "alarms": 1, "looks": 50}
    for seed, low in ((20, [0.5, 0.8, 0.9]), (21, [0.5, 0.6, 0.7])):
        scores = [0.9, 0.9, *low]
        curve = {"round": [1, 2, 3, 4, 5], "accuracy": scores, "macro_f1": scores, "ari": [0.5] * 5}
        made_up(store, abrupt.run(seed), curve, ari=1.0, drift=found)
        made_up(store, staggered.run(seed), curve, ari=1.0)
    text = shown_table(wecfl, defined, "drift")
    for row in (
        "| what | abrupt |",
        "| looks | 2, never |",
        "| looks | 1.00 ± 0.00 |",
        "| looks | 2.0 of 3 |",
        "| looks | 2.0 |",
        "| what | digits |",
        "| looks | 76.0 ± 5.7 |",
        "| looks | 0.50 ± 0.00 |",
    ):
        assert row in text, text


NEWCOMERS = f"""
title = "Late"
table = "newcomers"
{BASE}
priority = 1
seeds = 2

[[sets]]
method = "wecfl"
clusters = 2
newcomers = 0.2
unseen = [0, 1]
"""


def test_newcomers_are_told_by_the_group_that_was_unseen(wecfl: Wecfl, defined: Path) -> None:
    (defined / "late.toml").write_text(NEWCOMERS)
    store = ResultStore(Path("docs/results"))
    first, second = read_definitions(defined)["late"].cells
    found = {"clients": 4, "novel": 1, "right": 0.75, "recall": 1.0, "false_alarms": 0.25}
    for seed in (0, 1):
        scores = found | {"accuracy": 0.5 + 0.2 * seed, "members": 0.5}
        made_up(store, first.run(seed), ari=1.0, newcomers=scores)
    made_up(store, second.run(0), ari=0.5, newcomers=found | {"accuracy": 0.4, "members": 0.5})
    text = shown_table(wecfl, defined, "late")
    for row in (
        "| 0 | 75.0 ± 0.0 | 60.0 ± 14.1 | 50.0 ± 0.0 | 10.0 ± 14.1 | 100.0 ± 0.0 | 25.0 ± 0.0 |",
        "| 1 | 75.0 | 40.0 | 50.0 | -10.0 | 100.0 | 25.0 | 0.50 | 1 |",
        "| **mean** | **75.0** | **50.0** | **50.0** | **0.0** |",
    ):
        assert row in text, text


@pytest.mark.parametrize("name", [n for n, d in read_definitions().items() if not d.figure])
def test_every_shipped_table_can_be_shown_before_anything_is_run(wecfl: Wecfl, name: str) -> None:
    Path("docs/results").mkdir(parents=True)
    assert wecfl("reproduce", name, "--show").code == 0
    assert "not run" in Path(f"docs/results/{name}.md").read_text()


def test_what_decided_on_k_is_told(wecfl: Wecfl, defined: Path) -> None:
    deciders = """
[[sets]]
method = "cfl"
clusters = "auto"
eps1 = 0.05
eps2 = [0.1, 0.2]

[[sets]]
method = "flhc"
clusters = "auto"
threshold = 0.7
"""
    (defined / "found.toml").write_text(FOUND.split("[[sets]]", maxsplit=1)[0] + deciders)
    shown = wecfl("reproduce", "found", "--definitions", defined, "--show")
    for decider in ("ε 0.05, 0.1", "ε 0.05, 0.2", "cut at 0.7"):
        assert decider in shown.out, shown.out


def test_k_is_looked_for_as_the_issue_asks() -> None:
    defined = read_definitions()
    settings = {
        (c.config.dataset, c.config.partition, c.config.groups)
        for c in defined["auto-k"].cells
        if c.config.clusters == "auto" and c.config.criterion in ("served", "both")
    }
    for dataset in ("digits", "fashion-mnist", "cifar-10"):
        assert {(dataset, "clusterwise-dirichlet", g) for g in (3, 5, 10, 20)} <= settings
        assert any(each[:2] == (dataset, "iid") for each in settings)
    assert all(count == 5 for _, count, _ in defined["auto-k"].sets)
    methods = {
        (c.config.partition, c.config.method, c.config.clusters) for c in defined["unknown-k"].cells
    }
    for partition, k in (
        ("clusterwise-permuted", 4), ("clusterwise-dirichlet", 10), ("clusterwise-nclass", 10)
    ):  # fmt: skip
        rows: set[tuple[str, str, object]]
        rows = {(partition, name, "auto") for name in ("wecfl", "cfl", "flhc")}
        rows |= {(partition, name, k) for name in ("wecfl", "fesem", "ifca")}
        assert rows | {(partition, "fedavg", 1)} <= methods
