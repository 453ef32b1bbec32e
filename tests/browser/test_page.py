"""The report page in a real browser: it draws, moves, stays inside itself and harms nobody."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import run_flat
from wecfl import Federation, methods
from wecfl.report.page.html import page, write
from wecfl.report.tables.results import result_cells, results

sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no chromium found; `make browser` installs it", allow_module_level=True)

NAMES = (
    "<script>document.title = 'bad'</script>",
    "<img src=x onerror=\"document.title = 'bad'\">",
)


@pytest.fixture(scope="module")
def folders(fed: Federation, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs of clients, some of which have malicious names."""
    path = tmp_path_factory.mktemp("runs")
    names = (*NAMES, "2", "3", "4")
    named = Federation(fed.x, fed.y, fed.train, fed.test, fed.classes, fed.keys, names, fed.groups)
    for method in (methods.wecfl(k=2), methods.ifca(k=2)):
        run_flat(named, method, model="logistic", rounds=6, steps=3, lr=0.05, workers=1,
                  objectives=True, out=path / method.name)  # fmt: skip
    return [path / "wecfl", path / "ifca"]


@pytest.fixture(scope="module")
def file(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(page(folders), tmp_path_factory.mktemp("pages") / "page.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM)
        yield opened
        opened.close()


FOLDED = "xpath=ancestor::details[not(@open)]"


class Visit:
    """The page, opened and looked at from top to bottom, and what it did meanwhile."""

    def __init__(self, browser: Any, file: Path, **choices: Any) -> None:
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.context = browser.new_context(**choices)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        for link in self.page.locator(".overview a").all():
            link.click()
        for element in self.page.locator(".chart").all():
            if element.locator(FOLDED).count() == 0:
                element.scroll_into_view_if_needed()
                element.locator("svg, canvas").first.wait_for()

    def color(self) -> list[int]:
        found = self.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return [int(number) for number in re.findall(r"\d+", found)]


@pytest.fixture(scope="module")
def visit(browser: Any, file: Path) -> Iterator[Visit]:
    opened = Visit(browser, file, viewport={"width": 1100, "height": 900}, reduced_motion="reduce")
    yield opened
    opened.context.close()


def test_it_draws_everything_without_a_complaint(visit: Visit) -> None:
    assert visit.troubles == []
    charts = visit.page.locator(".chart:visible")
    drawn, maps = charts.locator("svg.marks").count(), charts.locator("canvas.marks").count()
    assert drawn == 3 + 2 * (1 + 2)
    assert maps == visit.page.locator(".heat").count() == charts.count() - drawn
    assert maps >= 3  # IFCA may have found one cluster alone
    assert visit.page.locator(".alluvial rect").count() > 4
    assert visit.page.locator(".card").count() >= 3
    for canvas in visit.page.locator("canvas").all():
        painted = canvas.evaluate(
            "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size"
        )
        assert painted > 3


def test_several_runs_are_folded_until_one_asks_for_them(browser: Any, file: Path) -> None:
    tab = browser.new_page()
    tab.goto(file.as_uri())
    cards, runs = tab.locator(".overview a"), tab.locator("details.run")
    assert cards.count() == runs.count() == 2
    assert cards.first.locator("circle").count() == 5  # a dot for each client
    assert tab.locator(".plane:visible").count() == 0
    cards.last.click()
    tab.locator("#run-1 .plane svg").first.wait_for()
    assert tab.locator(".plane:visible").count() == 1
    tab.goto("about:blank")
    tab.goto(f"{file.as_uri()}#run-0")  # a link to one run
    assert tab.locator(".plane:visible").count() == 1
    tab.close()


def test_what_nobody_scrolled_to_is_drawn_too(browser: Any, file: Path) -> None:
    """It may be printed, and then nothing is folded."""
    tab = browser.new_page()
    tab.goto(file.as_uri())
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    for element in tab.locator(".chart").all():
        if element.locator(FOLDED).count() == 0:
            element.locator("svg, canvas").first.wait_for()
    assert tab.locator(".plane svg.marks").count() == 2
    assert tab.evaluate("scrollY") == 0
    tab.close()


def test_nothing_leaves_the_page(visit: Visit, file: Path) -> None:
    assert {url for url in visit.requests if not url.startswith("data:")} == {file.as_uri()}
    forbidden = visit.page.evaluate(
        """() => new Promise(done => {
            addEventListener("securitypolicyviolation", event => done(event.effectiveDirective));
            fetch("http://127.0.0.1:9/").catch(() => setTimeout(() => done("tried"), 1000));
        })"""
    )
    assert forbidden == "connect-src"
    visit.troubles.clear()  # the refusal itself is reported


def test_the_table_holds_the_figures_of_the_runs(visit: Visit, folders: list[Path]) -> None:
    table = visit.page.locator("#results table")
    heads, rows = result_cells(results(folders))
    assert table.locator("thead th").all_inner_texts() == heads
    for line, row in zip(table.locator("tbody tr").all(), rows, strict=True):
        assert line.locator("th, td").all_inner_texts() == row


def dots(plane: Any) -> Any:
    """Where each client is drawn."""
    marks = plane.locator(".mark-symbol path").evaluate_all(
        "all => all.map(one => one.getAttribute('transform').match(/[-\\d.]+/g).map(Number))"
    )
    return np.array(marks)


def test_the_slider_moves_the_clients(visit: Visit) -> None:
    plane = visit.page.locator(".plane").first
    slider = plane.locator("input[type=range]")
    last, before = plane.locator(".say").inner_text(), dots(plane)
    assert before.shape == (5, 2)
    assert plane.locator(".round").inner_text() == "Round 6"
    slider.focus()
    slider.press("Home")  # with the keyboard
    assert plane.locator(".round").inner_text() == "Round 1"
    assert plane.locator(".say").inner_text() != last
    assert np.abs(dots(plane) - before).max() > 1
    slider.press("End")
    assert np.abs(dots(plane) - before).max() < 1e-6


def test_labels_stand_above_the_dots(visit: Visit) -> None:
    plane = visit.page.locator(".plane").first
    boxes = [
        [mark.bounding_box() for mark in plane.locator(f".mark-{kind} {part}").all()]
        for kind, part in (("symbol", "path"), ("text", "text"))
    ]
    for text in boxes[1]:
        below = [dot for dot in boxes[0] if abs(dot["x"] - text["x"]) < dot["width"]]
        assert all(text["y"] + 0.8 * text["height"] <= dot["y"] + 1 for dot in below)


def test_colours_follow_clusters_or_hidden_groups(visit: Visit) -> None:
    plane = visit.page.locator(".plane").last  # IFCA: its clusters need not be the groups

    def fills() -> list[str]:
        return [
            str(mark.get_attribute("fill")) for mark in plane.locator(".mark-symbol path").all()
        ]

    plane.get_by_role("radio", name="hidden group").check()
    assert fills() == [f"var(--c{g})" for g in (0, 1, 0, 1, 0)]
    plane.get_by_role("radio", name="cluster").check()
    assert set(fills()) <= {"var(--c0)", "var(--c1)"}


def test_it_plays(browser: Any, file: Path) -> None:
    opened = Visit(browser, file, viewport={"width": 1100, "height": 900})
    plane = opened.page.locator(".plane").first
    plane.get_by_role("button", name="Play").click()
    plane.locator(".round", has_text="Round 2").wait_for(timeout=10_000)
    plane.get_by_role("button", name="Pause").click()
    assert plane.get_by_role("button", name="Play").count() == 1
    assert opened.troubles == []
    opened.context.close()


def test_curves_tell_their_values_under_the_pointer(visit: Visit) -> None:
    chart = visit.page.locator("#convergence .chart").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg.marks").hover(position={"x": 150, "y": 80})
    tip = visit.page.locator("#vg-tooltip-element.visible")
    tip.wait_for()
    assert re.search(r"round\s+\d\s+wecfl K=2\s+\d+\.\d%\s+ifca K=2\s+\d+\.\d%", tip.inner_text())


def test_heat_maps_can_be_read_with_the_keyboard(visit: Visit) -> None:
    heat = visit.page.locator(".heat").first
    heat.locator(".chart").focus()
    heat.locator(".chart").press("ArrowRight")
    assert re.fullmatch(r"cluster 0 · cluster 1: -?\d\.\d{4}", heat.locator(".say").inner_text())


def test_names_are_shown_and_not_run(visit: Visit) -> None:
    for summary in visit.page.get_by_text("Members", exact=True).all():
        summary.click()
    shown = visit.page.locator(".card tbody th").all_inner_texts()
    assert set(NAMES) <= set(shown)
    assert "bad" not in visit.page.title()
    assert visit.page.locator("img").count() == 0


def test_a_phone_needs_no_sideways_scrolling(browser: Any, file: Path) -> None:
    opened = Visit(browser, file, viewport={"width": 360, "height": 740})
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 360
    table = opened.page.locator("#results .wide")  # no column of the result is cut off
    assert table.evaluate("it => it.scrollWidth <= it.clientWidth")
    assert opened.troubles == []
    opened.context.close()


def test_no_column_of_the_members_is_cut_off(browser: Any, tmp_path: Path) -> None:
    """Cards are narrow, and names may be long."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(20, 3)).astype(np.float32) for _ in range(2)]
    named = Federation.from_arrays(
        xs, [x[:, 0] > 0 for x in xs], names=["The New York Hospital, NY", "b" * 40]
    )
    run_flat(named, methods.fedavg, model="logistic", rounds=1, lr=0.05, out=tmp_path / "run")
    file = write(page([tmp_path / "run"]), tmp_path / "page.html")
    for width in (1400, 400):
        tab = browser.new_page(viewport={"width": width, "height": 900})
        tab.goto(file.as_uri())
        tab.locator(".card summary").click()
        members = tab.locator(".card .wide")
        assert members.evaluate("box => box.scrollWidth - box.clientWidth") <= 0
        tab.close()


def test_dark_and_light_follow_the_reader(browser: Any, file: Path, visit: Visit) -> None:
    opened = Visit(browser, file, color_scheme="dark")
    assert max(opened.color()[:3]) < 60
    assert min(visit.color()[:3]) > 200
    label = opened.page.locator(".chart svg text").first
    light = label.evaluate("text => getComputedStyle(text).fill")
    assert min(int(number) for number in re.findall(r"\d+", light)[:3]) > 100
    assert opened.troubles == []
    opened.context.close()
