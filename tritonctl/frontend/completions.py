# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions: the model continues a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from tritonctl.frontend.answers import TextGenerator
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.logprobs import (
    AnswerToken,
    LogProbs,
    completion_record,
    with_log_probs,
)
from tritonctl.frontend.models import RequestTarget
from tritonctl.frontend.sampling import sampling_with_stops
from tritonctl.frontend.text_fields import MAX_CHOICES, MAX_INT32, TextFields
from tritonctl.frontend.text_fields import UNSUPPORTED as OF_TEXT
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.frontend.text_response import PLACE, ChoiceFormatter, ResponseEnvelope, respond
from tritonctl.protocol.generation import Chunk, TokenPrompt

_DEFAULT_TOKENS = 16  # OpenAI's

UNSUPPORTED: Mapping[str, str] = {
    **OF_TEXT,
    "best_of": "all answers are returned: use `n`",
    "suffix": "models continue text and do not insert it; leave it out",
}


Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT32)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
TokenIdLists = Annotated[
    list[TokenIds], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)
]


def _kind_of(prompt: Any) -> str:
    """Return the tag of a prompt's kind: the first item of a list decides."""
    match prompt[:1] if isinstance(prompt, list) else None:
        case [int() | float()]:
            return "ids"
        case [list()]:
            return "id_lists"
        case _:
            return "text"


PromptField = Annotated[
    Annotated[str | Texts, Tag("text")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[TokenIdLists, Tag("id_lists")],
    Discriminator(_kind_of),
]


class CompletionRequest(TextFields):
    """The body of POST /v1/completions."""

    prompt: PromptField = Field(
        description="a text or token ids, or several; no special tokens are added to ids"
    )
    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = Field(
        None,
        description=f"longest answer; {_DEFAULT_TOKENS} when absent, as OpenAI's; 0 with `echo`: "
        "the prompt alone, whose tokens are counted",
    )
    echo: bool | None = Field(
        None, description="the answer begins with the prompt; not with `logprobs`"
    )
    best_of: Annotated[int, Field(ge=1, le=1)] | None = Field(None, description="not supported")
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = Field(
        None, description="0: of each token; 1 where the choice is greedy"
    )
    suffix: Literal[""] | None = Field(None, description="not supported")

    @property
    def prompts(self) -> tuple[str | TokenPrompt, ...]:
        """The prompts, at least one."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        ids = [each for each in self.prompt if isinstance(each, int)]
        if ids:
            return (TokenPrompt(tuple(ids)),)
        return tuple(
            TokenPrompt(tuple(each)) if isinstance(each, list) else str(each)
            for each in self.prompt
        )

    def to_generation(self, target: RequestTarget) -> TextGenerationRequest:
        """Convert to a generation request. Raises ApiError."""
        prompts = self.prompts
        if self.echo and not all(isinstance(prompt, str) for prompt in prompts):
            raise ApiError(
                400,
                "`echo` with token ids: only text is repeated. Send one of them",
                code="unsupported_parameter",
                param="echo",
            )
        if len(prompts) * self.choices > MAX_CHOICES:
            raise ApiError(
                400,
                f"{len(prompts)} prompts with {self.choices} answers each are more than "
                f"{MAX_CHOICES} answers",
                code="invalid_value",
                param="n",
            )
        if self.max_tokens == 0 and not self.echo:
            raise ApiError(
                400,
                "`max_tokens: 0` is only for `echo: true`: the answer would be empty",
                code="invalid_value",
                param="max_tokens",
            )
        max_tokens = _DEFAULT_TOKENS if self.max_tokens is None else self.max_tokens
        sampling = sampling_with_stops(self, max_tokens=max_tokens, adapter=target.adapter)
        generation = TextGenerationRequest(target, prompts, sampling, self.choices, "prompt")
        if self.logprobs is None:
            return generation
        if self.echo:
            # Evaluation harnesses would take the answer's values for those of the prompt.
            raise ApiError(
                400,
                "`echo` with `logprobs`: the engine reports log probabilities of the answer's "
                "tokens, not of the prompt's. Send one of them",
                code="unsupported_parameter",
                param="echo",
            )
        return with_log_probs(generation, self.logprobs, "logprobs")


async def answer(
    request: HttpRequest,
    body: CompletionRequest,
    target: RequestTarget,
    text: TextModel,
    generator: TextGenerator,
) -> None:
    """Answer with the texts. Raises ApiError, ClientGoneError."""
    generation = body.to_generation(target)
    vocabulary = None if body.logprobs is None else generator.vocabulary(generation, text)
    envelope = ResponseEnvelope(
        target.requested_name,
        id_prefix="cmpl",
        object_name="text_completion",
        event_object_name="text_completion",
        include_usage=body.include_usage,
    )
    formatters = [
        CompletionFormatter(
            index,
            envelope,
            str(generation.prompts[index // generation.choices]) if body.echo else "",
            LogProbs(vocabulary) if vocabulary else None,
            body.logprobs or 0,
        )
        for index in range(generation.answer_count)
    ]
    stream = bool(body.stream)
    await respond(request, generator, generation, envelope, formatters, stream=stream)


class CompletionFormatter(ChoiceFormatter):
    """Formats one text."""

    def __init__(
        self,
        index: int,
        envelope: ResponseEnvelope,
        echoed_prompt: str = "",
        log_probs: LogProbs | None = None,
        top_logprobs: int = 0,
    ) -> None:
        """log_probs: only for requests with `logprobs`."""
        self._index = index
        self._envelope = envelope
        self._prompt = echoed_prompt
        self._log_probs = log_probs
        self._top = top_logprobs
        self._template = envelope.template(self._choice(PLACE))
        # The complete text so far.
        self._texts = [echoed_prompt]
        self._tokens: list[AnswerToken] = []
        self._finish_reason = ""

    def opening_events(self) -> bytes:
        """Encode the event with the prompt, for requests with `echo`."""
        return self._template.of(self._prompt) if self._prompt else b""

    def events(self, chunk: Chunk) -> bytes:
        """Encode events with text and the finish reason."""
        tokens = [] if self._log_probs is None else self._log_probs.read(chunk)
        if self._log_probs is not None and (chunk.text or tokens):
            data = self._envelope.event(
                {**self._choice(chunk.text), "logprobs": self._record(tokens)}
            )
        else:
            data = self._template.of(chunk.text) if chunk.text else b""
        if chunk.finish_reason:
            data += self._envelope.event(self._choice("", chunk.finish_reason))
        return data

    def collect(self, chunk: Chunk) -> None:
        """Add a chunk to the complete text."""
        self._texts.append(chunk.text)
        if self._log_probs is not None:
            self._tokens += self._log_probs.read(chunk)
        self._finish_reason = chunk.finish_reason

    def choice(self) -> dict[str, Any]:
        """The complete text."""
        record = None if self._log_probs is None else self._record(self._tokens)
        choice = self._choice("".join(self._texts), self._finish_reason)
        return {**choice, "logprobs": record}

    def _record(self, tokens: Sequence[AnswerToken]) -> dict[str, Any]:
        return completion_record(tokens, self._top)

    def _choice(self, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
