# SPDX-License-Identifier: Apache-2.0
"""POST /v1/chat/completions: a conversation, written out by the checkpoint's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tritonctl.frontend import errors
from tritonctl.frontend.asked import TextAsked
from tritonctl.frontend.bodies import Body
from tritonctl.frontend.choices import Choices
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.guides import GUIDE_TENSORS, Guide, ResponseFormat, guide_of, guided
from tritonctl.frontend.logprobs import LogProbs, chat_record, check_top
from tritonctl.frontend.models import Target
from tritonctl.frontend.reasoning import thinking
from tritonctl.frontend.sampling import sampling_of
from tritonctl.frontend.streaming import PLACE, event
from tritonctl.frontend.text_fields import UNSUPPORTED as OF_TEXT
from tritonctl.frontend.text_fields import NoList, Nothing, TextFields, Tokens
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.tools.calls import Content, Event, delta, message_of
from tritonctl.frontend.tools.fields import (
    MOST_TOOLS,
    NO_TOOLS,
    Choice,
    EarlierCall,
    Tools,
    ToolUse,
    tool_use,
)
from tritonctl.frontend.vocabulary import Vocabulary
from tritonctl.project.frontend import Reasoning
from tritonctl.protocol.generation import Chunk, Conversation, Message

_MOST_MESSAGES = 4096
_MOST_VARIABLES = 64
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
}


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """A message. Of the assistant's: with the calls that it made; a tool's is the result of one."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = None
    name: str | None = Field(None, description="reaches templates that know names")
    tool_calls: Annotated[list[EarlierCall], Field(max_length=MOST_TOOLS)] | None = None
    tool_call_id: str | None = Field(None, description="of the call that this is the result of")
    reasoning_content: str | None = Field(
        None, description="of earlier answers; reaches templates that know it"
    )
    refusal: str | None = Field(None, description="of earlier answers; not part of the prompt")
    parsed: Any = Field(None, description="OpenAI's client adds it; not part of the prompt")

    def check(self, place: str) -> None:
        """Raises ApiError for fields that do not fit its role. place: `messages[0]`."""
        if self.content is None and not self.tool_calls:
            raise _missing(f"{place}.content")
        if self.role == "tool" and self.tool_call_id is None:
            raise _missing(f"{place}.tool_call_id")
        for name, role in (("tool_calls", "assistant"), ("tool_call_id", "tool")):
            if getattr(self, name) is not None and self.role != role:
                text = f"`{place}.{name}` is only for the role `{role}`"
                raise ApiError(400, text, code="invalid_value", param=f"{place}.{name}")

    @property
    def plain(self) -> Message:
        """As the ensemble's `messages` have it."""
        message: dict[str, Any] = {"role": _ROLES.get(self.role, self.role)}
        if isinstance(self.content, list):
            message["content"] = [part.model_dump() for part in self.content]
        elif self.content is not None or self.tool_calls:
            message["content"] = self.content
        if self.tool_calls:
            message["tool_calls"] = [call.plain for call in self.tool_calls]
        more = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
        }
        return message | {key: value for key, value in more.items() if value is not None}


def _missing(place: str) -> ApiError:
    return ApiError(400, f"`{place}` is missing", code="missing_required_parameter", param=place)


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
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=_MOST_VARIABLES)] | None = (
        Field(None, description="as vLLM's: what else the chat template reads, by name")
    )
    logprobs: bool | None = Field(None, description="with the probability of each token")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="with `logprobs`: 0; 1 where the choice is greedy"
    )
    metadata: Nothing | None = Field(None, description="not supported")
    modalities: Annotated[list[Literal["text"]], Field(max_length=1)] | None = Field(
        None, description="text alone"
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
    store: Literal[False] | None = Field(None, description="nothing is stored")
    tools: Tools | None = Field(
        None, description="functions that the model may call, where its chat template knows tools"
    )
    tool_choice: Choice | None = Field(
        None, description="`required` and a function by name: by guided decoding"
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
        """The longest answer, tokens."""
        return self.max_completion_tokens or self.max_tokens

    def use(self, target: Target, text: TextModel) -> ToolUse:
        """How it uses tools. Raises ApiError."""
        return tool_use(
            self.tools,
            self.tool_choice,
            parallel=self.parallel_tool_calls,
            tool_format=text.tool_format,
            model=target.shown,
        )

    def asked(self, target: Target, use: ToolUse) -> TextAsked:
        """What it asks of the model. Raises ApiError."""
        for number, message in enumerate(self.messages):
            message.check(f"messages[{number}]")
        messages = [message.plain for message in self.messages]
        template = self.chat_template_kwargs
        plain = not (use.shown or template)
        prompt = messages if plain else Conversation(messages, use.shown, template)
        sampling = sampling_of(self, max_tokens=self.limit, adapter=target.adapter)
        guide = guide_of(self.response_format)
        if use.guide is not None:
            guide = Guide(use.guide, "tool_choice")
        sampling = guided(sampling, guide)
        fields = errors.FIELDS
        if guide is not None:
            fields = {**fields, **dict.fromkeys(GUIDE_TENSORS, guide.field)}
        if self.top_logprobs is not None and not self.logprobs:
            text = "`top_logprobs` is only for `logprobs: true`"
            raise ApiError(400, text, code="invalid_value", param="top_logprobs")
        if self.logprobs:
            check_top(self.top_logprobs or 0, sampling, "top_logprobs")
            sampling = replace(sampling, return_log_probs=True)
        return TextAsked(target, (prompt,), sampling, self.choices, "messages", fields)


class ChatChoices(Choices):
    """Messages of the assistant. vocabulary: where log probabilities are asked for."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"

    def __init__(
        self,
        asked: TextAsked,
        *,
        include_usage: bool,
        use: ToolUse = NO_TOOLS,
        reasoning: Reasoning | None = None,
        vocabulary: Vocabulary | None = None,
        top_logprobs: int = 0,
    ) -> None:
        super().__init__(asked, include_usage=include_usage)
        # Guided decoding begins with the first token: nothing is thought before.
        guided = asked.sampling.guided_decoding_guide_type is not None
        how = None if guided else reasoning
        self._readers = [thinking(use.reader(), how) for _ in range(self.count)]
        self._tokens = [LogProbs(vocabulary) for _ in range(self.count)] if vocabulary else None
        self._top = top_logprobs
        self._templates = [
            self.template(_delta(index, {"content": PLACE})) for index in range(self.count)
        ]
        self._ended = False
        self._news: list[list[Event]] = [[] for _ in range(self.count)]

    def begin(self, index: int) -> bytes:
        """The role."""
        return event(self.chunk_event(_delta(index, {"role": "assistant", "content": ""})))

    def events(self, index: int, chunk: Chunk) -> bytes:
        """Text, calls of tools, and why it ended."""
        news = self._read(index, chunk)
        if self._tokens is not None:
            return self._with_log_probs(index, chunk, news, self._tokens[index])
        data = b"".join([self._event(index, each) for each in news])
        reason = self._reason(index, chunk)
        return data + event(self.chunk_event(_delta(index, {}, reason))) if reason else data

    def _read(self, index: int, chunk: Chunk) -> list[Event]:
        """What a chunk says; the end of an answer that needs no more calls is marked."""
        reader = self._readers[index]
        if reader is None:
            return [Content(chunk.text)] if chunk.text else []
        if reader.full:
            return []
        news = reader.feed(chunk.text) if chunk.text else []
        if chunk.finish_reason:
            news += reader.finish()
        return news

    def _reason(self, index: int, chunk: Chunk) -> str | None:
        reader = self._readers[index]
        if reader is not None and reader.full:  # the rest would be further calls
            self._ended = self.count == 1
            return "tool_calls" if self._ended or chunk.finish_reason else None
        if chunk.finish_reason == "stop" and reader is not None and reader.calls:
            return "tool_calls"
        return chunk.finish_reason or None

    def _event(self, index: int, news: Event) -> bytes:
        if isinstance(news, Content):
            return self._templates[index].of(news.text)
        return event(self.chunk_event(_delta(index, delta(news))))

    def _with_log_probs(
        self, index: int, chunk: Chunk, news: list[Event], tokens: LogProbs
    ) -> bytes:
        """The tokens of a chunk go with the first thing that it says."""
        record = chat_record(tokens.read(chunk), self._top)
        changes = [delta(each) for each in news] or ([{}] if record["content"] else [])
        choices = [_delta(index, change) for change in changes]
        if choices:
            choices[0]["logprobs"] = record
        data = b"".join([event(self.chunk_event(choice)) for choice in choices])
        reason = self._reason(index, chunk)
        return data + event(self.chunk_event(_delta(index, {}, reason))) if reason else data

    @property
    def complete(self) -> bool:
        """After the one call that may be."""
        return self._ended

    def observe(self, index: int, chunk: Chunk) -> None:
        """Find calls while the answer comes: one may be enough."""
        self._news[index] += self._read(index, chunk)
        self._reason(index, chunk)

    def choice(self, index: int, chunks: list[Chunk]) -> dict[str, Any]:
        """The whole message."""
        said = {"role": "assistant", "refusal": None, **message_of(self._news[index])}
        log_probs = None
        if self._tokens is not None:
            read = [token for chunk in chunks for token in self._tokens[index].read(chunk)]
            log_probs = chat_record(read, self._top)
        return {
            "index": index,
            "message": said,
            "logprobs": log_probs,
            "finish_reason": self._reason(index, chunks[-1]),
        }


def _delta(index: int, change: Any, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": change, "logprobs": None, "finish_reason": finish_reason}
