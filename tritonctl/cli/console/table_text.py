# SPDX-License-Identifier: Apache-2.0
"""Lays out a table in the width there is: no word, and so no fingerprint, is ever broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_GAP = 2  # cells between columns
_NARROWEST = 16  # a column of words narrower than this is hard to read
_LONGEST_NAME = 32  # of a column of names; longer ones reach into that of the values


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[str]]:
    """The heading and the rows, as lines of at most `width` cells each.

    One row a line; where that is too wide, the widest column of words is wrapped; where that does
    not do, the rows are stacked, their headings before the values, and the heading is empty. Only a
    word that is longer than the width makes a longer line.
    """
    table = [list(headings), *(list(row) for row in rows)]
    widths = [max(map(_cells, column)) for column in zip(*table, strict=True)]
    room = width - sum(widths) - _GAP * (len(widths) - 1)
    if room < 0 and len(widths) == 2:  # noqa: PLR2004 - a name and its value
        longest = min(widths[0], _LONGEST_NAME)
        first, *others = [list(_named(name, value, longest, width)) for name, value in table]
        return first, [line for row in others for line in row]
    if room < 0:
        wrapped = _wrapped_column(table, widths, room)
        if wrapped is None:
            return [], list(_stacked(headings, rows, width))
        widths[wrapped] += room
    first, *others = [_row(cells, widths) for cells in table]
    return first, [line for row in others for line in row]


def _wrapped_column(table: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> int | None:
    """The widest column that can give up -room cells between its words."""
    for column in sorted(range(len(widths)), key=lambda one: -widths[one]):
        words = [_cells(word) for row in table for word in row[column].split()]
        if widths[column] + room >= max(_NARROWEST, *words, 0):
            return column
    return None


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """The lines of one row, columns two spaces apart; an ideograph is two cells wide."""
    columns = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, columns))):
        parts = [column[number] if number < len(column) else "" for column in columns]
        padded = (
            part + " " * (width - _cells(part)) for part, width in zip(parts, widths, strict=True)
        )
        lines.append((" " * _GAP).join(padded).rstrip())
    return lines


def _stacked(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """A row as its first value, and below it a line for each other one that says something."""
    indent = " " * _GAP
    label = max((_cells(heading) for heading in headings[1:]), default=0)
    for row in rows:
        yield from _folded(row[0], width)
        for heading, cell in zip(headings[1:], row[1:], strict=True):
            if not cell.strip():
                continue
            lines = _named(heading, cell, label, width - _GAP)
            yield from (f"{indent}{line}" for line in lines)


def _named(name: str, value: str, longest: int, width: int) -> Iterator[str]:
    """A value beside its name, a column of `longest` cells; below it where it does not fit."""
    longest = max(longest, _cells(name))
    beside = width - longest - _GAP
    lines = _folded(value, beside)
    if max(map(_cells, lines)) <= beside:
        yield from _row([name, "\n".join(lines)], [longest, beside])
    else:  # a long word, such as a path
        yield from _folded(name, width)
        yield from (f"{' ' * _GAP}{line}" for line in _folded(value, width - _GAP))


def _folded(text: str, width: int) -> list[str]:
    """Text in lines of whole words; as it is where it fits."""
    if _cells(text) <= width or "\n" in text:
        return text.split("\n")
    lines = [""]
    for word in text.split():
        if not lines[-1]:
            lines[-1] = word
        elif _cells(lines[-1]) + 1 + _cells(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def folded_lines(text: str, width: int) -> str:
    """Lines of text in lines of at most `width` cells, the further ones of each set in."""
    made: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        first, *others = _folded(line.lstrip(), width - len(indent) - 2 * _GAP)
        whole = _cells(line) <= width
        made += [line] if whole else [indent + first]
        made += [] if whole else [f"{indent}{' ' * 2 * _GAP}{other}" for other in others]
    return "\n".join(made)


def _cells(text: str) -> int:
    """Cells on the screen."""
    from rich.cells import cell_len

    return cell_len(text)
