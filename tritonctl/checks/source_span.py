# SPDX-License-Identifier: Apache-2.0
"""Source texts and spans in them, for the locations of findings."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Span(NamedTuple):
    """A part of a text by character offsets; the end is exclusive."""

    start: int
    end: int


@dataclass(frozen=True)
class SourceText:
    """A file's text and the name that findings show."""

    name: str
    text: str

    @cached_property
    def is_utf8(self) -> bool:
        """Whether the whole file was UTF-8; other bytes are surrogates in the text."""
        return not any("\ud800" <= character <= "\udfff" for character in self.text)

    @cached_property
    def _starts(self) -> list[int]:
        """The offset of each line's start. Only a newline ends a line, as in editors."""
        starts, newline = [0], self.text.find("\n")
        while newline >= 0:
            starts.append(newline + 1)
            newline = self.text.find("\n", newline + 1)
        return starts

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and column of a character, both from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def line_start(self, number: int) -> int:
        """Return the offset of a line's start."""
        return self._starts[number - 1]

    def line(self, number: int) -> str:
        """Return a line without its end; always the same object, because it may be long."""
        if number not in self._lines:
            self._lines[number] = self._line(number)
        return self._lines[number]

    @cached_property
    def _lines(self) -> dict[int, str]:
        return {}

    def _line(self, number: int) -> str:
        start = self._starts[number - 1]
        end = self._starts[number] - 1 if number < len(self._starts) else len(self.text)
        return self.text[start:end].removesuffix("\r")
