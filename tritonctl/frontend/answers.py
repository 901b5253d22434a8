# SPDX-License-Identifier: Apache-2.0
"""The answers to one request for text: one gRPC stream each, their chunks as they come.

A request passes all parts between its body and its answers in `_Request.run`: its length, its
tenant's budgets, a replica for each answer, each chunk counted and handed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from tritonctl.errors import TritonctlError
from tritonctl.frontend import errors
from tritonctl.frontend.ahead import running
from tritonctl.frontend.asked import TextAsked, Usage
from tritonctl.frontend.budgets.admission import Budgets, Grant
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.exchange import Exchange
from tritonctl.frontend.observed import Call
from tritonctl.frontend.planning import Planned, plan, surely_fits
from tritonctl.frontend.routing.router import Placement
from tritonctl.frontend.sampling import of_choice
from tritonctl.frontend.upstream import Servers
from tritonctl.protocol.generation import Chunk, Queueing, prompt_tensor

# Finish reasons of the ensemble's that are OpenAI's, too.
FINISHED = ("stop", "length")
_NOTHING = Chunk("", 0, 0, "", 0)
_ENOUGH = "stop"  # of an answer that was ended here

# Takes a chunk of the answer with this index, and says whether that is enough of it.
Take = Callable[[int, Chunk], Awaitable[bool]]
_T = TypeVar("_T")


class Answers:
    """Asks for text."""

    def __init__(self, servers: Servers, budgets: Budgets) -> None:
        self._servers = servers
        self._budgets = budgets

    async def ask(self, exchange: Exchange, asked: TextAsked, usage: Usage, take: Take) -> None:
        """Ask and hand each chunk to `take`; `usage` is complete at the end. Raises ApiError."""
        await _Request(self._servers, self._budgets, exchange, asked, usage, take).run()


@dataclass(eq=False)
class _Answer:
    """One of them while it comes. last: its latest chunk, which counts the whole answer so far."""

    index: int
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


@dataclass(frozen=True)
class _Sent:
    """An answer's stream that has been asked for, and where."""

    placement: Placement
    chunks: AsyncIterator[Chunk]


@dataclass(eq=False)
class _Request:
    """One request. planned: its prompts, when their lengths are known."""

    servers: Servers
    budgets: Budgets
    exchange: Exchange
    asked: TextAsked
    usage: Usage
    take: Take
    answers: list[_Answer] = field(default_factory=list)
    planned: Sequence[Planned] = ()

    async def run(self) -> None:
        """As `Answers.ask`."""
        facts, asked = self.exchange.facts, self.asked
        try:
            async with self._counted() as ahead, self._admitted() as grant:
                enough = await _together(
                    [self._answer(answer, grant, ahead) for answer in self.answers]
                )
        except TritonctlError as error:
            raise errors.of_tritonctl(error, asked.prompt_field, asked.fields) from error
        finally:
            for answer in self.answers:
                answer.call.end(*answer.counts, answer.last.finish_reason)
            self._count(self.usage)
            facts.prompt_tokens = self.usage.prompt_tokens
            facts.output_tokens = self.usage.completion_tokens
            facts.resumes = sum(answer.last.resumes for answer in self.answers)
        if any(enough):
            facts.outcome = _ENOUGH
        else:
            facts.outcome = self._finish_reason()

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[_Sent | None]:
        """Know the prompts' lengths. Raises ApiError for one that is refused by its length.

        A request that goes to the same place whatever its length is, is on its way meanwhile:
        counting would hold its first token up by the better part of a millisecond.
        """
        asked = self.asked
        contents = [prompt_tensor(prompt) for prompt in asked.prompts]
        _, content = contents[0]
        if self._runs_ahead(content):
            self._begin()
            expected = self.servers.expected.of(asked.target.model, asked.sampling.max_tokens)
            async with (
                self._sent(self.answers[0], content, len(content) + expected) as sent,
                running(sent.chunks) as chunks,
            ):
                await self._plan(contents)
                yield replace(sent, chunks=chunks)
        else:
            await self._plan(contents)
            self._begin()
            yield None

    async def _plan(self, contents: Sequence[tuple[str, bytes]]) -> None:
        asked = self.asked
        self.planned = await _together([plan(self.servers, asked, *each) for each in contents])
        work = sum(each.work for each in self.planned)
        self.exchange.facts.expected_tokens = work * asked.choices

    def _runs_ahead(self, content: bytes) -> bool:
        """Whether it fits anyhow, goes to the one server there is, and no budget is for it."""
        return (
            self.asked.answers == 1
            and self.exchange.tenant.unlimited
            and self.servers.router.own == 1
            and surely_fits(self.servers, self.asked, content)
        )

    def _begin(self) -> None:
        """The answers, none of which has come."""
        observed, asked = self.exchange.observed, self.asked
        self.answers = [_Answer(i, observed.call(asked.named)) for i in range(asked.answers)]
        if observed.keeps_text:
            texts = [""] * asked.answers
            self.exchange.facts.text |= {"prompts": asked.prompts, "answers": texts}

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[Grant]:
        """Within the tenant's budgets; what was not used is given back at the end.

        A client that leaves before the first token pays for its prompt, which may have been read.
        """
        exchange, facts = self.exchange, self.exchange.facts
        rooms = [each.room for each in self.planned]
        if None in rooms and exchange.tenant.tokens_per_minute is not None:
            raise ApiError(
                400,
                "this key has a limit of tokens, and the longest answer of this model is not "
                "known: say how many tokens it may have, `max_tokens`",
                code="invalid_value",
                param="max_tokens",
            )
        prompt = sum(each.count.at_most for each in self.planned)
        new = sum(room or 0 for room in rooms)
        choices = self.asked.choices
        async with self.budgets.admit(exchange.tenant, prompt, new, choices) as grant:
            exchange.headers = grant.headers
            facts.reserved_tokens = grant.claim.reserved
            try:
                yield grant
            except TritonctlError:
                if not any(answer.begun for answer in self.answers):
                    grant.settle(0, 0)
                raise
            finally:
                if any(answer.begun for answer in self.answers):
                    used = Usage()
                    self._count(used)
                    grant.settle(used.prompt_tokens, used.completion_tokens)
                facts.refunded_tokens = grant.claim.reserved - grant.used

    async def _answer(self, answer: _Answer, grant: Grant, ahead: _Sent | None) -> bool:
        """One answer, from its beginning to its end. Whether it was ended here: it is enough."""
        facts, call = self.exchange.facts, answer.call
        model, planned = self.asked.target.model, self.planned[answer.index // self.asked.choices]
        texts = facts.text.get("answers")
        sending = nullcontext(ahead) if ahead else self._sent(answer, planned.content, planned.work)
        async with sending as sent:
            facts.placements.append((sent.placement.url, sent.placement.reason))
            async for chunk in sent.chunks:
                new = chunk.num_output_tokens - answer.last.num_output_tokens
                answer.last = chunk
                facts.replica = sent.placement.url
                facts.model_version = call.model_version = chunk.model_version or None
                grant.output(new)
                call.tokens(chunk.num_output_tokens, chunk.received_ns)
                if texts is not None:
                    texts[answer.index] += chunk.text
                if facts.first_token is None and chunk.num_output_tokens:
                    facts.first_token = chunk.received_ns / 1e9
                if await self.take(answer.index, chunk):
                    return True
        if answer.begun:
            prompt_tokens, output_tokens = answer.counts
            self.servers.expected.learn(model, output_tokens)
            await self.servers.counter.served(model, planned.count, prompt_tokens)
        return False

    @asynccontextmanager
    async def _sent(self, answer: _Answer, content: bytes, work: int) -> AsyncIterator[_Sent]:
        """An answer's stream, from the replica that is chosen and, if that breaks, from others."""
        asked, index = self.asked, answer.index
        choosing = self.servers.router.choose(asked.target.model, work=work, beginning=content)
        async with choosing as placement:
            stream = placement.stream(
                asked.prompts[index // asked.choices],
                of_choice(asked.sampling, index % asked.choices),
                queueing=Queueing(self.exchange.tenant.priority),
                traceparent=answer.call.traceparent,
            )
            async with aclosing(stream) as chunks:
                yield _Sent(placement, chunks)

    def _count(self, usage: Usage) -> None:
        begun = [answer for answer in self.answers if answer.begun]
        read = {one.index // self.asked.choices: one.last.num_input_tokens for one in begun}
        usage.prompt_tokens = sum(read.values())
        usage.completion_tokens = sum(answer.last.num_output_tokens for answer in begun)

    def _finish_reason(self) -> str:
        """The last answer's. Raises ApiError where one has none that is OpenAI's."""
        if any(answer.last.finish_reason not in FINISHED for answer in self.answers):
            raise ApiError(
                503,
                "The model's server ended the answer before it was complete",
                type=errors.SERVER,
                code="incomplete_answer",
            )
        return self.answers[-1].last.finish_reason


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
