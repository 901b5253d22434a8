# SPDX-License-Identifier: Apache-2.0
"""The body of POST /v1/responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, StringConstraints

from tritonctl.frontend import errors
from tritonctl.frontend.bodies import Body, Off
from tritonctl.frontend.conversation import Conversation
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.guides import (
    ANY_OBJECT,
    AnswerGuide,
    ObjectFormat,
    SchemaName,
    TextFormat,
)
from tritonctl.frontend.logprobs import with_log_probs
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.responses.input_items import InputItems, to_messages
from tritonctl.frontend.responses.tools import (
    TOOL_NAME_FIELD,
    FlatChoice,
    FlatTools,
    selection_of,
)
from tritonctl.frontend.sampling import check_stream_options, sampling_of
from tritonctl.frontend.text_fields import MAX_TEMPLATE_VARIABLES, SamplingFields, Tokens
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.frontend.tools.fields import ToolUse, resolve_tool_use

LogProbsOption = Literal["message.output_text.logprobs"]
(_LOG_PROBS,) = get_args(LogProbsOption)
_NOTHING_STORED = "nothing is stored"
_FIELDS = {**errors.FIELDS, "max_tokens": "max_output_tokens", "return_log_probs": "include"}

UNSUPPORTED: Mapping[str, str] = {
    "background": f"{_NOTHING_STORED}, so an answer could not be fetched later; leave it out",
    "context_management": "conversations are not shortened; leave it out",
    "conversation": f"{_NOTHING_STORED}; send the whole conversation in `input`",
    "include": f"leave it out, or send [`{_LOG_PROBS}`]",
    "max_tool_calls": "it limits tools that the server runs, and it runs none; leave it out",
    "moderation": "nothing is moderated; leave it out",
    "previous_response_id": f"{_NOTHING_STORED}; send the whole conversation in `input`",
    "prompt": f"{_NOTHING_STORED}; send `instructions` and `input`",
    "prompt_cache_options": "leave it out",
    "prompt_cache_retention": "leave it out",
    "reasoning": "leave it out, or send an `effort` of `none`",
    "service_tier": "only one tier exists; leave it out, or send `auto`",
    "truncation": "conversations are not shortened; leave it out, or send `disabled`",
    # Fields of /v1/chat/completions.
    "logprobs": f"send `include` with `{_LOG_PROBS}`",
    "max_completion_tokens": "here it is `max_output_tokens`",
    "max_tokens": "here it is `max_output_tokens`",
    "messages": "here it is `input`",
    "n": "there is one answer; use /v1/chat/completions",
    "response_format": "here it is `text.format`",
    "stop": "use /v1/chat/completions",
}

MetadataKey = Annotated[str, StringConstraints(max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class FlatSchemaFormat(Body):
    """JSON that follows a schema, `strict` or not."""

    type: Literal["json_schema"]
    name: SchemaName
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


FlatFormat = Annotated[TextFormat | ObjectFormat | FlatSchemaFormat, Field(discriminator="type")]


class TextOptions(Body):
    """Options of the answer's text."""

    format: FlatFormat | None = None
    verbosity: Literal["medium"] | None = Field(None, description="not supported")

    @property
    def guide(self) -> AnswerGuide | None:
        """The guide of the text; None: unrestricted."""
        match self.format:
            case ObjectFormat():
                return AnswerGuide(ANY_OBJECT, "text.format")
            case FlatSchemaFormat():
                return AnswerGuide(self.format.schema_, "text.format")
            case _:
                return None


class ReasoningOptions(Body):
    """Options of the reasoning."""

    effort: Literal["none"] | None = None
    summary: None = None
    generate_summary: None = None


class EventStreamOptions(Body):
    """Options of streamed events."""

    include_obfuscation: Off | None = Field(
        None, description="not supported: events are not padded"
    )


class ResponsesRequest(SamplingFields):
    """The body of POST /v1/responses."""

    input: str | InputItems = Field(description="a text, or the conversation's items")
    instructions: str | None = Field(None, description="a system message before the items")
    max_output_tokens: Tokens | None = Field(
        None, description="longest answer; as much as fits when absent"
    )
    tools: FlatTools | None = Field(
        None, description="functions that the model may call, where its chat template knows tools"
    )
    tool_choice: FlatChoice | None = Field(
        None, description="as in /v1/chat/completions, in this API's form"
    )
    parallel_tool_calls: bool | None = Field(
        None, description="false: one call at most; without tools it changes nothing"
    )
    text: TextOptions | None = Field(
        None, description="`format`: JSON, perhaps by a schema, where the engine has guides"
    )
    include: Annotated[list[LogProbsOption], Field(max_length=1, fail_fast=True)] | None = Field(
        None, description="log probabilities of the text; nothing else"
    )
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        None, description="with `include` of log probabilities: 0; 1 where the choice is greedy"
    )
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = Field(
        None, description="returned with the answer"
    )
    store: bool | None = Field(None, description="nothing is stored, and the answer says so")
    stream_options: EventStreamOptions | None = Field(None, description="only with `stream`")
    safety_identifier: str | None = Field(None, description="changes nothing in the answer")
    prompt_cache_key: str | None = Field(None, description="changes nothing in the answer")
    service_tier: Literal["auto", "default"] | None = Field(None, description="there is one")
    truncation: Literal["disabled"] | None = Field(None, description="not supported")
    reasoning: ReasoningOptions | None = Field(None, description="not supported")
    background: Off | None = Field(None, description="not supported")
    previous_response_id: None = Field(None, description="not supported: nothing is stored")
    conversation: None = Field(None, description="not supported: nothing is stored")
    prompt: None = Field(None, description="not supported: nothing is stored")
    context_management: None = Field(None, description="not supported")
    max_tool_calls: None = Field(None, description="not supported")
    moderation: None = Field(None, description="not supported")
    prompt_cache_options: None = Field(None, description="not supported")
    prompt_cache_retention: None = Field(None, description="not supported")
    chat_template_kwargs: (
        Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_VARIABLES)] | None
    ) = Field(None, description="not OpenAI's: what else the chat template reads, by name")

    @property
    def log_probs(self) -> bool:
        """Whether the answer has log probabilities."""
        return bool(self.include)

    @property
    def roles(self) -> set[str]:
        """The roles of the items."""
        items = [] if isinstance(self.input, str) else self.input
        return {item.role for item in items if item.type == "message"}

    def resolve_tools(self, target: RequestTarget, text: TextModel) -> ToolUse:
        """Resolve how the request uses tools. Raises ApiError."""
        return resolve_tool_use(
            [tool.in_chat_form for tool in self.tools or ()],
            selection_of(self.tool_choice),
            text_guide=self.text.guide if self.text else None,
            parallel=self.parallel_tool_calls,
            tool_format=text.tool_format,
            model=target.requested_name,
            name_field=TOOL_NAME_FIELD,
        )

    def to_generation(
        self, target: RequestTarget, use: ToolUse, *, refuses_system: bool = False
    ) -> TextGenerationRequest:
        """Convert to a generation request. Raises ApiError.

        refuses_system: the model's setting for templates without a system role.
        """
        check_stream_options(self.stream_options, stream=self.stream)
        messages = to_messages(self.instructions, self.input)
        sampling = sampling_of(self, max_tokens=self.max_output_tokens, adapter=target.adapter)
        conversation = Conversation(messages, use, self.chat_template_kwargs, refuses_system)
        generation = conversation.to_generation(
            target, sampling, prompt_field="input", fields=_FIELDS
        )
        if self.top_logprobs is not None and not self.log_probs:
            text = f"`top_logprobs` is only for `include: [{_LOG_PROBS}]`"
            raise ApiError(400, text, code="invalid_value", param="top_logprobs")
        if not self.log_probs:
            return generation
        return with_log_probs(generation, self.top_logprobs or 0, "top_logprobs")
