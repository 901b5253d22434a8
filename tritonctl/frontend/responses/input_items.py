# SPDX-License-Identifier: Apache-2.0
"""The items of `input`, and their conversion to the ensemble's `messages`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.tools.fields import check_arguments
from tritonctl.protocol.generation import Message

_MAX_ITEMS = 4096
_MAX_NAME_LENGTH = 256
_NO_ARGUMENTS = "{}"

Identifier = Annotated[str, Field(min_length=1, max_length=_MAX_NAME_LENGTH)]
Status = Literal["in_progress", "completed", "incomplete"]


class InputTextPart(Body):
    """Text that was written to the model."""

    type: Literal["input_text"]
    text: str


class OutputTextPart(Body):
    """Text of an earlier answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] | None = Field(None, description="not part of the prompt")
    logprobs: list[Any] | None = Field(None, description="not part of the prompt")
    parsed: Any = Field(None, description="OpenAI's client adds it; not part of the prompt")


class RefusalPart(Body):
    """An earlier answer in which the assistant refused."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """The assistant's words."""
        return self.refusal


Part = Annotated[InputTextPart | OutputTextPart | RefusalPart, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(min_length=1, fail_fast=True)]


class _Item(Body):
    """Fields of every item; items of an answer can be sent back as they came."""

    id: str | None = Field(None, description="of an earlier answer; not part of the prompt")
    status: Status | None = Field(None, description="of an earlier answer; not part of the prompt")


class MessageItem(_Item):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    phase: None = Field(None, description="not supported")


class FunctionCallItem(_Item):
    """A call in an earlier answer."""

    type: Literal["function_call"]
    call_id: Identifier
    name: Identifier
    arguments: str = Field(description="a JSON object; an empty text: no arguments")
    parsed_arguments: Any = Field(None, description="OpenAI's client adds it")
    namespace: None = Field(None, description="not supported")
    caller: None = Field(None, description="not supported")


class FunctionCallOutputItem(_Item):
    """The result of an earlier call."""

    type: Literal["function_call_output"]
    call_id: Identifier
    output: str | Annotated[list[InputTextPart], Field(min_length=1, fail_fast=True)]
    caller: None = Field(None, description="not supported")


class ReasoningText(Body):
    """Text of an earlier answer's reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


ReasoningTexts = Annotated[list[ReasoningText], Field(fail_fast=True)]


class ReasoningItem(_Item):
    """The reasoning of an earlier answer; reaches templates that know it."""

    type: Literal["reasoning"]
    summary: ReasoningTexts = Field([], description="read where there is no `content`")
    content: ReasoningTexts | None = None
    encrypted_content: None = Field(None, description="not supported")


class ItemReference(_Item):
    """An item that the server should have stored."""

    type: Literal["item_reference"]


def _with_type(item: Any) -> Any:
    """Add the type that messages may lack."""
    return {"type": "message", **item} if isinstance(item, dict) else item


InputItem = Annotated[
    MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem | ItemReference,
    Field(discriminator="type"),
    BeforeValidator(_with_type),
]
InputItems = Annotated[list[InputItem], Field(min_length=1, max_length=_MAX_ITEMS, fail_fast=True)]


@dataclass
class _MessageList:
    """Collects messages. Items of the assistant in a row are one message, as its answer was."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    call_ids: set[str] = field(default_factory=set)
    _assistant: dict[str, Any] | None = None  # the last message, while items may still join it

    def add(self, role: str, content: Any, **fields: Any) -> None:
        self._assistant = None
        self.messages.append({"role": role, "content": content, **fields})

    def add_text(self, content: Any) -> None:
        message = self._assistant
        if message is None or (message["content"] and "tool_calls" not in message):
            message = self._open_message()
        if message["content"]:  # text behind a call
            content = [*_as_parts(message["content"]), *_as_parts(content)]
        message["content"] = content

    def add_thoughts(self, text: str) -> None:
        self._open_message()["reasoning_content"] = text

    def add_call(self, item: FunctionCallItem) -> None:
        arguments = item.arguments.strip() or _NO_ARGUMENTS
        function = {"name": item.name, "arguments": arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        message = self._assistant or self._open_message()
        message.setdefault("tool_calls", []).append(call)
        self.call_ids.add(item.call_id)

    def _open_message(self) -> dict[str, Any]:
        self._assistant = {"role": "assistant", "content": None}
        self.messages.append(self._assistant)
        return self._assistant


def to_messages(instructions: str | None, items: str | Sequence[InputItem]) -> list[Message]:
    """Convert a request's `instructions` and `input`. Raises ApiError."""
    result = _MessageList()
    if instructions is not None:
        result.add("system", instructions)
    if isinstance(items, str):
        result.add("user", items)
    else:
        for number, item in enumerate(items):
            _add(result, item, f"input[{number}]")
    for message in result.messages:
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""  # an answer that was cut off in its reasoning
    return list(result.messages)


def _add(result: _MessageList, item: InputItem, path: str) -> None:
    match item:
        case MessageItem(role="assistant"):
            result.add_text(_content(item.content))
        case MessageItem():
            role = "system" if item.role == "developer" else item.role
            result.add(role, _content(item.content))
        case FunctionCallItem():
            check_arguments(item.arguments, f"{path}.arguments")
            result.add_call(item)
        case FunctionCallOutputItem():
            if item.call_id not in result.call_ids:
                raise _refusal(
                    f"{path}.call_id",
                    f"no earlier item is a call with the `call_id` `{item.call_id:.80}`",
                )
            result.add("tool", _content(item.output), tool_call_id=item.call_id)
        case ReasoningItem():
            texts = [part.text for part in item.content or item.summary]
            if texts:
                result.add_thoughts("\n".join(texts))
        case ItemReference():
            raise _refusal(
                path,
                "nothing is stored, so there is no item to refer to: send the item itself. Clients "
                "that do so with `store: false` have an option for it, as Vercel's AI SDK: "
                "`providerOptions: {openai: {store: false}}`",
                code="unsupported_parameter",
            )


def _content(content: str | Sequence[Part] | Sequence[InputTextPart]) -> Any:
    """Return text, or text parts in the form of chat templates."""
    if isinstance(content, str):
        return content
    if len(content) == 1:
        return content[0].text
    return [{"type": "text", "text": part.text} for part in content]


def _as_parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _refusal(param: str, text: str, code: str = "invalid_value") -> ApiError:
    return ApiError(400, f"`{param}`: {text}", code=code, param=param)
