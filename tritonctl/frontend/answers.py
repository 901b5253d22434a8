# SPDX-License-Identifier: Apache-2.0
"""The answers to one request for text: one gRPC stream each, their chunks as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tritonctl.errors import RequestRejectedError, TritonctlError
from tritonctl.frontend import errors
from tritonctl.frontend.budgets.admission import Budgets, Grant
from tritonctl.frontend.counting.context import ContextLengthError
from tritonctl.frontend.counting.prompts import Count
from tritonctl.frontend.counting.worker import CountRefusedError
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.models import Target
from tritonctl.frontend.observed import Call
from tritonctl.frontend.sampling import of_choice
from tritonctl.frontend.upstream import Servers
from tritonctl.protocol.generation import (
    Chunk,
    Prompt,
    Queueing,
    SamplingParameters,
    prompt_tensor,
)

# Finish reasons of the ensemble's that are OpenAI's, too.
FINISHED = ("stop", "length")
_NOTHING = Chunk("", 0, 0, "", 0)
CONTEXT_LENGTH = "context_length_exceeded"
_ENOUGH = "stop"  # of an answer that was ended here

# Takes a chunk of the answer with this index, and says whether that is enough of it.
Take = Callable[[int, Chunk], Awaitable[bool]]
_T = TypeVar("_T")


@dataclass(frozen=True)
class TextAsked:
    """What one request asks of a model. `prompt_field`: what the client calls its prompt.

    `choices`: answers to each prompt; answer i of prompt p has the index p * choices + i.
    `fields`: what the client calls the ensemble's tensors.
    """

    target: Target
    prompts: tuple[Prompt, ...]
    sampling: SamplingParameters
    choices: int
    prompt_field: str
    fields: Mapping[str, str] = field(default_factory=lambda: errors.FIELDS)


@dataclass(frozen=True)
class Planned:
    """A prompt whose length is known, before a replica is chosen for its answers.

    content: as it is sent. room: tokens that each answer may have; None where nobody knows.
    work: tokens of an answer's prompt and of the answer that is expected.
    """

    prompt: Prompt
    content: bytes
    count: Count
    room: int | None
    work: int


@dataclass
class Usage:
    """Tokens as the server counted them. Several answers to a prompt read it once."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def record(self) -> dict[str, int]:
        """OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


@dataclass(eq=False)
class _Answer:
    """One of them while it comes. last: its latest chunk, which counts the whole answer so far."""

    index: int
    plan: Planned
    call: Call
    last: Chunk = _NOTHING

    @property
    def begun(self) -> bool:
        """Whether any of it has come."""
        return self.last is not _NOTHING

    @property
    def counts(self) -> tuple[int, int]:
        """Tokens of the prompt, and of the answer so far, as the server counts them."""
        return self.last.num_input_tokens, self.last.num_output_tokens


class Answers:
    """Asks for text. The one place where a request passes all parts between body and answer."""

    def __init__(self, servers: Servers, budgets: Budgets) -> None:
        self._servers = servers
        self._budgets = budgets

    async def ask(self, exchange: Exchange, asked: TextAsked, usage: Usage, take: Take) -> None:
        """Ask and hand each chunk to `take`; `usage` is complete at the end. Raises ApiError."""
        facts = exchange.facts
        planned = await _together([self._planned(asked, prompt) for prompt in asked.prompts])
        facts.expected_tokens = sum(plan.work for plan in planned) * asked.choices
        answers = _answers(exchange, asked, planned)
        try:
            async with self._admitted(exchange, asked, planned, answers) as grant:
                enough = await _together(
                    [self._answer(exchange, asked, answer, grant, take) for answer in answers]
                )
        except TritonctlError as error:
            raise errors.of_tritonctl(error, asked.prompt_field, asked.fields) from error
        finally:
            for answer in answers:
                answer.call.end(*answer.counts, answer.last.finish_reason)
            _count(answers, asked, usage)
            facts.prompt_tokens, facts.output_tokens = usage.prompt_tokens, usage.completion_tokens
            facts.resumes = sum(answer.last.resumes for answer in answers)
        if any(enough):
            facts.outcome = _ENOUGH
            return
        _check_finished(answers)
        facts.outcome = answers[-1].last.finish_reason

    async def _answer(
        self, exchange: Exchange, asked: TextAsked, answer: _Answer, grant: Grant, take: Take
    ) -> bool:
        """One answer, from the replica that is chosen for it and, if that breaks, from others.

        Whether it was ended here, because it is enough.
        """
        facts, texts = exchange.facts, exchange.facts.text.get("answers")
        model, plan, call = asked.target.model, answer.plan, answer.call
        sampling = of_choice(asked.sampling, answer.index % asked.choices)
        options = {"queueing": Queueing(grant.priority), "traceparent": call.traceparent}
        async with (
            self._servers.router.choose(model, work=plan.work, beginning=plan.content) as placement,
            aclosing(placement.stream(plan.prompt, sampling, **options)) as chunks,
        ):
            facts.placements.append((placement.url, placement.reason))
            async for chunk in chunks:
                new = chunk.num_output_tokens - answer.last.num_output_tokens
                answer.last = chunk
                facts.replica = placement.url
                grant.output(new)
                call.tokens(chunk.num_output_tokens, chunk.received_ns)
                if texts is not None:
                    texts[answer.index] += chunk.text
                if facts.first_token is None and chunk.num_output_tokens:
                    facts.first_token = chunk.received_ns / 1e9
                if await take(answer.index, chunk):
                    return True
        if answer.begun:
            prompt_tokens, output_tokens = answer.counts
            self._servers.expected.learn(model, output_tokens)
            await self._servers.counter.served(model, plan.count, prompt_tokens)
        return False

    @asynccontextmanager
    async def _admitted(
        self,
        exchange: Exchange,
        asked: TextAsked,
        planned: Sequence[Planned],
        answers: Sequence[_Answer],
    ) -> AsyncIterator[Grant]:
        """Within the tenant's budgets; what was not used is given back at the end.

        A client that leaves before the first token pays for its prompt, which may have been read.
        """
        rooms = [plan.room for plan in planned]
        if None in rooms and exchange.tenant.tokens_per_minute is not None:
            raise ApiError(
                400,
                "this key has a limit of tokens, and the longest answer of this model is not "
                "known: say how many tokens it may have, `max_tokens`",
                code="invalid_value",
                param="max_tokens",
            )
        prompt = sum(plan.count.at_most for plan in planned)
        new = sum(room or 0 for room in rooms)
        async with self._budgets.admit(exchange.tenant, prompt, new, asked.choices) as grant:
            exchange.headers = grant.headers
            facts = exchange.facts
            facts.reserved_tokens = grant.claim.reserved
            try:
                yield grant
            except TritonctlError:
                if not any(answer.begun for answer in answers):
                    grant.settle(0, 0)
                raise
            finally:
                if any(answer.begun for answer in answers):
                    used = Usage()
                    _count(answers, asked, used)
                    grant.settle(used.prompt_tokens, used.completion_tokens)
                facts.refunded_tokens = grant.claim.reserved - grant.used

    async def _planned(self, asked: TextAsked, prompt: Prompt) -> Planned:
        """Raises ApiError for a prompt that cannot fit, or that the tokenizer step would refuse."""
        model, most = asked.target.model, asked.sampling.max_tokens
        counter = self._servers.counter
        tensor, content = prompt_tensor(prompt)
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
        work = count.tokens + self._servers.expected.of(model, room)
        return Planned(prompt, content, count, room, work)


def _answers(exchange: Exchange, asked: TextAsked, planned: Sequence[Planned]) -> list[_Answer]:
    """Those that are asked for, none of which has begun."""
    answers = [
        _Answer(index, planned[index // asked.choices], exchange.observed.call(_requested(asked)))
        for index in range(len(planned) * asked.choices)
    ]
    if exchange.observed.keeps_text:
        exchange.facts.text |= {"prompts": asked.prompts, "answers": [""] * len(answers)}
    return answers


def _requested(asked: TextAsked) -> dict[str, Any]:
    """Of a request, what GenAI's conventions have a name for."""
    sampling = asked.sampling
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "seed": sampling.random_seed,
        "choice.count": asked.choices if asked.choices > 1 else None,
    }


def _count(answers: Sequence[_Answer], asked: TextAsked, usage: Usage) -> None:
    begun = [answer for answer in answers if answer.begun]
    read = {answer.index // asked.choices: answer.last.num_input_tokens for answer in begun}
    usage.prompt_tokens = sum(read.values())
    usage.completion_tokens = sum(answer.last.num_output_tokens for answer in answers)


def _check_finished(answers: Sequence[_Answer]) -> None:
    """Raises ApiError for an answer that stopped without a reason that OpenAI has."""
    if any(answer.last.finish_reason not in FINISHED for answer in answers):
        raise ApiError(
            503,
            "The model's server ended the answer before it was complete",
            type=errors.SERVER,
            code="incomplete_answer",
        )


async def _together(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Their results, in order. The first error ends them all."""
    if len(works) == 1:
        return [await works[0]]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
