# SPDX-License-Identifier: Apache-2.0
"""The answers to one request for text: one gRPC stream each, their chunks as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

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
_WAITING_CHUNKS = 64  # of all streams of a request, before they are held up


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


class Answers:
    """Asks for text. The one place where a request passes all parts between body and answer."""

    def __init__(self, servers: Servers, budgets: Budgets) -> None:
        self._servers = servers
        self._budgets = budgets

    async def ask(
        self, exchange: Exchange, asked: TextAsked, usage: Usage
    ) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Chunks by the answer's index; `usage` is complete at the end. Raises ApiError."""
        latest: dict[int, Chunk] = {}
        facts, observed = exchange.facts, exchange.observed
        planned = await asyncio.gather(*(self._planned(asked, p) for p in asked.prompts))
        facts.expected_tokens = sum(plan.work for plan in planned) * asked.choices
        calls = [
            observed.call(_requested(asked)) for _ in range(len(asked.prompts) * asked.choices)
        ]
        if observed.keeps_text:
            facts.text |= {"prompts": asked.prompts, "answers": [""] * len(calls)}
        try:
            async with (
                self._admitted(exchange, asked, planned, latest) as grant,
                aclosing(_merged(self._streams(exchange, asked, planned, calls, grant))) as chunks,
            ):
                async for index, chunk in chunks:
                    before = latest[index].num_output_tokens if index in latest else 0
                    latest[index] = chunk
                    grant.output(chunk.num_output_tokens - before)
                    calls[index].tokens(chunk.num_output_tokens, chunk.received_ns)
                    if observed.keeps_text:
                        facts.text["answers"][index] += chunk.text
                    if exchange.facts.first_token is None and chunk.num_output_tokens:
                        exchange.facts.first_token = chunk.received_ns / 1e9
                    yield index, chunk
        except TritonctlError as error:
            raise errors.of_tritonctl(error, asked.prompt_field, asked.fields) from error
        finally:
            for index, call in enumerate(calls):
                last = latest.get(index, _NOTHING)
                call.end(last.num_input_tokens, last.num_output_tokens, last.finish_reason)
            _count(latest, asked, usage)
            exchange.facts.prompt_tokens = usage.prompt_tokens
            exchange.facts.output_tokens = usage.completion_tokens
            exchange.facts.resumes = sum(chunk.resumes for chunk in latest.values())
        _check_finished(latest, asked)
        exchange.facts.outcome = latest[len(calls) - 1].finish_reason

    @asynccontextmanager
    async def _admitted(
        self,
        exchange: Exchange,
        asked: TextAsked,
        planned: Sequence[Planned],
        latest: dict[int, Chunk],
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
        answers = sum(room or 0 for room in rooms)
        async with self._budgets.admit(exchange.tenant, prompt, answers, asked.choices) as grant:
            exchange.headers = grant.headers
            facts = exchange.facts
            facts.reserved_tokens = grant.claim.reserved
            try:
                yield grant
            except TritonctlError:
                if not latest:
                    grant.settle(0, 0)
                raise
            finally:
                if latest:
                    used = Usage()
                    _count(latest, asked, used)
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

    def _streams(
        self,
        exchange: Exchange,
        asked: TextAsked,
        planned: Sequence[Planned],
        calls: Sequence[Call],
        grant: Grant,
    ) -> list[AsyncIterator[Chunk]]:
        queueing = Queueing(priority=grant.priority)
        return [
            self._stream(
                exchange,
                planned[index // asked.choices],
                asked.target.model,
                of_choice(asked.sampling, index % asked.choices),
                queueing=queueing,
                traceparent=call.traceparent,
            )
            for index, call in enumerate(calls)
        ]

    async def _stream(
        self,
        exchange: Exchange,
        plan: Planned,
        model: str,
        sampling: SamplingParameters,
        **options: Any,
    ) -> AsyncGenerator[Chunk, None]:
        """One answer, from the replica that is chosen for it and, if that breaks, from others."""
        last = None
        async with (
            self._servers.router.choose(model, work=plan.work, beginning=plan.content) as placement,
            aclosing(placement.stream(plan.prompt, sampling, **options)) as chunks,
        ):
            exchange.facts.placements.append((placement.url, placement.reason))
            async for last in chunks:
                exchange.facts.replica = placement.url
                yield last
        if last is not None:
            self._servers.expected.learn(model, last.num_output_tokens)
            await self._servers.counter.served(model, plan.count, last.num_input_tokens)


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


def _count(latest: dict[int, Chunk], asked: TextAsked, usage: Usage) -> None:
    read = {index // asked.choices: chunk.num_input_tokens for index, chunk in latest.items()}
    usage.prompt_tokens = sum(read.values())
    usage.completion_tokens = sum(chunk.num_output_tokens for chunk in latest.values())


def _check_finished(latest: dict[int, Chunk], asked: TextAsked) -> None:
    """Raises ApiError for an answer that stopped without a reason that OpenAI has."""
    for index in range(len(asked.prompts) * asked.choices):
        if index not in latest or latest[index].finish_reason not in FINISHED:
            raise ApiError(
                503,
                "The model's server ended the answer before it was complete",
                type=errors.SERVER,
                code="incomplete_answer",
            )


async def _merged(
    streams: Sequence[AsyncIterator[Chunk]],
) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Chunks of all streams as they come. The first error ends them all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                yield 0, chunk
        return
    queue: asyncio.Queue[tuple[int, Chunk] | BaseException | None] = asyncio.Queue(_WAITING_CHUNKS)
    tasks = [asyncio.create_task(_read(i, stream, queue)) for i, stream in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(
    index: int,
    stream: AsyncIterator[Chunk],
    queue: asyncio.Queue[tuple[int, Chunk] | BaseException | None],
) -> None:
    try:
        async with aclosing(stream) as chunks:  # type: ignore[type-var]
            async for chunk in chunks:
                await queue.put((index, chunk))
    except Exception as error:  # the reader of the queue raises it
        await queue.put(error)
    else:
        await queue.put(None)
