# SPDX-License-Identifier: Apache-2.0
"""`serving.inline_detokenizer` and `serving.fused` through a real Triton: the same answers.

Exactness, order and errors of scripted streams: test_exactness.py, which runs all three ways.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.configurations import FUSED
from tests.server.test_cancellation import http_stream
from tests.server.test_perf_analyzer import EXAMPLE, link_libraries, perf_analyzer
from tests.servers import Handle
from tritonctl.errors import ServerError
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Generation, Prompt, SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.runtimes.server_state import Server

pytestmark = pytest.mark.server

PATIENCE_SECONDS = 60.0
MODEL, ENGINE = "int8", "int8_engine"
PROMPT = "7342 in English:"
STEP_SECONDS = 0.02
LONG = SamplingParameters(max_tokens=480, end_id=-1)
UNSTREAMED = SamplingParameters(max_tokens=480, end_id=-1, exclude_input_in_output=False)
MESSAGES = [{"role": "user", "content": "7342 in English"}]


@pytest.fixture
def server(request: pytest.FixtureRequest, inline_handle: Handle) -> Server:
    """It alone, 20 ms a step: pieces are seen, cancels come in time."""
    return inline_handle.ready(request.node, STEP_SECONDS)


@pytest.fixture
def client(server: Server) -> Iterator[TritonClient]:
    """A client of it."""
    with TritonClient(server.grpc_url) as client:
        yield client


def test_fewer_steps(server: Server) -> None:
    """What is served."""
    names = [folder.name for folder in Path(server.repository).iterdir()]
    assert sorted(names) == [FUSED, "int8", "int8_engine", "int8_tokenizer"]


ANSWER = " seven thousand three hundred forty-two"
ASKED: dict[str, tuple[Prompt, dict[str, Any], str]] = {
    "text": (PROMPT, {}, ANSWER),
    "chat": (MESSAGES, {}, ANSWER.strip()),
    "emoji": ("7342 in Emoji:", {}, " 7️⃣3️⃣4️⃣2️⃣"),
    "echo": (PROMPT, {"exclude_input_in_output": False}, PROMPT + ANSWER),
    "stop word": (PROMPT, {"stop_words": ("ndred fo",)}, " seven thousand three hu"),
    "stop word kept": (
        PROMPT,
        {"stop_words": ("usand",), "include_stop_word": True},
        " seven thousand",
    ),
    "log probs": (PROMPT, {"return_log_probs": True}, ANSWER),
}


@pytest.mark.parametrize("model", [MODEL, FUSED])
@pytest.mark.parametrize("case", ASKED)
def test_answers(client: TritonClient, case: str, model: str) -> None:
    """Text, counts, reason and log probabilities, in several pieces."""
    prompt, sampling, text = ASKED[case]
    chunks = list(client.stream(model, prompt, SamplingParameters(**sampling), timeout=60))
    answer = Generation.of(0, chunks)
    assert answer.text == text
    assert [chunk.finish_reason for chunk in chunks] == [*[""] * (len(chunks) - 1), "stop"]
    assert len(chunks) > 1 or case == "echo"
    assert len(answer.log_probs) == (answer.num_output_tokens if case == "log probs" else 0)
    assert all(probability <= 1e-4 for probability in answer.log_probs)


@pytest.mark.parametrize("model", [MODEL, FUSED])
def test_one_response_over_http(server: Server, model: str) -> None:
    """Whole where nothing is streamed; an error is a 400."""
    connection = http.client.HTTPConnection(server.address, server.http_port, timeout=60)
    answers = []
    for changes in ({}, {"max_tokens": 0}):
        body = json.dumps({"text_input": PROMPT} | changes)
        connection.request("POST", f"/v2/models/{model}/generate", body=body)
        answer = connection.getresponse()
        answers.append((answer.status, json.loads(answer.read())))
    connection.close()
    [(fine, whole), (bad, refusal)] = answers
    assert (fine, whole["text_output"]) == (200, ANSWER)
    assert (bad, "max_tokens is 0" in refusal["error"]) == (400, True)


@pytest.mark.exhaustive
def test_perf_analyzer(server: Server, inline_handle: Handle, tmp_path: Path) -> None:
    """NVIDIA's tool counts every streamed response."""
    profile = tmp_path / "profile.json"
    arguments: list[str | Path] = ["-m", MODEL, "--input-data", EXAMPLE / "perf_analyzer.json"]
    arguments += ["--concurrency-range", "4", "--request-count", "20"]
    arguments += ["--profile-export-file", profile]
    done = perf_analyzer(
        link_libraries(inline_handle.project, tmp_path / "libraries"),
        server.grpc_url,
        arguments,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    requests = json.loads(profile.read_text())["experiments"][0]["requests"]
    assert len(requests) >= 20
    assert all(len(request["response_timestamps"]) > 1 for request in requests)


def _direct_inputs(max_tokens: int) -> list[grpcclient.InferInput]:
    values: dict[str, np.ndarray[Any, Any]] = {
        "input_ids": np.array([[10, 11, 12]], dtype=np.int32),
        "streaming": np.array([[True]]),
    }
    for name, value in (("input_lengths", 3), ("request_output_len", max_tokens), ("end_id", -1)):
        values[name] = np.array([[value]], dtype=np.int32)
    inputs = []
    for name, array in values.items():
        kind = "BOOL" if array.dtype == np.bool_ else "INT32"
        inputs.append(grpcclient.InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def _ended(server: Server, outcome: str) -> float:
    metrics = scrape(server.metrics_url)
    return metrics.total("tritonctl_requests_total", model=ENGINE, outcome=outcome)


def test_direct_calls_of_the_engine(server: Server) -> None:
    """They get text, only the outputs they ask for, and their cancel frees the slot."""
    client = grpcclient.InferenceServerClient(server.grpc_url)
    answers: list[Any] = []
    client.start_stream(lambda result, error: answers.append(error or result))
    wanted = [grpcclient.InferRequestedOutput("text_output")]
    client.async_stream_infer(ENGINE, _direct_inputs(30), outputs=wanted)
    client.stop_stream()  # waits for the end
    names = {output.name for answer in answers for output in answer.get_response().outputs}
    assert names == {"text_output"}
    assert b"".join(answer.as_numpy("text_output")[0] for answer in answers).decode()

    before = _ended(server, "cancelled")
    client.start_stream(lambda result, error: answers.append(error or result))
    client.async_stream_infer(ENGINE, _direct_inputs(480))
    seen = len(answers)
    _until(lambda: len(answers) > seen + 2)
    client.stop_stream(cancel_requests=True)
    _until(lambda: _ended(server, "cancelled") == before + 1)
    client.close()


def test_a_vanished_client_costs_its_own_budget(server: Server) -> None:
    """The price (decision 10): not noticed, but no more than was asked for."""
    before = _ended(server, "length")
    http_stream(server, max_tokens=40).close()
    _until(lambda: _ended(server, "length") == before + 1)
    _until(lambda: scrape(server.metrics_url).total("tritonctl_active_streams") == 0)


@pytest.mark.parametrize("leave", ["cancel", "socket", "unstreamed"])
def test_a_fused_model_hears_of_it(server: Server, client: TritonClient, leave: str) -> None:
    """Nothing stands between the engine and the client: its place is free long before the end."""

    def cancelled() -> float:
        metrics = scrape(server.metrics_url)
        return metrics.total("tritonctl_requests_total", model=FUSED, outcome="cancelled")

    before = cancelled()
    if leave == "cancel":
        next(client.stream(FUSED, PROMPT, LONG, timeout=60))  # dropping the iterator cancels
    elif leave == "socket":
        http_stream(server, model=FUSED).close()
    else:
        with pytest.raises(ServerError, match="in time"):
            client.generate(FUSED, PROMPT, UNSTREAMED, timeout=0.2)
    _until(lambda: cancelled() == before + 1)  # one that runs to its end counts as "length"
    _until(lambda: scrape(server.metrics_url).total("tritonctl_active_streams") == 0)


def test_a_batch_of_prompts_is_refused(server: Server) -> None:
    """Two answers in one stream could not be told apart."""
    prompts = np.array([[PROMPT.encode()], [b"12 in English:"]], dtype=np.object_)
    text = grpcclient.InferInput("text_input", [2, 1], "BYTES")
    text.set_data_from_numpy(prompts)
    answers: list[Any] = []
    client = grpcclient.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: answers.append(error or result))
    client.async_stream_infer(FUSED, [text])
    client.stop_stream()
    client.close()
    [refusal] = answers
    assert "the request has 2 prompts, expected one" in str(refusal)


def _until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
