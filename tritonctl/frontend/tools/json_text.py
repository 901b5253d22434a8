# SPDX-License-Identifier: Apache-2.0
"""JSON written by a model: find the end of a streamed value, and parse it strictly."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonEnd:
    """Finds the end of an object or array; reads every character once.

    It counts brackets without matching them; `read_json` validates the value.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._escaped = False
        self.in_string = False

    def feed(self, text: str, start: int = 0, stop: int | None = None) -> int | None:
        """Return the index after the value if it ends in text[start:stop], else None."""
        end = len(text) if stop is None else stop
        position = start
        while position < end:
            if self._escaped:
                self._escaped = False
                position += 1
                continue
            match = (_IN_STRING if self.in_string else _STRUCTURE).search(text, position, end)
            if match is None:
                return None
            position = match.end()
            if self._take(match.group()):
                return position
        return None

    def _take(self, character: str) -> bool:
        """Whether this character ends the value."""
        if character == "\\":
            self._escaped = True
        elif character == '"':
            self.in_string = not self.in_string
        elif character in "{[":
            self._depth += 1
        else:
            self._depth -= 1
            return self._depth <= 0
        return False


def read_json(text: str) -> Any:
    """Parse a value. Raises ValueError, also for non-finite numbers and deep nesting."""
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is too large")
    return value


def write_json(value: Any) -> str:
    """Encode a value as the arguments of a call. Raises ValueError."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (RecursionError, TypeError) as error:
        raise ValueError(str(error)) from None
