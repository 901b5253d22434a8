# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: conversations, formatted by the checkpoint's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tritonctl.frontend.answers import TextGenerator
from tritonctl.frontend.bodies import Off
from tritonctl.frontend.chat_messages import (
    ChatMessage,
    check_messages,
    refuse_names,
    with_own_role,
)
from tritonctl.frontend.conversation import Conversation, answer_reader
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.guides import ResponseFormat, guide_of
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.logprobs import AnswerToken, LogProbs, chat_record, with_log_probs
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.reasoning import AnswerReader
from tritonctl.frontend.sampling import sampling_with_stops
from tritonctl.frontend.text_fields import (
    MAX_TEMPLATE_VARIABLES,
    EmptyList,
    EmptyObject,
    TextFields,
    Tokens,
)
from tritonctl.frontend.text_fields import UNSUPPORTED as OF_TEXT
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.frontend.text_response import PLACE, ChoiceFormatter, ResponseEnvelope, respond
from tritonctl.frontend.tools.calls import Content, Event, delta, message_of
from tritonctl.frontend.tools.fields import (
    ToolChoice,
    Tools,
    ToolSelection,
    ToolUse,
    resolve_tool_use,
)
from tritonctl.protocol.generation import Chunk

_MAX_MESSAGES = 4096

UNSUPPORTED: Mapping[str, str] = {
    **OF_TEXT,
    "audio": "answers are text; leave it out",
    "function_call": "OpenAI replaced it with `tool_choice`",
    "functions": "OpenAI replaced it with `tools`",
    "modalities": 'answers are text; leave it out, or send ["text"]',
    "prediction": "leave it out",
    "reasoning_effort": "leave it out, or send `none`",
    "verbosity": "leave it out, or send `medium`",
    "web_search_options": "nothing is searched; leave it out",
}


class ChatRequest(TextFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True)
    ] = Field(description="the conversation, oldest message first")
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
    functions: EmptyList | None = Field(None, description="not supported")
    chat_template_kwargs: (
        Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_VARIABLES)] | None
    ) = Field(None, description="as vLLM's: what else the chat template reads, by name")
    logprobs: bool | None = Field(None, description="with the probability of each token")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="with `logprobs`: 0; 1 where the choice is greedy"
    )
    metadata: EmptyObject | None = Field(None, description="not supported")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1, fail_fast=True)] | None = (
        Field(None, description="text alone")
    )
    parallel_tool_calls: bool | None = Field(
        None, description="false: one call at most; without tools it changes nothing"
    )
    prediction: None = Field(None, description="not supported")
    reasoning_effort: Literal["none"] | None = Field(None, description="not supported")
    response_format: ResponseFormat | None = Field(
        None, description="JSON, perhaps by a schema, where the engine has guided decoding"
    )
    service_tier: Literal["auto", "default"] | None = Field(None, description="there is one")
    store: Off | None = Field(None, description="nothing is stored")
    tools: Tools | None = Field(
        None, description="functions that the model may call, where its chat template knows tools"
    )
    tool_choice: ToolChoice | None = Field(
        None,
        description="`required` and a function by name: by guided decoding; `allowed_tools`: the "
        "model is shown these alone",
    )
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
        """The maximum number of tokens per answer."""
        return self.max_completion_tokens or self.max_tokens

    def resolve_tools(self, target: RequestTarget, text: TextModel) -> ToolUse:
        """Resolve how the request uses tools. Raises ApiError."""
        return resolve_tool_use(
            self.tools,
            ToolSelection.of(self.tool_choice),
            text_guide=guide_of(self.response_format),
            parallel=self.parallel_tool_calls,
            tool_format=text.tool_format,
            model=target.requested_name,
        )

    def to_generation(
        self, target: RequestTarget, use: ToolUse, *, refuses_system: bool = False
    ) -> TextGenerationRequest:
        """Convert to a generation request. Raises ApiError.

        refuses_system: the model's setting for templates without a system role.
        """
        check_messages(self.messages)
        sampling = sampling_with_stops(self, max_tokens=self.limit, adapter=target.adapter)
        conversation = Conversation(
            [message.for_ensemble for message in self.messages],
            use,
            self.chat_template_kwargs,
            refuses_system,
        )
        generation = conversation.to_generation(
            target, sampling, prompt_field="messages", choices=self.choices
        )
        if self.top_logprobs is not None and not self.logprobs:
            text = "`top_logprobs` is only for `logprobs: true`"
            raise ApiError(400, text, code="invalid_value", param="top_logprobs")
        if not self.logprobs:
            return generation
        return with_log_probs(generation, self.top_logprobs or 0, "top_logprobs")


async def answer(
    request: HttpRequest,
    body: ChatRequest,
    target: RequestTarget,
    text: TextModel,
    generator: TextGenerator,
) -> None:
    """Answer with the assistant's messages. Raises ApiError, ClientGoneError."""
    if text.reads_names is False:
        refuse_names(body.messages)
    use = body.resolve_tools(target, text)
    generation = body.to_generation(target, use, refuses_system=text.refuses_system)
    vocabulary = generator.vocabulary(generation, text) if body.logprobs else None
    envelope = ResponseEnvelope(
        target.requested_name,
        id_prefix="chatcmpl",
        object_name="chat.completion",
        event_object_name="chat.completion.chunk",
        include_usage=body.include_usage,
    )
    formatters = [
        ChatFormatter(
            index,
            envelope,
            answer_reader(use, generation, text),
            LogProbs(vocabulary) if vocabulary else None,
            body.top_logprobs or 0,
        )
        for index in range(generation.answer_count)
    ]
    stream = bool(body.stream)
    try:
        await respond(request, generator, generation, envelope, formatters, stream=stream)
    except ApiError as error:
        error.message = with_own_role(error.message, {each.role for each in body.messages})
        raise


class ChatFormatter(ChoiceFormatter):
    """Formats one message of the assistant."""

    def __init__(
        self,
        index: int,
        envelope: ResponseEnvelope,
        reader: AnswerReader | None = None,
        log_probs: LogProbs | None = None,
        top_logprobs: int = 0,
    ) -> None:
        """reader: None if all text is content. log_probs: only for requests with `logprobs`."""
        self._index = index
        self._envelope = envelope
        self._reader = reader
        self._log_probs = log_probs
        self._top = top_logprobs
        self._content = envelope.template(self._delta({"content": PLACE}))
        # The complete message so far.
        self._events: list[Event] = []
        self._tokens: list[AnswerToken] = []
        self._finish_reason: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the last allowed call is complete: further text would be further calls."""
        return self._reader is not None and self._reader.full

    def opening_events(self) -> bytes:
        """Encode the event with the role."""
        return self._envelope.event(self._delta({"role": "assistant", "content": ""}))

    def events(self, chunk: Chunk) -> bytes:
        """Encode events with text, tool calls and the finish reason."""
        events = self._parse(chunk)
        if self._log_probs is None:
            data = b"".join([self._encode(event) for event in events])
        else:
            data = self._encode_with_log_probs(events, self._log_probs.read(chunk))
        reason = self._reason(chunk)
        return data + self._envelope.event(self._delta({}, reason)) if reason else data

    def collect(self, chunk: Chunk) -> None:
        """Add a chunk to the complete message."""
        self._events += self._parse(chunk)
        if self._log_probs is not None:
            self._tokens += self._log_probs.read(chunk)
        self._finish_reason = self._reason(chunk)

    def choice(self) -> dict[str, Any]:
        """The complete message."""
        return {
            "index": self._index,
            "message": {"role": "assistant", "refusal": None, **message_of(self._events)},
            "logprobs": None if self._log_probs is None else chat_record(self._tokens, self._top),
            "finish_reason": self._finish_reason,
        }

    def _parse(self, chunk: Chunk) -> list[Event]:
        if self._reader is None:
            return [Content(chunk.text)] if chunk.text else []
        events = self._reader.feed(chunk.text) if chunk.text else []
        if chunk.finish_reason:
            events += self._reader.finish()
        return events

    def _reason(self, chunk: Chunk) -> str | None:
        reader = self._reader
        if reader is not None and (reader.full or (chunk.finish_reason == "stop" and reader.calls)):
            return "tool_calls"
        return chunk.finish_reason or None

    def _encode(self, event: Event) -> bytes:
        if isinstance(event, Content):
            return self._content.of(event.text)
        return self._envelope.event(self._delta(delta(event)))

    def _encode_with_log_probs(
        self, events: Sequence[Event], tokens: Sequence[AnswerToken]
    ) -> bytes:
        """Attach the log probabilities of a chunk to its first event."""
        changes = [delta(event) for event in events] or ([{}] if tokens else [])
        choices = [self._delta(change) for change in changes]
        if choices:
            choices[0]["logprobs"] = chat_record(tokens, self._top)
        return b"".join([self._envelope.event(choice) for choice in choices])

    def _delta(self, change: Any, finish_reason: str | None = None) -> dict[str, Any]:
        return {
            "index": self._index,
            "delta": change,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
