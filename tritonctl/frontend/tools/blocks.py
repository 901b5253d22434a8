# SPDX-License-Identifier: Apache-2.0
"""Where a call's markup ends, while it comes in pieces.

A block begins at a format's opener. It is fed until it says what text is left over behind it;
then it has its body. Every character is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from tritonctl.frontend.tools.calls import MalformedCallError
from tritonctl.frontend.tools.json_text import JsonEnd

# A call's name, and what a format puts around it.
_LONGEST_HEADER = 256
_HEADER_MARKS = ("[ARGS]", "[CALL_ID]")
_VALUE_BEGINS = re.compile(r"\s*\[(?!ARGS\]|CALL_ID\])|[^{]*\{")
_FIRST_KEY = re.compile(r'\s*(?:\{\s*(?:"([^"\\]*)("?))?)?')


class Block(Protocol):
    """raw: all that was fed and belongs to the block, the opener included."""

    raw: str

    def feed(self, text: str) -> str | None:
        """The text behind the block, or None while it goes on.

        Raises MalformedCallError once it can be no call; `raw` then has all that was fed.
        """

    def body(self) -> str:
        """What is between the marks, also of a block that has not ended."""


class Delimited:
    """From the opener to the closer. json: a closer inside a JSON string does not count."""

    def __init__(self, opener: str, closer: str, *, json: bool) -> None:
        self.raw = ""
        self._begin, self._closer = len(opener), closer
        self._json = JsonEnd() if json else None
        self._scanned = self._begin
        self._end: int | None = None

    def feed(self, text: str) -> str | None:
        """As Block."""
        start = max(self._begin, len(self.raw) - len(self._closer) + 1)
        self.raw += text
        while (found := self.raw.find(self._closer, start)) >= 0:
            if self._outside_strings(found):
                self._end = found
                stop = found + len(self._closer)
                rest, self.raw = self.raw[stop:], self.raw[:stop]
                return rest
            start = found + 1
        return None

    def _outside_strings(self, place: int) -> bool:
        if self._json is None:
            return True
        self._json.feed(self.raw, self._scanned, place)
        self._scanned = max(self._scanned, place)
        return not self._json.in_string

    def body(self) -> str:
        """As Block."""
        return self.raw[self._begin : self._end]


class HeadedJson:
    """A header that ends where an object or array begins, and that value: `[TOOL_CALLS] [...]`."""

    def __init__(self, opener: str) -> None:
        self.raw = ""
        self._begin = len(opener)
        self._value: int | None = None
        self._json = JsonEnd()
        self._end: int | None = None

    def feed(self, text: str) -> str | None:
        """As Block."""
        start = len(self.raw)
        self.raw += text
        if self._value is None:
            self._value = self._begin_of_value()
            if self._value is None:
                return None
            start = self._value
        end = self._json.feed(self.raw, start)
        if end is None:
            return None
        self._end = end
        rest, self.raw = self.raw[end:], self.raw[:end]
        return rest

    def _begin_of_value(self) -> int | None:
        found = _VALUE_BEGINS.match(self.raw, self._begin)
        header = self.raw[self._begin :].lstrip()
        # A bracket may yet become a mark of the header.
        if found is None or any(mark.startswith(header) for mark in _HEADER_MARKS):
            if len(header) > _LONGEST_HEADER:
                raise MalformedCallError("no arguments follow the name")
            return None
        return found.end() - 1

    def body(self) -> str:
        """As Block."""
        return self.raw[self._begin : self._end]


class BareJson:
    """An object without marks around it, whose first key tells a call from other JSON."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.raw = ""
        self._keys = keys
        self._certain = False
        self._json = JsonEnd()

    def feed(self, text: str) -> str | None:
        """As Block."""
        before = len(self.raw)
        self.raw += text
        end = self._json.feed(self.raw, before)
        self._check_first_key()
        if end is None:
            return None
        rest, self.raw = self.raw[end:], self.raw[:end]
        return rest

    def _check_first_key(self) -> None:
        if self._certain:
            return
        found = _FIRST_KEY.match(self.raw)
        key, closed = found.groups() if found else (None, None)
        if key is None:
            if found is None or found.end() < len(self.raw):
                raise MalformedCallError("not an object with keys")
        elif closed:
            if key not in self._keys:
                raise MalformedCallError(f"begins with {key:.40}")
            self._certain = True
        elif not any(known.startswith(key) for known in self._keys):
            raise MalformedCallError(f"begins with {key:.40}")

    def body(self) -> str:
        """As Block."""
        return self.raw


_PYTHON_NAME = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*\s*(?:\(|$)|$)")
_PYTHON_OUTSIDE = re.compile(r"""['"()\[\]{}]""")
_PYTHON_INSIDE = {"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')}


class PythonCalls:
    """A list of Python calls, `[f(a=1), g(b="x")]`, to its last bracket."""

    def __init__(self) -> None:
        self.raw = ""
        self._certain = False
        self._place = 0
        self._depth = 0
        self._quote = ""

    def feed(self, text: str) -> str | None:
        """As Block."""
        self.raw += text
        self._check_beginning()
        while self._place < len(self.raw):
            inside = _PYTHON_INSIDE[self._quote] if self._quote else _PYTHON_OUTSIDE
            found = inside.search(self.raw, self._place)
            if found is None:
                self._place = len(self.raw)
                return None
            if found.group() == "\\":
                if found.end() == len(self.raw):  # what it escapes is still to come
                    self._place = found.start()
                    return None
                self._place = found.end() + 1
                continue
            self._place = found.end()
            if self._take(found.group()):
                rest, self.raw = self.raw[self._place :], self.raw[: self._place]
                return rest
        return None

    def _check_beginning(self) -> None:
        if self._certain:
            return
        found = _PYTHON_NAME.match(self.raw)
        if found is None or len(found.group()) > _LONGEST_HEADER:
            raise MalformedCallError("no call stands in the list")
        self._certain = found.group().endswith("(")

    def _take(self, character: str) -> bool:
        if character in "'\"":
            self._quote = "" if self._quote else character
        elif character in "([{":
            self._depth += 1
        else:
            self._depth -= 1
            return self._depth <= 0
        return False

    def body(self) -> str:
        """As Block."""
        return self.raw
