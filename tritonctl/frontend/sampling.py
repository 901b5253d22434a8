# SPDX-License-Identifier: Apache-2.0
"""OpenAI's fields as the ensemble's: what is not given is the server's choice."""

from __future__ import annotations

from dataclasses import replace

from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.text_fields import TextFields
from tritonctl.protocol.generation import SamplingParameters

_NO_END = -1
_SEEDS = 2**64


def sampling_of(
    asked: TextFields, *, max_tokens: int | None, adapter: str | None
) -> SamplingParameters:
    """Of a request. Raises ApiError for fields that contradict each other."""
    if asked.stream_options is not None and not asked.stream:
        raise ApiError(
            400,
            "`stream_options` is only for `stream: true`",
            code="invalid_value",
            param="stream_options",
        )
    if asked.min_tokens and max_tokens is not None and asked.min_tokens > max_tokens:
        raise ApiError(
            400,
            f"`min_tokens` is {asked.min_tokens}, and at most {max_tokens} tokens are asked for",
            code="invalid_value",
            param="min_tokens",
        )
    words = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    return SamplingParameters(
        max_tokens=max_tokens,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        random_seed=None if asked.seed is None else asked.seed % _SEEDS,
        min_tokens=asked.min_tokens,
        end_id=_NO_END if asked.ignore_eos else None,
        stop_words=words or None,
        include_stop_word=asked.include_stop_str_in_output,
        lora_name=adapter,
    )


def of_choice(sampling: SamplingParameters, choice: int) -> SamplingParameters:
    """For one of several answers to a prompt: with the same seed they would be one."""
    if not choice or sampling.random_seed is None:
        return sampling
    return replace(sampling, random_seed=(sampling.random_seed + choice) % _SEEDS)
