# SPDX-License-Identifier: Apache-2.0
"""What comes out of a model's text: ordinary text, and calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LETTERS = string.ascii_letters + string.digits
_MISTRAL_LENGTH = 9


class MalformedCallError(Exception):
    """What the model wrote is no call; the client gets it as text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the model wrote it. arguments: the text of a JSON object. id: the model's own."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """What the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The first news of a call: the index counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More text of a call's arguments."""

    index: int
    text: str


Event = Content | Thought | CallBegins | CallArguments
MakeId = Callable[[], str]


def openai_id() -> str:
    """An id as OpenAI's."""
    return f"call_{secrets.token_hex(12)}"


def mistral_id() -> str:
    """Nine letters and digits: Mistral's chat templates refuse any other."""
    return "".join(secrets.choice(_LETTERS) for _ in range(_MISTRAL_LENGTH))


def delta(event: Event) -> Mapping[str, Any]:
    """The `delta` of a streamed chunk."""
    if isinstance(event, Content):
        return {"content": event.text}
    if isinstance(event, Thought):
        return {"reasoning_content": event.text}
    if isinstance(event, CallBegins):
        function = {"name": event.name, "arguments": ""}
        call = {"index": event.index, "id": event.id, "type": "function", "function": function}
    else:
        call = {"index": event.index, "function": {"arguments": event.text}}
    return {"tool_calls": [call]}


def message_of(events: list[Event]) -> dict[str, Any]:
    """`content` of a whole answer, and its `reasoning_content` and `tool_calls` if it has any."""
    text = "".join(event.text for event in events if isinstance(event, Content))
    thoughts = "".join(event.text for event in events if isinstance(event, Thought))
    extra = {"reasoning_content": thoughts} if thoughts else {}
    calls: dict[int, dict[str, Any]] = {}
    for event in events:
        if isinstance(event, CallBegins):
            function = {"name": event.name, "arguments": ""}
            calls[event.index] = {"id": event.id, "type": "function", "function": function}
        elif isinstance(event, CallArguments):
            calls[event.index]["function"]["arguments"] += event.text
    if not calls:
        return {"content": text, **extra}
    return {"content": text or None, **extra, "tool_calls": list(calls.values())}
