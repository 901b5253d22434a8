# SPDX-License-Identifier: Apache-2.0
"""Messages of /v1/chat/completions, and what they must say of each other."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from tritonctl.frontend.bodies import Body, missing_field
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.tools.fields import MAX_TOOLS, EarlierCall
from tritonctl.protocol.generation import Message

# OpenAI's newer name of the system role; chat templates know only the older one.
_ROLES = {"developer": "system"}


class TextPart(Body):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """A message. The assistant's may contain tool calls; a tool's message is a call's result."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)] | None = None
    name: str | None = Field(None, description="where the chat template shows names")
    tool_calls: Annotated[list[EarlierCall], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = (
        None
    )
    tool_call_id: str | None = Field(None, description="of the call that this is the result of")
    reasoning_content: str | None = Field(
        None, description="of earlier answers; reaches templates that know it"
    )
    refusal: str | None = Field(None, description="of earlier answers; not part of the prompt")
    parsed: Any = Field(None, description="OpenAI's client adds it; not part of the prompt")

    def check(self, location: str) -> None:
        """Raise ApiError for fields that do not fit the role. location: such as `messages[0]`."""
        for name, is_needed in (
            ("content", not self.tool_calls),
            ("tool_call_id", self.role == "tool"),
        ):
            if is_needed and getattr(self, name) is None:
                raise self._absent(name, f"{location}.{name}")
        for name, role in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
            if getattr(self, name) is not None and self.role != role:
                text = f"`{location}.{name}` is only for the role `{role}`"
                raise ApiError(400, text, code="invalid_value", param=f"{location}.{name}")
        for number, call in enumerate(self.tool_calls or ()):
            call.check(f"{location}.tool_calls[{number}]")

    def _absent(self, name: str, path: str) -> ApiError:
        if name not in self.model_fields_set:
            return missing_field(path)
        remedy = " or `tool_calls`" if (name, self.role) == ("content", "assistant") else ""
        text = f"`{path}`: expected text{remedy}, got null"
        return ApiError(400, text, code="invalid_value", param=path)

    @property
    def for_ensemble(self) -> Message:
        """The message in the form of the ensemble's `messages`."""
        message: dict[str, Any] = {"role": _ROLES.get(self.role, self.role)}
        if isinstance(self.content, list):
            message["content"] = [part.model_dump() for part in self.content]
        elif self.content is not None or self.tool_calls:
            message["content"] = self.content
        if self.tool_calls:
            message["tool_calls"] = [call.for_template for call in self.tool_calls]
        extra = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
        }
        return message | {key: value for key, value in extra.items() if value is not None}


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Raise ApiError for a message that does not fit its role or the earlier messages."""
    call_ids: set[str] = set()
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        message.check(path)
        call_ids.update(call.id for call in message.tool_calls or ())
        if message.tool_call_id is not None and message.tool_call_id not in call_ids:
            param = f"{path}.tool_call_id"
            raise ApiError(
                400,
                f"`{param}`: no earlier message has a call with the id "
                f"`{message.tool_call_id:.80}`",
                code="invalid_value",
                param=param,
            )


def refuse_names(messages: Sequence[ChatMessage]) -> None:
    """Raise ApiError for a `name`, which the chat template would ignore."""
    called = {call.id: call.function.name for each in messages for call in each.tool_calls or ()}
    for number, message in enumerate(messages):
        is_repeated = message.role == "tool" and message.name == called.get(
            message.tool_call_id or ""
        )
        if message.name is not None and not is_repeated:
            param = f"messages[{number}].name"
            raise ApiError(
                400,
                f"`{param}` is not supported: the model's chat template shows no names. Leave it "
                "out, or write it into the content",
                code="unsupported_parameter",
                param=param,
            )


def with_own_role(text: str, roles: Collection[str]) -> str:
    """Return a template's message with the client's name of the system role.

    roles: of the client's messages.
    """
    is_renamed = "developer" in roles and "system" not in roles
    return re.sub(r"\bsystem\b", "developer", text) if is_renamed else text
