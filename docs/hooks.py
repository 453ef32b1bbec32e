"""What `make docs` adds to these pages: the texts of the root, the reference, the checks.

No text is kept twice: README.md is the home page, and the reference of the commands and of every
module is made from the code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from wecfl.cli import app

ROOT = Path(__file__).parents[1]
TEXTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the pages of whole folders into the navigation."""
    folder = Path(config.docs_dir)
    written = {str(path.relative_to(folder)) for path in folder.rglob("*.md")}
    written -= {page for page in written if config.exclude_docs.match_file(page)}
    pages = sorted(
        {*written, *_made()}, key=lambda page: (_is_inside(page), page.removesuffix(".md"))
    )
    config.nav = [_expanded(entry, pages) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for page, text in _made().items():
        files.append(File.generated(config, page, content=text))
    return files


class Doctests(griffe.Extension):
    """Markdown takes `>>>` for quotations and `::` for text: make both blocks of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring."""
        if obj.docstring:
            text = re.sub(r"(?m)^::\n\n", "", obj.docstring.value)
            text = re.sub(r"(?m)::$", ":", text)
            obj.docstring.value = re.sub(r"(?m)(^>>> .*(?:\n.+)*)", r"```pycon\n\1\n```", text)


@cache
def _made() -> dict[str, str]:
    """The pages that are not written here, by name."""
    package = griffe.load("wecfl", search_paths=[ROOT / "src"])
    assert isinstance(package, griffe.Module)
    if missing := [symbol.path for symbol in _public(package) if not symbol.docstring]:
        raise PluginError(f"undocumented public symbols: {', '.join(missing)}")
    return {**_texts(), **_reference(package), "commands.md": _commands()}


def _texts() -> dict[str, str]:
    """The texts of the root, with the links that lead to the same places from here."""
    moved = {rf"\]\({name}": f"]({page}" for name, page in TEXTS.items()} | {
        r"\]\(docs/": "](",
        r"\]\(src/wecfl/(\w+)(/\w+)?(\.py)?\)": r"](api/\1.md)",
    }
    pages = {}
    for name, page in TEXTS.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for old, new in moved.items():
            text = re.sub(old, new, text)
        pages[page] = text
    return pages


def _reference(package: griffe.Module) -> dict[str, str]:
    """One page for each module or package of modules, and one for what `import wecfl` gives."""
    pages = {}
    for name, module in _inside(package):
        if name != "cli":  # described by its commands
            first, *others = (f"::: {each.path}\n" for each in _modules(module))
            top = "    options: { heading_level: 1 }\n"
            head = f"---\ntitle: {module.path}\n---\n\n"
            pages[f"api/{name}.md"] = head + "\n".join([first + top, *others])
    lines = [
        f"| [`wecfl.{name}`][{member.canonical_path}] | {_line(member)} |"
        for name in package.exports or ()
        if (member := package.members[str(name)])
    ]
    head = "| `import wecfl` gives | |\n|---|---|\n"
    pages["api/index.md"] = "# API\n\n" + head + "\n".join(lines) + "\n"
    return pages


def _commands() -> str:
    """The commands with their flags; the page has its table of contents already."""
    text: str = app.generate_docs()
    text = re.sub(r"(?s)## Table of Contents.*?(?=\*\*Commands)", "", text)
    return text.replace("# wecfl\n", "# Commands\n", 1)


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """The module itself and those inside."""
    yield module
    for _, inside in _inside(module):
        yield from _modules(inside)


def _inside(module: griffe.Module) -> Iterator[tuple[str, griffe.Module]]:
    """The modules of a package: neither private nor just imported."""
    for name, member in sorted(module.modules.items()):
        if not name.startswith("_") and not member.is_alias:
            yield name, member


def _public(package: griffe.Module) -> Iterator[griffe.Object]:
    """Modules, what they export, and the public methods of exported classes."""
    for module in _modules(package):
        yield module
        for name in module.exports or ():
            member = module.members[str(name)]
            if not member.is_alias:
                yield member
            if not member.is_alias and member.is_class:
                inside = (each for name, each in member.members.items() if name[0] != "_")
                yield from (each for each in inside if not each.is_alias and each.is_function)


def _line(member: griffe.Object | griffe.Alias) -> str:
    """The first line of a docstring."""
    return member.docstring.value.splitlines()[0] if member.docstring else ""


def _is_inside(page: str) -> bool:
    """Whether a page is not its folder's own, which comes first."""
    return Path(page).name not in ("index.md", "README.md")


def _expanded(entry: Any, pages: list[str]) -> Any:
    """`methods/` or `API: api/` in the navigation as all pages of that folder."""
    if isinstance(entry, dict):
        return {name: _expanded(inside, pages) for name, inside in entry.items()}
    if isinstance(entry, list):
        return [_expanded(inside, pages) for inside in entry]
    if isinstance(entry, str) and entry.endswith("/"):
        return [page for page in pages if page.startswith(entry)]
    return entry
