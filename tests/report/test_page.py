"""The report page as text: what it says, what it leaves out, what it refuses."""

import json
import re
import shutil
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pytest
from jsonschema import ValidationError

from helpers import method_named, run_flat
from pages import Text, colors, lines
from wecfl import Federation, methods
from wecfl.config import Config
from wecfl.errors import ConfigError, RunFolderError
from wecfl.experiment import run_config
from wecfl.folder.readers import read_metrics, read_summary
from wecfl.report.page.alluvial import alluvial, telling_rounds
from wecfl.report.page.client_map import spread_apart
from wecfl.report.page.html import PageLimits, page, write
from wecfl.report.page.line_charts import Spec, area_chart, line_chart
from wecfl.report.tables.results import result_cells, results
from wecfl.report.tsne import tsne_planes

QUICK: dict[str, Any] = {"model": "logistic", "rounds": 4, "steps": 3, "lr": 0.05, "workers": 1}


@pytest.fixture(scope="module")
def runs(fed: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of four rounds."""
    path = tmp_path_factory.mktemp("runs")
    for method in (methods.fedavg, methods.wecfl(k=2)):
        run_flat(fed, method, out=path / method.name, **QUICK)
    return path


@pytest.fixture
def one(runs: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the WeCFL run, to be spoilt."""
    yield Path(shutil.copytree(runs / "wecfl", tmp_path / "run"))


def test_the_page_holds_the_figures_of_the_run(runs: Path) -> None:
    text = Text(page([runs / "wecfl"]))
    heads, [row] = result_cells(results([runs / "wecfl"]))
    assert text.cells[: 2 * len(heads)] == heads + row
    records = read_metrics(runs / "wecfl")
    assert [r["v0"] for r in lines(text, "convergence-0")] == [
        pytest.approx(record["accuracy"], rel=1e-5) for record in records
    ]
    assert [list(r.values())[1:] for r in lines(text, "objective-0-0")] == [
        pytest.approx([record["F"][step] for step in "LEM"], rel=1e-5) for record in records
    ]
    assert f"{100 * records[0]['accuracy']:.2f}" in text.cells
    plane = {param["name"]: param.get("value") for param in text.json["plane-0"]["params"]}
    assert np.shape(plane["X"]) == np.shape(plane["Y"]) == np.shape(plane["L"]) == (4, 5)
    assert plane["G"] == [0, 1, 0, 1, 0]
    assert plane["A"][-1] == pytest.approx(records[-1]["clients"]["accuracy"], abs=1e-3)


def test_the_command_that_repeats_a_run_can_be_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    run_config(Config(clients=6, groups=2, clusters=2, rounds=1), out=folder)
    assert f"wecfl run '{folder / 'config.toml'}'" in unescape(page([folder]))


def test_several_runs_are_compared(runs: Path) -> None:
    html = page([runs / "fedavg", runs / "wecfl"])
    text = Text(html)
    scores = {name: read_summary(runs / name)["accuracy"] for name in ("fedavg", "wecfl")}
    names = sorted(scores, key=lambda name: -scores[name])  # the best first
    heads = [{"fedavg": "fedavg", "wecfl": "wecfl K=2"}[name] for name in names]
    assert [h for h in text.heads if "fedavg" in h or "wecfl" in h] == [" and ".join(names), *heads]
    for i, name in enumerate(names):
        curve = [record["accuracy"] for record in read_metrics(runs / name)]
        assert [r[f"v{i}"] for r in lines(text, "convergence-0")] == pytest.approx(curve, rel=1e-5)
    assert {"plane-0", "plane-1"} <= text.json.keys()
    assert html.count("Who moved where") == 1  # FedAvg has one cluster
    assert len(html) < 6e6


def test_seeds_are_one_experiment_shown_once(fed: Federation, tmp_path: Path) -> None:
    for seed in (0, 1):
        run_flat(fed, methods.wecfl(2), seed=seed, out=tmp_path / str(seed), **QUICK)
    text = Text(page([tmp_path / "0", tmp_path / "1"]))
    curves = [[r["accuracy"] for r in read_metrics(tmp_path / s)] for s in "01"]
    assert [r["v0"] for r in lines(text, "convergence-0")] == pytest.approx(
        np.mean(curves, axis=0), rel=1e-5
    )
    assert "plane-1" not in text.json
    assert any("±" in cell for cell in text.cells)


def test_a_page_of_many_methods_has_a_short_title_and_a_map_of_each(
    fed: Federation, tmp_path: Path
) -> None:
    names = ("fedavg", "fedprox", "fedavgm", "fedadam", "fedatt", "feddyn", "fedyogi")
    for name in names:
        run_flat(fed, method_named(name, 1), out=tmp_path / name, **QUICK | {"rounds": 1})
    html = page([tmp_path / name for name in names])
    assert "7 methods" in Text(html).heads[0]
    assert html.count('class="card" href="#run-') == 7


def test_more_runs_than_fit_are_counted(runs: Path) -> None:
    html = page([runs / "fedavg", runs / "wecfl"], limits=PageLimits(detailed_runs=1))
    assert "1 more run " in html
    assert "plane-1" not in Text(html).json


def test_frames_are_thinned_out_but_keep_the_first_and_the_last_round(runs: Path) -> None:
    seen: list[list[int]] = []

    def track(rounds: Any, title: str) -> Any:
        seen.append(list(rounds))
        return rounds

    page([runs / "wecfl"], track, PageLimits(frames=3, min_frames=1))
    page([runs / "wecfl"], track, PageLimits(places=5))  # that many clients: two rounds are left
    assert seen == [[1, 2, 4], [1, 4]]


def test_an_older_folder_gives_a_page_without_what_it_lacks(one: Path) -> None:
    shutil.rmtree(one / "trace")
    (one / "classes.csv").unlink()
    html = page([one])
    assert "--trace" in html
    assert "plane-0" not in Text(html).json
    assert 'class="heat"' not in html
    assert 'class="bars"' not in html
    assert "Cluster 0" in html


def test_names_are_text(fed: Federation, tmp_path: Path) -> None:
    bad = "<script>window.bad = 1</script>"
    names = (bad, "</script>", '"><img src=x onerror=bad()>', "NA", "007")
    named = Federation(
        fed.x, fed.y, fed.train, fed.test, fed.classes, fed.keys, names, fed.groups
    )  # fmt: skip
    method = methods.wecfl(k=2).replace(name="<b>mine</b>")
    run_flat(named, method, out=tmp_path / "<i>", **QUICK)
    html = page([tmp_path / "<i>"])
    assert bad not in html
    assert "<b>mine" not in html
    text = Text(html)
    assert "img" not in text.tags
    assert set(names) <= set(text.cells)
    plane = {param["name"]: param.get("value") for param in text.json["plane-0"]["params"]}
    assert plane["names"] == list(names)


def test_what_else_was_measured_is_drawn(one: Path) -> None:
    records = read_metrics(one)
    for record in records:
        record["B"] = {"0": [None, 0.5, 0.1], "Q": [None, 0.25, 0.125]}
        bounds = dict.fromkeys(
            ("U_round", "sigma2", "beta", "curvature", "lemma_4", "lemma_5", "convexity"), 1.0
        )
        seen = {"U": 3.0, "gradient": {"0": 1.0, "Q": 2.0}, "together": True}
        record["theory"] = bounds | seen
        record["clients"] |= {"lr": [0.1] * 5, "lr_bound_1": None, "reply": [1] * 5}
    (one / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    html = page([one])
    text = Text(html)
    assert lines(text, "objective-0-2")[0] == {"round": 1, "v0": 0.5, "v1": 0.125}
    # An empty cluster has no B; the others keep the colours they have elsewhere on the page.
    assert colors(text, "objective-0-2") == ["var(--c1)", "var(--c2)"]
    assert lines(text, "objective-0-3")[0] == {"round": 1, "v0": 0.1}
    more = [lines(text, name)[0]["v0"] for name in text.json if name.startswith("more-0-")]
    assert more[-3:] == [3.0, 1.0, 2.0]
    assert "theory gradient Q" in html
    assert "together" not in html


def test_objectives_are_drawn_beside_what_the_theory_allows(
    fed: Federation, tmp_path: Path
) -> None:
    run_flat(fed, methods.wecfl(k=2), model="logistic", rounds=4, steps=3, lr=0.05, workers=1,
              out=tmp_path, diagnostics=True)  # fmt: skip
    records = read_metrics(tmp_path)
    html = page([tmp_path])
    text = Text(html)
    for t, row in enumerate(lines(text, "objective-0-1")):
        R, theory = records[t]["R"], records[t]["theory"]
        before = records[t - 1]["R"]["D"] + theory["lemma_5"] if t else None
        expected = [R["L"], R["D"], before, R["L"] + theory["lemma_4"]]
        assert list(row.values())[1:] == [
            value if value is None else pytest.approx(value, rel=1e-5) for value in expected
        ]
    assert "L by Lemma 5" in html and "D by Lemma 4" in html
    for record, row in zip(records, lines(text, "objective-0-2"), strict=True):
        assert [row["v0"], row["v1"]] == pytest.approx([*map(max, *record["B"].values())], rel=1e-5)
        least = min(record["theory"]["gradient"].values())
        assert row["v2"] == pytest.approx(least / record["theory"]["U_round"] ** 2, rel=1e-5)
    assert colors(text, "objective-0-2") == ["var(--c0)", "var(--c1)", "var(--muted)"]
    bounds = [np.median(record["clients"]["lr_bound_2"]) for record in records]
    assert min(bounds) <= 0  # such a bound can't be drawn, and is told
    assert f"in {sum(b <= 0 for b in bounds)} of 4 rounds" in html
    drawn = [row.get("v2") for row in lines(text, "objective-0-3")]
    assert drawn == [pytest.approx(b, rel=1e-5) if b > 0 else None for b in bounds]


def test_bounds_are_not_drawn_of_what_the_theory_is_not_about(
    fed: Federation, tmp_path: Path
) -> None:
    run_flat(fed, methods.ifca(k=2), model="logistic", rounds=2, steps=3, lr=0.05, workers=1,
              out=tmp_path, diagnostics=True)  # fmt: skip
    html = page([tmp_path])
    assert "by Lemma" not in html and "Theorem 2" not in html
    assert set(lines(Text(html), "objective-0-3")[0]) == {"round", "v0"}


@pytest.mark.parametrize(
    "damage",
    [
        {"B": {"0": [0.5, 0.5], "Q": [0.5]}},
        {"B": 5},
        {"theory": {"gradient": {}, "U_round": 1.0}},
        {"theory": {"gradient": {"0": None, "Q": 1.0}, "U_round": 1.0}},
        {"theory": {"gradient": {"0": 1.0, "Q": 1.0}, "U_round": "x"}},
    ],
)
def test_measurements_that_make_no_sense_are_refused(one: Path, damage: dict[str, Any]) -> None:
    records = read_metrics(one)
    for record in records:
        record.update(damage)
        record["clients"]["lr_bound_1"] = [0.1] * 5
    (one / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl, line 1"):
        page([one])


def test_many_clusters_are_summed_up(one: Path) -> None:
    records = read_metrics(one)
    for record in records:
        record["B"] = {"0": [*range(12)], "Q": [0.5] * 12}
    (one / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    row = lines(Text(page([one])), "objective-0-2")[0]
    assert row == {"round": 1, "v0": 11, "v1": 5.5, "v2": 0.5}


def test_a_diverged_run_is_shown(one: Path) -> None:
    records = read_metrics(one)
    records[-1]["R_estimate"]["L"] = float("nan")
    records[-2]["F"]["L"] = float("inf")
    (one / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert not re.search(
        r"\bNaN\b|\bInfinity\b", "".join(map(str, Text(page([one])).json.values()))
    )


def test_a_stopped_run_says_so(one: Path) -> None:
    summary = read_summary(one)
    config = summary.pop("config")
    (one / "summary.json").write_text(json.dumps(summary | {"status": "interrupted"}))
    assert config["rounds"] == 4
    html = page([one])
    assert "interrupted" in html
    assert "(stopped)" in html


def test_what_can_not_be_shown(one: Path, tmp_path: Path) -> None:
    (one / "assignments.csv").write_text("round,a\n1,x\n")
    with pytest.raises(RunFolderError, match=r"assignments\.csv"):
        page([one])
    (one / "assignments.csv").write_text("round,a\n1,0\n")
    with pytest.raises(RunFolderError, match=r"4 rounds .* 1 in assignments\.csv"):
        page([one])
    (one / "metrics.jsonl").write_text("")
    with pytest.raises(RunFolderError, match="nothing to show"):
        page([one])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"report .*page\.html"):
        write("x", tmp_path / "file" / "page.html")


def test_a_run_stopped_in_its_first_round_is_in_the_table_only(runs: Path, one: Path) -> None:
    summary = read_summary(one)
    del summary["config"]
    empty = dict.fromkeys(("accuracy", "macro_f1", "ari", "clusters"))
    (one / "summary.json").write_text(
        json.dumps(summary | empty | {"rounds": 0, "status": "interrupted"})
    )
    (one / "metrics.jsonl").write_text("")
    (one / "assignments.csv").write_text("round,0,1,2,3,4\n")
    text = Text(page([runs / "fedavg", one]))
    assert "wecfl (stopped)" in text.cells
    assert "plane-1" not in text.json


# The pictures


def test_ribbons_carry_every_client_once() -> None:
    rng = np.random.default_rng(0)
    labels, groups = rng.integers(0, 4, (5, 30)), rng.integers(0, 3, 30)
    picture = alluvial(labels, groups, list("12345"))
    counts = [int(ribbon.title.split()[0]) for ribbon in picture.ribbons]
    assert sum(counts) == 5 * 30
    moved = sum(c for c, ribbon in zip(counts, picture.ribbons, strict=True) if ribbon.moved)
    assert moved == (labels[1:] != labels[:-1]).sum()
    for x in {block.x for block in picture.blocks}:  # blocks of a column neither meet nor leave
        column = sorted((b.y, b.y + b.height) for b in picture.blocks if b.x == x)
        assert all(end < start for (_, end), (start, _) in pairwise(column))
        assert column[-1][1] <= picture.height + 1e-9


def test_telling_rounds_are_the_first_the_last_and_the_liveliest() -> None:
    labels = np.zeros((50, 6), int)
    labels[20:, :3] = 1
    labels[40:, 5] = 1
    assert telling_rounds(labels) == [0, 20, 40, 49]
    assert len(telling_rounds(np.random.default_rng(0).integers(0, 2, (50, 6)))) <= 8
    assert telling_rounds(labels[:1]) == [0]


def test_groups_are_apart_in_the_plane_and_nothing_moves_without_reason() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), 8)
    points = 5 * np.eye(3)[groups] + rng.normal(size=(24, 3))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    first, second, third = tsne_planes([distances] * 3)
    for plane in (first, second, third):
        centers = np.stack([plane[groups == g].mean(axis=0) for g in range(3)])
        nearest = np.linalg.norm(plane[:, None] - centers, axis=2).argmin(axis=1)
        assert (nearest == groups).all()
    assert np.linalg.norm(third - second) < 0.2 * np.linalg.norm(second)
    again = tsne_planes([distances] * 2)
    assert np.array_equal(again[1], second)


def test_no_client_hides_another() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), 20)
    plane = np.array([[0, 0], [9, 0], [0, 9], [5, 5]])[groups] + 1e-3 * rng.normal(size=(80, 2))
    first, second = spread_apart([plane, plane + 1e-3], 1500, 1000, gap=30)
    between = np.linalg.norm(first[:, None] - first, axis=2) + 99 * np.eye(80)
    assert between.min() > 20
    assert (first >= 0).all()
    assert (first <= [1500, 1000]).all()
    assert np.abs(first - second).max() < 10


def test_clients_that_coincide_can_be_drawn() -> None:
    for placed in spread_apart(tsne_planes([np.zeros((6, 6))] * 2), 1500, 1000, gap=30):
        assert np.isfinite(placed).all()


def test_the_page_says_why_there_are_so_many_clusters(tmp_path: Path) -> None:
    chosen = Config(
        clients=12, groups=3, clusters="auto", lr=0.05, rounds=5, steps=5, workers=1, seed=2
    )
    run_config(chosen, out=tmp_path / "auto")
    run_config(chosen.model_copy(update={"method": "cfl", "eps1": 9.0}), out=tmp_path / "cfl")
    html = page([tmp_path / "auto"])
    text = Text(html)
    records = read_metrics(tmp_path / "auto")
    told = read_summary(tmp_path / "auto")["choice"]
    assert (told["k"], told["settled"]) == (3, told["since"])
    assert len(records[told["since"] - 1]["sizes"]) == 3
    assert f"3 groups, found by round {told['since']}" in html
    for number, name in enumerate(("loss", "silhouette")):
        drawn = lines(text, f"choice-0-{number}")
        assert [row["round"] for row in drawn] == [1, 2, 3, 4, 5, 6]
        curve = records[0]["notes"][name]
        known = [(row["v0"], each) for row, each in zip(drawn, curve, strict=True) if each]
        assert [value for value, _ in known] == [pytest.approx(each, rel=1e-5) for _, each in known]
    run_config(chosen.model_copy(update={"criterion": "both"}), out=tmp_path / "both")
    assert "K = 3 chosen in round 1" in page([tmp_path / "both"])
    norms = lines(Text(page([tmp_path / "cfl"])), "choice-0-1")
    assert norms[0]["v0"] > 0


def named_classes(path: Path) -> Path:
    """A finished run of clients whose classes and names are texts, in `path`."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(20, 3)).astype(np.float32) for _ in range(3)]
    ys = [np.where(x[:, 0] > 0, "benign", "<b>ill") for x in xs]
    run_flat(Federation.from_arrays(xs, ys), methods.wecfl(k=2), out=path, **QUICK)
    return path


def test_classes_are_called_by_their_names(tmp_path: Path) -> None:
    html = page([named_classes(tmp_path / "run")])
    bars = re.findall(r'<span title="class ([^:]+): [^"]+">.*?<b>([^<]+)</b>', html)
    assert {tuple(map(unescape, names)) for names in bars} == {("benign",) * 2, ("<b>ill",) * 2}


def test_classes_of_another_run_are_refused(tmp_path: Path) -> None:
    file = named_classes(tmp_path / "run") / "pipeline.json"
    written = json.loads(file.read_text("utf-8"))
    written["classes"].append("a third")
    file.write_text(json.dumps(written), "utf-8")
    with pytest.raises(RunFolderError, match="do not belong together"):
        page([tmp_path / "run"])


@pytest.mark.parametrize("spec", [
    line_chart({"a": [0.5, None], "b": [None, None]}, [1, 2], percent=True, best=1.0),
    line_chart({"a": [1.0, 2e5]}, [1, 40], over="K"),
    line_chart({}, []),
    area_chart({"a": [1, 2], "b": [3, 4]}, [1, 2]),
    area_chart({"a": [1]}, [1]),
])  # fmt: skip
def test_charts_of_lines_are_by_the_schema_of_vega_lite(spec: Spec) -> None:
    alt.LayerChart.from_dict(json.loads(json.dumps(spec)))
    spec["layer"][-1]["mark"]["colour"] = "red"
    with pytest.raises(ValidationError):
        alt.LayerChart.from_dict(json.loads(json.dumps(spec)))


def test_axes_of_few_rounds_have_no_ticks_between_them(runs: Path) -> None:
    spec = Text(page([runs / "wecfl"])).json["convergence-0"]
    axis = spec["encoding"]["x"]["axis"]
    assert (axis["values"], axis["format"]) == ([1, 2, 3, 4], "d")
