from __future__ import annotations

import struct
import zlib
from base64 import b64decode
from collections import Counter
from itertools import pairwise
from pathlib import Path

import altair as alt
import numpy as np
import pytest

from wecfl.core.types import Int
from wecfl.data.federation import Federation
from wecfl.errors import ConfigError
from wecfl.report.figures.files import save
from wecfl.report.figures.partition import bars
from wecfl.report.figures.samples import sample_panel

TABLE: Int = np.array([[3, 0, 2, 5, 1], [1, 4, 0, 0, 2]])
GROUPS: Int = np.array([0, 0, 1, 1, 1])


def rows(chart: alt.ConcatChart) -> list[dict[str, float | str]]:
    """What the only panel draws."""
    [values] = chart.to_dict()["datasets"].values()
    return list(values)


def test_the_bars_hold_the_counts() -> None:
    drawn: Int = np.zeros_like(TABLE)
    lengths: Counter[int] = Counter()
    for row in rows(bars([("grouped", TABLE, GROUPS)])):
        client = int(row["client"])
        drawn[int(row["class"]), client] = row["samples"]
        assert row["group"] == GROUPS[client]
        assert float(row["right"]) - float(row["left"]) == row["samples"]
        lengths[client] = max(lengths[client], int(row["right"]))
    assert np.array_equal(drawn, TABLE)
    assert [lengths[i] for i in range(5)] == TABLE.sum(axis=0).tolist()


@pytest.mark.parametrize("groups", [None, GROUPS, GROUPS[::-1]])
def test_bars_do_not_overlap_and_stay_in_their_lane(groups: Int | None) -> None:
    spans: dict[int, tuple[float, float]] = {}
    for row in rows(bars([("", TABLE, groups)])):
        spans[int(row["client"])] = float(row["top"]), float(row["bottom"])
    assert len(spans) == 5
    for client, (top, bottom) in spans.items():
        lane = client if groups is None else int(groups[client])
        assert lane <= top < bottom <= lane + 1
    ends = sorted(spans.values())
    assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(ends))


def test_panels_stand_two_in_a_row_with_titles_and_class_names() -> None:
    titles = ["a", "b", "c", "d"]
    spec = bars([(t, TABLE, None) for t in titles], names=["cat", "dog"]).to_dict()
    assert spec["columns"] == 2
    assert [panel["title"] for panel in spec["concat"]] == titles
    for panel in spec["concat"]:
        assert panel["encoding"]["color"]["scale"]["domain"] == ["cat", "dog"]


def test_groups_name_the_axis() -> None:
    plain, grouped = bars([("", TABLE, None), ("", TABLE, GROUPS)]).to_dict()["concat"]
    assert plain["encoding"]["y"]["axis"]["title"] == "client"
    assert grouped["encoding"]["y"]["axis"]["title"] == "group"
    assert grouped["encoding"]["y"]["axis"]["values"] == [0.5, 1.5]


@pytest.mark.parametrize(
    ("suffix", "head"),
    [(".png", b"\x89PNG"), (".svg", b"<svg"), (".pdf", b"%PDF"), (".html", b"<!DOCTYPE html>")],
)
def test_a_chart_is_saved_as_its_suffix_says(tmp_path: Path, suffix: str, head: bytes) -> None:
    path = save(bars([("", TABLE, GROUPS)]), tmp_path / "new" / f"chart{suffix}")
    content = path.read_bytes()
    assert content.lstrip().startswith(head)
    assert len(content) > 1000


def test_html_works_offline(tmp_path: Path) -> None:
    page = save(bars([("", TABLE, None)]), tmp_path / "chart.html").read_text(encoding="utf-8")
    assert "cdn.jsdelivr.net" not in page


def test_two_hundred_clients_fit_the_page(tmp_path: Path) -> None:
    table = np.random.default_rng(0).integers(0, 60, (10, 200))
    groups = np.arange(200) // 20
    path = save(bars([("client-wise", table, None), ("groups", table, groups)]), tmp_path / "a.png")
    width = int.from_bytes(path.read_bytes()[16:20])
    assert 1000 < width <= 1600


@pytest.mark.parametrize("name", ["chart.gif", "chart", "png"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.png, .*\.html"):
        save(bars([("", TABLE, None)]), tmp_path / name)
    assert not list(tmp_path.iterdir())


def decoded(url: str) -> Int:
    """The grey pixels of a PNG, read by hand: lines of a zero and the pixels."""
    head, _, text = url.partition(",")
    assert head == "data:image/png;base64"
    png = b64decode(text)
    width, height = struct.unpack(">II", png[16:24])
    length = struct.unpack(">I", png[33:37])[0]
    lines = np.frombuffer(zlib.decompress(png[41 : 41 + length]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1 : width + 1].astype(np.int64)


def test_samples_are_shown_as_each_group_sees_and_names_them(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 40 * 12).reshape(40, 1, 3, 4).astype(np.float32)
    y = np.arange(40) % 2
    fed = Federation.from_arrays([x, x], [y, 1 - y], groups=[0, 1])
    chart = bars([], beside=[sample_panel(fed)])
    cells = {(row["group"], row["label"]): str(row["url"]) for row in rows(chart)}
    assert set(cells) == {("0", 0), ("0", 1), ("1", 0), ("1", 1)}
    for (group, label), url in cells.items():
        held = fed.train[int(group)]
        image = fed.x[held[np.argmax(fed.y[held] == label)], 0]
        np.testing.assert_array_equal(decoded(url), np.round((image + 1) * 127.5))
    assert save(chart, tmp_path / "a.png").stat().st_size > 1000


def test_samples_of_a_table_are_points() -> None:
    x = np.arange(1.0, 21).reshape(10, 2)
    fed = Federation.from_arrays([x, -x], [x[:, 0] * 3, x[:, 0]], test=0.1)
    points = rows(bars([], beside=[sample_panel(fed)]))
    assert {(row["client"], row["up"] == 3 * float(row["across"])) for row in points} == {
        ("0", True), ("1", False),
    }  # fmt: skip
    labelled = Federation.from_arrays([x], [np.arange(10) % 2])
    assert {float(row["up"]) - float(row["across"]) for row in
            rows(bars([], beside=[sample_panel(labelled)]))} == {1.0}  # fmt: skip
