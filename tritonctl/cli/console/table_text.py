# SPDX-License-Identifier: Apache-2.0
"""Lay out a table in the available width without ever breaking a word, such as a fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_GAP = 2  # cells between columns
_MIN_WORD_COLUMN = 16  # a column of words narrower than this is hard to read
_MAX_NAME_WIDTH = 32  # of a column of names; longer names extend into the column of values


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[str]]:
    """Return the lines of the heading and of the rows, each at most `width` cells.

    One line per row if that fits; else the widest column of words is wrapped; else the rows are
    stacked, with headings before the values and an empty heading. Only a word that is longer than
    the width makes a longer line.
    """
    table = [list(headings), *(list(row) for row in rows)]
    widths = [max(map(_cell_width, column)) for column in zip(*table, strict=True)]
    room = width - sum(widths) - _GAP * (len(widths) - 1)
    if room < 0 and len(widths) == 2:  # noqa: PLR2004 - a name and its value
        name_width = min(widths[0], _MAX_NAME_WIDTH)
        first, *remaining_rows = [
            list(_name_and_value(name, value, name_width, width)) for name, value in table
        ]
        return first, [line for row in remaining_rows for line in row]
    if room < 0:
        wrapped = _wrapped_column(table, widths, room)
        if wrapped is None:
            return [], list(_stack_rows(headings, rows, width))
        widths[wrapped] += room
    first, *remaining_rows = [_row(cells, widths) for cells in table]
    return first, [line for row in remaining_rows for line in row]


def _wrapped_column(table: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> int | None:
    """Return the widest column that can shrink by -room cells without breaking a word."""
    for column in sorted(range(len(widths)), key=lambda index: -widths[index]):
        words = [_cell_width(word) for row in table for word in row[column].split()]
        if widths[column] + room >= max(_MIN_WORD_COLUMN, *words, 0):
            return column
    return None


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row, columns two spaces apart; an ideograph is two cells wide."""
    columns = [_fold(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, columns))):
        parts = [column[number] if number < len(column) else "" for column in columns]
        padded = (
            part + " " * (width - _cell_width(part))
            for part, width in zip(parts, widths, strict=True)
        )
        lines.append((" " * _GAP).join(padded).rstrip())
    return lines


def _stack_rows(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> Iterator[str]:
    """Yield each row as its first value, then a line for each other non-empty value."""
    indent = " " * _GAP
    label = max((_cell_width(heading) for heading in headings[1:]), default=0)
    for row in rows:
        yield from _fold(row[0], width)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            if not cell.strip():
                continue
            lines = _name_and_value(heading, cell, label, width - _GAP)
            yield from (f"{indent}{line}" for line in lines)


def _name_and_value(name: str, value: str, name_width: int, width: int) -> Iterator[str]:
    """Yield a name of `name_width` cells and its value, on the next line if it does not fit."""
    name_width = max(name_width, _cell_width(name))
    value_width = width - name_width - _GAP
    lines = _fold(value, value_width)
    if max(map(_cell_width, lines)) <= value_width:
        yield from _row([name, "\n".join(lines)], [name_width, value_width])
    else:  # a long word, such as a path
        yield from _fold(name, width)
        yield from (f"{' ' * _GAP}{line}" for line in _fold(value, width - _GAP))


def _fold(text: str, width: int) -> list[str]:
    """Break a text into lines of whole words, if it does not fit."""
    if _cell_width(text) <= width or "\n" in text:
        return text.split("\n")
    lines = [""]
    for word in text.split():
        if not lines[-1]:
            lines[-1] = word
        elif _cell_width(lines[-1]) + 1 + _cell_width(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def folded_lines(text: str, width: int) -> str:
    """Break lines into lines of at most `width` cells; continuation lines are indented."""
    folded: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        first, *continuations = _fold(line.lstrip(), width - len(indent) - 2 * _GAP)
        fits = _cell_width(line) <= width
        folded += [line] if fits else [indent + first]
        folded += (
            []
            if fits
            else [f"{indent}{' ' * 2 * _GAP}{continuation}" for continuation in continuations]
        )
    return "\n".join(folded)


def _cell_width(text: str) -> int:
    """Return the cells of a text on the screen."""
    from rich.cells import cell_len

    return cell_len(text)
