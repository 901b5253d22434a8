# SPDX-License-Identifier: Apache-2.0
"""A text with places in it: what a finding points at."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Span(NamedTuple):
    """Part of a text, by character offsets; the end is exclusive."""

    start: int
    end: int


@dataclass(frozen=True)
class Source:
    """A file's text and the name it is reported under."""

    name: str
    text: str

    @cached_property
    def is_utf8(self) -> bool:
        """Whether the file was UTF-8 throughout; other bytes are surrogates in the text."""
        return not any("\ud800" <= character <= "\udfff" for character in self.text)

    @cached_property
    def _starts(self) -> list[int]:
        """Where each line begins. A line ends at a newline only, as editors count."""
        starts, at = [0], self.text.find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = self.text.find("\n", at + 1)
        return starts

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both from 1."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def start(self, number: int) -> int:
        """Where a line begins."""
        return self._starts[number - 1]

    def line(self, number: int) -> str:
        """The text of a line, without its end; the same object each time, for it may be long."""
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
