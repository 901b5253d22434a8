# SPDX-License-Identifier: Apache-2.0
"""Answers whose server is killed go on at another one: same text, same counts, told honestly."""

from __future__ import annotations

import asyncio
import random
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from tests.servers import Handle
from tritonctl.errors import RequestRejectedError, ServerError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import (
    Chunk,
    Generation,
    Prompt,
    SamplingParameters,
    generation_request,
    read_chunk,
)
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

PATIENCE_SECONDS = 120.0
Cli = Callable[..., subprocess.CompletedProcess[str]]
NOBODY = "127.0.0.1:1"
CUT_PROMPTS = 100
STEP_SECONDS, TOKENS_BEFORE = 0.02, 4
# Four scripts, several ids per character.
PROMPTS: list[Prompt] = [
    "777777 in English:",
    "777777 in Emoji:",
    "123456 in Thai:",
    [{"role": "user", "content": "777777 in Chinese"}],
]
GREEDY = SamplingParameters()
SAMPLINGS = [
    SamplingParameters(max_tokens=10),
    SamplingParameters(return_log_probs=True, repetition_penalty=1.2),
    SamplingParameters(stop_words=("thousand seven",), include_stop_word=True),
]


@pytest.fixture
def doomed(pair: list[Handle]) -> list[Handle]:
    """Both stall in the midst of their answers: whenever one is killed, it is amid them."""
    for handle in pair:
        handle.pace(STEP_SECONDS, stall_after=TOKENS_BEFORE)
    return pair


class Asker:
    """Streams, each in a thread, and how far they are."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._begun = threading.Semaphore(0)
        self._asked = 0

    def ask(self, urls: Sequence[str], prompt: Prompt, sampling: SamplingParameters) -> Any:
        """The future Generation of a synchronous client."""
        return self._submit(self._run, urls, prompt, sampling)

    def ask_async(self, urls: Sequence[str], prompt: Prompt, sampling: SamplingParameters) -> Any:
        """The same of an asynchronous client."""

        def run(*arguments: Any) -> Generation:
            return asyncio.run(self._run_async(*arguments))

        return self._submit(run, urls, prompt, sampling)

    def wait_until_all_have_begun(self) -> None:
        """Every stream has had tokens, of one more server than at the last call."""
        for _ in range(self._asked):
            assert self._begun.acquire(timeout=PATIENCE_SECONDS)

    def _submit(self, run: Callable[..., Generation], *arguments: Any) -> Future[Generation]:
        self._asked += 1
        return self._pool.submit(run, *arguments)

    def _run(self, urls: Sequence[str], prompt: Prompt, sampling: SamplingParameters) -> Generation:
        chunks: list[Chunk] = []
        with TritonClient(urls[0], resume_on=urls[1:]) as client:
            sent_ns = time.monotonic_ns()
            for chunk in client.stream("int8", prompt, sampling, timeout=PATIENCE_SECONDS):
                self._take(chunk, chunks)
        return Generation.of(sent_ns, chunks)

    async def _run_async(
        self, urls: Sequence[str], prompt: Prompt, sampling: SamplingParameters
    ) -> Generation:
        chunks: list[Chunk] = []
        async with AsyncTritonClient(urls[0], resume_on=urls[1:]) as client:
            sent_ns = time.monotonic_ns()
            async for chunk in client.stream("int8", prompt, sampling, timeout=PATIENCE_SECONDS):
                self._take(chunk, chunks)
        return Generation.of(sent_ns, chunks)

    def _take(self, chunk: Chunk, chunks: list[Chunk]) -> None:
        if not chunks or chunks[-1].resumes != chunk.resumes:
            self._begun.release()
        chunks.append(chunk)


@pytest.fixture
def asker() -> Iterator[Asker]:
    """Ends with its streams."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        yield Asker(pool)


def unbroken(server: Handle, prompt: Prompt, sampling: SamplingParameters) -> Generation:
    """What a server says that nobody kills."""
    with TritonClient(server.url) as client:
        return client.generate("int8", prompt, sampling)


def assert_same(got: Generation, whole: Generation) -> None:
    """In all that a caller sees, but for its timing."""
    assert got.text == whole.text
    assert (got.num_input_tokens, got.num_output_tokens) == (
        whole.num_input_tokens,
        whole.num_output_tokens,
    )
    assert got.finish_reason == whole.finish_reason
    assert got.log_probs == pytest.approx(whole.log_probs, abs=0.05)
    assert got.cum_log_prob == pytest.approx(whole.cum_log_prob, abs=0.5)


def test_killed_server_changes_no_text(doomed: list[Handle], asker: Asker) -> None:
    """SIGKILL amid texts, conversations, options, both clients; the survivor answers the rest."""
    server, survivor = doomed
    survivor.pace(0)
    urls = [server.url, survivor.url]
    kinds = [(prompt, GREEDY) for prompt in PROMPTS] + [(PROMPTS[0], s) for s in SAMPLINGS]
    streams = [
        (ask(urls, prompt, sampling), prompt, sampling)
        for prompt, sampling in kinds
        for ask in (asker.ask, asker.ask_async)
    ]
    alone = asker.ask(urls[:1], PROMPTS[0], GREEDY)
    with_dead = asker.ask([server.url, NOBODY], PROMPTS[0], GREEDY)
    asker.wait_until_all_have_begun()
    server.kill()

    for future, prompt, sampling in streams:
        got = future.result(PATIENCE_SECONDS)
        assert got.resumes == 1
        assert_same(got, unbroken(survivor, prompt, sampling))
        assert got.timing.ttft_ms is not None
        assert got.timing.ttft_ms < got.timing.e2e_ms
    with pytest.raises(ServerError, match="no answer from Triton"):
        alone.result(PATIENCE_SECONDS)
    with pytest.raises(
        ServerError, match=rf"{server.url}: .*; then .*{NOBODY}: UNAVAILABLE"
    ) as two:
        with_dead.result(PATIENCE_SECONDS)
    assert "was continued 1 times (max_resumes 1)" in two.value.problem


def test_server_after_server_dies(doomed: list[Handle], asker: Asker) -> None:
    """Twice is possible where twice is allowed, also for an answer that was sampled."""
    first, second = doomed
    urls = [first.url, second.url, first.url]
    drawn = SamplingParameters(max_tokens=60, end_id=-1, temperature=1.0, random_seed=3)
    greedy, sampled = asker.ask(urls, PROMPTS[1], GREEDY), asker.ask(urls, PROMPTS[1], drawn)
    once = asker.ask(urls[:2], PROMPTS[1], GREEDY)
    asker.wait_until_all_have_begun()
    first.kill()
    asker.wait_until_all_have_begun()
    first.start_again()
    first.pace(0)
    second.kill()

    got = greedy.result(PATIENCE_SECONDS)
    assert got.resumes == 2
    assert_same(got, unbroken(first, PROMPTS[1], GREEDY))
    assert sampled.result(PATIENCE_SECONDS).resumes == 2
    assert sampled.result().num_output_tokens == 60
    with pytest.raises(ServerError, match=r"was continued 1 times \(max_resumes 1\)"):
        once.result(PATIENCE_SECONDS)


def test_command_line(cli: Cli, speller_project: Project, speller_server: Server) -> None:
    """`--resume-on` takes over from a server that is not there; the timing line says so."""
    arguments = ["generate", "exact", "7342 in English:", "--url", NOBODY]
    done = cli(*arguments, "--resume-on", speller_server.grpc_url, cwd=speller_project.root)
    assert (done.returncode, done.stdout) == (0, " seven thousand three hundred forty-two\n")
    assert "continued elsewhere 1x" in done.stderr
    done = cli(*arguments, "--max-resumes", "1", cwd=speller_project.root)
    assert (done.returncode, "--resume-on" in done.stderr) == (2, True)


@pytest.mark.parametrize("model", ["exact", "int8"])
def test_held_out_prompts_cut_anywhere(
    speller_server: Server, held_out: list[dict[str, str]], model: str
) -> None:
    """The rest comes from ids alone: each text is that of the unbroken answer."""
    source = random.Random(f"tritonctl {model}")  # noqa: S311 - test data
    prompts = [prompt["text_input"] for prompt in source.sample(held_out, CUT_PROMPTS)]

    async def run() -> list[tuple[str, str]]:
        async with grpc.aio.insecure_channel(speller_server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            gate = asyncio.Semaphore(16)

            async def one(prompt: str, where: float) -> tuple[str, str]:
                async with gate:
                    whole = await _chunks(stub, model, prompt, [])
                    before = whole[: 1 + int(where * (len(whole) - 1))]
                    ids = [token for chunk in before for token in chunk.token_ids]
                    if not before[-1].finish_reason:
                        before += await _chunks(stub, model, prompt, ids)
                    return _text(whole), _text(before)

            return await asyncio.gather(*(one(prompt, source.random()) for prompt in prompts))

    assert [whole for whole, joined in asyncio.run(run()) if whole != joined] == []


async def _chunks(stub: Any, model: str, prompt: str, ids: list[int]) -> list[Chunk]:
    request = generation_request(model, prompt, GREEDY, resume_ids=ids)
    responses = stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_SECONDS)
    return [chunk async for response in responses if (chunk := read_chunk(response)[0])]


def _text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def test_what_the_engine_cannot_continue_is_refused(speller_server: Server) -> None:
    """OpenVINO GenAI counts for these penalties only what it made itself."""
    sampling = SamplingParameters(frequency_penalty=0.5)
    request = generation_request("int8", "7 in English:", sampling, resume_ids=[9])
    with grpc.insecure_channel(speller_server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(RequestRejectedError, match="frequency_penalty: OpenVINO GenAI counts"):
            read_chunk(next(iter(stub.ModelStreamInfer(iter([request])))))


def test_ids_that_are_another_text_here_are_refused(speller_server: Server) -> None:
    """The digest of the client's text comes through the ensemble, and the engine compares it."""
    with grpc.insecure_channel(speller_server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def first(resume_ids: Sequence[int], text: str) -> Chunk | None:
            request = generation_request(
                "int8", "7342 in English:", GREEDY, resume_ids=resume_ids, resume_text=text
            )
            return read_chunk(next(iter(stub.ModelStreamInfer(iter([request])))))[0]

        with TritonClient(speller_server.grpc_url) as client:
            whole = client.generate("int8", "7342 in English:", GREEDY)
        ids = whole.token_ids[:2]
        with pytest.raises(RequestRejectedError, match=r"these 2 ids to another text .* tokenizer"):
            first(ids, "sieben")
        begun = next(n for n in range(len(whole.text)) if _accepts(first, ids, whole.text[:n]))
        assert 0 < begun < len(whole.text)


def _accepts(first: Callable[..., Chunk | None], ids: Sequence[int], text: str) -> bool:
    try:
        return first(ids, text) is not None
    except RequestRejectedError:
        return False
