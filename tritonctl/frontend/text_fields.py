# SPDX-License-Identifier: Apache-2.0
"""The fields that /v1/chat/completions and /v1/completions share.

Fields of OpenAI's that no engine can serve are here, too, with the one value that changes nothing:
clients send them, and an answer that ignores a field looks like one that honours it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from tritonctl.frontend.bodies import Body

MOST_CHOICES = 128
_MOST_INT32 = 2**31 - 1
_MOST_WORDS, _MOST_WORD = 4, 256  # engines': bytes of a stop word

ModelName = Annotated[str, Field(min_length=1, max_length=512)]
Nothing = Annotated[dict[str, Any], Field(max_length=0)]
NoList = Annotated[list[Any], Field(max_length=0)]
Tokens = Annotated[int, Field(ge=1, le=_MOST_INT32)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=_MOST_WORD)]
Penalty = Annotated[float, Field(ge=-2, le=2)]

# Why these take no value that would change something.
UNSUPPORTED: Mapping[str, str] = {
    "logit_bias": "tokens cannot be biased; leave it out",
    "metadata": "nothing is stored; leave it out",
    "service_tier": "there is one; leave it out, or send `auto`",
    "store": "nothing is stored; leave it out",
}


class StreamOptions(Body):
    """What a stream has besides its text."""

    include_usage: bool | None = Field(
        None, description="a last chunk without choices has the token counts"
    )
    include_obfuscation: Literal[False] | None = Field(
        None, description="not supported: chunks are not padded"
    )


class TextFields(Body):
    """Of both endpoints for text; null is the same as leaving a field out."""

    model: ModelName = Field(description="a model or an alias; MODEL:ADAPTER for a LoRA adapter")
    stream: bool | None = Field(None, description="send the text as it comes, by SSE")
    stream_options: StreamOptions | None = Field(None, description="only with `stream`")
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = Field(
        None, description="answers; each is a stream of the engine"
    )
    stop: Word | Annotated[list[Word], Field(max_length=_MOST_WORDS)] | None = Field(
        None, description="text that ends the answer, and is not part of it; up to 4"
    )
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1)] | None = Field(
        None, description="equal seed, equal text; answer number i has seed + i"
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = Field(
        None, description="0: greedy. Greedy, too, where no field asks for chance"
    )
    top_p: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="1: all tokens")
    presence_penalty: Penalty | None = Field(None, description="0: none")
    frequency_penalty: Penalty | None = Field(None, description="0: none")
    user: str | None = Field(None, description="changes nothing in the answer")
    logit_bias: Nothing | None = Field(None, description="not supported")
    # Not OpenAI's: as vLLM has them.
    top_k: Annotated[int, Field(ge=0, le=_MOST_INT32)] | None = Field(
        None, description="0: all tokens"
    )
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = Field(
        None, description="1: none"
    )
    min_tokens: Annotated[int, Field(ge=0, le=_MOST_INT32)] | None = Field(
        None, description="tokens before the answer may end"
    )
    ignore_eos: bool | None = Field(None, description="go on behind the model's own end")
    include_stop_str_in_output: bool | None = Field(
        None, description="the answer has the text of `stop` that ended it"
    )

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)
