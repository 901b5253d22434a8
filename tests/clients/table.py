# SPDX-License-Identifier: Apache-2.0
"""The table client × feature of docs/reference/clients.md: a column for each client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "clients.md"
BEGIN, END = "<!-- made by tests/clients -->\n", "<!-- end -->\n"
FEATURE = "feature"
Table = dict[str, dict[str, str]]  # client with its version → feature → its cell


def cell(problem: str) -> str:
    """What the table says of a feature with this problem: "" is none."""
    return "no" if problem else "yes"


def column(client: str) -> dict[str, str]:
    """What the page says of a client, whatever its version, by feature."""
    found = [cells for title, cells in _read().items() if title.startswith(client)]
    return found[0] if found else {}


def write_column(title: str, cells: Mapping[str, str]) -> None:
    """Put a client's column into the page; it takes the place of one with another version."""
    table = _read()
    name = title.rpartition(" ")[0] if title[-1].isdigit() else title
    known = {t: c for t, c in table.items() if not t.startswith(name)}
    places = [t for t in table if t.startswith(name)] or [title]
    order = [title if t in places else t for t in table] if places[0] in table else [*table, title]
    known[title] = dict(cells)
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    text = before + BEGIN + _written({t: known[t] for t in order}) + END + after
    PAGE.write_text(text, encoding="utf-8")


def _read() -> Table:
    lines = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].splitlines()
    if not lines:
        return {}
    head, _, *rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines]
    return {
        title: {row[0]: row[place] for row in rows if row[place]}
        for place, title in enumerate(head)
        if place
    }


def _written(table: Table) -> str:
    features = list(dict.fromkeys(feature for cells in table.values() for feature in cells))
    rows = [[FEATURE, *table], ["---"] * (len(table) + 1)]
    rows += [[each, *(cells.get(each, "") for cells in table.values())] for each in features]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
