"""Reads report pages."""

import json
from html.parser import HTMLParser
from typing import Any


class Text(HTMLParser):
    """Cells of tables, headings and JSON of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.heads: list[str] = []
        self.json: dict[str, Any] = {}
        self.tags: list[str] = []
        self._open = ""
        self._id = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open, self._id = tag, dict(attrs).get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("td", "th"):
            self.cells.append(data)
        elif self._open in ("h1", "h2", "h3", "h4"):
            self.heads.append(data)
        elif self._open == "script" and self._id:
            self.json[self._id] = json.loads(data)


def colors(text: Text, name: str) -> list[str]:
    """Of the lines of a chart."""
    marks = [layer["mark"] for layer in text.json[name]["layer"]]
    return [mark["color"] for mark in marks if mark["type"] == "line"]


def lines(text: Text, name: str) -> list[dict[str, Any]]:
    """What a chart of lines draws."""
    return [dict(row) for row in text.json[name]["data"]["values"]]
