"""The rules of the house: names that say what they hold, files short enough to read, tests that
bend. What is wrong is listed whole, each with its place.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
MAX_LINES = 400
MAX_FUNCTION_LINES = 70
"""Of a function's body, without its docstring."""
MAX_MATCH_LETTERS = 60
MAX_COMPARED_LETTERS = 60
"""Of prose that a test compares with an output; rows of tables and commands are no prose."""
MIN_PROSE_WORDS = 10

RIDDLES = {
    "AGAIN", "BEST", "BIG", "CLEAR", "CLOSE", "COUNTED", "CROWDED", "DETAILED", "DRAWN",
    "ELSEWHERE", "EVALUATING", "EXACT", "FAR", "FEW", "FEWEST", "FIRST", "FOUND", "FREE",
    "GROWING", "JUDGED", "KEPT", "KNOWN", "LARGE", "LARGEST", "LAST", "LATE", "LEAST", "LONG",
    "LONGEST", "LOOK", "MANY", "MAX", "MEASURED", "MIN", "MOST", "NAMED", "NEAR", "NEEDED",
    "NEVER", "NOT", "NOTHING", "OFTEN", "ONCE", "REGISTERED", "REQUIRES", "RULED", "RUN", "SHIPPED",
    "SHORT", "SHORTEST", "SHOWN", "SMALL", "SMALLEST", "STAGGERED", "TELLING", "TOLD", "TRAINING",
    "WORST",
}  # fmt: skip
"""Words that are no nouns: a constant that has no other word says nothing."""

COMPILED = {"_native"}
"""Private by name, but a module: the compiled kernels, which have tests of their own."""


def parsed(folder: Path) -> dict[str, ast.Module]:
    """The files below a folder by their place in the repository."""
    return {
        str(file.relative_to(TESTS.parent)): ast.parse(file.read_text(encoding="utf-8"))
        for file in sorted(folder.rglob("*.py"))
    }


@pytest.fixture(scope="module")
def source() -> dict[str, ast.Module]:
    return parsed(SOURCE)


@pytest.fixture(scope="module")
def tests() -> dict[str, ast.Module]:
    return parsed(TESTS)


def nothing(found: list[str]) -> None:
    """An empty list, or all of it."""
    assert not found, "\n".join(["", *found])


def constants(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names in capitals that a module gives to something, and the line of each."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            if isinstance(target, ast.Name) and target.id.isupper():
                yield target.id, node.lineno


def calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    """The calls of methods of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == name:
            yield node


def from_wecfl(tree: ast.Module) -> set[str]:
    """The names that a test has for modules and values of `wecfl`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wecfl":
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            ours = [alias for alias in node.names if alias.name.split(".")[0] == "wecfl"]
            names |= {alias.asname or "wecfl" for alias in ours}
    return names


def test_no_module_is_too_long_to_be_read() -> None:
    nothing(
        [
            f"{file.relative_to(TESTS.parent)} has {lines} lines"
            for file in sorted(SOURCE.rglob("*.py"))
            if (lines := len(file.read_text(encoding="utf-8").splitlines())) > MAX_LINES
        ]
    )


def test_no_function_is_too_long_to_be_read(source: dict[str, ast.Module]) -> None:
    found = []
    for file, tree in source.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first, last = node.body[ast.get_docstring(node) is not None :][:1], node.body[-1]
                lines = (last.end_lineno or 0) - first[0].lineno + 1 if first else 0
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{file}:{node.lineno} {node.name} has {lines} lines")
    nothing(found)


def test_no_two_classes_have_one_name(source: dict[str, ast.Module]) -> None:
    """Nor one name with and one without an underscore."""
    places = defaultdict(list)
    for file, tree in source.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name.strip("_")].append(file)
    nothing([f"{name}: {', '.join(files)}" for name, files in places.items() if len(files) > 1])


def test_no_two_constants_have_one_name(source: dict[str, ast.Module]) -> None:
    places = defaultdict(list)
    for file, tree in source.items():
        for name, _ in constants(tree):
            places[name.strip("_")].append(file)
    nothing([f"{name}: {', '.join(files)}" for name, files in places.items() if len(files) > 1])


def test_constants_have_a_noun(source: dict[str, ast.Module]) -> None:
    nothing(
        [
            f"{file}:{line} {name}"
            for file, tree in source.items()
            for name, line in constants(tree)
            if set(name.strip("_").split("_")) <= RIDDLES
        ]
    )


def defined(tree: ast.Module) -> set[str]:
    """The names that a module defines or imports."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.ImportFrom() | ast.Import():
                names |= {alias.asname or alias.name for alias in node.names}
    return names


def exists(dotted: str, source: dict[str, ast.Module]) -> bool:
    """Whether there is such a module of `wecfl`, or such a name in one of its modules."""
    parts = dotted.split(".")[1:]
    for length in range(len(parts), -1, -1):
        place = "/".join(["src", "wecfl", *parts[:length]])
        tree = source.get(f"{place}.py") or source.get(f"{place}/__init__.py")
        if tree:
            return not parts[length:] or parts[length] in defined(tree)
    return False


def test_names_in_docstrings_and_pages_exist(source: dict[str, ast.Module]) -> None:
    """`wecfl.core.rounds.iterate` in backticks: whoever reads it looks it up."""
    root = TESTS.parent
    rooms = ("src", "examples", "benchmarks", "tests")
    files = [file for room in rooms for file in sorted((root / room).rglob("*.py"))]
    files += sorted((root / "docs").rglob("*.md"))
    nothing(
        [
            f"{file.relative_to(root)} {name}"
            for file in [*files, root / "README.md", root / "CONTRIBUTING.md"]
            for name in re.findall(
                r"`(wecfl(?:\.(?!py`)\w+)+)[`(]", file.read_text(encoding="utf-8")
            )
            if not exists(name, source)
        ]
    )


def test_files_in_docstrings_and_comments_exist() -> None:
    """`docs/theory.md`, `benchmarks/shortcuts.py`, `native/loss.h`: whoever reads it opens it."""
    root = TESTS.parent
    rooms = ("src", "benchmarks", "examples")
    files = [file for room in rooms for file in (root / room).rglob("*.py")]
    files += [file for file in (root / "native").iterdir() if file.suffix in (".h", ".cpp")]
    place = re.compile(r"\b(?:docs|benchmarks|tests|examples|native)/[\w/.-]+\.(?:md|py|h|cpp)\b")
    nothing(
        [
            f"{file.relative_to(root)} {name}"
            for file in sorted(files)
            for name in place.findall(file.read_text(encoding="utf-8"))
            if not (root / name).exists()
        ]
    )


def text_of(pattern: ast.expr) -> str:
    """The constant parts of a text."""
    parts = [node.value for node in ast.walk(pattern) if isinstance(node, ast.Constant)]
    return "".join(part for part in parts if isinstance(part, str))


def test_tests_pin_no_whole_sentences(tests: dict[str, ast.Module]) -> None:
    """Of an error: its type, the key fact, and that it is one line."""
    nothing(
        [
            f"{file}:{node.lineno} {ast.unparse(keyword.value)}"
            for file, tree in tests.items()
            for node in calls(tree, "raises")
            for keyword in node.keywords
            if keyword.arg == "match" and len(text_of(keyword.value)) > MAX_MATCH_LETTERS
        ]
    )


def test_tests_compare_no_whole_sentences(tests: dict[str, ast.Module]) -> None:
    """`assert "a key fact" in output`, not the sentence around it."""
    compared = [
        (f"{file}:{node.lineno}", text)
        for file, tree in tests.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant | ast.JoinedStr) and (text := text_of(side))
    ]
    nothing(
        [
            f"{place} {text}"
            for place, text in compared
            if len(text) > MAX_COMPARED_LETTERS
            and len(re.findall(r"[A-Za-z]+", text)) >= MIN_PROSE_WORDS
        ]
    )


def test_tests_set_parameters_and_no_constants(tests: dict[str, ast.Module]) -> None:
    """What a test has to change about `wecfl` is a parameter of it."""

    def patched(call: ast.Call, ours: set[str]) -> str:
        """The name that is set, if it is one of `wecfl`."""
        match call.args:
            case [ast.Constant(value=str(dotted)), _]:
                return dotted if dotted.startswith("wecfl.") else ""
            case [target, ast.Constant(value=str(name)), _]:
                used = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
                return name if used & ours or "'wecfl." in ast.unparse(target) else ""
        return ""

    nothing(
        [
            f"{file}:{call.lineno} {name}"
            for file, tree in tests.items()
            for call in calls(tree, "setattr")
            if (name := patched(call, from_wecfl(tree))).rpartition(".")[2].isupper()
        ]
    )


def test_tests_go_through_the_public_surface(tests: dict[str, ast.Module]) -> None:
    others = ("self", "cls", "os", "module(")  # the last: of the benchmarks
    found = []
    for file, tree in tests.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "wecfl":
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and not ast.unparse(node.value).startswith(others):
                names = [node.attr]
            else:
                continue
            private = [name for name in names if name.startswith("_") and name[1:2] != "_"]
            found += [f"{file}:{node.lineno} {name}" for name in private if name not in COMPILED]
    nothing(found)
