# SPDX-License-Identifier: Apache-2.0
"""The tensor `messages`: a conversation for the chat template, checked by hand.

A JSON array of messages, or an object {"messages": [...], "tools": [...], "chat_template_kwargs":
{...}}. Messages and tools have OpenAI's form, which is that of Hugging Face's chat templates, too;
what else a template reads, such as enable_thinking, has a name and any value.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from textlib.errors import RequestError

MOST_BYTES = 10_000_000
# CPU time that a conversation's prompt may take; an ordinary one takes a ten-thousandth of it.
CPU_SECONDS = 0.5
# How the chat worker's answer begins: a prompt follows, or why there is none.
OK = b"\0"
FAILED = b"\1"
VARIABLES = "chat_template_kwargs"
_GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_FORM = '[{"role": "user", "content": "..."}]'
_WITH_TOOLS = f'{{"messages": {_FORM}, "tools": [...]}}'
_PART = '{"type": "text", "text": "..."}'

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, oldest first, and the tools that the model may call; None: it is shown none.

    variables: what else the template is given, by name.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)


def parse_messages(raw: bytes) -> Conversation:
    """The conversation in the tensor. Raises RequestError.

    The chat template decides which roles exist; that they are text is checked here.
    """
    if len(raw) > MOST_BYTES:
        raise RequestError(
            f"messages has {len(raw)} bytes, the limit is {MOST_BYTES}. Leave out old messages."
        )
    value = _json(raw)
    tools: Any = None
    variables: dict[str, Any] = {}
    if isinstance(value, dict):
        if unknown := sorted(value.keys() - {"messages", "tools", VARIABLES}):
            raise RequestError(
                f"messages has the key {unknown[0]!r:.80}, expected {_FORM} or {_WITH_TOOLS}."
            )
        tools = _tools(value.get("tools"))
        variables = _variables(value.get(VARIABLES))
        value = value.get("messages")
    if not isinstance(value, list):
        raise RequestError(f"messages is {_kind(value)}, expected a JSON array: {_FORM}.")
    if not value:
        raise RequestError(f"messages is empty, expected at least one message: {_FORM}.")
    messages = [_message(index, item) for index, item in enumerate(value)]
    return Conversation(messages, tools, variables)


def _variables(value: Any) -> dict[str, Any]:
    """Whatever the caller likes, but for what templates are always given."""
    if value is None:
        return {}
    for name in _object(f"messages: {VARIABLES}", value):
        if name in _GIVEN or name.endswith("_token"):
            raise RequestError(f"messages: {VARIABLES}.{name:.80} is not yours to set.")
        if not name.isidentifier():
            raise RequestError(f"messages: {VARIABLES} has {name!r:.80}, expected a name.")
    return dict(value)


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise RequestError(
            f"messages: tools is {_kind(value)}, expected a JSON array of at least one tool."
        )
    return [_object(f"messages: tools[{index}]", item) for index, item in enumerate(value)]


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(
            f"messages is not valid UTF-8: byte 0x{raw[error.start]:02x} at offset "
            f"{error.start} ({error.reason}). Send the JSON as UTF-8."
        ) from None
    except RecursionError:
        raise RequestError("messages is nested too deeply, expected a flat array.") from None
    except ValueError as error:
        raise RequestError(f"messages is not valid JSON: {error}. Expected {_FORM}.") from None


def _message(index: int, item: Any) -> Message:
    where = f"messages[{index}]"
    if not isinstance(item, dict):
        raise RequestError(f"{where} is {_kind(item)}, expected an object as in {_FORM}.")
    if unknown := sorted(item.keys() - set(_KEYS)):
        raise RequestError(f"{where} has the key {unknown[0]!r:.80}; it takes {', '.join(_KEYS)}.")
    _check_text(f"{where}.role", item.get("role"))
    if not item["role"]:
        raise RequestError(f"{where}.role is empty, expected a role such as user or assistant.")
    calls = item.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise RequestError(f"{where}.tool_calls is {_kind(calls)}, expected a JSON array.")
        for number, call in enumerate(calls):
            _object(f"{where}.tool_calls[{number}]", call)
    content = item.get("content")
    if isinstance(content, list):
        _check_parts(f"{where}.content", content)
    elif content is not None or not calls:  # who calls tools may say nothing
        _check_text(f"{where}.content", content)
    return item


def _check_parts(where: str, parts: list[Any]) -> None:
    for index, part in enumerate(parts):
        place = f"{where}[{index}]"
        kind = _object(place, part).get("type")
        if kind != "text":
            raise RequestError(
                f"{place} is of type {str(kind)!r:.80}, expected text: this model reads text only, "
                f"as in {_PART}."
            )
        _check_text(f"{place}.text", part.get("text"))


def _object(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} is {_kind(value)}, expected an object.")
    return value


def _check_text(where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{where} is {_kind(value)}, expected text.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where} has half a surrogate pair at character {error.start}: no such character "
            "exists. Send characters beyond U+FFFF as UTF-8 or as two \\u escapes."
        ) from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean"}
    if value is None:
        return "missing or null"
    return names.get(type(value), "a number")
