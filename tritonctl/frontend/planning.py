# SPDX-License-Identifier: Apache-2.0
"""Count a prompt, check that its answer fits, and estimate the work of both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tritonctl.errors import RequestRejectedError
from tritonctl.frontend import errors
from tritonctl.frontend.counting.context import ContextLengthError
from tritonctl.frontend.counting.prompts import Count, max_token_count
from tritonctl.frontend.counting.worker import CountRefusedError
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.text_request import TextGenerationRequest
from tritonctl.frontend.upstream import TritonServers
from tritonctl.protocol.generation import PROMPT_IDS

_ID_BYTES = 4
CONTEXT_LENGTH = "context_length_exceeded"


@dataclass(frozen=True)
class PromptPlan:
    """A prompt with its length, before a replica is chosen for its answers."""

    content: bytes  # as it is sent
    count: Count
    max_answer_tokens: int | None  # of each answer; None: unknown
    work: int  # tokens of the prompt and of the expected answer


async def plan_prompts(
    servers: TritonServers,
    generation: TextGenerationRequest,
    contents: Sequence[tuple[str, bytes]],
) -> list[PromptPlan]:
    """Count prompts concurrently and estimate their work.

    contents: of each prompt the input tensor and its bytes. Raises ApiError for a prompt that does
    not fit, or that the tokenizer step would refuse.
    """
    plans = [_plan_prompt(servers, generation, *each) for each in contents]
    if len(plans) == 1:
        return [await plans[0]]
    tasks = [asyncio.create_task(plan) for plan in plans]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _plan_prompt(
    servers: TritonServers, generation: TextGenerationRequest, tensor: str, content: bytes
) -> PromptPlan:
    model, max_tokens = generation.target.model, generation.sampling.max_tokens
    counter = servers.counter
    try:
        if tensor == PROMPT_IDS:
            count = Count(len(content) // _ID_BYTES, len(content) // _ID_BYTES)
        else:
            text = content.decode("utf-8", "surrogatepass")
            count = await counter.count(model, {tensor: [text]})
        max_answer_tokens = (
            counter.limits(model).answer_room(count.tokens, max_tokens)
            if count.exact
            else max_tokens
        )
    except CountRefusedError as error:
        rejection = RequestRejectedError(str(error), remedy="")
        raise errors.from_tritonctl_error(
            rejection, generation.prompt_field, generation.fields
        ) from error
    except ContextLengthError as error:
        is_prompt = error.prompt_alone or max_tokens is None
        param = generation.prompt_field if is_prompt else generation.fields["max_tokens"]
        raise ApiError(400, str(error), code=CONTEXT_LENGTH, param=param) from error
    work = count.tokens + servers.expected.of(model, max_answer_tokens)
    return PromptPlan(content, count, max_answer_tokens, work)


def surely_fits(servers: TritonServers, generation: TextGenerationRequest, content: bytes) -> bool:
    """Whether a prompt fits even if each of its bytes is a token."""
    limits, upper_bound = (
        servers.counter.limits(generation.target.model),
        max_token_count([content]),
    )
    try:
        limits.answer_room(upper_bound, generation.sampling.max_tokens)
    except ContextLengthError:
        return False
    return True
