# SPDX-License-Identifier: Apache-2.0
"""Tool calls by guided decoding: they are forced, or the text next to them follows a schema.

The answer contains no markup: it is the arguments of the named function, or a list of calls. As
the engine cannot leave the guide, arguments are forwarded at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.frontend.tools.calls import (
    CallArguments,
    CallStart,
    Content,
    Event,
    MakeId,
)
from tritonctl.frontend.tools.json_text import JsonEnd

_HEAD = re.compile(
    r'\s*\}?\s*[\[,]?\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)'
)
_ANY_OBJECT = {"type": "object"}


def named_guide(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the schema of an answer that consists of one function's arguments."""
    return dict(parameters or _ANY_OBJECT)


def required_guide(
    tools: Mapping[str, Mapping[str, Any]], *, max_calls: int | None = None
) -> dict[str, Any]:
    """Return the schema of a list of calls. tools: {name: schema of the parameters}.

    `$ref` starts at the root of a schema, so the definitions of all tools move there, with a prefix
    for each tool.
    """
    definitions: dict[str, Any] = {}
    guide = _list_of_calls(tools, max_calls, definitions)
    return guide | ({"$defs": definitions} if definitions else {})


def text_or_calls_guide(
    text: Mapping[str, Any],
    tools: Mapping[str, Mapping[str, Any]],
    *,
    max_calls: int | None = None,
) -> dict[str, Any] | None:
    """Return the schema of an answer that is an object of `text`, or a list of calls.

    The first character tells which; None for a `text` that may be something else than an object.
    """
    if text.get("type") != "object":
        return None
    definitions: dict[str, Any] = {}
    choices = [
        _move_definitions(dict(text), "text.", definitions),
        _list_of_calls(tools, max_calls, definitions),
    ]
    return {"anyOf": choices} | ({"$defs": definitions} if definitions else {})


def _list_of_calls(
    tools: Mapping[str, Mapping[str, Any]], max_calls: int | None, definitions: dict[str, Any]
) -> dict[str, Any]:
    choices = []
    for number, (name, schema) in enumerate(tools.items()):
        moved = _move_definitions(dict(schema or _ANY_OBJECT), f"{number}.", definitions)
        choices.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": moved},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    item = choices[0] if len(choices) == 1 else {"anyOf": choices}
    guide: dict[str, Any] = {"type": "array", "items": item, "minItems": 1}
    if max_calls is not None:
        guide["maxItems"] = max_calls
    return guide


def _move_definitions(schema: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> Any:
    for key in ("$defs", "definitions"):
        for name, value in (schema.pop(key, None) or {}).items():
            definitions[prefix + name] = _rename_references(value, prefix)
    moved = _rename_references(schema, prefix)
    root = f"#/$defs/{prefix}"
    if f'"{root}"' not in json.dumps([moved, definitions]):
        return moved
    definitions[prefix] = moved  # it refers to itself
    return {"$ref": root}


def _rename_references(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_rename_references(item, prefix) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _reference(item, prefix)
        if key == "$ref" and isinstance(item, str)
        else _rename_references(item, prefix)
        for key, item in value.items()
    }


def _reference(target: str, prefix: str) -> str:
    if target == "#":
        return f"#/$defs/{prefix}"
    for start in ("#/$defs/", "#/definitions/"):
        if target.startswith(start):
            return f"#/$defs/{prefix}{target.removeprefix(start)}"
    return target


@dataclass(slots=True)
class NamedCall:
    """Reads an answer that consists of the arguments of the function `name`."""

    name: str
    make_id: MakeId
    calls: int = 0
    full: bool = False

    def feed(self, text: str) -> list[Event]:
        """Return the events of the next piece of arguments."""
        if not text:
            return []
        events: list[Event] = []
        if not self.calls:
            events.append(CallStart(0, self.make_id(), self.name))
            self.calls = 1
        return [*events, CallArguments(0, text)]

    def finish(self) -> list[Event]:
        """Return nothing: no text is buffered."""
        return []


@dataclass(slots=True)
class RequiredCalls:
    """Reads an answer that is a list of calls, by `required_guide`."""

    make_id: MakeId
    calls: int = 0
    full: bool = False
    _pending: str = ""
    _arguments: JsonEnd | None = field(default=None)

    def feed(self, text: str) -> list[Event]:
        """Return complete names, and arguments as they arrive."""
        events: list[Event] = []
        self._pending += text
        while self._pending:
            if self._arguments is not None:
                self._read_arguments(self._arguments, events)
            elif not self._start_call(events):
                break
        return events

    def finish(self) -> list[Event]:
        """Return nothing: the rest is the guide's own form, of a call without a complete name."""
        self._pending = ""
        return []

    def _start_call(self, events: list[Event]) -> bool:
        match = _HEAD.match(self._pending)
        if not match:
            return False
        self._pending = self._pending[match.end() :]
        self._arguments = JsonEnd()
        events.append(CallStart(self.calls, self.make_id(), json.loads(match.group(1))))
        self.calls += 1
        return True

    def _read_arguments(self, arguments: JsonEnd, events: list[Event]) -> None:
        end = arguments.feed(self._pending)
        piece = self._pending[:end]
        events.append(CallArguments(self.calls - 1, piece))
        self._pending = self._pending[len(piece) :]
        if end is not None:
            self._arguments = None


@dataclass(slots=True)
class TextOrCalls:
    """Reads an answer by `text_or_calls_guide`."""

    make_id: MakeId
    full: bool = False
    _list: RequiredCalls | None = None  # if the answer is a list of calls
    _is_text: bool = False

    @property
    def calls(self) -> int:
        """Number of calls so far."""
        return 0 if self._list is None else self._list.calls

    def feed(self, text: str) -> list[Event]:
        """Return the events of the next piece of text."""
        if self._list is None and not self._is_text:
            text = text.lstrip()
            self._is_text = bool(text) and not text.startswith("[")
            self._list = RequiredCalls(self.make_id) if text.startswith("[") else None
        if self._list is not None:
            return self._list.feed(text)
        return [Content(text)] if text else []

    def finish(self) -> list[Event]:
        """Return nothing: no text is buffered."""
        return []
