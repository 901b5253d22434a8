# SPDX-License-Identifier: Apache-2.0
"""Reading a JSON object field by field; every complaint names the field's path."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import Any

from loadlib.refusal import Refusal

_MISSING: Any = object()


def refused(where: str, problem: str, remedy: str) -> Refusal:
    """What is wrong with the field at `where`."""
    return Refusal(f"{where}: {problem}", remedy=remedy)


def nearest(word: str, known: Sequence[str]) -> str:
    """`did you mean "x"? known: ...`"""
    close = difflib.get_close_matches(word, known, n=1)
    hint = f'did you mean "{close[0]}"? ' if close else ""
    return f"{hint}known: {', '.join(known)}"


class Fields:
    """One JSON object at `where`. Fields that are null count as left out."""

    def __init__(self, content: Any, where: str, known: Sequence[str]) -> None:
        if not isinstance(content, dict):
            raise refused(where, f"{content!r} is no object", f"give {', '.join(known)}")
        for name in content:
            if name not in known:
                raise refused(f"{where}.{name}", "no such field", nearest(str(name), known))
        self._content = content
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    def at(self, name: str) -> str:
        """The path of a field."""
        return f"{self.where}.{name}"

    def value(self, name: str, default: Any = _MISSING) -> Any:
        """The field as it is."""
        found = self._content.get(name)
        if found is not None:
            return found
        if default is _MISSING:
            raise refused(self.at(name), "missing", f"add {name} to {self.where}")
        return default

    def text(self, name: str, default: Any = _MISSING, choices: Sequence[str] = ()) -> str:
        """A string, one of `choices` if there are any."""
        found = self.value(name, default)
        if not isinstance(found, str):
            raise refused(self.at(name), f"{found!r} is no string", "give a string")
        if choices and found not in choices:
            raise refused(self.at(name), f"unknown: {found!r}", nearest(found, choices))
        return found

    def number(
        self, name: str, default: Any = _MISSING, *, least: float = 0, above: float | None = None
    ) -> float:
        """A finite number, not below `least` and more than `above`."""
        found = self.value(name, default)
        if not is_number(found):
            raise refused(self.at(name), f"{found!r} is no number", "give a number")
        if found < least or (above is not None and found <= above):
            limit = f"at least {least:g}" if above is None else f"more than {above:g}"
            raise refused(self.at(name), f"{found:g} is too small", f"give {limit}")
        return float(found)

    def whole(self, name: str, default: Any = _MISSING, *, least: int = 0) -> int:
        """An integer, not below `least`."""
        found = self.value(name, default)
        if not isinstance(found, int) or isinstance(found, bool):
            raise refused(self.at(name), f"{found!r} is no whole number", "give a whole number")
        if found < least:
            raise refused(self.at(name), f"{found} is too small", f"give at least {least}")
        return found

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        found = self.value(name, default)
        if not isinstance(found, bool):
            raise refused(self.at(name), f"{found!r} is neither true nor false", "give one of them")
        return found

    def items(self, name: str) -> list[Any]:
        """A list with something in it."""
        found = self.value(name)
        if not isinstance(found, list) or not found:
            raise refused(self.at(name), "no list with something in it", "give at least one")
        return found


def is_number(value: Any) -> bool:
    """Whether it is a finite number (true and false are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
