# SPDX-License-Identifier: Apache-2.0
"""Scripted token ids through a real tokenizer, decoder loop, detokenizer and Triton.

Text is compared with the library's decode of all ids; order and completeness are read off the raw
gRPC responses, to the end of the call and not only to its first final response.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tokenizers import Tokenizer
from tritonclient.grpc import service_pb2_grpc

from tests import sample_tokenizers
from tests.server.replay import replay_project
from tritonctl.host.progress import Silent
from tritonctl.protocol.generation import Chunk, SamplingParameters, generation_request, read_chunk
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.state import Server

pytestmark = pytest.mark.server

STREAMS_PER_KIND = 100
CUT_STREAMS = 50
LONG_STREAMS, LONG_IDS = 64, 800
SIZES = ([1], [16], [1, 2, 3], [7], [5, 1, 16])
PIECES = [*sample_tokenizers.TEXTS, *sample_tokenizers.ENGLISH, "🏳️‍🌈👍🏽🇩🇪🇫🇷", "e\u0301\u0323 ก็กำ"]


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
class Kind:
    """A model of the test server and what it is scripted to say."""

    tokenizer: Tokenizer
    scripts: list[dict[str, Any]]

    def expected(self, number: int) -> str:
        """The library's decode of a whole script."""
        text: str = self.tokenizer.decode(self.scripts[number]["ids"], skip_special_tokens=True)
        return text


# After the random scripts of every kind:
ZERO, ONE, FAILS, FAILS_LATE, LONG = range(STREAMS_PER_KIND, STREAMS_PER_KIND + 5)


def scripts_for(tokenizer: Tokenizer, name: str) -> list[dict[str, Any]]:
    """Hard texts with special tokens anywhere; the special cases; the long streams."""
    source = random.Random(f"tritonctl {name}")  # noqa: S311 - test data
    added = tokenizer.get_added_tokens_decoder()
    special = [number for number, token in added.items() if token.special]
    made: list[dict[str, Any]] = [
        {"ids": _ids(tokenizer, special, source), "sizes": SIZES[n % len(SIZES)]}
        for n in range(STREAMS_PER_KIND)
    ]
    word = tokenizer.encode("word", add_special_tokens=False).ids
    made += [
        {"ids": []},
        {"ids": word[:1]},
        {"ids": [], "error": "as scripted"},
        {"ids": word * 5, "error": "later, as scripted"},
    ]
    return made + [_long(tokenizer, special, source) for _ in range(LONG_STREAMS)]


def _ids(tokenizer: Tokenizer, special: Sequence[int], source: random.Random) -> list[int]:
    text = " ".join(source.choices(PIECES, k=source.randint(1, 3)))
    ids: list[int] = []
    for token in tokenizer.encode(text, add_special_tokens=False).ids:
        ids += source.choices(special, k=source.choice([0] * 9 + [1, 9]))
        ids.append(token)
    return ids


def _long(tokenizer: Tokenizer, special: Sequence[int], source: random.Random) -> dict[str, Any]:
    ids: list[int] = []
    while len(ids) < LONG_IDS:
        ids += _ids(tokenizer, special, source)
    # A character cut off at the end would be malformed text: the last piece stays whole.
    return {"ids": ids, "sizes": [1]}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Kind]]:
    """Tokenizers and scripts."""
    made = {}
    for name, make in sample_tokenizers.KINDS.items():
        path = make(tmp_path_factory.mktemp(name))
        tokenizer = Tokenizer.from_file(str(path))
        made[name] = (path, Kind(tokenizer, scripts_for(tokenizer, name)))
    return made


@pytest.fixture(scope="module", params=[False, True], ids=["detokenizer", "inline_detokenizer"])
def server(
    request: pytest.FixtureRequest,
    kinds: dict[str, tuple[Path, Kind]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Server]:
    """One Triton, four models; with a detokenizer step, then without."""
    folder = tmp_path_factory.mktemp("replay")
    project = replay_project(
        folder,
        {name: (path, kind.scripts) for name, (path, kind) in kinds.items()},
        serving={"inline_detokenizer": request.param},
    )
    state, _ = start(project, render(project, Silent()), Silent())
    yield state
    stop(project, Silent())


def replay(
    url: str,
    model: str,
    numbers: Sequence[int],
    resume_ids: Sequence[Sequence[int] | None] | None = None,
) -> list[Answer]:
    """Replay scripts, all at the same time; with `resume_ids`, what comes behind them."""
    behind = resume_ids or [None] * len(numbers)

    async def run() -> list[Answer]:
        async with grpc.aio.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            asked = zip(numbers, behind, strict=True)
            return await asyncio.gather(*(_one(stub, model, n, ids) for n, ids in asked))

    return asyncio.run(run())


async def _one(stub: Any, model: str, number: int, resume_ids: Sequence[int] | None) -> Answer:
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
def test_streams_are_exact(server: Server, kinds: dict[str, tuple[Path, Kind]], name: str) -> None:
    """A hundred hard streams, ten at a time, in chunks of 1 to 16 ids."""
    kind = kinds[name][1]
    for first in range(0, STREAMS_PER_KIND, 10):
        numbers = range(first, first + 10)
        for number, answer in zip(numbers, replay(server.grpc_url, name, numbers), strict=True):
            assert answer.text == kind.expected(number)
            check_complete(answer, len(kind.scripts[number]["ids"]))


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
def test_streams_go_on_behind_any_cut(
    server: Server, kinds: dict[str, tuple[Path, Kind]], name: str
) -> None:
    """From the ids of the responses alone, which are those of the script, inside characters too."""
    kind = kinds[name][1]
    source = random.Random(f"tritonctl cut {name}")  # noqa: S311 - test data
    numbers = range(CUT_STREAMS)
    wholes = replay(server.grpc_url, name, numbers, [[]] * CUT_STREAMS)
    cuts = [source.randrange(1, len(whole.chunks) + 1) for whole in wholes]
    heads = [whole.chunks[:cut] for whole, cut in zip(wholes, cuts, strict=True)]
    ids = [[token for chunk in head for token in chunk.token_ids] for head in heads]
    rests = replay(server.grpc_url, name, numbers, ids)
    for number, (whole, head, rest) in enumerate(zip(wholes, heads, rests, strict=True)):
        script = kind.scripts[number]["ids"]
        assert [token for chunk in whole.chunks for token in chunk.token_ids] == script
        if not head[-1].finish_reason:
            assert "".join(chunk.text for chunk in head) + rest.text == kind.expected(number)
            check_complete(rest, len(script))


@pytest.mark.parametrize("name", sample_tokenizers.KINDS)
def test_concurrent_long_streams(
    server: Server, kinds: dict[str, tuple[Path, Kind]], name: str
) -> None:
    """64 streams of 800 ids and more at once: exact, in order, complete."""
    kind = kinds[name][1]
    numbers = range(LONG, LONG + LONG_STREAMS)
    answers = replay(server.grpc_url, name, numbers)
    assert [answer.finals for answer in answers] == [1] * LONG_STREAMS
    for number, answer in zip(numbers, answers, strict=True):
        assert answer.text == kind.expected(number)
        check_complete(answer, len(kind.scripts[number]["ids"]))


def test_no_token_and_one_token(server: Server, kinds: dict[str, tuple[Path, Kind]]) -> None:
    """Both end with one final response that has the counts and the reason."""
    zero, one = replay(server.grpc_url, "byte_level", [ZERO, ONE])
    assert (zero.text, [chunk.num_output_tokens for chunk in zero.chunks]) == ("", [0])
    assert one.text == kinds["byte_level"][1].expected(ONE)
    check_complete(zero, 0)
    check_complete(one, 1)


def test_errors_are_final_once(server: Server) -> None:
    """At once, after some tokens, and refused: one error, nothing after it."""
    answers = replay(server.grpc_url, "byte_level", [FAILS, FAILS_LATE, 10**6])
    assert [(answer.finals, answer.after_final) for answer in answers] == [(1, 0)] * 3
    assert "as scripted" in answers[0].error
    assert "later, as scripted" in answers[1].error
    assert "random_seed is 1000000" in answers[2].error
    assert [answer.chunks for answer in answers if not answer.error] == []
