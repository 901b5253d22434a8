# SPDX-License-Identifier: Apache-2.0
"""How tables fit the width there is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tritonctl.cli.console.table_text import table_lines

SHA = "d2a40cf2d54b3adac690d45b3aefffa1f3c5d608085b758ca04908219e528808"
PROSE = "INT8 needs a scale for each tensor, and this graph has none: calibrate it with your data"


def shown(headings: list[str], rows: list[list[str]], width: int = 80) -> list[str]:
    """All lines."""
    heading, lines = table_lines(headings, rows, width)
    return [*heading, *lines]


def test_what_fits_is_aligned() -> None:
    """Columns two spaces apart, by the cells that characters take; no trailing blanks."""
    assert shown(["name", "what"], [["a", "字字"], ["long", ""], ["b", "c"]]) == [
        "name  what",
        "a     字字",
        "long",
        "b     c",
    ]


def test_prose_is_wrapped() -> None:
    """At its words, under its own heading."""
    lines = shown(["on", "fits", "why"], [["V100-32", "NO", PROSE], ["H100", "yes", ""]])
    assert lines == [
        "on       fits  why",
        "V100-32  NO    INT8 needs a scale for each tensor, and this graph has none:",
        "               calibrate it with your data",
        "H100     yes",
    ]


def test_values_stand_below_their_names() -> None:
    """Where one is too long for its column; the others stay beside theirs."""
    assert shown(
        ["field", "value"], [["files.engine/openvino_model.xml.sha256", SHA], ["n", "1"]]
    ) == [
        f"field{' ' * 29}value",
        "files.engine/openvino_model.xml.sha256",
        f"  {SHA}",
        f"n{' ' * 33}1",
    ]


def test_rows_are_stacked() -> None:
    """Where a column holds what cannot be wrapped: each value with its heading."""
    rows = [["files.sha256", SHA, SHA[::-1], ""], ["precision", "int8", "fp32", "more memory"]]
    assert shown(["field", "m/1", "m/2", "means"], rows) == [
        "files.sha256",
        f"  m/1    {SHA}",
        f"  m/2    {SHA[::-1]}",
        "precision",
        "  m/1    int8",
        "  m/2    fp32",
        "  means  more memory",
    ]


@pytest.mark.parametrize("columns", [1, 2, 3, 6])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_line_is_longer_and_no_word_is_broken(data: st.DataObject, columns: int) -> None:
    """Whatever the rows hold, as long as each word fits a line."""
    word = st.text("ab字/.", min_size=1, max_size=35)
    cell = st.lists(word, max_size=9).map(" ".join)
    head = st.text("xyz", min_size=1, max_size=12)
    headings = data.draw(st.lists(head, min_size=columns, max_size=columns))
    rows = data.draw(st.lists(st.lists(cell, min_size=columns, max_size=columns), max_size=5))
    lines = shown(headings, rows)
    assert max(map(cell_len, lines), default=0) <= 80
    words = " ".join(lines).split()
    for row in rows:
        for text in row:
            assert all(one in words for one in text.split())
