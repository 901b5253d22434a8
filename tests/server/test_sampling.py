# SPDX-License-Identifier: Apache-2.0
"""The sampling contract through a real Triton and our client: what a table cannot say.

What can be said in one request and its answer is in tests/conformance/text_generation.yaml.
"""

from __future__ import annotations

import json
import math
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.servers import wait_until
from tritonctl.errors import RequestRejectedError
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Generation, SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

Cli = Callable[..., subprocess.CompletedProcess[str]]

ENGLISH = "7342 in English:"
IN_ENGLISH = " seven thousand three hundred forty-two"
EMOJI = "7342 in Emoji:"
CHINESE = "7342 in Chinese:"
TOKENIZER = Path(__file__).parents[2] / "examples/number-speller/checkpoint/tokenizer.json"


@pytest.fixture
def client(speller_server: Server) -> Iterator[TritonClient]:
    """A client of the session's server."""
    with TritonClient(speller_server.grpc_url) as client:
        yield client


def ask(client: TritonClient, prompt: str, **sampling: Any) -> Generation:
    """An answer of the exact model."""
    return client.generate("exact", prompt, SamplingParameters(**sampling), timeout=60)


@pytest.mark.parametrize("prompt", [pytest.param(CHINESE, marks=pytest.mark.exhaustive), EMOJI])
def test_stop_words_of_several_tokens(client: TritonClient, prompt: str) -> None:
    """Every piece of a Chinese and of an emoji answer, down to one code point, ends it."""
    whole = ask(client, prompt).text
    assert len(whole) >= 4
    for start in range(len(whole)):
        for end in range(start + 1, min(start + 4, len(whole)) + 1):
            word = whole[start:end]
            answer = ask(client, prompt, stop_words=(word,))
            assert answer.text == whole[: whole.find(word)]
            assert answer.finish_reason == "stop"


@pytest.mark.path
def test_no_piece_ever_shows_a_part_of_the_word(client: TritonClient) -> None:
    """Pieces are final when they arrive: none of them is a beginning of the word."""
    chunks = list(
        client.stream("exact", ENGLISH, SamplingParameters(stop_words=(" hundred forty-two",)))
    )
    assert "".join(chunk.text for chunk in chunks) == " seven thousand three"
    assert len(chunks) > 1


def test_a_stop_word_frees_the_engine(client: TritonClient, speller_server: Server) -> None:
    """An answer that would run to its limit ends where the word is, in the engine, too."""

    def ended(**outcome: str) -> float:
        name, engine = "tritonctl_requests_total", "exact_engine"
        return scrape(speller_server.metrics_url).total(name, model=engine, **outcome)

    before, to_the_limit = ended(), ended(outcome="length")
    answer = ask(client, ENGLISH, end_id=-1, max_tokens=400, stop_words=(" thousand",))
    assert answer.finish_reason == "stop"
    wait_until(lambda: ended() > before, "the engine counts it")
    assert ended(outcome="length") == to_the_limit


def test_refusal(client: TritonClient) -> None:
    """Named, not ignored, even where Python cannot encode the text; the server goes on."""
    with pytest.raises(RequestRejectedError) as refusal:
        ask(client, ENGLISH, stop_words=("\udc80",))
    assert "stop_words[0] is not UTF-8" in str(refusal.value)
    assert ask(client, ENGLISH).text == IN_ENGLISH


@pytest.mark.path
def test_several_end_ids(client: TritonClient) -> None:
    """Any of them ends the answer; the model's own no longer does unless it is among them."""
    one = ask(client, ENGLISH, max_tokens=4)
    assert one.finish_reason == "length"
    fourth = _ids_of(client, ENGLISH)[3]
    answer = ask(client, ENGLISH, end_id=(2, fourth), max_tokens=40)
    assert (answer.text, answer.finish_reason) == (one.text, "stop")
    assert ask(client, ENGLISH, end_id=(2, 1), max_tokens=40).text == IN_ENGLISH
    assert ask(client, ENGLISH, end_id=-1, max_tokens=40).finish_reason == "length"


def _ids_of(client: TritonClient, prompt: str) -> list[int]:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    ids: list[int] = tokenizer.encode(ask(client, prompt).text, add_special_tokens=False).ids
    return ids


def test_min_tokens_delays_the_end(client: TritonClient) -> None:
    """The end token cannot come before that many ids."""
    plain = ask(client, ENGLISH)
    longer = ask(client, ENGLISH, min_tokens=plain.num_output_tokens + 5)
    assert longer.num_output_tokens > plain.num_output_tokens + 5
    assert longer.text.startswith(IN_ENGLISH)
    assert ask(client, ENGLISH, min_tokens=2).text == IN_ENGLISH


def test_the_prompt_in_front_of_the_answer(client: TritonClient) -> None:
    """exclude_input_in_output=false; the counts stay those of prompt and answer."""
    plain = ask(client, ENGLISH, exclude_input_in_output=True)
    echoed = ask(client, ENGLISH, exclude_input_in_output=False)
    assert plain.text == IN_ENGLISH
    assert echoed.text == ENGLISH + IN_ENGLISH
    assert echoed.num_output_tokens == plain.num_output_tokens
    both = ask(client, "7 in Emoji: 七", exclude_input_in_output=False, stop_words=("7", "\n"))
    assert both.text.startswith("7 in Emoji: 七")


@pytest.mark.path
def test_log_probs(client: TritonClient) -> None:
    """One per generated id, none above 0; they add up; a sampled answer is less probable."""
    greedy = ask(client, ENGLISH, return_log_probs=True)
    assert len(greedy.log_probs) == greedy.num_output_tokens
    assert all(value <= 1e-4 for value in greedy.log_probs)
    assert greedy.cum_log_prob is not None
    assert math.isclose(greedy.cum_log_prob, sum(greedy.log_probs), abs_tol=1e-4)
    wild = ask(client, ENGLISH, return_log_probs=True, temperature=2.0, random_seed=1)
    assert wild.cum_log_prob is not None
    assert wild.cum_log_prob < greedy.cum_log_prob - 1
    stopped = ask(client, ENGLISH, return_log_probs=True, stop_words=(" three hundred",))
    assert len(stopped.log_probs) == stopped.num_output_tokens


def post(server: Server, verb: str, body: dict[str, Any]) -> str:
    """The body that HTTP `generate` or `generate_stream` answers with."""
    request = urllib.request.Request(  # noqa: S310 - our own server
        f"{server.http_url}/v2/models/exact/{verb}", data=json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
        text: str = answer.read().decode()
    return text


def test_nvidias_documented_request(speller_server: Server) -> None:
    """The curl of NVIDIA's README: max_tokens, and empty stop_words and bad_words."""
    body = {"text_input": ENGLISH, "max_tokens": 20, "bad_words": "", "stop_words": ""}
    answer = json.loads(post(speller_server, "generate", body))
    assert answer["text_output"] == IN_ENGLISH


def test_one_response_without_streaming(speller_server: Server) -> None:
    """HTTP generate: whole, with stop words as text or list, log probabilities and the prompt."""
    body = {"text_input": ENGLISH, "stop_words": [" hundred", "zzz"], "return_log_probs": True}
    answer = json.loads(post(speller_server, "generate", body))
    assert answer["text_output"] == " seven thousand three"
    assert answer["finish_reason"] == "stop"
    assert len(answer["output_log_probs"]) == answer["num_output_tokens"]
    body = {"text_input": ENGLISH, "stop_words": " three", "exclude_input_in_output": False}
    assert json.loads(post(speller_server, "generate", body))["text_output"] == (
        f"{ENGLISH} seven thousand"
    )


def test_generate_stream_with_a_stop_word(speller_server: Server) -> None:
    """The same text in pieces."""
    body = {"text_input": ENGLISH, "stop_words": ["-two"], "stream": True}
    lines = post(speller_server, "generate_stream", body).split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == IN_ENGLISH.removesuffix("-two")


@pytest.mark.usefixtures("speller_server")
def test_generate_command_options(cli: Cli, speller_project: Project) -> None:
    """The flags reach the engine."""
    flags = ["--stop", " hun", "--stop", "zzz", "--include-stop-word", "--echo", "--log-probs"]
    done = cli("generate", "exact", ENGLISH, *flags, "--json", cwd=speller_project.root)
    answer = json.loads(done.stdout)
    assert answer["text"] == f"{ENGLISH} seven thousand three hun"
    assert len(answer["log_probs"]) == answer["num_output_tokens"]
    flags = ["--end-id", "-1", "--min-tokens", "3", "--max-tokens", "30"]
    done = cli("generate", "exact", ENGLISH, *flags, cwd=speller_project.root)
    assert "30 out (length)" in done.stderr
