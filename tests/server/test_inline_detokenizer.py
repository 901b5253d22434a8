# SPDX-License-Identifier: Apache-2.0
"""`serving.inline_detokenizer` through a real Triton: the same answers with one step less.

The session's server has the same speller with a detokenizer step. Exactness, order and errors of
scripted streams: test_exactness.py, which runs both ways.
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient

from tests.server.test_cancellation import CHECKOUT, SLOW, http_stream
from tests.server.test_perf_analyzer import EXAMPLE, link_libraries, perf_analyzer
from tritonctl.errors import RequestRejectedError
from tritonctl.host.progress import Silent
from tritonctl.project.file import load_project
from tritonctl.project.schema import Project
from tritonctl.protocol.client import TritonClient
from tritonctl.protocol.generation import Generation, Prompt, SamplingParameters
from tritonctl.protocol.metrics import scrape
from tritonctl.repository.publish import render
from tritonctl.server.lifecycle import start, stop
from tritonctl.server.state import Server

pytestmark = pytest.mark.server

PATIENCE_SECONDS = 20.0
MODEL, ENGINE = "int8", "int8_engine"
MESSAGES = [{"role": "user", "content": "7342 in English"}]


@pytest.fixture(scope="module")
def project(speller_project: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The int8 speller, 20 ms a step: pieces are seen, cancels come in time."""
    root = tmp_path_factory.mktemp("inline")
    record = json.loads((speller_project.root / "tritonctl.yaml").read_text())
    record["models"] = {MODEL: {**record["models"][MODEL], "serving": {"inline_detokenizer": True}}}
    (root / "tritonctl.yaml").write_text(json.dumps(record))
    shutil.copytree(speller_project.state / "engines", root / ".tritonctl" / "engines")
    shutil.copytree(CHECKOUT / "python_backends", root / "python_backends")
    with (root / "python_backends" / "openvino_engine" / "model.py").open("a") as file:
        file.write(SLOW)
    return load_project(root / "tritonctl.yaml")


@pytest.fixture(scope="module")
def server(project: Project) -> Iterator[Server]:
    """It alone."""
    state, _ = start(project, render(project, Silent()), Silent())
    yield state
    stop(project, Silent())


@pytest.fixture
def client(server: Server) -> Iterator[TritonClient]:
    """A client of it."""
    with TritonClient(server.grpc_url) as client:
        yield client


@pytest.fixture
def steps(speller_server: Server) -> Iterator[TritonClient]:
    """A client of the server with three steps."""
    with TritonClient(speller_server.grpc_url) as client:
        yield client


def test_two_steps(server: Server, project: Project) -> None:
    """What is served."""
    names = [folder.name for folder in project.repository.iterdir()]
    assert sorted(names) == ["int8", "int8_engine", "int8_tokenizer"]


ASKED: dict[str, tuple[Prompt, dict[str, Any]]] = {
    "english": ("7342 in English:", {}),
    "chinese": ("907342 in Chinese:", {}),
    "emoji": ("907342 in Emoji:", {}),
    "hindi": ("515 in Hindi:", {}),
    "chat": (MESSAGES, {}),
    "length": ("7342 in Chinese:", {"max_tokens": 3}),
    "echo": ("7342 in Thai:", {"exclude_input_in_output": False}),
    "stop word": ("7342 in English:", {"stop_words": ("ndred fo",)}),
    "stop word kept": ("7342 in English:", {"stop_words": ("usand",), "include_stop_word": True}),
    "no end": ("7 in English:", {"end_id": -1, "max_tokens": 20}),
    "log probs": ("7342 in English:", {"return_log_probs": True}),
}


@pytest.mark.parametrize("case", ASKED)
def test_same_answers(client: TritonClient, steps: TritonClient, case: str) -> None:
    """Text, counts, reason and log probabilities, in several pieces."""
    prompt, sampling = ASKED[case]
    parameters = SamplingParameters(**sampling)
    chunks = list(client.stream(MODEL, prompt, parameters, timeout=60))
    answer = Generation.of(0, chunks)
    right = steps.generate(MODEL, prompt, parameters, timeout=60)
    assert answer.text == right.text
    assert [chunk.finish_reason for chunk in chunks] == [
        *[""] * (len(chunks) - 1),
        right.finish_reason,
    ]
    assert (answer.num_input_tokens, answer.num_output_tokens) == (
        right.num_input_tokens,
        right.num_output_tokens,
    )
    assert len(chunks) > 1 or case == "stop word"
    assert (answer.cum_log_prob or 0.0) == pytest.approx(right.cum_log_prob or 0.0, rel=1e-3)
    assert answer.log_probs == pytest.approx(right.log_probs, rel=1e-3)
    assert bool(answer.log_probs) == (case == "log probs")


def test_refusals_name_the_public_tensor(client: TritonClient) -> None:
    """By the tokenizer, by the request's checks, by the engine itself; the next one is answered."""
    refused: list[tuple[Prompt, dict[str, Any], str]] = [
        ([], {}, "messages is empty"),
        ("7", {"max_tokens": 0}, "max_tokens is 0"),
        ("7", {"bad_words": ("seven",)}, "bad_words: OpenVINO"),
    ]
    for prompt, sampling, problem in refused:
        with pytest.raises(RequestRejectedError, match=problem):
            client.generate(MODEL, prompt, SamplingParameters(**sampling))
    assert client.generate(MODEL, "7 in English:").text == " seven"


def _post(server: Server, endpoint: str, content: dict[str, Any]) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.address, server.http_port, timeout=60)
    try:
        connection.request("POST", f"/v2/models/{MODEL}/{endpoint}", body=json.dumps(content))
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8")
    finally:
        connection.close()


def test_http(server: Server, steps: TritonClient) -> None:
    """One object without streaming; server-sent events with it; an error is a 400."""
    content = {"text_input": "907342 in Emoji:"}
    text = steps.generate(MODEL, content["text_input"]).text
    status, body = _post(server, "generate", content)
    assert (status, json.loads(body)["text_output"]) == (200, text)
    status, body = _post(server, "generate_stream", content | {"stream": True})
    events = [json.loads(part.removeprefix("data: ")) for part in body.split("\n\n") if part]
    assert status == 200
    assert len(events) > 3
    assert "".join(event["text_output"] for event in events) == text
    assert events[-1]["finish_reason"] == "stop"
    status, body = _post(server, "generate", content | {"max_tokens": 0})
    assert (status, "max_tokens is 0" in body) == (400, True)


def test_perf_analyzer(server: Server, project: Project, tmp_path: Path) -> None:
    """NVIDIA's tool counts every streamed response."""
    profile = tmp_path / "profile.json"
    arguments: list[str | Path] = ["-m", MODEL, "--input-data", EXAMPLE / "perf_analyzer.json"]
    arguments += ["--concurrency-range", "4", "--request-count", "20"]
    arguments += ["--profile-export-file", profile]
    done = perf_analyzer(
        link_libraries(project, tmp_path / "libraries"),
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
    assert b"".join(answer.as_numpy("text_output")[0, 0] for answer in answers).decode()

    before = _ended(server, "cancelled")
    client.start_stream(lambda result, error: answers.append(error or result))
    client.async_stream_infer(ENGINE, _direct_inputs(480))
    seen = len(answers)
    _until(lambda: len(answers) > seen + 2)
    client.stop_stream(cancel_requests=True)
    _until(lambda: _ended(server, "cancelled") == before + 1)
    client.close()


def test_a_vanished_client_costs_its_own_budget(server: Server) -> None:
    """The price (docs/decisions/10): not noticed, but no more than was asked for."""
    before = _ended(server, "length")
    http_stream(server, max_tokens=40).close()
    _until(lambda: _ended(server, "length") == before + 1)
    _until(lambda: scrape(server.metrics_url).total("tritonctl_active_streams") == 0)


def _until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
