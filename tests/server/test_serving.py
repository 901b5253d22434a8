# SPDX-License-Identifier: Apache-2.0
"""Streamed text from a real Triton ensemble: exact, concurrent, and robust to bad requests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.json_page import as_documented
from tests.servers import Handle
from tritonctl.errors import RequestRejectedError, ServerError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import AsyncTritonClient, TritonClient
from tritonctl.protocol.generation import Generation, SamplingParameters
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]

# Long enough to see trouble, short enough for every run; 60 for a release.
STRESS_SECONDS = float(os.environ.get("STRESS_SECONDS", "8"))
CONCURRENT_STREAMS = 32


@pytest.fixture
def client(speller_server: Server) -> Iterator[TritonClient]:
    """A client of the session's server."""
    with TritonClient(speller_server.grpc_url) as client:
        yield client


def ask_all(url: str, model: str, prompts: list[str]) -> list[Generation]:
    """Answers to all prompts, 32 streams at a time, in order."""

    async def run() -> list[Generation]:
        places = asyncio.Semaphore(CONCURRENT_STREAMS)
        async with AsyncTritonClient(url) as client:

            async def one(prompt: str) -> Generation:
                async with places:
                    return await client.generate(model, prompt, timeout=120)

            return await asyncio.gather(*map(one, prompts))

    return asyncio.run(run())


@pytest.fixture(scope="module")
def answered() -> dict[str, list[Generation]]:
    """What models have answered so far."""
    return {}


@pytest.fixture
def answers_of(
    speller_server: Server,
    held_out: list[dict[str, str]],
    answered: dict[str, list[Generation]],
) -> Callable[[str], list[Generation]]:
    """What a model answers to all held-out prompts; asked once."""
    prompts = [prompt["text_input"] for prompt in held_out]

    def asked(model: str) -> list[Generation]:
        if model not in answered:
            answered[model] = ask_all(speller_server.grpc_url, model, prompts)
        return answered[model]

    return asked


def share(answers: list[Generation], expected: list[str]) -> float:
    """The share of answers whose text is exactly the expected one."""
    pairs = zip(answers, expected, strict=True)
    return sum(answer.text == text for answer, text in pairs) / len(expected)


def test_fp32_streams_exactly_what_transformers_answers(
    answers_of: Callable[[str], list[Generation]],
    held_out: list[dict[str, str]],
    reference: list[str],
) -> None:
    """All 1,000 held-out prompts through gRPC, character for character."""
    answers = answers_of("exact")
    wrong = [
        (p["text_input"], a.text, r)
        for p, a, r in zip(held_out, answers, reference, strict=True)
        if a.text != r
    ]
    assert wrong == []
    assert {answer.finish_reason for answer in answers} == {"stop"}


@pytest.mark.parametrize(("model", "least"), [("int8", 0.98), ("int4", 0.80)])
def test_quantised_engines_still_spell(
    answers_of: Callable[[str], list[Generation]],
    held_out: list[dict[str, str]],
    model: str,
    least: float,
    record_property: Callable[[str, object], None],
) -> None:
    """Exact match against the right answers, through gRPC."""
    found = share(answers_of(model), [p["text_output"] for p in held_out])
    record_property("exact_match", found)
    print(f"{model}: {found:.1%} of {len(held_out)} held-out prompts exactly right")  # noqa: T201
    assert found >= least


@pytest.mark.exhaustive
@pytest.mark.alone
def test_concurrent_streams_stay_exact(
    speller_server: Server, held_out: list[dict[str, str]], reference: list[str]
) -> None:
    """32 streams at any time, every one equal to its reference."""
    deadline = time.monotonic() + STRESS_SECONDS
    prompts = [p["text_input"] for p in held_out]

    async def user(client: AsyncTritonClient, number: int) -> tuple[int, list[str]]:
        count, wrong, position = 0, [], number
        while time.monotonic() < deadline:
            answer = await client.generate("exact", prompts[position], timeout=60)
            if answer.text != reference[position]:
                wrong.append(f"{prompts[position]} → {answer.text!r}")
            count, position = count + 1, (position + CONCURRENT_STREAMS) % len(prompts)
        return count, wrong

    async def run() -> list[tuple[int, list[str]]]:
        async with AsyncTritonClient(speller_server.grpc_url) as client:
            return await asyncio.gather(*(user(client, n) for n in range(CONCURRENT_STREAMS)))

    results = asyncio.run(run())
    streams = sum(count for count, _ in results)
    print(f"{streams} streams in {STRESS_SECONDS:.0f} s")  # noqa: T201
    assert [w for _, wrong in results for w in wrong] == []
    assert streams > CONCURRENT_STREAMS


@pytest.mark.path
def test_text_arrives_while_it_is_generated(client: TritonClient) -> None:
    """A stream is many responses over time, its counts grow, only the last one is final."""
    chunks = list(client.stream("exact", "777777 in English:"))
    assert len(chunks) > 1
    assert chunks[0].received_ns < chunks[-1].received_ns
    counts = [chunk.num_output_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].finish_reason == "stop"


def test_answers_at_once_after_a_request_for_one_token(life: Handle) -> None:
    """Prompts that go on from a short one share no KV block that they write into."""
    prompts = [f"{777_777 - 1001 * n} in {('English', 'Emoji')[n % 2]}:" for n in range(8)]
    with TritonClient(life.url) as client:
        expected = [client.generate("int8", prompt).text for prompt in prompts]
        client.generate("int8", "7", SamplingParameters(max_tokens=1))
    life.pace(0.2)  # all of them come within one step
    answers = ask_all(life.url, "int8", prompts * 4)
    assert [answer.text for answer in answers] == expected * 4


@pytest.mark.path
def test_sync_and_async_clients_agree(client: TritonClient) -> None:
    """Both clients give the same text and counts."""
    sync = client.generate("int8", "90210 in Emoji:")
    [asynchronous] = ask_all(client.url, "int8", ["90210 in Emoji:"])
    assert (sync.text, sync.num_output_tokens) == (
        asynchronous.text,
        asynchronous.num_output_tokens,
    )
    assert sync.timing.ttft_ms is not None
    assert sync.timing.ttft_ms <= sync.timing.e2e_ms


def test_max_tokens_cuts_and_says_so(client: TritonClient) -> None:
    """A budget of three tokens gives three and the reason `length`."""
    answer = client.generate("exact", "777777 in English:", SamplingParameters(max_tokens=3))
    assert (answer.num_output_tokens, answer.finish_reason) == (3, "length")


@pytest.mark.path
def test_same_seed_same_text(client: TritonClient) -> None:
    """Sampling is reproducible per request, other seeds give other texts."""
    prompt = "colourless green ideas"

    def text(seed: int) -> str:
        sampling = SamplingParameters(max_tokens=24, temperature=5.0, random_seed=seed)
        return client.generate("exact", prompt, sampling).text

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(5)}) > 1


# What is refused, one by one: tests/conformance/text_generation.yaml.
BAD_REQUESTS: dict[str, tuple[str | bytes, SamplingParameters, str]] = {
    "not UTF-8": (b"7342 \xff\xfe in English:", SamplingParameters(), "text_input"),
    "no tokens": ("7 in English:", SamplingParameters(max_tokens=0), "max_tokens"),
    "no number": ("7 in English:", SamplingParameters(temperature=float("nan")), "temperature"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_bad_request_is_refused_by_name_and_the_next_one_is_answered(
    client: TritonClient, case: str
) -> None:
    """The message names the public tensor; the server goes on."""
    prompt, sampling, tensor = BAD_REQUESTS[case]
    with pytest.raises(RequestRejectedError, match=tensor):
        client.generate("int8", prompt, sampling)
    assert client.generate("int8", "7 in English:").text == " seven"


@pytest.mark.path
def test_unknown_model_is_refused(client: TritonClient) -> None:
    """The error names the model."""
    with pytest.raises(RequestRejectedError, match="nonsense"):
        client.generate("nonsense", "7 in English:")


def test_leaving_a_stream_early_disturbs_nobody(client: TritonClient) -> None:
    """A caller may stop reading; the connection and the server stay good."""
    for chunk in client.stream("exact", "777777 in English:"):
        if chunk.text:
            break
    assert client.generate("exact", "7 in English:").text == " seven"


def test_no_server_there() -> None:
    """A clear error with the command that helps."""
    with TritonClient("127.0.0.1:9") as client, pytest.raises(ServerError) as error:
        client.generate("exact", "7 in English:", timeout=5)
    assert "tritonctl up" in error.value.remedy


@pytest.mark.path
@pytest.mark.usefixtures("speller_server")
def test_generate_command_streams_text(cli: Cli, speller_project: Project) -> None:
    """Text on standard output and nothing else there; timings on standard error."""
    done = cli("generate", "exact", "7342 in English:", cwd=speller_project.root)
    assert done.returncode == 0
    assert done.stdout == " seven thousand three hundred forty-two\n"
    assert "TTFT" in done.stderr
    assert "tokens/s" in done.stderr


@pytest.mark.usefixtures("speller_server")
def test_generate_command_reads_standard_input_and_speaks_json(
    cli: Cli, speller_project: Project
) -> None:
    """`-` is standard input; --json is one object."""
    done = cli(
        "generate", "exact", "-", "--json", cwd=speller_project.root, stdin=b"90210 in Chinese:\n"
    )
    record = as_documented("generate", done.stdout)
    assert record["text"] == " 九万零二百一十"
    assert record["finish_reason"] == "stop"
    assert record["timing"]["ttft_ms"] > 0


@pytest.mark.usefixtures("speller_server")
def test_generate_command_fails_with_its_exit_code(cli: Cli, speller_project: Project) -> None:
    """A refused request is exit 2, with the reason."""
    done = cli("generate", "exact", "x", "--max-tokens", "0", cwd=speller_project.root)
    assert done.returncode == 2
    assert "max_tokens" in done.stderr
    assert done.stdout == ""
