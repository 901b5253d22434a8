# SPDX-License-Identifier: Apache-2.0
"""Generate the answers to one text request, with one gRPC stream per answer.

`TextGenerator.generate` is the whole path from request to answers: it counts the prompts, reserves
tokens in the tenant's budget, chooses a replica for each answer, and records each chunk before its
reader gets it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace

from tritonctl.errors import TritonctlError
from tritonctl.frontend import errors
from tritonctl.frontend.async_streams import merge_streams, prefetch_first
from tritonctl.frontend.budgets.admission import Budgets, Grant
from tritonctl.frontend.errors import ApiError
from tritonctl.frontend.http_request import HttpRequest
from tritonctl.frontend.logprobs import vocabulary_of
from tritonctl.frontend.planning import PromptPlan, plan_prompts, surely_fits
from tritonctl.frontend.routing.router import ReplicaPlacement
from tritonctl.frontend.sampling import sampling_of_choice
from tritonctl.frontend.telemetry import CallTelemetry
from tritonctl.frontend.text_models import TextModel
from tritonctl.frontend.text_request import TextGenerationRequest, Usage
from tritonctl.frontend.upstream import TritonServers
from tritonctl.frontend.vocabulary import Vocabulary
from tritonctl.protocol.generation import Chunk, Queueing, prompt_tensor

# The ensemble's finish reasons that OpenAI has as well.
FINISH_REASONS = ("stop", "length")
_NO_CHUNK = Chunk("", 0, 0, "", 0)
_FINISHED_HERE = "stop"  # outcome of an answer that the frontend ended
_LARGE_BYTES = 65_536  # prompts whose encoding takes so long that other streams come in between


@dataclass(frozen=True)
class TextGenerator:
    """Generates text on the servers, within the tenants' budgets."""

    servers: TritonServers
    budgets: Budgets

    def vocabulary(self, generation: TextGenerationRequest, text: TextModel) -> Vocabulary:
        """Read the tokenizer of the server, else of the checkpoint. Raises ApiError."""
        tokenizer = self.servers.counter.tokenizer(generation.target.model) or text.tokenizer
        return vocabulary_of(tokenizer, generation.fields["return_log_probs"])

    @asynccontextmanager
    async def generate(
        self, request: HttpRequest, generation: TextGenerationRequest
    ) -> AsyncIterator[TextGeneration]:
        """Generate the answers while they are read within the block.

        Leaving the block closes their streams, refunds unused tokens and completes `usage` and the
        request's record. Raises ApiError, also in place of a stream's TritonctlError within the
        block.
        """
        answers = TextGeneration(self.servers, self.budgets, request, generation)
        try:
            async with (
                answers._plan_prompts() as prefetched,
                answers._admit() as grant,
                answers._open_streams(grant, prefetched),
            ):
                yield answers
        except TritonctlError as error:
            raise errors.from_tritonctl_error(
                error, generation.prompt_field, generation.fields
            ) from error
        finally:
            answers._end_telemetry()
        request.record.outcome = answers._outcome()


@dataclass(eq=False)
class _Answer:
    """One answer while it is streamed."""

    index: int
    call: CallTelemetry
    last_chunk: Chunk = _NO_CHUNK  # its counts cover the whole answer so far
    is_finished: bool = False  # the reader wants no further chunk

    @property
    def has_started(self) -> bool:
        """Whether a chunk has arrived."""
        return self.last_chunk is not _NO_CHUNK

    @property
    def counts(self) -> tuple[int, int]:
        """The server's counts: tokens of the prompt, and of the answer so far."""
        return self.last_chunk.num_input_tokens, self.last_chunk.num_output_tokens


@dataclass(frozen=True)
class _OpenStream:
    """An answer's open stream, and its replica."""

    placement: ReplicaPlacement
    chunks: AsyncIterator[Chunk]


@dataclass(eq=False)
class TextGeneration:
    """The answers to one request while they are generated.

    Iterate for their chunks in the order of arrival, each with the index of its answer. The next
    chunk of an answer is read from its stream only after the previous one has been processed.
    """

    servers: TritonServers
    budgets: Budgets
    request: HttpRequest
    generation: TextGenerationRequest
    usage: Usage = field(default_factory=Usage)  # complete after the block
    _answers: list[_Answer] = field(default_factory=list)
    _plans: Sequence[PromptPlan] = ()  # of its prompts, once their lengths are known
    _chunks: AsyncIterator[tuple[int, Chunk]] = field(init=False)

    def __aiter__(self) -> AsyncIterator[tuple[int, Chunk]]:
        return self._chunks

    def finish(self, index: int) -> None:
        """End an answer: the next iteration closes its stream, but no other."""
        self._answers[index].is_finished = True

    @asynccontextmanager
    async def _plan_prompts(self) -> AsyncIterator[_OpenStream | None]:
        """Count the prompts' tokens. Raises ApiError for a prompt that is too long.

        A request whose length does not affect its placement is sent before it is counted:
        counting first would delay its first token by most of a millisecond.
        """
        generation = self.generation
        contents = [prompt_tensor(prompt) for prompt in generation.prompts]
        await _let_others_run(contents)
        _, content = contents[0]
        if self._can_prefetch(content):
            self._start_answers()
            expected = self.servers.expected.of(
                generation.target.model, generation.sampling.max_tokens
            )
            async with (
                self._open_stream(self._answers[0], content, len(content) + expected) as stream,
                prefetch_first(stream.chunks) as chunks,
            ):
                await self._count(contents)
                yield replace(stream, chunks=chunks)
        else:
            await self._count(contents)
            self._start_answers()
            yield None

    async def _count(self, contents: Sequence[tuple[str, bytes]]) -> None:
        await _let_others_run(contents)
        self._plans = await plan_prompts(self.servers, self.generation, contents)
        if self.generation.sampling.max_tokens == 0 and not all(
            each.count.exact for each in self._plans
        ):
            raise ApiError(
                400,
                "`max_tokens: 0` is not supported: this frontend cannot read the model's "
                "tokenizer, so nothing counts the prompt",
                code="unsupported_parameter",
                param="max_tokens",
            )
        work = sum(each.work for each in self._plans)
        self.request.record.expected_tokens = work * self.generation.choices
        await _let_others_run(contents)

    def _can_prefetch(self, content: bytes) -> bool:
        """Whether the prompt fits in any case, only one server exists and no budget applies."""
        return (
            self.generation.answer_count == 1
            and self.generation.sampling.max_tokens != 0
            and self.request.tenant.unlimited
            and self.servers.router.primary_count == 1
            and surely_fits(self.servers, self.generation, content)
        )

    def _start_answers(self) -> None:
        """Create the answers and their telemetry."""
        telemetry, generation = self.request.telemetry, self.generation
        self._answers = [
            _Answer(i, telemetry.start_call(generation.trace_attributes))
            for i in range(generation.answer_count)
        ]
        if telemetry.logs_text:
            texts = [""] * generation.answer_count
            self.request.record.text |= {"prompts": generation.prompts, "answers": texts}

    @asynccontextmanager
    async def _admit(self) -> AsyncIterator[Grant]:
        """Reserve tokens in the tenant's budgets; refund unused tokens at the end.

        A client that leaves before the first token pays for its prompt: the model may have read it.
        """
        request, record = self.request, self.request.record
        answer_limits = [each.max_answer_tokens for each in self._plans]
        if None in answer_limits and request.tenant.tokens_per_minute is not None:
            field_name = self.generation.fields["max_tokens"]
            raise ApiError(
                400,
                "this key has a token limit, and the maximum answer length of this model is "
                f"unknown: set `{field_name}`",
                code="invalid_value",
                param=field_name,
            )
        prompt = sum(each.count.upper_bound for each in self._plans)
        new = sum(limit or 0 for limit in answer_limits)
        choices = self.generation.choices
        async with self.budgets.admit(request.tenant, prompt, new, choices) as grant:
            request.headers = grant.headers
            record.reserved_tokens = grant.claim.reserved
            try:
                yield grant
            except TritonctlError:
                if not any(answer.has_started for answer in self._answers):
                    grant.settle(0, 0)
                raise
            finally:
                if any(answer.has_started for answer in self._answers):
                    used = Usage()
                    self._fill_usage(used)
                    grant.settle(used.prompt_tokens, used.completion_tokens)
                record.refunded_tokens = grant.claim.reserved - grant.used

    @asynccontextmanager
    async def _open_streams(
        self, grant: Grant, prefetched: _OpenStream | None
    ) -> AsyncIterator[None]:
        """Make the chunks available to the block, and close all streams after it."""
        streams = [self._read(answer, grant, prefetched) for answer in self._answers]
        async with merge_streams(streams) as self._chunks:
            yield

    async def _read(
        self, answer: _Answer, grant: Grant, prefetched: _OpenStream | None
    ) -> AsyncGenerator[tuple[int, Chunk]]:
        """Yield and record the chunks of one answer."""
        record, call, index = self.request.record, answer.call, answer.index
        plan = self._plans[index // self.generation.choices]
        texts = record.text.get("answers")
        if self.generation.sampling.max_tokens == 0:  # nothing that a model would have to write
            answer.last_chunk = Chunk("", plan.count.tokens, 0, "length", time.monotonic_ns())
            yield index, answer.last_chunk
            return
        opening = (
            nullcontext(prefetched)
            if prefetched
            else self._open_stream(answer, plan.content, plan.work)
        )
        async with opening as stream:
            record.placements.append((stream.placement.url, stream.placement.reason))
            async for chunk in stream.chunks:
                new = chunk.num_output_tokens - answer.last_chunk.num_output_tokens
                answer.last_chunk = chunk
                record.replica = stream.placement.url
                record.model_version = call.model_version = chunk.model_version or None
                grant.output(new)
                call.record_tokens(chunk.num_output_tokens, chunk.received_ns)
                if texts is not None:
                    texts[index] += chunk.text
                if record.first_token is None and chunk.num_output_tokens:
                    record.first_token = chunk.received_ns / 1e9
                yield index, chunk
                if answer.is_finished:
                    return
        if answer.has_started:
            model = self.generation.target.model
            prompt_tokens, output_tokens = answer.counts
            self.servers.expected.learn(model, output_tokens)
            await self.servers.counter.compare_with_server(model, plan.count, prompt_tokens)

    @asynccontextmanager
    async def _open_stream(
        self, answer: _Answer, content: bytes, work: int
    ) -> AsyncIterator[_OpenStream]:
        """Open an answer's stream. If its replica breaks, other replicas continue it."""
        generation, index = self.generation, answer.index
        choosing = self.servers.router.choose(generation.target.model, work=work, prompt=content)
        async with choosing as placement:
            tenant = self.request.tenant
            # Only a guide is shared by tenant: other requests share cached templates.
            guided = generation.sampling.guided_decoding_guide_type is not None
            stream = placement.stream(
                generation.prompts[index // generation.choices],
                sampling_of_choice(generation.sampling, index % generation.choices),
                queueing=Queueing(tenant.priority, tenant=tenant.name if guided else None),
                traceparent=answer.call.traceparent,
            )
            async with aclosing(stream) as chunks:
                yield _OpenStream(placement, chunks)

    def _fill_usage(self, usage: Usage) -> None:
        started = [answer for answer in self._answers if answer.has_started]
        prompt_tokens = {
            answer.index // self.generation.choices: answer.last_chunk.num_input_tokens
            for answer in started
        }
        usage.prompt_tokens = sum(prompt_tokens.values())
        usage.completion_tokens = sum(answer.last_chunk.num_output_tokens for answer in started)

    def _end_telemetry(self) -> None:
        """Record the server's counts."""
        for answer in self._answers:
            answer.call.end(*answer.counts, answer.last_chunk.finish_reason)
        self._fill_usage(self.usage)
        record = self.request.record
        record.prompt_tokens = self.usage.prompt_tokens
        record.output_tokens = self.usage.completion_tokens
        record.resumes = sum(answer.last_chunk.resumes for answer in self._answers)

    def _outcome(self) -> str:
        """The last answer's finish reason. Raises ApiError if an answer is incomplete."""
        finish_reasons = [
            _FINISHED_HERE if answer.is_finished else answer.last_chunk.finish_reason
            for answer in self._answers
        ]
        if any(reason not in FINISH_REASONS for reason in finish_reasons):
            raise ApiError(
                503,
                "The model's server ended the answer before it was complete",
                type=errors.SERVER,
                code="incomplete_answer",
            )
        return finish_reasons[-1]


async def _let_others_run(contents: Sequence[tuple[str, bytes]]) -> None:
    """Let other streams continue between two steps of a large request."""
    if sum(len(content) for _, content in contents) > _LARGE_BYTES:
        await asyncio.sleep(0)
