# SPDX-License-Identifier: Apache-2.0
"""Triton's HTTP `generate` and `generate_stream` endpoints, as curl and browsers use them."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tritonctl.protocol.client import TritonClient
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

MESSAGES = json.dumps([{"role": "user", "content": "7342 in English"}])
ANSWER = "seven thousand three hundred forty-two"
OK, BAD_REQUEST, NOT_FOUND = 200, 400, 404

Post = Callable[..., tuple[int, bytes]]


@pytest.fixture
def post(speller_server: Server) -> Post:
    """Sends a JSON object to an endpoint of a model: status and body."""

    def send(endpoint: str, content: dict[str, Any], model: str = "exact") -> tuple[int, bytes]:
        address, port = speller_server.address, speller_server.http_port
        connection = http.client.HTTPConnection(address, port, timeout=60)
        try:
            body = json.dumps(content)
            connection.request("POST", f"/v2/models/{model}/{endpoint}", body=body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    return send


def events(body: bytes) -> list[dict[str, Any]]:
    """The objects of a stream of server-sent events."""
    blocks = body.decode("utf-8").split("\n\n")
    assert blocks[-1] == ""
    assert all(block.startswith("data: ") for block in blocks[:-1])
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


@pytest.mark.path
def test_generate(post: Post) -> None:
    """One object with the whole text, from text and from messages."""
    status, body = post("generate", {"text_input": "7342 in English:"})
    answer = json.loads(body)
    assert (status, answer["text_output"]) == (OK, f" {ANSWER}")
    assert answer["finish_reason"] == "stop"
    assert answer["num_output_tokens"] > 3
    status, body = post("generate", {"messages": MESSAGES})
    assert (status, json.loads(body)["text_output"]) == (OK, ANSWER)


@pytest.mark.path
@pytest.mark.parametrize("script", ["English", "Emoji"])
def test_generate_stream_is_exact(post: Post, speller_server: Server, script: str) -> None:
    """Events over time; put together they are the text that gRPC gives, in every script."""
    prompt = f"907342 in {script}:"
    status, body = post("generate_stream", {"text_input": prompt, "stream": True})
    pieces = events(body)
    assert status == OK
    assert len(pieces) > 1
    with TritonClient(speller_server.grpc_url) as client:
        whole = client.generate("exact", prompt)
    assert "".join(piece["text_output"] for piece in pieces) == whole.text
    assert "\ufffd" not in whole.text
    assert [piece["finish_reason"] for piece in pieces[:-1]] == [""] * (len(pieces) - 1)
    assert pieces[-1]["finish_reason"] == "stop"


def test_generate_stream_of_messages(post: Post) -> None:
    """The same for a conversation."""
    status, body = post("generate_stream", {"messages": MESSAGES, "stream": True})
    assert status == OK
    assert "".join(piece["text_output"] for piece in events(body)) == ANSWER


# By the tokenizer, by the request's checks, and by Triton itself: no step has an input.
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not JSON": ({"messages": "hello"}, "messages is not valid JSON"),
    "no tokens": ({"text_input": "7", "max_tokens": 0}, "max_tokens is 0"),
    "neither": ({"max_tokens": 3}, "request has 0 inputs"),
}


@pytest.mark.parametrize("endpoint", ["generate", "generate_stream"])
@pytest.mark.parametrize("case", BAD)
def test_bad_request_is_400_with_the_reason(post: Post, endpoint: str, case: str) -> None:
    """Both endpoints; the server goes on."""
    content, problem = BAD[case]
    status, body = post(endpoint, content)
    assert status == BAD_REQUEST
    answer = json.loads(body) if endpoint == "generate" else events(body)[0]
    assert problem in answer["error"]
    assert json.loads(post("generate", {"text_input": "7 in English:"})[1])["text_output"]


def test_ten_megabytes_are_refused_and_the_server_goes_on(post: Post) -> None:
    """Triton 2.51 copies a body onto a stack, which 5 MB overflow where it is as large as usual."""
    status, body = post("generate", {"text_input": "x" * 10_000_000})
    assert status == BAD_REQUEST
    assert "text_input has 10000000 bytes" in json.loads(body)["error"]
    status, body = post("generate", {"text_input": "7342 in English:"})
    assert (status, json.loads(body)["text_output"]) == (OK, f" {ANSWER}")


def test_unknown_model(post: Post) -> None:
    """404 and the name."""
    status, body = post("generate", {"text_input": "7"}, model="nonsense")
    assert status == NOT_FOUND
    assert "nonsense" in json.loads(body)["error"]


def test_curl(speller_server: Server) -> None:
    """The real one, streaming without a buffer (-N), as in Triton's manual."""
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    url = f"{speller_server.http_url}/v2/models/exact/generate_stream"
    data = json.dumps({"messages": MESSAGES, "stream": True})
    done = subprocess.run(
        [curl, "-sS", "-N", "--fail", "-X", "POST", url, "-d", data],
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert "".join(piece["text_output"] for piece in events(done.stdout)) == ANSWER
    refused = subprocess.run(
        [curl, "-sS", "--fail-with-body", url, "-d", '{"messages": "[]"}'],
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert refused.returncode == 22  # curl's code for HTTP errors of 400 and above
    assert "messages is empty" in events(refused.stdout)[0]["error"]
