# SPDX-License-Identifier: Apache-2.0
"""Parse and check the tensor `messages`: a conversation for the chat template.

A JSON array of messages, or an object {"messages": [...], "tools": [...], "chat_template_kwargs":
{...}, "system_messages": "prepend"}. Messages and tools have the form of OpenAI's API, which
Hugging Face's chat templates share. Further variables of a template, such as enable_thinking, have
a name and any value.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from textlib.errors import RequestError

MAX_BYTES = 10_000_000
# Maximum CPU time to render a prompt; an ordinary one takes a ten-thousandth of it.
CPU_SECONDS = 0.5
# First byte of the chat worker's answer: a prompt or an error message follows.
OK = b"\0"
FAILED = b"\1"
VARIABLES_KEY = "chat_template_kwargs"
SYSTEM_KEY = "system_messages"
_PREPEND, _REFUSE = "prepend", "refuse"
_RESERVED_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
_MESSAGE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
_EXAMPLE = '[{"role": "user", "content": "..."}]'
_WITH_TOOLS = f'{{"messages": {_EXAMPLE}, "tools": [...]}}'
_PART = '{"type": "text", "text": "..."}'

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChatConversation:
    """The input of a chat template."""

    messages: Sequence[Message]  # oldest first
    tools: Sequence[Mapping[str, Any]] | None = None  # tools that the model may call
    variables: Mapping[str, Any] = field(default_factory=dict)  # further variables by name
    # Whether a template without a system role gets system messages in front of the user's.
    prepends_system: bool = True


def parse_messages(raw: bytes) -> ChatConversation:
    """Parse the conversation in the tensor. Raises RequestError.

    The chat template decides which roles exist; this only checks that they are text.
    """
    if len(raw) > MAX_BYTES:
        raise RequestError(
            f"messages has {len(raw)} bytes, the limit is {MAX_BYTES}. Leave out old messages."
        )
    value = _parse_json(raw)
    tools: Any = None
    variables: dict[str, Any] = {}
    prepends_system = True
    if isinstance(value, dict):
        if unknown_keys := sorted(value.keys() - {"messages", "tools", VARIABLES_KEY, SYSTEM_KEY}):
            raise RequestError(
                f"messages has the key {unknown_keys[0]!r:.80}, expected {_EXAMPLE} or "
                f"{_WITH_TOOLS}."
            )
        tools = _tools(value.get("tools"))
        variables = _variables(value.get(VARIABLES_KEY))
        prepends_system = _prepends_system(value.get(SYSTEM_KEY, _PREPEND))
        value = value.get("messages")
    if not isinstance(value, list):
        raise RequestError(
            f"messages is {_describe_type(value)}, expected a JSON array: {_EXAMPLE}."
        )
    if not value:
        raise RequestError(f"messages is empty, expected at least one message: {_EXAMPLE}.")
    messages = [_message(index, item) for index, item in enumerate(value)]
    return ChatConversation(messages, tools, variables, prepends_system)


def _prepends_system(value: Any) -> bool:
    if value not in (_PREPEND, _REFUSE):
        raise RequestError(f"messages: {SYSTEM_KEY} is not {_PREPEND} or {_REFUSE}.")
    return bool(value == _PREPEND)


def _variables(value: Any) -> dict[str, Any]:
    """Return the caller's variables; rejects names that every template receives."""
    if value is None:
        return {}
    for name in _check_object(f"messages: {VARIABLES_KEY}", value):
        if name in _RESERVED_VARIABLES or name.endswith("_token"):
            raise RequestError(f"messages: {VARIABLES_KEY}.{name:.80} is reserved.")
        if not name.isidentifier():
            raise RequestError(f"messages: {VARIABLES_KEY} has {name!r:.80}, expected a name.")
    return dict(value)


def _tools(value: Any) -> list[dict[str, Any]] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise RequestError(
            f"messages: tools is {_describe_type(value)}, expected a JSON array of at least one "
            "tool."
        )
    return [_check_object(f"messages: tools[{index}]", item) for index, item in enumerate(value)]


def _parse_json(raw: bytes) -> Any:
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
        raise RequestError(f"messages is not valid JSON: {error}. Expected {_EXAMPLE}.") from None


def _message(index: int, item: Any) -> Message:
    path = f"messages[{index}]"
    if not isinstance(item, dict):
        raise RequestError(
            f"{path} is {_describe_type(item)}, expected an object as in {_EXAMPLE}."
        )
    if unknown_keys := sorted(item.keys() - set(_MESSAGE_KEYS)):
        raise RequestError(
            f"{path} has the key {unknown_keys[0]!r:.80}; it takes {', '.join(_MESSAGE_KEYS)}."
        )
    _check_text(f"{path}.role", item.get("role"))
    if not item["role"]:
        raise RequestError(f"{path}.role is empty, expected a role such as user or assistant.")
    calls = item.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise RequestError(
                f"{path}.tool_calls is {_describe_type(calls)}, expected a JSON array."
            )
        for number, call in enumerate(calls):
            _check_object(f"{path}.tool_calls[{number}]", call)
    content = item.get("content")
    if isinstance(content, list):
        _check_parts(f"{path}.content", content)
    elif content is not None or not calls:  # a message with tool calls may have no text
        _check_text(f"{path}.content", content)
    return item


def _check_parts(path: str, parts: list[Any]) -> None:
    for index, part in enumerate(parts):
        part_path = f"{path}[{index}]"
        kind = _check_object(part_path, part).get("type")
        if kind != "text":
            raise RequestError(
                f"{part_path} is of type {str(kind)!r:.80}, expected text: this model reads text "
                f"only, as in {_PART}."
            )
        _check_text(f"{part_path}.text", part.get("text"))


def _check_object(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{path} is {_describe_type(value)}, expected an object.")
    return value


def _check_text(path: str, value: Any) -> None:
    if not isinstance(value, str):
        raise RequestError(f"{path} is {_describe_type(value)}, expected text.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{path} has half a surrogate pair at character {error.start}: no such character "
            "exists. Send characters beyond U+FFFF as UTF-8 or as two \\u escapes."
        ) from None


def _describe_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "a boolean"}
    if value is None:
        return "missing or null"
    return names.get(type(value), "a number")
