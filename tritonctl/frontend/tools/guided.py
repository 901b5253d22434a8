# SPDX-License-Identifier: Apache-2.0
"""Calls that guided decoding forces: `tool_choice` required, or a named function.

The guide leaves no markup to be found: the whole answer is the arguments of the named function, or
a list of calls. As the engine cannot leave the guide, arguments go on as they come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritonctl.frontend.tools.calls import (
    CallArguments,
    CallBegins,
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
    """The schema of an answer that is the arguments of one function."""
    return dict(parameters or _ANY_OBJECT)


def required_guide(
    tools: Mapping[str, Mapping[str, Any]], *, most_calls: int | None = None
) -> dict[str, Any]:
    """The schema of a list of calls. tools: {name: schema of the parameters}.

    `$ref` counts from the root of a schema, so the definitions of all tools move up there, each
    under its tool's name.
    """
    definitions: dict[str, Any] = {}
    choices = []
    for number, (name, schema) in enumerate(tools.items()):
        moved = _moved(dict(schema or _ANY_OBJECT), f"{number}.", definitions)
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
    if most_calls is not None:
        guide["maxItems"] = most_calls
    return guide | ({"$defs": definitions} if definitions else {})


def _moved(schema: dict[str, Any], prefix: str, definitions: dict[str, Any]) -> Any:
    for key in ("$defs", "definitions"):
        for name, value in (schema.pop(key, None) or {}).items():
            definitions[prefix + name] = _renamed(value, prefix)
    moved = _renamed(schema, prefix)
    root = f"#/$defs/{prefix}"
    if f'"{root}"' not in json.dumps([moved, definitions]):
        return moved
    definitions[prefix] = moved  # it refers to itself
    return {"$ref": root}


def _renamed(value: Any, prefix: str) -> Any:
    if isinstance(value, list):
        return [_renamed(item, prefix) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _reference(item, prefix)
        if key == "$ref" and isinstance(item, str)
        else _renamed(item, prefix)
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
    """The events of an answer that is the arguments of the function `name`."""

    name: str
    make_id: MakeId
    calls: int = 0
    full: bool = False

    def feed(self, text: str) -> list[Event]:
        """The next piece of the arguments."""
        if not text:
            return []
        begins: list[Event] = []
        if not self.calls:
            begins.append(CallBegins(0, self.make_id(), self.name))
            self.calls = 1
        return [*begins, CallArguments(0, text)]

    def finish(self) -> list[Event]:
        """Nothing is held back."""
        return []


@dataclass(slots=True)
class RequiredCalls:
    """The events of an answer that is a list of calls, by `required_guide`."""

    make_id: MakeId
    calls: int = 0
    full: bool = False
    _pending: str = ""
    _arguments: JsonEnd | None = field(default=None)

    def feed(self, text: str) -> list[Event]:
        """Names as soon as they are complete, arguments as they come."""
        events: list[Event] = []
        self._pending += text
        while self._pending:
            if self._arguments is not None:
                self._more_arguments(self._arguments, events)
            elif not self._begin(events):
                break
        return events

    def finish(self) -> list[Event]:
        """An answer that was cut off within its first name: what there is of it."""
        rest, self._pending = self._pending, ""
        return [Content(rest)] if rest.strip() and not self.calls else []

    def _begin(self, events: list[Event]) -> bool:
        found = _HEAD.match(self._pending)
        if not found:
            return False
        self._pending = self._pending[found.end() :]
        self._arguments = JsonEnd()
        events.append(CallBegins(self.calls, self.make_id(), json.loads(found.group(1))))
        self.calls += 1
        return True

    def _more_arguments(self, arguments: JsonEnd, events: list[Event]) -> None:
        end = arguments.feed(self._pending)
        piece = self._pending[:end]
        events.append(CallArguments(self.calls - 1, piece))
        self._pending = self._pending[len(piece) :]
        if end is not None:
            self._arguments = None
