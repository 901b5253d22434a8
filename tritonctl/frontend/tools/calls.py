# SPDX-License-Identifier: Apache-2.0
"""Events in a model's text: content, thoughts and tool calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LETTERS = string.ascii_letters + string.digits
_MISTRAL_LENGTH = 9


class MalformedCallError(Exception):
    """The model's text is not a valid call; the client gets it as text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it."""

    name: str
    arguments: str  # a JSON object
    id: str | None = None  # only if the model wrote one


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call. The index counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More text of a call's arguments."""

    index: int
    text: str


Event = Content | Thought | CallStart | CallArguments
MakeId = Callable[[], str]


def openai_id() -> str:
    """Create an id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


def mistral_id() -> str:
    """Create an id of nine letters and digits: Mistral's chat templates refuse others."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_MISTRAL_LENGTH))


def delta(event: Event) -> Mapping[str, Any]:
    """Return the `delta` of a streamed chunk."""
    if isinstance(event, Content):
        return {"content": event.text}
    if isinstance(event, Thought):
        return {"reasoning_content": event.text}
    if isinstance(event, CallStart):
        function = {"name": event.name, "arguments": ""}
        call = {"index": event.index, "id": event.id, "type": "function", "function": function}
    else:
        call = {"index": event.index, "function": {"arguments": event.text}}
    return {"tool_calls": [call]}


def message_of(events: list[Event]) -> dict[str, Any]:
    """Return a message's `content`, and its `reasoning_content` and `tool_calls` if present."""
    text = "".join(event.text for event in events if isinstance(event, Content))
    thoughts = "".join(event.text for event in events if isinstance(event, Thought))
    extra = {"reasoning_content": thoughts} if thoughts else {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, CallStart):
            function = {"name": event.name, "arguments": ""}
            calls[event.index] = {"id": event.id, "type": "function", "function": function}
        elif isinstance(event, CallArguments):
            calls[event.index]["function"]["arguments"] += event.text
    if not calls:
        return {"content": text, **extra}
    return {"content": text or None, **extra, "tool_calls": list(calls.values())}
