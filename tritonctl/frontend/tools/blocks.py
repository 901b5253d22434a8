# SPDX-License-Identifier: Apache-2.0
"""Find the end of a call's markup while it is streamed.

A block starts at a format's opener. Feed it until it returns the text after it; then its body is
complete. Every character is read a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from tritonctl.frontend.tools.calls import MalformedCallError
from tritonctl.frontend.tools.json_text import JsonEnd

# A call's name, and the format's marks around it.
_MAX_HEADER_LENGTH = 256
_HEADER_MARKS = ("[ARGS]", "[CALL_ID]")
_VALUE_BEGINS = re.compile(r"\s*\[(?!ARGS\]|CALL_ID\])|[^{]*\{")
_FIRST_KEY = re.compile(r'\s*(?:\{\s*(?:"([^"\\]*)("?))?)?')


class CallBlock(Protocol):
    """The markup of one or more calls."""

    raw: str  # all fed text that belongs to the block, including the opener

    def feed(self, text: str) -> str | None:
        """Return the text after the block, or None while the block continues.

        Raises MalformedCallError if it cannot be a call; `raw` then contains all fed text.
        """

    def body(self) -> str:
        """Return the text between the marks, also of an incomplete block."""


class Delimited:
    """A block from an opener to a closer. json: ignore closers inside JSON strings."""

    def __init__(self, opener: str, closer: str, *, json: bool) -> None:
        self.raw = ""
        self._body_start, self._closer = len(opener), closer
        self._json = JsonEnd() if json else None
        self._scanned = self._body_start
        self._end: int | None = None

    def feed(self, text: str) -> str | None:
        """As Block."""
        start = max(self._body_start, len(self.raw) - len(self._closer) + 1)
        self.raw += text
        while (index := self.raw.find(self._closer, start)) >= 0:
            if self._outside_strings(index):
                self._end = index
                stop = index + len(self._closer)
                tail, self.raw = self.raw[stop:], self.raw[:stop]
                return tail
            start = index + 1
        return None

    def _outside_strings(self, index: int) -> bool:
        if self._json is None:
            return True
        self._json.feed(self.raw, self._scanned, index)
        self._scanned = max(self._scanned, index)
        return not self._json.in_string

    def body(self) -> str:
        """As Block."""
        return self.raw[self._body_start : self._end]


class HeadedJson:
    """A header followed by a JSON object or array: `[TOOL_CALLS] [...]`."""

    def __init__(self, opener: str) -> None:
        self.raw = ""
        self._body_start = len(opener)
        self._value: int | None = None
        self._json = JsonEnd()
        self._end: int | None = None

    def feed(self, text: str) -> str | None:
        """As Block."""
        start = len(self.raw)
        self.raw += text
        if self._value is None:
            self._value = self._find_value()
            if self._value is None:
                return None
            start = self._value
        end = self._json.feed(self.raw, start)
        if end is None:
            return None
        self._end = end
        tail, self.raw = self.raw[end:], self.raw[:end]
        return tail

    def _find_value(self) -> int | None:
        match = _VALUE_BEGINS.match(self.raw, self._body_start)
        header = self.raw[self._body_start :].lstrip()
        # A bracket may be the start of a header mark.
        if match is None or any(mark.startswith(header) for mark in _HEADER_MARKS):
            if len(header) > _MAX_HEADER_LENGTH:
                raise MalformedCallError("no arguments follow the name")
            return None
        return match.end() - 1

    def body(self) -> str:
        """As Block."""
        return self.raw[self._body_start : self._end]


class BareJson:
    """An object without marks; its first key distinguishes a call from other JSON."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.raw = ""
        self._keys = keys
        self._is_call = False
        self._json = JsonEnd()

    def feed(self, text: str) -> str | None:
        """As Block."""
        previous_length = len(self.raw)
        self.raw += text
        end = self._json.feed(self.raw, previous_length)
        self._check_first_key()
        if end is None:
            return None
        tail, self.raw = self.raw[end:], self.raw[:end]
        return tail

    def _check_first_key(self) -> None:
        if self._is_call:
            return
        match = _FIRST_KEY.match(self.raw)
        key, closed = match.groups() if match else (None, None)
        if key is None:
            if match is None or match.end() < len(self.raw):
                raise MalformedCallError("not an object with keys")
        elif closed:
            if key not in self._keys:
                raise MalformedCallError(f"begins with {key:.40}")
            self._is_call = True
        elif not any(call_key.startswith(key) for call_key in self._keys):
            raise MalformedCallError(f"begins with {key:.40}")

    def body(self) -> str:
        """As Block."""
        return self.raw


_PYTHON_NAME = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*\s*(?:\(|$)|$)")
_PYTHON_OUTSIDE = re.compile(r"""['"()\[\]{}]""")
_PYTHON_INSIDE = {"'": re.compile(r"['\\]"), '"': re.compile(r'["\\]')}


class PythonCalls:
    """A list of Python calls up to its last bracket: `[f(a=1), g(b="x")]`."""

    def __init__(self) -> None:
        self.raw = ""
        self._is_call = False
        self._place = 0
        self._depth = 0
        self._quote = ""

    def feed(self, text: str) -> str | None:
        """As Block."""
        self.raw += text
        self._check_beginning()
        while self._place < len(self.raw):
            inside = _PYTHON_INSIDE[self._quote] if self._quote else _PYTHON_OUTSIDE
            match = inside.search(self.raw, self._place)
            if match is None:
                self._place = len(self.raw)
                return None
            if match.group() == "\\":
                if match.end() == len(self.raw):  # the escaped character is still missing
                    self._place = match.start()
                    return None
                self._place = match.end() + 1
                continue
            self._place = match.end()
            if self._take(match.group()):
                tail, self.raw = self.raw[self._place :], self.raw[: self._place]
                return tail
        return None

    def _check_beginning(self) -> None:
        if self._is_call:
            return
        match = _PYTHON_NAME.match(self.raw)
        if match is None or len(match.group()) > _MAX_HEADER_LENGTH:
            raise MalformedCallError("the list contains no call")
        self._is_call = match.group().endswith("(")

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
