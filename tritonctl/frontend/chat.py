# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: a conversation, written out by the checkpoint's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tritonctl.frontend.answers import TextAsked
from tritonctl.frontend.bodies import Body
from tritonctl.frontend.choices import Choices, text_of
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.models import Target
from tritonctl.frontend.sampling import sampling_of
from tritonctl.frontend.streaming import PLACE, event
from tritonctl.frontend.text_fields import UNSUPPORTED as OF_TEXT
from tritonctl.frontend.text_fields import NoList, Nothing, TextFields, Tokens
from tritonctl.protocol.generation import Chunk, Message

_MOST_MESSAGES = 4096
# OpenAI's later name of the system's role; chat templates know the earlier one.
_ROLES = {"developer": "system"}

UNSUPPORTED: Mapping[str, str] = {
    **OF_TEXT,
    "audio": "answers are text; leave it out",
    "function_call": "OpenAI has replaced it by `tool_choice`",
    "functions": "OpenAI has replaced it by `tools`",
    "modalities": 'answers are text; leave it out, or send ["text"]',
    "prediction": "leave it out",
    "reasoning_effort": "leave it out, or send `none`",
    "verbosity": "leave it out, or send `medium`",
    "web_search_options": "nothing is searched; leave it out",
    "response_format": 'leave it out, or send {"type": "text"}',
    "logprobs": "leave it out, or send false",
    "top_logprobs": "leave it out",
    "tools": "leave it out",
    "tool_choice": "leave it out, or send `none`",
    "parallel_tool_calls": "leave it out",
}


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """A message. Parts of its content are put together with line breaks."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: None = Field(None, description="not supported: chat templates know roles alone")
    refusal: str | None = Field(None, description="of earlier answers; not part of the prompt")

    @property
    def plain(self) -> Message:
        """As the ensemble's `messages` have it."""
        content = self.content
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)
        return {"role": _ROLES.get(self.role, self.role), "content": content}


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class ChatRequest(TextFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=_MOST_MESSAGES)] = Field(
        description="the conversation, oldest message first"
    )
    max_tokens: Tokens | None = Field(
        None, description="earlier name of max_completion_tokens; as much as fits when absent"
    )
    max_completion_tokens: Tokens | None = Field(
        None, description="longest answer; as much as fits when absent"
    )
    safety_identifier: str | None = Field(None, description="changes nothing in the answer")
    prompt_cache_key: str | None = Field(None, description="changes nothing in the answer")
    audio: None = Field(None, description="not supported")
    function_call: Literal["none"] | None = Field(None, description="not supported")
    functions: NoList | None = Field(None, description="not supported")
    logprobs: Literal[False] | None = Field(None, description="not supported")
    top_logprobs: None = Field(None, description="not supported")
    metadata: Nothing | None = Field(None, description="not supported")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = Field(
        None, description="text alone"
    )
    parallel_tool_calls: bool | None = Field(None, description="without tools it changes nothing")
    prediction: None = Field(None, description="not supported")
    reasoning_effort: Literal["none"] | None = Field(None, description="not supported")
    response_format: TextFormat | None = Field(None, description="free text")
    service_tier: Literal["auto", "default"] | None = Field(None, description="there is one")
    store: Literal[False] | None = Field(None, description="nothing is stored")
    tools: NoList | None = Field(None, description="not supported")
    tool_choice: Literal["none", "auto"] | None = Field(None, description="not supported")
    verbosity: Literal["medium"] | None = Field(None, description="not supported")
    web_search_options: None = Field(None, description="not supported")

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise ApiError(
                400,
                f"`max_tokens` is {self.max_tokens} and `max_completion_tokens` is "
                f"{self.max_completion_tokens}: two names of one limit. Send one of them",
                code="invalid_value",
                param="max_tokens",
            )
        return self

    @property
    def limit(self) -> int | None:
        """The longest answer, tokens."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def conversation(self) -> Sequence[Message]:
        """As the ensemble takes it."""
        return [message.plain for message in self.messages]

    def asked(self, target: Target) -> TextAsked:
        """What it asks of the model. Raises ApiError."""
        sampling = sampling_of(self, max_tokens=self.limit, adapter=target.adapter)
        return TextAsked(target, (self.conversation,), sampling, self.choices, "messages")


class ChatChoices(Choices):
    """Messages of the assistant."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"

    def __init__(self, asked: TextAsked, *, include_usage: bool) -> None:
        super().__init__(asked, include_usage=include_usage)
        self._templates = [
            self.template(_delta(index, {"content": PLACE})) for index in range(self.count)
        ]

    def begin(self, index: int) -> bytes:
        """The role."""
        return event(self.chunk_event(_delta(index, {"role": "assistant", "content": ""})))

    def events(self, index: int, chunk: Chunk) -> bytes:
        """Text, and why it ended."""
        data = self._templates[index].of(chunk.text) if chunk.text else b""
        if chunk.finish_reason:
            data += event(self.chunk_event(_delta(index, {}, chunk.finish_reason)))
        return data

    def choice(self, index: int, chunks: list[Chunk]) -> dict[str, Any]:
        """The whole message."""
        message = {"role": "assistant", "content": text_of(chunks), "refusal": None}
        return {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": chunks[-1].finish_reason,
        }


def _delta(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
