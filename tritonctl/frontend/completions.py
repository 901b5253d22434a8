# SPDX-License-Identifier: Apache-2.0
"""POST /v1/completions: text that the model continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from tritonctl.frontend.asked import TextAsked
from tritonctl.frontend.choices import Choices, text_of
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.logprobs import LogProbs, check_top, completion_record
from tritonctl.frontend.models import Target
from tritonctl.frontend.sampling import sampling_of
from tritonctl.frontend.streaming import PLACE, event
from tritonctl.frontend.text_fields import MOST_CHOICES, TextFields, Tokens
from tritonctl.frontend.text_fields import UNSUPPORTED as OF_TEXT
from tritonctl.frontend.vocabulary import Vocabulary
from tritonctl.protocol.generation import Chunk

_DEFAULT_TOKENS = 16  # OpenAI's

UNSUPPORTED: Mapping[str, str] = {
    **OF_TEXT,
    "best_of": "every answer is returned: ask for them with `n`",
    "suffix": "models continue text, and insert none; leave it out",
}


class CompletionRequest(TextFields):
    """The body of POST /v1/completions."""

    prompt: str | Annotated[list[str], Field(min_length=1, max_length=MOST_CHOICES)] = Field(
        description="a text, or several; token ids are not supported"
    )
    max_tokens: Tokens | None = Field(
        None, description=f"longest answer; {_DEFAULT_TOKENS} when absent, as OpenAI's"
    )
    echo: bool | None = Field(None, description="the answer begins with the prompt")
    best_of: Literal[1] | None = Field(None, description="not supported")
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = Field(
        None, description="0: of each token; 1 where the choice is greedy"
    )
    suffix: Literal[""] | None = Field(None, description="not supported")

    @field_validator("prompt", mode="before")
    @classmethod
    def _texts(cls, value: Any) -> Any:
        """Token ids have a reason of their own."""
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, int | list) and not isinstance(first, bool):
            raise ValueError("the model's ensemble takes text, not token ids: send the text")
        return value

    def asked(self, target: Target) -> TextAsked:
        """What it asks of the model. Raises ApiError."""
        prompts = (self.prompt,) if isinstance(self.prompt, str) else tuple(self.prompt)
        if len(prompts) * self.choices > MOST_CHOICES:
            raise ApiError(
                400,
                f"{len(prompts)} prompts with {self.choices} answers each are more than "
                f"{MOST_CHOICES} answers",
                code="invalid_value",
                param="n",
            )
        sampling = sampling_of(
            self, max_tokens=self.max_tokens or _DEFAULT_TOKENS, adapter=target.adapter
        )
        if self.logprobs is not None:
            check_top(self.logprobs, sampling, "logprobs")
            sampling = replace(sampling, return_log_probs=True)
        return TextAsked(target, prompts, sampling, self.choices, "prompt")


class CompletionChoices(Choices):
    """Texts."""

    prefix = "cmpl"
    whole = "text_completion"
    piece = "text_completion"

    def __init__(
        self,
        asked: TextAsked,
        *,
        include_usage: bool,
        echo: bool,
        vocabulary: Vocabulary | None = None,
        top_logprobs: int = 0,
    ) -> None:
        super().__init__(asked, include_usage=include_usage)
        self._echo = echo
        self._tokens = [LogProbs(vocabulary) for _ in range(self.count)] if vocabulary else []
        self._top = top_logprobs
        self._templates = [self.template(_choice(index, PLACE)) for index in range(self.count)]

    def begin(self, index: int) -> bytes:
        """The prompt, where it is asked for."""
        prompt = self._echoed(index)
        return self._templates[index].of(prompt) if prompt else b""

    def events(self, index: int, chunk: Chunk) -> bytes:
        """Text, and why it ended."""
        if self._tokens:
            record = self._record(index, [chunk])
            data = b""
            if chunk.text or record["tokens"]:
                data = event(self.chunk_event({**_choice(index, chunk.text), "logprobs": record}))
        else:
            data = self._templates[index].of(chunk.text) if chunk.text else b""
        if chunk.finish_reason:
            data += event(self.chunk_event(_choice(index, "", chunk.finish_reason)))
        return data

    def choice(self, index: int, chunks: list[Chunk]) -> dict[str, Any]:
        """The whole text."""
        text = self._echoed(index) + text_of(chunks)
        record = self._record(index, chunks) if self._tokens else None
        return {**_choice(index, text, chunks[-1].finish_reason), "logprobs": record}

    def _record(self, index: int, chunks: list[Chunk]) -> dict[str, Any]:
        tokens = self._tokens[index]
        read = [token for chunk in chunks for token in tokens.read(chunk)]
        return completion_record(read, self._top, start=len(self._echoed(index)))

    def _echoed(self, index: int) -> str:
        return str(self.asked.prompts[index // self.asked.choices]) if self._echo else ""


def _choice(index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
