# SPDX-License-Identifier: Apache-2.0
"""Convert OpenAI's sampling fields to the ensemble's. The server chooses missing values."""

from __future__ import annotations

from dataclasses import replace

from tritonctl.frontend.bodies import Body
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.text_fields import SamplingFields, TextFields
from tritonctl.protocol.generation import SamplingParameters

_NO_END = -1
_SEEDS = 2**64


def sampling_of(
    body: SamplingFields, *, max_tokens: int | None, adapter: str | None
) -> SamplingParameters:
    """Return a request's sampling parameters. Raises ApiError for contradictory fields."""
    fields = body.sampling_fields()
    min_tokens = fields["min_tokens"]
    if min_tokens and max_tokens is not None and min_tokens > max_tokens:
        raise ApiError(
            400,
            f"`min_tokens` is {min_tokens}, more than the limit of {max_tokens} tokens",
            code="invalid_value",
            param="min_tokens",
        )
    if (seed := fields["random_seed"]) is not None:
        fields["random_seed"] = seed % _SEEDS
    return SamplingParameters(**fields, max_tokens=max_tokens, lora_name=adapter)


def sampling_with_stops(
    body: TextFields, *, max_tokens: int | None, adapter: str | None
) -> SamplingParameters:
    """As `sampling_of`, with the fields that end an answer."""
    check_stream_options(body.stream_options, stream=body.stream)
    words = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return replace(
        sampling_of(body, max_tokens=max_tokens, adapter=adapter),
        end_id=_NO_END if body.ignore_eos else None,
        stop_words=words or None,
        include_stop_word=body.include_stop_str_in_output,
    )


def check_stream_options(options: Body | None, *, stream: bool | None) -> None:
    """Raise ApiError for options of a stream in a request without `stream`."""
    if options is not None and not stream:
        raise ApiError(
            400,
            "`stream_options` is only for `stream: true`",
            code="invalid_value",
            param="stream_options",
        )


def sampling_of_choice(sampling: SamplingParameters, choice: int) -> SamplingParameters:
    """Shift the seed for one of several answers: with the same seed they would be equal."""
    if not choice or sampling.random_seed is None:
        return sampling
    return replace(sampling, random_seed=(sampling.random_seed + choice) % _SEEDS)
