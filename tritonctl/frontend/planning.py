# SPDX-License-Identifier: Apache-2.0
"""How long a prompt is, whether its answer fits, and how much work both are."""

from __future__ import annotations

from dataclasses import dataclass

from tritonctl.errors import RequestRejectedError
from tritonctl.frontend import errors
from tritonctl.frontend.asked import TextAsked
from tritonctl.frontend.counting.context import ContextLengthError
from tritonctl.frontend.counting.prompts import Count, most_tokens
from tritonctl.frontend.counting.worker import CountRefusedError
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.upstream import Servers

CONTEXT_LENGTH = "context_length_exceeded"


@dataclass(frozen=True)
class Planned:
    """A prompt whose length is known, before a replica is chosen for its answers.

    content: as it is sent. room: tokens that each answer may have; None where nobody knows.
    work: tokens of an answer's prompt and of the answer that is expected.
    """

    content: bytes
    count: Count
    room: int | None
    work: int


async def plan(servers: Servers, asked: TextAsked, tensor: str, content: bytes) -> Planned:
    """Raises ApiError for a prompt that cannot fit, or that the tokenizer step would refuse.

    content: of the prompt, as `tensor` carries it.
    """
    model, most = asked.target.model, asked.sampling.max_tokens
    counter = servers.counter
    try:
        text = content.decode("utf-8", "surrogatepass")
        count = await counter.count(model, {tensor: [text]})
        room = counter.limits(model).answer_room(count.tokens, most) if count.exact else most
    except CountRefusedError as error:
        told = RequestRejectedError(str(error), remedy="")
        raise errors.of_tritonctl(told, asked.prompt_field) from error
    except ContextLengthError as error:
        param = asked.prompt_field if error.prompt_alone or most is None else "max_tokens"
        raise ApiError(400, str(error), code=CONTEXT_LENGTH, param=param) from error
    work = count.tokens + servers.expected.of(model, room)
    return Planned(content, count, room, work)


def surely_fits(servers: Servers, asked: TextAsked, content: bytes) -> bool:
    """Whether a prompt fits even if each of its bytes is a token."""
    limits, most = servers.counter.limits(asked.target.model), most_tokens([content])
    try:
        limits.answer_room(most, asked.sampling.max_tokens)
    except ContextLengthError:
        return False
    return True
