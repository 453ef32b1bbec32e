"""The documentation is true: commands parse, examples run, keys and symbols are explained."""

import doctest
import inspect
import re
import shlex
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest

import wecfl
from wecfl import bilevel, metrics
from wecfl.channel import attacks
from wecfl.cli import app
from wecfl.config import Config
from wecfl.core import rounds
from wecfl.data import client_rows, datasets, federation, partition, samples, source
from wecfl.methods import METHODS
from wecfl.runs.record import (
    CLUSTERING_KEYS,
    CONDITION_KEYS,
    DIAGNOSTIC_KEYS,
    DRIFT_KEYS,
    FLEET_KEYS,
    RECORD_KEYS,
    SCHEDULE_KEYS,
)

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMPONENTS = [
    import_module(module.name) for module in walk_packages(bilevel.__path__, "wecfl.bilevel.")
]
MODULES = [
    *COMPONENTS, attacks, metrics, rounds, wecfl.methods, wecfl.models, samples, datasets,
    federation, partition, client_rows, source,
]  # fmt: skip
MAX_WORDS = {"results.md": 2000}
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in [wecfl, *MODULES]
    for name in module.__all__
}
WITHOUT_EXAMPLE = {
    "batch_gradients", "hessian_products", "ClusterLosses", "Gradients", "Risk", "Score",
    "check", "confusion", "digest", "gradients", "centers_and_priors", "common_model",
    "check_effort", "dual_offset", "learn", "learn_effort", "learn_gradients", "mean_gradients",
    "losses", "offset", "register", "risk", "served_tallies", "tallies",
    "known_masks", "learn_masks", "logistic_bound", "own_prototypes",
    "Array", "Criterion", "Engine", "Kind", "Linkage", "Metric", "Module", "NamedArray", "Observer",
    "Package", "Partition", "Recluster", "Source", "Telling", "WatchedBy",
    "Choice", "Seen", "Watched",
}  # fmt: skip


def commands() -> list[str]:
    found = set()
    for page in PAGES:
        for block in re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                if line.startswith("wecfl "):
                    found.add(line)
    return sorted(found)


@pytest.mark.parametrize("command", commands())
def test_commands_in_the_documentation_parse(command: str) -> None:
    tokens = shlex.split(command, comments=True)[1:]
    app.parse_args(tokens, exit_on_error=False, print_error=False)


EXAMPLES = {
    page: re.findall(r"```pycon\n(.*?)```", page.read_text("utf-8"), re.S) for page in PAGES
}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if EXAMPLES[page]], ids=lambda page: str(page.stem)
)
def test_examples_in_the_documentation_are_true(page: Path) -> None:
    text = "\n".join(EXAMPLES[page])
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0


def test_every_method_has_a_page_with_the_same_questions_answered() -> None:
    for name in METHODS:
        page = ROOT / "docs" / "methods" / f"{name.replace('+', '-plus')}.md"
        text = page.read_text(encoding="utf-8")
        for part in (
            "**Idea.**",
            "## The bi-level reading",
            "eviations",
            "## Results",
            "## Command",
        ):
            assert part in text, f"{page.name}: {part}"
        assert f"wecfl run --method {name} " in text


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_pages_can_be_read_to_their_end() -> None:
    """Findings first; evidence that takes longer has a page in docs/evidence/ or docs/results/."""
    for page in PAGES:
        words = len(page.read_text(encoding="utf-8").split())
        if page.parent != ROOT / "docs" / "results":
            assert words < MAX_WORDS.get(page.name, 2500), f"{page.name}: {words} words"


def test_every_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in sorted(folder.glob("0*.md")) if page.name not in listed] == []


def test_cells_of_tables_are_not_cut_by_bars() -> None:
    """A `|` inside of a cell is written with a backslash: else the row has a cell too many."""
    for page in PAGES:
        text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
        for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
            bars = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
            assert len(set(bars)) == 1, f"{page.name}: {table.splitlines()[bars.index(max(bars))]}"


def test_nothing_is_left_to_fill_in() -> None:
    for page in PAGES:
        assert "@@" not in page.read_text(encoding="utf-8"), page.name


def test_every_key_of_the_metrics_is_documented() -> None:
    page = (ROOT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    known = RECORD_KEYS | DIAGNOSTIC_KEYS | CONDITION_KEYS | CLUSTERING_KEYS | SCHEDULE_KEYS
    known |= DRIFT_KEYS | FLEET_KEYS
    for key in known:
        assert f"| `{key}` |" in page


def test_every_choice_has_a_description() -> None:
    for name, field in Config.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize("name", [name for name, value in PUBLIC.items() if callable(value)])
def test_public_symbols_have_a_docstring_with_an_example(name: str) -> None:
    symbol, short = PUBLIC[name], name.rpartition(".")[2]
    doc = inspect.getdoc(symbol) or ""
    if short in WITHOUT_EXAMPLE:
        return
    assert doc, name
    module = inspect.getmodule(symbol)
    inside = [inspect.getdoc(member) or "" for _, member in inspect.getmembers(symbol, callable)]
    shown = f"{short}(" in (module.__doc__ or "") if module else False  # rounds.py shows them all
    assert shown or any(">>>" in text for text in [doc, *inside]), f"{name} has no doctest"
