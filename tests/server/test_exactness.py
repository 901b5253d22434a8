# SPDX-License-Identifier: Apache-2.0
"""Scripted token ids through a real tokenizer, decoder loop, detokenizer and Triton.

Text is compared with the library's decode of all ids; order and completeness are read off the raw
gRPC responses, to the end of the call and not only to its first final response.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests import sample_tokenizers
from tests.server.scripted import (
    FAILS,
    FAILS_LATE,
    LONG,
    LONG_STREAMS,
    ONE,
    STREAMS_PER_KIND,
    ZERO,
    Kind,
)
from tritonctl.protocol.generation import Chunk, SamplingParameters, generation_request, read_chunk
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

CUT_STREAMS = 50


@dataclass
class Answer:
    """Everything that one call brought."""

    chunks: list[Chunk] = field(default_factory=list)
    finals: int = 0
    after_final: int = 0
    error: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(chunk.text for chunk in self.chunks)


@dataclass(frozen=True)
class Served:
    """A server of every kind: with a detokenizer step, or by other names without, or fused."""

    url: str
    kinds: dict[str, Kind]
    prefix: str


@pytest.fixture(
    params=["", "inline_", "fused_"], ids=["detokenizer", "inline_detokenizer", "fused"]
)
def served(request: pytest.FixtureRequest, replay_server: Server, kinds: dict[str, Kind]) -> Served:
    """All three ways."""
    return Served(replay_server.grpc_url, kinds, request.param)


def replay(
    url: str,
    model: str,
    numbers: Sequence[int],
    resume_ids: Sequence[Sequence[int]] | None = None,
) -> list[Answer]:
    """Replay scripts, all at the same time; with `resume_ids`, what comes behind them."""
    behind = resume_ids or [()] * len(numbers)

    async def run() -> list[Answer]:
        async with grpc.aio.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            asked = zip(numbers, behind, strict=True)
            return await asyncio.gather(*(_one(stub, model, n, ids) for n, ids in asked))

    return asyncio.run(run())


async def _one(stub: Any, model: str, number: int, resume_ids: Sequence[int]) -> Answer:
    sampling = SamplingParameters(random_seed=number)
    request = generation_request(model, "go", sampling, resume_ids=resume_ids)
    answer = Answer()
    async for response in stub.ModelStreamInfer(iter([request]), timeout=120):
        answer.after_final += answer.finals
        if response.error_message:
            answer.error = response.error_message
            answer.finals += 1
            continue
        chunk, final = read_chunk(response)
        answer.finals += final
        if chunk is not None:
            answer.chunks.append(chunk)
    return answer


def check_complete(answer: Answer, ids: int) -> None:
    """In order, nothing lost or doubled, one final response and nothing after it."""
    counts = [chunk.num_output_tokens for chunk in answer.chunks]
    assert counts == sorted(set(counts))
    assert counts[-1] == ids
    assert (answer.error, answer.finals, answer.after_final) == ("", 1, 0)
    reasons = [chunk.finish_reason for chunk in answer.chunks]
    assert reasons == [""] * (len(reasons) - 1) + ["stop"]


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
def test_streams_are_exact(served: Served, name: str) -> None:
    """A hundred hard streams, ten at a time, in chunks of 1 to 16 ids."""
    kind = served.kinds[name]
    for first in range(0, STREAMS_PER_KIND, 10):
        numbers = range(first, first + 10)
        for number, answer in zip(
            numbers, replay(served.url, served.prefix + name, numbers), strict=True
        ):
            assert answer.text == kind.expected(number)
            check_complete(answer, len(kind.scripts[number]["ids"]))


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
def test_streams_go_on_behind_any_cut(served: Served, name: str) -> None:
    """From the ids of the responses alone, which are those of the script, inside characters too."""
    kind = served.kinds[name]
    source = random.Random(f"tritonctl cut {name}")  # noqa: S311 - test data
    numbers = range(CUT_STREAMS)
    wholes = replay(served.url, served.prefix + name, numbers, [[]] * CUT_STREAMS)
    cuts = [source.randrange(1, len(whole.chunks) + 1) for whole in wholes]
    heads = [whole.chunks[:cut] for whole, cut in zip(wholes, cuts, strict=True)]
    ids = [[token for chunk in head for token in chunk.token_ids] for head in heads]
    rests = replay(served.url, served.prefix + name, numbers, ids)
    for number, (whole, head, rest) in enumerate(zip(wholes, heads, rests, strict=True)):
        script = kind.scripts[number]["ids"]
        assert [token for chunk in whole.chunks for token in chunk.token_ids] == script
        if not head[-1].finish_reason:
            assert "".join(chunk.text for chunk in head) + rest.text == kind.expected(number)
            check_complete(rest, len(script))


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
def test_concurrent_long_streams(served: Served, name: str) -> None:
    """64 streams of 800 ids and more at once: exact, in order, complete."""
    kind = served.kinds[name]
    numbers = range(LONG, LONG + LONG_STREAMS)
    answers = replay(served.url, served.prefix + name, numbers)
    assert [answer.finals for answer in answers] == [1] * LONG_STREAMS
    for number, answer in zip(numbers, answers, strict=True):
        assert answer.text == kind.expected(number)
        check_complete(answer, len(kind.scripts[number]["ids"]))


def test_no_token_and_one_token(served: Served) -> None:
    """Both end with one final response that has the counts and the reason."""
    zero, one = replay(served.url, f"{served.prefix}byte_level", [ZERO, ONE])
    assert (zero.text, [chunk.num_output_tokens for chunk in zero.chunks]) == ("", [0])
    assert one.text == served.kinds["byte_level"].expected(ONE)
    check_complete(zero, 0)
    check_complete(one, 1)


def test_errors_are_final_once(served: Served) -> None:
    """At once, after some tokens, and refused: one error, nothing after it."""
    answers = replay(served.url, f"{served.prefix}byte_level", [FAILS, FAILS_LATE, 10**6])
    assert [(answer.finals, answer.after_final) for answer in answers] == [(1, 0)] * 3
    assert "as scripted" in answers[0].error
    assert "later, as scripted" in answers[1].error
    assert "random_seed is 1000000" in answers[2].error
    assert [answer.chunks for answer in answers if not answer.error] == []
