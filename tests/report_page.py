# SPDX-License-Identifier: Apache-2.0
"""A report read back from its HTML: the figures' JSON, the tables' cells, every element."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.loadtest_records import SyntheticRun
from tritonctl.loadtest.analysis.summarise import summarise
from tritonctl.loadtest.analysis.summary import write_summary

Figure = dict[str, Any]


def finished(run: SyntheticRun, folder: Path) -> Path:
    """The run's folder with its summary, as `tritonctl loadtest run` leaves it."""
    run.write(folder)
    write_summary(folder, summarise(folder))
    return folder


@dataclass
class Element:
    """A start tag and the text right inside it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Reader(HTMLParser):
    """Every element in order, and the table rows by caption."""

    elements: list[Element] = field(default_factory=list)
    tables: dict[str, list[list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Entities become characters, except in scripts, where HTML has none."""
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []
        self._rows: list[list[str]] = []

    @classmethod
    def of(cls, page: str) -> Reader:
        """Read a page."""
        reader = cls()
        reader.feed(page)
        reader.close()
        return reader

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element begins."""
        element = Element(tag, dict(attrs))
        self.elements.append(element)
        if tag not in ("meta", "link", "br"):
            self._open.append(element)
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """An element ends; what was forgotten inside it too."""
        if tag == "caption":
            self.tables[self._open[-1].text] = self._rows
        while self._open and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Text, also of a badge or an interval inside a cell."""
        if not self._open:
            return
        self._open[-1].text += data
        if self._rows and self._rows[-1] and any(e.tag in ("td", "th") for e in self._open):
            self._rows[-1][-1] += f" {data}" if self._rows[-1][-1] else data

    def all(self, tag: str) -> list[Element]:
        """Elements with that tag."""
        return [element for element in self.elements if element.tag == tag]

    def by_id(self, name: str) -> Element:
        """The element with that id."""
        [found] = [e for e in self.elements if e.attributes.get("id") == name]
        return found

    def figures(self) -> dict[str, Figure]:
        """The charts' data by id."""
        return {figure["id"]: figure for figure in json.loads(self.by_id("figures").text)}

    def table(self, beginning: str) -> list[list[str]]:
        """The rows, headings first, of the table whose caption begins so."""
        [rows] = [rows for caption, rows in self.tables.items() if caption.startswith(beginning)]
        return rows


def series_of(figure: Figure, name: str, row: int = 0) -> dict[str, Any]:
    """The one series of that name in a row."""
    [found] = [s for s in figure["series"] if s["name"] == name and s.get("row", 0) == row]
    return dict(found)
