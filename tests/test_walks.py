"""The two walks of docs/architecture.md lead through the code as it is."""

import ast
import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import wecfl
from wecfl.cli import app

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCE = Path(wecfl.__file__).parent
QUESTIONS = 10


def rows(section: str) -> list[tuple[str, str]]:
    """The files and the names of a section's tables."""
    text = PAGE[PAGE.index(f"\n## {section}") + 1 :]
    text = text.partition("\n## ")[0]
    return re.findall(r"^\|[^|]*\| `([^`|]+)` \| `([^`|]+)` \|", text, re.M)


WAY, PLACES = rows("The way of a run"), rows("Where do I put …?")


def defined(file: Path) -> set[str]:
    """What a module defines: functions, classes with their methods, names that are assigned."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef():
                names.add(node.name)
            case ast.ClassDef():
                inside = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
                names |= {node.name, *(f"{node.name}.{name}" for name in inside)}
            case ast.Assign():
                names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


@pytest.mark.parametrize(("file", "name"), sorted({*WAY, *PLACES}))
def test_every_file_and_name_exists(file: str, name: str) -> None:
    assert name in defined(SOURCE / file)


def test_paths_in_the_text_exist() -> None:
    """Those that stand beside the tables' own: `from_config.py`, `tests/twins.py`, `bilevel/`."""
    root = Path(__file__).parents[1]
    for path in re.findall(r"`([\w/]+(?:\.py|\.md|/))`", PAGE):
        assert (SOURCE / path).exists() or (root / path).exists(), path


def test_files_in_the_picture_exist() -> None:
    picture = Path(__file__).parents[1] / "docs" / "figures" / "architecture.svg"
    names = re.findall(r"[\w/]+\.py", picture.read_text(encoding="utf-8"))
    for name in names:
        assert (SOURCE / name).exists() or (SOURCE / "core" / name).exists(), name
    assert names


def test_a_newcomer_has_ten_questions() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+)\. .*\?", PAGE, re.M)]
    assert numbers == list(range(1, QUESTIONS + 1))


def test_a_run_takes_this_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    called: list[tuple[str, str]] = []
    stations = set(WAY)

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            hop = (Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_qualname)
            if hop in stations:
                called.append(hop)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        small = "--rounds 1 --clients 10 --groups 2 --clusters 2 --out folder"
        app(["run", *small.split()], result_action="return_value", exit_on_error=False)
        app(["report", "folder"], result_action="return_value", exit_on_error=False)
    finally:
        sys.setprofile(before)
    assert stations == set(called), "never called"
    rest = iter(called)
    for number, hop in enumerate(WAY, 1):
        assert hop in rest, f"hop {number}, {hop}, is not called after the one before it"


def test_each_hop_is_told_once() -> None:
    assert len(WAY) == len(set(WAY))
