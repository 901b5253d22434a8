# SPDX-License-Identifier: Apache-2.0
"""The fields that the text endpoints share.

OpenAI's unsupported fields are declared as well, with the single value that has no effect: clients
send them, and an answer that ignores a field looks like one that honours it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, StringConstraints, create_model

from tritonctl.frontend.bodies import Body, Off
from tritonctl.protocol.sampling_table import SamplingParameter, sampling_parameters

MAX_CHOICES = 128
MAX_TEMPLATE_VARIABLES = 64
MAX_INT32 = 2**31 - 1
_MAX_STOP_WORDS, _MAX_STOP_WORD_BYTES = 4, 256  # the engines' limits

ModelName = Annotated[str, Field(min_length=1, max_length=512)]
EmptyObject = Annotated[dict[str, Any], Field(max_length=0)]
EmptyList = Annotated[list[Any], Field(max_length=0)]
Tokens = Annotated[int, Field(ge=1, le=MAX_INT32)]
StopWord = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_STOP_WORD_BYTES)]

# Why these fields accept only a value without effect.
UNSUPPORTED: Mapping[str, str] = {
    "logit_bias": "tokens cannot be biased; leave it out",
    "metadata": "nothing is stored; leave it out",
    "service_tier": "only one tier exists; leave it out, or send `auto`",
    "store": "nothing is stored; leave it out",
}


def has_token_ids(value: Any) -> bool:
    """Whether an input is a list of token ids, or of such lists."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, int | list) and not isinstance(first, bool)


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(
        None, description="a last chunk without choices has the token counts"
    )
    include_obfuscation: Off | None = Field(
        None, description="not supported: chunks are not padded"
    )


class _ModelFields(Body):
    """Fields of every text endpoint; null is the same as leaving a field out."""

    model: ModelName = Field(description="a model or an alias; MODEL:ADAPTER for a LoRA adapter")
    stream: bool | None = Field(None, description="send the text as it comes, by SSE")
    user: str | None = Field(None, description="changes nothing in the answer")


def _sampling_field(parameter: SamplingParameter) -> Any:
    """Return the type and default of a sampling parameter's field."""
    description = parameter.openai.get("doc", parameter.doc)
    field = Field(None, description=description, **parameter.openai_bounds())
    return parameter.python_type | None, field


if TYPE_CHECKING:  # type checkers know no fields of a model that is made at run time
    _AllFields = _ModelFields
else:
    _AllFields = create_model(
        "_AllFields",
        __base__=_ModelFields,
        **{name: _sampling_field(each) for name, each in sampling_parameters().items()},
    )


class SamplingFields(_AllFields):
    """The fields of every text endpoint, with those of `sampling.json`."""

    def sampling_fields(self) -> dict[str, Any]:
        """Return the sampling parameters by the fields of `SamplingParameters`."""
        return {
            parameter.request_field: getattr(self, name)
            for name, parameter in sampling_parameters().items()
        }


class TextFields(SamplingFields):
    """The fields that the text endpoints share."""

    stream_options: StreamOptions | None = Field(None, description="only with `stream`")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="answers; each is a stream of the engine"
    )
    stop: (
        StopWord
        | Annotated[list[StopWord], Field(max_length=_MAX_STOP_WORDS, fail_fast=True)]
        | None
    ) = Field(None, description="text that ends the answer, and is not part of it; up to 4")
    logit_bias: EmptyObject | None = Field(None, description="not supported")
    # Not OpenAI's: as vLLM has them.
    ignore_eos: bool | None = Field(None, description="go on behind the model's own end")
    include_stop_str_in_output: bool | None = Field(
        None, description="the answer has the text of `stop` that ended it"
    )

    @property
    def choices(self) -> int:
        """Number of answers per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its token counts."""
        return bool(self.stream_options and self.stream_options.include_usage)
